/*
 * Building blocks of the passes of gpu.cl (see the picture there): the GEMM of scores, sums of
 * weighted rows, and reductions over a row. All items of a work-group call each function together.
 * Every function is inlined: PoCL must not see a separate function that uses a kernel's local
 * memory.
 *
 * Required: the defines of gpu.cl.
 */
#include "attention/place.h"

#define ITEMS           256
#define R               (OWN / 16)
#define OTHERS          64
#define DEPTH           32
#define PITCH           (DEPTH + 4)  /* floats per row; a column's float4 lie in different banks */
#define P_PITCH         (OTHERS + 4) /* floats per own row of p or ds */
#define SLICES_OF(size) (((size) + 63) / 64)
#define GROUP           __attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel

/* A work-group's local memory: operands of the current GEMM, then weights p or ds [OWN,OTHERS],
 * then 16 partial sums or maxima of each row. */
#define OPERANDS  (2 * OTHERS * PITCH / 4)
#define WEIGHTS   (OTHERS * P_PITCH / 4)
#define WORKSPACE local float4 w[OPERANDS + WEIGHTS + OTHERS * 16 / 4]

INLINED local float4 *weights_of(local float4 *w) {
    return w + OPERANDS;
}

INLINED local float *parts_of(local float4 *w, int row) {
    return (local float *)(w + OPERANDS + WEIGHTS) + row * 16;
}

INLINED int item_x(void) {
    return get_local_id(0) % 16;
}

INLINED int item_y(void) {
    return get_local_id(0) / 16;
}

/* Four floats at p; those from number n on are zero (n may be negative). */
INLINED float4 load_quad(global const float *p, int n) {
#if HEAD_SIZE % 4 == 0 && VALUE_SIZE % 4 == 0
    return n > 0 ? *(global const float4 *)p : (float4)0.0f;
#else
    float4 quad = 0.0f;
    quad.x = n > 0 ? p[0] : 0.0f;
    quad.y = n > 1 ? p[1] : 0.0f;
    quad.z = n > 2 ? p[2] : 0.0f;
    quad.w = n > 3 ? p[3] : 0.0f;
    return quad;
#endif
}

INLINED void store_quad(float4 quad, global float *p, int n) {
#if HEAD_SIZE % 4 == 0 && VALUE_SIZE % 4 == 0
    if (n > 0)
        *(global float4 *)p = quad;
#else
    float value[4] = {quad.x, quad.y, quad.z, quad.w};
    for (int i = 0; i < 4; i++)
        if (i < n)
            p[i] = value[i];
#endif
}

/* Copies 4 * `quads` columns of x, from column d on, to `rows` rows of `to`, which lie `pitch`
 * floats apart. Rows from `count` on are zero. */
INLINED void load_rows(head_rows x, int count, int rows, int d, int quads, int pitch,
                       local float4 *to) {
    for (int i = get_local_id(0); i < rows * quads; i += ITEMS) {
        const int row = i / quads, quad = i % quads, column = d + 4 * quad;
        to[row * (pitch / 4) + quad] =
            row < count ? load_quad(x.at + row * x.stride + column, x.size - column) : (float4)0.0f;
    }
}

INLINED float dot4(float4 a, float4 b, float sum) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

/* out[i][j] = a[own row i] . b[other j]; rows past the counts read as zero. */
INLINED void score_gemm(head_rows a, int a_count, head_rows b, int b_count, local float4 *w,
                        float out[R][4]) {
    local float4 *own = w, *other = w + OWN * PITCH / 4;
    UNROLL_FOR(int i = 0; i < R; i++)
        UNROLL_FOR(int j = 0; j < 4; j++)
            out[i][j] = 0.0f;
    for (int d = 0; d < a.size; d += DEPTH) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_rows(a, a_count, OWN, d, DEPTH / 4, PITCH, own);
        load_rows(b, b_count, OTHERS, d, DEPTH / 4, PITCH, other);
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL_FOR(int c = 0; c < DEPTH / 4; c++) {
            float4 x[R], y[4];
            UNROLL_FOR(int i = 0; i < R; i++)
                x[i] = own[(item_y() * R + i) * (PITCH / 4) + c];
            UNROLL_FOR(int j = 0; j < 4; j++)
                y[j] = other[(item_x() + 16 * j) * (PITCH / 4) + c];
            UNROLL_FOR(int i = 0; i < R; i++)
                UNROLL_FOR(int j = 0; j < 4; j++)
                    out[i][j] = dot4(x[i], y[j], out[i][j]);
        }
    }
}

/* Stores p or ds as the weights for weighted_sum, after all items have read the previous
 * weights. */
INLINED void put_weights(float p[R][4], local float4 *w) {
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_FOR(int i = 0; i < R; i++)
        UNROLL_FOR(int j = 0; j < 4; j++)
            ((local float *)weights_of(w))[(item_y() * R + i) * P_PITCH + item_x() + 16 * j] =
                p[i][j];
}

/* sums[own row] += sum over `count` rows of x of weight[own row,row] * x[row] */
INLINED void weighted_sum(head_rows x, int count, local float4 *w, float4 (*sums)[R]) {
    UNROLL_FOR(int s = 0; s < SLICES_OF(x.size); s++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_rows(x, count, OTHERS, 64 * s, 16, 64, w);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int row = 0; row < OTHERS; row += 4) {
            float4 value[4];
            UNROLL_FOR(int r = 0; r < 4; r++)
                value[r] = w[(row + r) * 16 + item_x()];
            UNROLL_FOR(int i = 0; i < R; i++) {
                const float4 weight = weights_of(w)[((item_y() * R + i) * P_PITCH + row) / 4];
                sums[s][i] = fma((float4)weight.x, value[0], sums[s][i]);
                sums[s][i] = fma((float4)weight.y, value[1], sums[s][i]);
                sums[s][i] = fma((float4)weight.z, value[2], sums[s][i]);
                sums[s][i] = fma((float4)weight.w, value[3], sums[s][i]);
            }
        }
    }
}

INLINED void clear(float4 (*sums)[R], int size) {
    UNROLL_FOR(int s = 0; s < SLICES_OF(size); s++)
        UNROLL_FOR(int i = 0; i < R; i++)
            sums[s][i] = 0.0f;
}

/* x[own row] = factor[own row] * sums[own row] for `count` rows */
INLINED void store_sums(float4 (*sums)[R], const float *factor, int count, head_rows x) {
    UNROLL_FOR(int s = 0; s < SLICES_OF(x.size); s++)
        UNROLL_FOR(int i = 0; i < R; i++) {
            const int row = item_y() * R + i, column = 64 * s + 4 * item_x();
            if (row < count)
                store_quad(factor[i] * sums[s][i], (global float *)x.at + row * x.stride + column,
                           x.size - column);
        }
}

/* Stores 16 partial sums of a[row] . b[row] for `count` rows, zeros for rows past them: sum i has
 * the columns i, i + 16, ...; `row_dot` adds them. b has the row stride of a. */
INLINED void dot_rows(head_rows a, global const float *b, int count, local float4 *w) {
    const int row = get_local_id(0) / 4, part = get_local_id(0) % 4;
    float4 sum = 0.0f;
    for (int d = 4 * part; d < a.size && row < count; d += 16)
        sum = fma(load_quad(a.at + row * a.stride + d, a.size - d),
                  load_quad(b + row * a.stride + d, a.size - d), sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    vstore4(sum, part, parts_of(w, row));
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Adds the 16 partial sums of a row in the order of sum_vec() on CPUs. */
INLINED float row_dot(local float4 *w, int row) {
    local const float4 *part = (local const float4 *)parts_of(w, row);
    const float4 four = (part[0] + part[2]) + (part[1] + part[3]);
    const float2 two = four.lo + four.hi;
    return two.x + two.y;
}

/* Replaces value[i] by the maximum, or the ordered sum, over the 16 items of a row. */
INLINED void reduce_row(float value[R], bool largest, local float4 *w) {
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_FOR(int i = 0; i < R; i++)
        parts_of(w, item_y() * R + i)[item_x()] = value[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_FOR(int i = 0; i < R; i++) {
        float all = parts_of(w, item_y() * R + i)[0];
        IN_ORDER_FOR(int x = 1; x < 16; x++) {
            const float next = parts_of(w, item_y() * R + i)[x];
            all = largest ? fmax(all, next) : all + next;
        }
        value[i] = all;
    }
}
