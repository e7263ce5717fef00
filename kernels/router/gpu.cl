/*
 * Router on GPUs, where a row_group holds the experts of some tokens in registers: the forward without
 * groups of experts, and the backward. Formulas, shapes and results are those of router.cl, bit by
 * bit.
 *
 * A row_group takes TOKENS tokens at once. In the forward each has SLOTS items side by side, with all of
 * its experts and slots, so that what is done once for a token, or a slot, is done once for all
 * tokens:
 *
 *   items      0 .............. SLOTS - 1     | SLOTS .... |
 *   slots      0 .............. SLOTS - 1     | of token 1 | ...
 *   experts  [ 0 1 2 3 | 4 5 6 7 | ... ]
 *            [ 4 SLOTS ...             ] ...
 *
 * In the backward a token's experts lie across all items of the row_group, its slots as above.
 *
 * Choice: a key is 25 bits of a selection score (24 where there are more than 128 experts) and the
 * expert, the smaller the better. Items sort their keys, and lists of SLOTS keys are merged, in an
 * item and across items (choice.h). Where two scores agree in all of these bits, one of them
 * chosen, the tokens are done again with whole scores.
 *
 * Required: EXPERTS (1 to 256), SLOTS (8, 16, 32; at least K), SCORE (as moert_score), ROW_GROUPS (of a
 * work-group; 1 where row_groups have no instructions of their own to meet, but on NVIDIA's). Local
 * memory: of the backward, a float for each of the tokens' MOST_EXPERTS. Deterministic: sums are
 * those of router.cl, in the same order.
 */
#if !defined(EXPERTS) || !defined(SLOTS) || !defined(SCORE) || !defined(ROW_GROUPS)
#error "EXPERTS, SLOTS, SCORE and ROW_GROUPS must be defined"
#endif
#include "args/router.h"
#include "router/scores.h"

#define MOST_EXPERTS (EXPERTS <= VEC ? VEC : 2 * VEC)
#define STEPS        (MOST_EXPERTS / VEC)
#define TOKENS       (MOERT_ITEMS / SLOTS)
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
#define ANY_BARRIER 1 /* also under conditions that the items of a row_group agree on */
#else
#define ANY_BARRIER 0
#endif

/* The items of a row_group see what the others have stored in local memory. */
static inline void meet(void) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    __asm__ volatile("bar.warp.sync 0xFFFFFFFF;" : : : "memory");
#else
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

/* What the row_group's item number `item` has; all call at once. */
static inline float of_item(float x, int item, local float *row_group) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    float other;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xFFFFFFFF;"
                     : "=f"(other)
                     : "f"(x), "r"(item));
    return other;
#else
    meet();
    row_group[item_index()] = x;
    meet();
    return row_group[item];
#endif
}

static inline int int_of_item(int x, int item, local float *row_group) {
    return as_int(of_item(as_float(x), item, row_group));
}

/* ---- forward ---- */

#define PARTS (STEPS * TOKENS)    /* of a token, that an item has */
#define APART (SLOTS * PART)      /* one from the next */
#define PLACE (MOST_EXPERTS - 1u) /* the bits of a key that say which expert */

static inline int slot_index(void) {
    return item_index() & (SLOTS - 1);
}

/* Which expert an item's number i is of. */
static inline int place_of(int i) {
    return i / PART * APART + slot_index() * PART + i % PART;
}

/* From where an item's part of a step is to where its first part of a token is. */
static inline int transposed(void) {
    return slot_index() * PART - part_start();
}

/* What the item has whose number differs in these bits. */
static inline float across(float x, int bits, local float *row_group) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    return exchanged(x, bits);
#else
    return of_item(x, item_index() ^ bits, row_group);
#endif
}

static inline uint uint_across(uint x, int bits, local float *row_group) {
    return as_uint(across(as_float(x), bits, row_group));
}

/* The largest and the least that a token's items have. */
static inline float largest_of_token(float x, local float *row_group) {
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        x = fmax(x, across(x, d, row_group));
    return x;
}

static inline uint least_of_token(uint x, local float *row_group) {
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        x = min(x, uint_across(x, d, row_group));
    return x;
}

/* The sum of a step of a token, by the tree of sum_lanes(). */
static inline float sum_token(const vec x[TOKENS], local float *row_group) {
    float sum[TOKENS];
    UNROLL_FOR(int i = 0; i < TOKENS; i++) {
        const float2 pair = x[i].lo + x[i].hi;
        sum[i] = pair.x + pair.y;
    }
    UNROLL_FOR(int d = TOKENS / 2; d > 0; d /= 2)
        UNROLL_FOR(int i = 0; i < d; i++)
            sum[i] += sum[i + d];
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        sum[0] += across(sum[0], d, row_group);
    return sum[0];
}

#include "router/choice.h"

static inline void load_token(vec x[PARTS], global const float *p) {
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        x[i] = load_part(p + transposed() + i * APART, EXPERTS - transposed() - i * APART);
}

/* x / total, the bits that NVIDIA's compiler makes of it where total is 1 to 256, with one
 * reciprocal for all. */
static inline vec divided(vec x, float total) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    float inverse;
    __asm__("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(total));
    return x * inverse;
#else
    return x / total;
#endif
}

/* A token's scores, in `s`, and what they come from. */
typedef struct row {
    vec s[PARTS];
    float top, total;
    bool good;
} row;

INLINED row score_row(const vec x[PARTS], local float *row_group) {
    row r;
    vec padded[PARTS], largest = -INFINITY, sum[TOKENS];
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        padded[i] = select((vec)-INFINITY, x[i], place_of(i * PART) + LANES_IN_ORDER < EXPERTS);
        largest = fmax(largest, padded[i]);
    }
    r.top =
        largest_of_token(fmax(fmax(largest.x, largest.y), fmax(largest.z, largest.w)), row_group);
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        const vec exponential = exp(padded[i] - r.top);
        const vec term = fma(x[i], (vec)0.0f, exponential); /* a NaN where a logit is not finite */
        sum[i % TOKENS] = i < TOKENS ? term : sum[i % TOKENS] + term;
        r.s[i] = stands_alone(SCORE) ? lone_scores(padded[i], SCORE) : exponential;
    }
    r.total = sum_token(sum, row_group);
    r.good = !isnan(r.total);
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        r.s[i] = stands_alone(SCORE) ? r.s[i] : divided(r.s[i], r.total);
    return r;
}

/* Keys of all bits of the selection scores, or of the first ones and the expert, UINT_MAX past the
 * last expert; false if a score is a NaN. */
INLINED bool make_keys(const vec x[PARTS], const row *r, global const float *bias, bool whole,
                       uint keys[KEYS], local float *row_group) {
    const bool by_logits = SCORE == SOFTMAX_TOPK;
    const uint kept = whole ? UINT_MAX : ~PLACE;
    vec added[PARTS];
    ivec nan = 0;
    if (bias != 0)
        load_token(added, bias);
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        const ivec places = place_of(i * PART) + LANES_IN_ORDER, inside = places < EXPERTS;
        uvec order = as_uvec(r->s[i]), most = 0x7FFFFFFFu; /* scores are not negative */
        if (bias != 0 || by_logits) {
            vec c = by_logits ? x[i] : r->s[i];
            if (bias != 0)
                c += added[i];
            nan |= isnan(c) & inside;
            order = order_keys(c);
            most = UINT_MAX;
        }
        vstore4(select((uvec)UINT_MAX, (most & kept) + (as_uvec(places) & ~kept) - (order & kept),
                       inside),
                i, keys);
    }
    return bias == 0 || least_of_token(!any(nan), row_group) == 1;
}

/* What this item's expert is chosen with, before its weight is divided and scaled. */
static inline float picked_value(float logit, const row *r) {
    if (SCORE == SOFTMAX_TOPK)
        return logit;
    if (stands_alone(SCORE))
        return lone_scores((vec)logit, SCORE).x;
    return (exp((vec)(logit - r->top)) / r->total).x;
}

KERNEL_OF(ROW_GROUPS)
void router_choose(global const float *logits, global const float *bias, global float *scores,
                   global int *index, global float *weight, global float *lse,
                   moert_router_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    local float *own = row_group[row_group_index()];
    const int slot = slot_index(), base = item_index() - slot;
    const ulong first = ((ulong)get_group_id(0) * ROW_GROUPS + row_group_index()) * TOKENS,
                wanted = first + base / SLOTS;
    const ulong t =
        min(wanted, args.tokens - 1); /* past the last token the last one is done once more */
    global const float *l = logits + t * EXPERTS;
    vec x[PARTS];
    uint keys[KEYS];
    bool clear;
    float sum = 0.0f;
    if (first >= args.tokens)
        return;
    load_token(x, l);
    row r = score_row(x, own);
    r.good &= bias != 0 ? make_keys(x, &r, bias, false, keys, own)
                        : make_keys(x, &r, 0, false, keys, own);
    if (!r.good)
        UNROLL_FOR(int i = 0; i < PARTS; i++)
            r.s[i] = 0.0f;
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        store_part(r.s[i], scores + t * EXPERTS + transposed() + i * APART,
                   t == wanted ? EXPERTS - transposed() - i * APART : 0);
    uint mine = choose(keys, args.topk, &clear, own) & PLACE;
    if (ANY_BARRIER ? !clear : true) { /* from the start: nothing is kept for this */
        load_token(x, l);
        const row again = score_row(x, own);
        make_keys(x, &again, bias, true, keys, own);
        mine = choose_again(keys, args.topk, own);
    }
    const int e = min((int)mine, EXPERTS - 1);
    float value = picked_value(l[e], &r);
    if (SCORE == SOFTMAX_TOPK)
        value = exp((vec)(value - largest_of_token(slot < args.topk ? value : -INFINITY, own))).x;
    value = slot < args.topk ? value : 0.0f;
    UNROLL_FOR(int k = 0; k < SLOTS; k++)
        sum += of_item(value, base + k, own);
    const vec share = (vec)value / (args.normalised ? sum + TINY : 1.0f) * args.scale;
    if (t == wanted && slot < args.topk) {
        index[t * args.topk + slot] = r.good ? e : slot == 0 ? BAD_TOKEN : NO_EXPERT;
        weight[t * args.topk + slot] = r.good ? share.x : 0.0f;
        if (slot == 0)
            lse[t] = r.good ? r.top + log((vec)r.total).x : 0.0f;
    }
}

/* ---- backward ---- */

/* sum s and sum s * a of a row; only what counts. */
static inline float2 row_sums(const vec s[STEPS], global const float *a, int experts, bool whole,
                              local float *row_group) {
    vec sum = 0.0f, product = 0.0f;
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        sum += s[i];
        if (a != 0)
            product = fma(s[i], load_part(a + i * VEC, experts - i * VEC), product);
    }
    return (float2)(whole ? sum_lanes(sum, row_group) : 0.0f,
                    a != 0 ? sum_lanes(product, row_group) : 0.0f);
}

KERNEL_OF(ROW_GROUPS)
void router_return(global const float *logits, global const float *scores, global const int *index,
                   global const float *weight, global const float *lse, global const float *dweight,
                   global const float *aux, global float *dlogits, moert_router_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    local float rows[ROW_GROUPS][TOKENS][MOST_EXPERTS] __attribute__((aligned(64)));
    local float *own = row_group[row_group_index()];
    const ulong first = ((ulong)get_group_id(0) * ROW_GROUPS + row_group_index()) * TOKENS;
    const int slot = item_index() % SLOTS, base = item_index() - slot, k = min(slot, args.topk - 1);
    vec s[TOKENS][STEPS];
    float dot = 0.0f;
    if (first >= args.tokens)
        return;
    const ulong t = min(first + base / SLOTS, args.tokens - 1);
    const int chosen = index[t * args.topk + k];
    const float w = weight[t * args.topk + k], dw = dweight[t * args.topk + k], own_lse = lse[t];
    UNROLL_FOR(int j = 0; j < TOKENS; j++)
        UNROLL_FOR(int i = 0; i < STEPS; i++)
            s[j][i] = load_part(scores + min(first + j, args.tokens - 1) * args.experts + i * VEC,
                                args.experts - i * VEC);
    for (int i = 0; i < args.topk; i++) {
        const float product = fma(of_item(w, base + i, own), of_item(dw, base + i, own), dot);
        dot = int_of_item(chosen, base + i, own) >= 0 ? product : dot;
    }
    const float mean = args.normalised ? dot / args.scale : 0.0f,
                own_through = args.score == SOFTMAX && !args.normalised ? dot : 0.0f;
    UNROLL_FOR(int j = 0; j < TOKENS; j++) {
        const float2 sums = row_sums(s[j], aux, args.experts, stands_alone(args.score), own);
        const float whole = stands_alone(args.score) ? sums.x + TINY : 1.0f, pull = sums.y / whole;
        const float through = of_item(own_through, j * SLOTS, own),
                    at = of_item(own_lse, j * SLOTS, own);
        const bool good = int_of_item(chosen, j * SLOTS, own) != BAD_TOKEN;
        const float z = args.z_factor * at;
        UNROLL_FOR(int i = 0; i < STEPS; i++) {
            const int n = args.experts - i * VEC;
            vec d = 0.0f;
            if (aux != 0)
                d = (load_part(aux + i * VEC, n) - pull) / whole;
            d = (d - through) * s[j][i] * slopes(s[j][i], args.score);
            if (z != 0.0f) {
                global const float *l =
                    logits + min(first + j, args.tokens - 1) * args.experts + i * VEC;
                d = fma((vec)z, stands_alone(args.score) ? exp(load_part(l, n) - at) : s[j][i], d);
            }
            *(local vec *)(rows[row_group_index()][j] + i * VEC + part_start()) = good ? d : 0.0f;
        }
    }
    meet();
    if (slot < args.topk && chosen >= 0) {
        local float *d = &rows[row_group_index()][base / SLOTS][chosen];
        const float slope = stands_alone(args.score)
                                ? slopes((vec)scores[t * args.experts + chosen], args.score).x
                                : 1.0f;
        *d = fma(w * slope, dw - mean, *d);
    }
    meet();
    UNROLL_FOR(int j = 0; j < TOKENS; j++)
        UNROLL_FOR(int i = 0; i < STEPS; i++)
            store_part(*(local const vec *)(rows[row_group_index()][j] + i * VEC + part_start()),
                       dlogits + (first + j) * args.experts + i * VEC,
                       first + j < args.tokens ? args.experts - i * VEC : 0);
}
