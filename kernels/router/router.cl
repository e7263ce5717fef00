/*
 * Router on CPUs: scores of a token's experts, the choice of K experts and their weights; the
 * backward of these; how many tokens of a sequence have an expert among their best (router_counts).
 * gpu.cl has the same kernels for GPUs, sums.cl those that sum scores.
 *
 *   p = softmax(l) over the E experts      s = p, or sigmoid(l), or sqrt(log(1 + exp l))
 *   r = p, or s / (sum s + 1e-20)
 *   selection score c = s + bias, with SOFTMAX_TOPK l + bias
 *   groups > 1: only experts of the kept_groups groups with the largest sum of their group_best
 *               best c can be chosen
 *   chosen: the K largest c, largest first, of equal ones the lower expert
 *   v = s[chosen], or exp(l[chosen] - max) with SOFTMAX_TOPK
 *   w = scale * v,  normalised: scale * v / (sum v + 1e-20)
 *
 * Backward, with the selection held fixed and without slots of index < 0; D = sum_k w_k dw_k, a[e]
 * = d(loss)/d(r[t,e]), with ends a[s,e] of the token's sequence s:
 *   chosen e = index_k:  dl_e += w_k g_e (dw_k - D / scale), D only if normalised; g = 1, or
 *                        (ds/dl) / s of sigmoid and sqrt-softplus
 *   softmax, all e:      dl_e += s_e (a_e - sum s a) - s_e D, D only with SOFTMAX that is not
 *                        normalised
 *   others, all e:       dl_e += (a_e - sum r a) / (sum s + 1e-20) * s_e g_e
 *   z-loss, all e:       dl_e += z_factor lse p_e
 * (ds/dl) / s is 1 - s for the sigmoid. For sqrt-softplus, where sigmoid(l) = 1 - exp(-s^2),
 * (ds/dl) / s is (1 - exp(-s^2)) / (2 s^2): between 0 and 1/2, and 1/2 where s^2 underflows.
 *
 * Shapes, dense: logits, scores, dlogits [T,E]; index int [T,K]; weight, dweight [T,K]; lse [T];
 * bias, aux [E] or null, aux [S,E] with ends; mass [S,E], counts uint [S,E], ends uint [S] or null.
 * A token with a logit that is not finite (or a NaN in the bias) gets index -2, -1, -1, ..., and
 * zeros everywhere else.
 *
 * A row group computes TOKENS tokens. The row group runs over E in steps of VEC experts; the last
 * step is masked. Required: nothing. No local memory.
 *
 * Deterministic: a token's result depends on that token's row only. Sums over E add lane by lane,
 * then the lanes as a tree; sums over K add by slot.
 */
#include "args/router.h"

#define TOKENS       MOERT_ROUTER_TOKENS
#define MOST_EXPERTS MOERT_ROUTER_MOST_EXPERTS

#include "router/scores.h"
#include "router/topk.h"

/* Whether the condition holds in any lane. */
static inline bool any_lane(ivec condition) {
    return max_uints(as_uvec(condition), 0) != 0;
}

/* Stores s[E] in `row` and the log-sum-exp of l[E] in *lse; false if a logit is not finite. */
static bool row_scores(global const float *l, int experts, int score, uint *row, float *lse) {
    vec largest = -INFINITY;
    lane_sums sum = NO_SUM;
    ivec finite = -1;
    for (int e = 0; e < experts; e += VEC) {
        const vec x = load_part(l + e, experts - e),
                  padded = select((vec)-INFINITY, x, lane_places() < experts - e);
        finite &= isfinite(x);
        largest = fmax(largest, padded);
        store_floats(padded, row + e);
    }
    const float top = max_lanes(largest, 0);
    EACH_STEP_OF(e, v, experts) {
        const vec x = load_floats(row + e), exponential = moert_exp(x - top);
        sum.part[v] += exponential;
        store_floats(is_pointwise(score) ? pointwise_scores(x, score) : exponential, row + e);
    }
    const float total = sum_lanes(sum, 0);
    *lse = top + moert_logf(total);
    for (int e = 0; e < experts && !is_pointwise(score); e += VEC)
        store_floats(load_floats(row + e) / total, row + e);
    return !any_lane(~finite);
}

/* Stores the keys of the selection scores: l[E] or, if l is null, row[E], plus bias[E]. False if a
 * selection score is a NaN. */
static bool row_keys(global const float *l, const uint *row, global const float *bias, int experts,
                     uint *key) {
    ivec nan = 0;
    for (int e = 0; e < experts; e += VEC) {
        const ivec inside = lane_places() < experts - e;
        vec x = l != 0 ? load_part(l + e, experts - e) : load_floats(row + e);
        if (bias != 0)
            x += load_part(bias + e, experts - e);
        nan |= isnan(x) & inside;
        store_keys(select((uvec)0, order_keys(x), inside), key + e);
    }
    return !any_lane(nan);
}

static float largest_picked(const uint *picked, int topk) {
    float top = -INFINITY;
    for (int k = 0; k < topk; k++)
        top = fmax(top, as_float(picked[k]));
    return top;
}

/* picked[K] = exp(picked - top), the unnormalised softmax over the chosen logits */
static void chosen_exponentials(uint *picked, int topk, float top) {
    for (int k = 0; k < topk; k += VEC)
        store_floats(
            moert_exp(select((vec)top, load_floats(picked + k), lane_places() < topk - k) - top),
            picked + k);
}

/* Stores w[K] (from picked), index[K] and s[E] of a token. A bad token gets zeros and the indices
 * BAD_TOKEN, NO_EXPERT, NO_EXPERT, ... */
static void store_choice(bool good, float divisor, const uint *row, const uint *picked,
                         const uint *best, global float *s, global int *index, global float *w,
                         moert_router_args args) {
    const int experts = args.experts, topk = args.topk;
    for (int e = 0; e < experts; e += VEC)
        store_part(good ? load_floats(row + e) : (vec)0.0f, s + e, experts - e);
    for (int k = 0; k < topk; k += VEC)
        store_part(good ? load_floats(picked + k) / divisor * args.scale : (vec)0.0f, w + k,
                   topk - k);
    for (int k = 0; k < topk; k++)
        index[k] = good ? (int)best[k] : k == 0 ? BAD_TOKEN : NO_EXPERT;
}

KERNEL void router_forward(global const float *logits, global const float *bias,
                           global float *scores, global int *index, global float *weight,
                           global float *lse, moert_router_args args) {
    ROW_ARRAY(row);
    ROW_ARRAY(key);
    ROW_ARRAY(picked);
    ROW_ARRAY(best);
    const ulong first = (ulong)get_group_id(0) * TOKENS, last = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < last; t++) {
        global const float *l = logits + t * args.experts;
        const bool by_logits = args.score == SOFTMAX_TOPK;
        float row_lse = 0.0f, sum = 0.0f;
        bool good = row_scores(l, args.experts, args.score, row, &row_lse);
        good &= row_keys(by_logits ? l : 0, row, bias, args.experts, key);
        lse[t] = good ? row_lse : 0.0f;
        keep_groups(key, picked, args);
        for (int k = 0; k < args.topk; k++) {
            const int e = take_best(key, args.experts);
            best[k] = e;
            picked[k] = by_logits ? as_uint(l[e]) : row[e];
        }
        if (by_logits)
            chosen_exponentials(picked, args.topk, largest_picked(picked, args.topk));
        IN_ORDER_FOR(int k = 0; k < args.topk; k++)
            sum += as_float(picked[k]);
        store_choice(good, args.normalised ? sum + TINY : 1.0f, row, picked, best,
                     scores + t * args.experts, index + t * args.topk, weight + t * args.topk,
                     args);
    }
}

/* Stores the part of dl[E] that every expert gets: from both auxiliary losses, and the softmax's
 * term -s * through; z = z_factor * lse. Stores zeros unless `good`. */
static void row_dense(global const float *l, global const float *s, global const float *aux,
                      float through, float z, float lse, bool good, global float *dl,
                      moert_router_args args) {
    const int experts = args.experts, score = args.score;
    const float2 sums = row_sums(s, aux, experts, 0);
    const float total = is_pointwise(score) ? sums.x + TINY : 1.0f, mean = sums.y / total;
    for (int e = 0; e < experts; e += VEC) {
        const int n = experts - e;
        vec x = load_part(s + e, n), d = 0.0f;
        if (aux)
            d = (load_part(aux + e, n) - mean) / total;
        d = (d - through) * x * slopes(x, score);
        if (z != 0.0f)
            d = fma((vec)z, is_pointwise(score) ? moert_exp(load_part(l + e, n) - lse) : x, d);
        store_part(good ? d : 0.0f, dl + e, n);
    }
}

KERNEL void router_backward(global const float *logits, global const float *scores,
                            global const int *index, global const float *weight,
                            global const float *lse, global const float *dweight,
                            global const float *aux, global const uint *ends, global float *dlogits,
                            moert_router_args args) {
    const ulong first = (ulong)get_group_id(0) * TOKENS, last = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < last; t++) {
        global const float *s = scores + t * args.experts, *w = weight + t * args.topk,
                           *dw = dweight + t * args.topk;
        global const int *chosen = index + t * args.topk;
        global float *dl = dlogits + t * args.experts;
        float dot = 0.0f;
        for (int k = 0; k < args.topk; k++) {
            /* loaded unconditionally: conditional loads would wait for each other */
            const float next = fma(w[k], dw[k], dot);
            dot = chosen[k] >= 0 ? next : dot;
        }
        const float mean = args.normalised ? dot / args.scale : 0.0f,
                    through = args.score == SOFTMAX && !args.normalised ? dot : 0.0f;
        row_dense(logits + t * args.experts, s, aux_of(aux, ends, t, args), through,
                  args.z_factor * lse[t], lse[t], chosen[0] != BAD_TOKEN, dl, args);
        for (int k = 0; k < args.topk; k++)
            if (chosen[k] >= 0) {
                const int e = chosen[k];
                dl[e] = fma(w[k] * slopes(s[e], args.score).s0, dw[k] - mean, dl[e]);
            }
    }
}

/* counts[S,E] += the tokens of each sequence, without padding, whose K largest scores include the
 * expert. The counts are integers, so the order of the atomic additions does not matter. */
KERNEL void router_counts(global const float *scores, global const uint *ends, global uint *counts,
                          moert_router_args args) {
    ROW_ARRAY(key);
    const ulong first = (ulong)get_group_id(0) * TOKENS, last = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < last; t++) {
        row_keys(scores + t * args.experts, key, 0, args.experts, key);
        global uint *count = counts + (ulong)group_of(ends, args.sequences, (uint)t) * args.experts;
        for (int k = 0; k < args.topk; k++) {
            const int e = take_best(key, args.experts);
            if (k == 0 && !(scores[t * args.experts + e] > 0.0f))
                break; /* padding, whose scores are 0 */
            atomic_inc(count + e);
        }
    }
}
