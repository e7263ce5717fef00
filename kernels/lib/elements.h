/*
 * Loads and stores of elements smaller than a float, and of elements whose type is known only at
 * run time.
 */
#ifndef MOERT_LIB_ELEMENTS_H
#define MOERT_LIB_ELEMENTS_H

#include "lib/encodings.h"

/*
 * Read and write n elements of a step, as load_part() and store_part() do: contiguous elements
 * (load_bytes, load_shorts), or bytes `stride` apart (load_bytes_apart), a column of a transposed
 * matrix. Lanes beyond n are zero.
 */
#if MOERT_ITEMS == 1
#define WHOLE(type, p)             1
#define LOAD_WHOLE(element, p)     LOAD_VECTOR(global, element, 16, p)
#define STORE_WHOLE(element, x, p) STORE_VECTOR(global, element, 16, x, p)
#elif defined(ALIGNED)
#define WHOLE(type, p)             1
#define LOAD_WHOLE(element, p)     (*(global const element##4 *)(p))
#define STORE_WHOLE(element, x, p) (*(global element##4 *)(p) = (x))
#else
#define WHOLE(type, p)             (((size_t)(p) & (sizeof(type) - 1)) == 0)
#define LOAD_WHOLE(element, p)     (*(global const element##4 *)(p))
#define STORE_WHOLE(element, x, p) (*(global element##4 *)(p) = (x))
#endif
#ifdef ALIGNED
#define ALL_OR_NONE 1
#else
#define ALL_OR_NONE 0
#endif
#define MOVES(name, element)                                                                       \
    static inline uvec load_##name##s(global const element *p, int n) {                            \
        p += part_start();                                                                         \
        n -= part_start();                                                                         \
        if (ALL_OR_NONE)                                                                           \
            return n > 0 ? convert_uvec(LOAD_WHOLE(element, p)) : (uvec)0;                         \
        if (n >= PART && WHOLE(name##_vec, p))                                                     \
            return convert_uvec(LOAD_WHOLE(element, p));                                           \
        element lane[PART];                                                                        \
        for (int i = 0; i < PART; i++)                                                             \
            lane[i] = i < n ? p[i] : 0;                                                            \
        return convert_uvec(vload_part(0, lane));                                                  \
    }                                                                                              \
    static inline void store_##name##s(uvec x, global element *p, int n) {                         \
        p += part_start();                                                                         \
        n -= part_start();                                                                         \
        if (ALL_OR_NONE ? n > 0 : n >= PART && WHOLE(name##_vec, p)) {                             \
            STORE_WHOLE(element, convert_##name##_vec(x), p);                                      \
            return;                                                                                \
        }                                                                                          \
        if (ALL_OR_NONE)                                                                           \
            return;                                                                                \
        element lane[PART];                                                                        \
        vstore_part(convert_##name##_vec(x), 0, lane);                                             \
        for (int i = 0; i < PART; i++)                                                             \
            if (i < n)                                                                             \
                p[i] = lane[i];                                                                    \
    }
MOVES(byte, uchar)
MOVES(short, ushort)

static inline uvec load_bytes_apart(global const uchar *p, ulong stride, int n) {
    p += part_start() * stride;
    n -= part_start();
    uchar lane[PART];
    for (int i = 0; i < PART; i++)
        lane[i] = i < n ? p[i * stride] : 0;
    return convert_uvec(vload_part(0, lane));
}

static inline void store_bytes_apart(uvec x, global uchar *p, ulong stride, int n) {
    p += part_start() * stride;
    n -= part_start();
    uchar lane[PART];
    vstore_part(convert_byte_vec(x), 0, lane);
    for (int i = 0; i < PART; i++)
        if (i < n)
            p[i * stride] = lane[i];
}

/* ---- matrices whose type is known at run time: moert_dtype F32, F16, BF16, E4M3, E5M2 ---- */

enum { IS_F32, IS_F16, IS_BF16, IS_E4M3, IS_E5M2 };

#define DTYPE_F16  16, 10, 15, 0x7C00u, 0x7E00u, 2
#define DTYPE_BF16 16, 7, 127, 0x7F80u, 0x7FC0u, 2
#define DTYPE_E4M3 8, 3, 7, 0x7Eu, 0x7Fu, 1
#define DTYPE_E5M2 8, 2, 15, 0x7Bu, 0x7Fu, 2

/* Loads bf16 elements as load_batch() loads floats. */
static inline void load_bf16_batch(vec x[BATCH], global const ushort *p, int n) {
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        x[i] = decode(load_shorts(p + i * VEC, n - i * VEC), DTYPE_BF16);
}

static inline uvec encode_as(vec x, int type) {
    return type == IS_BF16   ? encode(x, DTYPE_BF16)
           : type == IS_F16  ? encode(x, DTYPE_F16)
           : type == IS_E4M3 ? encode(x, DTYPE_E4M3)
                             : encode(x, DTYPE_E5M2);
}

static inline vec decode_as(uvec code, int type) {
    return type == IS_BF16   ? decode(code, DTYPE_BF16)
           : type == IS_F16  ? decode(code, DTYPE_F16)
           : type == IS_E4M3 ? decode(code, DTYPE_E4M3)
                             : decode(code, DTYPE_E5M2);
}

/* Rounds x to the type. */
static inline vec round_as(vec x, int type) {
    return type == IS_F32 ? x : decode_as(encode_as(x, type), type);
}

/* Reads elements [at, at + n) of a step; lanes beyond them are zero. */
static inline vec load_as(global const void *p, int type, ulong at, int n) {
    if (type == IS_F32)
        return load_part((global const float *)p + at, n);
    if (type >= IS_E4M3)
        return decode_as(load_bytes((global const uchar *)p + at, n), type);
    return decode_as(load_shorts((global const ushort *)p + at, n), type);
}

/* Writes the first n lanes, rounded to the type. */
static inline void store_as(vec x, global void *p, int type, ulong at, int n) {
    if (type == IS_F32)
        store_part(x, (global float *)p + at, n);
    else if (type >= IS_E4M3)
        store_bytes(encode_as(x, type), (global uchar *)p + at, n);
    else
        store_shorts(encode_as(x, type), (global ushort *)p + at, n);
}

#endif
