/*
 * The bias of an expert's second projection, scaled by each row's routing weight (which the GLU has
 * applied to the rest).
 */
#pragma once

#include "gemm/gemm.h"

typedef struct moert_scaled_bias {
    moert_groups groups;
    moert_part part; /* forward, dprob: of the groups; zeros: all */
    size_t n, ldy;
    const moert_buffer *prob; /* [M] at stride prob_stride */
    size_t prob_stride;
    const moert_buffer *bias; /* [G,n] */
    moert_buffer *y;     /* [M,n] at stride ldy: forward adds prob * bias to it; backward reads the
                            gradient there */
    moert_buffer *dprob; /* [M] at stride prob_stride: backward adds <dy, bias> to it */
    moert_buffer *dbias; /* [G,n]: gradient of bias, rows in order */
    bool accumulate;     /* add to dbias */
} moert_scaled_bias;

moert_status moert_scaled_bias_forward(const moert_scaled_bias *bias);
moert_status moert_scaled_bias_dprob(const moert_scaled_bias *bias);
moert_status moert_scaled_bias_gradient(const moert_scaled_bias *bias);
