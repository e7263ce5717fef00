/*
 * Grouped GEMM for GPUs of any vendor: gemm_forward, gemm_dgrad, gemm_wgrad and gemm_bias_grad of
 * gemm.cl, bit for bit. gemm.cl defines shapes, strides, the shared weight, lines, columns and the
 * reduction. gpu.h shows how a work-group of 256 items computes a tile of LINES x COLUMNS.
 *
 * Grid of forward and dgrad: (row tiles, column blocks). Group g, whose first row is r, has the
 * tiles from r / LINES + g on: just enough, or one more than it needs. So a work-group finds its
 * group by bisection. The grid begins with the tiles of group `skip`. Grid of wgrad: (line blocks,
 * column blocks, groups); of bias_grad: (blocks of ITEMS columns, groups). Local memory: (LINES +
 * COLUMNS) * DEPTH * 8 bytes. Deterministic. Required: BF16, LINES and DEPTH, as in gpu.h.
 */
#include "args/gemm.h"
#include "gemm/gpu.h"

/* The rows of a group that this work-group computes; if `lines` is not positive there are none. */
typedef struct row_tile {
    uint g, first;
    int lines;
} row_tile;

/* Finds the rows among groups `skip` to `groups` - 1, counted from `start`. If `shared` is not 0,
 * the first `shared` groups count as one group. */
static inline row_tile find_rows(global const uint *ends, uint start, uint skip, uint groups,
                                 uint shared, uint rows) {
    const uint tile = get_group_id(0) + group_start(ends, start + skip) / LINES + skip;
    uint g = skip;
    for (uint end = groups; end - g > 1;) {
        const uint middle = (g + end) / 2;
        if (group_start(ends, start + middle) / LINES + middle <= tile)
            g = middle;
        else
            end = middle;
    }
    const uint begin = shared > 0 ? 0 : group_start(ends, start + g);
    const uint first = begin + (tile - begin / LINES - g) * LINES;
    const int left = (int)min(ends[shared > 0 ? shared - 1 : start + g], rows) - (int)first;
    return (row_tile){g, first, min(left, LINES)};
}

GPU_KERNEL void gemm_forward(global const uint *ends, global const value *x, global const float *w,
                             global const float *bias, global float *y, moert_gemm_args args) {
    BLOCKS;
    const row_tile tile =
        find_rows(ends, args.start, args.skip, args.groups, args.shared, args.rows);
    const int column = get_group_id(1) * COLUMNS, width = min(COLUMNS, args.n - column);
    if (tile.lines <= 0)
        return;
    const operand a = operand_of(x + tile.first * args.ldx, args.ldx, BF16, tile.lines, LINES,
                                 args.k, true, -0.0f);
    const operand b = operand_of(w + ((ulong)tile.g * args.n + column) * args.k, args.k, false,
                                 width, COLUMNS, args.k, true, 0.0f);
    const target c = {y + tile.first * args.ldy + args.y_column + column,
                      bias != 0 ? bias + (ulong)(args.start + tile.g) * args.n + column : 0,
                      args.ldy,
                      tile.lines,
                      width,
                      true};
    multiply(a, b, c, lines, columns);
}

GPU_KERNEL void gemm_dgrad(global const uint *ends, global const value *y, global const float *w,
                           global float *x, moert_gemm_args args) {
    BLOCKS;
    const row_tile tile =
        find_rows(ends, args.start, args.skip, args.groups, args.shared, args.rows);
    const int column = get_group_id(1) * COLUMNS, width = min(COLUMNS, args.k - column);
    if (tile.lines <= 0)
        return;
    const operand a = operand_of(y + tile.first * args.ldy + args.y_column, args.ldy, BF16,
                                 tile.lines, LINES, args.n, true, -0.0f);
    const operand b = operand_of(w + (ulong)tile.g * args.n * args.k + column, args.k, false, width,
                                 COLUMNS, args.n, false, 0.0f);
    const target c = {
        x + tile.first * args.ldx + column, 0, args.ldx, tile.lines, width, !args.accumulate};
    multiply(a, b, c, lines, columns);
}

/* A group without rows gives zeros or, with `accumulate`, leaves the old values. */
GPU_KERNEL void gemm_wgrad(global const uint *ends, global const value *y, global const value *x,
                           global float *w, moert_gemm_args args) {
    BLOCKS;
    const uint own = args.skip + get_group_id(2), g = args.start + own,
               first = group_start(ends, g), end = min(ends[g], args.rows);
    const int k = first < end ? (int)(end - first) : 0;
    const int line = get_group_id(0) * LINES, column = get_group_id(1) * COLUMNS;
    const int height = min(LINES, args.n - line), width = min(COLUMNS, args.k - column);
    if (k == 0 && args.accumulate)
        return;
    const operand a = operand_of(y + first * args.ldy + args.y_column + line, args.ldy, BF16,
                                 height, LINES, k, false, -0.0f);
    const operand b =
        operand_of(x + first * args.ldx + column, args.ldx, BF16, width, COLUMNS, k, false, 0.0f);
    const target c = {w + ((ulong)own * args.n + line) * args.k + column,
                      0,
                      args.k,
                      height,
                      width,
                      !args.accumulate};
    multiply(a, b, c, lines, columns);
}

#define ROWS_AHEAD 16 /* rows whose loads are in flight at once */

/* bias[g,n] = sum_m y[m,n], rows in order. */
GPU_KERNEL void gemm_bias_grad(global const uint *ends, global const value *y, global float *bias,
                               moert_gemm_args args) {
    const uint g = args.skip + get_group_id(1), end = min(ends[g], args.rows);
    const int column = get_global_id(0);
    if (column >= args.n)
        return;
    float sum = args.accumulate ? bias[(ulong)g * args.n + column] : 0.0f;
    y += args.y_column + column;
    IN_ORDER_FOR(uint m = group_start(ends, g); m < end; m += ROWS_AHEAD) {
        value row[ROWS_AHEAD];
        UNROLL_FOR(int i = 0; i < ROWS_AHEAD; i++)
            row[i] = y[min(m + i, end - 1) * args.ldy];
        UNROLL_FOR(int i = 0; i < ROWS_AHEAD; i++)
            if (m + i < end)
                sum += BF16 ? as_float((uint)row[i] << 16) : row[i];
    }
    bias[(ulong)g * args.n + column] = sum;
}
