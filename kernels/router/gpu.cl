/*
 * Router on GPUs, with the experts of several tokens in a row group's registers: the forward
 * without groups of experts, and the backward. Formulas, shapes and bits are those of router.cl.
 *
 * A row group computes TOKENS tokens at once. In the forward, SLOTS neighbouring items hold all
 * experts and slots of one token, so that work per token, or per slot, runs in parallel for all of
 * them:
 *
 *   items      0 .............. SLOTS - 1     | SLOTS .... |
 *   slots      0 .............. SLOTS - 1     | of token 1 | ...
 *   experts  [ 0 1 2 3 | 4 5 6 7 | ... ]
 *            [ 4 SLOTS ...             ] ...
 *
 * In the backward, a token's experts lie across all items of the row group, its slots as
 * above.
 *
 * Choice: a key holds the first 25 bits of a selection score (24 with more than 128 experts) and
 * the expert; the smallest key wins. Items sort their keys; then lists of SLOTS keys are merged,
 * within items and across them (choice.h). If a chosen score agrees with another one in all of
 * these bits, the choice is repeated with whole scores.
 *
 * Required: EXPERTS (1 to 256), SLOTS (8, 16, 32; at least K), SCORE (as moert_score), ROW_GROUPS
 * (row groups of a work-group; 1 except on NVIDIA GPUs, since only these can synchronise one row
 * group). Local memory: 128 bytes for each row group; in the backward also 4 bytes for each of
 * MOST_EXPERTS of each token. Deterministic: sums add in the same order as in router.cl.
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
#define ANY_BARRIER 1 /* barriers may be under a condition that all items of a row group share */
#else
#define ANY_BARRIER 0
#endif

/* A barrier of the items of a row group, which then see each other's stores to local memory. */
static inline void sync_items(void) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    __asm__ volatile("bar.warp.sync 0xFFFFFFFF;" : : : "memory");
#else
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

/* x of item number `item` of the row group; all items call together. */
static inline float shuffle_from(float x, int item, local float *row_group) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    float other;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xFFFFFFFF;"
                     : "=f"(other)
                     : "f"(x), "r"(item));
    return other;
#else
    sync_items();
    row_group[item_index()] = x;
    sync_items();
    return row_group[item];
#endif
}

static inline int shuffle_int_from(int x, int item, local float *row_group) {
    return as_int(shuffle_from(as_float(x), item, row_group));
}

/* ---- forward ---- */

#define PARTS       (STEPS * TOKENS)    /* parts of a token's experts that an item holds */
#define PART_STRIDE (SLOTS * PART)      /* experts from one part of an item to its next */
#define EXPERT_BITS (MOST_EXPERTS - 1u) /* the bits of a key that hold the expert */

static inline int slot_index(void) {
    return item_index() & (SLOTS - 1);
}

/* The expert of an item's element i. */
static inline int expert_of(int i) {
    return i / PART * PART_STRIDE + slot_index() * PART + i % PART;
}

/* The item's first expert of a token, less part_start(), which load_part and store_part add. */
static inline int token_offset(void) {
    return slot_index() * PART - part_start();
}

/* Returns x of the item whose index differs from this item's in the bits `bits`. */
static inline float shuffle_xor(float x, int bits, local float *row_group) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    return exchanged(x, bits);
#else
    return shuffle_from(x, item_index() ^ bits, row_group);
#endif
}

static inline uint shuffle_uint_xor(uint x, int bits, local float *row_group) {
    return as_uint(shuffle_xor(as_float(x), bits, row_group));
}

/* The maximum, and below the minimum, over a token's items. */
static inline float token_max(float x, local float *row_group) {
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        x = fmax(x, shuffle_xor(x, d, row_group));
    return x;
}

static inline uint token_min(uint x, local float *row_group) {
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        x = min(x, shuffle_uint_xor(x, d, row_group));
    return x;
}

/* The sum of a token's lanes, by the tree of sum_vec(). */
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
        sum[0] += shuffle_xor(sum[0], d, row_group);
    return sum[0];
}

#include "router/choice.h"

static inline void load_token(vec x[PARTS], global const float *p) {
    UNROLL_FOR(int i = 0; i < PARTS; i++)
        x[i] = load_part(p + token_offset() + i * PART_STRIDE,
                         EXPERTS - token_offset() - i * PART_STRIDE);
}

/* x / total; with MOERT_FAST by one reciprocal for all lanes, with the bits of NVIDIA's compiler
 * for a division by 1 to 256. */
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
        const vec checked = fma(x[i], (vec)0.0f, exponential); /* a NaN if a logit is not finite */
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
 * expert; UINT_MAX past the last expert. False if a selection score is a NaN. */
INLINED bool make_keys(const vec x[PARTS], const row *r, global const float *bias, bool whole,
                       uint keys[KEYS], local float *row_group) {
    const bool by_logits = SCORE == SOFTMAX_TOPK;
    const uint kept = whole ? UINT_MAX : ~EXPERT_BITS;
    vec added[PARTS];
    ivec nan = 0;
    if (bias != 0)
        load_token(added, bias);
    UNROLL_FOR(int i = 0; i < PARTS; i++) {
        const ivec experts = expert_of(i * PART) + LANES_IN_ORDER, inside = experts < EXPERTS;
        uvec order = as_uvec(r->s[i]), most = 0x7FFFFFFFu; /* scores are not negative */
        if (bias != 0 || by_logits) {
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
    return bias == 0 || token_min(!any(nan), row_group) == 1;
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

KERNEL_OF(ROW_GROUPS)
void router_choose(global const float *logits, global const float *bias, global float *scores,
                   global int *index, global float *weight, global float *lse,
                   moert_router_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    local float *own = row_group[row_group_index()];
    const int slot = slot_index(), base = item_index() - slot;
    const ulong first = ((ulong)get_group_id(0) * ROW_GROUPS + row_group_index()) * TOKENS,
                wanted = first + base / SLOTS;
    /* past the last token, items repeat the last one without storing */
    const ulong t = min(wanted, args.tokens - 1);
    global const float *l = logits + t * EXPERTS;
    vec x[PARTS];
    uint keys[KEYS];
    bool distinct;
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
        store_part(r.s[i], scores + t * EXPERTS + token_offset() + i * PART_STRIDE,
                   t == wanted ? EXPERTS - token_offset() - i * PART_STRIDE : 0);
    uint mine = choose(keys, args.topk, &distinct, own) & EXPERT_BITS;
    if (ANY_BARRIER ? !distinct : true) { /* rare; computes the scores again, which saves registers
                                             */
        load_token(x, l);
        const row again = score_row(x, own);
        make_keys(x, &again, bias, true, keys, own);
        mine = choose_again(keys, args.topk, own);
    }
    const int e = min((int)mine, EXPERTS - 1);
    float value = picked_value(l[e], &r);
    if (SCORE == SOFTMAX_TOPK)
        value = moert_expf(value - token_max(slot < args.topk ? value : -INFINITY, own));
    value = slot < args.topk ? value : 0.0f;
    UNROLL_FOR(int k = 0; k < SLOTS; k++)
        sum += shuffle_from(value, base + k, own);
    const vec scaled = (vec)value / (args.normalised ? sum + TINY : 1.0f) * args.scale;
    if (t == wanted && slot < args.topk) {
        index[t * args.topk + slot] = r.good ? e : slot == 0 ? BAD_TOKEN : NO_EXPERT;
        weight[t * args.topk + slot] = r.good ? scaled.x : 0.0f;
        if (slot == 0)
            lse[t] = r.good ? r.top + moert_logf(r.total) : 0.0f;
    }
}

/* ---- backward ---- */

/* {sum s, sum s * a} of a row; sum s is 0 unless `whole`, sum s * a is 0 if a is null. */
static inline float2 row_sums(const vec s[STEPS], global const float *a, int experts, bool whole,
                              local float *row_group) {
    vec sum = 0.0f, weighted = 0.0f;
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        sum += s[i];
        if (a != 0)
            weighted = fma(s[i], load_part(a + i * VEC, experts - i * VEC), weighted);
    }
    return (float2)(whole ? sum_vec(sum, row_group) : 0.0f,
                    a != 0 ? sum_vec(weighted, row_group) : 0.0f);
}

KERNEL_OF(ROW_GROUPS)
void router_return(global const float *logits, global const float *scores, global const int *index,
                   global const float *weight, global const float *lse, global const float *dweight,
                   global const float *aux, global const uint *ends, global float *dlogits,
                   moert_router_args args) {
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
        const float next =
            fma(shuffle_from(w, base + i, own), shuffle_from(dw, base + i, own), dot);
        dot = shuffle_int_from(chosen, base + i, own) >= 0 ? next : dot;
    }
    const float mean = args.normalised ? dot / args.scale : 0.0f,
                own_through = args.score == SOFTMAX && !args.normalised ? dot : 0.0f;
    UNROLL_FOR(int j = 0; j < TOKENS; j++) {
        global const float *a = aux_of(aux, ends, min(first + j, args.tokens - 1), args);
        const float2 sums = row_sums(s[j], a, args.experts, is_pointwise(args.score), own);
        const float total = is_pointwise(args.score) ? sums.x + TINY : 1.0f,
                    aux_mean = sums.y / total;
        const float through = shuffle_from(own_through, j * SLOTS, own),
                    token_lse = shuffle_from(own_lse, j * SLOTS, own);
        const bool good = shuffle_int_from(chosen, j * SLOTS, own) != BAD_TOKEN;
        const float z = args.z_factor * token_lse;
        UNROLL_FOR(int i = 0; i < STEPS; i++) {
            const int n = args.experts - i * VEC;
            vec d = 0.0f;
            if (a != 0)
                d = (load_part(a + i * VEC, n) - aux_mean) / total;
            d = (d - through) * s[j][i] * slopes(s[j][i], args.score);
            if (z != 0.0f) {
                global const float *l =
                    logits + min(first + j, args.tokens - 1) * args.experts + i * VEC;
                d = fma((vec)z,
                        is_pointwise(args.score) ? moert_exp(load_part(l, n) - token_lse) : s[j][i],
                        d);
            }
            *(local vec *)(rows[row_group_index()][j] + i * VEC + part_start()) = good ? d : 0.0f;
        }
    }
    sync_items();
    if (slot < args.topk && chosen >= 0) {
        local float *d = &rows[row_group_index()][base / SLOTS][chosen];
        const float slope = is_pointwise(args.score)
                                ? slopes((vec)scores[t * args.experts + chosen], args.score).x
                                : 1.0f;
        *d = fma(w * slope, dw - mean, *d);
    }
    sync_items();
    UNROLL_FOR(int j = 0; j < TOKENS; j++)
        UNROLL_FOR(int i = 0; i < STEPS; i++)
            store_part(*(local const vec *)(rows[row_group_index()][j] + i * VEC + part_start()),
                       dlogits + (first + j) * args.experts + i * VEC,
                       first + j < args.tokens ? args.experts - i * VEC : 0);
}
