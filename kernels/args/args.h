/*
 * Included by C and OpenCL: how the numbers among the arguments of kernels are declared, once for
 * both sides. Those of a family of kernels are one struct, whose fields are the rows of a table:
 *
 *   #define MOERT_ROPE_ARGS(X, S) X(S, ulong, tokens, 0) X(S, int, heads, 8)
 *   MOERT_ARGS_STRUCT(moert_rope_args, MOERT_ROPE_ARGS, 16)
 *
 * Type, name and offset of each field, and the size, do not compile unless they hold on both sides.
 */
#ifndef MOERT_ARGS_ARGS_H
#define MOERT_ARGS_ARGS_H

#ifdef __OPENCL_C_VERSION__
#define MOERT_ARGS_ulong ulong
#define MOERT_ARGS_uint  uint
#else
#include <stdint.h>
#define MOERT_ARGS_ulong uint64_t
#define MOERT_ARGS_uint  uint32_t
#endif
#define MOERT_ARGS_int   int
#define MOERT_ARGS_float float

#define MOERT_ARGS_FIELD(S, type, field, offset) MOERT_ARGS_##type field;
#define MOERT_ARGS_PLACE(S, type, field, offset)                                                   \
    typedef char S##_##field[__builtin_offsetof(S, field) == (offset) ? 1 : -1];
#define MOERT_ARGS_STRUCT(S, TABLE, size)                                                          \
    typedef struct S {                                                                             \
        TABLE(MOERT_ARGS_FIELD, S)                                                                 \
    } S;                                                                                           \
    TABLE(MOERT_ARGS_PLACE, S)                                                                     \
    typedef char S##_size[sizeof(S) == (size) ? 1 : -1];

#endif
