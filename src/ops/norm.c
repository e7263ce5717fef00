/* RMSNorm and its gradients: argument checks and launches of kernels/norm.cl. */
#include <stdio.h>

#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

enum {
    BLOCK_ROWS = 32, /* of a work-group: enough work to hide its start */
    COLUMNS = 64,    /* of a work-group of norm_partial */
    /* on GPUs */
    STEP = 128,          /* floats of VEC in kernels/common.h; COLUMNS, too */
    MOST_STEPS = 16,     /* that stay in the registers of a team, */
    MOST_CREW = 8,       /* and teams of a row */
    FLOATS_AHEAD = 1024, /* of the rows that a team reads together: ROWS of the kernels */
    PIECE_BLOCKS = 8,    /* of a piece of norm_gradients */
    PIECE_ROWS = 64,     /* of a piece of norm_partial */
};

/* How a width is dealt with, and the program for it. */
typedef struct norm_form {
    int columns;  /* of a row */
    size_t steps; /* of a team's share of a row that stays in registers, or 0 */
    size_t block; /* rows of a team */
    char program[64];
} norm_form;

static moert_status choose_form(const moert_device *device, size_t width, norm_form *form) {
    if (width == 0)
        return MOERT_FAIL(ERROR_USAGE, "RMSNorm over rows of width 0");
    MOERT_TRY(moert_to_int(width, "width of RMSNorm", &form->columns));
    const size_t steps = moert_ceil_div(width, STEP), teams = moert_ceil_div(steps, MOST_STEPS);
    const size_t crew = teams <= MOST_CREW ? moert_share(device, 1, teams) : 1;
    form->steps = teams <= MOST_CREW ? moert_share(device, 0, moert_ceil_div(steps, crew)) : 0;
    form->block = moert_share(device, BLOCK_ROWS, moert_max(1, FLOATS_AHEAD / (steps * STEP)));
    snprintf(form->program, sizeof form->program, "norm -DCOLUMNS=%zu -DSTEPS=%zu -DCREW=%zu%s",
             moert_share(device, COLUMNS, STEP), form->steps, crew,
             MOERT_PROGRAM(device, "", width));
    return MOERT_OK;
}

/* For a profile: rows of so many floats and their rstd. */
static void tell_work(moert_device *device, size_t rows, size_t floats) {
    moert_profile_work(device, "norm", 0.0, sizeof(float) * (double)(rows * (floats + 1)));
}

moert_status moert_norm_forward(size_t rows, size_t width, float epsilon, const moert_buffer *x,
                                const moert_buffer *weight, moert_buffer *y, moert_buffer *rstd) {
    moert_device *device = moert_buffer_device(x);
    norm_form form;
    MOERT_TRY(choose_form(device, width, &form));
    tell_work(device, rows, 2 * width);
    return MOERT_RUN(device, form.program, "norm_forward",
                     ((moert_grid){moert_ceil_div(rows, form.block), 1, 1}), MOERT_ARG(rows),
                     MOERT_ARG(form.block), MOERT_ARG(form.columns), MOERT_ARG(epsilon),
                     MOERT_ARG(x), MOERT_ARG(weight), MOERT_ARG(y), MOERT_ARG(rstd));
}

/* dx and the pieces of the weight's gradient. */
static moert_status run_pieces(const moert_norm_gradient *norm, const norm_form *form,
                               size_t sequence_rows, size_t piece_rows, size_t pieces,
                               moert_buffer *piece) {
    moert_device *device = moert_buffer_device(norm->x);
    const int accumulate = norm->accumulate;
    if (form->steps > 0)
        return MOERT_RUN(device, form->program, "norm_gradients",
                         ((moert_grid){pieces, norm->sequences, 1}), MOERT_ARG(sequence_rows),
                         MOERT_ARG(piece_rows), MOERT_ARG(form->columns), MOERT_ARG(accumulate),
                         MOERT_ARG(norm->x), MOERT_ARG(norm->weight), MOERT_ARG(norm->rstd),
                         MOERT_ARG(norm->dy), MOERT_ARG(norm->dx), MOERT_ARG(piece));
    /* first, since it reads dy, which may be dx */
    const size_t columns = moert_share(device, COLUMNS, STEP);
    MOERT_TRY(MOERT_RUN(
        device, form->program, "norm_partial",
        ((moert_grid){moert_ceil_div(norm->width, columns), pieces, norm->sequences}),
        MOERT_ARG(sequence_rows), MOERT_ARG(piece_rows), MOERT_ARG(form->columns),
        MOERT_ARG(norm->x), MOERT_ARG(norm->rstd), MOERT_ARG(norm->dy), MOERT_ARG(piece)));
    return MOERT_RUN(device, form->program, "norm_backward",
                     ((moert_grid){moert_ceil_div(norm->rows, form->block), 1, 1}),
                     MOERT_ARG(norm->rows), MOERT_ARG(form->block), MOERT_ARG(form->columns),
                     MOERT_ARG(accumulate), MOERT_ARG(norm->x), MOERT_ARG(norm->weight),
                     MOERT_ARG(norm->rstd), MOERT_ARG(norm->dy), MOERT_ARG(norm->dx));
}

moert_status moert_norm_backward(const moert_norm_gradient *norm) {
    moert_device *device = moert_buffer_device(norm->x);
    const size_t rows = norm->rows, sequences = norm->sequences;
    norm_form form;
    MOERT_TRY(choose_form(device, norm->width, &form));
    if (sequences == 0 ? rows != 0 : rows % sequences != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu rows do not divide into %zu sequences", rows,
                          sequences);
    tell_work(device, rows, 3 * norm->width);
    const size_t sequence_rows = sequences > 0 ? rows / sequences : 0;
    const bool whole = norm->scratch == NULL;
    const size_t share = form.steps > 0 ? PIECE_BLOCKS * form.block : PIECE_ROWS;
    const size_t piece_rows = whole ? sequence_rows : moert_share(device, sequence_rows, share);
    const size_t pieces =
        sequence_rows > piece_rows ? moert_ceil_div(sequence_rows, piece_rows) : 1;
    if (pieces == 1)
        return run_pieces(norm, &form, sequence_rows, piece_rows, 1, norm->partial);
    MOERT_TRY(moert_buffer_reserve(device, sequences * pieces * norm->width * sizeof(float),
                                   norm->scratch));
    MOERT_TRY(run_pieces(norm, &form, sequence_rows, piece_rows, pieces, *norm->scratch));
    return MOERT_RUN(device, form.program, "norm_join",
                     ((moert_grid){moert_ceil_div(norm->width, STEP), sequences, 1}),
                     MOERT_ARG(pieces), MOERT_ARG(form.columns), MOERT_ARG(*norm->scratch),
                     MOERT_ARG(norm->partial));
}
