/*
 * The experts' GEMMs on FP8 tensor cores, where moert_layer_choices.fp8 says so: rows and weights
 * are quantized to payloads and scales (quant/fp8_operands.h), whose values are those of the recipe
 * FP8 (layer/rounding.h). Differences from GEMMs of bf16 operands:
 *
 *   sums       tensor cores keep about 14 bits of the sums of 128 products
 *   forward    v is rounded before the GLU, which is a separate kernel
 *   y, dx      GEMMs do not scatter their results
 *   wgrad      each expert's rows are padded to a multiple of 16
 */
#pragma once

#include "layer/experts.h"

/* Quantizes the weight [L,N,K] of `block` for forward and dgrad, unless the optimizer has done so
 * (moert_block_fp8). */
moert_status moert_fp8_refresh_weight(moert_layer *layer, int block, size_t n, size_t k);
/* Points a forward or dgrad to the quantized weight. */
void moert_fp8_take_weight(const moert_layer *layer, int block, moert_gemm *gemm);

/* Quantizes operand x or y of a GEMM with the weight of `block` to scratch. A dgrad also quantizes
 * y for the wgrad of the same block, which then finds it. */
moert_status moert_fp8_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                            moert_matrix *rows);
/* Sets the groups of a wgrad to those of the padded rows. Call it after moert_fp8_rows. */
moert_status moert_fp8_pad_groups(const moert_pass *pass, moert_expert_gemm *planned);
