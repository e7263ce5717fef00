/*
 * y[i] = y[i] + x[i] over n floats.
 *
 * Deterministic. A team owns BLOCK consecutive floats. No local memory.
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
