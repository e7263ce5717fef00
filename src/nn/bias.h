/*
 * Biases of groups of rows, and their gradients. The bias of an expert's second projection is
 * scaled by each row's routing weight, which the GLU has already applied to the GEMM's result. A
 * dense layer's bias has no `prob` and is the same for all groups. A dense layer's groups are
 * sequences, so dbias holds a partial gradient for each sequence.
 */
#pragma once

#include "gemm/gemm.h"

typedef struct moert_scaled_bias {
    moert_row_groups groups; /* if `shared`, all groups have one bias */
    size_t n, ldy;
    const moert_buffer *prob; /* [M] at stride prob_stride; NULL: no scale */
    size_t prob_stride;
    const moert_buffer *bias; /* [G,n], or [n] if `shared` */
    moert_buffer *y;     /* [M,n] at stride ldy: forward adds prob * bias; moert_scaled_bias_dprob
                            and moert_scaled_bias_gradient read dy from y */
    moert_buffer *dprob; /* [M] at stride prob_stride: moert_scaled_bias_dprob adds <dy, bias> of
                            each row */
    moert_buffer *dbias; /* [G,n]: the gradient of `bias`, summed over rows in order */
    bool accumulate;     /* moert_scaled_bias_gradient adds to dbias */
} moert_scaled_bias;

moert_status moert_scaled_bias_forward(const moert_scaled_bias *bias);
moert_status moert_scaled_bias_dprob(const moert_scaled_bias *bias);
moert_status moert_scaled_bias_gradient(const moert_scaled_bias *bias);
