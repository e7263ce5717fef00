/* Layouts of the portable backend: launches kernels/quant/scales.cl. */
#include "args/quant.h"
#include "base/memory.h"
#include "device/launch.h"
#include "quant/backend.h"

static moert_status move_scales(const moert_scale_tiles *op, const char *kernel) {
    const moert_groups *groups = &op->groups;
    const size_t along = moert_tile_lines(op->transposed);
    const size_t across = moert_tile_columns(op->transposed);
    const size_t matrices = op->whole ? 1 : groups->count;
    const moert_grid grid = {moert_row_blocks_most(groups->rows, matrices, along),
                             moert_ceil_div(op->width, across), 1};
    return MOERT_RUN(moert_buffer_device(op->swizzled), "quant/scales", kernel, grid,
                     MOERT_ARG(groups->ends), MOERT_ARG(op->linear), MOERT_ARG(op->swizzled),
                     MOERT_ARGS(moert_scales_args, .groups = (unsigned)groups->count,
                                .rows = (unsigned)groups->rows, .width = (unsigned)op->width,
                                .transposed = (int)op->transposed, .whole = (int)op->whole,
                                .tiles = (unsigned)op->tiles));
}

moert_status moert_portable_swizzle(const moert_scale_tiles *op) {
    return move_scales(op, "swizzle");
}

moert_status moert_portable_unswizzle(const moert_scale_tiles *op) {
    return move_scales(op, "unswizzle");
}

moert_status moert_portable_block_ends(const moert_block_ends *op) {
    const moert_groups *groups = &op->groups;
    return MOERT_RUN(moert_buffer_device(op->to), "quant/scales", "block_ends",
                     ((moert_grid){1, 1, 1}), MOERT_ARG(groups->ends), MOERT_ARG(op->to),
                     MOERT_ARGS(moert_scales_args, .groups = (unsigned)groups->count,
                                .rows = (unsigned)groups->rows, .block = (unsigned)op->block,
                                .most = (unsigned)op->most));
}

moert_status moert_portable_fold_globals(const moert_global_scales *op) {
    return MOERT_RUN(moert_buffer_device(op->to), "quant/scales", "fold_globals",
                     ((moert_grid){1, 1, 1}), MOERT_ARG(op->alpha), MOERT_ARG(op->first),
                     MOERT_ARG(op->second), MOERT_ARG(op->to),
                     MOERT_ARGS(moert_scales_args, .first_stride = (unsigned)op->first_by_groups,
                                .second_stride = (unsigned)op->second_by_groups,
                                .groups = (unsigned)op->groups));
}

moert_status moert_portable_transpose(const moert_transpose *op) {
    static const char *const kernels[] = {
        [1] = "transpose_bytes", [2] = "transpose_halves", [4] = "transpose_words"};
    const moert_grid grid = {moert_ceil_div(op->rows, 16), op->groups, 1};
    return MOERT_RUN(moert_buffer_device(op->to), "quant/scales", kernels[op->element_bytes], grid,
                     MOERT_ARG(op->from), MOERT_ARG((unsigned)op->rows),
                     MOERT_ARG((unsigned)op->columns), MOERT_ARG(op->to));
}

moert_status moert_portable_interleave(const moert_interleave *op) {
    return MOERT_RUN(moert_buffer_device(op->to), "quant/scales", "interleave",
                     ((moert_grid){op->rows, 1, 1}), MOERT_ARG(op->from), MOERT_ARG(op->to),
                     MOERT_ARGS(moert_interleave_args, .width = op->width,
                                .granularity = op->granularity, .element_bytes = op->element_bytes,
                                .inverse = (int)op->inverse));
}
