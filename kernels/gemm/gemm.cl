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
 * float32. Row operands have the type `value` (gemm.h). With BF16, weights are rounded when panels
 * are packed.
 *
 * A work-group computes `split` lines of `panels` x COLUMNS columns of one group. It processes the
 * reduction in blocks of `depth` dots (gemm.h) and packs their panels into local memory;
 * prepacked.cl finds panels in global memory instead. With the usual tile, LINES = 8 and WIDTH = 2:
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
 * blocks). Local memory in bytes: panels * depth * WIDTH * 64, depth a multiple of 16; in addition
 * (depth + 16) * LINES * 4 with BF16, else 4; in gemm_wgrad depth * 256 instead of that.
 * Deterministic. Required: BF16, DOT, LINES and WIDTH, as in gemm.h; QUANTIZED, as in panels.h.
 * With QUANTIZED = 1 only gemm_forward and gemm_dgrad exist.
 */
#define PANEL local
#include "args/gemm.h"
#include "gemm/gemm.h"
#include "gemm/panels.h"
#include "gemm/gemm_glu.h"

#if DOT == 2
#define STRIP 64 /* the number of lines that gemm_wgrad packs at a time */
#else
#define TILES (VEC / LINES) /* the number of tiles whose lines fit into one vector */
#define STRIP (64 / (TILES * LINES) * TILES * LINES)
#if TILES == 2 && defined(__clang__)
/* the lanes of a half-vector store beyond a tile; they run into the next dot, stored later */
#define EXCESS (VEC / 2 - LINES)
#else
#define EXCESS 0
#endif
#define TILE_STRIDE(depth)                                                                         \
    (LINES * (depth) + EXCESS) /* in floats; a strip has at most 64 * depth */
#endif

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
/* gemm_forward into v[M,2I], then the GLU into h[M,I] (gemm_glu.h), I = width. v is dense. It is
 * written only if `keep` is set or K has several blocks, and past the caches if `once` is set.
 * A panel holds WIDTH / 2 * 16 columns of h. */
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

/* Rows of an operand. */
typedef struct rows_of {
    global const value *at;
    ulong stride;
} rows_of;

static inline vec load_row(rows_of x, int row, int column, int n) {
    return load_operand(x.at + row * x.stride + column, n);
}

DEFINE_PACK(pack_rows, rows_of, load_row)

/* Loads lines i to i + 15 of A for one dot: the K values from p on, which are rows of `a`. K values
 * from `used` on are -0. */
static inline vec strip_dot(global const value *a, ulong lda, int i, int lines, int p, int used) {
    vec x[PER_DOT];
    UNROLL_FOR(int q = 0; q < PER_DOT; q++)
        x[q] = p + q < used ? load_operand(a + (p + q) * lda + i, lines - i) : -0.0f;
    return dot_of(x);
}

#if DOT == 2
/* strip[line, p] = a[p * lda + line] at stride `depth`, for p below `used`, rounded up to whole
 * steps. */
static inline void pack_strip(global const value *a, ulong lda, int lines, int used, int depth,
                              local float *strip) {
    for (int p = 0; p < used; p += STEP * PER_DOT)
        for (int i = 0; i < lines; i += VEC) {
            vec block[VEC];
            UNROLL_FOR(int q = 0; q < STEP; q++)
                block[q] = strip_dot(a, lda, i, lines, p + q * PER_DOT, used);
            transpose(block);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                STORE_VECTOR(local, float, 16, block[r], strip + (i + r) * depth + p / PER_DOT);
        }
}

/* Adds the strip's dots to the tile whose first line is line i of the strip. */
static inline void add_strip(accumulators acc, local const element *strip, int i, int lines,
                             int depth, local const vec *row, int dots) {
    LINE line[LINES];
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = strip + (i + r) * depth;
    prefetch_plan none = no_prefetch();
    add_dots(acc, line, lines, row, 0, dots, &none, &none);
}
#else
/* Stores one dot of TILES tiles: to[tile, line] = lanes of x, tiles TILE_STRIDE apart. Dots must be
 * stored in ascending order. */
static inline void store_tiles(vec x, int depth, local float *to) {
#if TILES == 2 && defined(__clang__)
    typedef float8 loose __attribute__((aligned(4)));
    *(local loose *)to = x.lo;
    *(local loose *)(to + TILE_STRIDE(depth)) = __builtin_shufflevector(
        x, x, LINES, LINES + 1, LINES + 2, LINES + 3, LINES + 4, LINES + 5, LINES + 6, LINES + 7);
#else
    float lane[VEC];
    vstore16(x, 0, lane);
    UNROLL_FOR(int t = 0; t < TILES; t++)
        UNROLL_FOR(int r = 0; r < LINES; r++)
            to[t * TILE_STRIDE(depth) + r] = lane[t * LINES + r];
#endif
}

/* strip[line / LINES, p, line % LINES] = a[p * lda + line], for p below `used`. */
static inline void pack_strip(global const value *a, ulong lda, int lines, int used, int depth,
                              local float *strip) {
    for (int p = 0; p < used; p += PER_DOT, strip += LINES) {
        local float *to = strip;
        for (int i = 0; i < lines; i += TILES * LINES, to += TILES * TILE_STRIDE(depth))
            store_tiles(strip_dot(a, lda, i, lines, p, used), depth, to);
    }
}

static inline void add_strip(accumulators acc, local const element *strip, int i, int lines,
                             int depth, local const vec *row, int dots) {
    local const element *tile = strip + i / LINES * TILE_STRIDE(depth);
    EACH_STEP_OF_K for (int p = 0; OFTEN(p < dots); p++, row += WIDTH) {
        spread a[LINES];
        UNROLL_FOR(int r = 0; r < LINES; r++)
            a[r] = tile[p * LINES + r];
        add_dot(acc, a, row, 0);
    }
}
#endif

/* Prefetches the next strip's part of a row while the tiles of this strip are computed. */
static inline void prefetch_line(global const value *p) {
    for (int i = 0; i < STRIP * (int)sizeof(value); i += PREFETCH_LINE)
        PREFETCH((size_t)p + i, 3);
}

/* Prefetches the tile after (i, j): its stored sums or, with amx.h, the memory that it overwrites,
 * since Intel's CPUs store faster to cached lines there than past the caches. */
static inline void prefetch_tile(target c, int i, int j) {
    const bool edge = j + COLUMNS >= c.columns;
    const ulong at = (edge ? i + LINES : i) * c.line + (edge ? 0 : j + COLUMNS);
    const size_t first = c.rounded != 0 ? (size_t)(c.rounded + at) : (size_t)(c.at + at);
    const size_t bytes = c.rounded != 0 ? sizeof(ushort) : sizeof(float);
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            PREFETCH(first + (r * c.line + v * VEC) * bytes, DOT == 2 ? 2 : 3);
}

/* `multiply` with a transposed operand a[p, line] at stride lda. Packs STRIP lines of `a` at a
 * time, since in place every dot would touch another page, and columns at a power-of-two stride
 * would evict each other from the cache. */
static inline void multiply_transposed(global const value *a, ulong lda, local float *strip,
                                       local const vec *panel, int used, int depth, target c,
                                       bool fresh) {
    const int dots = (used + PER_DOT - 1) / PER_DOT;
    const int tiles = STRIP / LINES * ((c.columns + COLUMNS - 1) / COLUMNS),
              per_tile = (used + tiles - 1) / tiles;
    begin_tiles();
    for (int i = 0, prefetched = 0; i < c.lines; i += LINES) {
        if (i % STRIP == 0) {
            pack_strip(a + i, lda, min(STRIP, c.lines - i), used, depth, strip);
            prefetched = i + STRIP < c.lines ? 0 : used;
        }
        for (int j = 0; j < c.columns; j += COLUMNS) {
            local const vec *row = panel + j / COLUMNS * depth * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            if (DOT == 2 ? c.once : !c.once)
                prefetch_tile(c, i, j);
            add_strip(acc, (local const element *)strip, i % STRIP, tile.lines, depth, row, dots);
            end_tile(acc, tile);
            for (int end = min(prefetched + per_tile, used); prefetched < end; prefetched++)
                prefetch_line(a + (i / STRIP + 1) * STRIP + prefetched * lda);
        }
    }
    end_tiles();
}

/* The result goes to w. If rounded_w is not null, it goes there, rounded to bf16, and w holds the
 * sums of a group between two blocks of its rows. Weight gradients are larger than a cache. Tiles
 * that are computed at once are stored past the cache if they are aligned to 64 bytes (not with
 * amx.h). The lock at the end of a work-group makes these stores visible. */
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
