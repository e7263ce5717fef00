/* Checks the quantized operands of an op and derives the shapes of their payloads and scales. */
#include <stdint.h>
#include <stdio.h>

#include "base/memory.h"
#include "op/op.h"
#include "quant/quantize.h"
#include "quant/scales.h"

/* How the op uses a matrix. */
typedef struct role {
    bool used, result, gathered;
} role;

static role role_of(const moert_op *op, moert_op_buffer which) {
    const bool second = which == MOERT_OP_BUFFER_column;
    const bool result = second || which == moert_op_roles_of(op->options.kind).result;
    return (role){second || moert_op_has_role(op->options.kind, which), result,
                  (which == MOERT_OP_BUFFER_x && op->x.gathered) ||
                      (which == MOERT_OP_BUFFER_y && op->y.gathered)};
}

/* ---- checks ---- */

static const moert_status usage = MOERT_ERROR_USAGE, unsupported = MOERT_ERROR_UNSUPPORTED;

/* Whether every field except `size` is 0. */
static bool is_blank(const moert_quantizer *how) {
    return how->format == 0 && how->axis == 0 && how->scale_rounding == 0 && how->nvfp4_rule == 0 &&
           how->rounding == 0 && how->seed == 0 && !how->transposed && !how->hadamard &&
           !how->group_scales;
}

static moert_status check_plain(const moert_op *op, const char *name, const moert_operand *o) {
    return MOERT_OP_CHECK_RULES(
        op, name,
        {!is_blank(&o->how), usage, "how.size", "that of MOERT_QUANTIZER_INIT, as how is filled in",
         NULL, o->how.size},
        {o->global, usage, "global", "false, except for quantized operands", "true", 0},
        {o->scales != MOERT_SCALES_LINEAR, usage, "scales", "linear (0), unless quantized", NULL,
         o->scales});
}

/* A quantized operand has no stride, and only a weight may be discrete. */
static moert_status check_memory(const moert_op *op, const moert_op_matrix *m,
                                 const moert_operand *o) {
    char stride[24];
    snprintf(stride, sizeof stride, "%td", o->stride);
    return MOERT_OP_CHECK_RULES(
        op, m->name, {o->stride != 0, usage, "stride", "0 with a quantized operand", stride, 0},
        {o->discrete && m->payload != MOERT_OP_BUFFER_weight, unsupported, "discrete",
         "false; only weight may be discrete", "true", 0});
}

static moert_status check_ranges(const moert_op *op, const char *name, const moert_operand *o) {
    const moert_quantizer *how = &o->how;
    char formats[24];
    snprintf(formats, sizeof formats, "0 to %d", MOERT_FORMATS - 1);
    return MOERT_OP_CHECK_RULES(
        op, name,
        {how->size != sizeof *how, usage, "how.size",
         "0 for plain elements, or that of MOERT_QUANTIZER_INIT", NULL, how->size},
        {how->format >= MOERT_FORMATS, usage, "how.format", formats, NULL, how->format},
        {how->axis > MOERT_AXIS_TILE, usage, "how.axis", "row (0), column (1) or tile (2)", NULL,
         how->axis},
        {how->scale_rounding > MOERT_SCALE_FLOOR, usage, "how.scale_rounding", "0 or 1", NULL,
         how->scale_rounding},
        {how->nvfp4_rule > MOERT_NVFP4_BRIDGE, usage, "how.nvfp4_rule", "0 to 2", NULL,
         how->nvfp4_rule},
        {how->rounding > MOERT_ROUNDING_STOCHASTIC, usage, "how.rounding", "0 to 3", NULL,
         how->rounding},
        {o->scales > MOERT_SCALES_TILED_WHOLE, usage, "scales",
         "linear (0), tiled (1) or tiled whole (2)", NULL, o->scales});
}

/* Checks combinations of fields. */
static moert_status check_operand(const moert_op *op, const moert_op_matrix *m,
                                  const moert_operand *o) {
    const moert_quantizer *how = &o->how;
    const role as = role_of(op, m->payload);
    const bool weight = m->payload == MOERT_OP_BUFFER_weight, result = as.result;
    const bool second = m->payload == MOERT_OP_BUFFER_column, tiled = o->scales != 0;
    const bool column = how->axis == MOERT_AXIS_COLUMN, nvfp4 = how->format == MOERT_FORMAT_NVFP4;
    const bool bytes = moert_format_element_bits(how->format) == 8;
    const bool tile = how->axis == MOERT_AXIS_TILE, fp8 = how->format == MOERT_FORMAT_FP8_BLOCK;
    const bool transposed = weight ? !tile || fp8 : column;
    return MOERT_OP_CHECK_RULES(
        op, m->name,
        {weight && result, unsupported, "how.size", "0, the result of gemm_wgrad is plain", NULL,
         how->size},
        {how->transposed && !transposed, usage, "how.transposed",
         weight ? "false with blocks along tiles, except with fp8-block"
                : "false, except with blocks along columns",
         "true", 0},
        {tiled && fp8, usage, "scales", "linear (0) with fp8-block, whose scales are float32", NULL,
         o->scales},
        {weight && how->transposed && o->scales == MOERT_SCALES_TILED_WHOLE, unsupported, "scales",
         "linear (0) or tiled (1) with weight.how.transposed", NULL, o->scales},
        {o->global && !nvfp4, usage, "global", "false, except with nvfp4", "true", 0},
        {o->global && result, usage, "global", "false, a result's is in norm", "true", 0},
        {how->group_scales && !o->global, usage, "how.group_scales", "false without global", "true",
         0},
        {how->hadamard && !(result && column && nvfp4), usage, "how.hadamard",
         "false, except in results of nvfp4 in blocks along columns", "true", 0},
        {how->rounding > MOERT_ROUNDING_NEAREST && bytes, usage, "how.rounding",
         "0 or 1, except with elements of 4 bits", NULL, how->rounding},
        {as.gathered && !result && column, unsupported, "how.axis",
         "row (0) or tile (2) where rows are gathered", NULL, how->axis},
        {second && !column, usage, "how.axis", "column (1)", NULL, how->axis});
}

/* Checks the options against the result, if that is quantized. */
static moert_status check_results(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const bool second = o->column.how.size != 0;
    const moert_op_buffer result = moert_op_roles_of(o->kind).result;
    const moert_quantizer *how = &moert_op_operand(o, result)->how;
    const bool quantized = how->size != 0 && o->kind != MOERT_OP_GEMM_WGRAD;
    const bool floats = how->format == MOERT_FORMAT_FP8_BLOCK ||
                        (second && o->column.how.format == MOERT_FORMAT_FP8_BLOCK);
    return MOERT_OP_CHECK_RULES(
        op, NULL,
        {second && !quantized, unsupported, "column.how.size", "0 unless the result is quantized",
         NULL, o->column.how.size},
        {o->norm && !quantized, usage, "norm", "false unless the result is quantized", "true", 0},
        {o->norm && floats, usage, "norm", "false with a result of fp8-block", "true", 0},
        {quantized && role_of(op, result).gathered, unsupported, "permute",
         "none (0), or that of the input, with a quantized result", NULL, o->permute},
        {quantized && o->kind != MOERT_OP_DGLU && o->beta, unsupported, "beta",
         "false with a quantized result", "true", 0},
        {quantized && o->accumulate, unsupported, "accumulate", "false with a quantized result",
         "true", 0},
        {quantized && o->row_weight, unsupported, "row_weight", "false with a quantized result",
         "true", 0});
}

moert_status moert_op_check_quantized(const moert_op *op) {
    const moert_op_options *o = &op->options;
    if (moert_op_takes_c(op)) {
        MOERT_TRY(MOERT_OP_CHECK_RULES(
            op, "c",
            {o->c.how.size != 0, unsupported, "how.size", "0, c is plain", NULL, o->c.how.size}));
        MOERT_TRY(check_plain(op, "c", &o->c));
    }
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++) {
        const moert_op_matrix *m = &moert_op_matrices[i];
        const moert_operand *operand = moert_op_operand(o, m->payload);
        if (!role_of(op, m->payload).used)
            continue;
        if (operand->how.size != 0 || m->payload == MOERT_OP_BUFFER_column)
            MOERT_TRY(check_memory(op, m, operand));
        if (operand->how.size == 0) {
            MOERT_TRY(check_plain(op, m->name, operand));
            continue;
        }
        MOERT_TRY(check_ranges(op, m->name, operand));
        MOERT_TRY(check_operand(op, m, operand));
    }
    return check_results(op);
}

/* ---- shapes ---- */

/* The number of units of `unit` rows that all groups need. The result is exact if groups are of
 * equal size or row_multiple is a multiple of `unit`, else it is the largest possible number. */
static size_t room(const moert_op *op, const moert_op_quantized *q, size_t unit) {
    const size_t multiple = op->options.row_multiple;
    if (!q->by_ends)
        return q->groups * moert_ceil_div(q->rows / moert_max(q->groups, 1), unit);
    if (multiple > 0 && multiple % unit == 0)
        return moert_ceil_div(q->rows, unit);
    return moert_row_blocks_most(q->rows, q->groups, unit);
}

/* Sets the shape of a weight's payload as a matrix: [groups * N, K] or, transposed, [groups * K,
 * N]. */
static void shape_weight(const moert_op *op, moert_op_quantized *q) {
    const moert_op_options *o = &op->options;
    q->transposed = q->how.transposed;
    q->groups = o->weight.discrete ? 1 : o->groups;
    q->rows = q->groups * (q->transposed ? o->k : o->n);
    q->columns = q->transposed ? o->n : o->k;
    /* ROW and COLUMN change places in a transposed matrix */
    if (q->transposed && q->how.axis != MOERT_AXIS_TILE)
        q->how.axis = q->how.axis == MOERT_AXIS_ROW ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    q->how.transposed = false;
}

static void shape_rows(const moert_op *op, moert_op_quantized *q) {
    const moert_op_options *o = &op->options;
    const bool gathered = role_of(op, q->payload).gathered;
    q->by_ends = !gathered;
    q->groups = gathered ? 1 : o->groups;
    q->rows = moert_ceil_div(o->rows, q->payload == MOERT_OP_BUFFER_x ? op->x.divisor : 1);
    q->columns = moert_op_columns(o, q->payload);
}

static moert_op_quantized shape_of(const moert_op *op, const moert_op_matrix *m) {
    const moert_operand *operand = moert_op_operand(&op->options, m->payload);
    const size_t block = moert_format_block(operand->how.format);
    const bool result = role_of(op, m->payload).result;
    moert_op_quantized q = {.payload = m->payload,
                            .scale = m->scale,
                            .global = operand->global ? m->global : MOERT_OP_BUFFER_none,
                            .result = result,
                            .how =
                                moert_quantizer_settled(&operand->how, op->options.norm && result),
                            .scales = operand->scales};
    if (m->payload == MOERT_OP_BUFFER_weight)
        shape_weight(op, &q);
    else
        shape_rows(op, &q);
    const bool column = q.how.axis == MOERT_AXIS_COLUMN;
    q.blocks = room(op, &q, block);
    if (q.scales == MOERT_SCALES_TILED)
        q.tiles = room(op, &q, moert_tile_lines(column) * (column ? block : 1));
    else
        q.tiles = moert_ceil_div(column ? q.blocks : q.rows, moert_tile_lines(column));
    q.width = column ? q.columns : moert_ceil_div(q.columns, block);
    return q;
}

static void fill_needs(moert_op *op, const moert_op_quantized *q) {
    const moert_quantized_shape s =
        moert_quantized_shape_of(&q->how, q->rows, q->columns, q->blocks);
    const bool floats = q->how.format == MOERT_FORMAT_FP8_BLOCK;
    const bool stacked = q->payload != MOERT_OP_BUFFER_weight || !op->options.weight.discrete;
    const size_t across = moert_tiles_across_bytes(q->width, q->how.axis == MOERT_AXIS_COLUMN);
    const size_t globals = q->how.group_scales ? op->options.groups : 1;
    const moert_op_need linear = {stacked, floats ? MOERT_DTYPE_F32 : MOERT_OP_BYTE, s.scale_lines,
                                  s.scales, s.scales};
    const moert_op_need tiled = {stacked, MOERT_OP_BYTE, q->tiles, across, across};
    op->needs[q->payload] =
        (moert_op_need){stacked, MOERT_OP_BYTE, s.q_lines, s.q_bytes, s.q_bytes};
    op->needs[q->scale] = q->scales == MOERT_SCALES_LINEAR ? linear : tiled;
    if (q->global != MOERT_OP_BUFFERS)
        op->needs[q->global] = (moert_op_need){true, MOERT_DTYPE_F32, 1, globals, globals};
    if (!stacked) {
        op->weights = op->needs[q->payload];
        op->weight_scales = op->needs[q->scale];
        op->weights.needed = op->weight_scales.needed = true;
    }
}

moert_status moert_op_shape_quantized(moert_op *op) {
    op->quantized_count = 0;
    op->weight_scales.needed = false;
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++) {
        const moert_op_matrix *m = &moert_op_matrices[i];
        if (!role_of(op, m->payload).used ||
            moert_op_operand(&op->options, m->payload)->how.size == 0)
            continue;
        const moert_op_quantized q = shape_of(op, m);
        if (q.rows > INT32_MAX)
            return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, "groups",
                                   "fewer, as all rows of a quantized weight are below 2^31", "%zu",
                                   op->options.groups);
        op->quantized[op->quantized_count++] = q;
        fill_needs(op, &q);
    }
    return MOERT_OK;
}
