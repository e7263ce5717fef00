/* Launches the portable GEMMs of the GPU form, kernels/gemm/gpu.cl. The tiles chosen here do not
 * change the bits of a result. */
#include <stdio.h>

#include "args/gemm.h"
#include "device/device.h"
#include "gemm/backend.h"
#include "gemm/portable/gemm.h"

enum { MOST_LINES = 128, LEAST_LINES = 32 };

/* With two tiles per compute unit, one tile computes while the other waits for memory. A launch
 * with 1/SLACK fewer tiles is as fast. */
enum { TILES_PER_UNIT = 2, SLACK = 16 };

/* The depth of a block in K. Each work-item loads at least QUAD values of each operand. On an H200,
 * depth 16 is faster than 8 in forward (38 against 34 TFLOP/s), slower in dgrad (24 against 33),
 * and equal in wgrad. */
enum { DEPTH = 16, DGRAD_DEPTH = 8, QUAD = 4 };

/*
 * Chooses the lines of a tile for `groups` GEMMs of about `lines` lines by `columns`. More lines
 * mean fewer loads per product. Fewer lines are chosen if otherwise half of a tile's lines would be
 * empty, or compute units would get no tile.
 */
static int choose_lines(const moert_device *device, size_t groups, size_t lines, size_t columns) {
    const size_t units = moert_max(moert_device_describe(device)->compute_units, 1);
    const size_t blocks = groups * moert_ceil_div(columns, MOERT_GPU_GEMM_COLUMNS);
    const size_t enough = TILES_PER_UNIT * units - TILES_PER_UNIT * units / SLACK;
    size_t tile = MOST_LINES;
    while (tile > LEAST_LINES &&
           (lines <= tile / 2 || blocks * moert_ceil_div(lines, tile) < enough))
        tile /= 2;
    return (int)tile;
}

static void name_program(moert_dtype type, int lines, int depth, char spec[MOERT_SPEC_BYTES]) {
    const int least = QUAD * MOERT_GPU_GEMM_ITEMS / lines;
    snprintf(spec, MOERT_SPEC_BYTES, "gemm/gpu -DBF16=%d -DLINES=%d -DDEPTH=%d",
             type == MOERT_DTYPE_BF16, lines, depth > least ? depth : least);
}

/* The launch of forward or dgrad, where a tile's lines are rows. */
typedef struct row_tiles {
    moert_grid grid;
    char spec[MOERT_SPEC_BYTES];
    unsigned groups; /* one past the last group to compute */
} row_tiles;

static row_tiles choose_rows(const moert_gemm *gemm, size_t columns, int depth) {
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const size_t groups = gemm->groups.shared ? 1 : part.end - part.first;
    const size_t rows = part.end_row - part.first_row;
    const int lines = choose_lines(moert_buffer_device(gemm->groups.ends), groups,
                                   moert_ceil_div(rows, groups), columns);
    const size_t partial = part.first > 0; /* the part may begin within a tile */
    row_tiles tiles = {.grid = {rows / (size_t)lines + partial + groups,
                                moert_ceil_div(columns, MOERT_GPU_GEMM_COLUMNS), 1},
                       .groups = (unsigned)(gemm->groups.shared ? 1 : part.end)};
    name_program(moert_gemm_type(gemm), lines, depth, tiles.spec);
    return tiles;
}

moert_status moert_portable_gpu_rows(const moert_gemm *gemm, size_t start, bool forward) {
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    const row_tiles tiles =
        forward ? choose_rows(gemm, gemm->n, DEPTH) : choose_rows(gemm, gemm->k, DGRAD_DEPTH);
    moert_gemm_args args = moert_portable_args(gemm, start);
    args.groups = tiles.groups;
    if (forward)
        return MOERT_RUN(device, tiles.spec, "gemm_forward", tiles.grid,
                         MOERT_ARG(gemm->groups.ends), MOERT_ARG(gemm->x.buffer),
                         MOERT_ARG(gemm->weight.buffer), MOERT_ARG(gemm->bias),
                         MOERT_ARG(gemm->y.buffer), MOERT_STRUCT(args));
    return MOERT_RUN(device, tiles.spec, "gemm_dgrad", tiles.grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(gemm->y.buffer), MOERT_ARG(gemm->weight.buffer),
                     MOERT_ARG(gemm->x.buffer), MOERT_STRUCT(args));
}

moert_status moert_portable_gpu_wgrad(const moert_gemm *gemm, size_t start) {
    moert_device *device = moert_buffer_device(gemm->weight.buffer);
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const size_t groups = part.end - part.first;
    const int lines = choose_lines(device, groups, gemm->n, gemm->k);
    const moert_grid grid = {moert_ceil_div(gemm->n, (size_t)lines),
                             moert_ceil_div(gemm->k, MOERT_GPU_GEMM_COLUMNS), groups};
    char spec[MOERT_SPEC_BYTES];
    const moert_gemm_args args = moert_portable_args(gemm, start);
    name_program(moert_gemm_type(gemm), lines, DEPTH, spec);
    return MOERT_RUN(device, spec, "gemm_wgrad", grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(gemm->y.buffer), MOERT_ARG(gemm->x.buffer),
                     MOERT_ARG(gemm->weight.buffer), MOERT_STRUCT(args));
}

moert_status moert_portable_gpu_bias_grad(const moert_gemm *gemm) {
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const moert_grid grid = {moert_ceil_div(gemm->n, MOERT_GPU_GEMM_ITEMS), part.end - part.first,
                             1};
    char spec[MOERT_SPEC_BYTES];
    const moert_gemm_args args = moert_portable_args(gemm, 0);
    name_program(moert_gemm_type(gemm), MOST_LINES, DEPTH, spec);
    return MOERT_RUN(moert_buffer_device(gemm->bias), spec, "gemm_bias_grad", grid,
                     MOERT_ARG(gemm->groups.ends), MOERT_ARG(gemm->y.buffer), MOERT_ARG(gemm->bias),
                     MOERT_STRUCT(args));
}
