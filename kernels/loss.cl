/*
 * Cross-entropy over a vocabulary.
 *
 *   m = max_v logits[t,v]      s = sum_v exp(logits[t,v] - m)      loss[t] = log(s) - (logits[t,target[t]] - m)
 *   logits[t,v] <- (exp(logits[t,v] - m) / s - [v = target[t]]) * factor          when factor is not 0
 *
 * Where CODED is 1 what becomes of a row is bf16 codes, in its first half: rows of 2 V codes, of which V count. Codes overtake
 * no logit that is still to be read.
 *
 * Shapes: logits[T,V] float, target int32 [T], loss[T]. Target -1: loss 0, gradient 0. A target of V or more, and any
 * logit that is not finite (but -infinity), gives a loss of NaN.
 * Deterministic: a row depends on itself alone and the order of its sums on V alone.
 * CPU form: a work-item owns a row, and leaves the exponentials in it. 16 lanes are summed in blocks of BLOCK vectors, then
 * the blocks, then the lanes; two levels keep the rounding error of a long row small.
 * GPU form: CREW teams own a row, which they read twice, the first time backwards: what they met last is still in a cache
 * then. In the first pass a work-item scales its sum anew when it meets a larger logit; Milakov, Gimelshein: "Online
 * normalizer calculation for softmax", 2018.
 * Required: CODED (0, 1). Local memory: the teams'.
 */
#if !defined(CODED)
#error "CODED must be defined"
#endif
#include "formats.h"
#include "teams.h"

#define BLOCK 64
#ifndef TRIAL_TURNS
#define TRIAL_TURNS 2
#endif
#define TURNS TRIAL_TURNS /* of BATCH steps of all teams, whose loads are under way together: few rows then have a cache */
#define CREW  (MOERT_ITEMS == 1 ? 1 : 16)

/* Like load_part, the lanes past n being -infinity: neutral for max, and exp makes them 0. */
static inline vec load_logits(global const float *p, int n)
{
    return n >= VEC ? load_part(p, n) : select((vec)(-INFINITY), load_part(p, n), lane_places() < (ivec)(n));
}

#if MOERT_ITEMS == 1
typedef uint8 half_uvec;
typedef float8 half_vec;
#define as_half_vec as_float8
#define vstore_half_part vstore8
#else
typedef uint2 half_uvec;
typedef float2 half_vec;
#define as_half_vec as_float2
#define vstore_half_part vstore2
#endif

/* Writes the first n lanes of the gradient from `at` on: floats, or pairs of codes in the place of floats. */
static inline void store_gradient(vec x, global float *row, ulong at, int n)
{
    if (!CODED) {
        store_part(x, row + at, n);
        return;
    }
    const uvec code = encode(x, NUMBER_BF16);
    const half_vec pairs = as_half_vec((half_uvec)(code.even | code.odd << 16));
    row += (at + part_start()) / 2;
    n -= part_start();
#ifdef ALIGNED
    if (n > 0)
        *(global half_vec *)row = pairs;
    return;
#endif
    float lane[PART / 2];
    if (n >= PART) {
        vstore_half_part(pairs, 0, row);
        return;
    }
    vstore_half_part(pairs, 0, lane);
    for (int i = 0; i < PART / 2; i++)
        if (2 * i < n)
            row[i] = lane[i];
}

static inline void row_zero(global float *row, ulong vocabulary)
{
    for (ulong v = team_index() * VEC; v < vocabulary; v += CREW * VEC)
        store_part((vec)(0.0f), row + v, (int)min((ulong)VEC, vocabulary - v));
}

#if MOERT_ITEMS == 1
static inline float row_maximum(global const float *row, ulong vocabulary)
{
    vec most = (vec)(-INFINITY);
    for (ulong v = 0; v < vocabulary; v += VEC)
        most = fmax(most, load_logits(row + v, (int)min((ulong)VEC, vocabulary - v)));
    return max_lanes(most, 0);
}

/* Sum of exp(row - most); leaves the exponentials in the row when `keep`. */
static inline float row_exponentials(global float *row, ulong vocabulary, float most, bool keep)
{
    vec sum = (vec)(0.0f);
    for (ulong first = 0; first < vocabulary; first += BLOCK * VEC) {
        ulong end = min(first + BLOCK * VEC, vocabulary);
        vec part = (vec)(0.0f);
        for (ulong v = first; v < end; v += VEC) {
            int n = (int)min((ulong)VEC, end - v);
            vec e = exp(load_logits(row + v, n) - (vec)(most));
            part += e;
            if (keep)
                store_part(e, row + v, n);
        }
        sum += part;
    }
    return sum_lanes(sum, 0);
}

/* row = (row / sum - onehot(target)) * factor */
static inline void row_gradient(global float *row, ulong vocabulary, float sum, float factor, ulong target)
{
    for (ulong v = 0; v < vocabulary; v += VEC) {
        int n = (int)min((ulong)VEC, vocabulary - v);
        vec p = load_part(row + v, n) / (vec)(sum);
        if (target - v < VEC)
            p = select(p, p - (vec)(1.0f), lane_places() == (ivec)((int)(target - v)));
        store_gradient(p * (vec)(factor), row, v, n);
    }
}

/* The loss; and the gradient when factor is not 0. */
static inline float row_loss(global float *row, ulong vocabulary, ulong target, float factor,
                             local float *team, local float *crew)
{
    float most = row_maximum(row, vocabulary);
    float chosen = target < vocabulary ? row[target] : NAN;
    float sum = row_exponentials(row, vocabulary, most, factor != 0.0f);
    if (factor != 0.0f)
        row_gradient(row, vocabulary, sum, factor, target);
    return log((vec)(sum)).s0 - (chosen - most);
}
#else
/* exp(x - most), where most may be -infinity as all of x is. */
static inline vec exponentials(vec x, float most)
{
    return exp2((x - (most > -INFINITY ? most : 0.0f)) * M_LOG2E_F);
}

/* Where turn number i of those of a chunk begins for this team. */
static inline long turn_at(long chunk, int i)
{
    return ((chunk * TURNS + i) * CREW + team_index()) * BATCH * VEC;
}

/* A chunk's logits, lanes past the last one being -infinity. */
static inline void load_chunk(vec x[TURNS][BATCH], global const float *row, long chunk, long vocabulary)
{
    UNROLL for (int i = 0; i < TURNS; i++)
        UNROLL for (int k = 0; k < BATCH; k++) {
            const long v = turn_at(chunk, i) + k * VEC;
            x[i][k] = load_logits(row + v, (int)clamp(vocabulary - v, 0l, (long)VEC));
        }
}

/* The work-item's largest logit; *sum of exp(logit - largest). Leaves the first chunk in x. */
static inline float scan_row(global const float *row, long vocabulary, float *sum, vec x[TURNS][BATCH])
{
    float most = -INFINITY;
    vec lanes = 0.0f;
    const long turn = CREW * BATCH * VEC, chunks = (vocabulary + TURNS * turn - 1) / (TURNS * turn);
    for (long chunk = chunks - 1; chunk >= 0; chunk--) {
        load_chunk(x, row, chunk, vocabulary);
        UNROLL for (int i = TURNS - 1; i >= 0; i--) {
            vec peak = most;
            UNROLL for (int k = 0; k < BATCH; k++)
                peak = fmax(peak, x[i][k]);
            const float larger = fmax(fmax(peak.x, peak.y), fmax(peak.z, peak.w));
            lanes *= exponentials(most, larger);
            UNROLL for (int k = 0; k < BATCH; k++)
                lanes += exponentials(x[i][k], larger);
            most = larger;
        }
    }
    *sum = lanes.x + lanes.y + lanes.z + lanes.w;
    return most;
}

static inline float row_loss(global float *row, ulong vocabulary, ulong target, float factor,
                             local float *team, local float *crew)
{
    float chosen = target < vocabulary ? row[target] : NAN, own;
    vec x[TURNS][BATCH];
    const float peak = scan_row(row, (long)vocabulary, &own, x);
    const float most = join_teams(max_lanes(peak, team), true, CREW, crew);
    own *= exp2((peak - most) * M_LOG2E_F);
    const float sum = join_teams(sum_lanes((vec)(own, 0.0f, 0.0f, 0.0f), team), false, CREW, crew);
    const float scale = factor / sum;
    if (factor == 0.0f)
        return log(sum) - (chosen - most);
    for (long chunk = 0; chunk * TURNS * CREW * BATCH * VEC < (long)vocabulary; chunk++) {
        if (chunk > 0) {
            load_chunk(x, row, chunk, (long)vocabulary);
            if (CODED)
                barrier(CLK_GLOBAL_MEM_FENCE); /* all have read what codes will overwrite */
        }
        UNROLL for (int i = 0; i < TURNS; i++) {
            const ulong v = (ulong)turn_at(chunk, i);
            const int n = (int)clamp((long)vocabulary - (long)v, 0l, (long)BATCH * VEC);
            UNROLL for (int k = 0; k < BATCH; k++)
                x[i][k] = exponentials(x[i][k], most) * scale;
            if (target - v < BATCH * VEC) {
                UNROLL for (int k = 0; k < BATCH; k++)
                    x[i][k] -= lane_places() == (ivec)((int)(target - v) - k * VEC) ? factor : 0.0f;
            }
            UNROLL for (int k = 0; k < BATCH; k++)
                store_gradient(x[i][k], row, v + k * VEC, n - k * VEC);
        }
    }
    return log(sum) - (chosen - most);
}
#endif

KERNEL_OF(CREW) void cross_entropy(global const int *restrict targets, global float *restrict logits,
                                   global float *restrict loss, ulong vocabulary, float factor)
{
    TEAM_OF(CREW);
    local float crew[CREW];
    ulong t = get_group_id(0);
    global float *row = logits + t * vocabulary;
    int target = targets[t];
    float value = 0.0f;
    if (target >= 0)
        value = row_loss(row, vocabulary, (ulong)target, factor, team[team_index()], crew);
    else if (factor != 0.0f)
        row_zero(row, vocabulary);
    if (is_first_item() && team_index() == 0)
        loss[t] = value;
}
