/*
 * Router: scores of a token's experts, choice of K of them, weights; the backward of all that; sums of scores.
 *
 *   p = softmax(l) over the E experts        s = p, or sigmoid(l), or sqrt(log(1 + exp l))
 *   r = p, or s / (sum s + 1e-20)            selection score c = s + bias; with SOFTMAX_TOPK l + bias
 *   groups > 1: only experts of the kept_groups groups with the largest sum of their group_best best c can be chosen
 *   chosen: the K largest c, largest first, of equal ones the lower expert
 *   v = s[chosen], or exp(l[chosen] - max) with SOFTMAX_TOPK;   w = scale * v,  normalised: scale * v / (sum v + 1e-20)
 *
 * Backward, selection held fixed, slots with index < 0 left out, D = sum_k w_k dw_k, a[e] = d(loss)/d(r[t,e]):
 *   chosen e = index_k:  dl_e += w_k g_e (dw_k - D / scale), D only where normalised; g = 1, or (ds/dl) / s
 *   softmax, all e:      dl_e += s_e (a_e - sum s a) - s_e D, D only with SOFTMAX that is not normalised
 *   others, all e:       dl_e += (a_e - sum r a) / (sum s + 1e-20) * s_e g_e
 *   z-loss, all e:       dl_e += z_factor lse p_e
 * (ds/dl) / s is 1 - s of the sigmoid and, as sigmoid(l) = 1 - exp(-s^2) there, (1 - exp(-s^2)) / (2 s^2) of
 * sqrt-softplus: between 0 and 1/2, which it reaches where s^2 underflows.
 *
 * Shapes, dense: logits, scores, dlogits [T,E]; index int [T,K]; weight, dweight [T,K]; lse [T]; bias, aux [E] or null;
 * mass [S,E], ends uint [S]. A token with a logit that is not finite (or a NaN in the bias) gets index -2, -1, -1, ...,
 * and zeros everywhere else.
 *
 * CPU form: one work-item per BLOCK tokens, or per sequence; E is cut into vectors, the last one masked. 10 KB of
 * private memory. Deterministic: a token's result depends on its own row alone, sums over E run by lane and then as a
 * tree, sums over K by slot, sums over tokens in order.
 * Required: BLOCK (1 or more), MOST_EXPERTS (a multiple of 32, at least E).
 */
#if !defined(BLOCK) || !defined(MOST_EXPERTS)
#error "BLOCK and MOST_EXPERTS must be defined"
#endif
#include "topk.h"

enum { SOFTMAX, SOFTMAX_TOPK, SIGMOID, SQRT_SOFTPLUS }; /* as moert_score */
enum { NO_EXPERT = -1, BAD_TOKEN = -2 };

#define TINY 1e-20f

/* Like load_part, with `other` in the lanes past n. */
static inline vec load_padded(global const float *p, int n, float other)
{
    return select((vec)other, load_part(p, n), LANES < n);
}

/* Whether a score depends on its own logit alone, so that the scores have no sum of their own. */
static inline bool stands_alone(int score)
{
    return score >= SIGMOID;
}

/* Scores of such a kind. Below -16 log(1 + e^x) is e^x to the last bit, and its root stays clear of underflow. */
static inline vec lone_scores(vec x, int score)
{
    if (score == SIGMOID)
        return 1.0f / (1.0f + exp(-x));
    return select(sqrt(fmax(x, 0.0f) + log1p(exp(-fabs(x)))), exp(0.5f * x), x < -16.0f);
}

/* g = (ds/dl) / s, or 1 where scores do not stand alone. */
static inline vec slopes(vec s, int score)
{
    const vec square = s * s;
    if (score == SIGMOID)
        return 1.0f - s;
    if (score == SQRT_SOFTPLUS)
        return select(-0.5f * expm1(-square) / square, (vec)0.5f, square < 0x1p-24f);
    return 1.0f;
}

/* s[E] and the log-sum-exp of l[E]; false if a logit is not finite. */
static bool row_scores(global const float *l, int experts, int score, global float *s, float *lse)
{
    vec largest = -INFINITY, sum = 0.0f;
    int finite = 1;
    for (int e = 0; e < experts; e += VEC) {
        finite &= all(isfinite(load_part(l + e, experts - e)));
        largest = fmax(largest, load_padded(l + e, experts - e, -INFINITY));
    }
    if (!finite)
        return false;
    float top = max_lanes(largest, 0);
    for (int e = 0; e < experts; e += VEC) {
        vec x = load_padded(l + e, experts - e, -INFINITY);
        vec exponential = exp(x - top);
        sum += exponential;
        store_part(stands_alone(score) ? lone_scores(x, score) : exponential, s + e, experts - e);
    }
    float total = sum_lanes(sum, 0);
    *lse = top + log((vec)total).s0;
    if (!stands_alone(score))
        for (int e = 0; e < experts; e += VEC)
            store_part(load_part(s + e, experts - e) / total, s + e, experts - e);
    return true;
}

/* Keys of the selection scores c[E] + bias[E]; false if one is a NaN. */
static bool row_keys(global const float *c, global const float *bias, int experts, uint *key)
{
    int nan = 0;
    for (int e = 0; e < experts; e += VEC) {
        vec x = load_part(c + e, experts - e);
        if (bias)
            x += load_part(bias + e, experts - e);
        nan |= any(isnan(x));
        vstore16(select((uint16)0, order_keys(x), LANES < experts - e), 0, key + e);
    }
    return !nan;
}

/* w[K] = exp(l[index] - max), the unnormalised softmax over the chosen logits. */
static void chosen_exponentials(global const float *l, global const int *index, int topk, global float *w)
{
    float top = -INFINITY;
    for (int k = 0; k < topk; k++)
        top = fmax(top, l[index[k]]);
    for (int k = 0; k < topk; k += VEC) {
        float lane[VEC];
        for (int i = 0; i < VEC; i++)
            lane[i] = k + i < topk ? l[index[k + i]] : top;
        store_part(exp(vload16(0, lane) - top), w + k, topk - k);
    }
}

static void row_refuse(int experts, int topk, global float *s, global int *index, global float *w)
{
    for (int e = 0; e < experts; e++)
        s[e] = 0.0f;
    for (int k = 0; k < topk; k++) {
        index[k] = k == 0 ? BAD_TOKEN : NO_EXPERT;
        w[k] = 0.0f;
    }
}

KERNEL void router_forward(global const float *logits, global const float *bias, global float *scores,
                           global int *index, global float *weight, global float *lse, ulong tokens, int experts,
                           int topk, int score, int normalised, float scale, int groups, int kept_groups,
                           int group_best)
{
    uint key[MOST_EXPERTS];
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(first + BLOCK, tokens);
    for (ulong t = first; t < last; t++) {
        global const float *l = logits + t * experts;
        global float *s = scores + t * experts, *w = weight + t * topk;
        global int *chosen = index + t * topk;
        float row_lse = 0.0f, sum = 0.0f;
        if (!row_scores(l, experts, score, s, &row_lse) ||
            !row_keys(score == SOFTMAX_TOPK ? l : s, bias, experts, key)) {
            row_refuse(experts, topk, s, chosen, w);
            lse[t] = 0.0f;
            continue;
        }
        lse[t] = row_lse;
        if (groups > 1)
            keep_groups(key, experts, groups, kept_groups, group_best);
        for (int k = 0; k < topk; k++)
            chosen[k] = take_best(key, experts);
        if (score == SOFTMAX_TOPK)
            chosen_exponentials(l, chosen, topk, w);
        else
            for (int k = 0; k < topk; k++)
                w[k] = s[chosen[k]];
        for (int k = 0; k < topk; k++)
            sum += w[k];
        const float divisor = normalised ? sum + TINY : 1.0f;
        for (int k = 0; k < topk; k++)
            w[k] = w[k] / divisor * scale;
    }
}

/* sum s and sum s * a of a row. */
static float2 row_sums(global const float *s, global const float *a, int experts)
{
    vec sum = 0.0f, product = 0.0f;
    for (int e = 0; e < experts; e += VEC) {
        vec x = load_part(s + e, experts - e);
        sum += x;
        if (a)
            product = fma(x, load_part(a + e, experts - e), product);
    }
    return (float2)(sum_lanes(sum, 0), sum_lanes(product, 0));
}

/* The part of dl[E] that reaches every expert: both losses, and -s * through of the softmax; z = z_factor * lse. */
static void row_dense(global const float *l, global const float *s, global const float *aux, int experts, int score,
                      float through, float z, float lse, global float *dl)
{
    const float2 sums = row_sums(s, aux, experts);
    const float total = stands_alone(score) ? sums.x + TINY : 1.0f, mean = sums.y / total;
    for (int e = 0; e < experts; e += VEC) {
        const int n = experts - e;
        vec x = load_part(s + e, n), d = 0.0f;
        if (aux)
            d = (load_part(aux + e, n) - mean) / total;
        d = (d - through) * x * slopes(x, score);
        if (z != 0.0f)
            d = fma((vec)z, stands_alone(score) ? exp(load_part(l + e, n) - lse) : x, d);
        store_part(d, dl + e, n);
    }
}

KERNEL void router_backward(global const float *logits, global const float *scores, global const int *index,
                            global const float *weight, global const float *lse, global const float *dweight,
                            global const float *aux, global float *dlogits, ulong tokens, int experts, int topk,
                            int score, int normalised, float scale, float z_factor)
{
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(first + BLOCK, tokens);
    for (ulong t = first; t < last; t++) {
        global const float *s = scores + t * experts, *w = weight + t * topk, *dw = dweight + t * topk;
        global const int *chosen = index + t * topk;
        global float *dl = dlogits + t * experts;
        if (chosen[0] == BAD_TOKEN) {
            for (int e = 0; e < experts; e++)
                dl[e] = 0.0f;
            continue;
        }
        float dot = 0.0f;
        for (int k = 0; k < topk; k++)
            if (chosen[k] >= 0)
                dot = fma(w[k], dw[k], dot);
        const float mean = normalised ? dot / scale : 0.0f, through = score == SOFTMAX && !normalised ? dot : 0.0f;
        row_dense(logits + t * experts, s, aux, experts, score, through, z_factor * lse[t], lse[t], dl);
        for (int k = 0; k < topk; k++)
            if (chosen[k] >= 0) {
                const int e = chosen[k];
                dl[e] = fma(w[k] * slopes(s[e], score).s0, dw[k] - mean, dl[e]);
            }
    }
}

KERNEL void router_mass(global const float *scores, global const uint *ends, global float *mass, ulong tokens,
                        int experts, int score)
{
    const uint sequence = get_group_id(0);
    const ulong last = min((ulong)ends[sequence], tokens);
    global float *sum = mass + (ulong)sequence * experts;
    for (int e = 0; e < experts; e += VEC)
        store_part(0.0f, sum + e, experts - e);
    for (ulong t = group_start(ends, sequence); t < last; t++) {
        global const float *s = scores + t * experts;
        const float total = stands_alone(score) ? row_sums(s, 0, experts).x + TINY : 1.0f;
        for (int e = 0; e < experts; e += VEC) {
            const int n = experts - e;
            store_part(load_part(sum + e, n) + load_part(s + e, n) / total, sum + e, n);
        }
    }
}
