/*
 * Causal attention with grouped-query heads in float32, for CPUs. N heads of q share M heads of k
 * and v: head h uses head g = h * M / N. D = HEAD_SIZE; i, j < L are positions of one sequence.
 * Rows of q, out, dout and dq lie N * D floats apart, rows of k, v, dk and dv M * D floats.
 *
 *   s[i,j] = scale * q[i] . k[j] for j <= i
 *   lse[i] = log sum_j exp(s[i,j]),  p[i,j] = exp(s[i,j] - lse[i])
 *   out[i] = sum_j p[i,j] v[j]
 *   delta[i] = dout[i] . out[i],  ds[i,j] = p[i,j] * (dout[i] . v[j] - delta[i])
 *   dq[i] = scale * sum_j ds[i,j] k[j]
 *   dk[j] = scale * sum_h sum_i ds[i,j] q[i],  dv[j] = sum_h sum_i p[i,j] dout[i]
 *   with sum_h over the heads h of g, ascending
 *
 * The forward is an online softmax (Milakov and Gimelshein, 2018; Dao et al., FlashAttention,
 * 2022).
 *
 * A work-group owns LANES positions of one head of one sequence: queries in attention_forward and
 * attention_backward_q, keys in attention_backward_kv. It keeps its own vectors transposed in local
 * memory, one position per lane. It passes over the rows of the other side in blocks of ROWS and
 * reads them in place; every FMA broadcasts one scalar of such a row:
 *
 *               LANES positions, one per lane
 *             +-------------------------+
 *   D values  |  lanes  (transposed)    |
 *             +-------------------------+
 *   ROWS rows |  scores, s, p, dp or ds |  score_gemm: row . lane for each row and lane
 *   as stored |                         |
 *             +-------------------------+
 *   D values  |  sums   (transposed)    |  weighted_sum adds sum_rows row[d] * weight[row,lane]
 *             +-------------------------+
 *
 * Softmax is elementwise over lanes.
 *
 * Required: HEAD_SIZE, D, any positive number; LANE_VECS, LANES / 16, 1 or 2. Local memory: 4 *
 * LANES * (A * D + B * ROWS) bytes, with A, B = 2, 1 (forward), 3, 2 (backward_q, plus 8 * LANES
 * bytes), 4, 2 (backward_kv).
 *
 * Deterministic, without atomics: rows are taken in ascending order, in blocks counted from the
 * start of the sequence. So a sequence's result depends on that sequence alone.
 */
#if !defined(HEAD_SIZE) || !defined(LANE_VECS)
#error "HEAD_SIZE and LANE_VECS must be defined"
#endif
#include "attention/place.h"
#include "lib/elementary.h"

#define NV    LANE_VECS
#define LANES (NV * VEC)
#define ROWS  32
/* ROW_TILE: rows of score_gemm's register tile. HEAD_TILE: values of weighted_sum's register tile,
 * the largest power of two up to MOST_TILE that divides HEAD_SIZE. */
#if NARROW
#define ROW_TILE  (4 / NV)
#define MOST_TILE (4 / NV)
#else
#define ROW_TILE  8
#define MOST_TILE (16 / NV)
#endif
#if HEAD_SIZE % 16 == 0 && MOST_TILE >= 16
#define HEAD_TILE 16
#elif HEAD_SIZE % 8 == 0 && MOST_TILE >= 8
#define HEAD_TILE 8
#elif HEAD_SIZE % 4 == 0 && MOST_TILE >= 4
#define HEAD_TILE 4
#elif HEAD_SIZE % 2 == 0 && MOST_TILE >= 2
#define HEAD_TILE 2
#else
#define HEAD_TILE 1
#endif

#define TRANSPOSE_STEPS ROLLED
#include "lib/transpose.h"

/* lanes[d,lane] = factor * x[lane,d] for `count` rows of x; lanes past them are zero. */
static inline void load_lanes(global const float *x, size_t stride, int count, float factor,
                              local vec *lanes) {
    for (int v = 0; v < NV; v++)
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            vec t[VEC];
            UNROLL_FOR(int r = 0; r < VEC; r++) {
                int lane = v * VEC + r;
                t[r] = lane < count ? factor * load_part(x + lane * stride + d, HEAD_SIZE - d)
                                    : (vec)0.0f;
            }
            transpose(t);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                if (d + r < HEAD_SIZE)
                    lanes[(d + r) * NV + v] = t[r];
        }
}

/* x[lane,d] = factor[lane] * lanes[d,lane] for `count` rows of x */
static inline void store_lanes(local const vec *lanes, const vec *factor, int count,
                               global float *x, size_t stride) {
    for (int v = 0; v < NV; v++)
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            vec t[VEC];
            UNROLL_FOR(int r = 0; r < VEC; r++)
                t[r] = d + r < HEAD_SIZE ? factor[v] * lanes[(d + r) * NV + v] : (vec)0.0f;
            transpose(t);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                if (v * VEC + r < count)
                    store_part(t[r], x + (v * VEC + r) * stride + d, HEAD_SIZE - d);
        }
}

static inline void clear(local vec *sums) {
    for (int i = 0; i < HEAD_SIZE * NV; i++)
        sums[i] = 0.0f;
}

/* out[row,lane] = sum_d x[row,d] * lanes[d,lane] for `rows` rows of x (1 to ROWS). */
static inline void score_gemm(global const float *x, size_t stride, int rows,
                              local const vec *lanes, local vec *out) {
    for (int first = 0; first < rows; first += ROW_TILE) {
        global const float *row[ROW_TILE];
        vec sum[ROW_TILE][NV];
        UNROLL_FOR(int r = 0; r < ROW_TILE; r++) {
            row[r] = x + min(first + r, rows - 1) * stride;
            UNROLL_FOR(int v = 0; v < NV; v++)
                sum[r][v] = 0.0f;
        }
        EACH_STEP_OF_K for (int d = 0; d < HEAD_SIZE; d++) {
            UNROLL_FOR(int r = 0; r < ROW_TILE; r++)
                UNROLL_FOR(int v = 0; v < NV; v++)
                    sum[r][v] = fma((vec)row[r][d], lanes[d * NV + v], sum[r][v]);
        }
        UNROLL_FOR(int r = 0; r < ROW_TILE; r++)
            UNROLL_FOR(int v = 0; v < NV; v++)
                out[(first + r) * NV + v] = sum[r][v];
    }
}

/* sums[d,lane] = keep[lane] * sums[d,lane] + sum_row x[row,d] * weight[row,lane] over `rows` rows
 * of x. */
static inline void weighted_sum(global const float *x, size_t stride, int rows,
                                local const vec *weight, const vec *keep, local vec *sums) {
    for (int d = 0; d < HEAD_SIZE; d += HEAD_TILE) {
        global const float *at = x + d;
        vec sum[HEAD_TILE][NV];
        UNROLL_FOR(int i = 0; i < HEAD_TILE; i++)
            UNROLL_FOR(int v = 0; v < NV; v++)
                sum[i][v] = keep[v] * sums[(d + i) * NV + v];
        EACH_STEP_OF_K for (int row = 0; row < rows; row++, at += stride) {
            UNROLL_FOR(int i = 0; i < HEAD_TILE; i++)
                UNROLL_FOR(int v = 0; v < NV; v++)
                    sum[i][v] = fma((vec)at[i], weight[row * NV + v], sum[i][v]);
        }
        UNROLL_FOR(int i = 0; i < HEAD_TILE; i++)
            UNROLL_FOR(int v = 0; v < NV; v++)
                sums[(d + i) * NV + v] = sum[i][v];
    }
}

static inline float dot_row(global const float *a, global const float *b) {
    vec sum = 0.0f;
    for (int d = 0; d < HEAD_SIZE; d += VEC)
        sum = fma(load_part(a + d, HEAD_SIZE - d), load_part(b + d, HEAD_SIZE - d), sum);
    return sum_lanes(sum, 0);
}

/* The positions of the lanes of vector v; `first` is the work-group's first position. */
static inline int16 lane_positions(int first, int v) {
    return first + v * VEC + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Turns one block of scores into exp(score - running maximum). keep[] is the factor by which the
 * sums of all earlier blocks must be multiplied. */
static inline void softmax_block(local vec *score, int row, int rows, int query, vec *maximum,
                                 vec *total, vec *keep) {
    for (int v = 0; v < NV; v++) {
        int16 position = lane_positions(query, v);
        vec highest = maximum[v], sum = 0.0f;
        for (int r = 0; r < rows; r++) {
            vec s = select(score[r * NV + v], (vec)-INFINITY, (int16)(row + r) > position);
            score[r * NV + v] = s;
            highest = fmax(highest, s);
        }
        for (int r = 0; r < rows; r++) {
            vec p = moert_exp(score[r * NV + v] - highest);
            score[r * NV + v] = p;
            sum += p;
        }
        keep[v] = moert_exp(maximum[v] - highest);
        total[v] = fma(total[v], keep[v], sum);
        maximum[v] = highest;
    }
}

/* Grid: {blocks of LANES queries, heads, sequences}; later blocks, which see more keys, start
 * first. */
KERNEL void attention_forward(global const float *q, global const float *k, global const float *v,
                              global float *out, global float *lse, moert_attention_args args) {
    local vec lanes[HEAD_SIZE * NV], sums[HEAD_SIZE * NV], score[ROWS * NV];
    const place p = query_place(args, LANES);
    vec maximum[NV], total[NV], keep[NV];
    UNROLL_FOR(int i = 0; i < NV; i++) {
        maximum[i] = -INFINITY;
        total[i] = 0.0f;
    }
    load_lanes(q + p.from, p.stride, p.count, args.scale, lanes);
    clear(sums);
    for (int row = 0; row < p.query + p.count; row += ROWS) {
        int rows = min(p.query + p.count - row, ROWS);
        size_t at = p.kv_from + row * p.kv_stride;
        score_gemm(k + at, p.kv_stride, rows, lanes, score);
        softmax_block(score, row, rows, p.query, maximum, total, keep);
        weighted_sum(v + at, p.kv_stride, rows, score, keep, sums);
    }
    UNROLL_FOR(int i = 0; i < NV; i++) {
        keep[i] = 1.0f / total[i];
        score[i] = maximum[i] + moert_log(total[i]);
    }
    store_lanes(sums, keep, p.count, out + p.from, p.stride);
    for (int i = 0; i < p.count; i++)
        lse[(p.token + p.query + i) * args.heads + p.head] = ((local const float *)score)[i];
}

/* Grid: that of attention_forward. */
KERNEL void attention_backward_q(BACKWARD_INPUTS, global float *dq, moert_attention_args args) {
    local vec lanes[HEAD_SIZE * NV], dlanes[HEAD_SIZE * NV], sums[HEAD_SIZE * NV], score[ROWS * NV],
        dscore[ROWS * NV];
    local vec normaliser[NV], delta[NV];
    const place p = query_place(args, LANES);
    vec keep[NV];
    for (int i = 0; i < LANES; i++) {
        int lane = min(i, p.count - 1);
        ((local float *)normaliser)[i] = lse[(p.token + p.query + lane) * args.heads + p.head];
        ((local float *)delta)[i] =
            dot_row(dout + p.from + lane * p.stride, out + p.from + lane * p.stride);
    }
    load_lanes(q + p.from, p.stride, p.count, args.scale, lanes);
    load_lanes(dout + p.from, p.stride, p.count, 1.0f, dlanes);
    clear(sums);
    UNROLL_FOR(int i = 0; i < NV; i++)
        keep[i] = 1.0f;
    for (int row = 0; row < p.query + p.count; row += ROWS) {
        int rows = min(p.query + p.count - row, ROWS);
        size_t at = p.kv_from + row * p.kv_stride;
        score_gemm(k + at, p.kv_stride, rows, lanes, score);
        score_gemm(v + at, p.kv_stride, rows, dlanes, dscore);
        for (int r = 0; r < rows; r++)
            UNROLL_FOR(int i = 0; i < NV; i++) {
                vec weight = moert_exp(score[r * NV + i] - normaliser[i]),
                    d = weight * (dscore[r * NV + i] - delta[i]);
                dscore[r * NV + i] =
                    select(d, (vec)0.0f, (int16)(row + r) > lane_positions(p.query, i));
            }
        weighted_sum(k + at, p.kv_stride, rows, dscore, keep, sums);
    }
    UNROLL_FOR(int i = 0; i < NV; i++)
        keep[i] = args.scale;
    store_lanes(sums, keep, p.count, dq + p.from, p.stride);
}

/* Grid: {blocks of LANES keys, kv_heads, sequences}. */
KERNEL void attention_backward_kv(BACKWARD_INPUTS, global float *dk, global float *dv,
                                  moert_attention_args args) {
    local vec klanes[HEAD_SIZE * NV], vlanes[HEAD_SIZE * NV], dksums[HEAD_SIZE * NV],
        dvsums[HEAD_SIZE * NV];
    local vec score[ROWS * NV], dscore[ROWS * NV];
    int key = (int)get_group_id(0) * LANES, kv_head = get_group_id(1),
        group = args.heads / args.kv_heads;
    int count = min((int)args.length - key, LANES);
    size_t token = get_group_id(2) * args.length, stride = args.heads * HEAD_SIZE,
           kv_stride = args.kv_heads * HEAD_SIZE;
    size_t kv_from = (token + key) * kv_stride + kv_head * HEAD_SIZE;
    vec keep[NV], factor[NV];
    UNROLL_FOR(int i = 0; i < NV; i++) {
        keep[i] = 1.0f;
        factor[i] = args.scale;
    }
    load_lanes(k + kv_from, kv_stride, count, args.scale, klanes);
    load_lanes(v + kv_from, kv_stride, count, 1.0f, vlanes);
    clear(dksums);
    clear(dvsums);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int row = key; row < (int)args.length; row += ROWS) {
            int rows = min((int)args.length - row, ROWS);
            size_t at = (token + row) * stride + head * HEAD_SIZE;
            score_gemm(q + at, stride, rows, klanes, score);
            score_gemm(dout + at, stride, rows, vlanes, dscore);
            for (int r = 0; r < rows; r++) {
                float normaliser = lse[(token + row + r) * args.heads + head];
                float delta = dot_row(dout + at + r * stride, out + at + r * stride);
                UNROLL_FOR(int i = 0; i < NV; i++) {
                    vec p = moert_exp(score[r * NV + i] - normaliser);
                    p = select(p, (vec)0.0f, lane_positions(key, i) > (int16)(row + r));
                    score[r * NV + i] = p;
                    dscore[r * NV + i] = p * (dscore[r * NV + i] - delta);
                }
            }
            weighted_sum(dout + at, stride, rows, score, keep, dvsums);
            weighted_sum(q + at, stride, rows, dscore, keep, dksums);
        }
    store_lanes(dksums, factor, count, dk + kv_from, kv_stride);
    store_lanes(dvsums, keep, count, dv + kv_from, kv_stride);
}
