/*
 * Included by the router's kernels: scores that depend on one logit only, the slopes of scores,
 * sums over a row of scores, and scores as sortable integer keys.
 */
#ifndef MOERT_ROUTER_SCORES_H
#define MOERT_ROUTER_SCORES_H

#include "args/router.h"
#include "lib/elementary.h"

enum { NO_EXPERT = -1, BAD_TOKEN = -2 };
#define TINY 1e-20f
enum { SOFTMAX, SOFTMAX_TOPK, SIGMOID, SQRT_SOFTPLUS }; /* as moert_score */

/* Whether a score depends on one logit only, so that the scores of a token do not sum to 1. */
static inline bool is_pointwise(int score) {
    return score >= SIGMOID;
}

/* Pointwise scores of logits x. For x below -16, log(1 + e^x) equals e^x to the last bit, and its
 * root e^(x / 2) does not underflow as e^x might. */
static inline vec pointwise_scores(vec x, int score) {
    if (score == SIGMOID)
        return 1.0f / (1.0f + moert_exp(-x));
    return select(sqrt(fmax(x, 0.0f) + moert_log1p(moert_exp(-fabs(x)))), moert_exp(0.5f * x),
                  x < -16.0f);
}

/* g = (ds/dl) / s of pointwise scores, else 1 */
static inline vec slopes(vec s, int score) {
    const vec square = s * s;
    if (score == SIGMOID)
        return 1.0f - s;
    if (score == SQRT_SOFTPLUS)
        return select(-0.5f * moert_expm1(-square) / square, (vec)0.5f, square < 0x1p-24f);
    return 1.0f;
}

/* a[E] of token t: the array of the token's sequence if there are ends, else the array of all
 * tokens. */
static inline global const float *aux_of(global const float *aux, global const uint *ends, ulong t,
                                         moert_router_args args) {
    return ends != 0 ? aux + (ulong)group_of(ends, args.sequences, (uint)t) * args.experts : aux;
}

/* {sum s, sum s * a} of a row */
static float2 row_sums(global const float *s, global const float *a, int experts,
                       local float *row_group) {
    lane_sums sum = NO_SUM, weighted = NO_SUM;
    EACH_STEP_OF(e, v, experts) {
        vec x = load_part(s + e, experts - e);
        sum.part[v] += x;
        if (a)
            weighted.part[v] = fma(x, load_part(a + e, experts - e), weighted.part[v]);
    }
    return (float2)(sum_lanes(sum, row_group), sum_lanes(weighted, row_group));
}

/* Unsigned integers in the order of the floats, with -0 like 0. Only a NaN can become 0. */
static inline uint order_key(float x) {
    uint bits = as_uint(x + 0.0f);
    return bits ^ (as_uint(as_int(bits) >> 31) | 0x80000000u);
}

static inline uvec order_keys(vec x) {
    uvec bits = as_uvec(x + 0.0f);
    return bits ^ (as_uvec(as_ivec(bits) >> 31) | 0x80000000u);
}

static inline float key_value(uint key) {
    return as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

#endif
