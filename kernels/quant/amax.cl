/*
 * The largest magnitude of x[M,N] in each group of rows or in all rows, and NVFP4's global scales.
 *
 *   amax           amax[g] = max |x| over group g's rows (`group_scales`) or, with g = 0, over all
 *                  rows, after the rotation of each block of 16 rows of a group if `hadamard`.
 *                  amax must be 0 before. A work-group reads a block of 16 rows of a group
 *                                                                      grid (row blocks)
 *   nvfp4_global   whole[g] = amax[g] / 2688, by `rule`                grid (1)
 *
 * x is dense. Maxima compare the bits of magnitudes, so that a NaN wins, and their order does not
 * matter. Required: nothing. Local memory on GPUs: 128 bytes. Deterministic.
 */
#include "args/quant.h"
#include "lib/formats.h"

#define HEIGHT MOERT_AMAX_ROWS

KERNEL void amax(global const uint *ends, global const float *x, volatile global uint *amax,
                 moert_amax_args args) {
    ROW_GROUP;
    const row_block p = find_row_block(ends, args.groups, args.rows, HEIGHT, get_group_id(0));
    uvec largest = 0;
    for (int c = 0; p.rows > 0 && c < args.columns; c += VEC) {
        vec v[HEIGHT];
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            v[r] = r < p.rows
                       ? load_part(x + (ulong)(p.row + r) * args.columns + c, args.columns - c)
                       : (vec)0.0f;
        if (args.hadamard && p.rows == HEIGHT)
            rotate_rows(v);
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            largest = max(largest, magnitude_bits(v[r]));
    }
    const uint most = max_uints(largest, row_group);
    if (is_first_item() && p.rows > 0)
        atomic_max(amax + (args.group_scales ? p.group : 0), most > 0x7F800000u ? QUIET : most);
}

KERNEL void nvfp4_global(global const float *amax, global float *whole, moert_amax_args args) {
    for (uint g = get_local_id(0); g < args.count; g += MOERT_ITEMS) {
        const float a = args.rule == BRIDGE && amax[g] < 1e-8f ? 1e-8f : amax[g];
        const float scale =
            args.rule == TE && (a == 0.0f || 2688.0f / a == 0.0f) ? 1.0f : a / 2688.0f;
        whole[g] = isnan(scale) ? as_float(QUIET) : scale;
    }
}
