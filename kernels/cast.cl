/*
 * n numbers from float32 to a smaller type and back.
 *
 * A work-group takes 4096, 16 at a time.
 * Required: NUMBER (a number type, see formats.h), BITS (8, 16). Grid: (n / 4096). No local memory. Deterministic.
 */
#if !defined(NUMBER) || !defined(BITS)
#error "NUMBER and BITS must be defined"
#endif
#include "formats.h"

enum { SHARE = 4096 };

#if BITS == 8
typedef uchar code_type;
typedef uchar16 code_vec;
#define convert_codes convert_uchar16
#else
typedef ushort code_type;
typedef ushort16 code_vec;
#define convert_codes convert_ushort16
#endif

KERNEL void cast_down(global const float *source, global code_type *target, ulong n)
{
    const ulong first = (ulong)get_group_id(0) * SHARE, last = min(n, first + SHARE);
    for (ulong i = first; i < last; i += VEC) {
        const int count = (int)min((ulong)VEC, last - i);
        const code_vec code = convert_codes(encode(load_part(source + i, count), NUMBER));
        if (count == VEC) {
            vstore16(code, 0, target + i);
            continue;
        }
        code_type lane[VEC];
        vstore16(code, 0, lane);
        for (int k = 0; k < count; k++)
            target[i + k] = lane[k];
    }
}

KERNEL void cast_up(global const code_type *source, global float *target, ulong n)
{
    const ulong first = (ulong)get_group_id(0) * SHARE, last = min(n, first + SHARE);
    for (ulong i = first; i < last; i += VEC) {
        const int count = (int)min((ulong)VEC, last - i);
        if (count == VEC) {
            vstore16(decode(convert_uint16(vload16(0, source + i)), NUMBER), 0, target + i);
            continue;
        }
        code_type lane[VEC];
        for (int k = 0; k < VEC; k++)
            lane[k] = k < count ? source[i + k] : 0;
        store_part(decode(convert_uint16(vload16(0, lane)), NUMBER), target + i, count);
    }
}
