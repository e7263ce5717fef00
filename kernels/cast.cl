/*
 * n numbers from float32 to a smaller type and back.
 *
 * A team takes SHARE.
 * Required: NUMBER (a number type, see formats.h), BITS (8, 16). Grid: (n / SHARE). No local memory. Deterministic.
 */
#if !defined(NUMBER) || !defined(BITS)
#error "NUMBER and BITS must be defined"
#endif
#include "formats.h"

enum { SHARE = MOERT_ITEMS == 1 ? 4096 : 2048 };

#if BITS == 8
typedef uchar code_type;
#else
typedef ushort code_type;
#endif

#if MOERT_ITEMS == 1 && BITS == 8
typedef uchar16 code_vec;
#define convert_codes convert_uchar16
#elif MOERT_ITEMS == 1
typedef ushort16 code_vec;
#define convert_codes convert_ushort16
#elif BITS == 8
typedef uchar4 code_vec;
#define convert_codes convert_uchar4
#else
typedef ushort4 code_vec;
#define convert_codes convert_ushort4
#endif

#if MOERT_ITEMS == 1
#define load_whole(p)     vload16(0, p)
#define store_whole(x, p) vstore16(x, 0, p)
#else /* one access: a part begins at a multiple of its size */
#define load_whole(p)     (*(global const code_vec *)(p))
#define store_whole(x, p) (*(global code_vec *)(p) = (x))
#endif

/* Reads n numbers of a step like load_part. */
static inline uvec load_codes(global const code_type *p, int n)
{
    union {
        code_vec whole;
        code_type lane[PART];
    } code;
    p += part_start();
    n -= part_start();
    if (n >= PART)
        return convert_uvec(load_whole(p));
    for (int i = 0; i < PART; i++)
        code.lane[i] = i < n ? p[i] : 0;
    return convert_uvec(code.whole);
}

static inline void store_codes(uvec x, global code_type *p, int n)
{
    union {
        code_vec whole;
        code_type lane[PART];
    } code;
    p += part_start();
    n -= part_start();
    code.whole = convert_codes(x);
    if (n >= PART) {
        store_whole(code.whole, p);
        return;
    }
    for (int i = 0; i < n; i++)
        p[i] = code.lane[i];
}

KERNEL void cast_down(global const float *source, global code_type *target, ulong n)
{
    const ulong first = (ulong)get_group_id(0) * SHARE, last = min(n, first + SHARE);
    for (ulong i = first; i < last; i += BATCH * VEC) {
        const int count = (int)(last - i);
        vec part[BATCH];
        load_batch(part, source + i, count);
        UNROLL for (int k = 0; k < BATCH; k++)
            store_codes(encode(part[k], NUMBER), target + i + k * VEC, count - k * VEC);
    }
}

KERNEL void cast_up(global const code_type *source, global float *target, ulong n)
{
    const ulong first = (ulong)get_group_id(0) * SHARE, last = min(n, first + SHARE);
    for (ulong i = first; i < last; i += BATCH * VEC) {
        const int count = (int)(last - i);
        uvec code[BATCH];
        UNROLL for (int k = 0; k < BATCH; k++)
            code[k] = load_codes(source + i + k * VEC, count - k * VEC);
        UNROLL for (int k = 0; k < BATCH; k++)
            store_part(decode(code[k], NUMBER), target + i + k * VEC, count - k * VEC);
    }
}
