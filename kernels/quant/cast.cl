/*
 * n numbers from float32 to a smaller type and back.
 *
 * A row_group takes SHARE.
 * Required: NUMBER (a number type, see formats.h), BITS (8, 16). Grid: (n / SHARE). No local
 * memory. Deterministic.
 */
#if !defined(NUMBER) || !defined(BITS)
#error "NUMBER and BITS must be defined"
#endif
#include "lib/formats.h"

enum { SHARE = MOERT_ITEMS == 1 ? 4096 : 2048 };

#if BITS == 8
typedef uchar code_type;
#define load_codes  load_bytes
#define store_codes store_bytes
#else
typedef ushort code_type;
#define load_codes  load_shorts
#define store_codes store_shorts
#endif

KERNEL void cast_down(global const float *source, global code_type *target, ulong n) {
    const ulong first = (ulong)get_group_id(0) * SHARE, last = min(n, first + SHARE);
    for (ulong i = first; i < last; i += BATCH * VEC) {
        const int count = (int)(last - i);
        vec part[BATCH];
        load_batch(part, source + i, count);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_codes(encode(part[k], NUMBER), target + i + k * VEC, count - k * VEC);
    }
}

KERNEL void cast_up(global const code_type *source, global float *target, ulong n) {
    const ulong first = (ulong)get_group_id(0) * SHARE, last = min(n, first + SHARE);
    for (ulong i = first; i < last; i += BATCH * VEC) {
        const int count = (int)(last - i);
        uvec code[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            code[k] = load_codes(source + i + k * VEC, count - k * VEC);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_part(decode(code[k], NUMBER), target + i + k * VEC, count - k * VEC);
    }
}
