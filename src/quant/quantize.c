/* Checks the arguments of the quantizers and casts and calls the backend in use. */
#include "quant/quantize.h"

#include "base/memory.h"
#include "base/dtype.h"
#include "base/options.h"
#include "device/profile/profile.h"
#include "quant/backend.h"

static moert_status check_choice(const char *name, unsigned value, unsigned largest) {
    if (value > largest)
        return MOERT_FAIL(ERROR_USAGE, "%s of a quantizer is %u, above %u", name, value, largest);
    return MOERT_OK;
}

static moert_status check_how(const moert_quantizer *how) {
    const bool column = how->axis == MOERT_AXIS_COLUMN;
    if (how->size != sizeof *how)
        return MOERT_FAIL(ERROR_USAGE, "a quantizer's field size is %zu; expected %zu", how->size,
                          sizeof *how);
    MOERT_TRY(check_choice("format", how->format, MOERT_FORMATS - 1));
    MOERT_TRY(check_choice("axis", how->axis, MOERT_AXIS_TILE));
    MOERT_TRY(check_choice("scale_rounding", how->scale_rounding, MOERT_SCALE_FLOOR));
    MOERT_TRY(check_choice("nvfp4_rule", how->nvfp4_rule, MOERT_NVFP4_BRIDGE));
    MOERT_TRY(check_choice("rounding", how->rounding, MOERT_ROUNDING_STOCHASTIC));
    const char *name = moert_format_name(how->format);
    if (how->transposed && !column)
        return MOERT_FAIL(ERROR_USAGE, "transposed goes with blocks along columns only");
    if (how->hadamard && (!column || how->format != MOERT_FORMAT_NVFP4))
        return MOERT_FAIL(ERROR_USAGE,
                          "hadamard goes with nvfp4 in blocks along columns only, not with %s",
                          name);
    if (how->group_scales && how->format != MOERT_FORMAT_NVFP4)
        return MOERT_FAIL(ERROR_USAGE, "group_scales goes with nvfp4 only, not with %s", name);
    if (how->rounding > MOERT_ROUNDING_NEAREST && moert_format_element_bits(how->format) != 4)
        return MOERT_FAIL(ERROR_USAGE, "rounding %u goes with e2m1 elements only, not with %s",
                          (unsigned)how->rounding, name);
    return MOERT_OK;
}

/* Checks the fields that all calls use. *full = the description with defaults filled in and unused
 * fields cleared. */
static moert_status check_shape(const moert_quantize *given, moert_quantize *full) {
    int narrow;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_quantize, MOERT_QUANTIZE_INIT, full, given));
    const moert_quantize taken = *full, *op = &taken;
    const moert_groups *groups = &op->groups;
    MOERT_TRY(check_how(&op->how));
    if (groups->ends == NULL)
        full->groups.count = 1;
    if (op->row_bytes > 0)
        full->scale = NULL;
    MOERT_TRY(moert_to_int(groups->rows, "rows of a quantized matrix", &narrow));
    MOERT_TRY(moert_to_int(op->columns, "columns of a quantized matrix", &narrow));
    MOERT_TRY(moert_to_int(full->groups.count, "groups of a quantized matrix", &narrow));
    if (groups->ends != NULL)
        MOERT_TRY(moert_check_buffer("ends", groups->ends, 1, groups->count, groups->count, 4));
    if (op->blocks == 0)
        full->blocks = moert_row_blocks_most(groups->rows, full->groups.count,
                                             moert_format_block(op->how.format));
    MOERT_TRY(moert_to_int(full->blocks, "row blocks of a quantized matrix", &narrow));
    if (op->x_runs > 0 && op->columns % op->x_runs != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu columns are no multiple of the runs of %zu",
                          op->columns, op->x_runs);
    if (op->x_type != MOERT_DTYPE_F32 && op->x_type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "x of a quantizer is f32 or bf16, not type %u",
                          (unsigned)op->x_type);
    const size_t width = (op->x_runs > 0 ? 2 : 1) * op->columns;
    return moert_check_buffer("x", op->x, groups->rows, width, width,
                              moert_dtype_bits(op->x_type) / 8);
}

static moert_status check_floats(const moert_quantize *op) {
    if (op->x_type != MOERT_DTYPE_F32)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "x is quantized from f32 only, not from %s",
                          moert_dtype_name(op->x_type));
    return MOERT_OK;
}

static moert_status check_norm(moert_quantize *op) {
    if (op->norm == NULL)
        return MOERT_OK;
    if (op->how.format == MOERT_FORMAT_FP8_BLOCK)
        return MOERT_FAIL(ERROR_USAGE, "norm goes with scales of one byte, not with %s",
                          moert_format_name(op->how.format));
    op->amax = op->global = NULL;
    return moert_check_buffer("norm", op->norm, 1, 1, 1, sizeof(float));
}

/* Checks payload and scales, in two buffers or, with row_bytes, in one. */
static moert_status check_payload(const moert_quantize *op) {
    const moert_quantizer *how = &op->how;
    const size_t scale_bytes = moert_format_scale_bytes(how->format);
    const moert_quantized_shape shape =
        moert_quantized_shape_of(how, op->groups.rows, op->columns, op->blocks);
    if (op->row_bytes == 0) {
        MOERT_TRY(moert_check_buffer("q", op->q, shape.q_lines, shape.q_bytes, shape.q_bytes, 1));
        return moert_check_buffer("scale", op->scale, shape.scale_lines, shape.scales, shape.scales,
                                  scale_bytes);
    }
    if (how->axis != MOERT_AXIS_ROW || scale_bytes != 1)
        return MOERT_FAIL(ERROR_USAGE,
                          "row_bytes goes with blocks along rows and scales of one byte, not with "
                          "axis %u and %s",
                          (unsigned)how->axis, moert_format_name(how->format));
    return moert_check_buffer("q", op->q, shape.q_lines, shape.q_bytes + shape.scales,
                              op->row_bytes, 1);
}

static moert_status check_quantized(const moert_quantize *op) {
    const moert_quantizer *how = &op->how;
    const size_t scales = how->group_scales ? op->groups.count : 1;
    MOERT_TRY(check_payload(op));
    if (how->format == MOERT_FORMAT_NVFP4 && op->norm == NULL)
        MOERT_TRY(moert_check_buffer("global scale", op->global, 1, scales, scales, sizeof(float)));
    return MOERT_OK;
}

static void report_work(const moert_quantize *op, double bytes) {
    moert_profile_work(moert_buffer_device(op->x), "quant/quantize", 0.0, bytes);
}

/* Reports the bytes of x, payload and scales to the profile. */
static void report_quantized(const moert_quantize *op) {
    const moert_quantized_shape shape =
        moert_quantized_shape_of(&op->how, op->groups.rows, op->columns, op->blocks);
    report_work(op, (double)(op->groups.rows * op->columns * moert_dtype_bits(op->x_type)) / 8.0 +
                        (double)(shape.q_lines * shape.q_bytes) +
                        (double)(shape.scale_lines * shape.scales *
                                 moert_format_scale_bytes(op->how.format)));
}

moert_status moert_quantize_amax(const moert_quantize *op) {
    moert_quantize full;
    MOERT_TRY(check_shape(op, &full));
    MOERT_TRY(check_floats(&full));
    const size_t scales = full.how.group_scales ? full.groups.count : 1;
    MOERT_TRY(moert_check_buffer("amax", full.amax, 1, scales, scales, sizeof(float)));
    if (scales == 0)
        return MOERT_OK;
    if (full.x != NULL)
        report_work(&full, sizeof(float) * (double)(full.groups.rows * full.columns));
    return moert_quant_backend_get()->quantize_amax(&full);
}

moert_status moert_quantize_run(const moert_quantize *op) {
    moert_quantize full;
    MOERT_TRY(check_shape(op, &full));
    MOERT_TRY(check_floats(&full));
    MOERT_TRY(check_norm(&full));
    full.how = moert_quantizer_settled(&full.how, full.norm != NULL);
    MOERT_TRY(check_quantized(&full));
    const size_t scales = full.how.group_scales ? full.groups.count : 1;
    if (full.how.format != MOERT_FORMAT_NVFP4)
        full.amax = full.global = NULL;
    if (full.amax != NULL)
        MOERT_TRY(moert_check_buffer("amax", full.amax, 1, scales, scales, sizeof(float)));
    if (full.groups.count == 0)
        return MOERT_OK;
    if (full.x != NULL)
        report_quantized(&full);
    return moert_quant_backend_get()->quantize(&full);
}

moert_status moert_dequantize_run(const moert_quantize *op) {
    moert_quantize full;
    MOERT_TRY(check_shape(op, &full));
    full.norm = NULL;
    MOERT_TRY(check_quantized(&full));
    if (full.x_runs > 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "x_runs is %zu; expected 0, since a matrix is dequantized as a whole",
                          full.x_runs);
    if (full.groups.count == 0 || full.groups.rows == 0 || full.columns == 0)
        return MOERT_OK;
    report_quantized(&full);
    return moert_quant_backend_get()->dequantize(&full);
}

moert_status moert_cast_run(const moert_cast *given) {
    moert_cast taken, *cast = &taken;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_cast, MOERT_CAST_INIT, &taken, given));
    const char *from = moert_dtype_name(cast->from), *to = moert_dtype_name(cast->to);
    if (from == NULL || to == NULL)
        return MOERT_FAIL(ERROR_USAGE, "cannot cast from type %u to type %u; the last type is %d",
                          (unsigned)cast->from, (unsigned)cast->to, MOERT_DTYPE_E2M1);
    if ((cast->from == MOERT_DTYPE_F32) == (cast->to == MOERT_DTYPE_F32) ||
        cast->from == MOERT_DTYPE_E2M1 || cast->to == MOERT_DTYPE_E2M1)
        return MOERT_FAIL(ERROR_USAGE,
                          "cannot cast from %s to %s; one type must be f32, and the other type "
                          "f16, bf16, e4m3 or e5m2",
                          from, to);
    MOERT_TRY(moert_check_buffer("source", cast->source, 1, cast->n, cast->n,
                                 moert_dtype_bits(cast->from) / 8));
    MOERT_TRY(moert_check_buffer("target", cast->target, 1, cast->n, cast->n,
                                 moert_dtype_bits(cast->to) / 8));
    if (cast->n == 0)
        return MOERT_OK;
    moert_profile_work(
        moert_buffer_device(cast->target), "quant/cast", 0.0,
        (double)(cast->n * (moert_dtype_bits(cast->from) + moert_dtype_bits(cast->to))) / 8.0);
    return moert_quant_backend_get()->cast(cast);
}
