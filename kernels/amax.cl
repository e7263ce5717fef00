/*
 * The largest magnitude of x[M,N] over all groups' rows or per group, and the global scales of NVFP4 made from it.
 *
 * amax_blocks: a work-group makes the partial of one block of 16 rows of a group, after their rotation if `hadamard`.
 * amax_groups: the maximum of each group's partials, or of all. Maxima are taken over the bits, so that NaN wins;
 * the order does not matter. Grids: (row blocks), (1). No local memory. Deterministic.
 */
#include "formats.h"

enum { HEIGHT = 16 };

KERNEL void amax_blocks(global const uint *ends, uint groups, uint rows, int columns, global const float *x,
                        int hadamard, global uint *partial)
{
    const place p = find_place(ends, groups, rows, HEIGHT, get_group_id(0));
    uint16 largest = 0;
    for (int c = 0; p.rows > 0 && c < columns; c += VEC) {
        vec v[HEIGHT];
        for (uint r = 0; r < HEIGHT; r++)
            v[r] = r < p.rows ? load_part(x + (ulong)(p.row + r) * columns + c, columns - c) : (vec)0.0f;
        if (hadamard && p.rows == HEIGHT)
            rotate_rows(v);
        for (uint r = 0; r < HEIGHT; r++)
            largest = max(largest, magnitude_bits(v[r]));
    }
    partial[get_group_id(0)] = max_bits(largest);
}

KERNEL void amax_groups(global const uint *ends, uint groups, uint rows, global const uint *partial, int group_scales,
                        global float *amax)
{
    uint start = 0, slot = 0, largest = 0;
    for (uint g = 0; g < groups; g++) {
        const uint end = group_end(ends, g, start, rows), blocks = (end - start + HEIGHT - 1) / HEIGHT;
        for (uint i = 0; i < blocks; i++)
            largest = max(largest, partial[slot++]);
        start = end;
        if (group_scales || g + 1 == groups) {
            amax[group_scales ? g : 0] = as_float(largest > 0x7F800000u ? QUIET : largest);
            largest = 0;
        }
    }
}

KERNEL void nvfp4_global(global const float *amax, uint count, int rule, global float *whole)
{
    for (uint g = 0; g < count; g++) {
        const float a = rule == BRIDGE && amax[g] < 1e-8f ? 1e-8f : amax[g];
        const float scale = rule == TE && (a == 0.0f || 2688.0f / a == 0.0f) ? 1.0f : a / 2688.0f;
        whole[g] = isnan(scale) ? as_float(QUIET) : scale;
    }
}
