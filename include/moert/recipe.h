/*
 * Training precisions: how the operands of the experts' three GEMMs are rounded. A recipe rounds
 * those of a shared expert in the same way; F32 and BF16 do not concern the shared expert.
 *
 *   forward   y  = q(x) q(weight)^T            blocks along K, the reduction
 *   dgrad     dx = q(dy) q(weight)             blocks along N
 *   wgrad     dW = q(wgrad_dy)^T q(wgrad_x)    blocks of consecutive rows of an expert; of a
 *                                              sequence in a shared expert
 *
 * Weights, gradients and the optimizer stay float32, and GEMMs accumulate in float32. Every
 * rounding q reads the unrounded matrix.
 */
#ifndef MOERT_RECIPE_H
#define MOERT_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/formats.h"
#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * F32 does not round. BF16 rounds to nearest even; GEMMs on tensor cores also round the two results
 * that the GLU's backward reads, unless experts have biases. The other precisions are recipes,
 * which moert_recipe_of returns; the rows between the GEMMs are kept as with BF16. With all but
 * F32, devices may treat operands and sums below 2^-126 as 0.
 *
 *   MXFP8         E4M3 in blocks of 32, scales rounded up to powers of two, as in torchao
 *   FP8           E4M3 in blocks of 128, of weights 128x128, as in DeepSeek-V3; scales are rounded
 *                 up to powers of two, as in DeepSeek-V3.1 and by default in TransformerEngine
 *   NVFP4         E2M1 in blocks of 16, of weights 16x16; dy is rounded stochastically, and both
 *                 operands of wgrad are rotated; some layers and the last steps compute in BF16
 *                 (NVIDIA: "Pretraining large language models with NVFP4", 2025)
 *   NVFP4_PLAIN   E2M1 in blocks of 16, to nearest
 *   RECIPE        the recipe that the options give
 *
 * NVFP4's block scale is the block's amax / 6, rounded to the 3 mantissa bits of E4M3, without the
 * limits of E4M3's exponents. So there is no global scale, and a row's values do not depend on
 * other rows.
 */
typedef enum moert_precision {
    MOERT_PRECISION_F32,
    MOERT_PRECISION_BF16,
    MOERT_PRECISION_MXFP8,
    MOERT_PRECISION_NVFP4_PLAIN,
    MOERT_PRECISION_FP8,
    MOERT_PRECISION_NVFP4,
    MOERT_PRECISION_RECIPE
} moert_precision;

/* The rounding of an operand: 0 for bf16, or 1 + a moert_format, joined with flags. */
enum {
    MOERT_ROUND_BF16 = 0,
    MOERT_ROUND_FORMAT = 0xFF, /* the bits that hold 1 + a moert_format */
    MOERT_ROUND_TILES = 0x100, /* weight: blocks are squares, so that forward and dgrad read the
                                        same values */
    MOERT_ROUND_STOCHASTIC = 0x200, /* dy and wgrad_dy, elements of 4 bits: up or down at random, so
                                        that the mean is right (moert_batch.draws) */
    MOERT_ROUND_HADAMARD = 0x400 /* wgrad_x and wgrad_dy together, NVFP4: whole blocks are rotated
                                        first, which leaves their product as it is. A last block of
                                        fewer than 16 rows is not rotated */
};
#define MOERT_ROUND_TO(format) (1u + (unsigned)(format))

typedef struct moert_recipe {
    uint32_t x, weight, dy, wgrad_x, wgrad_dy; /* roundings */
    bool attention; /* in a model: also rounds the operands of the projections of attention, in the
                       MoE layers that do not compute in bf16. A layer by itself does not read it */
    /* Parts of a model that compute in bf16 instead: the shares of its MoE layers at the beginning
     * and at the end, rounded up to whole layers, except that one layer is left unless a share is
     * 1; and the share of a training's steps at the end. A layer by itself does not read them; a
     * batch may ask it to compute in bf16 (moert_batch.bf16_operands). */
    double bf16_first, bf16_last, bf16_finish;
} moert_recipe;

/* The recipe of a precision: all operands in bf16 for F32 and BF16. NULL for RECIPE. */
MOERT_API const moert_recipe *moert_recipe_of(moert_precision precision);
/* Checks that the roundings exist and fit their operands, and that shares are in 0..1. Errors:
 * ERROR_USAGE; the message names the field. */
MOERT_API moert_status moert_recipe_check(const moert_recipe *recipe);
/* Whether MoE layer `layer` of `layers` computes in bf16 in all steps. */
MOERT_API bool moert_recipe_keeps_bf16(const moert_recipe *recipe, size_t layer, size_t layers);

#ifdef __cplusplus
}
#endif
#endif
