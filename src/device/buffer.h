/* Functions on buffers that moert/device.h lacks: groups of buffers, memory in use, and copies. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "moert/device.h"

/* ---- buffers (buffer.c) ---- */

/* Destroys several buffers, any of which may be NULL: MOERT_DESTROY(one, other). */
#define MOERT_DESTROY(...)                                                                         \
    moert_buffers_destroy((moert_buffer *[]){__VA_ARGS__},                                         \
                          sizeof((moert_buffer *[]){__VA_ARGS__}) / sizeof(moert_buffer *))
void moert_buffers_destroy(moert_buffer *const *buffers, size_t count);

/* Ensures that *buffer (NULL at first) holds at least `bytes`. Replaces a buffer that is too small
 * by a new one, and does not keep the content. If the new buffer cannot be allocated, *buffer is
 * NULL. */
moert_status moert_buffer_reserve(moert_device *device, size_t bytes, moert_buffer **buffer);

/* Whether two buffers share memory, because they are the same buffer, views of one buffer, or wrap
 * the same host memory. */
bool moert_buffers_overlap(const moert_buffer *a, const moert_buffer *b);

/* *address = the address of a buffer as kernels on its device see it. The first call for a buffer
 * blocks. */
moert_status moert_buffer_address(moert_buffer *buffer, uint64_t *address);

/* The most bytes that this rank's buffers and windows took of the device's memory at one time. */
size_t moert_device_peak_bytes(const moert_device *device);
/* Resets the peak to `bytes`, an earlier value of the peak, after a measurement whose memory should
 * not count. */
void moert_device_set_peak(moert_device *device, size_t bytes);
/* Adds `more` bytes to the memory in use, then subtracts `fewer`. Use it for memory that
 * moert_buffer_create did not allocate. */
void moert_device_count(moert_device *device, size_t more, size_t fewer);

/* ---- commands (transfer.c) ---- */

/* The family of the kernels that copy. In profiles this family also stands for the driver's copy
 * commands. */
#define MOERT_FAMILY_COPY "lib/copy"

/* Enqueues a copy of `rows` rows of `target_row_bytes` each, at a stride of `source_row_bytes`, to
 * rows without gaps. Errors: ERROR_USAGE (outside the buffers), ERROR_UNSUPPORTED (imported memory
 * and sizes that are not multiples of 4), ERROR_DEVICE. */
moert_status moert_buffer_copy_rows(const moert_buffer *source, size_t source_row_bytes,
                                    moert_buffer *target, size_t target_row_bytes, size_t rows);

/* Writes ends[groups], uint32: the ends of equal groups of `rows` rows. Errors: those of
 * moert_buffer_write, ERROR_MEMORY. */
moert_status moert_buffer_write_ends(size_t groups, size_t rows, moert_buffer *ends);
