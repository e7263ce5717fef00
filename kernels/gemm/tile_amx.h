/*
 * Selected by tile.h for DOT = 2: a tile of 32 x 32 sums in memory, to which add_steps of add_amx.h
 * or add_amx_portable.h adds.
 *
 * Lines and columns beyond the end are unspecified. Required: LINES = 32, WIDTH = PANEL_WIDTH = 2.
 */
#if LINES != 32 || WIDTH != 2 || PANEL_WIDTH != 2
#error "tiles of AMX have 32 lines, and 2 vectors as panels do"
#endif

#define LINES_READ(lines) min(LINES, lines)
#define PREFETCHES_LINES  0

static inline void begin_tile(accumulators acc, target c, bool fresh) {
    for (int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            acc[r][v] = fresh || r >= c.lines
                            ? 0.0f
                            : load_part(c.at + r * c.line + v * VEC, c.columns - v * VEC);
}

/* Adds `dots` dots to a tile. All lines are equally far apart. Lines from `lines` on may be
 * skipped. */
static inline void add_dots(accumulators acc, LINE const line[LINES], int lines,
                            PANEL const vec *row, int height, int dots, prefetch_plan *next_panels,
                            prefetch_plan *next_lines) {
    add_steps(acc, line[0], lines, (int)(line[1] - line[0]), row, (dots + STEP - 1) / STEP);
}

static inline void end_tile(accumulators acc, target c) {
    for (int v = 0; v < WIDTH && v * VEC < c.columns; v++) {
        const int columns = c.columns - v * VEC;
        const vec bias = c.bias != 0 ? load_part(c.bias + v * VEC, columns) : 0.0f;
        for (int r = 0; r < c.lines; r++) {
            const vec x = c.bias != 0 ? acc[r][v] + bias : acc[r][v];
            store_sum_part(x, c, r * c.line + v * VEC, columns);
        }
    }
}
