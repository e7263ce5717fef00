/*
 * What the families of the grouped GEMM share: the tile (picture in gemm.cl). The panels that it
 * reads are made by panels.h.
 *
 * A term is what one step of the chain takes: one number (float; with BF16 = 1 rounded to bf16) or,
 * with DOT = 1, a pair of bf16 codes that follow each other in the reduction, in 32 bits, the first
 * in the high half. Both products of a pair join the chain by a rounding each, the high half's
 * first: that is how vdpbf16ps works, and how two fma on their numbers do, one after the other. A
 * pair without a second code has -0 in one factor and 0 in the other there: adding their product
 * changes nothing, not even a zero's sign. With DOT = 2 terms are the same pairs, but 16 of them
 * make a step of the chain (amx.h).
 *
 * Deterministic: an element is one chain over the reduction in ascending order, from 0 or from the
 * old value. The chain is parked in the result between two blocks, so its bits do not depend on
 * blocks, split or the tile. Lines past the end repeat the last one, or with DOT = 2 hold anything,
 * as columns past the end do; neither is stored.
 *
 * Required: PANEL (address space of the panels), BF16 (0, 1), DOT (0, 1, 2; 1 and 2 need BF16 and,
 * 1 where __AVX512F__ is defined, a CPU with AVX-512 BF16); the tile: LINES (1 to 16) by WIDTH (1
 * to 4) vectors, whose sums should fit into the registers; with DOT = 2 what amx.h requires. A
 * panel has as many columns as a tile or, with PACKED, that many vectors, which divide WIDTH: a
 * tile then reads several, `height` rows apart.
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
#ifndef PACKED
#define PACKED WIDTH
#endif
#define COLUMNS (WIDTH * VEC) /* of a tile */
#include "gemm/prefetch.h"

#if DOT == 2
#define STEP 16 /* terms */
#else
#define STEP 1
#endif
#if DOT
#define PER_DOT 2
typedef uint element;
typedef uint16 spread; /* an element in all lanes */
#else
#define PER_DOT 1
typedef float element;
typedef vec spread;
#endif
/* With the zeros that panels and lines hold after the end of the reduction. */
#define WHOLE_STEPS(numbers)                                                                       \
    (((numbers) + STEP * PER_DOT - 1) / (STEP * PER_DOT) * (STEP * PER_DOT))
#if BF16
typedef ushort code;
#define LINE local const element * /* where elements are read */
#else
typedef float code;
#define LINE global const float *
#endif

/* The result at the work-group's corner, and how much of it there is. */
typedef struct target {
    global float *at;
    global const float *bias; /* of these columns, or null */
    ulong line;
    int lines, columns;
    bool once; /* nobody reads tiles soon: whole ones are stored past the cache. Needs multiples of
                  64 bytes */
} target;

/* The accumulators of a tile are only ever indexed by constants, or they would leave the
 * registers. */
typedef vec accumulators[LINES][WIDTH];

typedef struct span {
    uint first;
    int count;
} span;

/* Part `part` of the rows of group g, in parts of `split` rows. */
static inline span group_part(global const uint *ends, uint g, uint shared, uint rows, uint part,
                              uint split) {
    uint first = shared > 0 ? 0 : group_start(ends, g);
    uint end = min(ends[shared > 0 ? shared - 1 : g], rows);
    first += part * split;
    return (span){first, first < end ? (int)min(end - first, split) : 0};
}

#define IDLE_LAYERS 1 /* of a grid, its first, as in src/gemm/portable/gemm.c */

/* The block of columns that a work-group makes; negative if it makes none. */
static inline int column_block(void) {
    return (int)get_group_id(2) - IDLE_LAYERS;
}

/* The work-group that this one's thread does next, where a thread takes neighbours: of the next
 * group that has rows, or of the next column block. None if it reads the panels that this one
 * does. */
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

/* ---- terms ---- */

/* 16 numbers of a factor, or rounded ones of a weight, as floats. */
#if BF16
static inline vec load_factor(global const ushort *p, int n) {
    if (n >= VEC)
        return as_float16(convert_uint16(vload16(0, p)) << 16);
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
#define load_factor(p, n) load_part(p, n)
#define rounded(x)        (x)
#endif

#if DOT
static inline vec term_of(const vec number[PER_DOT]) {
    return as_float16(as_uint16(number[0]) | as_uint16(number[1]) >> 16);
}

#if DOT == 1
static inline vec add_product(vec sum, spread a, vec b) {
#ifdef __AVX512F__
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else /* the driver compiles for less than its CPU has */
    sum = fma(as_float16(a & 0xFFFF0000u), as_float16(as_uint16(b) & 0xFFFF0000u), sum);
    return fma(as_float16(a << 16), as_float16(as_uint16(b) << 16), sum);
#endif
}
#endif
#else
#define term_of(number) ((number)[0])

static inline vec add_product(vec sum, spread a, vec b) {
    return fma(a, b, sum);
}
#endif

/* ---- tiles ---- */

static inline void store_whole(vec x, int v, global float *p, bool past_cache) {
#if MOERT_CPU && defined(__clang__)
    if (past_cache) {
        __builtin_nontemporal_store(x, (global vec *)p + v);
        return;
    }
#endif
    store_vec(x, p + v * VEC);
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

/* One term of every chain of the tile: a column of the first factor times a row of the panels,
 * `next` vectors apart. */
static inline void add_term(accumulators acc, const spread a[LINES], PANEL const vec *row,
                            ulong next) {
    vec b[WIDTH];
    UNROLL_FOR(int v = 0; v < WIDTH; v++)
        b[v] = row[v / PACKED * next + v % PACKED];
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            acc[r][v] = add_product(acc[r][v], a[r], b[v]);
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
                store_whole(acc[r][v], v, c.at + r * c.line, c.once);
    } else {
        accumulators edge;
        UNROLL_FOR(int r = 0; r < LINES; r++)
            UNROLL_FOR(int v = 0; v < WIDTH; v++)
                edge[r][v] = acc[r][v];
        for (int r = 0; r < c.lines; r++)
            for (int v = 0; v * VEC < c.columns; v++)
                store_part(edge[r][v], c.at + r * c.line + v * VEC, c.columns - v * VEC);
    }
}
#endif

/* The tile of the target that starts at (line, column). */
static inline target tile_of(target c, int line, int column) {
    return (target){c.at + line * c.line + column, c.bias != 0 ? c.bias + column : 0, c.line,
                    min(LINES, c.lines - line),    min(COLUMNS, c.columns - column),  c.once};
}

/*
 * Where to read a tile's lines of the first factor from. Floats lie ready. Codes are converted once
 * for all panels: widened, or, as pairs, which have their first code in the low half in memory,
 * transposed.
 */
#if DOT
static inline void convert_line(global const ushort *from, int used, local uint *to) {
    int p = 0;
    for (; p + 2 * VEC <= used; p += 2 * VEC) {
        const uint16 pairs =
            (uint16)(as_uint8(vload16(0, from + p)), as_uint8(vload16(1, from + p)));
        vstore16(rotate(pairs, (uint16)16), 0, to + p / 2);
    }
    for (; p < used; p += 2)
        to[p / 2] = (uint)from[p] << 16 | (p + 1 < used ? from[p + 1] : 0x8000u);
    for (; p < WHOLE_STEPS(used); p += 2)
        to[p / 2] = 0;
}
#elif BF16
static inline void convert_line(global const ushort *from, int used, local float *to) {
    for (int p = 0; p < used; p += VEC)
        vstore16(load_factor(from + p, used - p), 0, to + p);
}
#endif

static inline void find_lines(global const code *a, ulong lda, int lines, int used,
                              local element *transposed, LINE line[LINES]) {
#if BF16
    const int stride = (used + PER_DOT * VEC - 1) / (PER_DOT * VEC) * VEC |
                       VEC; /* odd lines of a cache: all its sets */
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
/* Tells the compiler which loop the registers are for. */
#ifdef __clang__
#define OFTEN(x) __builtin_expect((x), 1)
#else
#define OFTEN(x) (x)
#endif

/* The terms of a tile: numbers of the lines times rows of the panels. Takes turns of two prefetches,
 * as often as `coming` says. */
static inline void add_terms(accumulators acc, LINE const line[LINES], int lines,
                             PANEL const vec *row, int height, int terms, prefetch_plan *coming,
                             prefetch_plan *ahead) {
    for (int first = 0; first < terms; first += coming->every) {
        const int end = min(first + coming->every, terms);
        prefetch_some(coming);
        prefetch_some(ahead);
        EACH_STEP_OF_K for (int p = first; OFTEN(p < end); p++, row += PACKED) {
            spread term[LINES];
            UNROLL_FOR(int r = 0; r < LINES; r++)
                term[r] = line[r][p];
            add_term(acc, term, row, (ulong)height * PACKED);
        }
    }
}
#endif

/* With turns at least every 256 terms where codes are to be fetched as well. */
static inline prefetch_plan often(prefetch_plan f) {
    f.every = BF16 ? min(f.every, 256) : f.every;
    return f;
}

/* A prefetch in the turns of lines by columns in tiles that are `width` wide, of so many terms. */
static inline prefetch_plan prefetch_meanwhile(prefetch_plan f, int lines, int columns, int width,
                                               int terms) {
    return in_turns(f, (lines + LINES - 1) / LINES * ((columns + width - 1) / width) *
                           ((terms + f.every - 1) / f.every));
}

/* A prefetch of codes that are converted after these lines, in the turns of their tiles; `lines` are
 * left, with these. None for floats, which lie ready, and for amx.h, whose tiles take no
 * turns. */
static inline prefetch_plan prefetch_lines(global const code *a, ulong lda, int lines, int used,
                                           int columns, int width, int every) {
#if BF16 && DOT != 2
    const int rows = clamp(lines - LINES, 0, LINES);
    return prefetch_meanwhile(prefetch_rows((size_t)(a + LINES * lda), lda * sizeof(code), rows,
                                            used * sizeof(code), every),
                              LINES, columns, width, (used + PER_DOT - 1) / PER_DOT);
#else
    return no_prefetch();
#endif
}

/*
 * Carries the chains of all tiles on by `used` numbers; line r of the first factor lies at a + r *
 * lda. `transposed` has room for LINES lines of `used` numbers' terms and 32 more. `coming`, what is
 * read after them, is fetched meanwhile.
 */
static inline void multiply(global const code *a, ulong lda, local element *transposed,
                            PANEL const vec *panel, int used, int height, target c, bool fresh,
                            prefetch_plan coming) {
    const int terms = (used + PER_DOT - 1) / PER_DOT;
    coming = prefetch_meanwhile(often(coming), c.lines, c.columns, COLUMNS, terms);
    begin_tiles();
    for (int i = 0; i < c.lines; i += LINES) {
        LINE line[LINES];
        find_lines(a + i * lda, lda, c.lines - i, used, transposed, line);
        prefetch_plan ahead =
            prefetch_lines(a + i * lda, lda, c.lines - i, used, c.columns, COLUMNS, coming.every);
        for (int j = 0; j < c.columns; j += COLUMNS) {
            PANEL const vec *row = panel + (ulong)(j / COLUMNS) * height * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            add_terms(acc, line, tile.lines, row, height, terms, &coming, &ahead);
            end_tile(acc, tile);
        }
    }
    end_tiles();
}
