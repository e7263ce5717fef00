/* NVIDIA GPUs from sm_90 on: local memory, and tensors for TMA. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "moert/device.h"

/* The largest -DARENA of a family in a directory nvidia/, which is local memory of a work-group:
 * 227 KiB, less the driver's 1 KiB. */
enum { MOERT_ARENA_BYTES = 231424 };

/*
 * A tensor [groups, rows, columns] of 16-bit or 8-bit elements with `stride` elements from row to
 * row. TMA loads boxes of box_rows rows of one group by box_bytes bytes, swizzled, with zeros past
 * the tensor's end. The address and the strides in bytes must be multiples of 16.
 *
 * With run > 0, blocks of `run` gate rows and `run` up rows alternate. The tensor is then
 * [groups, rows / (2 run), 2, run, columns], and a box holds only gates or only ups.
 */
typedef struct moert_tensor_layout {
    size_t groups, rows, columns, stride;
    size_t first;       /* elements of the buffer before the tensor */
    size_t run;         /* rows of a block of gates or ups; 0: gates and ups do not alternate */
    uint32_t box_rows;  /* rows of a box, up to 256; a multiple of `run` if run > 0 and a group has
                           more than 2 run rows */
    uint32_t box_bytes; /* bytes of a box's row, and its swizzle: 32, 64 or 128 (0 means 128) */
    bool f16;           /* elements are f16, not bf16 */
    bool bytes;         /* elements are bytes */
} moert_tensor_layout;
typedef struct moert_tensor_map {
    _Alignas(64) unsigned char bytes[128];
} moert_tensor_map;
/* MOERT_OK if the device supports tensor maps; the message of ERROR_UNSUPPORTED says why the device
 * does not. */
moert_status moert_tensor_map_ready(const moert_device *device);
/* Encodes a map. The first map of a buffer blocks until the buffer's address is known. Errors:
 * ERROR_UNSUPPORTED, ERROR_DEVICE. */
moert_status moert_tensor_map_make(moert_buffer *buffer, const moert_tensor_layout *tensor,
                                   moert_tensor_map *map);
