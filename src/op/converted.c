/*
 * Ops with quantised operands, on every backend: an inner op of float32 operands in workspace, or
 * bf16 factors for tensor cores, and conversions around it. Factors are dequantised without their
 * global scales, which are folded into alpha, or become one (the inner product is then not the
 * result); results are quantised from what the inner op gives. A backend that decodes weights
 * itself gets theirs with linear scales, and no float32 copy of them is made; one that decodes
 * factors just ahead of the product gets the workspace for their numbers too.
 *
 *   tiled scales -> linear -> [ transposed ] -> dequantise -> [ transposed, a weight ] -> inner op
 *   inner op -> quantise -> linear scales -> [ transposed ] -> tiled
 *
 * An execute only calls entries that launch kernels, so that it can be recorded.
 */
#include <stdlib.h>

#include "base/memory.h"
#include "op/converted.h"

typedef struct converted {
    const moert_quant_backend *by;
    moert_op inner;
    moert_conversion conversions[MOERT_OP_MOST_QUANTIZED];
    size_t count;
    moert_buffer *values[MOERT_OP_BUFFERS]; /* operands of the inner op */
    moert_buffer **weights;                 /* discrete: [G] */
    moert_coded *coded;                     /* of the inner op: [1] or, discrete, [G] */
    moert_coded ahead[2];                   /* factors that the inner op decodes into `values` */
    moert_buffer *ready;                    /* uint32 [G], with them */
    moert_buffer *factors;                  /* float32 [G]: alpha with the global scales */
} converted;

/* ---- creation ---- */

static moert_status add_buffer(moert_op *op, size_t elements, size_t bytes, moert_buffer **buffer) {
    size_t all;
    if (__builtin_mul_overflow(elements, bytes, &all))
        return MOERT_FAIL(ERROR_MEMORY, "%s: workspace of %zu x %zu bytes",
                          moert_op_kind_name(op->options.kind), elements, bytes);
    op->workspace_bytes += all;
    MOERT_TRY(moert_buffer_create(op->device, all, buffer));
    return MOERT_OK;
}

/* The same for values or scales of `q`: what a broken promise leaves out of a factor is not
 * written, but read. */
static moert_status add_part(moert_op *op, const moert_op_quantized *q, size_t elements,
                             size_t bytes, moert_buffer **buffer) {
    MOERT_TRY(add_buffer(op, elements, bytes, buffer));
    if (q->by_ends && !q->result && op->options.row_multiple > 1)
        MOERT_TRY(moert_buffer_clear(*buffer, 0, elements * bytes));
    return MOERT_OK;
}

static bool is_discrete(const moert_op *op, const moert_op_quantized *q) {
    return q->payload == MOERT_OP_BUFFER_weight && op->options.weight.discrete;
}

/* Whether the backend takes the operand as it is; in GPU form none does. */
static bool is_taken(const moert_op *op, const moert_op_quantized *q) {
    return q->payload == MOERT_OP_BUFFER_weight && op->backend->decodes &&
           !moert_device_describe(op->device)->gpu_form;
}

/* What the operand becomes in the inner op: tensor cores take bf16 factors, which hold the values
 * of every format that comes here, elements of 4 significant bits at most times scales of as
 * many. */
static moert_number value_type(const moert_op *op, bool result) {
    return op->backend == &moert_op_backend_nvidia && !result ? MOERT_NUMBER_BF16
                                                              : MOERT_NUMBER_F32;
}

static void destroy_all(moert_buffer **buffers, size_t count) {
    for (size_t i = 0; buffers != NULL && i < count; i++)
        moert_buffer_destroy(buffers[i]);
    free(buffers);
}

static void destroy(moert_op *op) {
    converted *state = op->state;
    if (state->inner.state != NULL)
        state->inner.backend->destroy(&state->inner);
    for (size_t i = 0; i < state->count; i++) {
        moert_conversion *c = &state->conversions[i];
        moert_buffer *const all[] = {c->stored, c->ends, c->block_ends, c->scale, c->turned};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            moert_buffer_destroy(all[j]);
        destroy_all(c->scales, op->options.groups);
    }
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++)
        moert_buffer_destroy(state->values[i]);
    destroy_all(state->weights, op->options.groups);
    moert_buffer_destroy(state->factors);
    moert_buffer_destroy(state->ready);
    free(state->coded);
    free(state);
}

/* Ends of equal groups. */
static moert_status make_ends(moert_op *op, const moert_op_quantized *q, moert_buffer **buffer) {
    uint32_t *ends;
    MOERT_TRY(MOERT_NEW_ARRAY(&ends, q->groups));
    for (size_t g = 0; g < q->groups; g++)
        ends[g] = (uint32_t)((g + 1) * (q->rows / q->groups));
    moert_status status = add_buffer(op, q->groups, sizeof *ends, buffer);
    if (status == MOERT_OK)
        status = moert_buffer_write(*buffer, 0, ends, q->groups * sizeof *ends);
    free(ends);
    return status;
}

static moert_status make_values(moert_op *op, const moert_op_quantized *q) {
    converted *state = op->state;
    const size_t elements = q->rows * q->columns;
    const size_t bytes = moert_number_bits(value_type(op, q->result)) / 8;
    if (q->payload == MOERT_OP_BUFFER_column) /* quantised from the result */
        return MOERT_OK;
    if (is_taken(op, q))
        return MOERT_NEW_ARRAY(&state->coded, is_discrete(op, q) ? op->options.groups : 1);
    if (!is_discrete(op, q))
        return add_part(op, q, elements, bytes, &state->values[q->payload]);
    MOERT_TRY(MOERT_NEW_ARRAY(&state->weights, op->options.groups));
    for (size_t g = 0; g < op->options.groups; g++)
        MOERT_TRY(add_buffer(op, elements, bytes, &state->weights[g]));
    return MOERT_OK;
}

/* Linear scales. */
static moert_status make_scales(moert_op *op, const moert_op_quantized *q, size_t scales,
                                moert_conversion *c) {
    if (!is_taken(op, q) || !is_discrete(op, q))
        return add_part(op, q, scales, 1, &c->scale);
    MOERT_TRY(MOERT_NEW_ARRAY(&c->scales, op->options.groups));
    for (size_t g = 0; g < op->options.groups; g++)
        MOERT_TRY(add_buffer(op, scales, 1, &c->scales[g]));
    return MOERT_OK;
}

static moert_status make_conversion(moert_op *op, const moert_op_quantized *q,
                                    moert_conversion *c) {
    const bool column = q->how.axis == MOERT_AXIS_COLUMN;
    const size_t scales = (column ? q->blocks : q->rows) * q->width;
    c->as = q;
    c->ahead = moert_op_decodes_ahead(op, q);
    c->type = value_type(op, q->result);
    MOERT_TRY(make_values(op, q));
    if (is_taken(op, q) && q->scales == MOERT_SCALES_LINEAR)
        return MOERT_OK;
    if (q->flipped && !is_taken(op, q))
        MOERT_TRY(add_buffer(op, q->rows * q->columns, moert_number_bits(c->type) / 8, &c->stored));
    if (!q->by_ends && q->groups > 0)
        MOERT_TRY(make_ends(op, q, &c->ends));
    if (q->scales == MOERT_SCALES_LINEAR)
        return MOERT_OK;
    MOERT_TRY(make_scales(op, q, scales, c));
    if (column)
        MOERT_TRY(add_buffer(op, q->groups, sizeof(uint32_t), &c->block_ends));
    if (q->how.transposed)
        MOERT_TRY(add_buffer(op, scales, 1, &c->turned));
    return MOERT_OK;
}

/* The inner op: the same with plain operands. */
static moert_status make_inner(moert_op *op, bool folds) {
    converted *state = op->state;
    moert_op *inner = &state->inner;
    moert_op_options *o = &inner->options;
    *inner = *op;
    inner->state = NULL;
    inner->workspace_bytes = 0;
    const bool discrete = o->weight.discrete;
    moert_operand *const operands[] = {&o->x, &o->weight, &o->y, &o->d};
    const size_t widths[] = {o->k, o->k, o->n, op->glu_width * (o->kind == MOERT_OP_DGLU ? 2 : 1)};
    const bool results[] = {op->x.output, false, op->y.output, true};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        if (operands[i]->how.size != 0)
            *operands[i] =
                (moert_operand){.type = value_type(op, results[i]), .stride = (ptrdiff_t)widths[i]};
    o->weight.discrete = discrete;
    o->column = (moert_operand){.type = MOERT_NUMBER_F32};
    inner->coded = state->coded;
    inner->ahead = state->ready != NULL ? state->ahead : NULL;
    inner->ready = state->ready;
    if (folds && o->kind == MOERT_OP_DGLU)
        inner->acc_scale = state->factors;
    else
        o->alpha = o->alpha || folds;
    const moert_status status = inner->backend->create(inner);
    if (status != MOERT_OK) {
        inner->state = NULL; /* already freed */
        return moert_error_pass(status, __func__, __LINE__);
    }
    op->workspace_bytes += inner->workspace_bytes;
    return MOERT_OK;
}

static moert_status create(moert_op *op) {
    converted *state;
    moert_status status;
    bool folds = false, ahead = false;
    MOERT_TRY(MOERT_NEW(&state));
    op->state = state;
    state->by =
        op->backend == &moert_op_backend_reference ? &moert_quant_reference : &moert_quant_portable;
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        folds = folds || q->global != MOERT_OP_BUFFERS;
        MOERT_TRY_OR(undo, make_conversion(op, q, &state->conversions[state->count++]));
        ahead = ahead || state->conversions[i].ahead;
    }
    if (folds)
        MOERT_TRY_OR(undo, add_buffer(op, op->options.groups, sizeof(float), &state->factors));
    if (ahead)
        MOERT_TRY_OR(undo, add_buffer(op, op->options.groups, sizeof(uint32_t), &state->ready));
    MOERT_TRY_OR(undo, make_inner(op, folds));
    return MOERT_OK;
undo:
    destroy(op);
    return status;
}

/* ---- execute ---- */

/* A weight as the backend takes it: payload, and scales in lines. */
static moert_status take_weight(const moert_op *op, const moert_op_buffers *b,
                                const moert_conversion *c) {
    const converted *state = op->state;
    const moert_op_quantized *q = c->as;
    const bool discrete = is_discrete(op, q);
    for (size_t g = 0; g < (discrete ? op->options.groups : 1); g++) {
        moert_buffer *given = discrete ? b->weight_scales[g] : b->weight_scale;
        moert_buffer *linear = c->scales != NULL ? c->scales[g] : c->scale;
        if (linear != NULL)
            MOERT_TRY(moert_conversion_move_scales(state->by, b, c, linear, given, false));
        state->coded[g] = (moert_coded){.format = q->how.format,
                                        .axis = q->how.axis,
                                        .flipped = q->flipped,
                                        .q = discrete ? b->weights[g] : b->weight,
                                        .scale = linear != NULL ? linear : given};
    }
    return MOERT_OK;
}

/* A factor as the inner op decodes it: scales in lines. */
static moert_status take_factor(const moert_op *op, const moert_op_buffers *b,
                                const moert_conversion *c) {
    converted *state = op->state;
    const moert_op_kind kind = op->options.kind;
    const moert_op_quantized *q = c->as;
    const moert_op_buffer first = kind == MOERT_OP_GEMM_DGRAD || kind == MOERT_OP_GEMM_WGRAD
                                      ? MOERT_OP_BUFFER_y
                                      : MOERT_OP_BUFFER_x;
    moert_op_buffers given = *b;
    moert_buffer *scale = *moert_op_buffer_at(&given, q->scale);
    if (c->scale != NULL)
        MOERT_TRY(moert_conversion_move_scales(state->by, b, c, c->scale, scale, false));
    state->ahead[q->payload != first] = (moert_coded){.format = q->how.format,
                                                      .axis = q->how.axis,
                                                      .q = *moert_op_buffer_at(&given, q->payload),
                                                      .scale = c->scale != NULL ? c->scale : scale};
    return MOERT_OK;
}

static moert_status load_factor(const moert_op *op, const moert_op_buffers *b,
                                const moert_conversion *c) {
    const converted *state = op->state;
    const moert_op_quantized *q = c->as;
    moert_op_buffers given = *b;
    if (is_taken(op, q))
        return take_weight(op, b, c);
    if (c->ahead)
        return take_factor(op, b, c);
    if (!is_discrete(op, q))
        return moert_conversion_load(state->by, b, c, *moert_op_buffer_at(&given, q->payload),
                                     *moert_op_buffer_at(&given, q->scale),
                                     state->values[q->payload]);
    for (size_t g = 0; g < op->options.groups; g++)
        MOERT_TRY(moert_conversion_load(state->by, b, c, b->weights[g], b->weight_scales[g],
                                        state->weights[g]));
    return MOERT_OK;
}

/* alpha times the global scales; in DGLU these alone. */
static moert_status fold_globals(const moert_op *op, const moert_op_buffers *b) {
    const converted *state = op->state;
    moert_op_buffers given = *b;
    moert_global_scales fold = {.groups = op->options.groups, .to = state->factors};
    if (state->factors == NULL)
        return MOERT_OK;
    fold.alpha = op->options.kind == MOERT_OP_DGLU ? NULL : b->alpha;
    for (size_t i = 0; i < state->count; i++) {
        const moert_op_quantized *q = state->conversions[i].as;
        if (q->global == MOERT_OP_BUFFERS)
            continue;
        const bool second = fold.first != NULL;
        *(second ? &fold.second : &fold.first) = *moert_op_buffer_at(&given, q->global);
        *(second ? &fold.second_by_groups : &fold.first_by_groups) = q->how.group_scales;
    }
    return state->by->fold_globals(&fold);
}

/* The buffers of the inner op. */
static moert_op_buffers inner_buffers(const moert_op *op, const moert_op_buffers *b) {
    const converted *state = op->state;
    moert_op_buffers inside = *b;
    for (size_t i = 0; i < state->count; i++) {
        const moert_op_quantized *q = state->conversions[i].as;
        *moert_op_buffer_at(&inside, q->payload) = state->values[q->payload];
        *moert_op_buffer_at(&inside, q->scale) = NULL;
        if (q->global != MOERT_OP_BUFFERS)
            *moert_op_buffer_at(&inside, q->global) = NULL;
    }
    inside.norm = NULL;
    inside.weight_scales = NULL;
    if (state->weights != NULL)
        inside.weights = state->weights;
    if (state->factors != NULL && op->options.kind != MOERT_OP_DGLU)
        inside.alpha = state->factors;
    return inside;
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    converted *state = op->state;
    moert_op_buffers given = *b;
    const moert_op_buffers inside = inner_buffers(op, b);
    const bool rows = op->options.rows > 0;
    for (size_t i = 0; i < state->count; i++)
        if (!state->conversions[i].as->result && rows)
            MOERT_TRY(load_factor(op, b, &state->conversions[i]));
    MOERT_TRY(fold_globals(op, b));
    MOERT_TRY(state->inner.backend->execute(&state->inner, &inside));
    const moert_op_buffer result = moert_op_has_glu(op) ? MOERT_OP_BUFFER_d
                                   : op->x.output       ? MOERT_OP_BUFFER_x
                                                        : MOERT_OP_BUFFER_y;
    for (size_t i = 0; i < state->count; i++) {
        const moert_conversion *c = &state->conversions[i];
        if (c->as->result)
            MOERT_TRY(moert_conversion_store(
                state->by, b, c, *moert_op_buffer_at(&given, c->as->payload),
                *moert_op_buffer_at(&given, c->as->scale), state->values[result]));
    }
    return MOERT_OK;
}

const moert_op_backend moert_op_converted = {"converted", false,   false, create,
                                             destroy,     execute, NULL,  NULL};
