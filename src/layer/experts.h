/*
 * The grouped GEMMs of a rank's experts. With x the received rows and P the routing weights:
 *
 *               block IN, weight W1                  block OUT, weight W2
 *   forward     v = x W1^T, h = P glu(v)             y = h W2^T
 *   dgrad       dx = dv W1                           dh = dy W2
 *   wgrad       dW1 = dv^T x                         dW2 = dy^T h
 *
 * Operands are rounded first, as moert_layer_choices says (layer/rounding.h); biases are not
 * rounded.
 */
#pragma once

#include "layer/internal.h"

/* The destination of the result of a forward or dgrad. */
typedef struct moert_result {
    moert_matrix rows;
    const moert_buffer *places; /* addresses of the rows, used instead of rows.buffer
                                   (moert_gemm_more.places), or NULL */
} moert_result;

/* A GEMM that is ready to run, and its row matrices before rounding. */
typedef struct moert_expert_gemm {
    moert_gemm gemm;
    moert_gemm_more more;
    moert_matrix x, y;
} moert_expert_gemm;

/*
 * Prepares a forward or dgrad by the weight of `block` on groups of rows: makes its operands, and
 * chooses the copy of the weight that it reads. The operands are valid until the next call.
 */
moert_status moert_experts_gemm(moert_pass *pass, moert_gemm_kind kind, int block,
                                const moert_row_groups *groups, const moert_result *result,
                                moert_expert_gemm *planned);
/* The descriptor of the GLU of groups of rows. `gated`: the GLU is part of the forward of the first
 * projection; otherwise it follows as a separate call. */
moert_glu moert_experts_glu(const moert_pass *pass, const moert_row_groups *groups);
/* Prepares the gradient of the weight of `block`. A failure becomes the status of the pass; the
 * GEMM then has its shape, but no operands. */
void moert_experts_wgrad(moert_pass *pass, int block, moert_expert_gemm *planned);
/* The GEMM descriptor for the gradient of the first projection's biases, over all rows. */
moert_gemm moert_experts_bias_gradient(const moert_pass *pass);
/* The descriptor of the second projection's scaled biases, for rows y or dy. */
moert_scaled_bias moert_experts_biases(const moert_pass *pass, const moert_row_groups *groups,
                                       const moert_matrix *rows);
