/*
 * Copies of a weight [G,N,K] that a recipe rounds (moert/recipe.h): for forward with blocks along
 * K, for dgrad with blocks along N. A copy is prepacked, or float32 where prepacking gains nothing.
 * The float32 master weight is kept.
 */
#pragma once

#include "gemm/gemm.h"
#include "quant/fp8_operands.h"

/* For GEMMs of FP8 operands, `quantized` describes the weight's FP8 operands for forward and dgrad
 * instead, which the block keeps (moert_block_fp8). */
typedef struct moert_rounded {
    moert_panels *panels[MOERT_PANELS_USES];
    moert_buffer *weight[MOERT_PANELS_USES];
    moert_quantized quantized[2];
} moert_rounded;

/* A weight to round. */
typedef struct moert_rounded_source {
    moert_device *device;
    moert_panels_shape shape;   /* with the forward's use */
    uint32_t rounding;          /* as in moert_recipe, not bf16 */
    const moert_buffer *weight; /* float32 [G,N,K] */
    const moert_buffer *ends;   /* uint32 [G]: N, 2N, ...; NULL if G is 1 */
    moert_buffer **scratch;     /* a growable buffer for bf16 [G,N,K]; unused if prepacked copies
                                   are in the weight's order */
} moert_rounded_source;

/* Rounds the weight for forward and dgrad. Enqueues and returns. */
moert_status moert_rounded_fill(moert_rounded *rounded, const moert_rounded_source *source);
/* Points a forward or dgrad to its copy. */
void moert_rounded_take(const moert_rounded *rounded, moert_gemm *gemm);
/* Frees the copies. */
void moert_rounded_free(moert_rounded *rounded);

/* The quantizer of a rounding other than bf16; `seed` is that of stochastic rounding. */
moert_quantizer moert_rounded_quantizer(uint32_t rounding, uint64_t seed);
