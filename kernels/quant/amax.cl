/*
 * The largest magnitude of x[M,N] over all groups' rows or per group, and the global scales of
 * NVFP4 made from it.
 *
 * amax_blocks: a team makes the partial of one block of 16 rows of a group, after their rotation if
 * `hadamard`. amax_groups: the maximum of each group's partials, or of all. Maxima are taken over
 * the bits, so that NaN wins; the order does not matter. Grids: (row blocks), (groups, or 1 for
 * all), (1). Local memory: the team's. Deterministic.
 */
#include "lib/formats.h"

enum { HEIGHT = 16 };

KERNEL void amax_blocks(global const uint *ends, uint groups, uint rows, int columns,
                        global const float *x, int hadamard, global uint *partial) {
    TEAM;
    const place p = find_place(ends, groups, rows, HEIGHT, get_group_id(0));
    uvec largest = 0;
    for (int c = 0; p.rows > 0 && c < columns; c += VEC) {
        vec v[HEIGHT];
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            v[r] = r < p.rows ? load_part(x + (ulong)(p.row + r) * columns + c, columns - c)
                              : (vec)0.0f;
        if (hadamard && p.rows == HEIGHT)
            rotate_rows(v);
        UNROLL_FOR(uint r = 0; r < HEIGHT; r++)
            largest = max(largest, magnitude_bits(v[r]));
    }
    const uint most = max_uints(largest, team);
    if (is_first_item())
        partial[get_group_id(0)] = most;
}

/* Row blocks of groups [0, count). */
static inline uint count_blocks(global const uint *ends, uint count, uint rows) {
    uint start = 0, blocks = 0;
    for (uint g = 0; g < count; g++) {
        const uint end = group_end(ends, g, start, rows);
        blocks += (end - start + HEIGHT - 1) / HEIGHT;
        start = end;
    }
    return blocks;
}

KERNEL void amax_groups(global const uint *ends, uint groups, uint rows, global const uint *partial,
                        int group_scales, global float *amax) {
    TEAM;
    const uint g = get_group_id(0);
    const uint first = group_scales ? count_blocks(ends, g, rows) : 0;
    const uint last = count_blocks(ends, group_scales ? g + 1 : groups, rows);
    uint largest = 0;
    for (uint i = first + get_local_id(0); i < last; i += MOERT_ITEMS)
        largest = max(largest, partial[i]);
    largest = max_uints(largest, team);
    if (is_first_item())
        amax[g] = as_float(largest > 0x7F800000u ? QUIET : largest);
}

KERNEL void nvfp4_global(global const float *amax, uint count, int rule, global float *whole) {
    for (uint g = get_local_id(0); g < count; g += MOERT_ITEMS) {
        const float a = rule == BRIDGE && amax[g] < 1e-8f ? 1e-8f : amax[g];
        const float scale = rule == TE && (a == 0.0f || 2688.0f / a == 0.0f) ? 1.0f : a / 2688.0f;
        whole[g] = isnan(scale) ? as_float(QUIET) : scale;
    }
}
