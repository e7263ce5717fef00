/*
 * Grouped GEMM in its three orientations, float32. Rows [ends[g-1], ends[g]) of x and y belong to group g.
 *
 *   kernel         result                              lines   columns   reduction
 *   gemm_forward   y[m,n] = sum_k x[m,k] w[g,n,k] + b  m       n         k
 *   gemm_dgrad     x[m,k] = sum_n y[m,n] w[g,n,k]      m       k         n
 *   gemm_wgrad     w[g,n,k] = sum_m y[m,n] x[m,k]      n       k         m
 *
 * Shapes: x[M,K] at stride ldx, y[M,N] at stride ldy from column y_column, w[G,N,K], b[G,N]. A shared weight has G = 1
 * and serves the rows below ends[shared - 1] as one group. Otherwise w begins with group `start`, the first of the grid.
 *
 * A work-group makes `split` lines of `panels` x 32 columns of one group. It walks the reduction in blocks of `depth`:
 *
 *                 <- panels x 32 ->
 *                 +---+---+---+            the second factor, brought to local memory as panels of 32 columns
 *           depth |   |   |   |            (forward transposes it by 16x16 blocks)
 *                 +---+---+---+
 *         depth
 *       +------+  +---+---+---+
 *     8 | line |->| 8 x 32    |            8 x 2 accumulators of 16 lanes; the first factor is read where it lies
 *       +------+  +---+---+---+            (wgrad: from a copy), one scalar spread over the lanes
 * split |      |  |   |   |   |
 *       +------+  +---+---+---+
 *
 * Deterministic: an element is one chain of fma over the reduction in ascending order, from 0 or from the old value. The
 * chain is parked in the result between two blocks, so its bits do not depend on depth, panels, split or the tile. Lines
 * past the end repeat the last one and columns past the end hold anything; neither is stored.
 *
 * Grid: (line splits, groups, column blocks), so that a run of work-groups meets large and empty groups alike. Local
 * memory: panels * depth * 128 bytes, depth a multiple of 16; gemm_wgrad another depth * 256.
 */
#define LINES   8
#define WIDTH   2 /* vectors in a panel's row */
#define COLUMNS (WIDTH * VEC)
#define STRIP   64 /* lines that gemm_wgrad packs at a time */

/* The result at the work-group's corner, and how much of it there is. */
typedef struct target {
    global float *at;
    global const float *bias; /* of these columns, or null */
    ulong line;
    int lines, columns;
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

/* panel[p, c] = source[c * stride + p], p below `used`. */
static inline void pack_transposed(global const float *source, ulong stride, int columns, int used, int depth,
                                   local vec *panel)
{
    for (int c = 0; c < columns; c += VEC) {
        local vec *to = panel + c / COLUMNS * depth * WIDTH + c / VEC % WIDTH;
        for (int p = 0; p < used; p += VEC) {
            vec block[VEC];
            if (used - p >= VEC) {
                UNROLL for (int i = 0; i < VEC; i++)
                    block[i] = vload16(0, source + (ulong)min(c + i, columns - 1) * stride + p);
            } else {
                vec edge[VEC];
                for (int i = 0; i < VEC; i++)
                    edge[i] = load_part(source + (ulong)min(c + i, columns - 1) * stride + p, used - p);
                UNROLL for (int i = 0; i < VEC; i++)
                    block[i] = edge[i];
            }
            transpose(block);
            UNROLL for (int i = 0; i < VEC; i++)
                to[(p + i) * WIDTH] = block[i];
        }
    }
}

/* panel[p, c] = source[p * stride + c], p below `used`. */
static inline void pack(global const float *source, ulong stride, int columns, int used, int depth, local vec *panel)
{
    const int whole = columns - columns % COLUMNS;
    for (int p = 0; p < used; p++, source += stride, panel += WIDTH) {
        local vec *to = panel;
        for (int c = 0; c < whole; c += COLUMNS, to += depth * WIDTH)
            UNROLL for (int v = 0; v < WIDTH; v++)
                to[v] = vload16(v, source + c);
        for (int c = whole, v = 0; c < columns; c += VEC, v++)
            to[v] = load_part(source + c, columns - c);
    }
}

static inline void begin_tile(accumulators acc, target c, bool fresh)
{
    accumulators old;
    for (int r = 0; !fresh && r < c.lines; r++)
        for (int v = 0; v * VEC < c.columns; v++)
            old[r][v] = load_part(c.at + r * c.line + v * VEC, c.columns - v * VEC);
    UNROLL for (int r = 0; r < LINES; r++)
        UNROLL for (int v = 0; v < WIDTH; v++)
            acc[r][v] = fresh ? 0.0f : old[r][v];
}

/* One term of every chain of the tile: a column of the first factor times a row of the panel. */
static inline void add_term(accumulators acc, const float element[LINES], local const vec *row)
{
    vec b[WIDTH];
    UNROLL for (int v = 0; v < WIDTH; v++)
        b[v] = row[v];
    UNROLL for (int r = 0; r < LINES; r++)
        UNROLL for (int v = 0; v < WIDTH; v++)
            acc[r][v] = fma((vec)element[r], b[v], acc[r][v]);
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
                vstore16(acc[r][v], v, c.at + r * c.line);
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
                    min(LINES, c.lines - line), min(COLUMNS, c.columns - column)};
}

/* Carries the chains of all tiles on by `used` terms; line r of the first factor lies at a + r * lda. */
static inline void multiply(global const float *a, ulong lda, local const vec *panel, int used, int depth, target c,
                            bool fresh)
{
    for (int i = 0; i < c.lines; i += LINES) {
        global const float *line[LINES];
        UNROLL for (int r = 0; r < LINES; r++)
            line[r] = a + min(i + r, c.lines - 1) * lda;
        for (int j = 0; j < c.columns; j += COLUMNS) {
            local const vec *row = panel + j / COLUMNS * depth * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            for (int p = 0; p < used; p++, row += WIDTH) {
                float element[LINES];
                UNROLL for (int r = 0; r < LINES; r++)
                    element[r] = line[r][p];
                add_term(acc, element, row);
            }
            end_tile(acc, tile);
        }
    }
}

/* The same for the transposed factor a[p, line] at stride lda. STRIP lines of it at a time are packed as well: read
 * where they lie, every term would touch another page, and columns of a power-of-two stride push each other out of the
 * cache. */
static inline void multiply_transposed(global const float *a, ulong lda, local vec *strip, local const vec *panel,
                                       int used, int depth, target c, bool fresh)
{
    for (int i = 0; i < c.lines; i += LINES) {
        int at = i % STRIP;
        local const float *line = (local const float *)(strip + at / COLUMNS * depth * WIDTH) + at % COLUMNS;
        if (at == 0)
            pack(a + i, lda, min(STRIP, c.lines - i), used, depth, strip);
        for (int j = 0; j < c.columns; j += COLUMNS) {
            local const vec *row = panel + j / COLUMNS * depth * WIDTH;
            target tile = tile_of(c, i, j);
            accumulators acc;
            begin_tile(acc, tile, fresh);
            for (int p = 0; p < used; p++, row += WIDTH) {
                float element[LINES];
                UNROLL for (int r = 0; r < LINES; r++)
                    element[r] = line[p * COLUMNS + r];
                add_term(acc, element, row);
            }
            end_tile(acc, tile);
        }
    }
}

KERNEL void gemm_forward(global const uint *ends, uint start, uint shared, uint rows, global const float *x, ulong ldx,
                         global const float *w, global const float *bias, global float *y, ulong ldy, ulong y_column,
                         int n, int k, int panels, int depth, uint split, local vec *panel)
{
    uint g = start + get_group_id(1);
    span part = group_part(ends, g, shared, rows, get_group_id(0), split);
    int column = get_group_id(2) * panels * COLUMNS, columns = min(panels * COLUMNS, n - column);
    if (part.count == 0)
        return;
    w += ((ulong)get_group_id(1) * n + column) * k;
    x += part.first * ldx;
    y += part.first * ldy + y_column + column;
    for (int p = 0; p < k; p += depth) {
        int used = min(depth, k - p);
        bool last = p + used == k && bias != 0;
        pack_transposed(w + p, k, columns, used, depth, panel);
        target c = {y, last ? bias + (ulong)g * n + column : 0, ldy, part.count, columns};
        multiply(x + p, ldx, panel, used, depth, c, p == 0);
    }
}

KERNEL void gemm_dgrad(global const uint *ends, uint start, uint shared, uint rows, global const float *y, ulong ldy,
                       ulong y_column, global const float *w, global float *x, ulong ldx, int n, int k, int accumulate,
                       int panels, int depth, uint split, local vec *panel)
{
    uint g = start + get_group_id(1);
    span part = group_part(ends, g, shared, rows, get_group_id(0), split);
    int column = get_group_id(2) * panels * COLUMNS, columns = min(panels * COLUMNS, k - column);
    if (part.count == 0)
        return;
    w += (ulong)get_group_id(1) * n * k + column;
    y += part.first * ldy + y_column;
    x += part.first * ldx + column;
    for (int p = 0; p < n; p += depth) {
        int used = min(depth, n - p);
        pack(w + (ulong)p * k, k, columns, used, depth, panel);
        target c = {x, 0, ldx, part.count, columns};
        multiply(y + p, ldy, panel, used, depth, c, p == 0 && !accumulate);
    }
}

KERNEL void gemm_wgrad(global const uint *ends, uint start, uint rows, global const float *y, ulong ldy, ulong y_column,
                       global const float *x, ulong ldx, global float *w, int n, int k, int accumulate, int panels,
                       int depth, int split, local vec *panel, local vec *strip)
{
    uint g = start + get_group_id(1);
    span part = group_part(ends, g, 0, rows, 0, INT_MAX);
    int column = get_group_id(2) * panels * COLUMNS, columns = min(panels * COLUMNS, k - column);
    int line = get_group_id(0) * split, lines = min(split, n - line);
    if (part.count == 0 && accumulate)
        return;
    w += ((ulong)get_group_id(1) * n + line) * k + column;
    y += part.first * ldy + y_column + line;
    x += part.first * ldx + column;
    for (int p = 0; p == 0 || p < part.count; p += depth) { /* a group without rows gets zeros */
        int used = min(depth, part.count - p);
        pack(x + p * ldx, ldx, columns, used, depth, panel);
        target c = {w, 0, k, lines, columns};
        multiply_transposed(y + p * ldy, ldy, strip, panel, used, depth, c, p == 0 && !accumulate);
    }
}

/* bias[g,n] = sum_m y[m,n], rows in order. Grid: (blocks of 16 columns, groups). No local memory. */
KERNEL void gemm_bias_grad(global const uint *ends, uint rows, global const float *y, ulong ldy, ulong y_column,
                           global float *bias, int n, int accumulate)
{
    uint g = get_group_id(1);
    span part = group_part(ends, g, 0, rows, 0, INT_MAX);
    int column = get_group_id(0) * VEC, columns = n - column;
    bias += (ulong)g * n + column;
    y += part.first * ldy + y_column + column;
    vec sum = 0.0f;
    if (accumulate)
        sum = load_part(bias, columns);
    for (int m = 0; m < part.count; m++)
        sum += load_part(y + m * ldy, columns);
    store_part(sum, bias, columns);
}
