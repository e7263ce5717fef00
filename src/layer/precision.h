/*
 * Low-precision recipes of the experts: the three GEMMs with their operands rounded first.
 *
 *   forward  y = q(x) q(W)^T     blocks along K, the reduction
 *   dgrad    x = q(y) q'(W)      blocks along N
 *   wgrad    W = q'(y)^T q'(x)   blocks of consecutive rows of an expert
 *
 * q and q' both start from the float32 values, never from each other's results. The GEMMs
 * accumulate in float32 as ever, and biases take part unrounded.
 *
 *   bf16   rows are cast to bf16 codes, weights rounded by the products (gemm/gemm.h)
 *   mxfp8  an E4M3 number times a power of two is a bf16 number: rows are decoded to bf16 codes
 *   nvfp4  a global scale is no power of two: rows are decoded to float32
 *
 * so that bf16 and mxfp8 multiply pairs of bf16 codes, and their operands below 2^-126 may count as
 * zero. The master weights stay; what is made of them, prepacked where that gains something, is
 * remade after moert_layer_weights_changed(): by the first forward in the recipes with blocks, by
 * the second product in the others (moert_prepacks).
 *
 * NVFP4: a weight has one global scale per expert, an activation one for all rows of all ranks, so
 * that the bits do not depend on who holds them. The gathering of that scale makes forward and
 * dgrad collective over the mesh's world; wgrad uses what they have found. Each rank's status rides
 * along: if one has failed, the gather fails on all ranks alike.
 */
#pragma once

#include "layer/internal.h"

/* Remakes the rounded weights if they are stale. Not collective. */
moert_status moert_precision_refresh(moert_layer *layer);
void moert_precision_free(moert_layer *layer);

/* Before what can fail on some ranks of a pass, forward or backward: it has two gathers to come. */
void moert_precision_begin(moert_layer *layer);
/*
 * This rank's status before the pass combines: if it is bad and a gather is still to come, this
 * rank takes part in it, so that the others, who may be waiting there, fail as well. Returns what
 * they have agreed on. Collective in this sense.
 */
moert_status moert_precision_settle(moert_layer *layer, moert_status status);
/* The same of a failure that the ranks of the EP group share: their replicas do not know of it. */
moert_status moert_precision_tell_replicas(moert_layer *layer, moert_status status);

/* What h is kept as, [M,I]: bf16 codes in that precision, which needs no blocks of it. */
moert_dtype moert_precision_h_type(const moert_layer *layer);

/* What v is kept as, [M,2I], and dh made as, [M,I]: codes likewise where products by so many
 * experts round (moert_operand_between), unless biases read dv, which is to take v's place. */
moert_dtype moert_precision_between(const moert_device *device, const moert_layer_options *options,
                                    size_t experts);
moert_dtype moert_precision_v_type(const moert_layer *layer);

/* What dv is made as: codes as of h, unless biases read it as well, or a deferred wgrad does and v
 * has no room for them. */
moert_dtype moert_precision_dv_type(const moert_layer *layer);

/* moert_gemm_run of the experts' projection `block`, with float32 operands in `gemm`, which stay as
 * they are, but for h, dv and operands of the wire. */
moert_status moert_precision_gemm(moert_layer *layer, int block, const moert_gemm *gemm);
/* A forward or dgrad with the type of its rounded operands, to ask whether it can round results to
 * bf16 or put them anywhere (moert_gemm_rounds, moert_gemm_scatters). */
moert_gemm moert_precision_operands(const moert_layer *layer, const moert_gemm *gemm);
/* Whether rows travel as the bf16 codes that the experts' products take. */
bool moert_precision_takes_wire(const moert_layer_options *options);
