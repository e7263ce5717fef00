/* Checks the arguments of the quantizer of FP8 operands and calls the backend in use. */
#include "quant/fp8_operands.h"

#include "base/dtype.h"
#include "device/profile/profile.h"
#include "quant/backend.h"

enum { BLOCK = MOERT_FP8_BLOCK };

static moert_status check_shape(const moert_fp8_operands *op) {
    const moert_groups *groups = &op->groups;
    int narrow;
    MOERT_TRY(moert_to_int(groups->rows, "rows of FP8 operands", &narrow));
    MOERT_TRY(moert_to_int(op->columns, "columns of FP8 operands", &narrow));
    MOERT_TRY(moert_to_int(groups->count, "groups of FP8 operands", &narrow));
    if (op->columns % BLOCK != 0 || op->x_stride % 4 != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "FP8 operands have %zu columns at stride %zu; expected multiples of %d "
                          "and 4",
                          op->columns, op->x_stride, BLOCK);
    if (op->tiles && groups->rows % (groups->count * BLOCK) != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%zu weights have %zu rows; expected %zu times a multiple of %d",
                          groups->count, groups->rows, groups->count, BLOCK);
    if (op->x_type != MOERT_DTYPE_F32 && op->x_type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "FP8 operands are quantized from f32 or bf16, not from type %u",
                          (unsigned)op->x_type);
    return MOERT_OK;
}

/* Checks a result with lines of `width` payloads and `scales` scales. */
static moert_status check_result(const char *name, const moert_fp8_operand *to, size_t lines,
                                 size_t width, size_t scales) {
    MOERT_TRY(moert_check_buffer(name, to->q, lines, width, width, 1));
    return moert_check_buffer("scales of FP8 operands", to->scale, 1, scales, scales,
                              sizeof(float));
}

static moert_status check_results(const moert_fp8_operands *op) {
    const moert_groups *g = &op->groups;
    const size_t rows = g->rows, n = op->columns, tiles = rows / BLOCK * (n / BLOCK);
    const size_t padded = op->tiles ? rows : moert_fp8_padded_rows(rows, g->count),
                 blocks = moert_row_blocks_most(rows, g->count, BLOCK);
    if (op->along.q != NULL || op->tiles)
        MOERT_TRY(check_result("along", &op->along, rows, n, op->tiles ? tiles : rows * n / BLOCK));
    if (op->down.q != NULL || op->tiles)
        MOERT_TRY(check_result("down", &op->down, n, padded, op->tiles ? tiles : n * blocks));
    return op->down.q != NULL && !op->tiles
               ? moert_check_buffer("padded_ends", op->padded_ends, 1, g->count, g->count, 4)
               : MOERT_OK;
}

moert_status moert_fp8_operands_run(const moert_fp8_operands *op) {
    moert_fp8_operands full = *op;
    moert_groups *groups = &full.groups;
    if (groups->ends == NULL && !full.tiles)
        groups->count = 1;
    if (full.x_stride == 0)
        full.x_stride = full.columns;
    const bool both = full.along.q != NULL && full.down.q != NULL;
    if (groups->count == 0 || groups->rows == 0 || (full.along.q == NULL && full.down.q == NULL))
        return MOERT_OK;
    MOERT_TRY(check_shape(&full));
    const size_t bytes = moert_dtype_bits(full.x_type) / 8;
    MOERT_TRY(moert_check_buffer("x", full.x, groups->rows, full.columns, full.x_stride, bytes));
    if (groups->ends != NULL)
        MOERT_TRY(moert_check_buffer("ends", groups->ends, 1, groups->count, groups->count, 4));
    MOERT_TRY(check_results(&full));
    if (full.x != NULL)
        moert_profile_work(moert_buffer_device(full.x), "quant/fp8_operands", 0.0,
                           (double)(groups->rows * full.columns * (bytes + 1 + both)));
    return moert_quant_backend_get()->fp8_operands(&full);
}
