/* Checks the arguments of fake quantization and calls the backend in use. */
#include "quant/fake_quantize.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "device/profile/profile.h"
#include "quant/backend.h"

static moert_status check_how(const moert_fake_quantize *op) {
    const moert_quantizer *how = &op->how;
    const bool stochastic = how->rounding == MOERT_ROUNDING_STOCHASTIC,
               bits4 = moert_format_element_bits(how->format) == 4;
    if (how->nvfp4_rule != MOERT_NVFP4_TE || how->rounding == MOERT_ROUNDING_BRIDGE ||
        (stochastic && !bits4) ||
        (how->hadamard && (how->format != MOERT_FORMAT_NVFP4 || how->axis == MOERT_AXIS_TILE)))
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "fake quantization has no rounding %u by rule %u with hadamard %d and axis "
            "%u of %s",
            (unsigned)how->rounding, (unsigned)how->nvfp4_rule, (int)how->hadamard,
            (unsigned)how->axis, moert_format_name(how->format));
    return stochastic && op->draws != NULL
               ? moert_check_buffer("draws", op->draws, 1, op->draws_at + 2 * op->groups.count,
                                    op->draws_at + 2 * op->groups.count, 4)
               : MOERT_OK;
}

/* Checks the sizes and x. *full = the description with defaults filled in. */
static moert_status check_x(const moert_fake_quantize *op, moert_fake_quantize *full) {
    int narrow;
    *full = *op;
    full->how = moert_quantizer_settled(&op->how, false);
    if (op->groups.ends == NULL)
        full->groups.count = 1;
    if (op->x_stride == 0)
        full->x_stride = op->columns;
    const moert_groups *groups = &full->groups;
    MOERT_TRY(moert_to_int(groups->rows, "rows of a rounded matrix", &narrow));
    MOERT_TRY(moert_to_int(op->columns, "columns of a rounded matrix", &narrow));
    MOERT_TRY(moert_to_int(groups->count, "groups of a rounded matrix", &narrow));
    if (groups->ends != NULL)
        MOERT_TRY(moert_check_buffer("ends", groups->ends, 1, groups->count, groups->count, 4));
    MOERT_TRY(check_how(full));
    if (op->x_type != MOERT_DTYPE_F32 && op->x_type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "rows are rounded from f32 or bf16, not from type %u",
                          (unsigned)op->x_type);
    return moert_check_buffer("x", op->x, groups->rows, op->columns, full->x_stride,
                              moert_dtype_bits(op->x_type) / 8);
}

/* Reports the bytes of x and of `results` results to the profile. */
static void report_work(const moert_fake_quantize *op, size_t results) {
    const size_t bits = moert_dtype_bits(op->x_type) + results * moert_dtype_bits(MOERT_DTYPE_BF16);
    if (op->x != NULL)
        moert_profile_work(moert_buffer_device(op->x), "quant/fake_quantize", 0.0,
                           (double)(op->groups.rows * op->columns * bits) / 8.0);
}

moert_status moert_fake_quantize_run(const moert_fake_quantize *op) {
    moert_fake_quantize full;
    MOERT_TRY(check_x(op, &full));
    const moert_groups *groups = &full.groups;
    const size_t n = full.columns, bytes = sizeof(uint16_t);
    if (full.along != NULL)
        MOERT_TRY(moert_check_buffer("along", full.along, groups->rows, n, n, bytes));
    if (full.down != NULL)
        MOERT_TRY(moert_check_buffer("down", full.down, groups->rows, n, n, bytes));
    if (groups->count == 0 || groups->rows == 0 || n == 0 ||
        (full.along == NULL && full.down == NULL))
        return MOERT_OK;
    report_work(&full, (full.along != NULL) + (full.down != NULL));
    return moert_quant_backend_get()->fake_quantize(&full);
}
