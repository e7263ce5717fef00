/*
 * Included by fake_quantize.cl for GPUs whose row groups are warps: rounds the held rows along
 * rows.
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
static inline void collect_largest(uint most[HELD]) {
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

static inline void round_along(const task *t, const vec held[HELD], int column,
                               local float *row_group) {
    const uint block = item_index() / LANES * LANES; /* the first item of this item's block */
    uint most[HELD];
    float factors[PART], scales[PART];
    UNROLL_FOR(uint r = 0; r < HELD; r++) {
        const uvec bits = larger_bits(0, held[r]);
        const uint2 pairs = max(bits.lo, bits.hi);
        most[r] = max(pairs.x, pairs.y);
    }
    collect_largest(most);
    const uvec kept = KEPT > 2   ? (uvec)(most[0], most[1], most[2], most[3])
                      : KEPT > 1 ? (uvec)(most[0], most[1], most[0], most[1])
                                 : (uvec)most[0];
    const value_scale kept_scale = find_scale(t, kept);
    vstore_part(kept_scale.factor, 0, factors);
    vstore_part(kept_scale.scale, 0, scales);
    UNROLL_FOR(uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r, from = block + r / KEPT * SPREAD;
        const float factor = as_float(value_in(as_uint(factors[r % KEPT]), from)),
                    scale = as_float(value_in(as_uint(scales[r % KEPT]), from));
        store_along(t, (value_scale){(vec)factor, (vec)scale}, &held[r], is_plain((vec)scale),
                    t->p.row + line, column, line < t->p.rows ? t->p.last - column : 0);
    }
}
