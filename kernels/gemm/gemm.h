/*
 * The tile that all grouped GEMM kernels for CPUs share (picture in gemm.cl). panels.h packs the
 * panels that it reads.
 *
 * A dot is the part of the reduction that one element of a panel holds. It is one value (a float,
 * with BF16 = 1 rounded to bf16) or, if DOT is not 0, a pair of bf16 values that are neighbours in
 * the reduction, the first in the high half of 32 bits. With DOT = 1 both products of a pair join
 * the chain with one rounding each, the product of the high halves first. This is how vdpbf16ps
 * computes, and two successive fma of the widened values give the same bits. A pair without a
 * second value has -0 there in one operand and 0 in the other. Adding their product changes
 * nothing, not even the sign of a zero. With DOT = 2 a step of the chain takes 16 pairs (amx.h).
 *
 * Deterministic: an element is one chain over the reduction in ascending order, from 0 or from the
 * old value. Between two blocks of the reduction the chain is stored in the result, so its bits do
 * not depend on the blocks, the split or the tile. Lines beyond the end repeat the last line or,
 * with DOT = 2, are unspecified, as columns beyond the end are. Neither is stored.
 *
 * Required: PANEL (address space of the panels); BF16 (0, 1); DOT (0, 1, 2; 1 and 2 need BF16, and
 * 1 a CPU with AVX-512 BF16 where __AVX512F__ is defined); the tile: LINES (1 to 16) by WIDTH (1 to
 * 4) vectors, whose sums should fit into the registers; with DOT = 2 the defines of amx.h. A panel
 * is as wide as a tile. If PANEL_WIDTH is defined, a panel has PANEL_WIDTH vectors, a divisor of
 * WIDTH, and a tile reads several panels, which are `height` rows apart.
 */
#if !defined(PANEL) || !defined(BF16) || !defined(DOT) || !defined(LINES) || !defined(WIDTH)
#error "PANEL, BF16, DOT, LINES and WIDTH must be defined"
#endif
#if DOT && !BF16
#error "DOT needs BF16"
#endif
#if DOT != 2 && (LINES < 1 || LINES > 16 || WIDTH < 1 || WIDTH > 4)
#error "LINES must be 1 to 16 and WIDTH 1 to 4"
#endif
#ifndef PANEL_WIDTH
#define PANEL_WIDTH WIDTH
#endif
#define COLUMNS (WIDTH * VEC) /* of a tile */
#include "gemm/prefetch.h"

#if DOT == 2
#define STEP 16 /* in dots */
#else
#define STEP 1
#endif
#if DOT
#define PER_DOT 2
typedef uint element;
typedef uint16 spread; /* one element in all lanes */
#else
#define PER_DOT 1
typedef float element;
typedef vec spread;
#endif
/* k rounded up to whole steps; panels and lines hold zeros from k on */
#define WHOLE_STEPS(k) (((k) + STEP * PER_DOT - 1) / (STEP * PER_DOT) * (STEP * PER_DOT))
#if BF16
typedef ushort value;
#define LINE local const element * /* where a line's elements are read */
#else
typedef float value;
#define LINE global const float *
#endif

/* The part of the result that a work-group computes; `at` is its first element. */
typedef struct target {
    global float *at;
    global const float *bias; /* biases of the target's columns, or null */
    ulong line;
    int lines, columns;
    bool once;              /* whole tiles bypass the cache; addresses are multiples of 64 bytes */
    global ushort *rounded; /* where the sums go as bf16, instead of `at`; or null */
} target;

/* Only constants index the accumulators, so that they stay in registers. */
typedef vec accumulators[LINES][WIDTH];

typedef struct span {
    uint first;
    int count;
} span;

/* Rows of group g that belong to part `part`, where a part has `split` rows. */
static inline span group_part(global const uint *ends, uint g, uint shared, uint rows, uint part,
                              uint split) {
    uint first = shared > 0 ? 0 : group_start(ends, g);
    uint end = min(ends[shared > 0 ? shared - 1 : g], rows);
    first += part * split;
    return (span){first, first < end ? (int)min(end - first, split) : 0};
}

#define IDLE_LAYERS                                                                                \
    1 /* the first layers of a grid compute nothing, as in src/gemm/portable/gemm.c */

/* The block of columns that this work-group computes; negative for an idle layer. */
static inline int column_block(void) {
    return (int)get_group_id(2) - IDLE_LAYERS;
}

/* The work-group that the same thread computes next, if threads take consecutive work-groups: that
 * of the next group with rows, or of the next column block. `any` is false if it reads the same
 * panels as this one or does not exist. */
typedef struct successor {
    uint group;
    int block;
    bool any;
} successor;

static inline successor no_successor(void) {
    return (successor){0, 0, false};
}

static inline successor successor_of(global const uint *ends, uint first, uint shared, uint rows,
                                     uint split) {
    successor next = {get_group_id(1), column_block(), false};
    if (get_group_id(0) + 1 < get_num_groups(0) &&
        group_part(ends, first + next.group, shared, rows, get_group_id(0) + 1, split).count > 0)
        return next;
    do {
        if (++next.group == get_num_groups(1)) {
            next.group = 0;
            next.block++;
        }
        next.any = next.block + IDLE_LAYERS < (int)get_num_groups(2);
    } while (next.any && group_part(ends, first + next.group, shared, rows, 0, split).count == 0);
    return next;
}

/* ---- dots ---- */

/* Loads 16 values of an operand as floats; rounds 16 values of a weight. */
#if BF16
static inline vec load_operand(global const ushort *p, int n) {
    if (n >= VEC)
        return as_float16(convert_uint16(LOAD_VECTOR(global, ushort, 16, p)) << 16);
    ushort lane[VEC];
    for (int i = 0; i < VEC; i++)
        lane[i] = i < n ? p[i] : 0;
    return as_float16(convert_uint16(vload16(0, lane)) << 16);
}

static inline vec rounded(vec x) {
    const uint16 u = as_uint16(x), up = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    return as_float16((u & 0x7FFFFFFF) > 0x7F800000u ? 0x7FC00000u : up);
}
#else
#define load_operand(p, n) load_part(p, n)
#define rounded(x)         (x)
#endif

#if DOT
static inline vec dot_of(const vec x[PER_DOT]) {
    return as_float16(as_uint16(x[0]) | as_uint16(x[1]) >> 16);
}

#if DOT == 1
static inline vec multiply_add(vec sum, spread a, vec b) {
#ifdef __AVX512F__
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else /* the driver compiles for fewer features than its CPU has */
    sum = fma(as_float16(a & 0xFFFF0000u), as_float16(as_uint16(b) & 0xFFFF0000u), sum);
    return fma(as_float16(a << 16), as_float16(as_uint16(b) << 16), sum);
#endif
}
#endif
#else
#define dot_of(x) ((x)[0])

static inline vec multiply_add(vec sum, spread a, vec b) {
    return fma(a, b, sum);
}
#endif

/* ---- tiles ---- */

#if BF16
/* Writes the first n lanes, rounded to bf16. */
static inline void store_bf16(vec x, global ushort *p, int n, bool past_cache) {
    const ushort16 bits = convert_ushort16(as_uint16(rounded(x)) >> 16);
    ushort lane[VEC];
#if MOERT_CPU && defined(__clang__)
    if (past_cache && n >= VEC) {
        __builtin_nontemporal_store(bits, (global ushort16 *)p);
        return;
    }
#endif
    if (n >= VEC) {
        STORE_VECTOR(global, ushort, 16, bits, p);
        return;
    }
    vstore16(bits, 0, lane);
    for (int i = 0; i < n; i++)
        p[i] = lane[i];
}
#else
#define store_bf16(x, p, n, past_cache) /* results of float operands are not rounded */
#endif

static inline void store_whole(vec x, global float *p, bool past_cache) {
#if MOERT_CPU && defined(__clang__)
    if (past_cache) {
        __builtin_nontemporal_store(x, (global vec *)p);
        return;
    }
#endif
    store_vec(x, p);
}

/* Stores a vector of the target, `at` elements after its first. */
static inline void store_sum(vec x, target c, ulong at) {
    if (BF16 && c.rounded != 0)
        store_bf16(x, c.rounded + at, VEC, c.once);
    else
        store_whole(x, c.at + at, c.once);
}

/* store_sum of the first n lanes. */
static inline void store_sum_part(vec x, target c, ulong at, int n) {
    if (BF16 && c.rounded != 0)
        store_bf16(x, c.rounded + at, n, false);
    else
        store_part(x, c.at + at, n);
}

#if DOT != 2
#define begin_tiles()
#define end_tiles()

static inline void begin_tile(accumulators acc, target c, bool fresh) {
    if (fresh || (c.lines == LINES && c.columns == COLUMNS)) {
        UNROLL_FOR(int r = 0; r < LINES; r++)
            UNROLL_FOR(int v = 0; v < WIDTH; v++)
                acc[r][v] = fresh ? 0.0f : vload16(v, c.at + r * c.line);
        return;
    }
    accumulators old;
    for (int r = 0; r < c.lines; r++)
        for (int v = 0; v * VEC < c.columns; v++)
            old[r][v] = load_part(c.at + r * c.line + v * VEC, c.columns - v * VEC);
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            acc[r][v] = old[r][v];
}

/* Adds one dot to every chain of the tile: a column of A times a row of the panels, which are
 * `next` vectors apart. */
static inline void add_dot(accumulators acc, const spread a[LINES], PANEL const vec *row,
                           ulong next) {
    vec b[WIDTH];
    UNROLL_FOR(int v = 0; v < WIDTH; v++)
        b[v] = row[v / PANEL_WIDTH * next + v % PANEL_WIDTH];
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            acc[r][v] = multiply_add(acc[r][v], a[r], b[v]);
}

static inline void end_tile(accumulators acc, target c) {
    UNROLL_FOR(int v = 0; v < WIDTH; v++)
        if (c.bias != 0 && v * VEC < c.columns) {
            vec bias = load_part(c.bias + v * VEC, c.columns - v * VEC);
            UNROLL_FOR(int r = 0; r < LINES; r++)
                acc[r][v] += bias;
        }
    if (c.lines == LINES && c.columns == COLUMNS) {
        UNROLL_FOR(int r = 0; r < LINES; r++)
            UNROLL_FOR(int v = 0; v < WIDTH; v++)
                store_sum(acc[r][v], c, r * c.line + v * VEC);
    } else {
        accumulators edge;
        UNROLL_FOR(int r = 0; r < LINES; r++)
            UNROLL_FOR(int v = 0; v < WIDTH; v++)
                edge[r][v] = acc[r][v];
        for (int r = 0; r < c.lines; r++)
            for (int v = 0; v * VEC < c.columns; v++)
                store_sum_part(edge[r][v], c, r * c.line + v * VEC, c.columns - v * VEC);
    }
}
#endif

/* The tile of the target that begins at (line, column). */
static inline target tile_of(target c, int line, int column) {
    const ulong at = line * c.line + column;
    return (target){c.at + at,
                    c.bias != 0 ? c.bias + column : 0,
                    c.line,
                    min(LINES, c.lines - line),
                    min(COLUMNS, c.columns - column),
                    c.once,
                    c.rounded != 0 ? c.rounded + at : 0};
}

/*
 * The lines of A that a tile reads. Floats are read in place. bf16 values are converted once for
 * all panels: they are widened or, as pairs, their halves are exchanged, since memory has the first
 * value in the low half.
 */
#if DOT
static inline void convert_line(global const ushort *from, int used, local uint *to) {
    int p = 0;
    for (; p + 2 * VEC <= used; p += 2 * VEC) {
        const uint16 pairs = (uint16)(as_uint8(LOAD_VECTOR(global, ushort, 16, from + p)),
                                      as_uint8(LOAD_VECTOR(global, ushort, 16, from + p + VEC)));
        STORE_VECTOR(local, uint, 16, rotate(pairs, (uint16)16), to + p / 2);
    }
    for (; p < used; p += 2)
        to[p / 2] = (uint)from[p] << 16 | (p + 1 < used ? from[p + 1] : 0x8000u);
    for (; p < WHOLE_STEPS(used); p += 2)
        to[p / 2] = 0;
}
#elif BF16
static inline void convert_line(global const ushort *from, int used, local float *to) {
    for (int p = 0; p < used; p += VEC)
        STORE_VECTOR(local, float, 16, load_operand(from + p, used - p), to + p);
}
#endif

static inline void find_lines(global const value *a, ulong lda, int lines, int used,
                              local element *transposed, LINE line[LINES]) {
#if BF16
    const int stride =
        (used + PER_DOT * VEC - 1) / (PER_DOT * VEC) * VEC |
        VEC; /* an odd number of cache lines, so that the lines use all sets of the cache */
    for (int r = 0; r < (DOT == 2 ? min(LINES, lines) : LINES); r++)
        convert_line(a + min(r, lines - 1) * lda, used, transposed + r * stride);
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = transposed + r * stride;
#else
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = a + min(r, lines - 1) * lda;
#endif
}

#if DOT == 2
#include "gemm/amx.h"
#else
/* Tells the compiler for which loop to allocate registers. */
#ifdef __clang__
#define OFTEN(x) __builtin_expect((x), 1)
#else
#define OFTEN(x) (x)
#endif

/* Adds the dots of a tile: elements of the lines times rows of the panels. Issues a part of both
 * prefetches every `next_panels->every` dots. */
static inline void add_dots(accumulators acc, LINE const line[LINES], int lines,
                            PANEL const vec *row, int height, int dots, prefetch_plan *next_panels,
                            prefetch_plan *next_lines) {
    for (int first = 0; first < dots; first += next_panels->every) {
        const int end = min(first + next_panels->every, dots);
        prefetch_some(next_panels);
        prefetch_some(next_lines);
        EACH_STEP_OF_K for (int p = first; OFTEN(p < end); p++, row += PANEL_WIDTH) {
            spread a[LINES];
            UNROLL_FOR(int r = 0; r < LINES; r++)
                a[r] = line[r][p];
            add_dot(acc, a, row, (ulong)height * PANEL_WIDTH);
        }
    }
}
#endif

/* Makes a prefetch advance at least every 256 dots if it must also load bf16 values. */
static inline prefetch_plan often(prefetch_plan p) {
    p.every = BF16 ? min(p.every, 256) : p.every;
    return p;
}

/* Spreads a prefetch over the tiles of lines x columns, `width` columns each, with `dots` dots. */
static inline prefetch_plan prefetch_during(prefetch_plan p, int lines, int columns, int width,
                                            int dots) {
    return in_parts(p, (lines + LINES - 1) / LINES * ((columns + width - 1) / width) *
                           ((dots + p.every - 1) / p.every));
}

/* Prefetches the bf16 values that are converted after these lines, while the tiles of these lines
 * are computed. `lines` counts the remaining lines, including these. No prefetch for floats, which
 * are read in place, and with amx.h, whose tiles do not advance prefetches. */
static inline prefetch_plan prefetch_lines(global const value *a, ulong lda, int lines, int used,
                                           int columns, int width, int every) {
#if BF16 && DOT != 2
    const int rows = clamp(lines - LINES, 0, LINES);
    return prefetch_during(prefetch_rows((size_t)(a + LINES * lda), lda * sizeof(value), rows,
                                         used * sizeof(value), every),
                           LINES, columns, width, (used + PER_DOT - 1) / PER_DOT);
#else
    return no_prefetch();
#endif
}

/*
 * Continues the chains of all tiles by `used` values of the reduction; line r of A is at a + r *
 * lda. `transposed` has room for LINES lines of `used` values, as dots, and 32 more elements each.
 * Also issues `next_panels`, the prefetch of the panels that are read after these.
 */
static inline void multiply(global const value *a, ulong lda, local element *transposed,
                            PANEL const vec *panel, int used, int height, target c, bool fresh,
                            prefetch_plan next_panels) {
    const int dots = (used + PER_DOT - 1) / PER_DOT;
    next_panels = prefetch_during(often(next_panels), c.lines, c.columns, COLUMNS, dots);
    begin_tiles();
    for (int i = 0; i < c.lines; i += LINES) {
        LINE line[LINES];
        find_lines(a + i * lda, lda, c.lines - i, used, transposed, line);
        prefetch_plan next_lines = prefetch_lines(a + i * lda, lda, c.lines - i, used, c.columns,
                                                  COLUMNS, next_panels.every);
        for (int j = 0; j < c.columns; j += COLUMNS) {
            PANEL const vec *row = panel + (ulong)(j / COLUMNS) * height * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            add_dots(acc, line, tile.lines, row, height, dots, &next_panels, &next_lines);
            end_tile(acc, tile);
        }
    }
    end_tiles();
}
