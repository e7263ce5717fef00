/* OpenCL objects of the caller: memory and events in and out (moert/device.h). */
#include "base/memory.h"
#include "device/internal.h"

void *moert_device_queue(const moert_device *device) {
    return device != NULL ? device->queue : NULL;
}

void *moert_device_context(const moert_device *device) {
    return device != NULL ? device->context : NULL;
}

void *moert_device_id(const moert_device *device) {
    return device != NULL ? device->id : NULL;
}

void *moert_buffer_memory(const moert_buffer *buffer) {
    return buffer != NULL ? buffer->memory : NULL;
}

moert_status moert_buffer_adopt(moert_device *device, void *memory, moert_buffer **buffer) {
    cl_context context = NULL;
    size_t bytes = 0;
    moert_buffer *made;
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(memory);
    MOERT_REQUIRE(buffer);
    MOERT_CL(device, clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof context, &context, NULL));
    MOERT_CL(device, clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    if (context != device->context)
        return MOERT_FAIL(ERROR_USAGE,
                          "the memory belongs to another OpenCL context than the device");
    MOERT_TRY(MOERT_NEW(&made));
    *made = (moert_buffer){.device = device, .memory = memory, .bytes = bytes};
    clRetainMemObject(memory);
    *buffer = made;
    return MOERT_OK;
}

moert_status moert_device_await_event(moert_device *device, void *event) {
    cl_event waited = event;
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(event);
    MOERT_CL(device, clEnqueueBarrierWithWaitList(device->queue, 1, &waited, NULL));
    device->awaits = true;
    return MOERT_OK;
}

moert_status moert_device_record_event(moert_device *device, void **event) {
    cl_event made;
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(event);
    MOERT_CL(device, clEnqueueMarkerWithWaitList(device->queue, 0, NULL, &made));
    MOERT_CL(device, clFlush(device->queue)); /* another queue may wait for the event */
    *event = made;
    return MOERT_OK;
}
