/* The GLU of the portable backend's ops: kernels/op/glu.cl behind the product. */
#include "base/memory.h"
#include "op/portable/op.h"

moert_status moert_op_portable_glu(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_workspace *work = op->state;
    const moert_op_options *o = &op->options;
    const size_t split = moert_op_split(op, o->n);
    const moert_grid grid = {moert_ceil_div(o->rows, split), 1, 1};
    return MOERT_RUN(op->device,
                     MOERT_PROGRAM(op->device, "op/glu", op->glu_width | o->c.stride | o->d.stride),
                     "op_glu", grid, MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups),
                     MOERT_ARG((unsigned)o->rows), MOERT_ARG(work->acc), MOERT_ARG(b->alpha),
                     MOERT_ARG(b->bias), MOERT_ARG((int)o->bias_type), MOERT_ARG(b->prob),
                     MOERT_ARG(b->c), MOERT_ARG((int)o->c.type), MOERT_ARG((size_t)o->c.stride),
                     MOERT_ARG(b->d), MOERT_ARG((int)o->d.type), MOERT_ARG((size_t)o->d.stride),
                     MOERT_ARG(work->peak), MOERT_ARG((int)op->glu_width), MOERT_ARG((int)op->run),
                     MOERT_ARG((int)o->linear_first), MOERT_ARG(o->glu.limit),
                     MOERT_ARG(o->glu.alpha), MOERT_ARG(o->glu.offset), MOERT_ARG((unsigned)split));
}

static moert_status add_dbias(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_workspace *work = op->state;
    const size_t columns = 2 * op->glu_width;
    const moert_grid grid = {moert_ceil_div(columns, moert_share(op->device, 16, 128)),
                             op->options.groups, 1};
    if (b->dbias == NULL)
        return MOERT_OK;
    return MOERT_RUN(op->device, MOERT_PROGRAM(op->device, "op/glu", columns), "op_dbias", grid,
                     MOERT_ARG(b->ends), MOERT_ARG((unsigned)op->options.rows),
                     MOERT_ARG(work->wide), MOERT_ARG(b->dbias),
                     MOERT_ARG((int)op->options.bias_type), MOERT_ARG((int)columns));
}

moert_status moert_op_portable_dglu(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_workspace *work = op->state;
    const moert_op_options *o = &op->options;
    const size_t split = moert_op_split(op, 2 * op->glu_width);
    const moert_grid grid = {moert_ceil_div(o->rows, split), 1, 1};
    const bool scaled = moert_op_dglu_scales(op);
    MOERT_TRY(MOERT_RUN(
        op->device, MOERT_PROGRAM(op->device, "op/glu", op->glu_width | o->c.stride | o->d.stride),
        "op_dglu", grid, MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups),
        MOERT_ARG((unsigned)o->rows), MOERT_ARG(work->acc), MOERT_ARG(scaled ? b->alpha : NULL),
        MOERT_ARG(scaled ? b->beta : NULL), MOERT_ARG(op->acc_scale), MOERT_ARG(b->prob),
        MOERT_ARG(b->c), MOERT_ARG((int)o->c.type), MOERT_ARG((size_t)o->c.stride), MOERT_ARG(b->d),
        MOERT_ARG((int)o->d.type), MOERT_ARG((size_t)o->d.stride), MOERT_ARG(work->wide),
        MOERT_ARG(work->peak), MOERT_ARG(b->dprob), MOERT_ARG((int)op->glu_width),
        MOERT_ARG((int)op->run), MOERT_ARG((int)o->linear_first), MOERT_ARG(o->glu.limit),
        MOERT_ARG(o->glu.alpha), MOERT_ARG(o->glu.offset), MOERT_ARG((unsigned)split)));
    return add_dbias(op, b);
}
