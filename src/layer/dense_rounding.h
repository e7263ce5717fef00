/*
 * Operands of dense GEMMs, whose weights are replicated: of a shared expert, a dense layer, or
 * attention. Operands are float32 or bf16 values (layer/operand.h), or bf16 values to which a
 * recipe rounds them, as layer/rounding.h does for the experts. In a wgrad blocks are consecutive
 * rows of a sequence, since each sequence has its own gradient (moert_block_dense_gradient), and a
 * sequence's last block may be partial. Random bits of stochastic rounding depend on `seed`, the
 * sequence's global index, the row in its sequence, and the column. So bits do not depend on ranks.
 */
#pragma once

#include "layer/block.h"
#include "layer/operand.h"

typedef struct moert_dense_rounding {
    moert_mesh *mesh;
    const moert_batch *batch;
    moert_dtype type;           /* dtype of the operands; BF16 with a recipe */
    const moert_recipe *recipe; /* NULL: rows are only converted to `type` */
    uint64_t seed;              /* another for each weight and batch */
} moert_dense_rounding;

/* The seed of a weight: `name` is the kind of the weight, `index` its number among that kind. */
uint64_t moert_dense_seed(const moert_batch *batch, const char *name, size_t index);

/* Rounds the operand x or y of `gemm`, rows [T,K] or [T,N] of dtype F32 or BF16, to the scratch
 * buffer `which`. Rows that need no rounding are not copied. */
moert_status moert_dense_round(const moert_dense_rounding *how, moert_gemm *gemm, bool y,
                               moert_scratch which);
/* Runs a forward or dgrad by a tensor of `block`, which is rounded again after it has changed.
 * `use`: how the tensor's forward reads it. */
moert_status moert_dense_gemm(const moert_dense_rounding *how, moert_block *block, size_t tensor,
                              moert_panels_use use, const moert_gemm *gemm);

/* Raises floats[] to the scratch that rounding a weight [n,k] needs. */
void moert_dense_weight_scratch(const moert_device *device, size_t n, size_t k,
                                moert_panels_use use, size_t floats[MOERT_SCRATCHES]);
