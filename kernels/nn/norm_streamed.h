/*
 * Included by norm.cl if STEPS is 0: a row group owns `block` rows, or COLUMNS columns of a piece,
 * and reads rows twice.
 */
#include "nn/norm_rows.h"

#define COLUMN_VECS (COLUMNS / VEC)

/* A step of sum_squares. */
static inline vec add_squares(vec sum, global const float *x, int n) {
    const vec a = load_part(x, n);
    return fma(a, a, sum);
}

/* The sum of the squares of `width` floats. */
static inline float sum_squares(global const float *x, int width, local float *row_group) {
    lane_sums sum = NO_SUM;
    int c = 0;
    while (c + SUM_LANES <= width)
        UNROLL_FOR(int v = 0; v < SUM_VECS; v++) {
            sum.part[v] = add_squares(sum.part[v], x + c, width - c);
            c += VEC;
        }
    for (int v = 0; c < width; v++, c += VEC)
        sum.part[v] = add_squares(sum.part[v], x + c, width - c);
    return sum_lanes(sum, row_group);
}

KERNEL void norm_forward(global const float *x, global const float *weight, global float *y,
                         global ushort *bf16, global float *rstd, global const float *table,
                         moert_norm_args args) {
    ROW_GROUP;
    ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    for (ulong row = first; row < end; row++) {
        global const float *from = x + row * args.width;
        float squares = 0.0f;
        IN_ORDER_FOR(int begin = 0; begin < args.width; begin += args.part) {
            const int width = min(args.part, args.width - begin);
            squares += sum_squares(from + begin, width, row_group);
        }
        float scale = 1.0f / sqrt(squares / (float)args.width + args.epsilon);
        if (is_first_item())
            rstd[row] = scale;
        for (int c = 0; c < args.width; c += VEC) {
            int n = args.width - c;
            store_results(load_part(from + c, n) * scale * load_part(weight + c, n), y, bf16,
                          row * args.width + c, n);
        }
    }
}

/* A step of sum_dots: adds dy * weight * x. */
static inline vec add_dots(vec sum, global const float *dy, global const float *weight,
                           global const float *x, int n) {
    return fma(load_part(dy, n) * load_part(weight, n), load_part(x, n), sum);
}

/* The sum of dy * weight * x over `width` columns. */
static inline float sum_dots(global const float *dy, global const float *weight,
                             global const float *x, int width, local float *row_group) {
    lane_sums sum = NO_SUM;
    int c = 0;
    while (c + SUM_LANES <= width)
        UNROLL_FOR(int v = 0; v < SUM_VECS; v++) {
            sum.part[v] = add_dots(sum.part[v], dy + c, weight + c, x + c, width - c);
            c += VEC;
        }
    for (int v = 0; c < width; v++, c += VEC)
        sum.part[v] = add_dots(sum.part[v], dy + c, weight + c, x + c, width - c);
    return sum_lanes(sum, row_group);
}

/* dx may be dy: every element is read before it is written. */
KERNEL void norm_backward(global const float *x, global const float *weight,
                          global const float *rstd, global const float *dy, global float *dx,
                          global ushort *bf16, moert_norm_args args) {
    ROW_GROUP;
    ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    for (ulong row = first; row < end; row++) {
        global const float *xr = x + row * args.width, *dyr = dy + row * args.width;
        float dots = 0.0f;
        IN_ORDER_FOR(int begin = 0; begin < args.width; begin += args.part) {
            const int width = min(args.part, args.width - begin);
            dots += sum_dots(dyr + begin, weight + begin, xr + begin, width, row_group);
        }
        float scale = rstd[row];
        float x_factor = -scale * scale * scale / (float)args.width * dots;
        for (int c = 0; c < args.width; c += VEC) {
            int n = args.width - c;
            vec g = load_part(dyr + c, n) * load_part(weight + c, n);
            vec d = fma((vec)x_factor, load_part(xr + c, n), scale * g);
            const ulong at = row * args.width + c;
            store_results(args.accumulate ? d + load_part(dx + at, n) : d, dx, bf16, at, n);
        }
    }
}

/* Adds rows [row, end) of the columns from `column` on to `sum`. */
static inline void add_piece(vec sum[COLUMN_VECS], global const float *x, global const float *rstd,
                             global const float *dy, ulong row, ulong end, int column, int width) {
    for (; row < end; row += BATCH) {
        vec g[BATCH][COLUMN_VECS], a[BATCH][COLUMN_VECS];
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++) {
                ulong at = (row + k) * width + column + v * VEC;
                int n = row + k < end ? width - column - v * VEC : 0;
                g[k][v] = load_part(dy + at, n);
                a[k][v] = load_part(x + at, n);
            }
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            float scale = row + k < end ? rstd[row + k] : 0.0f;
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
                sum[v] = fma(g[k][v] * scale, a[k][v], sum[v]);
        }
    }
}

static inline void store_columns(const vec sum[COLUMN_VECS], global float *row, int column,
                                 int width) {
    UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
        if (column + v * VEC < width)
            store_part(sum[v], row + column + v * VEC, width - column - v * VEC);
}

#if MOERT_ITEMS == 1
/* A sequence's pieces, added in the order of norm_sum_pieces. */
KERNEL void norm_partial(global const float *x, global const float *rstd, global const float *dy,
                         global float *partial, moert_norm_args args) {
    const int column = get_group_id(0) * COLUMNS;
    const ulong sequence = get_group_id(2), first = sequence * args.sequence_rows,
                end = first + args.sequence_rows;
    vec all[COLUMN_VECS];
    for (ulong own = 0; own < min(args.pieces, (ulong)JOIN_ROW_GROUPS); own++) {
        vec sum[COLUMN_VECS];
        UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
            sum[v] = 0.0f;
        for (ulong piece = own; piece < args.pieces; piece += JOIN_ROW_GROUPS) {
            const ulong row = first + piece * args.block;
            vec part[COLUMN_VECS];
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
                part[v] = 0.0f;
            add_piece(part, x, rstd, dy, row, min(row + args.block, end), column, args.width);
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
                sum[v] += part[v];
        }
        UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
            all[v] = own > 0 ? all[v] + sum[v] : sum[v];
    }
    store_columns(all, partial + sequence * args.width, column, args.width);
}
#else
KERNEL void norm_partial(global const float *x, global const float *rstd, global const float *dy,
                         global float *partial, moert_norm_args args) {
    const int column = get_group_id(0) * COLUMNS;
    const ulong sequence = get_group_id(2), piece = sequence * get_num_groups(1) + get_group_id(1),
                first = sequence * args.sequence_rows + get_group_id(1) * args.block,
                end = min(first + args.block, (sequence + 1) * args.sequence_rows);
    vec sum[COLUMN_VECS];
    UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
        sum[v] = 0.0f;
    add_piece(sum, x, rstd, dy, first, end, column, args.width);
    store_columns(sum, partial + piece * args.width, column, args.width);
}
#endif
