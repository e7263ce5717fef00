/*
 * Included by fake_quantize.cl in the GPU form: rounds the held rows along rows.
 */
#ifdef HAS_WARPS
#include "quant/collect_largest.h"

static inline void round_along(const task *t, const vec held[HELD], int column,
                               local float *row_group) {
    const uint first = first_held_again(),
               block = item_index() / LANES * LANES; /* the first item of this item's block */
    uint most[HELD];
    float factors[PART], scales[PART];
    collect_largest(held, most);
    const uvec kept = KEPT > 2   ? (uvec)(most[0], most[1], most[2], most[3])
                      : KEPT > 1 ? (uvec)(most[0], most[1], most[0], most[1])
                                 : (uvec)most[0];
    const value_scale kept_scale = find_scale(t, kept);
    vstore_part(kept_scale.factor, 0, factors);
    vstore_part(kept_scale.scale, 0, scales);
    UNROLL_FOR(uint r = 0; r < HELD; r++) {
        const uint from = block + r / KEPT * SPREAD;
        const float factor = as_float(value_in(as_uint(factors[r % KEPT]), from)),
                    scale = as_float(value_in(as_uint(scales[r % KEPT]), from));
        store_held(t, (value_scale){(vec)factor, (vec)scale}, &held[r], first + r, column);
    }
}
#else
/* The row group's items call together. */
static inline void round_along(const task *t, const vec held[HELD], int column,
                               local float *row_group) {
    const uint first = first_held_again();
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uvec largest = block_largest(larger_bits(0, held[r]), BLOCK / PART, row_group);
        store_held(t, find_scale(t, largest), &held[r], first + r, column);
    }
}
#endif
