/*
 * What src/device needs of buffers: *address = where one lies in the device's memory; to[n] = 0;
 * to[n] = from[n]; to[rows, width] = from[rows, 0..width) of rows `stride` apart.
 *
 * clear and copy have no alignment but a float's. A row_group takes SHARE floats. No local memory.
 * Deterministic for a buffer that stays. Grids: one work-group; (n / SHARE);
 * (rows).
 */
enum { SHARE = 65536 };

KERNEL void address_of(global const char *buffer, global ulong *address) {
    if (is_first_item())
        *address = (ulong)buffer;
}

KERNEL void clear(global float *to, ulong first, ulong n) {
    const ulong begin = get_group_id(0) * (ulong)SHARE, end = min(n, begin + SHARE);
    for (ulong i = begin; i < end; i += VEC)
        store_part((vec)0.0f, to + first + i, (int)min((ulong)VEC, end - i));
}

KERNEL void copy(global const float *from, ulong from_first, global float *to, ulong to_first,
                 ulong n) {
    const ulong begin = get_group_id(0) * (ulong)SHARE, end = min(n, begin + SHARE);
    for (ulong i = begin; i < end; i += BATCH * VEC) {
        vec part[BATCH];
        load_batch(part, from + from_first + i, (int)(end - i));
        store_batch(part, to + to_first + i, (int)(end - i));
    }
}

KERNEL void copy_rows(global const float *from, ulong stride, global float *to, ulong width) {
    const ulong row = get_group_id(0);
    for (ulong i = 0; i < width; i += VEC) {
        const int n = (int)min((ulong)VEC, width - i);
        store_part(load_part(from + row * stride + i, n), to + row * width + i, n);
    }
}
