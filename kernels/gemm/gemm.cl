/*
 * Grouped GEMM in its three orientations. Rows [ends[g-1], ends[g]) of x and y belong to group g.
 *
 *   kernel         result                              lines   columns   reduction
 *   gemm_forward   y[m,n] = sum_k x[m,k] w[g,n,k] + b  m       n         k
 *   gemm_dgrad     x[m,k] = sum_n y[m,n] w[g,n,k]      m       k         n
 *   gemm_wgrad     w[g,n,k] = sum_m y[m,n] x[m,k]      n       k         m
 *
 * gemm_glu_forward is gemm_forward with a GLU behind it (gemm_glu.h).
 *
 * Shapes: x[M,K] at stride ldx, y[M,N] at stride ldy from column y_column, w[G,N,K], b[G,N]. A
 * shared weight has G = 1 and serves the rows below ends[shared - 1] as one group. Otherwise w
 * begins with group `start`, of which the grid leaves out the first `skip`.
 * Results and weights are float32; row operands are `code` (gemm.h), and with BF16 weights are
 * rounded on the way.
 *
 * A work-group makes `split` lines of `panels` x COLUMNS columns of one group, and walks the
 * reduction in blocks of `depth` terms, whose panels it brings to local memory (prepacked.cl: it
 * finds them in global memory). With the usual tile, LINES = 8 and WIDTH = 2:
 *
 *                 <- panels x 32 ->
 *                 +---+---+---+     the second factor as panels of 32 columns, a row of them for
 *           depth |   |   |   |     each term (forward transposes its weight by 16x16 blocks)
 *                 +---+---+---+
 *         depth
 *       +------+  +---+---+---+
 *     8 | line |->| 8 x 32    |     8 x 2 accumulators of 16 lanes; the first factor is read where
 *       +------+  +---+---+---+     it lies (wgrad: from a copy), one scalar spread over the lanes
 * split |      |  |   |   |   |
 *       +------+  +---+---+---+
 *
 * Grid: (line splits, groups, 1 + column blocks), so that a run of work-groups meets large and
 * empty groups alike; for gemm_wgrad, whose splits are all of one size, (groups, line splits, 1 +
 * column blocks). Local
 * memory: panels * depth * WIDTH * 64 bytes, depth a multiple of 16; with BF16 another (depth + 16)
 * * LINES * 4 (else 4); gemm_wgrad instead another depth * 256. Deterministic.
 * Required: BF16, DOT, LINES and WIDTH, as in gemm.h; CODED, as in panels.h: with 1 there are the
 * first two kernels alone.
 */
#define PANEL local
#include "args/gemm.h"
#include "gemm/gemm.h"
#include "gemm/panels.h"
#include "gemm/gemm_glu.h"

#if DOT == 2
#define STRIP 64 /* lines that gemm_wgrad packs at a time */
#else
#define TILES (VEC / LINES) /* whose lines one vector holds */
#define STRIP (64 / (TILES * LINES) * TILES * LINES)
#if TILES == 2 && defined(__clang__)
#define EXCESS                                                                                     \
    (VEC / 2 -                                                                                     \
     LINES) /* lanes by which the store of a tile's lines runs into the next term's place */
#else
#define EXCESS 0
#endif
#define TILE_ROOM(depth) (LINES * (depth) + EXCESS) /* of the strip's at most 64 * depth floats */
#endif

KERNEL void gemm_forward(global const uint *ends, global const code *x, WEIGHT_ARGUMENTS,
                         global const float *bias, global float *y, moert_gemm_args args,
                         local vec *panel, local element *transposed) {
    const uint own = args.skip + get_group_id(1), g = args.start + own;
    span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    int column = column_block() * args.panels * COLUMNS,
        columns = min(args.panels * COLUMNS, args.n - column);
    if (column < 0 || part.count == 0)
        return;
    const matrix weight = matrix_of(w, scale, whole, args.axis, args.flipped, own, args.n, args.k);
    x += part.first * args.ldx;
    y += part.first * args.ldy + args.y_column + column;
    for (int p = 0; p < args.k; p += args.depth * PER_DOT) {
        int used = min(args.depth * PER_DOT, args.k - p);
        bool last = p + used == args.k && bias != 0;
        pack_forward(weight, args.flipped, column, p, columns, used, args.depth, panel);
        target c = {
            y, last ? bias + (ulong)g * args.n + column : 0, args.ldy, part.count, columns, false};
        multiply(x + p, args.ldx, transposed, panel, used, args.depth, c, p == 0, no_prefetch());
    }
}

KERNEL void gemm_dgrad(global const uint *ends, global const code *y, WEIGHT_ARGUMENTS,
                       global float *x, moert_gemm_args args, local vec *panel,
                       local element *transposed) {
    const uint own = args.skip + get_group_id(1), g = args.start + own;
    span part = group_part(ends, g, args.shared, args.rows, get_group_id(0), args.split);
    int column = column_block() * args.panels * COLUMNS,
        columns = min(args.panels * COLUMNS, args.k - column);
    if (column < 0 || part.count == 0)
        return;
    const matrix weight = matrix_of(w, scale, whole, args.axis, args.flipped, own, args.n, args.k);
    y += part.first * args.ldy + args.y_column;
    x += part.first * args.ldx + column;
    for (int p = 0; p < args.n; p += args.depth * PER_DOT) {
        int used = min(args.depth * PER_DOT, args.n - p);
        pack_dgrad(weight, args.flipped, column, p, columns, used, args.depth, panel);
        target c = {x, 0, args.ldx, part.count, columns, false};
        multiply(y + p, args.ldy, transposed, panel, used, args.depth, c,
                 p == 0 && !args.accumulate, no_prefetch());
    }
}

#if !CODED

#if WIDTH % 2 == 0
/* gemm_forward into v[M,2I] and from there into h[M,I] (gemm_glu.h), I = width; v is dense and not
 * written unless it is kept, or there is more than one block. Panels hold 16 columns of h. */
KERNEL void gemm_glu_forward(global const uint *ends, global const code *x, global const float *w,
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
    gated c = gated_share(part, column, columns, v, h, bias, g, prob, args);
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

/* Rows of a factor. */
typedef struct rows_of {
    global const code *at;
    ulong stride;
} rows_of;

static inline vec load_row(rows_of x, int row, int column, int n) {
    return load_factor(x.at + row * x.stride + column, n);
}

DEFINE_PACK(pack_rows, rows_of, load_row)

/* Lines i to i + 15 of the terms from number p on: zeros past the end, as -0 in half a pair. */
static inline vec strip_term(global const code *a, ulong lda, int i, int lines, int p, int used) {
    vec number[PER_DOT];
    UNROLL_FOR(int q = 0; q < PER_DOT; q++)
        number[q] = p + q < used ? load_factor(a + (p + q) * lda + i, lines - i) : -0.0f;
    return term_of(number);
}

#if DOT == 2
/* strip[line, p] = a[p * lda + line], p below `used`, in whole steps, at stride `depth`. */
static inline void pack_strip(global const code *a, ulong lda, int lines, int used, int depth,
                              local float *strip) {
    for (int p = 0; p < used; p += STEP * PER_DOT)
        for (int i = 0; i < lines; i += VEC) {
            vec block[VEC];
            UNROLL_FOR(int q = 0; q < STEP; q++)
                block[q] = strip_term(a, lda, i, lines, p + q * PER_DOT, used);
            transpose(block);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                vstore16(block[r], 0, strip + (i + r) * depth + p / PER_DOT);
        }
}

/* The terms of the tile whose lines begin with line i of the strip. */
static inline void add_strip(accumulators acc, local const element *strip, int i, int lines,
                             int depth, local const vec *row, int terms) {
    LINE line[LINES];
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = strip + (i + r) * depth;
    prefetch_plan none = no_prefetch();
    add_terms(acc, line, lines, row, 0, terms, &none, &none);
}
#else
/* to[tile, line] at stride TILE_ROOM = the vector's lanes, as many as there are whole tiles; terms
 * are stored in order. */
static inline void store_tiles(vec term, int depth, local float *to) {
#if TILES == 2 && defined(__clang__)
    typedef float8 loose __attribute__((aligned(4)));
    *(local loose *)to = term.lo;
    *(local loose *)(to + TILE_ROOM(depth)) =
        __builtin_shufflevector(term, term, LINES, LINES + 1, LINES + 2, LINES + 3, LINES + 4,
                                LINES + 5, LINES + 6, LINES + 7);
#else
    float lane[VEC];
    vstore16(term, 0, lane);
    UNROLL_FOR(int t = 0; t < TILES; t++)
        UNROLL_FOR(int r = 0; r < LINES; r++)
            to[t * TILE_ROOM(depth) + r] = lane[t * LINES + r];
#endif
}

/* strip[line / LINES, p, line % LINES] = a[p * lda + line], p below `used`. */
static inline void pack_strip(global const code *a, ulong lda, int lines, int used, int depth,
                              local float *strip) {
    for (int p = 0; p < used; p += PER_DOT, strip += LINES) {
        local float *to = strip;
        for (int i = 0; i < lines; i += TILES * LINES, to += TILES * TILE_ROOM(depth))
            store_tiles(strip_term(a, lda, i, lines, p, used), depth, to);
    }
}

static inline void add_strip(accumulators acc, local const element *strip, int i, int lines,
                             int depth, local const vec *row, int terms) {
    local const element *tile = strip + i / LINES * TILE_ROOM(depth);
    EACH_STEP_OF_K for (int p = 0; OFTEN(p < terms); p++, row += WIDTH) {
        spread term[LINES];
        UNROLL_FOR(int r = 0; r < LINES; r++)
            term[r] = tile[p * LINES + r];
        add_term(acc, term, row, 0);
    }
}
#endif

/* Brings the next strip's part of a row to the cache while the tiles of this one are computed. */
static inline void prefetch_line(global const code *p) {
    for (int i = 0; i < STRIP * (int)sizeof(code); i += PREFETCH_LINE)
        PREFETCH((size_t)p + i, 3);
}

/* Brings the tile after (i, j) to the cache: sums that were parked there, or, of amx.h, what is
 * stored at once, which Intel's CPUs do faster there than past their caches. */
static inline void prefetch_tile(target c, int i, int j) {
    const bool edge = j + COLUMNS >= c.columns;
    global const float *at = c.at + (edge ? i + LINES : i) * c.line + (edge ? 0 : j + COLUMNS);
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            PREFETCH(at + r * c.line + v * VEC, DOT == 2 ? 2 : 3);
}

/* multiply for the transposed factor a[p, line] at stride lda. STRIP lines of it at a time are
 * prepacked as well: read where they lie, every term would touch another page, and columns of a
 * power-of-two stride push each other out of the cache. */
static inline void multiply_transposed(global const code *a, ulong lda, local float *strip,
                                       local const vec *panel, int used, int depth, target c,
                                       bool fresh) {
    const int terms = (used + PER_DOT - 1) / PER_DOT;
    const int tiles = STRIP / LINES * ((c.columns + COLUMNS - 1) / COLUMNS),
              share = (used + tiles - 1) / tiles;
    begin_tiles();
    for (int i = 0, ahead = 0; i < c.lines; i += LINES) {
        if (i % STRIP == 0) {
            pack_strip(a + i, lda, min(STRIP, c.lines - i), used, depth, strip);
            ahead = i + STRIP < c.lines ? 0 : used;
        }
        for (int j = 0; j < c.columns; j += COLUMNS) {
            local const vec *row = panel + j / COLUMNS * depth * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            if (DOT == 2 ? c.once : !c.once)
                prefetch_tile(c, i, j);
            add_strip(acc, (local const element *)strip, i % STRIP, tile.lines, depth, row, terms);
            end_tile(acc, tile);
            for (int end = min(ahead + share, used); ahead < end; ahead++)
                prefetch_line(a + (i / STRIP + 1) * STRIP + ahead * lda);
        }
    }
    end_tiles();
}

/* The weights' gradients are larger than a cache: whole ones go past it, if they lie on lines of 64
 * bytes (but those of amx.h). The lock that ends a work-group makes them visible. */
KERNEL void gemm_wgrad(global const uint *ends, global const code *y, global const code *x,
                       global float *w, moert_gemm_args args, local vec *panel,
                       local float *strip) {
    uint g = args.start + get_group_id(0);
    span part = group_part(ends, g, 0, args.rows, 0, INT_MAX);
    int column = column_block() * args.panels * COLUMNS,
        columns = min(args.panels * COLUMNS, args.k - column);
    int line = get_group_id(1) * args.split, lines = min(args.split, args.n - line);
    if (column < 0 || (part.count == 0 && args.accumulate))
        return;
    w += ((ulong)get_group_id(0) * args.n + line) * args.k + column;
    y += part.first * args.ldy + args.y_column + line;
    x += part.first * args.ldx + column;
    const int terms = (part.count + PER_DOT - 1) / PER_DOT;
    args.depth = clamp((terms + 15) / 16 * 16, 16, args.depth); /* the less room panels take */
    const bool once = part.count <= args.depth * PER_DOT && !args.accumulate &&
                      ((ulong)w | (ulong)args.k * 4) % 64 == 0;
    for (int p = 0; p == 0 || p < part.count;
         p += args.depth * PER_DOT) { /* a group without rows gets zeros */
        int used = min(args.depth * PER_DOT, part.count - p);
        pack_rows((rows_of){x, args.ldx}, p, 0, columns, used, args.depth, panel);
        target c = {w, 0, args.k, lines, columns, once};
        multiply_transposed(y + p * args.ldy, args.ldy, strip, panel, used, args.depth, c,
                            p == 0 && !args.accumulate);
    }
}

/* bias[g,n] = sum_m y[m,n], rows in order. Grid: (blocks of 16 columns, groups). No local
 * memory. */
KERNEL void gemm_bias_grad(global const uint *ends, global const code *y, global float *bias,
                           moert_gemm_args args) {
    uint g = get_group_id(1);
    span part = group_part(ends, g, 0, args.rows, 0, INT_MAX);
    int column = get_group_id(0) * VEC, columns = args.n - column;
    bias += (ulong)g * args.n + column;
    y += part.first * args.ldy + args.y_column + column;
    vec sum = 0.0f;
    if (args.accumulate)
        sum = load_part(bias, columns);
    for (int m = 0; m < part.count; m++)
        sum += load_factor(y + m * args.ldy, columns);
    store_part(sum, bias, columns);
}
#endif
