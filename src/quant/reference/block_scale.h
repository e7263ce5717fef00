/* The scale of one block by the formulas of moert/quantize.h, for the reference backend. */
#pragma once

#include "moert/formats.h"

/* Elements are scaled to x * factor or (x / first) / second, or all set to zero. */
typedef struct moert_block_scale {
    uint32_t code; /* of E8M0 and E4M3 scales */
    float value;   /* of F32 scales */
    bool zero, divides;
    float factor, first, second;
} moert_block_scale;

/* amax of the block; NVFP4: of the tensor, or NULL when only its global scale is known. */
moert_block_scale moert_block_scale_of(const moert_quantizer *how, float amax,
                                       const float *tensor_amax, float global);

/* The same by norm, not FP8_BLOCK. */
moert_block_scale moert_block_scale_normed(moert_format format, float amax, float norm);

/* The global scale of NVFP4. */
float moert_nvfp4_global(moert_nvfp4_rule rule, float tensor_amax);
