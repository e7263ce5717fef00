/*
 * Grouped GEMM with prepacked weights. The results are those of gemm_forward, gemm_dgrad and
 * gemm_glu_forward in gemm.cl, bit for bit. The panels of B are in global memory and serve every
 * GEMM of a step.
 *
 *   prepack for   line of the weight   panels                        a dot
 *   forward       n                    panel[g, n / C, k, n % C]     w[g,n,k], with DOT k and k + 1
 *   dgrad         k                    panel[g, k / C, n, k % C]     w[g,n,k], with DOT n and n + 1
 *   gated         n, of gates | ups    16 gates, their 16 ups        as for forward; needs an even
 *                                      (gemm_glu.h)                  WIDTH
 *
 * A panel has C = PANEL_WIDTH * 16 columns and `height` rows: the dots of the reduction, which is
 * rounded up to 16 values, with DOT = 2 to 32. Columns beyond the end are zero. For columns beyond
 * the end, a tile wider than a panel may read the panels of the next group, so
 * MOERT_GEMM_PANELS_PAST panels of memory must follow the last group. Shapes, strides and the
 * shared weight are as in gemm.cl.
 *
 * A thread takes consecutive work-groups of the grid. While it computes tiles, it prefetches the
 * panels of its next work-group, or of the next block of the reduction, a part every `every` dots;
 * never if `every` is `depth` or more.
 *
 * Grid of the GEMMs: (line splits, groups, 1 + column blocks). Local memory: with BF16 (depth + 16)
 * * LINES * 4 bytes, else 4. Deterministic. Required: the defines of gemm.cl. QUANTIZED is
 * 0. The packing kernels exist if WIDTH = PANEL_WIDTH (target.h).
 */
#define PANEL global
#include "args/gemm.h"
#include "gemm/grid.h"
#include "gemm/multiply.h"
#include "gemm/panels.h"
#include "gemm/gemm_glu.h"

#if WIDTH == PANEL_WIDTH
typedef enum prepack { FORWARD, DGRAD, GATED } prepack;

/* Packs w[G,N,K]. GATED packs w[G,2I,K], gates first, I = width, not transposed. */
INLINED void pack(prepack of, WEIGHT_ARGUMENTS, global vec *panel, moert_gemm_args args) {
    const int all = of == FORWARD ? args.n : of == DGRAD ? args.k : args.width;
    const int wide =
        of == GATED ? WIDTH / 2 * VEC : COLUMNS; /* columns of a panel; with GATED, of h */
    const int column = get_group_id(0) * args.panels * wide,
              columns = min(args.panels * wide, all - column);
    const ulong blocks = (all + wide - 1) / wide, g = get_group_id(1);
    const matrix weight = matrix_of(w, scale, whole, args.axis, args.transposed, g,
                                    of == GATED ? 2 * args.width : args.n, args.k);
    panel += (g * blocks + column / wide) * args.height * WIDTH;
    if (of == FORWARD)
        prepack_forward(weight, args.transposed, column, 0, columns, args.k, args.height, panel);
    else if (of == DGRAD)
        prepack_dgrad(weight, args.transposed, column, 0, columns, args.n, args.height, panel);
#if WIDTH % 2 == 0
    else
        pack_gated(weight, column, columns, args.width, 0, 0, args.k, args.height, panel);
#endif
}

/* Grid: (blocks of `panels` panels, groups); a panel of GATED has 16 columns of h for each pair of
 * vectors. */
#define PACK(name, of)                                                                             \
    KERNEL void name(WEIGHT_ARGUMENTS, global vec *panel, moert_gemm_args args) {                  \
        pack(of, w, scale, whole, panel, args);                                                    \
    }
PACK(gemm_prepack_forward, FORWARD)
PACK(gemm_prepack_dgrad, DGRAD)
#if WIDTH % 2 == 0
PACK(gemm_prepack_gated, GATED)
#endif
#endif

/* The panels of a work-group: `count` panels from `own` on. The panels of the work-group that the
 * thread runs next, to prefetch: `more` panels from `after` on; none if `more` is 0. */
typedef struct panel_run {
    global const vec *own, *after;
    int count, more, height;
} panel_run;

/* `blocks`: the number of panels of a group. */
static inline panel_run panels_of(global const vec *panel, uint skip, int blocks, int panels,
                                  int height, successor next) {
    const int count = panels * (WIDTH / PANEL_WIDTH), first = column_block() * count,
              other = next.block * count;
    const ulong own = (skip + get_group_id(1)) * (ulong)blocks + first;
    const ulong after = (skip + next.group) * (ulong)blocks + other;
    return (panel_run){panel + own * height * PANEL_WIDTH, panel + after * height * PANEL_WIDTH,
                       min(count, blocks - first), next.any ? min(count, blocks - other) : 0,
                       height};
}

/* Plans the prefetch of the dots from `done` on, at most `depth`: of the own panels or, if `done`
 * is their end, of the first dots of the next work-group's panels. */
static inline prefetch_plan prefetch_next(panel_run s, int done, int depth, int every) {
    const bool end = done >= s.height;
    if (every >= depth || (end && s.more == 0))
        return no_prefetch();
    return prefetch_rows((size_t)(end ? s.after : s.own + (ulong)done * PANEL_WIDTH),
                         s.height * PANEL_WIDTH * sizeof(vec), end ? s.more : s.count,
                         min(depth, end ? s.height : s.height - done) * PANEL_WIDTH * sizeof(vec),
                         every);
}

/* c[m,:] = sum_p a[m,p] panel[g,:,p] + bias: `width` columns of c at stride ldc; `reduction` values
 * of each row of a at stride lda. */
KERNEL void gemm_prepacked(global const uint *ends, global const value *a, global const vec *panel,
                           global const float *bias, global float *c, moert_gemm_args args,
                           local element *transposed) {
    const uint own = args.skip + get_group_id(1), g = args.start + own;
    const span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    const int column = column_block() * args.panels * COLUMNS,
              columns = min(args.panels * COLUMNS, args.width - column);
    const int blocks = (args.width + PANEL_WIDTH * VEC - 1) / (PANEL_WIDTH * VEC);
    if (column < 0 || part.count == 0)
        return;
    const successor next =
        args.every < args.depth
            ? successor_of(ends, args.start + args.skip, args.shared, args.rows, args.split)
            : no_successor();
    const panel_run s = panels_of(panel, args.skip, blocks, args.panels, args.height, next);
    a += part.first * args.lda + args.a_column;
    c += part.first * args.ldc + args.c_column + column;
    for (int p = 0; p < args.reduction; p += args.depth * PER_DOT) {
        const int used = min(args.depth * PER_DOT, args.reduction - p), dot_index = p / PER_DOT;
        const bool last = p + used == args.reduction;
        const target result = {
            c,        last && bias != 0 ? bias + (ulong)g * args.width + column : 0,
            args.ldc, part.count,
            columns,  false};
        multiply(a + p, args.lda, transposed, s.own + (ulong)dot_index * PANEL_WIDTH, used,
                 args.height, result, p == 0 && !args.accumulate,
                 prefetch_next(s, dot_index + args.depth, args.depth, args.every));
    }
}

#if PANEL_WIDTH % 2 == 0
/* As gemm_glu_forward of gemm.cl, but with panels that gemm_prepack_gated or, if gates and ups are
 * interleaved, gemm_prepack_forward has packed. */
KERNEL void gemm_prepacked_glu(global const uint *ends, global const value *x,
                               global const vec *panel, global const float *bias, global float *v,
                               global const float *prob, global void *h, moert_gemm_args args,
                               local element *transposed) {
    const uint g = args.skip + get_group_id(1);
    const span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    const int column = column_block() * args.panels * PAIR_WIDTH,
              columns = min(args.panels * PAIR_WIDTH, args.width - column);
    const int pairs = PANEL_WIDTH / 2 * VEC, blocks = (args.width + pairs - 1) / pairs;
    if (column < 0 || part.count == 0)
        return;
    const successor next = args.every < args.depth
                               ? successor_of(ends, args.skip, args.shared, args.rows, args.split)
                               : no_successor();
    const panel_run s = panels_of(panel, args.skip, blocks, args.panels, args.height, next);
    x += part.first * args.ldx;
    gated c = gated_target(part, column, columns, v, h, bias, g, prob, args);
    for (int p = 0; p < args.k; p += args.depth * PER_DOT) {
        const int used = min(args.depth * PER_DOT, args.k - p), dot_index = p / PER_DOT;
        c.fresh = p == 0;
        c.last = p + used == args.k;
        multiply_gated(x + p, args.ldx, transposed, s.own + (ulong)dot_index * PANEL_WIDTH, used,
                       args.height, &c,
                       prefetch_next(s, dot_index + args.depth, args.depth, args.every));
    }
}
#endif
