/*
 * Elementwise helpers over n floats.
 *
 *   add    y[i] = y[i] + x[i]
 *   scale  y[i] = y[i] * factor
 *
 * Deterministic. A work-item owns BLOCK consecutive floats. No local memory.
 */
#define BLOCK 4096

KERNEL void add(global const float *restrict x, global float *restrict y, ulong n)
{
    ulong first = get_group_id(0) * (ulong)BLOCK, end = min(first + BLOCK, n);
    for (ulong i = first; i < end; i += VEC) {
        int part = (int)min((ulong)VEC, end - i);
        store_part(load_part(y + i, part) + load_part(x + i, part), y + i, part);
    }
}

KERNEL void scale(global float *restrict y, ulong n, float factor)
{
    ulong first = get_group_id(0) * (ulong)BLOCK, end = min(first + BLOCK, n);
    for (ulong i = first; i < end; i += VEC) {
        int part = (int)min((ulong)VEC, end - i);
        store_part(load_part(y + i, part) * (vec)(factor), y + i, part);
    }
}
