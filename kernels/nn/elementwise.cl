/*
 * y[i] = y[i] + x[i] over n floats.
 *
 * A row group owns BLOCK consecutive floats. No local memory. Deterministic.
 */
#define BLOCK (MOERT_ITEMS == 1 ? 4096ul : 1024ul)

KERNEL void add(global const float *restrict x, global float *restrict y, ulong n) {
    ulong first = get_group_id(0) * BLOCK, end = min(first + BLOCK, n);
    for (ulong i = first; i < end; i += BATCH * VEC) {
        int left = (int)min(BLOCK, end - i);
        vec a[BATCH], b[BATCH];
        load_batch(a, x + i, left);
        load_batch(b, y + i, left);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            b[k] += a[k];
        store_batch(b, y + i, left);
    }
}
