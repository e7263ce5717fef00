/* Compares a layer's y and dx with float64, for some tokens of every rank. */
#pragma once

#include "comm/comm.h"
#include "moert/layer.h"

/* A layer with SwiGLU experts. The routing is a renormalised softmax, or given by the caller. The
 * layer's inputs: x = bench_number(seed, t, column) and dy = bench_number(seed + 1, t, column) of
 * global token t. */
typedef struct bench_layer_case {
    moert_comm *comm;
    moert_layer *layer;
    size_t ep, tokens; /* ranks that share the experts; tokens of each rank */
    size_t hidden, intermediate, experts, topk;
    uint64_t seed;
    const int32_t *index; /* [T,K] experts of all ranks' tokens, or -1, each with the weight 1 / K;
                             NULL: the router chooses */
} bench_layer_case;

/*
 * worst[2] = the largest errors of y[T,H] and dx[T,H], relative to the largest value of the row,
 * over BENCH_SAMPLES tokens of every rank. Tokens are not sampled if rounding could change their
 * experts. All ranks get the same values. Collective. Errors: ERROR_MEMORY, ERROR_DEVICE,
 * ERROR_COMM; on all ranks.
 */
enum { BENCH_SAMPLES = 4 };
moert_status bench_layer_check(const bench_layer_case *c, const float *y, const float *dx,
                               double worst[2]);
