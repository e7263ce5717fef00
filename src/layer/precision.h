/*
 * Low-precision recipes of the experts: the operands of the three GEMMs are rounded first.
 *
 *   forward  y = q(x) q(W)^T     blocks along K, the reduction
 *   dgrad    x = q(y) q'(W)      blocks along N
 *   wgrad    W = q'(y)^T q'(x)   blocks of consecutive rows of an expert
 *
 * q and q' both round the float32 values, never each other's results. The GEMMs accumulate in
 * float32, and biases are not rounded.
 *
 *   bf16   rows are cast to bf16; the GEMMs round the weights (gemm/gemm.h)
 *   mxfp8  an E4M3 value times a power of two is exact in bf16: rows are dequantized to bf16
 *   nvfp4  global scales are not powers of two: rows are dequantized to float32
 *
 * So the GEMMs of bf16 and mxfp8 multiply pairs of bf16 values, and may treat operands below 2^-126
 * as zero. The float32 master weights are kept. After moert_layer_weights_changed(), the first
 * forward quantizes them again for mxfp8 and nvfp4, and prepacks them where that gains something.
 * In the other recipes moert_prepacks decides when to prepack.
 *
 * NVFP4: a weight has one global scale per expert. An activation has one for all rows of all ranks,
 * so that the bits do not depend on which rank holds a row. Gathering its amax makes forward and
 * dgrad collective over the mesh's world; wgrad uses the same amax. The gather also carries each
 * rank's status: if one rank has failed, it fails on all ranks.
 */
#pragma once

#include "layer/internal.h"

/* Quantizes the weights again if they are stale. Not collective. */
moert_status moert_precision_refresh(moert_layer *layer);
void moert_precision_free(moert_layer *layer);

/* Starts a forward or backward, which has two gathers with NVFP4. Call it before anything
 * that can fail on some ranks only. */
void moert_precision_begin(moert_layer *layer);
/*
 * Call it with this rank's status before the combine of a forward or backward. If the status is a
 * failure and a gather remains, this rank takes part in that gather, so that ranks that wait there
 * fail too.
 * Returns the agreed status, or `status` if there was no gather. Collective over the failed ranks
 * and those that wait.
 */
moert_status moert_precision_settle(moert_layer *layer, moert_status status);
/* Calls moert_precision_settle for a failure that all ranks of the EP group share but their
 * replicas do not know. Returns `status` if the experts have no replicas. */
moert_status moert_precision_tell_replicas(moert_layer *layer, moert_status status);

/* The dtype of h[M,I]: bf16 in the recipe bf16, since only GEMMs read h; else float32. */
moert_dtype moert_precision_h_type(const moert_layer *layer);

/* The dtype of v[M,2I] and dh[M,I]: bf16 if h is bf16 and the GEMMs of `experts` experts can round
 * their results (moert_operand_between), else float32. With biases it is float32, because dv
 * replaces v and the gradient of the biases reads dv in float32. */
moert_dtype moert_precision_between(const moert_device *device, const moert_layer_options *options,
                                    size_t experts);
moert_dtype moert_precision_v_type(const moert_layer *layer);

/* The dtype of dv. It is float32 with biases. Otherwise, with a deferred wgrad it is the dtype of
 * v, because dv then uses the buffer of v. In all other cases it is the dtype of h. */
moert_dtype moert_precision_dv_type(const moert_layer *layer);

/* Runs a GEMM of the experts' projection `block`, after rounding its operands to scratch. The
 * operands are float32, except that h, dv and received rows may be bf16 already. */
moert_status moert_precision_gemm(moert_pass *pass, int block, const moert_gemm *gemm);
/* `gemm`, a forward or dgrad, with the dtype of its rounded operands: the argument for
 * moert_gemm_rounds and moert_gemm_scatters. */
moert_gemm moert_precision_operands(const moert_layer *layer, const moert_gemm *gemm);
/* Whether rows travel as the bf16 values that the experts' GEMMs read. */
bool moert_precision_takes_wire(const moert_layer_options *options);
