/*
 * Router on GPUs, where a team holds the experts of some tokens in registers: the forward without groups of experts, and the
 * backward. Formulas, shapes and results are those of router.cl, bit by bit.
 *
 * A team takes TOKENS tokens at once. Each token's experts lie across all of its items, a vec an item and step; its slots
 * in SLOTS items side by side, so that what is done for slots is done once for all tokens:
 *
 *   items       0 ..................... 31            0 ...... SLOTS - 1  | SLOTS ......  |
 *   experts  [ 0 1 2 3 | 4 5 6 7 | ... ] a token      slots of token 0    | of token 1    | ...
 *
 * Choice: a key is 25 bits of a selection score (24 where MOST_EXPERTS is 256), then how far the expert is from the last one. Items sort
 * their keys once; then the largest first key of all items is the next choice, and its item goes on to its next one. Where two
 * scores agree in all of these bits, one of them chosen, the token is done again with whole scores.
 *
 * Required: MOST_EXPERTS (128, 256; at least E), SLOTS (8, 16, 32; at least K), TEAMS (of a work-group; 1 where teams
 * have no instructions of their own to meet, but on NVIDIA's). Local memory: of the backward, a float for
 * each of the tokens' MOST_EXPERTS. Deterministic: sums are those of router.cl, in the same order.
 */
#if !defined(MOST_EXPERTS) || !defined(SLOTS) || !defined(TEAMS)
#error "MOST_EXPERTS, SLOTS and TEAMS must be defined"
#endif
#include "scores.h"

#define STEPS  (MOST_EXPERTS / VEC)
#define TOKENS (MOERT_ITEMS / SLOTS)
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
#define ANY_BARRIER 1 /* also under conditions that the items of a team agree on */
#else
#define ANY_BARRIER 0
#endif
#define PLACE  (MOST_EXPERTS - 1u) /* the bits of a key that say which expert */

/* The items of a team see what the others have stored in local memory. */
static inline void meet(void)
{
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    __asm__ volatile("bar.warp.sync 0xFFFFFFFF;" : : : "memory");
#else
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

/* What the team's item number `item` has; all call at once. */
static inline float of_item(float x, int item, local float *team)
{
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    float other;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xFFFFFFFF;" : "=f"(other) : "f"(x), "r"(item));
    return other;
#else
    meet();
    team[item_index()] = x;
    meet();
    return team[item];
#endif
}

static inline int int_of_item(int x, int item, local float *team)
{
    return as_int(of_item(as_float(x), item, team));
}

#include "router_choice.h"

static inline float largest_float(float x, local float *team)
{
    const uint bits = as_uint(x + 0.0f), key = max_uints((uvec)(bits ^ ((uint)((int)bits >> 31) | 0x80000000u)), team);
    return as_float(key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

/* ---- forward ---- */

/* A token's scores, in `s`, and what they come from. */
typedef struct row {
    vec s[STEPS];
    float top, total;
    bool good;
} row;

static inline row score_row(const vec x[STEPS], int experts, int score, local float *team)
{
    row r;
    vec padded[STEPS], largest = -INFINITY, sum = 0.0f;
    UNROLL for (int i = 0; i < STEPS; i++) {
        padded[i] = select((vec)-INFINITY, x[i], lane_places() < experts - i * VEC);
        largest = fmax(largest, padded[i]);
    }
    r.top = largest_float(fmax(fmax(largest.x, largest.y), fmax(largest.z, largest.w)), team);
    UNROLL for (int i = 0; i < STEPS; i++) {
        const vec exponential = exp(padded[i] - r.top);
        sum += fma(x[i], (vec)0.0f, exponential); /* a NaN where a logit is not finite */
        r.s[i] = stands_alone(score) ? lone_scores(padded[i], score) : exponential;
    }
    r.total = sum_lanes(sum, team);
    r.good = !isnan(r.total);
    UNROLL for (int i = 0; i < STEPS; i++)
        if (!stands_alone(score))
            r.s[i] /= r.total;
    return r;
}

/* Keys of all bits of the selection scores, 0 past the last expert; false if one is a NaN. */
static inline bool whole_keys(const vec x[STEPS], const row *r, global const float *bias, int experts, int score,
                              uvec keys[STEPS], local float *team)
{
    ivec nan = 0;
    UNROLL for (int i = 0; i < STEPS; i++) {
        const ivec inside = lane_places() < experts - i * VEC;
        vec c = score == SOFTMAX_TOPK ? x[i] : r->s[i];
        if (bias != 0)
            c += load_part(bias + i * VEC, experts - i * VEC);
        nan |= isnan(c) & inside;
        keys[i] = select((uvec)0, order_keys(c), inside);
    }
    return bias == 0 || max_uints(as_uvec(nan), team) == 0;
}

/* The places of the chosen experts of token `number` of the team's. */
static inline bool choose_row(const vec x[STEPS], const row *r, global const float *bias, int experts, int topk, int score,
                              int number, uint *mine, local float *team)
{
    uvec keys[STEPS], packed[STEPS];
    const bool plain = bias == 0 && score != SOFTMAX_TOPK; /* scores are not negative */
    bool good = true;
    if (plain) {
        UNROLL for (int i = 0; i < STEPS; i++)
            keys[i] = select((uvec)0, as_uvec(r->s[i]) | 0x80000000u, lane_places() < experts - i * VEC);
    } else {
        good = whole_keys(x, r, bias, experts, score, keys, team);
    }
    UNROLL for (int i = 0; i < STEPS; i++) {
        const uvec places = as_uvec(lane_places() + i * VEC);
        packed[i] = select((uvec)0, (keys[i] & ~PLACE) | (PLACE - places), lane_places() < experts - i * VEC);
    }
    const bool clear = choose(packed, topk, number * SLOTS, mine, team);
    uint whole = *mine;
    choose_again(keys, ANY_BARRIER && clear ? 0 : topk, number * SLOTS, &whole, team);
    *mine = clear ? *mine : whole;
    return good;
}

/* What this item's expert is chosen with, before its weight is divided and scaled. */
static inline float picked_value(float logit, int score, float top, float total)
{
    if (score == SOFTMAX_TOPK)
        return logit;
    if (stands_alone(score))
        return lone_scores((vec)logit, score).x;
    return (exp((vec)(logit - top)) / total).x;
}

KERNEL_OF(TEAMS) void router_choose(global const float *logits, global const float *bias, global float *scores,
                                    global int *index, global float *weight, global float *lse, ulong tokens,
                                    int experts, int topk, int score, int normalised, float scale)
{
    TEAM_OF(TEAMS);
    local float *own = team[team_index()];
    const ulong first = ((ulong)get_group_id(0) * TEAMS + team_index()) * TOKENS;
    const int slot = item_index() % SLOTS, base = item_index() - slot;
    vec x[TOKENS][STEPS];
    uint mine = 0;
    float top = 0.0f, total = 1.0f, sum = 0.0f;
    bool good = false;
    if (first >= tokens)
        return;
    UNROLL for (int j = 0; j < TOKENS; j++)
        UNROLL for (int i = 0; i < STEPS; i++)
            x[j][i] = load_part(logits + min(first + j, tokens - 1) * experts + i * VEC, experts - i * VEC);
    UNROLL for (int j = 0; j < TOKENS; j++) {
        row r = score_row(x[j], experts, score, own);
        r.good &= choose_row(x[j], &r, bias, experts, topk, score, j, &mine, own);
        UNROLL for (int i = 0; i < STEPS; i++)
            store_part(r.good ? r.s[i] : (vec)0.0f, scores + (first + j) * experts + i * VEC,
                       first + j < tokens ? experts - i * VEC : 0);
        const bool is_own = base == j * SLOTS;
        top = is_own ? r.top : top;
        total = is_own ? r.total : total;
        good = is_own ? r.good : good;
    }
    const ulong t = min(first + base / SLOTS, tokens - 1);
    const int e = min((int)(PLACE - (mine & PLACE)), experts - 1);
    float value = picked_value(logits[t * experts + e], score, top, total);
    if (score == SOFTMAX_TOPK) {
        float most = -INFINITY;
        for (int k = 0; k < topk; k++)
            most = fmax(most, of_item(value, base + k, own));
        value = exp((vec)(value - most)).x;
    }
    for (int k = 0; k < topk; k++)
        sum += of_item(value, base + k, own);
    const vec share = (vec)value / (normalised ? sum + TINY : 1.0f) * scale;
    if (item_index() % SLOTS < topk && first + item_index() / SLOTS < tokens) {
        index[t * topk + slot] = good ? e : slot == 0 ? BAD_TOKEN : NO_EXPERT;
        weight[t * topk + slot] = good ? share.x : 0.0f;
        if (slot == 0)
            lse[t] = good ? top + log((vec)total).x : 0.0f;
    }
}

/* ---- backward ---- */

/* sum s and sum s * a of a row; only what counts. */
static inline float2 row_sums(const vec s[STEPS], global const float *a, int experts, bool whole, local float *team)
{
    vec sum = 0.0f, product = 0.0f;
    UNROLL for (int i = 0; i < STEPS; i++) {
        sum += s[i];
        if (a != 0)
            product = fma(s[i], load_part(a + i * VEC, experts - i * VEC), product);
    }
    return (float2)(whole ? sum_lanes(sum, team) : 0.0f, a != 0 ? sum_lanes(product, team) : 0.0f);
}

KERNEL_OF(TEAMS) void router_return(global const float *logits, global const float *scores, global const int *index,
                                    global const float *weight, global const float *lse, global const float *dweight,
                                    global const float *aux, global float *dlogits, ulong tokens, int experts, int topk,
                                    int score, int normalised, float scale, float z_factor)
{
    TEAM_OF(TEAMS);
    local float rows[TEAMS][TOKENS][MOST_EXPERTS] __attribute__((aligned(64)));
    local float *own = team[team_index()];
    const ulong first = ((ulong)get_group_id(0) * TEAMS + team_index()) * TOKENS;
    const int slot = item_index() % SLOTS, base = item_index() - slot, k = min(slot, topk - 1);
    vec s[TOKENS][STEPS];
    float dot = 0.0f;
    if (first >= tokens)
        return;
    const ulong t = min(first + base / SLOTS, tokens - 1);
    const int chosen = index[t * topk + k];
    const float w = weight[t * topk + k], dw = dweight[t * topk + k], own_lse = lse[t];
    UNROLL for (int j = 0; j < TOKENS; j++)
        UNROLL for (int i = 0; i < STEPS; i++)
            s[j][i] = load_part(scores + min(first + j, tokens - 1) * experts + i * VEC, experts - i * VEC);
    for (int i = 0; i < topk; i++) {
        const float product = fma(of_item(w, base + i, own), of_item(dw, base + i, own), dot);
        dot = int_of_item(chosen, base + i, own) >= 0 ? product : dot;
    }
    const float mean = normalised ? dot / scale : 0.0f, own_through = score == SOFTMAX && !normalised ? dot : 0.0f;
    UNROLL for (int j = 0; j < TOKENS; j++) {
        const float2 sums = row_sums(s[j], aux, experts, stands_alone(score), own);
        const float whole = stands_alone(score) ? sums.x + TINY : 1.0f, pull = sums.y / whole;
        const float through = of_item(own_through, j * SLOTS, own), at = of_item(own_lse, j * SLOTS, own);
        const bool good = int_of_item(chosen, j * SLOTS, own) != BAD_TOKEN;
        const float z = z_factor * at;
        UNROLL for (int i = 0; i < STEPS; i++) {
            const int n = experts - i * VEC;
            vec d = 0.0f;
            if (aux != 0)
                d = (load_part(aux + i * VEC, n) - pull) / whole;
            d = (d - through) * s[j][i] * slopes(s[j][i], score);
            if (z != 0.0f) {
                global const float *l = logits + min(first + j, tokens - 1) * experts + i * VEC;
                d = fma((vec)z, stands_alone(score) ? exp(load_part(l, n) - at) : s[j][i], d);
            }
            *(local vec *)(rows[team_index()][j] + i * VEC + part_start()) = good ? d : 0.0f;
        }
    }
    meet();
    if (slot < topk && chosen >= 0) {
        local float *d = &rows[team_index()][base / SLOTS][chosen];
        const float slope = stands_alone(score) ? slopes((vec)scores[t * experts + chosen], score).x : 1.0f;
        *d = fma(w * slope, dw - mean, *d);
    }
    meet();
    UNROLL for (int j = 0; j < TOKENS; j++)
        UNROLL for (int i = 0; i < STEPS; i++)
            store_part(*(local const vec *)(rows[team_index()][j] + i * VEC + part_start()),
                       dlogits + (first + j) * experts + i * VEC, first + j < tokens ? experts - i * VEC : 0);
}
