/*
 * Router: scores of a token's experts, the choice of K experts and their weights; the backward of
 * these; sums of scores and numbers of the best experts over a sequence (router_mass,
 * router_counts); the entropy of a token's scores.
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
 * (ds/dl) / s is 1 - s for the sigmoid. For sqrt-softplus, where sigmoid(l) = 1 - exp(-s^2), it is
 * (1 - exp(-s^2)) / (2 s^2): between 0 and 1/2, and 1/2 where s^2 underflows.
 *
 * Shapes, dense: logits, scores, dlogits [T,E]; index int [T,K]; weight, dweight [T,K]; lse [T];
 * bias, aux [E] or null, aux [S,E] with ends; mass [S,E], counts uint [S,E], ends uint [S] or null.
 * A token with a logit that is not finite (or a
 * NaN in the bias) gets index -2, -1, -1, ..., and zeros everywhere else.
 *
 * A row group computes BLOCK tokens, or in router_mass one sequence. It runs over E in steps of VEC
 * experts; the last step is masked. Required: BLOCK (1 or more), MOST_EXPERTS (a multiple of VEC,
 * at least E). Arrays over the experts are private on CPUs and local on GPUs. Local memory on GPUs:
 * 16 bytes for each of MOST_EXPERTS (router_forward), 20 KiB (router_mass).
 *
 * Deterministic: a token's result depends on that token's row only. Sums over E add lane by lane,
 * then the lanes as a tree; sums over K add by slot. In router_mass, row group i of ROW_GROUPS adds
 * every ROW_GROUPS-th token from the i-th on, and the row groups' sums are added in order; a CPU
 * adds in the same order.
 */
#if !defined(BLOCK) || !defined(MOST_EXPERTS)
#error "BLOCK and MOST_EXPERTS must be defined"
#endif
#include "args/router.h"
#include "router/scores.h"
#include "router/topk.h"

/* Whether the condition holds in any lane of the row group. */
static inline bool any_lane(ivec condition, local float *row_group) {
    return max_uints(as_uvec(condition), row_group) != 0;
}

/* Stores s[E] in `row` and the log-sum-exp of l[E] in *lse; false if a logit is not finite. */
static bool row_scores(global const float *l, int experts, int score, ROW uint *row, float *lse,
                       local float *row_group) {
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
    const float top = max_lanes(largest, row_group);
    EACH_STEP_OF(e, v, experts) {
        const vec x = load_floats(row + e), exponential = moert_exp(x - top);
        sum.part[v] += exponential;
        store_floats(is_pointwise(score) ? pointwise_scores(x, score) : exponential, row + e);
    }
    const float total = sum_lanes(sum, row_group);
    *lse = top + moert_logf(total);
    for (int e = 0; e < experts && !is_pointwise(score); e += VEC)
        store_floats(load_floats(row + e) / total, row + e);
    return !any_lane(~finite, row_group);
}

/* Stores the keys of the selection scores: l[E] or, if l is null, row[E], plus bias[E]. False if a
 * selection score is a NaN. */
static bool row_keys(global const float *l, ROW const uint *row, global const float *bias,
                     int experts, ROW uint *key, local float *row_group) {
    ivec nan = 0;
    for (int e = 0; e < experts; e += VEC) {
        const ivec inside = lane_places() < experts - e;
        vec x = l != 0 ? load_part(l + e, experts - e) : load_floats(row + e);
        if (bias != 0)
            x += load_part(bias + e, experts - e);
        nan |= isnan(x) & inside;
        store_keys(select((uvec)0, order_keys(x), inside), key + e);
    }
    return !any_lane(nan, row_group);
}

static float largest_picked(ROW const uint *picked, int topk) {
    float top = -INFINITY;
    for (int k = 0; k < topk; k++)
        top = fmax(top, as_float(picked[k]));
    return top;
}

/* picked[K] = exp(picked - top), the unnormalised softmax over the chosen logits */
static void chosen_exponentials(ROW uint *picked, int topk, float top) {
    for (int k = 0; k < topk; k += VEC)
        store_floats(
            moert_exp(select((vec)top, load_floats(picked + k), lane_places() < topk - k) - top),
            picked + k);
}

/* Stores w[K] (from picked), index[K] and s[E] of a token. A bad token gets zeros and the indices
 * BAD_TOKEN, NO_EXPERT, NO_EXPERT, ... */
static void store_choice(bool good, int experts, int topk, float divisor, float scale,
                         ROW const uint *row, ROW const uint *picked, ROW const uint *best,
                         global float *s, global int *index, global float *w) {
    for (int e = 0; e < experts; e += VEC)
        store_part(good ? load_floats(row + e) : (vec)0.0f, s + e, experts - e);
    for (int k = 0; k < topk; k += VEC)
        store_part(good ? load_floats(picked + k) / divisor * scale : (vec)0.0f, w + k, topk - k);
    for (int k = get_local_id(0); k < topk; k += MOERT_ITEMS)
        index[k] = good ? (int)best[k] : k == 0 ? BAD_TOKEN : NO_EXPERT;
}

/* All items of a row group reach the same barriers, whatever the row holds. */
KERNEL void router_forward(global const float *logits, global const float *bias,
                           global float *scores, global int *index, global float *weight,
                           global float *lse, moert_router_args args) {
    ROW_GROUP;
    ROW_ARRAY(row);
    ROW_ARRAY(key);
    ROW_ARRAY(picked);
    ROW_ARRAY(best);
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(first + BLOCK, args.tokens);
    for (ulong t = first; t < last; t++) {
        global const float *l = logits + t * args.experts;
        const bool by_logits = args.score == SOFTMAX_TOPK;
        float row_lse = 0.0f, sum = 0.0f;
        bool good = row_scores(l, args.experts, args.score, row, &row_lse, row_group);
        good &= row_keys(by_logits ? l : 0, row, bias, args.experts, key, row_group);
        if (is_first_item())
            lse[t] = good ? row_lse : 0.0f;
        sync_items();
        keep_groups(key, picked, args.experts, args.groups, args.kept_groups, args.group_best,
                    row_group);
        for (int k = 0; k < args.topk; k++) {
            const int e = take_best(key, args.experts, row_group);
            if (is_first_item()) {
                best[k] = e;
                picked[k] = by_logits ? as_uint(l[e]) : row[e];
            }
        }
        sync_items();
        const float top = largest_picked(picked, by_logits ? args.topk : 0);
        sync_items();
        if (by_logits)
            chosen_exponentials(picked, args.topk, top);
        sync_items();
        IN_ORDER_FOR(int k = 0; k < args.topk; k++)
            sum += as_float(picked[k]);
        store_choice(good, args.experts, args.topk, args.normalised ? sum + TINY : 1.0f, args.scale,
                     row, picked, best, scores + t * args.experts, index + t * args.topk,
                     weight + t * args.topk);
        sync_items();
    }
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

/* A token's slots, and the mean that is subtracted from their dw. */
typedef struct slots {
    global const int *chosen;
    global const float *w, *dw;
    int topk;
    float mean;
} slots;

/* Adds to d, the gradients of one vector of experts from expert e on, what flows through the slots
 * that chose these experts. */
static inline vec add_chosen(vec d, vec slope, const slots *own, int e) {
    for (int k = 0; k < own->topk; k++)
        d = select(d, fma(own->w[k] * slope, own->dw[k] - own->mean, d),
                   lane_places() == own->chosen[k] - e);
    return d;
}

/* Stores the part of dl[E] that reaches every expert: from both losses, and the softmax's -s *
 * through; z = z_factor * lse. Stores zeros unless `good`. On GPUs it also adds the slots' part, so
 * that dl is not read again. */
static void row_dense(global const float *l, global const float *s, global const float *aux,
                      int experts, int score, float through, float z, float lse, bool good,
                      const slots *own, global float *dl, local float *row_group) {
    const float2 sums = row_sums(s, aux, experts, row_group);
    const float total = is_pointwise(score) ? sums.x + TINY : 1.0f, mean = sums.y / total;
    for (int e = 0; e < experts; e += VEC) {
        const int n = experts - e;
        vec x = load_part(s + e, n), d = 0.0f;
        if (aux)
            d = (load_part(aux + e, n) - mean) / total;
        const vec slope = slopes(x, score);
        d = (d - through) * x * slope;
        if (z != 0.0f)
            d = fma((vec)z, is_pointwise(score) ? moert_exp(load_part(l + e, n) - lse) : x, d);
        if (MOERT_ITEMS > 1)
            d = add_chosen(d, slope, own, e);
        store_part(good ? d : 0.0f, dl + e, n);
    }
}

KERNEL void router_backward(global const float *logits, global const float *scores,
                            global const int *index, global const float *weight,
                            global const float *lse, global const float *dweight,
                            global const float *aux, global const uint *ends, global float *dlogits,
                            moert_router_args args) {
    ROW_GROUP;
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(first + BLOCK, args.tokens);
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
        const slots own = {chosen, w, dw, args.topk, mean};
        row_dense(logits + t * args.experts, s, aux_of(aux, ends, t, args), args.experts,
                  args.score, through, args.z_factor * lse[t], lse[t], chosen[0] != BAD_TOKEN, &own,
                  dl, row_group);
        const int after = MOERT_ITEMS == 1 ? args.topk : 0;
        for (int k = 0; k < after; k++)
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
    ROW_GROUP;
    ROW_ARRAY(key);
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(first + BLOCK, args.tokens);
    for (ulong t = first; t < last; t++) {
        row_keys(scores + t * args.experts, key, 0, args.experts, key, row_group);
        sync_items();
        global uint *count = counts + (ulong)group_of(ends, args.sequences, (uint)t) * args.experts;
        for (int k = 0; k < args.topk; k++) {
            const int e = take_best(key, args.experts, row_group);
            if (k == 0 && !(scores[t * args.experts + e] > 0.0f))
                break; /* padding, whose scores are 0 */
            if (is_first_item())
                atomic_inc(count + e);
        }
        sync_items();
    }
}

/* entropy[T] = -sum_e r log r; 0 for padding and for tokens with a logit that is not finite. */
KERNEL void router_entropy(global const float *scores, global float *entropy,
                           moert_router_args args) {
    ROW_GROUP;
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(first + BLOCK, args.tokens);
    for (ulong t = first; t < last; t++) {
        global const float *s = scores + t * args.experts;
        const float total =
            is_pointwise(args.score) ? row_sums(s, 0, args.experts, row_group).x + TINY : 1.0f;
        lane_sums sum = NO_SUM;
        EACH_STEP_OF(e, v, args.experts) {
            const vec r = load_part(s + e, args.experts - e) / total;
            sum.part[v] -= select((vec)0.0f, r * moert_log(r), r > 0.0f);
        }
        const float whole = sum_lanes(sum, row_group);
        if (is_first_item())
            entropy[t] = whole;
    }
}

#define ROW_GROUPS 32 /* of router_mass */

#if MOERT_ITEMS == 1
KERNEL void router_mass(global const float *scores, global const uint *ends, global float *mass,
                        moert_router_args args) {
    const uint sequence = get_group_id(0);
    const ulong start = group_start(ends, sequence), last = min((ulong)ends[sequence], args.tokens);
    global float *all = mass + (ulong)sequence * args.experts;
    vec sum[MOST_EXPERTS / VEC];
    for (uint own = 0; own < ROW_GROUPS; own++) { /* of the GPU form */
        for (int i = 0; i < MOST_EXPERTS / VEC; i++)
            sum[i] = 0.0f;
        for (ulong t = start + own; t < last; t += ROW_GROUPS) {
            global const float *s = scores + t * args.experts;
            const float total =
                is_pointwise(args.score) ? row_sums(s, 0, args.experts, 0).x + TINY : 1.0f;
            for (int e = 0; e < args.experts; e += VEC)
                sum[e / VEC] += load_part(s + e, args.experts - e) / total;
        }
        for (int e = 0; e < args.experts; e += VEC) {
            const int n = args.experts - e;
            store_part(own > 0 ? load_part(all + e, n) + sum[e / VEC] : sum[e / VEC], all + e, n);
        }
    }
}
#else
KERNEL_OF(ROW_GROUPS)
void router_mass(global const float *scores, global const uint *ends, global float *mass,
                 moert_router_args args) {
    local float row_groups[ROW_GROUPS][MOERT_ITEMS] __attribute__((aligned(64)));
    local float sums[ROW_GROUPS][VEC] __attribute__((aligned(64)));
    const uint sequence = get_group_id(0), own = get_local_id(1);
    const int first = get_group_id(1) * VEC, n = args.experts - first,
              summed = is_pointwise(args.score) ? args.experts : 0;
    const ulong last = min((ulong)ends[sequence], args.tokens);
    vec sum = 0.0f;
    for (ulong start = group_start(ends, sequence); start < last; start += ROW_GROUPS) {
        const bool inside = start + own < last;
        global const float *s = scores + (inside ? start + own : start) * args.experts;
        const float whole = row_sums(s, 0, summed, row_groups[own]).x,
                    total = is_pointwise(args.score) ? whole + TINY : 1.0f;
        sum += inside ? load_part(s + first, n) / total : 0.0f;
    }
    *(local vec *)(sums[own] + part_start()) = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 1; i < ROW_GROUPS && own == 0; i++)
        sum += *(local const vec *)(sums[i] + part_start());
    if (own == 0)
        store_part(sum, mass + (ulong)sequence * args.experts + first, n);
}
#endif
