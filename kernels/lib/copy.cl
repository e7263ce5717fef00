/*
 * Buffer operations of src/device:
 *
 *   address_of   *address = the buffer's address in device memory     grid: (1)
 *   clear        to[i] = 0                                            grid: (blocks of
 *                                                                     BLOCK_FLOATS)
 *   copy         to[i] = from[i]                                      grid: the same
 *   copy_rows    to[rows, width] = columns 0 to width - 1 of from,    grid: (rows)
 *                whose rows are `stride` floats apart
 *
 * clear and copy need only the alignment of a float. Each row group processes BLOCK_FLOATS floats.
 * No local memory. Deterministic; an address is valid as long as its buffer does not move.
 */
#define BLOCK_FLOATS MOERT_COPY_FLOATS

KERNEL void address_of(global const char *buffer, global ulong *address) {
    if (is_first_item())
        *address = (ulong)buffer;
}

KERNEL void clear(global float *to, ulong first, ulong n) {
    const ulong begin = get_group_id(0) * (ulong)BLOCK_FLOATS, end = min(n, begin + BLOCK_FLOATS);
    for (ulong i = begin; i < end; i += VEC)
        store_part((vec)0.0f, to + first + i, (int)min((ulong)VEC, end - i));
}

KERNEL void copy(global const float *from, ulong from_first, global float *to, ulong to_first,
                 ulong n) {
    const ulong begin = get_group_id(0) * (ulong)BLOCK_FLOATS, end = min(n, begin + BLOCK_FLOATS);
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
