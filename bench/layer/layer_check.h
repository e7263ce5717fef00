/* A layer's y and dx beside float64, for some tokens of every rank. */
#pragma once

#include "comm/comm.h"
#include "moert/layer.h"

/* A layer with SwiGLU experts and softmax routing, renormalised; x and dy of global token t are
 * bench_number(seed, t, column) and bench_number(seed + 1, t, column). */
typedef struct bench_layer_case {
    moert_comm *comm;
    moert_layer *layer;
    size_t ep, tokens; /* ranks that share the experts; tokens of each rank */
    size_t hidden, intermediate, experts, topk;
    uint64_t seed;
} bench_layer_case;

/*
 * worst[2]: the largest difference of y[T,H] and of dx[T,H] of this rank to what they must be,
 * relative to the largest value of the same row, over BENCH_SAMPLES tokens of every rank whose
 * experts rounding cannot change. The same on all ranks. Collective. Errors: ERROR_MEMORY,
 * ERROR_DEVICE, ERROR_COMM; of all ranks.
 */
enum { BENCH_SAMPLES = 4 };
moert_status bench_layer_check(const bench_layer_case *c, const float *y, const float *dx,
                               double worst[2]);
