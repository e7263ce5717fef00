/*
 * The largest magnitude of x[M,N] in each row, in each group of rows or in all rows, and NVFP4's
 * global scales.
 *
 *   amax           amax[g] = max |x| over group g's rows (`group_scales`) or, with g = 0, over all
 *                  rows, after the rotation of each block of 16 rows of a group if `hadamard`.
 *                  amax must be 0 before. A work-group reads a block of 16 rows of a group
 *                                                                      grid (row blocks)
 *   row_amax       amax[r] = max |x| over row r. A work-group reads 16 rows
 *                                                                      grid (rows / 16, rounded up)
 *   nvfp4_global   whole[g] = amax[g] / 2688, by `rule`                grid (1)
 *
 * Rows of x lie x_stride elements apart. Maxima compare the bits of magnitudes, so that a NaN wins,
 * and their order does not matter. Required: X_BF16 (0 x is float32, 1 bf16). Local memory on GPUs:
 * 128 bytes. Deterministic.
 */
#include "args/quant.h"
#include "lib/formats.h"
#include "quant/rows.h"

#define HEIGHT MOERT_AMAX_ROWS

/* Loads a step of HEIGHT rows, of which `rows` exist, from row `row` on. */
static inline void load_rows(vec v[HEIGHT], global const void *x, ulong stride, uint row, uint rows,
                             int column, int n) {
    loaded own[HEIGHT];
    UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
        own[r] = r < rows ? load_x_as(x, (row + r) * stride + column, n) : (loaded)0;
    UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
        v[r] = floats_of(own[r]);
}

static inline uint one_nan(uint bits) {
    return bits > 0x7F800000u ? QUIET : bits;
}

KERNEL void amax(global const uint *ends, global const void *x, volatile global uint *amax,
                 moert_amax_args args) {
    ROW_GROUP;
    const row_block p = find_row_block(ends, args.groups, args.rows, HEIGHT, get_group_id(0));
    uvec largest = 0;
    for (int c = 0; p.rows > 0 && c < args.columns; c += VEC) {
        vec v[HEIGHT];
        load_rows(v, x, args.x_stride, p.row, p.rows, c, args.columns - c);
        if (args.hadamard && p.rows == HEIGHT)
            rotate_rows(v);
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            largest = larger_bits(largest, v[r]);
    }
    const uint most = max_uints(largest, row_group);
    if (is_first_item() && p.rows > 0)
        atomic_max(amax + (args.group_scales ? p.group : 0), one_nan(most));
}

KERNEL void row_amax(global const void *x, global uint *amax, moert_amax_args args) {
    ROW_GROUP;
    const uint first = get_group_id(0) * HEIGHT, rows = min((uint)HEIGHT, args.rows - first);
    uvec largest[HEIGHT];
    UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
        largest[r] = 0;
    for (int c = 0; c < args.columns; c += VEC) {
        vec v[HEIGHT];
        load_rows(v, x, args.x_stride, first, rows, c, args.columns - c);
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            largest[r] = larger_bits(largest[r], v[r]);
    }
    UNROLL_ON_GPU for (uint r = 0; r < HEIGHT; r++) {
        const uint most = max_uints(largest[r], row_group);
        if (is_first_item() && r < rows)
            amax[first + r] = one_nan(most);
    }
}

KERNEL void nvfp4_global(global const float *amax, global float *whole, moert_amax_args args) {
    for (uint g = get_local_id(0); g < args.count; g += MOERT_ITEMS) {
        const float a = args.rule == BRIDGE && amax[g] < 1e-8f ? 1e-8f : amax[g];
        const float scale =
            args.rule == TE && (a == 0.0f || 2688.0f / a == 0.0f) ? 1.0f : a / 2688.0f;
        whole[g] = isnan(scale) ? as_float(QUIET) : scale;
    }
}
