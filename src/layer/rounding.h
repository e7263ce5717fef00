/*
 * Rounds the operands of the experts' GEMMs.
 *
 *   forward  y = q(x) q(W)^T     blocks along K, the reduction
 *   dgrad    x = q(y) q'(W)      blocks along N
 *   wgrad    W = q'(y)^T q'(x)   blocks of consecutive rows of an expert
 *
 * The roundings q and q' both read the rows as they are, in float32 or bf16, never each other's
 * results. The GEMMs
 * accumulate in float32.
 *
 *   bf16           rows are cast to bf16; the GEMMs round the weights (gemm/gemm.h)
 *   mxfp8, nvfp4   rows become the format's values in bf16, which holds them exactly
 *                  (quant/fake_quantize.h)
 *
 * The float32 master weights are kept. After moert_layer_weights_changed(), the first forward
 * quantizes the weights again for mxfp8 and nvfp4, and prepacks the quantized weights where that
 * gains something. In the other precisions moert_weight_cache decides when to prepack.
 *
 * NVFP4: a weight has one global scale per expert. An activation has one global scale for all rows
 * of all ranks, so that the bits do not depend on which rank holds a row. Global scales are powers
 * of two, so that they are exact in the operands and sums over parts of the rows agree. Gathering the
 * activation's amax makes forward and dgrad collective over the mesh's world; wgrad uses the same
 * amax. The gather also carries each rank's status: if one rank has failed, the gather fails on all
 * ranks.
 */
#pragma once

#include "layer/experts.h"

/* Quantizes the weights again if they have changed. Not collective. */
moert_status moert_round_weights(moert_layer *layer);
/* Points `gemm`, a forward or dgrad, to the rounded copy of the weight of `block`, or to the weight
 * itself if the layer does not quantize. */
moert_status moert_round_take_weight(moert_layer *layer, int block, moert_gemm *gemm);
void moert_round_free(moert_layer *layer);

/* Raises floats[] to the scratch that quantizing needs in a layer of these sizes. */
void moert_round_scratch(const moert_layer_sizes *sizes, size_t floats[MOERT_SCRATCHES]);

/* Rounds operand x or y of a GEMM with the weight of `block` to scratch; rows that already have the
 * operands' dtype are not copied. A dgrad also rounds y for the wgrad of the same block, which then
 * finds it, unless wgrads are deferred. Collective over the world with global scales, except for a
 * wgrad. */
moert_status moert_round_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                              moert_matrix *rows);

/* Starts a forward or backward, which has two gathers with NVFP4. Call it before anything
 * that can fail on some ranks only. */
void moert_round_begin(moert_layer *layer);
/*
 * Call it with this rank's status before the combine of a forward or backward. If the status is a
 * failure and a gather remains, this rank joins that gather, so that ranks that wait in the gather
 * fail too. Returns the agreed status, or `status` if there was no gather. Collective over the
 * failed ranks and the ranks that wait in the gather.
 */
moert_status moert_round_join_failed_gather(moert_layer *layer, moert_status status);
/* Like moert_round_join_failed_gather, for a failure that all ranks of the EP group share but the
 * other replicas do not know. Returns `status` if the experts have no replicas. */
moert_status moert_round_join_gather_of_replicas(moert_layer *layer, moert_status status);
