/*
 * Grouped GEMM by packed weights: as gemm_forward, gemm_dgrad and gemm_glu_forward of gemm.cl, bit
 * for bit, by a second factor whose panels lie in global memory, ready for every product of a step.
 *
 *   packing for   line of the weight   panels                        a term
 *   forward       n                    panel[g, n / C, k, n % C]     w[g,n,k], with DOT k and k + 1
 *   dgrad         k                    panel[g, k / C, n, k % C]     w[g,n,k], with DOT n and n + 1
 *   gated         n, of gates | ups    16 gates, their 16 ups        as for forward; needs an even
 *                                      (gemm_glu.h)                  WIDTH
 *
 * A panel has C = PACKED * 16 columns and `height` rows, the terms of the reduction rounded up to
 * 16 numbers, with DOT = 2 to 32; columns past the end are zero. A tile that is wider than a panel
 * may read, for columns past the end, from the next group's, and after the last group there must be
 * room for three panels. Shapes, strides and the shared weight are as in gemm.cl.
 *
 * A thread takes neighbours in the grid, so while it computes tiles it brings the panels of the
 * next work-group to the cache, or of the next block of terms, a turn every `every` terms; never if
 * that is `depth` or more.
 *
 * Grid of the products: (line splits, groups, 1 + column blocks). Local memory: with BF16 (depth +
 * 16) * LINES * 4 bytes, else 4. Deterministic.
 * Required: BF16, DOT, LINES, WIDTH and PACKED, as in gemm.h; CODED, as in panels.h: with 1 there
 * are the packers alone, which there are with WIDTH = PACKED.
 */
#define PANEL global
#include "gemm/gemm.h"
#include "gemm/panels.h"
#include "gemm/gemm_glu.h"

#if WIDTH == PACKED
/* w[G,N,K]. Grid: (blocks of `panels` panels, groups). */
KERNEL void gemm_pack_forward(WEIGHT_ARGUMENTS, global vec *panel, int n, int k, int height,
                              int panels) {
    const int column = get_group_id(0) * panels * COLUMNS,
              columns = min(panels * COLUMNS, n - column);
    const ulong blocks = (n + COLUMNS - 1) / COLUMNS, g = get_group_id(1);
    panel += (g * blocks + column / COLUMNS) * height * WIDTH;
    pack_forward(matrix_of(w, scale, whole, axis, flipped, g, n, k), flipped, column, 0, columns, k,
                 height, panel);
}

#if WIDTH % 2 == 0
/* w[G,2I,K], gates first, I = width; not flipped. Grid: (blocks of `panels` panels of 16 columns of
 * h, groups). */
KERNEL void gemm_pack_gated(WEIGHT_ARGUMENTS, global vec *panel, int width, int k, int height,
                            int panels) {
    const int column = get_group_id(0) * panels * PAIR_WIDTH,
              columns = min(panels * PAIR_WIDTH, width - column);
    const ulong blocks = (width + PAIR_WIDTH - 1) / PAIR_WIDTH, g = get_group_id(1);
    panel += (g * blocks + column / PAIR_WIDTH) * height * WIDTH;
    pack_gated(matrix_of(w, scale, whole, axis, flipped, g, 2 * width, k), column, columns, width,
               0, 0, k, height, panel);
}
#endif

KERNEL void gemm_pack_dgrad(WEIGHT_ARGUMENTS, global vec *panel, int n, int k, int height,
                            int panels) {
    const int column = get_group_id(0) * panels * COLUMNS,
              columns = min(panels * COLUMNS, k - column);
    const ulong blocks = (k + COLUMNS - 1) / COLUMNS, g = get_group_id(1);
    panel += (g * blocks + column / COLUMNS) * height * WIDTH;
    pack_dgrad(matrix_of(w, scale, whole, axis, flipped, g, n, k), flipped, column, 0, columns, n,
               height, panel);
}
#endif

#if !CODED
/* A work-group's panels, and, unless `more` is 0, so many of the one that follows. */
typedef struct shelf {
    global const vec *own, *after;
    int count, more, height;
} shelf;

/* `blocks` panels are of a group. */
static inline shelf shelf_of(global const vec *panel, uint skip, int blocks, int panels, int height,
                             successor next) {
    const int count = panels * (WIDTH / PACKED), first = column_block() * count,
              other = next.block * count;
    const ulong own = (skip + get_group_id(1)) * (ulong)blocks + first;
    const ulong after = (skip + next.group) * (ulong)blocks + other;
    return (shelf){panel + own * height * PACKED, panel + after * height * PACKED,
                   min(count, blocks - first), next.any ? min(count, blocks - other) : 0, height};
}

/* What is read after the terms below `done`: at most `depth` of its own panels, or in the end of
 * those that follow. */
static inline fetch fetch_next(shelf s, int done, int depth, int every) {
    const bool end = done >= s.height;
    if (every >= depth || (end && s.more == 0))
        return no_fetch();
    return fetch_rows((size_t)(end ? s.after : s.own + (ulong)done * PACKED),
                      s.height * PACKED * sizeof(vec), end ? s.more : s.count,
                      min(depth, end ? s.height : s.height - done) * PACKED * sizeof(vec), every);
}

/* c[m, :] = sum_p a[m,p] panel[g, :, p] + bias: `columns` of c at stride ldc, `terms` numbers of a
 * at stride lda. */
KERNEL void gemm_packed(global const uint *ends, uint start, uint skip, uint shared, uint rows,
                        global const code *a, ulong lda, ulong a_column, global const vec *panel,
                        global const float *bias, global float *c, ulong ldc, ulong c_column,
                        int width, int reduction, int accumulate, int height, int panels, int depth,
                        uint split, int every, local element *turned) {
    const uint own = skip + get_group_id(1), g = start + own;
    const span part = group_part(ends, g, shared, rows, get_group_id(0), split);
    const int column = column_block() * panels * COLUMNS,
              columns = min(panels * COLUMNS, width - column);
    const int blocks = (width + PACKED * VEC - 1) / (PACKED * VEC);
    if (column < 0 || part.count == 0)
        return;
    const successor next =
        every < depth ? successor_of(ends, start + skip, shared, rows, split) : no_successor();
    const shelf s = shelf_of(panel, skip, blocks, panels, height, next);
    a += part.first * lda + a_column;
    c += part.first * ldc + c_column + column;
    for (int p = 0; p < reduction; p += depth * PER_TERM) {
        const int used = min(depth * PER_TERM, reduction - p), term = p / PER_TERM;
        const bool last = p + used == reduction;
        const target result = {c,       last && bias != 0 ? bias + (ulong)g * width + column : 0,
                               ldc,     part.count,
                               columns, false};
        multiply(a + p, lda, turned, s.own + (ulong)term * PACKED, used, height, result,
                 p == 0 && !accumulate, fetch_next(s, term + depth, depth, every));
    }
}

#if PACKED % 2 == 0
/* gemm_glu_forward of gemm.cl by panels of gemm_pack_gated, or, interleaved, of
 * gemm_pack_forward. */
KERNEL void gemm_packed_glu(global const uint *ends, uint skip, uint shared, uint rows,
                            global const code *x, ulong ldx, global const vec *panel,
                            global const float *bias, global float *v, int keep,
                            global const float *prob, ulong prob_stride, global void *h, int coded,
                            int interleaved, float limit, float alpha, float offset, int width,
                            int k, int panels, int depth, uint split, local element *turned,
                            int height, int every) {
    const uint g = skip + get_group_id(1);
    const span part = group_part(ends, g, shared, rows, get_group_id(0), split);
    const int column = column_block() * panels * PAIR_WIDTH,
              columns = min(panels * PAIR_WIDTH, width - column);
    const int pairs = PACKED / 2 * VEC, blocks = (width + pairs - 1) / pairs;
    if (column < 0 || part.count == 0)
        return;
    const successor next =
        every < depth ? successor_of(ends, skip, shared, rows, split) : no_successor();
    const shelf s = shelf_of(panel, skip, blocks, panels, height, next);
    x += part.first * ldx;
    gated c = gated_share(part, column, columns, width, v, h, coded, bias, g, prob, prob_stride,
                          (glu_form){interleaved, limit, alpha, offset}, keep);
    for (int p = 0; p < k; p += depth * PER_TERM) {
        const int used = min(depth * PER_TERM, k - p), term = p / PER_TERM;
        c.fresh = p == 0;
        c.last = p + used == k;
        multiply_gated(x + p, ldx, turned, s.own + (ulong)term * PACKED, used, height, &c,
                       fetch_next(s, term + depth, depth, every));
    }
}
#endif
#endif
