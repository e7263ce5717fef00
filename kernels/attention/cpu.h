/*
 * Building blocks of attention.cl (see the picture there): positions as lanes, the GEMM of scores,
 * and sums of weighted rows.
 *
 * Required: the defines of attention.cl.
 */
#include "attention/place.h"

#define TRANSPOSE_STEPS ROLLED
#include "lib/transpose.h"

#define NV    LANE_VECS
#define LANES (NV * VEC)
#define ROWS  32
#define KEYS  64 /* keys of a block; the forward rescales its sums once per block */
#define SUMS  16 /* partial sums of a row's weights; sum i has keys i, i + 16, ... of each block */
/* ROW_TILE: rows of score_gemm's register tile. TILE_OF: values of weighted_sum's register tile,
 * the largest power of two up to MOST_TILE that divides the size of a row. */
#if NARROW
#define ROW_TILE  (4 / NV)
#define MOST_TILE (4 / NV)
#else
#define ROW_TILE  8
#define MOST_TILE (16 / NV)
#endif
#define TILE_OF(size) (((size) & -(size)) < MOST_TILE ? ((size) & -(size)) : MOST_TILE)

/* lanes[d,lane] = x[lane,d] for `count` rows of x; lanes from `count` on are zero. */
INLINED void load_lanes(head_rows x, int count, local vec *lanes) {
    for (int v = 0; v < NV; v++)
        for (int d = 0; d < x.size; d += VEC) {
            vec t[VEC];
            UNROLL_FOR(int r = 0; r < VEC; r++) {
                int lane = v * VEC + r;
                t[r] = lane < count ? load_part(x.at + lane * x.stride + d, x.size - d) : (vec)0.0f;
            }
            transpose(t);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                if (d + r < x.size)
                    lanes[(d + r) * NV + v] = t[r];
        }
}

/* x[lane,d] = factor[lane] * lanes[d,lane] for `count` rows of x */
INLINED void store_lanes(local const vec *lanes, const vec *factor, int count, head_rows x) {
    global float *to = (global float *)x.at;
    for (int v = 0; v < NV; v++)
        for (int d = 0; d < x.size; d += VEC) {
            vec t[VEC];
            UNROLL_FOR(int r = 0; r < VEC; r++)
                t[r] = d + r < x.size ? factor[v] * lanes[(d + r) * NV + v] : (vec)0.0f;
            transpose(t);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                if (v * VEC + r < count)
                    store_part(t[r], to + (v * VEC + r) * x.stride + d, x.size - d);
        }
}

INLINED void clear(local vec *sums, int size) {
    for (int i = 0; i < size * NV; i++)
        sums[i] = 0.0f;
}

/* out[row,lane] = sum_d x[row,d] * lanes[d,lane] for `rows` rows of x, at least 1. */
INLINED void score_gemm(head_rows x, int rows, local const vec *lanes, local vec *out) {
    for (int first = 0; first < rows; first += ROW_TILE) {
        global const float *row[ROW_TILE];
        vec sum[ROW_TILE][NV];
        UNROLL_FOR(int r = 0; r < ROW_TILE; r++) {
            row[r] = x.at + min(first + r, rows - 1) * x.stride;
            UNROLL_FOR(int v = 0; v < NV; v++)
                sum[r][v] = 0.0f;
        }
        EACH_STEP_OF_K for (int d = 0; d < x.size; d++) {
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
INLINED void weighted_sum(head_rows x, int rows, local const vec *weight, const vec *keep,
                          local vec *sums) {
    for (int d = 0; d < x.size; d += TILE_OF(x.size)) {
        global const float *at = x.at + d;
        vec sum[MOST_TILE][NV];
        UNROLL_FOR(int i = 0; i < TILE_OF(x.size); i++)
            UNROLL_FOR(int v = 0; v < NV; v++)
                sum[i][v] = keep[v] * sums[(d + i) * NV + v];
        EACH_STEP_OF_K for (int row = 0; row < rows; row++, at += x.stride) {
            UNROLL_FOR(int i = 0; i < TILE_OF(x.size); i++)
                UNROLL_FOR(int v = 0; v < NV; v++)
                    sum[i][v] = fma((vec)at[i], weight[row * NV + v], sum[i][v]);
        }
        UNROLL_FOR(int i = 0; i < TILE_OF(x.size); i++)
            UNROLL_FOR(int v = 0; v < NV; v++)
                sums[(d + i) * NV + v] = sum[i][v];
    }
}

static inline float dot_row(global const float *a, global const float *b) {
    vec sum = 0.0f;
    for (int d = 0; d < VALUE_SIZE; d += VEC)
        sum = fma(load_part(a + d, VALUE_SIZE - d), load_part(b + d, VALUE_SIZE - d), sum);
    return sum_vec(sum, 0);
}

/* The positions of the lanes of vector v; `first` is the work-group's first position. */
static inline int16 lane_positions(int first, int v) {
    return first + v * VEC + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Lanes whose query sees its key: those with 0 <= distance < window. distance = query - key. */
static inline int16 sees(int16 distance, int window) {
    return as_uint16(distance) < (uint16)window;
}
