/*
 * Grouped GEMM in its three orientations. Rows [ends[g-1], ends[g]) of x and y belong to group g.
 *
 *   kernel         result                              lines   columns   reduction
 *   gemm_forward   y[m,n] = sum_k x[m,k] w[g,n,k] + b  m       n         k
 *   gemm_dgrad     x[m,k] = sum_n y[m,n] w[g,n,k]      m       k         n
 *   gemm_wgrad     w[g,n,k] = sum_m y[m,n] x[m,k]      n       k         m
 *
 * gemm_glu_forward is gemm_forward with a GLU in its epilogue (gemm_glu.h).
 *
 * Shapes: x[M,K] at stride ldx, y[M,N] at stride ldy from column y_column, w[G,N,K], b[G,N]. A
 * shared weight has G = 1; the rows below ends[shared - 1] then form one group. Otherwise w begins
 * with group `start`, and the grid omits the first `skip` groups of w. Results and weights are
 * float32. Row operands have the type `value` (dots.h). With BF16, weights are rounded when panels
 * are packed.
 *
 * A work-group computes `split` lines of `panels` x COLUMNS columns of one group. The work-group
 * processes the reduction in blocks of `depth` dots (dots.h) and packs their panels into local
 * memory; prepacked.cl finds panels in global memory instead. With the usual tile, LINES = 8 and
 * WIDTH = 2:
 *
 *                 <- panels x 32 ->
 *                 +---+---+---+     B as panels of 32 columns; each row of a panel is a dot
 *           depth |   |   |   |     (forward transposes its weight by 16x16 blocks)
 *                 +---+---+---+
 *         depth
 *       +------+  +---+---+---+
 *     8 | line |->| 8 x 32    |     8 x 2 accumulators of 16 lanes; A is read in place (wgrad: from
 *       +------+  +---+---+---+     a copy), one scalar broadcast to all lanes
 * split |      |  |   |   |   |
 *       +------+  +---+---+---+
 *
 * Grid: (line splits, groups, 1 + column blocks), so that consecutive work-groups mix large and
 * empty groups; gemm_wgrad, whose splits have one size, uses (groups, line splits, 1 + column
 * blocks). Local memory in bytes: panels * depth * WIDTH * 64, where depth is a multiple of 16.
 * gemm_wgrad needs depth * 256 bytes more; the other kernels need (depth + 16) * LINES * 4 bytes
 * more with BF16, else 4. Deterministic. Required: BF16 and DOT, as in dots.h; LINES and WIDTH, as
 * in target.h; AMX, as in tile.h; QUANTIZED, as in panels.h. With QUANTIZED = 1 only gemm_forward
 * and gemm_dgrad exist.
 */
#define PANEL local
#include "args/gemm.h"
#include "gemm/grid.h"
#include "gemm/multiply.h"
#include "gemm/panels.h"
#include "gemm/gemm_glu.h"
#include "gemm/wgrad.h"

KERNEL void gemm_forward(global const uint *ends, global const value *x, WEIGHT_ARGUMENTS,
                         global const float *bias, global float *y, moert_gemm_args args,
                         local vec *panel, local element *transposed) {
    const uint own = args.skip + get_group_id(1), g = args.start + own;
    span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    int column = column_block() * args.panels * COLUMNS,
        columns = min(args.panels * COLUMNS, args.n - column);
    if (column < 0 || part.count == 0)
        return;
    const matrix weight =
        matrix_of(w, scale, whole, args.axis, args.transposed, own, args.n, args.k);
    x += part.first * args.ldx;
    y += part.first * args.ldy + args.y_column + column;
    for (int p = 0; p < args.k; p += args.depth * PER_DOT) {
        int used = min(args.depth * PER_DOT, args.k - p);
        bool last = p + used == args.k && bias != 0;
        prepack_forward(weight, args.transposed, column, p, columns, used, args.depth, panel);
        target c = {
            y, last ? bias + (ulong)g * args.n + column : 0, args.ldy, part.count, columns, false};
        multiply(x + p, args.ldx, transposed, panel, used, args.depth, c, p == 0, no_prefetch());
    }
}

KERNEL void gemm_dgrad(global const uint *ends, global const value *y, WEIGHT_ARGUMENTS,
                       global float *x, moert_gemm_args args, local vec *panel,
                       local element *transposed) {
    const uint own = args.skip + get_group_id(1), g = args.start + own;
    span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    int column = column_block() * args.panels * COLUMNS,
        columns = min(args.panels * COLUMNS, args.k - column);
    if (column < 0 || part.count == 0)
        return;
    const matrix weight =
        matrix_of(w, scale, whole, args.axis, args.transposed, own, args.n, args.k);
    y += part.first * args.ldy + args.y_column;
    x += part.first * args.ldx + column;
    for (int p = 0; p < args.n; p += args.depth * PER_DOT) {
        int used = min(args.depth * PER_DOT, args.n - p);
        prepack_dgrad(weight, args.transposed, column, p, columns, used, args.depth, panel);
        target c = {x, 0, args.ldx, part.count, columns, false};
        multiply(y + p, args.ldy, transposed, panel, used, args.depth, c,
                 p == 0 && !args.accumulate, no_prefetch());
    }
}

#if !QUANTIZED

#if WIDTH % 2 == 0
/* gemm_forward into v[M,2I], then the GLU into h[M,I] (gemm_glu.h), I = width. v is dense. v is
 * written only if `keep` is set or K has several blocks, and past the caches if `once` is set. A
 * panel holds WIDTH / 2 * 16 columns of h. */
KERNEL void gemm_glu_forward(global const uint *ends, global const value *x, global const float *w,
                             global const float *bias, global float *v, global const float *prob,
                             global void *h, moert_gemm_args args, local element *transposed,
                             local vec *panel) {
    const uint g = args.skip + get_group_id(1);
    const span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    const int column = column_block() * args.panels * PAIR_WIDTH,
              columns = min(args.panels * PAIR_WIDTH, args.width - column);
    if (column < 0 || part.count == 0)
        return;
    const matrix weight = matrix_of(w, 0, 0, 0, 0, g, 2 * args.width, args.k);
    x += part.first * args.ldx;
    gated c = gated_target(part, column, columns, v, h, bias, g, prob, args);
    for (int p = 0; p < args.k; p += args.depth * PER_DOT) {
        const int used = min(args.depth * PER_DOT, args.k - p);
        pack_gated(weight, column, columns, args.width, args.interleaved, p, used, args.depth,
                   panel);
        c.fresh = p == 0;
        c.last = p + used == args.k;
        multiply_gated(x + p, args.ldx, transposed, panel, used, args.depth, &c, no_prefetch());
    }
}
#endif

/* ---- gradients of weights ---- */

/* Rows of x, which gemm_wgrad packs into panels. */
typedef struct rows_of {
    global const value *at;
    ulong stride;
} rows_of;

static inline vec load_row(rows_of x, int row, int column, int n) {
    return load_operand(x.at + row * x.stride + column, n);
}

DEFINE_PACK(pack_rows, rows_of, load_row)

/* The result goes to w or, rounded to bf16, to rounded_w if this is not null. If rounded_w is not
 * null, w holds a group's sums between two blocks of the group's rows. Weight gradients are larger
 * than a cache. So the results of groups whose rows fit in one block are stored past the cache,
 * unless they are accumulated, not aligned to 64 bytes, or computed by AMX. The lock at the end of
 * a work-group makes these stores visible. */
KERNEL void gemm_wgrad(global const uint *ends, global const value *y, global const value *x,
                       global float *w, global ushort *rounded_w, moert_gemm_args args,
                       local vec *panel, local float *strip) {
    const uint own = args.skip + get_group_id(0), g = args.start + own;
    span part = group_part(ends, g, 0, args.rows, 0, INT_MAX);
    int column = column_block() * args.panels * COLUMNS,
        columns = min(args.panels * COLUMNS, args.k - column);
    int line = get_group_id(1) * args.split, lines = min(args.split, args.n - line);
    if (column < 0 || (part.count == 0 && args.accumulate))
        return;
    const ulong at = ((ulong)own * args.n + line) * args.k + column;
    w += at;
    rounded_w = rounded_w != 0 ? rounded_w + at : 0;
    y += part.first * args.ldy + args.y_column + line;
    x += part.first * args.ldx + column;
    const int dots = (part.count + PER_DOT - 1) / PER_DOT;
    args.depth =
        clamp((dots + 15) / 16 * 16, 16, args.depth); /* short groups need less room for panels */
    const int block = args.depth * PER_DOT;
    const ulong places =
        rounded_w != 0 ? (ulong)rounded_w | (ulong)args.k * 2 : (ulong)w | (ulong)args.k * 4;
    const bool once = part.count <= block && !args.accumulate && places % 64 == 0;
    /* one iteration for a group without rows, which gets zeros */
    for (int p = 0; p == 0 || p < part.count; p += block) {
        int used = min(block, part.count - p);
        pack_rows((rows_of){x, args.ldx}, p, 0, columns, used, args.depth, panel);
        target c = {w, 0, args.k, lines, columns, once, p + block >= part.count ? rounded_w : 0};
        multiply_transposed(y + p * args.ldy, args.ldy, strip, panel, used, args.depth, c,
                            p == 0 && !args.accumulate);
    }
}

/* bias[g,n] = sum_m y[m,n], rows in order. Grid: (blocks of 16 columns, groups). No local
 * memory. */
KERNEL void gemm_bias_grad(global const uint *ends, global const value *y, global float *bias,
                           moert_gemm_args args) {
    const uint g = args.skip + get_group_id(1);
    span part = group_part(ends, g, 0, args.rows, 0, INT_MAX);
    int column = get_group_id(0) * VEC, columns = args.n - column;
    bias += (ulong)g * args.n + column;
    y += part.first * args.ldy + args.y_column + column;
    vec sum = 0.0f;
    if (args.accumulate)
        sum = load_part(bias, columns);
    for (int m = 0; m < part.count; m++)
        sum += load_operand(y + m * args.ldy, columns);
    store_part(sum, bias, columns);
}
#endif
