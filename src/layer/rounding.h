/*
 * Rounds the operands of the experts' GEMMs by the layer's recipe (moert/recipe.h).
 *
 *   bf16      rows are cast to bf16; the GEMMs round the weights (gemm/gemm.h)
 *   formats   matrices become the format's values in bf16, which holds them exactly
 *             (quant/fake_quantize.h)
 *   FP8       if tensor cores multiply them, the same values as payloads and scales (layer/fp8.h)
 *
 * The float32 master weights are kept. After moert_layer_weights_changed(), the first pass that
 * needs them rounds the weights again, and prepacks the rounded weights where that gains something.
 * For weights in bf16, moert_weight_cache decides when to prepack.
 *
 * A dgrad's y and that of the wgrad of the same block are the same rows: if both are rounded alike,
 * one pass rounds them both ways. Bits of a row depend neither on its rank nor on other rows,
 * except in a wgrad, whose blocks are consecutive rows of an expert.
 */
#pragma once

#include "layer/experts.h"

/* Points `gemm`, a forward or dgrad, to the rounded copy of the weight of `block`, or to the weight
 * itself if its operands are bf16 or float32. */
moert_status moert_round_take_weight(const moert_pass *pass, int block, moert_gemm *gemm);
/* Frees the rounded copies of the weights. */
void moert_round_free(moert_layer *layer);

/* Raises floats[] to the scratch that rounding weights needs in a layer of these sizes. */
void moert_round_scratch(const moert_layer_sizes *sizes, size_t floats[MOERT_SCRATCHES]);

/* Rounds operand x or y of a GEMM with the weight of `block` to scratch; rows that already have the
 * operands' dtype are not copied. A dgrad also rounds y for the wgrad of the same block, which then
 * finds it, unless wgrads are deferred. */
moert_status moert_round_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                              moert_matrix *rows);
