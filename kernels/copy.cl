/*
 * What src/device needs of buffers: *address = where one lies in the device's memory; to[n] = 0; to[n] = from[n].
 *
 * clear and copy have no alignment but a float's. A team takes SHARE floats. No local memory. Deterministic for a buffer
 * that stays. Grids: one work-group; (n / SHARE).
 */
enum { SHARE = 65536 };

KERNEL void address_of(global const char *buffer, global ulong *address)
{
    if (is_first_item())
        *address = (ulong)buffer;
}

KERNEL void clear(global float *to, ulong first, ulong n)
{
    const ulong begin = get_group_id(0) * (ulong)SHARE, end = min(n, begin + SHARE);
    for (ulong i = begin; i < end; i += VEC)
        store_part((vec)0.0f, to + first + i, (int)min((ulong)VEC, end - i));
}

KERNEL void copy(global const float *from, ulong from_first, global float *to, ulong to_first, ulong n)
{
    const ulong begin = get_group_id(0) * (ulong)SHARE, end = min(n, begin + SHARE);
    for (ulong i = begin; i < end; i += BATCH * VEC) {
        vec part[BATCH];
        load_batch(part, from + from_first + i, (int)(end - i));
        store_batch(part, to + to_first + i, (int)(end - i));
    }
}
