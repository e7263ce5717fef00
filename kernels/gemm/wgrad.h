/*
 * Included after panels.h: `multiply` with a transposed operand a[p, line], for gradients of
 * weights. STRIP lines of A at a time are packed. If A were read in place, every dot would touch
 * another page, and columns at a power-of-two stride would evict each other from the cache.
 *
 * A file of strips, selected below, defines STRIP; pack_strip, which packs at most STRIP lines;
 * add_strip, which adds dots to the tile whose first line is line i of the strip; and whether and
 * where the sums of the next tile are prefetched.
 */
#if DOT == 2
#include "gemm/strips_amx.h"
#else
#include "gemm/strips_vector.h"
#endif

/* Prefetches the next strip's part of a row while the tiles of this strip are computed. */
static inline void prefetch_line(global const value *p) {
    for (int i = 0; i < STRIP * (int)sizeof(value); i += PREFETCH_LINE)
        PREFETCH((size_t)p + i, 3);
}

/* Prefetches the tile after (i, j): its stored sums, or the memory that it overwrites. */
static inline void prefetch_tile(target c, int i, int j) {
    const bool edge = j + COLUMNS >= c.columns;
    const ulong at = (edge ? i + LINES : i) * c.line + (edge ? 0 : j + COLUMNS);
    const size_t first = c.rounded != 0 ? (size_t)(c.rounded + at) : (size_t)(c.at + at);
    const size_t bytes = c.rounded != 0 ? sizeof(ushort) : sizeof(float);
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            PREFETCH(first + (r * c.line + v * VEC) * bytes, CACHE_OF_SUMS);
}

/* `strip` has room for MOERT_GEMM_STRIP lines of `depth` dots. */
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
            if (PREFETCHES_SUMS(c.once))
                prefetch_tile(c, i, j);
            add_strip(acc, (local const element *)strip, i % STRIP, tile.lines, depth, row, dots);
            end_tile(acc, tile);
            for (int end = min(prefetched + per_tile, used); prefetched < end; prefetched++)
                prefetch_line(a + (i / STRIP + 1) * STRIP + prefetched * lda);
        }
    }
    end_tiles();
}
