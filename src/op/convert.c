/*
 * Converts the quantized operands and results of an op before and after the GEMM. Operands are
 * dequantized without their global scales, which are multiplied into alpha or, in DGLU, into
 * acc_scale. Results are quantized from the values that the GEMM writes. An operand that the
 * backend takes as payload and scales (a direct operand) is not dequantized: it gets linear scales
 * and, if the backend decodes it, a buffer for values.
 *
 *   tiled scales -> linear -> [ transposed ] -> dequantize -> [ transposed, a weight ] -> GEMM
 *   GEMM -> quantize -> linear scales -> [ transposed ] -> tiled
 *
 * These functions only launch kernels, so that an execute can be recorded.
 */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "op/op.h"
#include "quant/decode.h"

/* ---- workspace ---- */

static moert_status add_buffer(moert_op *op, size_t elements, size_t bytes, moert_buffer **buffer) {
    return moert_workspace_add(op->device, elements, bytes, &op->work, buffer);
}

/* Adds a buffer for values or scales of `q`. If a group's rows are not a multiple of row_multiple,
 * contrary to the caller's promise, the GEMM reads elements that no conversion writes. So the
 * buffer starts as zeros. */
static moert_status add_part(moert_op *op, const moert_op_quantized *q, size_t elements,
                             size_t bytes, moert_buffer **buffer) {
    MOERT_TRY(add_buffer(op, elements, bytes, buffer));
    if (*buffer != NULL && q->by_ends && !q->result && op->options.row_multiple > 1)
        MOERT_TRY(moert_buffer_clear(*buffer, 0, elements * bytes));
    return MOERT_OK;
}

static bool is_discrete(const moert_op *op, const moert_op_quantized *q) {
    return q->payload == MOERT_OP_BUFFER_weight && op->options.weight.discrete;
}

/* Whether the backend needs no buffer for the values of a direct operand (one that it takes as
 * payload and scales). */
static bool needs_no_values(const moert_op *op, const moert_conversion *c) {
    return c->direct &&
           (op->backend->decoded == MOERT_DTYPE_F32 || c->as->how.format == MOERT_FORMAT_FP8_BLOCK);
}

void moert_op_free_conversions(moert_op *op) {
    for (size_t i = 0; i < op->quantized_count; i++) {
        moert_conversion *c = &op->conversions[i];
        MOERT_DESTROY(c->stored, c->ends, c->block_ends, c->scale, c->transposed);
        moert_buffers_destroy(c->scales, c->scales != NULL ? op->options.groups : 0);
        MOERT_FREE(c->scales, c->discrete_quantized);
        *c = (moert_conversion){.as = c->as, .direct = c->direct};
    }
    moert_buffers_destroy(op->values, MOERT_OP_BUFFERS);
    memset(op->values, 0, sizeof op->values);
    moert_buffers_destroy(op->discrete_values,
                          op->discrete_values != NULL ? op->options.groups : 0);
    free(op->discrete_values);
    moert_buffer_destroy(op->alphas);
    op->discrete_values = NULL;
    op->alphas = NULL;
}

static moert_status make_values(moert_op *op, moert_conversion *c) {
    const moert_op_quantized *q = c->as;
    const size_t elements = q->rows * q->columns, bytes = moert_dtype_bits(c->type) / 8;
    /* `column` is quantized from the values of the result, so it needs no buffer */
    if (q->payload == MOERT_OP_BUFFER_column)
        return MOERT_OK;
    if (needs_no_values(op, c))
        return is_discrete(op, q) ? MOERT_NEW_ARRAY(&c->discrete_quantized, op->options.groups)
                                  : MOERT_OK;
    if (!is_discrete(op, q))
        return add_part(op, q, elements, bytes, &op->values[q->payload]);
    MOERT_TRY(MOERT_NEW_ARRAY(&op->discrete_values, op->options.groups));
    for (size_t g = 0; g < op->options.groups; g++)
        MOERT_TRY(add_buffer(op, elements, bytes, &op->discrete_values[g]));
    return MOERT_OK;
}

static moert_status make_conversion(moert_op *op, moert_conversion *c) {
    const moert_op_quantized *q = c->as;
    const bool column = q->how.axis == MOERT_AXIS_COLUMN, no_values = needs_no_values(op, c);
    const size_t scales = (column ? q->blocks : q->rows) * q->width;
    c->type = moert_op_value_type(op, q);
    MOERT_TRY(make_values(op, c));
    if (no_values && q->scales == MOERT_SCALES_LINEAR)
        return MOERT_OK;
    if (q->transposed && !no_values)
        MOERT_TRY(add_buffer(op, q->rows * q->columns, moert_dtype_bits(c->type) / 8, &c->stored));
    if (!q->by_ends && q->groups > 0) {
        MOERT_TRY(add_buffer(op, q->groups, sizeof(uint32_t), &c->ends));
        if (c->ends != NULL)
            MOERT_TRY(moert_buffer_write_ends(q->groups, q->rows / q->groups, c->ends));
    }
    if (q->scales == MOERT_SCALES_LINEAR)
        return MOERT_OK;
    if (c->discrete_quantized == NULL) {
        MOERT_TRY(add_part(op, q, scales, 1, &c->scale));
    } else {
        MOERT_TRY(MOERT_NEW_ARRAY(&c->scales, op->options.groups));
        for (size_t g = 0; g < op->options.groups; g++)
            MOERT_TRY(add_buffer(op, scales, 1, &c->scales[g]));
    }
    if (column)
        MOERT_TRY(add_buffer(op, q->groups, sizeof(uint32_t), &c->block_ends));
    if (q->how.transposed)
        MOERT_TRY(add_buffer(op, scales, 1, &c->transposed));
    return MOERT_OK;
}

moert_status moert_op_make_conversions(moert_op *op) {
    bool folds = false;
    op->quantizers =
        op->backend == &moert_backend_reference ? &moert_quant_reference : &moert_quant_portable;
    for (size_t i = 0; i < op->quantized_count; i++) {
        folds = folds || op->quantized[i].global != MOERT_OP_BUFFERS;
        MOERT_TRY(make_conversion(op, &op->conversions[i]));
    }
    return folds ? add_buffer(op, op->options.groups, sizeof(float), &op->alphas) : MOERT_OK;
}

/* ---- one operand ---- */

static moert_groups groups_of(const moert_op_buffers *b, const moert_conversion *c) {
    return (moert_groups){c->as->by_ends ? b->ends : c->ends, c->as->groups, c->as->rows};
}

static moert_status move_scales(const moert_quant_backend *by, const moert_op_buffers *b,
                                const moert_conversion *c, moert_buffer *linear,
                                moert_buffer *tiled, bool to_tiles) {
    const moert_op_quantized *q = c->as;
    const bool column = q->how.axis == MOERT_AXIS_COLUMN;
    moert_scale_tiles tiles = {.groups = groups_of(b, c),
                               .width = q->width,
                               .transposed = column,
                               .whole = q->scales == MOERT_SCALES_TILED_WHOLE,
                               .linear = linear,
                               .swizzled = tiled,
                               .tiles = q->tiles};
    if (column) {
        MOERT_TRY(by->block_ends(&(moert_block_ends){
            tiles.groups, moert_format_block(q->how.format), q->blocks, c->block_ends}));
        tiles.groups = (moert_groups){c->block_ends, q->groups, q->blocks};
    }
    MOERT_TRY(to_tiles ? by->swizzle(&tiles) : by->unswizzle(&tiles));
    return MOERT_OK;
}

/* Describes the conversion of an operand for the quantizers. */
static moert_quantize describe(const moert_op_buffers *b, const moert_conversion *c,
                               moert_buffer *values, moert_buffer *payload, moert_buffer *scale) {
    return (moert_quantize){.how = c->as->how,
                            .groups = groups_of(b, c),
                            .columns = c->as->columns,
                            .x = c->stored != NULL ? c->stored : values,
                            .x_type = c->type,
                            .q = payload,
                            .scale = c->transposed != NULL ? c->transposed
                                     : c->scale != NULL    ? c->scale
                                                           : scale,
                            .blocks = c->as->blocks};
}

/* Dequantizes an operand to `values`. */
static moert_status load(const moert_quant_backend *by, const moert_op_buffers *b,
                         const moert_conversion *c, moert_buffer *payload, moert_buffer *scale,
                         moert_buffer *values) {
    const moert_op_quantized *q = c->as;
    moert_quantize job = describe(b, c, values, payload, scale);
    job.how.group_scales = false;
    if (c->scale != NULL)
        MOERT_TRY(move_scales(by, b, c, c->scale, scale, false));
    if (c->transposed != NULL)
        MOERT_TRY(
            by->transpose(&(moert_transpose){1, q->blocks, q->width, 1, c->scale, c->transposed}));
    MOERT_TRY(moert_decode_suits(&job, !q->by_ends) ? moert_decode(&job) : by->dequantize(&job));
    if (q->transposed)
        MOERT_TRY(
            by->transpose(&(moert_transpose){q->groups, q->rows / q->groups, q->columns,
                                             moert_dtype_bits(c->type) / 8, c->stored, values}));
    return MOERT_OK;
}

/* Quantizes a result from `values`. */
static moert_status store(const moert_quant_backend *by, const moert_op_buffers *b,
                          const moert_conversion *c, moert_buffer *payload, moert_buffer *scale,
                          moert_buffer *values) {
    const moert_op_quantized *q = c->as;
    moert_quantize job = describe(b, c, values, payload, scale);
    job.norm = b->norm;
    MOERT_TRY(by->quantize(&job));
    if (c->transposed != NULL)
        MOERT_TRY(
            by->transpose(&(moert_transpose){1, q->width, q->blocks, 1, c->transposed, c->scale}));
    return c->scale != NULL ? move_scales(by, b, c, c->scale, scale, true) : MOERT_OK;
}

/* ---- all operands ---- */

/* Sets payload and linear scales of a direct operand, which the backend takes without
 * dequantizing. */
static moert_status take_payload(const moert_op *op, const moert_op_buffers *b,
                                 moert_conversion *c) {
    const moert_op_quantized *q = c->as;
    const bool discrete = c->discrete_quantized != NULL;
    for (size_t g = 0; g < (discrete ? op->options.groups : 1); g++) {
        moert_buffer *scale = discrete ? b->weight_scales[g] : *moert_op_buffer_at(b, q->scale);
        moert_buffer *linear = discrete && c->scales != NULL ? c->scales[g] : c->scale;
        moert_quantized *quantized = discrete ? &c->discrete_quantized[g] : &c->quantized;
        if (linear != NULL)
            MOERT_TRY(move_scales(op->quantizers, b, c, linear, scale, false));
        *quantized = c->quantized;
        quantized->q = discrete ? b->weights[g] : *moert_op_buffer_at(b, q->payload);
        quantized->scale = linear != NULL ? linear : scale;
    }
    return MOERT_OK;
}

static moert_status load_operand(const moert_op *op, const moert_op_buffers *b,
                                 moert_conversion *c) {
    const moert_op_quantized *q = c->as;
    if (c->direct)
        return take_payload(op, b, c);
    if (!is_discrete(op, q))
        return load(op->quantizers, b, c, *moert_op_buffer_at(b, q->payload),
                    *moert_op_buffer_at(b, q->scale), op->values[q->payload]);
    for (size_t g = 0; g < op->options.groups; g++)
        MOERT_TRY(
            load(op->quantizers, b, c, b->weights[g], b->weight_scales[g], op->discrete_values[g]));
    return MOERT_OK;
}

/* Computes op->alphas: alpha times the global scales or, in DGLU, the global scales alone. */
static moert_status fold_globals(const moert_op *op, const moert_op_buffers *b) {
    moert_global_scales fold = {.groups = op->options.groups, .to = op->alphas};
    if (op->alphas == NULL)
        return MOERT_OK;
    fold.alpha = op->options.kind == MOERT_OP_DGLU ? NULL : b->alpha;
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        if (q->global == MOERT_OP_BUFFERS)
            continue;
        const bool second = fold.first != NULL;
        *(second ? &fold.second : &fold.first) = *moert_op_buffer_at(b, q->global);
        *(second ? &fold.second_by_groups : &fold.first_by_groups) = q->how.group_scales;
    }
    return op->quantizers->fold_globals(&fold);
}

moert_status moert_op_load_operands(moert_op *op, const moert_op_buffers *b) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (!op->quantized[i].result && op->options.rows > 0)
            MOERT_TRY(load_operand(op, b, &op->conversions[i]));
    return fold_globals(op, b);
}

moert_status moert_op_store_results(moert_op *op, const moert_op_buffers *b) {
    const moert_op_buffer result = moert_op_roles_of(op->options.kind).result;
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        if (q->result)
            MOERT_TRY(store(op->quantizers, b, &op->conversions[i],
                            *moert_op_buffer_at(b, q->payload), *moert_op_buffer_at(b, q->scale),
                            op->values[result]));
    }
    return MOERT_OK;
}
