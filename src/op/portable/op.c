/*
 * The portable backend of ops: the float32 products of kernels/gemm/gemm.cl, with
 * kernels/op/rows.cl around them where an operand has another type, order or epilogue.
 */
#include <stdlib.h>

#include "base/memory.h"
#include "gemm/portable/gemm.h"
#include "op/portable/op.h"

enum {
    SHARE = 4096,           /* in kernels/op/rows.cl */
    BATCH_BYTES = 64 << 20, /* of converted weights */
};

/* ---- workspace ---- */

static bool is_plain(const moert_op_rows *rows, const moert_operand *operand) {
    return operand->type == MOERT_NUMBER_F32 && !rows->gathered;
}

static bool is_direct(const moert_op *op) {
    const moert_op_options *o = &op->options;
    if (o->alpha || o->beta || o->accumulate || o->bias_scale || o->row_weight || o->prob ||
        o->amax || moert_op_has_glu(op))
        return false;
    if (o->bias && o->bias_type != MOERT_NUMBER_F32)
        return false;
    if (o->kind == MOERT_OP_GEMM_WGRAD)
        return o->weight.type == MOERT_NUMBER_F32;
    return op->x.output ? is_plain(&op->x, &o->x) : is_plain(&op->y, &o->y);
}

/* Columns of the product's result rows. */
static size_t product_columns(const moert_op *op) {
    return op->y.input ? op->options.k : op->options.n;
}

static moert_status add_buffer(moert_op *op, bool wanted, size_t floats, moert_buffer **buffer) {
    if (!wanted)
        return MOERT_OK;
    op->workspace_bytes += floats * sizeof(float);
    return moert_buffer_create(op->device, floats * sizeof(float), buffer);
}

static void destroy(moert_op *op) {
    moert_op_workspace *work = op->state;
    moert_buffer *const all[] = {work->x, work->y, work->weight, work->acc, work->wide, work->peak};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        moert_buffer_destroy(all[i]);
    free(work);
}

static moert_status create(moert_op *op) {
    const moert_op_options *o = &op->options;
    const size_t m = o->rows, weight = o->n * o->k;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, dglu = o->kind == MOERT_OP_DGLU;
    moert_op_workspace *work;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&work));
    op->state = work;
    work->direct = is_direct(op);
    const bool converts = o->weight.type != MOERT_NUMBER_F32 || (wgrad && !work->direct);
    const size_t fitting = moert_max(BATCH_BYTES / sizeof(float) / weight, 1);
    work->batch = converts             ? moert_max(moert_min(fitting, o->groups), 1)
                  : o->weight.discrete ? 1
                                       : moert_max(o->groups, 1);
    MOERT_TRY_OR(undo, add_buffer(op, op->x.input && !is_plain(&op->x, &o->x), m * o->k, &work->x));
    MOERT_TRY_OR(undo, add_buffer(op, op->y.input && !is_plain(&op->y, &o->y), m * o->n, &work->y));
    MOERT_TRY_OR(undo, add_buffer(op, converts, work->batch * weight, &work->weight));
    MOERT_TRY_OR(undo,
                 add_buffer(op, !work->direct && !wgrad, m * product_columns(op), &work->acc));
    MOERT_TRY_OR(undo, add_buffer(op, o->dbias, m * 2 * op->glu_width, &work->wide));
    MOERT_TRY_OR(undo, add_buffer(op, o->amax, m * (dglu ? 2 : 1), &work->peak));
    return MOERT_OK;
undo:
    destroy(op);
    return status;
}

/* ---- around the products ---- */

/* The rows as the product takes them: the caller's, or the copy in the workspace. */
static moert_status load_rows(const moert_op *op, const moert_op_buffers *b,
                              const moert_op_rows *rows, moert_op_buffer which, moert_buffer *copy,
                              moert_buffer **use, size_t *stride) {
    const moert_op_options *o = &op->options;
    const moert_operand *operand = which == MOERT_OP_BUFFER_x ? &o->x : &o->y;
    *use = which == MOERT_OP_BUFFER_x ? b->x : b->y;
    *stride = (size_t)operand->stride;
    if (copy == NULL)
        return MOERT_OK;
    const moert_buffer *source = *use;
    const size_t split = moert_op_split(op, rows->width);
    const moert_grid grid = {moert_ceil_div(o->rows, split), 1, 1};
    *use = copy;
    *stride = rows->width;
    return MOERT_RUN(
        op->device, MOERT_PROGRAM(op->device, "op/rows", rows->width | operand->stride),
        "op_load_rows", grid, MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups),
        MOERT_ARG((unsigned)o->rows), MOERT_ARG(source), MOERT_ARG((int)operand->type),
        MOERT_ARG((size_t)operand->stride), MOERT_ARG(rows->gathered ? b->gather : NULL),
        MOERT_ARG((unsigned)rows->divisor), MOERT_ARG(copy), MOERT_ARG((int)rows->width),
        MOERT_ARG((unsigned)split));
}

/* Raises amax, if it is wanted, by the peaks of the rows, `sets` of each. */
static moert_status raise_amax(const moert_op *op, const moert_op_buffers *b, unsigned sets) {
    const moert_op_workspace *work = op->state;
    if (b->amax == NULL)
        return MOERT_OK;
    return MOERT_RUN(op->device, "op/rows", "op_amax", ((moert_grid){op->options.groups, sets, 1}),
                     MOERT_ARG(b->ends), MOERT_ARG((unsigned)op->options.rows),
                     MOERT_ARG(work->peak), MOERT_ARG(b->amax), MOERT_ARG(sets));
}

static moert_status store_rows(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_workspace *work = op->state;
    const moert_op_options *o = &op->options;
    const moert_op_rows *rows = op->x.output ? &op->x : &op->y;
    const moert_operand *operand = op->x.output ? &o->x : &o->y;
    const size_t split = moert_op_split(op, rows->width);
    const moert_grid grid = {moert_ceil_div(o->rows, split), 1, 1};
    MOERT_TRY(MOERT_RUN(
        op->device, MOERT_PROGRAM(op->device, "op/rows", rows->width | operand->stride),
        "op_store_rows", grid, MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups),
        MOERT_ARG((unsigned)o->rows), MOERT_ARG(work->acc), MOERT_ARG((int)rows->width),
        MOERT_ARG(b->alpha), MOERT_ARG(b->beta), MOERT_ARG(o->accumulate ? 1.0f : 0.0f),
        MOERT_ARG(b->bias), MOERT_ARG((int)o->bias_type), MOERT_ARG(b->bias_scale),
        MOERT_ARG(rows->gathered ? b->gather : NULL), MOERT_ARG(b->row_weight), MOERT_ARG(b->prob),
        MOERT_ARG(op->x.output ? b->x : b->y), MOERT_ARG((int)operand->type),
        MOERT_ARG((size_t)operand->stride), MOERT_ARG(work->peak), MOERT_ARG((unsigned)split)));
    return raise_amax(op, b, 1);
}

/* Weights of groups [first, first + count): from place `place` of `weight`, to or from place `slot`
 * of the workspace. */
typedef struct weights {
    size_t first, count, slot, place;
    moert_buffer *weight;
} weights;

static moert_status load_weights(const moert_op *op, const moert_op_buffers *b, weights w) {
    const moert_op_workspace *work = op->state;
    const size_t elements = op->options.n * op->options.k;
    const moert_grid grid = {moert_ceil_div(elements, SHARE), w.count, 1};
    return MOERT_RUN(op->device, MOERT_PROGRAM(op->device, "op/rows", elements), "op_load_weight",
                     grid, MOERT_ARG(b->ends), MOERT_ARG((unsigned)w.first),
                     MOERT_ARG((unsigned)w.slot), MOERT_ARG((unsigned)w.place), MOERT_ARG(w.weight),
                     MOERT_ARG((int)op->options.weight.type), MOERT_ARG(work->weight),
                     MOERT_ARG(elements));
}

static moert_status store_weights(const moert_op *op, const moert_op_buffers *b, weights w) {
    const moert_op_workspace *work = op->state;
    const moert_op_options *o = &op->options;
    const size_t elements = o->n * o->k;
    const moert_grid grid = {moert_ceil_div(elements, SHARE), w.count, 1};
    return MOERT_RUN(op->device, MOERT_PROGRAM(op->device, "op/rows", elements), "op_store_weight",
                     grid, MOERT_ARG(b->ends), MOERT_ARG((unsigned)w.first),
                     MOERT_ARG((unsigned)w.slot), MOERT_ARG((unsigned)w.place),
                     MOERT_ARG(work->weight), MOERT_ARG(b->alpha), MOERT_ARG(b->beta),
                     MOERT_ARG(o->accumulate ? 1.0f : 0.0f), MOERT_ARG(w.weight),
                     MOERT_ARG((int)o->weight.type), MOERT_ARG(elements));
}

/* Moves the weights of a batch, each discrete one by itself. */
static moert_status move_weights(const moert_op *op, const moert_op_buffers *b, size_t start,
                                 size_t count,
                                 moert_status (*move)(const moert_op *, const moert_op_buffers *,
                                                      weights)) {
    if (!op->options.weight.discrete)
        return move(op, b, (weights){start, count, 0, start, b->weight});
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(move(op, b, (weights){start + i, 1, i, 0, b->weights[start + i]}));
    return MOERT_OK;
}

/* ---- the products ---- */

/* The products of gemm->groups.count groups from `start` on. */
static moert_status multiply_batch(const moert_op *op, const moert_op_buffers *b, moert_gemm *gemm,
                                   size_t start) {
    const moert_op_workspace *work = op->state;
    const size_t count = gemm->groups.count;
    const bool discrete = op->options.weight.discrete, converts = work->weight != NULL;
    const moert_coded *coded = op->coded != NULL ? &op->coded[discrete ? start : 0] : NULL;
    gemm->weight = converts ? work->weight : discrete ? b->weights[start] : b->weight;
    if (op->options.kind == MOERT_OP_GEMM_WGRAD) {
        MOERT_TRY(moert_portable_wgrad_from(gemm, start));
        return converts ? move_weights(op, b, start, count, store_weights) : MOERT_OK;
    }
    if (converts)
        MOERT_TRY(move_weights(op, b, start, count, load_weights));
    return op->y.input ? moert_portable_dgrad_from(gemm, start, coded)
                       : moert_portable_forward_from(gemm, start, coded);
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_workspace *work = op->state;
    const moert_op_options *o = &op->options;
    moert_gemm gemm = {.groups = {b->ends, o->groups, o->rows}, .n = o->n, .k = o->k};
    gemm.bias = work->direct ? b->bias : NULL;
    MOERT_TRY(load_rows(op, b, &op->x, MOERT_OP_BUFFER_x, work->x, &gemm.x, &gemm.ldx));
    MOERT_TRY(load_rows(op, b, &op->y, MOERT_OP_BUFFER_y, work->y, &gemm.y, &gemm.ldy));
    if (work->acc != NULL && op->y.input) {
        gemm.x = work->acc;
        gemm.ldx = o->k;
    } else if (work->acc != NULL) {
        gemm.y = work->acc;
        gemm.ldy = o->n;
    }
    for (size_t start = 0; start < o->groups; start += work->batch) {
        gemm.groups.count = moert_min(work->batch, o->groups - start);
        MOERT_TRY(multiply_batch(op, b, &gemm, start));
    }
    if (work->acc == NULL)
        return MOERT_OK;
    if (o->kind == MOERT_OP_GLU) {
        MOERT_TRY(moert_op_portable_glu(op, b));
        return raise_amax(op, b, 1);
    }
    if (o->kind == MOERT_OP_DGLU) {
        MOERT_TRY(moert_op_portable_dglu(op, b));
        return raise_amax(op, b, 2);
    }
    return store_rows(op, b);
}

const moert_op_backend moert_op_backend_portable = {"portable", true,    true, create,
                                                    destroy,    execute, NULL, NULL};
