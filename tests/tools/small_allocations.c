/*
 * Simulates a driver that allows only small allocations: LD_PRELOAD=small_allocations.so
 * ALLOCATION_BYTES=N makes OpenCL report N as the largest allocation and refuse larger allocations.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdlib.h>

#pragma GCC visibility push(default)

static size_t most_bytes(void) {
    const char *text = getenv("ALLOCATION_BYTES");
    return text != NULL ? strtoull(text, NULL, 10) : SIZE_MAX;
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t bytes, void *value,
                       size_t *value_bytes) {
    cl_int (*real)(cl_device_id, cl_device_info, size_t, void *, size_t *) =
        dlsym(RTLD_NEXT, "clGetDeviceInfo");
    const cl_int code = real(device, name, bytes, value, value_bytes);
    if (code == CL_SUCCESS && name == CL_DEVICE_MAX_MEM_ALLOC_SIZE && value != NULL &&
        *(cl_ulong *)value > most_bytes())
        *(cl_ulong *)value = most_bytes();
    return code;
}

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                      cl_int *code) {
    cl_mem (*real)(cl_context, cl_mem_flags, size_t, void *, cl_int *) =
        dlsym(RTLD_NEXT, "clCreateBuffer");
    if (bytes <= most_bytes())
        return real(context, flags, bytes, host, code);
    if (code != NULL)
        *code = CL_INVALID_BUFFER_SIZE;
    return NULL;
}
