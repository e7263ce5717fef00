/*
 * Selected by wgrad.h for DOT = 2: strips of A for tile_amx.h.
 *
 *   strip[line, p] = a[p * lda + line] at stride `depth`
 *
 * K values from `used` on, rounded up to whole steps, are -0.
 */
#define STRIP MOERT_GEMM_STRIP

/* Intel's CPUs store faster to cached lines than past the caches. So tiles are never stored past
 * the caches, and memory that is overwritten is prefetched into the second-level cache. */
#define PREFETCHES_SUMS(past_cache) (past_cache)
#define CACHE_OF_SUMS               2

static inline void pack_strip(global const value *a, ulong lda, int lines, int used, int depth,
                              local float *strip) {
    for (int p = 0; p < used; p += STEP * PER_DOT)
        for (int i = 0; i < lines; i += VEC) {
            vec block[VEC];
            UNROLL_FOR(int q = 0; q < STEP; q++)
                block[q] = load_dot_across(a, lda, i, lines, p + q * PER_DOT, used);
            transpose(block);
            UNROLL_FOR(int r = 0; r < VEC; r++)
                STORE_VECTOR(local, float, 16, block[r], strip + (i + r) * depth + p / PER_DOT);
        }
}

static inline void add_strip(accumulators acc, local const element *strip, int i, int lines,
                             int depth, local const vec *row, int dots) {
    LINE line[LINES];
    UNROLL_FOR(int r = 0; r < LINES; r++)
        line[r] = strip + (i + r) * depth;
    prefetch_plan none = no_prefetch();
    add_dots(acc, line, lines, row, 0, dots, &none, &none);
}
