/* Memory that devices of other processes reach, on NVIDIA GPUs. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "moert/device.h"

/* moert_export_ready: MOERT_OK if the device can export its memory to other processes.
 * moert_export_reaches: MOERT_OK if the device can also access memory of the GPU at `pci`. The
 * message of ERROR_UNSUPPORTED gives the reason. */
moert_status moert_export_ready(const moert_device *device);
moert_status moert_export_reaches(const moert_device *device, const char *pci);

/* Divides memory for a buffer of `bytes` into equal pieces that the driver accepts and places next
 * to each other. */
moert_status moert_export_cut(const moert_device *device, size_t bytes, size_t *count,
                              size_t *piece_bytes);

/*
 * Allocates `count` pieces of memory on the device, not cleared, and opens a file for each piece.
 * The caller closes files[count]. moert_export_destroy releases this process's handles; buffers
 * imported from the files stay valid. Errors: ERROR_UNSUPPORTED, ERROR_MEMORY, ERROR_DEVICE.
 */
typedef struct moert_export moert_export;
moert_status moert_export_create(moert_device *device, size_t count, size_t piece_bytes, int *files,
                                 moert_export **export);
void moert_export_destroy(moert_export *export); /* NULL is legal. */

/*
 * Imports pieces, which any process may have exported, and joins them to one buffer. Kernels see
 * one range of addresses. The files stay open; the caller closes them. Errors: ERROR_UNSUPPORTED
 * (the driver did not place the pieces next to each other), ERROR_MEMORY, ERROR_DEVICE.
 */
moert_status moert_buffer_import(moert_device *device, const int *files, size_t count,
                                 size_t piece_bytes, moert_buffer **buffer);
