/*
 * Converts n values from float32 to a smaller dtype (cast_down) and back (cast_up).
 *
 * A row group converts BLOCK values. Required: DTYPE (a dtype, see formats.h), BITS (its width, 8
 * or 16). Grid: (n / BLOCK, rounded up). No local memory. Deterministic.
 */
#if !defined(DTYPE) || !defined(BITS)
#error "DTYPE and BITS must be defined"
#endif
#include "args/quant.h"
#include "lib/formats.h"

#define BLOCK BY_FORM(MOERT_CAST_BLOCK, MOERT_CAST_GPU_BLOCK)

#if BITS == 8
typedef uchar element;
#define load_elements  load_bytes
#define store_elements store_bytes
#else
typedef ushort element;
#define load_elements  load_shorts
#define store_elements store_shorts
#endif

KERNEL void cast_down(global const float *source, global element *target, ulong n) {
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(n, first + BLOCK);
    for (ulong i = first; i < last; i += BATCH * VEC) {
        const int count = (int)(last - i);
        vec part[BATCH];
        load_batch(part, source + i, count);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_elements(encode(part[k], DTYPE), target + i + k * VEC, count - k * VEC);
    }
}

KERNEL void cast_up(global const element *source, global float *target, ulong n) {
    const ulong first = (ulong)get_group_id(0) * BLOCK, last = min(n, first + BLOCK);
    for (ulong i = first; i < last; i += BATCH * VEC) {
        const int count = (int)(last - i);
        uvec bits[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            bits[k] = load_elements(source + i + k * VEC, count - k * VEC);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_part(decode(bits[k], DTYPE), target + i + k * VEC, count - k * VEC);
    }
}
