/*
 * Launches of kernels.
 *
 * A family is a file kernels/<family>.cl. A program is a family with its -D options, written as one
 * text such as "attention/attention -DHEAD_DIM=64". A program is built on first use and kept. Every
 * program begins with kernels/lib/common.h, which defines the CPU form and the GPU form. A launch
 * gives the number of work-groups; the kernel declares the size of a work-group. Families in a
 * directory nvidia/ compile only with NVIDIA's compiler. Families with -DARENA= need sm_90a
 * (device/nvidia/ptx.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/device.h"

/* The program of a family. `sizes` is the bitwise OR of all row sizes and strides in floats: in the
 * GPU form, if all are multiples of 4, the program is built with ALIGNED (kernels/lib/common.h). */
#define MOERT_PROGRAM(device, family, sizes)                                                       \
    (moert_by_form((device), 1, (sizes) % 4) == 0 ? family " -DALIGNED" : family)

typedef struct moert_argument {
    enum {
        MOERT_ARGUMENT_BUFFER,
        MOERT_ARGUMENT_VALUE,
        MOERT_ARGUMENT_LOCAL,
        MOERT_ARGUMENT_STRUCT
    } kind;
    const moert_buffer *buffer; /* NULL passes a null pointer */
    size_t bytes;               /* size of the value, or of local memory */
    union {
        int32_t i32;
        uint32_t u32;
        uint64_t u64;
        float f32;
        const void *data; /* pointer to a struct, which the launch reads */
    } value;
} moert_argument;

static inline moert_argument moert_argument_buffer(const moert_buffer *buffer) {
    return (moert_argument){.kind = MOERT_ARGUMENT_BUFFER, .buffer = buffer};
}
static inline moert_argument moert_argument_int(int32_t value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 4, .value.i32 = value};
}
static inline moert_argument moert_argument_uint(uint32_t value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 4, .value.u32 = value};
}
static inline moert_argument moert_argument_ulong(uint64_t value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 8, .value.u64 = value};
}
static inline moert_argument moert_argument_float(float value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 4, .value.f32 = value};
}
/* An argument of local memory per work-group. The launch checks the argument's size against the
 * device's limit, since PoCL would abort the process above that limit. */
static inline moert_argument moert_argument_local(size_t bytes) {
    return (moert_argument){.kind = MOERT_ARGUMENT_LOCAL, .bytes = bytes};
}

static inline moert_argument moert_argument_struct(const void *data, size_t bytes) {
    return (moert_argument){.kind = MOERT_ARGUMENT_STRUCT, .bytes = bytes, .value.data = data};
}

/* A kernel argument by its C type: a buffer, an int, an unsigned, a float, or a size_t as ulong. */
/* clang-format off */
#define MOERT_ARG(x)                                                                               \
    _Generic((x),                                                                                  \
        moert_buffer *: moert_argument_buffer, const moert_buffer *: moert_argument_buffer,        \
        int: moert_argument_int, unsigned: moert_argument_uint, size_t: moert_argument_ulong,      \
        float: moert_argument_float)(x)
/* clang-format on */

typedef struct moert_grid {
    size_t x, y, z; /* work-groups; 0 anywhere makes the launch a no-op */
} moert_grid;

/*
 * Enqueues a kernel: moert_launch(device, "gemm/glu", "glu_forward", grid, arguments, count). Does
 * not block, except to build the program at its first launch. Errors: ERROR_DEVICE (the message has
 * the build log), ERROR_UNSUPPORTED (too much local memory), ERROR_INTERNAL (arguments).
 */
moert_status moert_launch(moert_device *device, const char *program, const char *kernel,
                          moert_grid grid, const moert_argument *arguments, size_t count);

/* A struct of kernels/args as an argument: MOERT_ARGS(moert_rope_args, .heads = 8, ...). */
#define MOERT_ARGS(type, ...) moert_argument_struct(&(const type){__VA_ARGS__}, sizeof(type))

/* Like MOERT_ARGS, from an existing struct. */
#define MOERT_STRUCT(x) moert_argument_struct(&(x), sizeof(x))

/* Launches a kernel: MOERT_RUN(device, "gemm/glu", "glu_forward", ((moert_grid){n, 1, 1}),
 * MOERT_ARG(x), MOERT_ARG(rows)). */
#define MOERT_RUN(device, program, kernel, grid, ...)                                              \
    moert_launch((device), (program), (kernel), grid, (const moert_argument[]){__VA_ARGS__},       \
                 sizeof((const moert_argument[]){__VA_ARGS__}) / sizeof(moert_argument))
