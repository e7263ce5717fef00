/*
 * A tile of a GEMM, for GPUs of any vendor.
 *
 * A work-group of 256 items computes LINES x COLUMNS sums; each item has 4 x 4, 4 x 8 or 8 x 8 of
 * them. The reduction is processed in blocks of DEPTH values. While one block is added, the next is
 * loaded into registers; it is then stored to the other half of the local memory.
 *
 *                     <-  COLUMNS ->
 *                     +------+------+
 *               DEPTH | o    | o    |
 *                     +------+------+
 *           DEPTH
 *         +-------+   +------+------+
 *         |   o   |   | 4x4  | 4x4  |  sums of the item, 4 columns in a float4
 *   LINES +-------+   +------+------+
 *         |   o   |   | 4x4  | 4x4  |
 *         +-------+   +------+------+
 *
 * A quad is 4 neighbouring values. For each K index an item reads one quad in each half of the
 * lines and one in each half of the columns, so that neighbouring items read neighbouring quads.
 * With LINES below 128 the lines are not halved; with LINES = 32 the columns are not halved either.
 *
 * In local memory the index of a quad is exclusive-ored with bits of its index along K
 * (quad_index). An operand whose K values are neighbours in global memory is transposed when it is
 * stored there. Neither these stores nor the reads cause bank conflicts.
 *
 * Deterministic: each element of the result is summed by one chain of fma over the reduction in
 * ascending order, from 0 or from the old value. Beyond the end of K the operands are -0 and 0;
 * their product changes nothing, not even the sign of a zero. Required: BF16 (0, 1: row operands
 * are bf16 values, widened when loaded, and weights are rounded), LINES (32, 64, 128), DEPTH (8,
 * 16, 32; at least 1024 / LINES, so that each item loads a quad).
 */
#if !defined(BF16) || !defined(LINES) || !defined(DEPTH)
#error "BF16, LINES and DEPTH must be defined"
#endif
#if LINES != 32 && LINES != 64 && LINES != 128
#error "LINES must be 32, 64 or 128"
#endif
#if (DEPTH != 8 && DEPTH != 16 && DEPTH != 32) || LINES * DEPTH < 1024
#error "DEPTH must be 8, 16 or 32, and at least 1024 / LINES"
#endif

#define ITEMS      MOERT_GPU_GEMM_ITEMS
#define COLUMNS    MOERT_GPU_GEMM_COLUMNS
#define GPU_KERNEL __attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel

#define LINE_QUADS   (LINES == 128 ? 2 : 1) /* quads of A, and of B, that an item reads */
#define COLUMN_QUADS (LINES == 32 ? 1 : 2)
#define ACROSS       (COLUMNS / 4 / COLUMN_QUADS) /* items along the columns of a tile */
#define DOWN         (LINES / 4 / LINE_QUADS)     /* items along the lines of a tile */

#if BF16
typedef ushort value;
#else
typedef float value;
#endif

/* ---- operands ---- */

/* An operand of a tile: `lines` lines (or columns) with `k` values each along the reduction. */
typedef struct operand {
    global const void *at; /* the first value of the first line */
    ulong stride;
    int lines, k;
    bool along;     /* a line's K values are contiguous; else the values of a K index are */
    bool quantized; /* bf16 values; otherwise floats, which are rounded if BF16 */
    bool whole;     /* quads are aligned, and only the end of K may cut one */
    float padding;  /* the value beyond the end of K */
} operand;

static inline operand operand_of(global const void *at, ulong stride, bool quantized, int lines,
                                 int width, int k, bool along, float padding) {
    const uint bytes = quantized ? 2 : 4;
    const bool aligned = (((size_t)at | stride * bytes) & (4 * bytes - 1)) == 0;
    return (operand){
        at, stride, lines, k, along, quantized, aligned && (along || lines == width), padding};
}

static inline float4 rounded(float4 x) {
#if BF16
    const uint4 u = as_uint4(x), up = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    return as_float4((u & 0x7FFFFFFF) > 0x7F800000u ? (uint4)0x7FC00000u : up);
#else
    return x;
#endif
}

/* Loads four neighbours. */
static inline float4 load_quad(const operand *f, ulong at) {
    if (f->quantized)
        return as_float4(convert_uint4(*(global const ushort4 *)((global const ushort *)f->at + at))
                         << 16);
    return rounded(*(global const float4 *)((global const float *)f->at + at));
}

/* Loads n of four neighbouring values, which need not be aligned. */
static inline float4 load_edge(const operand *f, ulong at, int n) {
    float x[4];
    UNROLL_FOR(int i = 0; i < 4; i++) {
        x[i] = f->padding;
        if (i < n)
            x[i] = f->quantized ? as_float((uint)((global const ushort *)f->at)[at + i] << 16)
                                : ((global const float *)f->at)[at + i];
    }
    return rounded((float4)(x[0], x[1], x[2], x[3]));
}

/* ---- blocks in local memory ---- */

#define QUADS(width) ((width)*DEPTH / 4 / ITEMS) /* quads of a block that an item loads */

/* The index in local memory of quad `quad` of a block's lines or columns at K index p of the
 * block. */
static inline int quad_index(int p, int quad, int width) {
    return p * (width / 4) + (quad ^ (p / 4 * (32 / DEPTH)));
}

/* The first line, and the first K index, of an item's quad i in a block. */
static inline int line_in(const operand *f, int i, int width) {
    const int quad = i * ITEMS + get_local_id(0);
    return f->along ? quad / (DEPTH / 4) : quad % (width / 4) * 4;
}

static inline int k_in(const operand *f, int i, int width) {
    const int quad = i * ITEMS + get_local_id(0);
    return f->along ? quad % (DEPTH / 4) * 4 : quad / (width / 4);
}

static inline void put_quad(const operand *f, int i, int width, float4 x, local float4 *block) {
    const int line = line_in(f, i, width), k = k_in(f, i, width);
    if (!f->along) {
        block[quad_index(k, line / 4, width)] = x;
        return;
    }
    local float *to = (local float *)(block + quad_index(k, line / 4, width)) + line % 4;
    to[0] = x.x;
    to[width] = x.y;
    to[2 * width] = x.z;
    to[3 * width] = x.w;
}

static inline bool is_whole(const operand *f, int p) {
    return f->whole && p + DEPTH <= f->k;
}

/* Loads the block at p of the reduction into registers if it is whole; lines beyond the last line
 * repeat the last line. */
static inline void load_block(const operand *f, int p, int width, float4 to[]) {
    if (is_whole(f, p))
        UNROLL_FOR(int i = 0; i < QUADS(width); i++) {
            const int line = line_in(f, i, width);
            const ulong k = p + k_in(f, i, width);
            to[i] = load_quad(f, f->along ? min(line, f->lines - 1) * f->stride + k
                                          : k * f->stride + line);
        }
}

/* Stores a loaded block to local memory. */
static inline void put_block(const operand *f, int width, const float4 from[],
                             local float4 *block) {
    UNROLL_FOR(int i = 0; i < QUADS(width); i++)
        put_quad(f, i, width, from[i], block);
}

/* Loads a block that is not whole, directly to local memory. */
static inline void load_edges(const operand *f, int p, int width, local float4 *block) {
    ROLLED for (int i = 0; i < QUADS(width); i++) {
        const int line = line_in(f, i, width), k = p + k_in(f, i, width);
        const ulong at = f->along ? line * f->stride + k : k * f->stride + line;
        const bool inside = line < f->lines && k < f->k;
        put_quad(f, i, width,
                 load_edge(f, at,
                           !inside    ? 0
                           : f->along ? f->k - k
                                      : f->lines - line),
                 block);
    }
}

/* ---- sums ---- */

/* An item's sums. Only constants index this array, so that the sums stay in registers. */
typedef float4 sums[4 * LINE_QUADS][COLUMN_QUADS];

/* The first line, and the first column, of an item's quad. */
static inline int line_of(int quad) {
    return (quad * DOWN + (int)get_local_id(0) / ACROSS) * 4;
}

static inline int column_of(int quad) {
    return (quad * ACROSS + (int)get_local_id(0) % ACROSS) * 4;
}

static inline void add_block(sums sum, local const float4 *lines, local const float4 *columns) {
    UNROLL_FOR(int p = 0; p < DEPTH; p++) {
        float4 a[LINE_QUADS], b[COLUMN_QUADS];
        UNROLL_FOR(int i = 0; i < LINE_QUADS; i++)
            a[i] = lines[quad_index(p, line_of(0) / 4, LINES) + i * DOWN];
        UNROLL_FOR(int j = 0; j < COLUMN_QUADS; j++)
            b[j] = columns[quad_index(p, column_of(0) / 4, COLUMNS) + j * ACROSS];
        UNROLL_FOR(int i = 0; i < LINE_QUADS; i++)
            UNROLL_FOR(int j = 0; j < COLUMN_QUADS; j++) {
                sum[4 * i][j] = fma((float4)a[i].x, b[j], sum[4 * i][j]);
                sum[4 * i + 1][j] = fma((float4)a[i].y, b[j], sum[4 * i + 1][j]);
                sum[4 * i + 2][j] = fma((float4)a[i].z, b[j], sum[4 * i + 2][j]);
                sum[4 * i + 3][j] = fma((float4)a[i].w, b[j], sum[4 * i + 3][j]);
            }
    }
}

/* ---- the result ---- */

/* A tile of the result; `at` is its first element. */
typedef struct target {
    global float *at;
    global const float *bias; /* biases of the tile's columns, or null */
    ulong stride;
    int lines, columns;
    bool fresh; /* sums begin with 0, not with old values */
} target;

static inline void begin_sums(sums sum, const target *c) {
    UNROLL_FOR(int r = 0; r < 4 * LINE_QUADS; r++)
        UNROLL_FOR(int j = 0; j < COLUMN_QUADS; j++) {
            const int line = line_of(r / 4) + r % 4, n = c->columns - column_of(j);
            global const float *p = c->at + line * c->stride + column_of(j);
            const bool old = !c->fresh && line < c->lines;
            sum[r][j] = (float4)(old && n > 0 ? p[0] : 0.0f, old && n > 1 ? p[1] : 0.0f,
                                 old && n > 2 ? p[2] : 0.0f, old && n > 3 ? p[3] : 0.0f);
        }
}

static inline void store_quad(float4 x, global float *p, int n, bool aligned) {
    if (n >= 4 && aligned) {
        *(global float4 *)p = x;
        return;
    }
    if (n > 0)
        p[0] = x.x;
    if (n > 1)
        p[1] = x.y;
    if (n > 2)
        p[2] = x.z;
    if (n > 3)
        p[3] = x.w;
}

static inline void end_sums(sums sum, const target *c) {
    const bool aligned = (((size_t)c->at | c->stride * sizeof(float)) & 15) == 0;
    UNROLL_FOR(int j = 0; j < COLUMN_QUADS; j++) {
        const int column = column_of(j), n = c->columns - column;
        global const float *p = c->bias + column;
        float4 bias = 0.0f;
        if (c->bias != 0)
            bias = (float4)(n > 0 ? p[0] : 0.0f, n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f,
                            n > 3 ? p[3] : 0.0f);
        UNROLL_FOR(int r = 0; r < 4 * LINE_QUADS; r++) {
            const int line = line_of(r / 4) + r % 4;
            const float4 x = c->bias != 0 ? sum[r][j] + bias : sum[r][j];
            if (line < c->lines)
                store_quad(x, c->at + line * c->stride + column, n, aligned);
        }
    }
}

/* ---- GEMM ---- */

/* The local memory for two blocks of each operand. The kernel declares it. */
#define BLOCKS local float4 lines[2 * DEPTH * LINES / 4], columns[2 * DEPTH * COLUMNS / 4]

INLINED void multiply(operand a, operand b, target c, local float4 *lines, local float4 *columns) {
    float4 next_a[QUADS(LINES)], next_b[QUADS(COLUMNS)];
    sums sum;
    begin_sums(sum, &c);
    load_block(&a, 0, LINES, next_a);
    load_block(&b, 0, COLUMNS, next_b);
    for (int p = 0, side = 0; p < a.k; p += DEPTH, side ^= 1) {
        local float4 *its_lines = lines + side * (DEPTH * LINES / 4),
                     *its_columns = columns + side * (DEPTH * COLUMNS / 4);
        if (is_whole(&a, p))
            put_block(&a, LINES, next_a, its_lines);
        else
            load_edges(&a, p, LINES, its_lines);
        if (is_whole(&b, p))
            put_block(&b, COLUMNS, next_b, its_columns);
        else
            load_edges(&b, p, COLUMNS, its_columns);
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have stored the block, and read the other half */
        load_block(&a, p + DEPTH, LINES, next_a);
        load_block(&b, p + DEPTH, COLUMNS, next_b);
        add_block(sum, its_lines, its_columns);
    }
    end_sums(sum, &c);
}
