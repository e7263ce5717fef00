/*
 * Device memory.
 *
 * A moert_device is one OpenCL device with an in-order queue; one thread of one rank uses it. A
 * moert_buffer is memory of that device. Calls with a host pointer block until the caller may reuse
 * the host memory; kernels run in the order in which they were enqueued. None of these calls is
 * collective.
 */
#ifndef MOERT_DEVICE_H
#define MOERT_DEVICE_H

#include <stddef.h>

#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_device moert_device;
typedef struct moert_buffer moert_buffer;

/*
 * Creates a buffer of `bytes` (0 is legal) with undefined content. The caller owns it.
 * Errors: ERROR_MEMORY (no room, or above the device's largest allocation), ERROR_DEVICE.
 */
MOERT_API moert_status moert_buffer_create(moert_device *device, size_t bytes,
                                           moert_buffer **buffer);

/* Makes a buffer of `bytes` at `memory`, host memory that must stay valid. CPU devices use this
 * memory in place; other devices may copy it. Errors: those of moert_buffer_create, ERROR_USAGE
 * (`memory` is NULL, unless there are 0 bytes). */
MOERT_API moert_status moert_buffer_wrap(moert_device *device, void *memory, size_t bytes,
                                         moert_buffer **buffer);

/*
 * Makes a buffer that is a range of `parent`, which may be a view. `parent` must outlive the new
 * buffer. offset_bytes must be a multiple of 512.
 * Errors: ERROR_USAGE (alignment, or past the parent's end), ERROR_DEVICE.
 */
MOERT_API moert_status moert_buffer_view(const moert_buffer *parent, size_t offset_bytes,
                                         size_t bytes, moert_buffer **buffer);

/* Frees the buffer's memory once the enqueued work that uses the buffer is done. NULL is legal. */
MOERT_API void moert_buffer_destroy(moert_buffer *buffer);

MOERT_API size_t moert_buffer_bytes(const moert_buffer *buffer);
MOERT_API moert_device *moert_buffer_device(const moert_buffer *buffer);

/* Copies host to device or device to host. Blocks until `source` may be reused, or `target` is
 * complete. Later commands of the device see the written data. Other processes that share the
 * memory see the data after moert_device_finish. Errors: ERROR_USAGE (outside the buffer),
 * ERROR_DEVICE.
 */
MOERT_API moert_status moert_buffer_write(moert_buffer *buffer, size_t offset_bytes,
                                          const void *source, size_t bytes);
MOERT_API moert_status moert_buffer_read(const moert_buffer *buffer, size_t offset_bytes,
                                         void *target, size_t bytes);

/* Enqueues a device-side copy or a fill with zero bytes; does not block. Ranges of one buffer must
 * not overlap. */
MOERT_API moert_status moert_buffer_copy(const moert_buffer *source, size_t source_offset_bytes,
                                         moert_buffer *target, size_t target_offset_bytes,
                                         size_t bytes);
MOERT_API moert_status moert_buffer_clear(moert_buffer *buffer, size_t offset_bytes, size_t bytes);

/* Maps the whole buffer into host memory, readable and writable until unmapped; blocks. CPU devices
 * map the buffer without a copy. moert_buffer_map sets the pointer to which `memory` points.
 * `memory` of moert_buffer_unmap is the value of that pointer. */
MOERT_API moert_status moert_buffer_map(const moert_buffer *buffer, void *memory);
MOERT_API moert_status moert_buffer_unmap(const moert_buffer *buffer, void *memory);

/* Blocks until all enqueued work is done. Errors: ERROR_DEVICE. */
MOERT_API moert_status moert_device_finish(moert_device *device);

/*
 * OpenCL objects, for programs with kernels of their own: the in-order cl_command_queue, the
 * cl_context, the cl_device_id, and a buffer's cl_mem. moert keeps owning these objects. Commands
 * that a program enqueues in this queue run in order with moert's work, so they need no events.
 */
MOERT_API void *moert_device_queue(const moert_device *device);
MOERT_API void *moert_device_context(const moert_device *device);
MOERT_API void *moert_device_id(const moert_device *device);
MOERT_API void *moert_buffer_memory(const moert_buffer *buffer);

/* Makes a buffer of `memory`, a cl_mem of the device's context, and retains this cl_mem. Errors:
 * ERROR_USAGE (another context), ERROR_DEVICE, ERROR_MEMORY. */
MOERT_API moert_status moert_buffer_adopt(moert_device *device, void *memory,
                                          moert_buffer **buffer);

/* These calls order moert's work with work in other queues. After moert_device_await_event, all
 * work that moert enqueues waits for the cl_event `event`. moert_device_record_event sets *event to
 * a cl_event that completes when all work enqueued so far is done; the caller releases this
 * cl_event. Neither call blocks. Errors: ERROR_DEVICE. */
MOERT_API moert_status moert_device_await_event(moert_device *device, void *event);
MOERT_API moert_status moert_device_record_event(moert_device *device, void **event);

/* The driver's name of the device. */
MOERT_API const char *moert_device_name(const moert_device *device);

#ifdef __cplusplus
}
#endif
#endif
