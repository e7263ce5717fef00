/* GEMMs of float32 operands by kernels/gemm/nvidia/split.cl. A first launch splits operand B, which
 * has the result's columns, into bf16 parts in scratch memory. */
#include <stdio.h>

#include "args/gemm_nvidia.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/launch.h"
#include "device/nvidia/tensor_map.h"
#include "device/share.h"
#include "gemm/nvidia/tensor_cores.h"

enum {
    PARTS = MOERT_SPLIT_PARTS,
    GRAIN = 8, /* rows of parts are multiples of 16 bytes: 8 values of 16 bits */
    QUAD = 4,  /* floats in 16 bytes */
    ITEMS = 256,
    LINES = MOERT_NVIDIA_LINES, /* of a tile */
    STAGE_K = MOERT_SPLIT_K,
    SPEC_BYTES = 96,
};

/* A float32 matrix [rows, columns]. */
typedef struct matrix {
    const moert_buffer *buffer;
    size_t rows, columns, stride, first;
} matrix;

/* A GEMM; the result has the lines of a and the columns of b. */
typedef struct problem {
    int orientation;
    matrix a, b, result;
    size_t lines, columns, reduction; /* in wgrad `reduction` is 0: the kernel takes the reduction
                                         from `ends` */
    const moert_buffer *bias;
} problem;

static problem problem_of(const moert_gemm *gemm, moert_gemm_kind kind) {
    const size_t rows = gemm->groups.rows, n = gemm->n, k = gemm->k;
    const matrix x = {gemm->x.buffer, rows, k, gemm->x.stride, 0},
                 weight = {gemm->weight.buffer, n, k, k, 0};
    const matrix y = {gemm->y.buffer, rows, n, gemm->y.stride, gemm->y.first};
    if (kind == MOERT_GEMM_FORWARD)
        return (problem){0, x, weight, y, rows, n, k, gemm->bias};
    if (kind == MOERT_GEMM_DGRAD)
        return (problem){1, y, weight, x, rows, k, n, NULL};
    return (problem){2, x, y, weight, k, n, 0, NULL};
}

/* Whether the kernel can compute a GEMM of this kind and of gemm's shape; strides are not 0. */
static bool suits(const moert_gemm *gemm, moert_gemm_kind kind) {
    const bool wgrad = kind == MOERT_GEMM_WGRAD;
    const size_t lengths = gemm->n | gemm->k | gemm->x.stride | gemm->y.stride | gemm->y.first;
    return moert_gemm_type(gemm) == MOERT_DTYPE_F32 &&
           moert_gemm_output(gemm)->type == MOERT_DTYPE_F32 &&
           (wgrad ? !moert_nvidia_is_part(gemm) : gemm->groups.shared) &&
           (wgrad ? gemm->x.stride : lengths) % QUAD == 0 && gemm->groups.rows > 0;
}

bool moert_nvidia_splits(const moert_device *device, const moert_gemm *gemm) {
    return gemm->more->split != NULL && !gemm->glu.gated && suits(gemm, gemm->kind) &&
           moert_nvidia_uses_wgmma(device);
}

/* The number of values of one part of a matrix. */
static size_t part_values(const matrix *m) {
    return m->rows * moert_round_up(m->columns, GRAIN);
}

size_t moert_nvidia_split_bytes(const moert_device *device, const moert_gemm *gemm) {
    size_t most = 0;
    for (moert_gemm_kind kind = MOERT_GEMM_FORWARD; kind <= MOERT_GEMM_WGRAD; kind++) {
        const problem p = problem_of(gemm, kind);
        if (suits(gemm, kind))
            most = moert_max(most, part_values(&p.b));
    }
    return moert_nvidia_uses_wgmma(device) ? PARTS * most * sizeof(uint16_t) : 0;
}

/* Splits a matrix into parts[PARTS, rows, columns rounded up to GRAIN]. */
static moert_status split(moert_device *device, const char *spec, const matrix *m,
                          moert_buffer **parts) {
    const size_t values = part_values(m);
    const moert_grid grid = {moert_ceil_div(values / QUAD, ITEMS), 1, 1};
    MOERT_TRY(moert_buffer_reserve(device, PARTS * values * sizeof(uint16_t), parts));
    return MOERT_RUN(device, spec, "split_rows", grid, MOERT_ARG(m->buffer), MOERT_ARG(*parts),
                     MOERT_ARGS(moert_split_args, .rows = m->rows, .stride = m->stride,
                                .first = m->first, .columns = (uint32_t)m->columns));
}

/* Tensor maps of operand A, as 16-bit halves of its floats, and of B's parts. */
static moert_status make_maps(const problem *p, moert_buffer *parts, uint32_t columns,
                              moert_tensor_map *map_a, moert_tensor_map *map_b) {
    const bool forward = p->orientation == 0, wgrad = p->orientation == 2;
    MOERT_TRY(moert_tensor_map_make((moert_buffer *)p->a.buffer,
                                    &(moert_tensor_layout){.groups = 1,
                                                           .rows = p->a.rows,
                                                           .columns = 2 * p->a.columns,
                                                           .stride = 2 * p->a.stride,
                                                           .first = 2 * p->a.first,
                                                           .box_rows = wgrad ? STAGE_K : LINES},
                                    map_a));
    return moert_tensor_map_make(
        parts,
        &(moert_tensor_layout){.groups = PARTS,
                               .rows = p->b.rows,
                               .columns = p->b.columns,
                               .stride = moert_round_up(p->b.columns, GRAIN),
                               .box_rows = forward ? columns : STAGE_K,
                               .box_bytes = forward ? STAGE_K * sizeof(uint16_t) : 0},
        map_b);
}

moert_status moert_nvidia_split(const moert_gemm *gemm) {
    const problem p = problem_of(gemm, gemm->kind);
    moert_device *device = moert_buffer_device(p.result.buffer);
    /* for a narrow result, narrow tiles keep more compute units busy */
    const unsigned columns = p.columns > LINES ? LINES : LINES / 2;
    const size_t tiles = (gemm->kind == MOERT_GEMM_WGRAD ? gemm->groups.count : 1) *
                         moert_ceil_div(p.lines, LINES) * moert_ceil_div(p.columns, columns);
    const moert_grid grid = {moert_min(tiles, moert_device_units(device)), 1, 1};
    moert_tensor_map maps[2]; /* of a and b */
    char spec[SPEC_BYTES];
    snprintf(spec, sizeof spec, "gemm/nvidia/split -DORIENTATION=%d -DCOLUMNS=%u -DARENA=%d",
             p.orientation, columns, MOERT_ARENA_BYTES);
    MOERT_TRY(split(device, spec, &p.b, gemm->more->split));
    MOERT_TRY(make_maps(&p, *gemm->more->split, columns, &maps[0], &maps[1]));
    return MOERT_RUN(device, spec, "nvidia_gemm_split", grid, MOERT_STRUCT(maps),
                     MOERT_ARG(p.result.buffer), MOERT_ARG(gemm->groups.ends), MOERT_ARG(p.bias),
                     MOERT_ARGS(moert_split_args, .ldc = p.result.stride,
                                .first_column = p.result.first,
                                .groups = (uint32_t)gemm->groups.count, .lines = (uint32_t)p.lines,
                                .columns = (uint32_t)p.columns, .terms = (uint32_t)p.reduction,
                                .accumulate = gemm->epilogue.addend == MOERT_ADDEND_FIRST),
                     MOERT_ARG(p.a.buffer), MOERT_ARG(*gemm->more->split));
}
