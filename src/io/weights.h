/*
 * Reads weights of released files as float32. A weight is plain or in one of two block-scaled
 * formats; the names and dtypes of its tensors tell the format.
 *
 *   plain  NAME of F64, F32, F16 or BF16
 *   FP8    NAME[N,K] of F8_E4M3 and NAME_scale_inv[ceil(N/128), ceil(K/128)] of F32, BF16 or
 *          F8_E8M0: a value is its payload times the scale of its 128x128 block (DeepSeek-V3,
 *          Qwen3-FP8)
 *   MXFP4  for NAME[E,K,N]: NAME_blocks[E,N,K/32,16] of U8, two E2M1 values per byte, the even one
 *          in the low half, and NAME_scales[E,N,K/32] of E8M0 bytes: a value is its payload times
 *          2^(scale-127) (gpt-oss); the matrices are transposed relative to the plain tensor
 *
 * Values must be finite. No function is collective.
 */
#pragma once

#include "io/safetensors.h"

typedef struct moert_weight {
    const moert_tensor *values; /* plain values, or the payload */
    const moert_tensor *scales; /* NULL if plain */
    size_t rows, columns;       /* N and K; set only if there are scales */
    bool transposed;            /* MXFP4: the file stores [E,N,K] */
} moert_weight;

/*
 * Finds the weight of this name; `shape` is the shape of the plain tensor. ERROR_MISMATCH if its
 * values or scales are absent or have another shape; ERROR_UNSUPPORTED for scales or values of
 * other dtypes.
 */
moert_status moert_weight_find(const moert_tensors *files, const char *name, size_t rank,
                               const size_t *shape, moert_weight *weight);

/* out[count] = elements [first, first + count) in the order of the file. Reads only the bytes and
 * scales of these elements. Errors: ERROR_UNSUPPORTED, ERROR_FORMAT (not finite), ERROR_USAGE
 * (beyond the last element). */
moert_status moert_weight_read(const moert_weight *weight, size_t first, size_t count, float *out);
