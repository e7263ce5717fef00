/*
 * Included by gpu.cl: a token's scores and the keys by which its experts are chosen, in the
 * registers of its items.
 *
 * Required: the defines of items.h; SCORE (as moert_score), GROUPED (0, 1: there are groups of
 * experts).
 */
#if !defined(SCORE) || !defined(GROUPED)
#error "SCORE and GROUPED must be defined"
#endif
#include "router/choice.h"
#include "router/groups.h"
#include "router/scores.h"

static inline void load_token(vec x[PARTS], global const float *p) {
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        x[i] = load_part(p + token_offset() + i * PART_STRIDE,
                         EXPERTS - token_offset() - i * PART_STRIDE);
}

/* Returns x / total. With MOERT_FAST, multiplies all lanes by one reciprocal; NVIDIA's compiler
 * gives a division the same bits if total is from 1 to 256. */
static inline vec divided(vec x, float total) {
#ifdef MOERT_FAST
    float inverse;
    __asm__("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(total));
    return x * inverse;
#else
    return x / total;
#endif
}

/* A token's scores s, its largest logit, the sum of exp(l - top), and whether all logits are
 * finite. */
typedef struct row {
    vec s[PARTS];
    float top, total;
    bool good;
} row;

INLINED row score_row(const vec x[PARTS], local float *row_group) {
    row r;
    vec padded[PARTS], largest = -INFINITY, sum[TOKENS];
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        padded[i] = select((vec)-INFINITY, x[i], expert_of(i * PART) + LANES_IN_ORDER < EXPERTS);
        largest = fmax(largest, padded[i]);
    }
    r.top = token_max(fmax(fmax(largest.x, largest.y), fmax(largest.z, largest.w)), row_group);
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        const vec exponential = moert_exp(padded[i] - r.top);
        /* `checked` is NaN in lanes whose logit is not finite */
        const vec checked = fma(x[i], (vec)0.0f, exponential);
        sum[i % TOKENS] = i < TOKENS ? checked : sum[i % TOKENS] + checked;
        r.s[i] = is_pointwise(SCORE) ? pointwise_scores(padded[i], SCORE) : exponential;
    }
    r.total = sum_token(sum, row_group);
    r.good = !isnan(r.total);
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        r.s[i] = is_pointwise(SCORE) ? r.s[i] : divided(r.s[i], r.total);
    return r;
}

/* Makes keys from all bits of the selection scores (`whole`), or from their first bits and the
 * expert; UINT_MAX past the last expert, and for keys whose bit in `allowed` is 0. False if a
 * selection score is a NaN. */
INLINED bool make_keys(const vec x[PARTS], const row *r, global const float *bias, bool whole,
                       uint allowed, uint keys[KEYS], local float *row_group) {
    const bool by_logits = SCORE == SOFTMAX_TOPK;
    const uint kept = whole ? UINT_MAX : ~EXPERT_BITS;
    vec added[PARTS];
    ivec nan = 0;
    if (bias != 0)
        load_token(added, bias);
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        const ivec experts = expert_of(i * PART) + LANES_IN_ORDER, inside = experts < EXPERTS;
        uvec order = as_uvec(r->s[i]), most = 0x7FFFFFFFu; /* scores are not negative */
        if (bias != 0 || by_logits || GROUPED) {
            vec c = by_logits ? x[i] : r->s[i];
            if (bias != 0)
                c += added[i];
            nan |= isnan(c) & inside;
            order = order_keys(c);
            most = UINT_MAX;
        }
        vstore4(select((uvec)UINT_MAX, (most & kept) + (as_uvec(experts) & ~kept) - (order & kept),
                       inside),
                i, keys);
    }
    UNROLL_FOR(int i = 0; i < KEYS && GROUPED; i++)
        keys[i] = (allowed >> i & 1) != 0 ? keys[i] : UINT_MAX;
    return bias == 0 || token_min(!any(nan), row_group) == 1;
}

/* Bit i of the result: whether this item's element i belongs to a kept group of experts. `keys`
 * hold whole scores; `order` and `sums` are the token's parts of local memory. */
INLINED uint allowed_keys(const uint keys[KEYS], local uint *order, local uint *sums,
                          moert_router_args args) {
    const int size = EXPERTS / args.groups;
    uint allowed = 0;
    UNROLL_FOR(int i = 0; i < KEYS; i++)
        order[expert_of(i)] = ~keys[i];
    sync_items();
    for (int g = slot_index(); g < args.groups; g += SPAN)
        sums[g] = order_key(sum_best(order + g * size, size, args.group_best));
    sync_items();
    for (int g = slot_index(); g < args.groups; g += SPAN) {
        int better = 0;
        for (int other = 0; other < args.groups; other++)
            better += sums[other] > sums[g] || (sums[other] == sums[g] && other < g);
        order[g] = better < args.kept_groups;
    }
    sync_items();
    UNROLL_FOR(int i = 0; i < KEYS; i++)
        allowed |= order[min(expert_of(i), EXPERTS - 1) / size] << i;
    sync_items();
    return allowed;
}

/* The weight of this item's chosen expert before normalisation and scaling; with SOFTMAX_TOPK, its
 * logit. */
static inline float picked_value(float logit, const row *r) {
    if (SCORE == SOFTMAX_TOPK)
        return logit;
    if (is_pointwise(SCORE))
        return pointwise_scores((vec)logit, SCORE).x;
    return (moert_exp((vec)(logit - r->top)) / r->total).x;
}
