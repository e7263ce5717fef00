/*
 * Router on GPUs: scores, choices and their backward, with the experts of several tokens in a row
 * group's registers. Formulas, shapes and bits are those of router.cl.
 *
 * A row group computes TOKENS tokens at once. In the forward, SPAN neighbouring items hold all
 * experts and slots of one token, so that work per token or per slot runs in parallel for all
 * tokens or slots:
 *
 *   items      0 .............. SPAN - 1      | SPAN ..... |
 *   slots      0 .............. SPAN - 1      | of token 1 | ...
 *            [ SPAN ...               ] ...
 *   experts  [ 0 1 2 3 | 4 5 6 7 | ... ]
 *            [ 4 SPAN ...              ] ...
 *
 * In the backward, a token's experts are spread over all items of the row group, and its slots over
 * SPAN items as in the forward.
 *
 * Required: EXPERTS (1 to 1024), SLOTS (a power of two from 8 on, at least K; at least 32 with more
 * than 256 experts), SCORE (as moert_score), GROUPED (0, 1: there are groups of experts). Local
 * memory: 128 bytes; in the backward also 4 bytes for each of MOST_EXPERTS of each token, in the
 * forward 8 bytes if GROUPED. Deterministic: sums add in the same order as in router.cl.
 */
#include "args/router.h"
#include "router/row.h"

/* ---- forward ---- */

/* mine[i] = the expert of this item's slot number i of the token with logits l[E]. `keys` come from
 * make_keys, with whole scores unless SORTS is set. */
INLINED void choose_slots(global const float *l, global const float *bias, uint allowed,
                          uint keys[KEYS], int topk, uint mine[OWN_SLOTS], local float *row_group) {
#if SORTS
    bool distinct;
    mine[0] = choose(keys, topk, &distinct, row_group) & EXPERT_BITS;
    if (distinct)
        return;
    vec x[PARTS]; /* in this rare case computes the scores again, which saves registers */
    load_token(x, l);
    const row again = score_row(x, row_group);
    make_keys(x, &again, bias, true, allowed, keys, row_group);
#endif
    choose_whole(keys, topk, mine, row_group);
}

/* Stores index and weight of this item's slots of token t. Stores nothing unless `inside`. */
INLINED void store_slots(global const float *l, const row *r, const uint mine[OWN_SLOTS], ulong t,
                         bool inside, global int *index, global float *weight,
                         moert_router_args args, local float *row_group) {
    const int slot = slot_index();
    float value[OWN_SLOTS], top = -INFINITY, sum = 0.0f;
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++) {
        value[i] = picked_value(l[min((int)mine[i], EXPERTS - 1)], r);
        top = slot + i * SPAN < args.topk ? fmax(top, value[i]) : top;
    }
    if (SCORE == SOFTMAX_TOPK) {
        top = token_max(top, row_group);
        UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++)
            value[i] = moert_expf(value[i] - top);
    }
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++) {
        value[i] = slot + i * SPAN < args.topk ? value[i] : 0.0f;
        sum = add_items(sum, value[i], row_group);
    }
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++) {
        const int k = slot + i * SPAN;
        const vec scaled = (vec)value[i] / (args.normalised ? sum + TINY : 1.0f) * args.scale;
        if (inside && k < args.topk) {
            index[t * args.topk + k] = r->good  ? min((int)mine[i], EXPERTS - 1)
                                       : k == 0 ? BAD_TOKEN
                                                : NO_EXPERT;
            weight[t * args.topk + k] = r->good ? scaled.x : 0.0f;
        }
    }
}

KERNEL void router_forward(global const float *logits, global const float *bias,
                           global float *scores, global int *index, global float *weight,
                           global float *lse, moert_router_args args) {
    ROW_GROUP;
#if GROUPED
    local uint order[TOKENS][MOST_EXPERTS], sums[TOKENS][MOST_EXPERTS];
#endif
    const ulong first = (ulong)get_group_id(0) * TOKENS, wanted = first + first_item() / SPAN;
    /* past the last token, items repeat the last one without storing */
    const ulong t = min(wanted, args.tokens - 1);
    global const float *l = logits + t * EXPERTS;
    vec x[PARTS];
    uint keys[KEYS], mine[OWN_SLOTS], allowed = UINT_MAX;
    load_token(x, l);
    row r = score_row(x, row_group);
#if GROUPED
    make_keys(x, &r, bias, true, UINT_MAX, keys, row_group);
    allowed = allowed_keys(keys, order[first_item() / SPAN], sums[first_item() / SPAN], args);
#endif
    r.good &= bias != 0 ? make_keys(x, &r, bias, !SORTS, allowed, keys, row_group)
                        : make_keys(x, &r, 0, !SORTS, allowed, keys, row_group);
    if (!r.good)
        UNROLL_FOR(int i = 0; i < PARTS; i++)
            r.s[i] = 0.0f;
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        store_part(r.s[i], scores + t * EXPERTS + token_offset() + i * PART_STRIDE,
                   t == wanted ? EXPERTS - token_offset() - i * PART_STRIDE : 0);
    choose_slots(l, bias, allowed, keys, args.topk, mine, row_group);
    store_slots(l, &r, mine, t, t == wanted, index, weight, args, row_group);
    if (t == wanted && slot_index() == 0)
        lse[t] = r.good ? r.top + moert_logf(r.total) : 0.0f;
}

KERNEL void router_counts(global const float *scores, global const uint *ends, global uint *counts,
                          moert_router_args args) {
    ROW_GROUP;
    const ulong wanted = (ulong)get_group_id(0) * TOKENS + first_item() / SPAN,
                t = min(wanted, args.tokens - 1);
    global const float *s = scores + t * EXPERTS;
    row r;
    uint keys[KEYS], mine[OWN_SLOTS];
    load_token(r.s, s);
    make_keys(r.s, &r, 0, true, UINT_MAX, keys, row_group);
    choose_whole(keys, args.topk, mine, row_group);
    const int best = shuffle_int_from((int)mine[0], first_item(), row_group);
    if (t != wanted || !(s[best] > 0.0f)) /* padding, whose scores are 0 */
        return;
    global uint *count = counts + (ulong)group_of(ends, args.sequences, (uint)t) * EXPERTS;
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++)
        if (slot_index() + i * SPAN < args.topk)
            atomic_inc(count + mine[i]);
}

/* ---- backward ---- */

/* Returns {sum s, sum s * a} of a row. The first sum is 0 for a softmax, the second sum is 0 if a
 * is null. Without shuffles, sums contain barriers, which must not be under conditions. */
static inline float2 held_sums(const vec s[STEPS], global const float *a, local float *row_group) {
    vec sum = 0.0f, weighted = 0.0f;
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        sum += s[i];
        if (a != 0)
            weighted = fma(s[i], load_part(a + i * VEC, EXPERTS - i * VEC), weighted);
    }
    return (float2)(is_pointwise(SCORE) ? sum_vec(sum, row_group) : 0.0f,
                    HAS_SHUFFLES == 0 || a != 0 ? sum_vec(weighted, row_group) : 0.0f);
}

/* This item's slots, and values of its token. */
typedef struct slots {
    int chosen[OWN_SLOTS];
    float w[OWN_SLOTS], dw[OWN_SLOTS], lse, dot;
} slots;

/* sum_k w_k dw_k over the chosen slots of the token */
static inline float sum_slots(const slots *own, int topk, local float *row_group) {
    const int base = first_item();
    float dot = 0.0f;
    UNROLL_FOR(int o = 0; o < OWN_SLOTS; o++)
        IN_ORDER_FOR(int i = 0; i < min(topk - o * SPAN, SPAN); i++) {
            const float next = fma(shuffle_from(own->w[o], base + i, row_group),
                                   shuffle_from(own->dw[o], base + i, row_group), dot);
            dot = shuffle_int_from(own->chosen[o], base + i, row_group) >= 0 ? next : dot;
        }
    return dot;
}

/* The values that the gradients of all logits of a token share; z is z_factor * lse. */
typedef struct common {
    global const float *l, *aux;
    float through, z, lse;
    bool good;
} common;

/* Stores in `row` the part of dl[E] that every expert gets. */
static inline void row_dense(const vec s[STEPS], const common *c, local float *row,
                             local float *row_group) {
    const float2 sums = held_sums(s, c->aux, row_group);
    const float total = is_pointwise(SCORE) ? sums.x + TINY : 1.0f, mean = sums.y / total;
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        const int n = EXPERTS - i * VEC;
        vec d = 0.0f;
        if (c->aux != 0)
            d = (load_part(c->aux + i * VEC, n) - mean) / total;
        d = (d - c->through) * s[i] * slopes(s[i], SCORE);
        if (c->z != 0.0f)
            d = fma((vec)c->z,
                    is_pointwise(SCORE) ? moert_exp(load_part(c->l + i * VEC, n) - c->lse) : s[i],
                    d);
        *(local vec *)(row + i * VEC + part_start()) = c->good ? d : 0.0f;
    }
}

/* Adds to row[E] the gradient that comes through this item's slots. */
static inline void add_slots(const slots *own, float mean, global const float *s, local float *row,
                             int topk) {
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++) {
        const int e = own->chosen[i];
        if (slot_index() + i * SPAN >= topk || e < 0)
            continue;
        const float slope = is_pointwise(SCORE) ? slopes((vec)s[e], SCORE).x : 1.0f;
        row[e] = fma(own->w[i] * slope, own->dw[i] - mean, row[e]);
    }
}

KERNEL void router_backward(global const float *logits, global const float *scores,
                            global const int *index, global const float *weight,
                            global const float *lse, global const float *dweight,
                            global const float *aux, global const uint *ends, global float *dlogits,
                            moert_router_args args) {
    ROW_GROUP;
    local float rows[TOKENS][MOST_EXPERTS] __attribute__((aligned(64)));
    const ulong first = (ulong)get_group_id(0) * TOKENS, last = args.tokens - 1,
                t = min(first + first_item() / SPAN, last);
    vec s[TOKENS][STEPS];
    slots own;
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++) {
        const ulong at = t * args.topk + min(slot_index() + i * SPAN, args.topk - 1);
        own.chosen[i] = index[at];
        own.w[i] = weight[at];
        own.dw[i] = dweight[at];
    }
    own.lse = lse[t];
    UNROLL_FOR(int j = 0; j < TOKENS; j++)
        UNROLL_FOR(int i = 0; i < STEPS; i++)
            s[j][i] =
                load_part(scores + min(first + j, last) * EXPERTS + i * VEC, EXPERTS - i * VEC);
    own.dot = sum_slots(&own, args.topk, row_group);
    const float mean = args.normalised ? own.dot / args.scale : 0.0f,
                through = SCORE == SOFTMAX && !args.normalised ? own.dot : 0.0f;
    UNROLL_FOR(int j = 0; j < TOKENS; j++) {
        const ulong token = min(first + j, last);
        const float token_lse = shuffle_from(own.lse, j * SPAN, row_group);
        const common c = {logits + token * EXPERTS,
                          aux_of(aux, ends, token, args),
                          shuffle_from(through, j * SPAN, row_group),
                          args.z_factor * token_lse,
                          token_lse,
                          shuffle_int_from(own.chosen[0], j * SPAN, row_group) != BAD_TOKEN};
        row_dense(s[j], &c, rows[j], row_group);
    }
    sync_items();
    add_slots(&own, mean, scores + t * EXPERTS, rows[first_item() / SPAN], args.topk);
    sync_items();
    UNROLL_FOR(int j = 0; j < TOKENS; j++)
        UNROLL_FOR(int i = 0; i < STEPS; i++)
            store_part(*(local const vec *)(rows[j] + i * VEC + part_start()),
                       dlogits + (first + j) * EXPERTS + i * VEC,
                       first + j <= last ? EXPERTS - i * VEC : 0);
}
