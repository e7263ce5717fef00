/*
 * Included by wgmma.cl and mma.cl: the epilogue of a tile, in registers.
 *
 *   v = sum alpha[g];  with a bias fma(sum, alpha[g], bias[g,column] factor[line]);
 *                      without one (sum alpha[g]) factor[line]
 *   v = fma(beta[g], old value, v), unless beta[g] is 0;
 *                      if K is 0 (WGRAD: no rows), beta[g] times the old value
 *
 * With GLU, half of the columns are gates and half are up projections. A thread holds the gate and
 * the up projection of each of its columns of h:
 *
 *   v = sum alpha[g], with a bias fma(sum, alpha[g], bias[g,column]), stored if V is 1
 *   h = factor[line] (clamp(u, -limit, limit) + offset) a(min(g, limit))             (glu.h)
 *
 * With GLU, the result is h, with one column for each gate. v has gates and ups in runs of RUN
 * columns, gates first unless SWAPPED (RUN = 0: all gates, then all ups). amax[g] = the largest
 * |result| before rounding, or NaN if a result is NaN. amax[g] is computed as the maximum of the
 * floats' bits as integers, which does not depend on the order.
 *
 * A warp holds the sums of 16 lines x SPAN columns. Of these sums, lane l holds line l / 4 + 8 i at
 * columns 8 j + 2 (l mod 4) and 8 j + 2 (l mod 4) + 1, in sum[4 j + 2 i] and sum[4 j + 2 i + 1].
 *
 * Required: RESULT, BIAS_TYPE, V_TYPE (0 float32, 1 f16, 2 bf16); ALPHA, BIAS, ROW_SCALE, AMAX,
 * GLU, V, SWAPPED (0, 1); BETA (0; 1: beta is 1; 2); RUN (0, 1, 8, 32); from the including file the
 * struct tile and SPAN, a multiple of 64.
 */
#if !defined(RESULT) || !defined(BIAS_TYPE) || !defined(V_TYPE) || !defined(ALPHA) ||              \
    !defined(BIAS) || !defined(ROW_SCALE) || !defined(AMAX) || !defined(GLU) || !defined(V) ||     \
    !defined(SWAPPED) || !defined(BETA) || !defined(RUN)
#error                                                                                             \
    "RESULT, BIAS_TYPE, V_TYPE, ALPHA, BIAS, ROW_SCALE, AMAX, GLU, V, SWAPPED, BETA, RUN are needed"
#endif
#ifndef KEEPS_F32
#define KEEPS_F32                                                                                  \
    0 /* 1: float32 results replace the sums, as other results do, and are not stored here */
#endif
#ifndef KEEPS_V
#define KEEPS_V                                                                                    \
    0 /* 1: the caller stores v between finish_gates and finish_glu; 0: finish_glu stores it */
#endif
#include "args/gemm_nvidia.h"
#include "gemm/glu.h"

enum { STORES = 8, DIRECT = RESULT == IS_F32 ? !KEEPS_F32 : 0, STORES_V = KEEPS_V ? 0 : V };

/* The result is c, with `columns` columns; c is not used with KEEPS_F32. */
typedef struct epilogue {
    global const float *alpha, *beta, *factor;
    global const uchar *bias;
    global int *amax;
    global uchar *v, *c;
    ulong row_scale_stride, ldv, ldc;
    uint columns;
    glu_form form;
} epilogue;

/* The epilogue that a kernel's arguments describe. `beta_or_v` is v with GLU, which adds no old
 * values, and otherwise beta. */
static inline epilogue epilogue_of(global const float *alpha, global uchar *beta_or_v,
                                   global const float *factor, global const uchar *bias,
                                   global int *amax, global uchar *c, moert_nvidia_gemm_args args) {
    return (epilogue){alpha,
                      (global const float *)beta_or_v,
                      factor,
                      bias,
                      amax,
                      beta_or_v,
                      c,
                      args.row_scale_stride,
                      args.ldv,
                      args.ldc,
                      args.columns,
                      {0, args.limit, args.slope, args.offset, args.activation}};
}

/* A thread's two lines. */
typedef struct lines {
    int at[2];
    bool used[2];
    float factor[2];
} lines;

/* ---- two neighbouring elements, the first at an even index ---- */

static inline float2 load_two(global const uchar *p, int type, ulong i) {
    if (type == IS_F32)
        return *(global const float2 *)(p + 4 * i);
    return widen_pair(type == IS_F16, *(global const uint *)(p + 2 * i));
}

static inline void store_two(float2 x, global uchar *p, int type, ulong i) {
    if (type == IS_F32)
        *(global float2 *)(p + 4 * i) = x;
    else
        *(global uint *)(p + 2 * i) = round_pair_as(type == IS_F16, x.x, x.y);
}

/* ---- gates and ups ---- */

/* The column of v that holds the gate or, if `up`, the up projection of column `column` of h, which
 * is even. The gate and the up of column + 1 are one column further in v. RUN must not be 1. */
static inline uint column_in_v(uint column, uint width, bool up) {
    const uint run = RUN == 0 ? width : RUN,
               first = RUN == 0 ? column : column / run * 2 * run + column % run;
    return first + (up != SWAPPED ? run : 0);
}

/* Loads the gates and ups of two columns of h, from v or from a row of biases. */
static inline pair load_gates(global const uchar *p, int type, ulong row, uint column, uint width) {
    if (RUN == 1) {
        const float2 a = load_two(p, type, row + 2 * column),
                     b = load_two(p, type, row + 2 * column + 2);
        const float2 first = (float2)(a.x, b.x), second = (float2)(a.y, b.y);
        return SWAPPED ? (pair){second.xyxy, first.xyxy} : (pair){first.xyxy, second.xyxy};
    }
    const float2 g = load_two(p, type, row + column_in_v(column, width, false));
    return (pair){g.xyxy, load_two(p, type, row + column_in_v(column, width, true)).xyxy};
}

static inline void store_gates(float2 g, float2 u, global uchar *p, int type, ulong row,
                               uint column, uint width) {
    if (RUN == 1) {
        store_two(SWAPPED ? (float2)(u.x, g.x) : (float2)(g.x, u.x), p, type, row + 2 * column);
        store_two(SWAPPED ? (float2)(u.y, g.y) : (float2)(g.y, u.y), p, type, row + 2 * column + 2);
        return;
    }
    store_two(g, p, type, row + column_in_v(column, width, false));
    store_two(u, p, type, row + column_in_v(column, width, true));
}

/* ---- the sums of a warp ---- */

static inline lines lines_of(tile t, epilogue e) {
    lines l;
    UNROLL_FOR(int i = 0; i < 2; i++) {
        l.at[i] = t.line + (int)(get_local_id(0) % 32 / 4) + 8 * i;
        l.used[i] = l.at[i] < t.end;
        l.factor[i] = ROW_SCALE && l.used[i] ? e.factor[l.at[i] * e.row_scale_stride] : 1.0f;
    }
    return l;
}

static inline float alpha_of(tile t, epilogue e) {
    return ALPHA && t.k_size > 0 ? e.alpha[t.group] : 1.0f;
}

static inline int larger(int peak, float2 x) {
    return max(peak, max(as_int(x.x) & 0x7FFFFFFF, as_int(x.y) & 0x7FFFFFFF));
}

static inline void raise_amax(int peak, tile t, epilogue e) {
    const int most = largest_of_warp(peak);
    if (most >= 0 && get_local_id(0) % 32 == 0)
        raise_global(e.amax + t.group, most);
}

/* Applies alpha, bias, row scale and old values to two neighbouring sums. */
static inline float2 finish_two(float2 sum, float2 bias, float2 old, float alpha, float beta,
                                float factor, tile t) {
    float2 v = ALPHA ? sum * alpha : sum;
    if (BIAS)
        v = fma(sum, (float2)(alpha), ROW_SCALE ? bias * factor : bias);
    else if (ROW_SCALE)
        v *= factor;
    if (BETA != 0 && beta != 0.0f)
        v = t.k_size > 0 ? fma((float2)(beta), old, v) : beta * old;
    return v;
}

/* The values that the epilogue uses for all sums of a tile. `peak`: the bits of the largest
 * |result| of this thread so far. */
typedef struct finishing {
    lines l;
    float alpha, beta;
    uint left, first; /* number of columns from the tile's first one to the matrix's last one; this
                         thread's first column */
    int peak;
} finishing;

static inline finishing begin_finish(tile t, epilogue e) {
    return (finishing){lines_of(t, e),
                       alpha_of(t, e),
                       BETA == 2 ? e.beta[t.group] : 1.0f,
                       e.columns - t.column,
                       t.column + get_local_id(0) % 4 * 2,
                       -1};
}

/* Applies the epilogue to STORES pairs of columns of both lines, from sum[4 j] on; old[] holds
 * their old values. Loads all biases before the first use, so that the loads overlap. */
static inline void finish_batch(float *sum, int j, float2 old[STORES][2], finishing *f, tile t,
                                epilogue e) {
    const ulong at[2] = {f->l.at[0] * e.ldc + f->first, f->l.at[1] * e.ldc + f->first};
    const ulong bias_at = (ulong)t.group * e.columns + f->first;
    float2 bias[STORES];
    UNROLL_FOR(int b = 0; b < STORES; b++)
        bias[b] = BIAS && 8 * (j + b) < f->left ? load_two(e.bias, BIAS_TYPE, bias_at + 8 * (j + b))
                                                : 0.0f;
    UNROLL_FOR(int b = 0; b < STORES; b++) {
        const uint next = 8 * (j + b);
        float *s = sum + 4 * (j + b);
        UNROLL for (int i = 0; i < 2; i++, s += 2) {
            const bool used = f->l.used[i] && next < f->left;
            const float2 v = finish_two((float2)(s[0], s[1]), bias[b], old[b][i], f->alpha, f->beta,
                                        f->l.factor[i], t);
            if (AMAX && used)
                f->peak = larger(f->peak, v);
            if (DIRECT && used)
                store_two(v, e.c, RESULT, at[i] + next);
            s[0] = v.x;
            s[1] = v.y;
        }
    }
}

/* Applies the epilogue to all sums of the thread. Stores float32 results unless KEEPS_F32 is 1;
 * other results replace the sums. */
static inline void finish(float *sum, tile t, epilogue e) {
    finishing f = begin_finish(t, e);
    /* lines beyond the end read other lines, since conditional loads would wait for each other */
    const ulong at[2] = {max(min(f.l.at[0], t.end - 1), 0) * e.ldc + f.first,
                         max(min(f.l.at[1], t.end - 1), 0) * e.ldc + f.first};
    UNROLL_FOR(int j = 0; j < SPAN / 8; j += STORES) {
        if (8 * j >= f.left)
            continue; /* the same for all lanes of the warp */
        float2 old[STORES][2];
        UNROLL_FOR(int b = 0; b < STORES; b++)
            UNROLL_FOR(int i = 0; i < 2; i++)
                old[b][i] = BETA != 0 && 8 * (j + b) < f.left
                                ? load_two(e.c, RESULT, at[i] + 8 * (j + b))
                                : 0.0f;
        finish_batch(sum, j, old, &f, t, e);
    }
    if (AMAX)
        raise_amax(f.peak, t, e);
}

/* With a GLU: applies alpha and bias to the sums, which become v. */
static inline void finish_gates(float *sum, tile t, epilogue e) {
    const uint columns = e.columns;
    const float alpha = alpha_of(t, e);
    if (!(ALPHA | BIAS))
        return;
    UNROLL_FOR(int j = 0; j < SPAN / 16; j++) {
        if (t.column + 8 * j >= columns)
            continue; /* the same for all lanes of the warp */
        const uint column = t.column + 8 * j + get_local_id(0) % 4 * 2;
        const pair b =
            BIAS ? load_gates(e.bias, BIAS_TYPE, (ulong)t.group * 2 * columns, column, columns)
                 : (pair){0.0f, 0.0f};
        UNROLL_FOR(int i = 0; i < 4; i++) {
            float *g = sum + 4 * j + i, *u = g + SPAN / 4;
            *g = BIAS ? fma(*g, alpha, i % 2 == 0 ? b.g.x : b.g.y) : *g * alpha;
            *u = BIAS ? fma(*u, alpha, i % 2 == 0 ? b.u.x : b.u.y) : *u * alpha;
        }
    }
}

/* Applies the GLU after finish_gates: the results h replace the gates. */
static inline void finish_glu(float *sum, tile t, epilogue e) {
    const uint columns = e.columns;
    const lines l = lines_of(t, e);
    int peak = -1;
    UNROLL_FOR(int j = 0; j < SPAN / 16; j++) {
        if (t.column + 8 * j >= columns)
            continue; /* the same for all lanes of the warp */
        const uint column = t.column + 8 * j + get_local_id(0) % 4 * 2;
        float *g = sum + 4 * j, *u = g + SPAN / 4;
        const pair x = {(vec)(g[0], g[1], g[2], g[3]), (vec)(u[0], u[1], u[2], u[3])};
        if (STORES_V && l.used[0])
            store_gates(x.g.lo, x.u.lo, e.v, V_TYPE, l.at[0] * e.ldv, column, columns);
        if (STORES_V && l.used[1])
            store_gates(x.g.hi, x.u.hi, e.v, V_TYPE, l.at[1] * e.ldv, column, columns);
        const vec h = glu_of(x, (vec)(l.factor[0], l.factor[0], l.factor[1], l.factor[1]), e.form);
        UNROLL_FOR(int i = 0; i < 2; i++) {
            const float2 y = i == 0 ? h.lo : h.hi;
            if (AMAX && l.used[i])
                peak = larger(peak, y);
            if (DIRECT && l.used[i])
                store_two(y, e.c, RESULT, l.at[i] * e.ldc + column);
            g[2 * i] = y.x;
            g[2 * i + 1] = y.y;
        }
    }
    if (AMAX)
        raise_amax(peak, t, e);
}
