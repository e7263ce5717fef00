/*
 * Staging: device memory and host memory of the same size; MPI sends from and receives into the
 * host memory. On CPU devices, device memory and host memory are the same memory, which kernels and
 * the host use alternately. On other devices the host memory is page-locked, and commands copy
 * ranges between host and device memory.
 */
#pragma once

#include "base/error.h"
#include "moert/device.h"

typedef struct moert_staging moert_staging;

/* Creates a staging area of `bytes`, whose host memory is zero. Errors: ERROR_MEMORY,
 * ERROR_DEVICE. */
moert_status moert_staging_create(moert_device *device, size_t bytes, moert_staging **staging);
/* The bytes of the staging area that moert_staging_reserve creates for a request of `bytes`. */
size_t moert_staging_room(size_t bytes);
/* Replaces *staging (NULL at first) if the staging area holds less than `bytes`. Replacing loses
 * the content, and blocks until enqueued work is done. */
moert_status moert_staging_reserve(moert_device *device, size_t bytes, moert_staging **staging);
void moert_staging_destroy(moert_staging *staging); /* NULL is legal */

moert_buffer *moert_staging_buffer(const moert_staging *staging);
void *moert_staging_host(const moert_staging *staging);

/* Enqueues a copy of a range from the device to the host memory, or back; on CPU devices does
 * nothing. The source must not change before the copy is done. Errors: ERROR_USAGE (outside the
 * memory), ERROR_DEVICE. */
moert_status moert_staging_copy_to_host(moert_staging *staging, size_t offset_bytes, size_t bytes);
moert_status moert_staging_copy_to_device(moert_staging *staging, size_t offset_bytes,
                                          size_t bytes);
