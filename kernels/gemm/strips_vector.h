/*
 * Selected by wgrad.h for DOT = 0 and 1: strips of A for tile_vector.h.
 *
 *   strip[line / LINES, p, line % LINES] = a[p * lda + line]
 */
#define TILES (VEC / LINES) /* the number of tiles whose lines fit into one vector */
#define STRIP (MOERT_GEMM_STRIP / (TILES * LINES) * TILES * LINES)
#if TILES == 2 && defined(__clang__)
/* lanes that a store of half a vector writes past a tile's dot; the store of the next dot
 * overwrites them */
#define EXCESS (VEC / 2 - LINES)
#else
#define EXCESS 0
#endif
/* The distance of two tiles in floats. A strip has at most MOERT_GEMM_STRIP * depth floats. */
#define TILE_STRIDE(depth) (LINES * (depth) + EXCESS)

/* The next tile's sums are prefetched into the first-level cache unless they are stored past it. */
#define PREFETCHES_SUMS(past_cache) (!(past_cache))
#define CACHE_OF_SUMS               3

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

static inline void pack_strip(global const value *a, ulong lda, int lines, int used, int depth,
                              local float *strip) {
    for (int p = 0; p < used; p += PER_DOT, strip += LINES) {
        local float *to = strip;
        for (int i = 0; i < lines; i += TILES * LINES, to += TILES * TILE_STRIDE(depth))
            store_tiles(load_dot_across(a, lda, i, lines, p, used), depth, to);
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
