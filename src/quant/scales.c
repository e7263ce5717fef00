/* Checks the arguments of the layout operations and calls the backend in use. */
#include "moert/quantize.h"

#include "base/memory.h"
#include "base/options.h"
#include "quant/backend.h"

static moert_status check_tiles(const moert_scale_tiles *given, moert_scale_tiles *full) {
    int narrow;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_scale_tiles, MOERT_SCALE_TILES_INIT, full, given));
    const moert_scale_tiles taken = *full, *op = &taken;
    const moert_groups *groups = &op->groups;
    if (groups->ends == NULL)
        full->groups.count = 1;
    if (op->tiles == 0)
        full->tiles = moert_row_blocks_most(groups->rows, op->whole ? 1 : full->groups.count,
                                            moert_tile_lines(op->transposed));
    MOERT_TRY(moert_to_int(groups->rows, "lines of a scale matrix", &narrow));
    MOERT_TRY(moert_to_int(op->width, "columns of a scale matrix", &narrow));
    MOERT_TRY(moert_to_int(full->groups.count, "groups of scale matrices", &narrow));
    MOERT_TRY(moert_to_int(full->tiles, "tiles of scale matrices", &narrow));
    if (groups->ends != NULL)
        MOERT_TRY(moert_check_buffer("ends", groups->ends, 1, groups->count, groups->count, 4));
    MOERT_TRY(moert_check_buffer("linear", op->linear, groups->rows, op->width, op->width, 1));
    const size_t bytes = moert_tiles_across_bytes(op->width, op->transposed);
    return moert_check_buffer("swizzled", op->swizzled, full->tiles, bytes, bytes, 1);
}

static moert_status move_tiles(const moert_scale_tiles *op,
                               moert_status (*move)(const moert_scale_tiles *)) {
    moert_scale_tiles full;
    MOERT_TRY(check_tiles(op, &full));
    if (full.tiles == 0 || full.width == 0)
        return MOERT_OK;
    return move(&full);
}

moert_status moert_swizzle(const moert_scale_tiles *op) {
    return move_tiles(op, moert_quant_backend_get()->swizzle);
}

moert_status moert_unswizzle(const moert_scale_tiles *op) {
    return move_tiles(op, moert_quant_backend_get()->unswizzle);
}

moert_status moert_interleave_run(const moert_interleave *given) {
    moert_interleave taken, *op = &taken;
    int narrow;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_interleave, MOERT_INTERLEAVE_INIT, &taken, given));
    if (op->granularity == 0 || op->element_bytes == 0 || op->width % op->granularity != 0)
        return MOERT_FAIL(
            ERROR_USAGE,
            "%zu columns of %zu bytes each do not divide into runs of granularity %zu (columns)",
            op->width, op->element_bytes, op->granularity);
    MOERT_TRY(moert_to_int(op->rows, "rows to interleave", &narrow));
    MOERT_TRY(moert_to_int(op->width, "columns of gate to interleave", &narrow));
    MOERT_TRY(moert_to_int(2 * op->width, "columns to interleave", &narrow));
    const size_t columns = 2 * op->width;
    MOERT_TRY(moert_check_buffer("from", op->from, op->rows, columns, columns, op->element_bytes));
    MOERT_TRY(moert_check_buffer("to", op->to, op->rows, columns, columns, op->element_bytes));
    if (op->rows == 0 || op->width == 0)
        return MOERT_OK;
    return moert_quant_backend_get()->interleave(op);
}

moert_status moert_expert_offsets(const uint64_t *counts, size_t experts, int32_t *offsets) {
    uint64_t sum = 0;
    MOERT_REQUIRE(counts);
    MOERT_REQUIRE(offsets);
    for (size_t e = 0; e < experts; e++) {
        if (counts[e] > INT32_MAX - sum)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "the rows of experts 0 to %zu are more than %d, the limit of offsets",
                              e, INT32_MAX);
        sum += counts[e];
    }
    for (size_t e = 0; e < experts; e++)
        offsets[e] = (int32_t)counts[e] + (e > 0 ? offsets[e - 1] : 0);
    return MOERT_OK;
}
