/*
 * Included by along_gpu.h and fp8_rows.h after held.h, on GPUs whose row groups are warps: the
 * largest magnitudes of blocks of the held rows.
 *
 * LANES items share a block of a row. Instead of computing the scales of all held rows, each of
 * them computes those of KEPT rows, whose largest magnitudes it collects, and the items exchange
 * the results. If there are more items than rows, SPREAD items compute the scale of the same row.
 */
#define LANES  (BLOCK / PART)
#define KEPT   (HELD > LANES ? HELD / LANES : 1)
#define SPREAD (LANES > HELD ? LANES / HELD : 1)

/* most[i] = the largest magnitude bits in this item's block, of row item % LANES / SPREAD * KEPT +
 * i, for i below KEPT. At first, most[r] has the largest bits of row r in this item. */
static inline void exchange_largest(uint most[HELD]) {
    int rows = HELD;
    UNROLL_FOR(int distance = LANES / 2; distance > 0; distance /= 2) {
        const bool halves = rows > 1, upper = (item_index() & distance) != 0;
        const int next = halves ? rows / 2 : 1;
        UNROLL_FOR(int i = 0; i < HELD / 2; i++)
            if (i < next) {
                const uint low = most[i], high = halves ? most[i + next] : low;
                const uint other = as_uint(exchanged(as_float(upper ? low : high), distance));
                most[i] = max(upper ? high : low, other);
            }
        rows = next;
    }
}

/* The same, from the held rows. */
static inline void collect_largest(const vec held[HELD], uint most[HELD]) {
    UNROLL_FOR(uint r = 0; r < HELD; r++) {
        const uvec bits = larger_bits(0, held[r]);
        const uint2 pairs = max(bits.lo, bits.hi);
        most[r] = max(pairs.x, pairs.y);
    }
    exchange_largest(most);
}
