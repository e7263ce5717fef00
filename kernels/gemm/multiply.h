/* Multiplies lines of A by panels of B, tile by tile. panels.h packs the panels. */
#include "gemm/tile.h"

static inline void find_lines(global const value *a, ulong lda, int lines, int used,
                              local element *transposed, LINE line[LINES]) {
#if BF16
    /* an odd number of cache lines, so that the lines use all sets of the cache */
    const int stride = (used + PER_DOT * VEC - 1) / (PER_DOT * VEC) * VEC | MOERT_GEMM_LINE_EXCESS;
    for (int r = 0; r < LINES_READ(lines); r++)
        convert_line(a + min(r, lines - 1) * lda, used, transposed + r * stride);
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = transposed + r * stride;
#else
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = a + min(r, lines - 1) * lda;
#endif
}

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

/* While the tiles of the current lines are computed, prefetches the bf16 values of the next lines,
 * which are converted afterwards. `lines` counts the remaining lines, including the current
 * ones. */
static inline prefetch_plan prefetch_lines(global const value *a, ulong lda, int lines, int used,
                                           int columns, int width, int every) {
    const int rows = clamp(lines - LINES, 0, LINES);
    if (!PREFETCHES_LINES)
        return no_prefetch();
    return prefetch_during(prefetch_rows((size_t)(a + LINES * lda), lda * sizeof(value), rows,
                                         used * sizeof(value), every),
                           LINES, columns, width, (used + PER_DOT - 1) / PER_DOT);
}

/*
 * Adds `used` values of the reduction to the sums of all tiles; line r of A is at a + r * lda.
 * `transposed` has room for the dots of LINES lines of `used` values, with 32 more elements a line.
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
