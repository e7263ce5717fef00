/*
 * Rounds the operands of the experts' GEMMs.
 *
 *   forward  y = q(x) q(W)^T     blocks along K, the reduction
 *   dgrad    x = q(y) q'(W)      blocks along N
 *   wgrad    W = q'(y)^T q'(x)   blocks of consecutive rows of an expert
 *
 * The roundings q and q' both read the rows as they are, in float32 or bf16, never each other's
 * results. The GEMMs accumulate in float32.
 *
 *   bf16           rows are cast to bf16; the GEMMs round the weights (gemm/gemm.h)
 *   mxfp8, nvfp4   rows become the format's values in bf16, which holds them exactly
 *                  (quant/fake_quantize.h)
 *
 * The float32 master weights are kept. After moert_layer_weights_changed(), the first forward
 * rounds the weights again for mxfp8 and nvfp4, and prepacks the rounded weights where that gains
 * something. In the other precisions moert_weight_cache decides when to prepack.
 *
 * A dgrad's y and that of the wgrad of the same block are the same rows: one pass rounds them both
 * ways. Bits of a row depend neither on its rank nor on other rows, except in a wgrad, whose blocks
 * are consecutive rows of an expert.
 */
#pragma once

#include "layer/experts.h"

/* Rounds the weights again if they have changed. */
moert_status moert_round_weights(moert_layer *layer);
/* Points `gemm`, a forward or dgrad, to the rounded copy of the weight of `block`, or to the weight
 * itself if the layer does not quantize. */
moert_status moert_round_take_weight(moert_layer *layer, int block, moert_gemm *gemm);
void moert_round_free(moert_layer *layer);

/* Raises floats[] to the scratch that rounding weights needs in a layer of these sizes. */
void moert_round_scratch(const moert_layer_sizes *sizes, size_t floats[MOERT_SCRATCHES]);

/* Rounds operand x or y of a GEMM with the weight of `block` to scratch; rows that already have the
 * operands' dtype are not copied. A dgrad also rounds y for the wgrad of the same block, which then
 * finds it, unless wgrads are deferred. */
moert_status moert_round_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                              moert_matrix *rows);
