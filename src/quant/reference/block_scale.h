/* Computes the scale of one block for the reference backend, and reads what its quantizers need;
 * formulas are in moert/quantize.h. */
#pragma once

#include "moert/formats.h"

/* An element x becomes 0 if `zero`, (x / first) / second if `divides`, else x * factor. */
typedef struct moert_block_scale {
    uint32_t code; /* the bits of an E8M0 or E4M3 scale */
    float value;   /* the value of an F32 scale */
    bool zero, divides;
    float factor, first, second;
} moert_block_scale;

/* The scale of a block whose largest magnitude is `amax`. For NVFP4, *tensor_amax is the tensor's
 * amax; NULL if only the global scale is known. */
moert_block_scale moert_block_scale_of(const moert_quantizer *how, float amax,
                                       const float *tensor_amax, float global);

/* The scale of a block with a norm, for any format but FP8_BLOCK. */
moert_block_scale moert_block_scale_normed(moert_format format, float amax, float norm);

/* The global scale of NVFP4. */
float moert_nvfp4_global(moert_nvfp4_rule rule, float tensor_amax);

/* v = H (signs * v) / 4. H is the Hadamard matrix of order 16 in Sylvester's order, applied as sums
 * and differences at distances 1, 2, 4, 8. */
enum { MOERT_ROTATED = 16 };
void moert_block_rotate(float v[MOERT_ROTATED]);

/* Element `at` of x, whose dtype is F32 or BF16. */
float moert_row_value(const void *x, moert_dtype type, size_t at);
/* Raises *amax to |x|; a NaN stays. */
void moert_raise_amax(float *amax, float x);
