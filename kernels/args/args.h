/*
 * Included by C and OpenCL: declares the scalar arguments of kernels once for both sides. The
 * scalars of a family of kernels form one struct, whose fields have no gaps between them:
 *
 *   typedef struct moert_rope_args {
 *       args_u64 tokens;
 *       args_i32 heads, width;
 *   } moert_rope_args;
 *   MOERT_ARGS_LAYOUT(moert_rope_args, width, 12, 16)
 *
 * MOERT_ARGS_LAYOUT fails to compile unless the last field has this offset and the struct this
 * size, in C and in OpenCL. Since there are no gaps, all earlier fields then agree as well.
 */
#ifndef MOERT_ARGS_ARGS_H
#define MOERT_ARGS_ARGS_H

#ifdef __OPENCL_C_VERSION__
typedef ulong args_u64;
typedef uint args_u32;
#else
#include <stdint.h>
typedef uint64_t args_u64;
typedef uint32_t args_u32;
#endif
typedef int args_i32;
typedef float args_f32;

#define MOERT_ARGS_LAYOUT(type, last, offset, size)                                                \
    typedef char                                                                                   \
        type##_layout[__builtin_offsetof(type, last) == (offset) && sizeof(type) == (size) ? 1     \
                                                                                           : -1];

#endif
