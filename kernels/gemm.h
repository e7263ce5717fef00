/*
 * What the families of the grouped GEMM share: the tile, and the panels that it reads (picture in gemm.cl).
 *
 * A term is what one step of the chain takes: with BF16 = 0 one number (float), with 1 a pair of bf16 codes that follow
 * each other in the reduction, in 32 bits, the first in the high half. Both products of a pair join the chain by a
 * rounding each, the high half's first: that is how vdpbf16ps works (DOT = 1, on CPUs that have it), and how two fma on
 * the widened halves do. A pair without a second code has -0 in one factor and 0 in the other there: adding their
 * product changes nothing, not even a zero's sign.
 *
 * Deterministic: an element is one chain of fma over the reduction in ascending order, from 0 or from the old value. The
 * chain is parked in the result between two blocks, so its bits do not depend on blocks, split or the tile. Lines
 * past the end repeat the last one and columns past the end hold anything; neither is stored.
 *
 * Required: PANEL (address space of the panels), BF16 (0, 1), DOT (0, 1; 1 needs BF16 and a CPU with AVX-512 BF16),
 * CODED (0, 1: weights are block-scaled matrices; then also what blocks.h requires).
 */
#if !defined(PANEL) || !defined(BF16) || !defined(DOT) || !defined(CODED)
#error "PANEL, BF16, DOT and CODED must be defined"
#endif
#if DOT && !defined(__AVX512F__) /* the driver compiles for less than its CPU has */
#undef DOT
#define DOT 0
#endif

#define LINES   8
#define WIDTH   2 /* vectors in a panel's row */
#define COLUMNS (WIDTH * VEC)

#if BF16
#define PER_TERM 2
typedef ushort code;
typedef uint element;
typedef uint16 spread; /* an element in all lanes */
#define LINE local const uint * /* where elements are read */
#else
#define PER_TERM 1
typedef float code;
typedef float element;
typedef vec spread;
#define LINE global const float *
#endif

/* The result at the work-group's corner, and how much of it there is. */
typedef struct target {
    global float *at;
    global const float *bias; /* of these columns, or null */
    ulong line;
    int lines, columns;
    bool past_cache; /* whole tiles are stored past the cache: nobody reads them soon. Needs multiples of 64 bytes */
} target;

/* The accumulators of a tile are only ever indexed by constants, or they would leave the registers. */
typedef vec accumulators[LINES][WIDTH];

typedef struct span {
    uint first;
    int count;
} span;

/* Part `part` of the rows of group g, in parts of `split` rows. */
static inline span group_part(global const uint *ends, uint g, uint shared, uint rows, uint part, uint split)
{
    uint first = shared > 0 ? 0 : group_start(ends, g);
    uint end = min(ends[shared > 0 ? shared - 1 : g], rows);
    first += part * split;
    return (span){first, first < end ? (int)min(end - first, split) : 0};
}

/* ---- terms ---- */

/* 16 numbers of a factor, or rounded ones of a weight, as floats. */
#if BF16
static inline vec load_factor(global const ushort *p, int n)
{
    if (n >= VEC)
        return as_float16(convert_uint16(vload16(0, p)) << 16);
    ushort lane[VEC];
    for (int i = 0; i < VEC; i++)
        lane[i] = i < n ? p[i] : 0;
    return as_float16(convert_uint16(vload16(0, lane)) << 16);
}

static inline vec rounded(vec x)
{
    const uint16 u = as_uint16(x), up = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    return as_float16((u & 0x7FFFFFFF) > 0x7F800000u ? 0x7FC00000u : up);
}

static inline vec term_of(const vec number[PER_TERM])
{
    return as_float16(as_uint16(number[0]) | as_uint16(number[1]) >> 16);
}

static inline vec add_product(vec sum, spread a, vec b)
{
#if DOT
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else
    sum = fma(as_float16(a & 0xFFFF0000u), as_float16(as_uint16(b) & 0xFFFF0000u), sum);
    return fma(as_float16(a << 16), as_float16(as_uint16(b) << 16), sum);
#endif
}
#else
#define load_factor(p, n) load_part(p, n)
#define rounded(x)        (x)
#define term_of(number)   ((number)[0])

static inline vec add_product(vec sum, spread a, vec b)
{
    return fma(a, b, sum);
}
#endif

/* ---- the weight ---- */

/*
 * One group's matrix [N,K] of a weight: float32, or with CODED a part of a block-scaled matrix, which with `flipped`
 * holds [K,N]. Its rows are then decoded where panels are made, without the copy that dequantize.cl would make.
 */
#if CODED
#define WEIGHT_ARGUMENTS global const uchar *w, global const uchar *scale, global const float *whole, int axis, int flipped
typedef struct matrix {
    blocks as;
    uint row, slot; /* the first of its rows, and their block */
    float whole;
} matrix;

static inline matrix matrix_of(WEIGHT_ARGUMENTS, ulong g, int n, int k)
{
    const int rows = flipped ? k : n, columns = flipped ? n : k;
    const ulong across = (columns + BLOCK - 1) / BLOCK, halves = (columns + 1) / 2;
    const blocks as = {w, scale, ELEMENT_BITS == 4 && axis != COLUMN ? halves : columns,
                       axis == COLUMN ? columns : across, axis, 0};
    return (matrix){as, g * rows, g * ((rows + BLOCK - 1) / BLOCK), whole != 0 ? whole[g] : 1.0f};
}

static inline vec load_weight(matrix w, int row, int column, int n)
{
    vec x = load_values(&w.as, (block_row){w.row + row, w.slot + row / BLOCK, row % BLOCK}, column, n);
    if (SCALE == 1)
        x *= w.whole;
    return n >= VEC ? quiet(x) : first_lanes(quiet(x), n);
}
#else
#define WEIGHT_ARGUMENTS global const float *w, global const uchar *scale, global const float *whole, int axis, int flipped
typedef struct matrix {
    global const float *at;
    ulong stride;
} matrix;

static inline matrix matrix_of(WEIGHT_ARGUMENTS, ulong g, int n, int k)
{
    return (matrix){w + g * n * k, k};
}

static inline vec load_weight(matrix w, int row, int column, int n)
{
    return load_part(w.at + (ulong)row * w.stride + column, n);
}
#endif

static inline vec load_rounded(matrix w, int row, int column, int n)
{
    return rounded(load_weight(w, row, column, n));
}

/* ---- panels ---- */

/* Transposes 16x16 floats: every step turns the 8 bits (row, lane) of an element's place by one. */
static inline void transpose(vec block[VEC])
{
    UNROLL for (int step = 0; step < 4; step++) {
        vec turned[VEC];
        UNROLL for (int i = 0; i < VEC / 2; i++) {
            turned[2 * i].even = block[i].lo;
            turned[2 * i].odd = block[i + VEC / 2].lo;
            turned[2 * i + 1].even = block[i].hi;
            turned[2 * i + 1].odd = block[i + VEC / 2].hi;
        }
        UNROLL for (int i = 0; i < VEC; i++)
            block[i] = turned[i];
    }
}

/* panel[p, c] = w[column + c, first + p], p below `used`, in blocks of 16; columns past the end are zero. */
static inline void pack_transposed(matrix w, int column, int first, int columns, int used, int height, PANEL vec *panel)
{
    for (int c = 0; c < (columns + COLUMNS - 1) / COLUMNS * COLUMNS; c += VEC) {
        PANEL vec *to = panel + c / COLUMNS * height * WIDTH + c / VEC % WIDTH;
        for (int p = 0; p < used; p += VEC) {
            vec block[VEC];
            if (used - p >= VEC && columns - c >= VEC) {
                UNROLL for (int i = 0; i < VEC; i++)
                    block[i] = load_weight(w, column + c + i, first + p, VEC);
            } else {
                vec edge[VEC];
                for (int i = 0; i < VEC; i++)
                    edge[i] = c + i < columns ? load_weight(w, column + c + i, first + p, used - p) : 0.0f;
                UNROLL for (int i = 0; i < VEC; i++)
                    block[i] = edge[i];
            }
            transpose(block);
            UNROLL for (int i = 0; i < VEC; i++)
                block[i] = rounded(block[i]);
            UNROLL for (int i = 0; i < VEC / PER_TERM; i++)
                to[(p / PER_TERM + i) * WIDTH] = term_of(block + i * PER_TERM);
        }
    }
}

/* panel[p, c] = source[first + p, column + c], p below `used`, by `load` from a matrix of a type. */
#define DEFINE_PACK(name, type, load)                                                                                  \
    static inline vec name##_term(type source, int row, int column, int columns, int terms)                            \
    {                                                                                                                  \
        vec number[PER_TERM];                                                                                          \
        UNROLL for (int i = 0; i < PER_TERM; i++)                                                                      \
            number[i] = i < terms ? load(source, row + i, column, columns) : 0.0f;                                     \
        return term_of(number);                                                                                        \
    }                                                                                                                  \
    static inline void name(type source, int first, int column, int columns, int used, int height, PANEL vec *panel)   \
    {                                                                                                                  \
        for (int p = 0; p < used; p += PER_TERM, panel += WIDTH) {                                                     \
            PANEL vec *to = panel;                                                                                     \
            for (int c = 0; c < columns; c += COLUMNS, to += height * WIDTH)                                           \
                UNROLL for (int v = 0; v < WIDTH; v++) {                                                               \
                    const int at = c + v * VEC, left = columns - at;                                                   \
                    to[v] = left > 0 ? name##_term(source, first + p, column + at, left, used - p) : 0.0f;             \
                }                                                                                                      \
        }                                                                                                              \
    }

DEFINE_PACK(pack_straight, matrix, load_rounded)

/* The panels of forward: columns of the result are rows of the weight, terms its columns. */
static inline void pack_forward(matrix w, int flipped, int column, int first, int columns, int used, int height,
                                PANEL vec *panel)
{
#if CODED
    if (flipped) {
        pack_straight(w, first, column, columns, used, height, panel);
        return;
    }
#endif
    pack_transposed(w, column, first, columns, used, height, panel);
}

/* The panels of dgrad: the other way round. */
static inline void pack_dgrad(matrix w, int flipped, int column, int first, int columns, int used, int height,
                              PANEL vec *panel)
{
#if CODED
    if (flipped) {
        pack_transposed(w, column, first, columns, used, height, panel);
        return;
    }
#endif
    pack_straight(w, first, column, columns, used, height, panel);
}

/* ---- tiles ---- */

static inline void begin_tile(accumulators acc, target c, bool fresh)
{
    if (fresh || (c.lines == LINES && c.columns == COLUMNS)) {
        UNROLL for (int r = 0; r < LINES; r++)
            UNROLL for (int v = 0; v < WIDTH; v++)
                acc[r][v] = fresh ? 0.0f : vload16(v, c.at + r * c.line);
        return;
    }
    accumulators old;
    for (int r = 0; r < c.lines; r++)
        for (int v = 0; v * VEC < c.columns; v++)
            old[r][v] = load_part(c.at + r * c.line + v * VEC, c.columns - v * VEC);
    UNROLL for (int r = 0; r < LINES; r++)
        UNROLL for (int v = 0; v < WIDTH; v++)
            acc[r][v] = old[r][v];
}

/* One term of every chain of the tile: a column of the first factor times a row of the panel. */
static inline void add_term(accumulators acc, const spread a[LINES], PANEL const vec *row)
{
    vec b[WIDTH];
    UNROLL for (int v = 0; v < WIDTH; v++)
        b[v] = row[v];
    UNROLL for (int r = 0; r < LINES; r++)
        UNROLL for (int v = 0; v < WIDTH; v++)
            acc[r][v] = add_product(acc[r][v], a[r], b[v]);
}

static inline void store_whole(vec x, int v, global float *p, bool past_cache)
{
#if MOERT_CPU && defined(__clang__)
    if (past_cache) {
        __builtin_nontemporal_store(x, (global vec *)p + v);
        return;
    }
#endif
    vstore16(x, v, p);
}

static inline void end_tile(accumulators acc, target c)
{
    UNROLL for (int v = 0; v < WIDTH; v++)
        if (c.bias != 0 && v * VEC < c.columns) {
            vec bias = load_part(c.bias + v * VEC, c.columns - v * VEC);
            UNROLL for (int r = 0; r < LINES; r++)
                acc[r][v] += bias;
        }
    if (c.lines == LINES && c.columns == COLUMNS) {
        UNROLL for (int r = 0; r < LINES; r++)
            UNROLL for (int v = 0; v < WIDTH; v++)
                store_whole(acc[r][v], v, c.at + r * c.line, c.past_cache);
    } else {
        accumulators edge;
        UNROLL for (int r = 0; r < LINES; r++)
            UNROLL for (int v = 0; v < WIDTH; v++)
                edge[r][v] = acc[r][v];
        for (int r = 0; r < c.lines; r++)
            for (int v = 0; v * VEC < c.columns; v++)
                store_part(edge[r][v], c.at + r * c.line + v * VEC, c.columns - v * VEC);
    }
}

/* The tile of the target that starts at (line, column). */
static inline target tile_of(target c, int line, int column)
{
    return (target){c.at + line * c.line + column, c.bias != 0 ? c.bias + column : 0, c.line,
                    min(LINES, c.lines - line), min(COLUMNS, c.columns - column), c.past_cache};
}

/*
 * Where to read 8 lines of the first factor from. Floats lie ready. Pairs have their first code in the low half in
 * memory: they are turned once for all panels, which costs less than a turn per tile and lane.
 */
#if BF16
static inline void find_lines(global const ushort *a, ulong lda, int lines, int used, int stride, local uint *turned,
                              LINE line[LINES])
{
    for (int r = 0; r < LINES; r++) {
        global const ushort *from = a + min(r, lines - 1) * lda;
        local uint *to = turned + r * stride;
        int p = 0;
        for (; p + 2 * VEC <= used; p += 2 * VEC) {
            const uint16 pairs = (uint16)(as_uint8(vload16(0, from + p)), as_uint8(vload16(1, from + p)));
            vstore16(rotate(pairs, (uint16)16), 0, to + p / 2);
        }
        for (; p < used; p += 2)
            to[p / 2] = (uint)from[p] << 16 | (p + 1 < used ? from[p + 1] : 0x8000u);
    }
    UNROLL for (int r = 0; r < LINES; r++)
        line[r] = turned + r * stride;
}
#else
static inline void find_lines(global const float *a, ulong lda, int lines, int used, int stride, local float *turned,
                              LINE line[LINES])
{
    UNROLL for (int r = 0; r < LINES; r++)
        line[r] = a + min(r, lines - 1) * lda;
}
#endif

/*
 * Carries the chains of all tiles on by `used` numbers; line r of the first factor lies at a + r * lda. `turned` has
 * room for 8 lines of depth + 16 elements.
 */
static inline void multiply(global const code *a, ulong lda, local element *turned, PANEL const vec *panel, int used,
                            int height, int depth, target c, bool fresh)
{
    const int terms = (used + PER_TERM - 1) / PER_TERM;
    for (int i = 0; i < c.lines; i += LINES) {
        LINE line[LINES];
        find_lines(a + i * lda, lda, c.lines - i, used, depth + 16, turned, line);
        for (int j = 0; j < c.columns; j += COLUMNS) {
            PANEL const vec *row = panel + (ulong)(j / COLUMNS) * height * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            for (int p = 0; p < terms; p++, row += WIDTH) {
                spread term[LINES];
                UNROLL for (int r = 0; r < LINES; r++)
                    term[r] = line[r][p];
                add_term(acc, term, row);
            }
            end_tile(acc, tile);
        }
    }
}
