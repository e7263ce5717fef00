/*
 * Selected by tile.h for DOT = 0 and 1: a tile whose sums are in vector registers. multiply_add of
 * add_fma.h or add_pairs.h adds a dot to 16 chains.
 *
 * Lines beyond the end repeat the last line. Required: LINES 1 to 16, WIDTH 1 to 4; the sums should
 * fit into the registers.
 */
#if LINES < 1 || LINES > 16 || WIDTH < 1 || WIDTH > 4
#error "LINES must be 1 to 16 and WIDTH 1 to 4"
#endif

#define begin_tiles()
#define end_tiles()
#define LINES_READ(lines) LINES
#define PREFETCHES_LINES  BF16 /* floats are read in place */

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

/* Tells the compiler for which loop to allocate registers. */
#ifdef __clang__
#define OFTEN(x) __builtin_expect((x), 1)
#else
#define OFTEN(x) (x)
#endif

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
