/*
 * The largest magnitude of x[M,N] in each group of rows or in all rows, and NVFP4's global scales.
 *
 *   amax_blocks    partial[b] = max |x| over block b of 16 rows of a group, after the block's
 *                  rotation if `hadamard`                              grid (row blocks)
 *   amax_groups    amax[g] = the maximum over group g's partials, or over all of them
 *                                                                      grid (groups, or 1)
 *   nvfp4_global   whole[g] = amax[g] / 2688, by `rule`                grid (1)
 *   power_global   whole[g] = amax[g] / 2688, rounded up to a power of two at least 2^-126; 1 for 0
 *                                                                      grid (1)
 *
 * Rows of x lie x_stride elements apart. Maxima compare the bits of magnitudes, so that a NaN wins,
 * and their order does not matter. Required: X_BF16 (0 x is float32, 1 bf16). Local memory on GPUs: 128 bytes. Deterministic.
 */
#ifndef X_BF16
#error "X_BF16 must be defined"
#endif
#include "args/quant.h"
#include "lib/formats.h"

#define HEIGHT MOERT_AMAX_ROWS

KERNEL void amax_blocks(global const uint *ends, global const void *x, global uint *partial,
                        moert_amax_args args) {
    ROW_GROUP;
    const row_block p = find_row_block(ends, args.groups, args.rows, HEIGHT, get_group_id(0));
    uvec largest = 0;
    for (int c = 0; p.rows > 0 && c < args.columns; c += VEC) {
        vec v[HEIGHT];
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            v[r] = r < p.rows ? load_as(x, X_BF16 ? IS_BF16 : IS_F32,
                                        (p.row + r) * args.x_stride + c, args.columns - c)
                              : (vec)0.0f;
        if (args.hadamard && p.rows == HEIGHT)
            rotate_rows(v);
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            largest = max(largest, magnitude_bits(v[r]));
    }
    const uint most = max_uints(largest, row_group);
    if (is_first_item())
        partial[get_group_id(0)] = most;
}

/* The number of row blocks of groups [0, count). */
static inline uint count_blocks(global const uint *ends, uint count, uint rows) {
    uint start = 0, blocks = 0;
    for (uint g = 0; g < count; g++) {
        const uint end = group_end(ends, g, start, rows);
        blocks += (end - start + HEIGHT - 1) / HEIGHT;
        start = end;
    }
    return blocks;
}

KERNEL void amax_groups(global const uint *ends, global const uint *partial, global float *amax,
                        moert_amax_args args) {
    ROW_GROUP;
    const uint g = get_group_id(0);
    const uint first = args.group_scales ? count_blocks(ends, g, args.rows) : 0;
    const uint last = count_blocks(ends, args.group_scales ? g + 1 : args.groups, args.rows);
    uint largest = 0;
    for (uint i = first + get_local_id(0); i < last; i += MOERT_ITEMS)
        largest = max(largest, partial[i]);
    largest = max_uints(largest, row_group);
    if (is_first_item())
        amax[g] = as_float(largest > 0x7F800000u ? QUIET : largest);
}

KERNEL void nvfp4_global(global const float *amax, global float *whole, moert_amax_args args) {
    for (uint g = get_local_id(0); g < args.count; g += MOERT_ITEMS) {
        const float a = args.rule == BRIDGE && amax[g] < 1e-8f ? 1e-8f : amax[g];
        const float scale =
            args.rule == TE && (a == 0.0f || 2688.0f / a == 0.0f) ? 1.0f : a / 2688.0f;
        whole[g] = isnan(scale) ? as_float(QUIET) : scale;
    }
}

KERNEL void power_global(global const float *amax, global float *whole, moert_amax_args args) {
    for (uint g = get_local_id(0); g < args.count; g += MOERT_ITEMS) {
        const uint u = min(as_uint(amax[g]), 0x7F7FFFFFu);
        const uint up = (u & 0x7FFFFFu) > 0x280000u; /* 2688 = 2^11 * (1 + 0x280000 / 2^23) */
        const uint exponent = max((int)(u >> 23) - 11 + (int)up, 1);
        whole[g] = isnan(amax[g]) ? as_float(QUIET) : u == 0 ? 1.0f : as_float(exponent << 23);
    }
}
