/* GEMMs with a workspace (general.h): allocates the workspace, and launches the conversions, the
 * float32 GEMM and the epilogue. */
#include "args/op.h"
#include "base/memory.h"
#include "device/device.h"
#include "gemm/portable/general.h"

#include <stdlib.h>

#include "gemm/portable/gemm.h"

enum {
    BATCH_BYTES = 64 << 20, /* bytes of a batch of converted weights, unless one weight is larger */
};

/* ---- workspace ---- */

static bool reads_y(const moert_gemm *gemm) {
    return gemm->kind != MOERT_GEMM_FORWARD;
}

static bool is_plain(const moert_matrix *rows) {
    return rows->type == MOERT_DTYPE_F32 && rows->gather == NULL;
}

void moert_portable_release(moert_workspace *workspace) {
    moert_general *work = workspace->state;
    if (work == NULL)
        return;
    moert_buffer *const all[] = {work->x, work->y, work->weight, work->acc};
    for (size_t i = 0; i < MOERT_COUNT(all); i++)
        moert_buffer_destroy(all[i]);
    free(work);
    workspace->state = NULL;
}

/* Sets the offsets of the epilogue's results, which follow the GEMM's sums in work->acc. Returns
 * the floats of sums and results together. */
static size_t place_results(const moert_gemm *gemm, moert_general *work) {
    const size_t m = gemm->groups.rows, grain = 16; /* floats of a cache line */
    size_t floats = moert_round_up(m * (reads_y(gemm) ? gemm->k : gemm->n), grain);
    if (gemm->glu.dbias != NULL) {
        work->wide = floats;
        floats += moert_round_up(m * 2 * gemm->glu.width, grain);
    }
    if (gemm->more->amax != NULL) {
        work->peak = floats;
        floats += m * (gemm->glu.gated == MOERT_GATED_BACKWARD ? 2 : 1);
    }
    return floats;
}

moert_status moert_portable_reserve(moert_device *device, const moert_gemm *gemm,
                                    moert_workspace *workspace) {
    const size_t m = gemm->groups.rows, groups = gemm->groups.count, weight = gemm->n * gemm->k;
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    /* whether the kernels can write the caller's buffer directly, since no epilogue follows */
    const bool direct =
        !moert_gemm_has_epilogue(gemm) && !gemm->glu.gated && is_plain(moert_gemm_output(gemm));
    const bool converts = gemm->weight.type != MOERT_DTYPE_F32 || (wgrad && !direct);
    const size_t fitting = moert_max(BATCH_BYTES / sizeof(float) / weight, 1);
    moert_general *work;
    MOERT_TRY(MOERT_NEW(&work));
    workspace->state = work;
    work->direct = direct;
    work->batch = converts               ? moert_max(moert_min(fitting, groups), 1)
                  : gemm->more->discrete ? 1
                                         : moert_max(groups, 1);
    const struct {
        bool wanted;
        size_t floats;
        moert_buffer **buffer;
    } parts[] = {
        {gemm->kind != MOERT_GEMM_DGRAD && !is_plain(&gemm->x), m * gemm->k, &work->x},
        {reads_y(gemm) && !is_plain(&gemm->y), m * gemm->n, &work->y},
        {converts, work->batch * weight, &work->weight},
        {!direct && !wgrad, place_results(gemm, work), &work->acc},
    };
    for (size_t i = 0; i < MOERT_COUNT(parts); i++)
        if (parts[i].wanted)
            MOERT_TRY(moert_workspace_add(device, parts[i].floats, sizeof(float), workspace,
                                          parts[i].buffer));
    return MOERT_OK;
}

/* ---- rows, weights and amax ---- */

/* Rows of a work-group: about 16384 elements; on GPUs one row. */
static size_t row_split(const moert_device *device, size_t columns) {
    return moert_by_form(device, moert_ceil_div(16384, columns), 1);
}

/* Sets *use to the rows `from`, of `width` columns. If `copy` is not NULL, converts the rows to
 * float32 in `copy`, and sets *use to the copy. */
static moert_status load_rows(const moert_gemm *gemm, const moert_matrix *from, size_t width,
                              moert_buffer *copy, moert_matrix *use) {
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    *use = *from;
    if (copy == NULL)
        return MOERT_OK;
    const size_t split = row_split(device, width);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    const bool divides = from == &gemm->x && from->gather != NULL;
    *use = (moert_matrix){.buffer = copy, .stride = width};
    return MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/rows", (ptrdiff_t)(width | from->stride)), "op_load_rows",
        grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG((const moert_buffer *)from->buffer),
        MOERT_ARG(from->gather), MOERT_ARG(copy),
        MOERT_ARGS(moert_rows_args, .groups = (unsigned)gemm->groups.count,
                   .rows = (unsigned)gemm->groups.rows, .type = (int)from->type,
                   .stride = from->stride, .divisor = divides ? (unsigned)gemm->more->divisor : 1,
                   .width = (int)width, .split = (unsigned)split));
}

/* The factor of the old result in all groups; unused if `beta` gives one for each group. */
static float beta_of(const moert_gemm *gemm) {
    return gemm->epilogue.addend == MOERT_ADDEND_LAST ? 1.0f : 0.0f;
}

/* Raises amax, unless it is NULL, to the peaks of the rows; each row has `sets` peaks. */
static moert_status raise_amax(const moert_gemm *gemm, unsigned sets) {
    const moert_general *work = gemm->more->workspace->state;
    if (gemm->more->amax == NULL)
        return MOERT_OK;
    return MOERT_RUN(
        moert_buffer_device(gemm->groups.ends), "op/rows", "op_amax",
        ((moert_grid){gemm->groups.count, sets, 1}), MOERT_ARG(gemm->groups.ends),
        MOERT_ARG(work->acc), MOERT_ARG(gemm->more->amax),
        MOERT_ARGS(moert_rows_args, .rows = (unsigned)gemm->groups.rows, .peak = work->peak));
}

static moert_status store_rows(const moert_gemm *gemm) {
    const moert_general *work = gemm->more->workspace->state;
    const moert_gemm_more *e = gemm->more;
    const bool dgrad = gemm->kind == MOERT_GEMM_DGRAD;
    const size_t width = dgrad ? gemm->k : gemm->n;
    const moert_matrix *to = dgrad ? &gemm->x : &gemm->y;
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    const size_t split = row_split(device, width);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    MOERT_TRY(MOERT_RUN(device, MOERT_PROGRAM(device, "op/rows", (ptrdiff_t)(width | to->stride)),
                        "op_store_rows", grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->acc),
                        MOERT_ARG(gemm->epilogue.alpha), MOERT_ARG(e->beta), MOERT_ARG(gemm->bias),
                        MOERT_ARG(gemm->bias != NULL ? e->bias_scale : e->prob),
                        MOERT_ARG(to->gather), MOERT_ARG(e->row_weight), MOERT_ARG(to->buffer),
                        MOERT_ARGS(moert_rows_args, .groups = (unsigned)gemm->groups.count,
                                   .rows = (unsigned)gemm->groups.rows, .width = (int)width,
                                   .beta_all = beta_of(gemm), .bias_type = (int)e->bias_type,
                                   .type = (int)to->type, .stride = to->stride, .peak = work->peak,
                                   .split = (unsigned)split)));
    return raise_amax(gemm, 1);
}

/* The weights of groups [first, first + count). The first weight is at index `index` of `weight`
 * and at index `slot` of the workspace. */
typedef struct weights {
    size_t first, count, slot, index;
    moert_buffer *weight;
} weights;

/* Converts weights to the workspace (`load`), or from the workspace to the caller's buffer. */
static moert_status move(const moert_gemm *gemm, weights w, bool load) {
    const moert_general *work = gemm->more->workspace->state;
    const moert_gemm_more *e = gemm->more;
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    const size_t elements = gemm->n * gemm->k;
    const char *program = MOERT_PROGRAM(device, "op/rows", elements);
    const moert_grid grid = {moert_ceil_div(elements, MOERT_OP_WEIGHT_BLOCK), w.count, 1};
    const moert_argument args =
        MOERT_ARGS(moert_moved_weight_args, .first = (unsigned)w.first, .slot = (unsigned)w.slot,
                   .weight_group = (unsigned)w.index, .beta_all = beta_of(gemm),
                   .type = (int)gemm->weight.type, .elements = elements);
    if (load)
        return MOERT_RUN(device, program, "op_load_weight", grid, MOERT_ARG(gemm->groups.ends),
                         MOERT_ARG(w.weight), MOERT_ARG(work->weight), args);
    return MOERT_RUN(device, program, "op_store_weight", grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(work->weight), MOERT_ARG(gemm->epilogue.alpha), MOERT_ARG(e->beta),
                     MOERT_ARG(w.weight), args);
}

/* Moves the weights of a batch; discrete weights need a launch each. */
static moert_status move_weights(const moert_gemm *gemm, size_t start, size_t count, bool load) {
    if (!gemm->more->discrete)
        return move(gemm, (weights){start, count, 0, start, gemm->weight.buffer}, load);
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(move(gemm, (weights){start + i, 1, i, 0, gemm->more->weights[start + i]}, load));
    return MOERT_OK;
}

/* ---- the GLU as an epilogue: kernels/op/glu.cl ---- */

/* Computes v, h and the rows' peaks from `acc`. */
static moert_status run_glu(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->more->workspace->state;
    const moert_gemm_more *e = gemm->more;
    const moert_glu *u = &gemm->glu;
    const size_t split = row_split(device, gemm->n);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    return MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/glu", (ptrdiff_t)(u->width | gemm->y.stride | u->ldh)),
        "op_glu", grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->acc),
        MOERT_ARG(gemm->epilogue.alpha), MOERT_ARG(gemm->bias), MOERT_ARG(u->prob),
        MOERT_ARG(gemm->y.buffer), MOERT_ARG(u->h),
        MOERT_ARGS(moert_glu_args, .peak = work->peak, .groups = (unsigned)gemm->groups.count,
                   .rows = (unsigned)gemm->groups.rows, .bias_type = (int)e->bias_type,
                   .c_type = (int)gemm->y.type, .c_stride = gemm->y.stride, .d_type = (int)u->type,
                   .d_stride = u->ldh, .width = (int)u->width, .run = (int)u->run,
                   .linear_first = (int)u->linear_first, .limit = u->form.limit,
                   .slope = u->form.alpha, .offset = u->form.offset,
                   .activation = u->form.activation, .split = (unsigned)split));
}

static moert_status add_dbias(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->more->workspace->state;
    const size_t columns = 2 * gemm->glu.width;
    const moert_grid grid = {moert_ceil_div(columns, moert_by_form(device, 16, 128)),
                             gemm->groups.count, 1};
    if (gemm->glu.dbias == NULL)
        return MOERT_OK;
    return MOERT_RUN(device, MOERT_PROGRAM(device, "op/glu", columns), "op_dbias", grid,
                     MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->acc), MOERT_ARG(gemm->glu.dbias),
                     MOERT_ARGS(moert_glu_args, .wide = work->wide,
                                .rows = (unsigned)gemm->groups.rows,
                                .type = (int)gemm->more->bias_type, .columns = (int)columns));
}

/* Computes dv, dprob, dbias and the rows' peaks from `acc`. */
static moert_status run_dglu(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->more->workspace->state;
    const moert_gemm_more *e = gemm->more;
    const moert_glu *u = &gemm->glu;
    const size_t split = row_split(device, 2 * u->width);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    MOERT_TRY(MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/glu", (ptrdiff_t)(u->width | u->ldv | u->ldh)), "op_dglu",
        grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->acc), MOERT_ARG(gemm->epilogue.alpha),
        MOERT_ARG(e->beta), MOERT_ARG(e->acc_scale), MOERT_ARG(u->prob), MOERT_ARG(u->v),
        MOERT_ARG(u->dv), MOERT_ARG(u->dprob),
        MOERT_ARGS(moert_glu_args, .wide = work->wide, .peak = work->peak,
                   .groups = (unsigned)gemm->groups.count, .rows = (unsigned)gemm->groups.rows,
                   .c_type = (int)u->from, .c_stride = u->ldv, .d_type = (int)u->type,
                   .d_stride = u->ldh, .width = (int)u->width, .run = (int)u->run,
                   .linear_first = (int)u->linear_first, .limit = u->form.limit,
                   .slope = u->form.alpha, .offset = u->form.offset,
                   .activation = u->form.activation, .split = (unsigned)split)));
    return add_dbias(gemm, device);
}

/* ---- the GEMM ---- */

/* Computes inner->groups.count groups from `start` on. */
static moert_status multiply_batch(const moert_gemm *gemm, const moert_gemm *inner, size_t start) {
    moert_gemm batch = *inner;
    const moert_general *work = gemm->more->workspace->state;
    const size_t count = inner->groups.count;
    const bool discrete = gemm->more->discrete, converts = work->weight != NULL;
    if (gemm->weight.quantized != NULL)
        batch.weight.quantized = &gemm->weight.quantized[discrete ? start : 0];
    batch.weight.buffer = converts                         ? work->weight
                          : batch.weight.quantized != NULL ? NULL
                          : discrete                       ? gemm->more->weights[start]
                                                           : gemm->weight.buffer;
    if (gemm->kind == MOERT_GEMM_WGRAD) {
        MOERT_TRY(moert_portable_wgrad_from(&batch, start));
        return converts ? move_weights(gemm, start, count, false) : MOERT_OK;
    }
    if (converts)
        MOERT_TRY(move_weights(gemm, start, count, true));
    return reads_y(gemm) ? moert_portable_dgrad_from(&batch, start)
                         : moert_portable_forward_from(&batch, start);
}

moert_status moert_portable_general(const moert_gemm *gemm) {
    const moert_general *work = gemm->more->workspace->state;
    const moert_gemm_more more = {.choices = gemm->more->choices};
    moert_gemm inner = {.kind = gemm->kind,
                        .groups = gemm->groups,
                        .n = gemm->n,
                        .k = gemm->k,
                        .bias = work->direct ? gemm->bias : NULL,
                        .more = &more};
    MOERT_TRY(load_rows(gemm, &gemm->x, gemm->k, work->x, &inner.x));
    MOERT_TRY(load_rows(gemm, &gemm->y, gemm->n, work->y, &inner.y));
    if (work->acc != NULL && reads_y(gemm))
        inner.x = (moert_matrix){.buffer = work->acc, .stride = gemm->k};
    else if (work->acc != NULL)
        inner.y = (moert_matrix){.buffer = work->acc, .stride = gemm->n};
    for (size_t start = 0; start < gemm->groups.count; start += work->batch) {
        inner.groups.count = moert_min(work->batch, gemm->groups.count - start);
        MOERT_TRY(multiply_batch(gemm, &inner, start));
    }
    if (work->acc == NULL)
        return MOERT_OK;
    if (!gemm->glu.gated)
        return store_rows(gemm);
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    const bool forward = gemm->glu.gated == MOERT_GATED;
    MOERT_TRY(forward ? run_glu(gemm, device) : run_dglu(gemm, device));
    return raise_amax(gemm, forward ? 1 : 2);
}
