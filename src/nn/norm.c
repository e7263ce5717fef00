/* RMSNorm and its gradients: checks the arguments and launches kernels/nn/norm.cl. */
#include <stdio.h>

#include "args/forms.h"
#include "args/nn.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum {
    BLOCK_ROWS = 32, /* rows of a work-group, enough work to hide the cost of its start */
    COLUMNS = 64,    /* columns of a work-group of norm_partial */
    /* the following constants are for GPUs only */
    STEP = MOERT_SUM_LANES, /* columns of a work-group of norm_partial on GPUs */
    FORWARD_STEPS = 16,     /* a row group holds at most this many times STEP columns in
                               registers */
    BACKWARD_STEPS = 4,     /* like FORWARD_STEPS in the backward, where dy and a sum also take
                               registers */
    MOST_ROW_GROUPS = 16,   /* the most row groups that share a row */
    MOST_FLOATS = 16384,    /* the widest row that fits the registers of several row groups */
    FLOATS_AHEAD = 1024,    /* a row group reads about this many floats of whole rows at a time */
    PIECE_BLOCKS = 8,       /* a piece of norm_gradients has at least this many blocks of rows */
    PIECE_ROWS = 64,        /* rows of a piece of norm_partial */
    ROTATED_GRAIN = 8,      /* the norm kernels rotate only a multiple of 8 columns */
    MOST_PIECES = 1024,     /* the most pieces of a sequence that norm_sum_pieces adds */
    SPEC_BYTES = 104,
};

/* How the kernels process rows of a given width, and the program compiled for it. */
typedef struct norm_form {
    int columns;  /* columns of a row */
    size_t steps; /* steps of a row that a row group holds in registers; 0: rows are read twice */
    size_t block; /* rows of a row group */
    size_t part;  /* columns of a part of a row: a GPU's row group sums one part, and CPUs add the
                     sums of parts in the same order */
    size_t piece_grain; /* the rows of a piece are a multiple of this number; 0: a piece has
                           PIECE_ROWS rows */
    char program[64];
} norm_form;

static moert_status choose_form(const moert_device *device, size_t width, size_t most_steps,
                                norm_form *form) {
    if (width == 0)
        return MOERT_FAIL(ERROR_USAGE, "RMSNorm cannot take rows of width 0");
    MOERT_TRY(moert_to_int(width, "width of RMSNorm", &form->columns));
    const bool fits = width <= MOST_FLOATS;
    const size_t steps = moert_ceil_div(width, STEP);
    const size_t row_groups =
        fits ? moert_min(moert_ceil_div(steps, most_steps), MOST_ROW_GROUPS) : 1;
    const size_t own_steps = moert_ceil_div(steps, row_groups);
    const size_t block = moert_max(1, FLOATS_AHEAD / (steps * STEP));
    form->steps = fits ? moert_by_form(device, 0, own_steps) : 0;
    form->block = moert_by_form(device, BLOCK_ROWS, block);
    form->part = own_steps * STEP;
    form->piece_grain = fits ? block : 0;
    snprintf(form->program, sizeof form->program,
             "nn/norm -DCOLUMNS=%zu -DSTEPS=%zu -DGROUPS_PER_ROW=%zu%s",
             moert_by_form(device, COLUMNS, STEP), form->steps,
             moert_by_form(device, 1, row_groups), MOERT_PROGRAM(device, "", width));
    return MOERT_OK;
}

/* Names the program. `floats` and `rounded` are the float32 and the bf16 result; NULL if a result
 * is not computed. */
static void name_program(const norm_form *form, const moert_buffer *floats,
                         const moert_buffer *rounded, bool rotated, char spec[SPEC_BYTES]) {
    snprintf(spec, SPEC_BYTES, "%s -DRESULTS=%d -DROTATED=%d", form->program,
             (floats != NULL ? 1 : 0) | (rounded != NULL ? 2 : 0), rotated);
}

/* Reports bytes to the profile: `reads` matrices, the results and rstd. */
static void report_work(moert_device *device, size_t rows, size_t width, size_t reads,
                        const moert_buffer *floats, const moert_buffer *rounded) {
    const size_t bytes =
        (reads + (floats != NULL)) * sizeof(float) + (rounded != NULL ? sizeof(uint16_t) : 0);
    moert_profile_work(device, "nn/norm", 0.0, (double)(rows * (bytes * width + sizeof(float))));
}

static moert_status check_results(const moert_buffer *floats, const moert_buffer *rounded) {
    if (floats == NULL && rounded == NULL)
        return MOERT_FAIL(ERROR_USAGE, "a norm needs a buffer for its results");
    return MOERT_OK;
}

/* The number of columns of a head that the norm kernels also rotate; 0: the norm kernels do not
 * rotate. The norm kernels rotate only rows in registers, and need positions that start at 0 in
 * every sequence. */
static int rotated_columns(const norm_form *form, const moert_rotation *rotation) {
    const size_t columns = moert_rotation_width(rotation, (size_t)form->columns);
    return rotation->table != NULL && form->steps > 0 && columns % ROTATED_GRAIN == 0 &&
                   rotation->offset == 0 && !rotation->interleaved && rotation->positions == NULL
               ? (int)columns
               : 0;
}

static moert_status rotate(const moert_rotation *rotation, size_t rows, size_t width, bool inverse,
                           moert_buffer *x) {
    return moert_rope(rotation, rows / rotation->heads, width, inverse, x);
}

static moert_status check_rotation(const moert_rotation *rotation, size_t rows, size_t width) {
    if (rotation->table == NULL)
        return MOERT_OK;
    if (rotation->heads == 0 || rows % rotation->heads != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu rows are no multiple of %zu, the heads of a token",
                          rows, rotation->heads);
    return moert_rope_check(rotation, rows / rotation->heads, width);
}

moert_status moert_norm_run(const moert_norm *norm) {
    moert_device *device = moert_buffer_device(norm->x);
    const moert_rotation *rotation = &norm->rotation;
    const bool rotated = rotation->table != NULL;
    norm_form form;
    char spec[SPEC_BYTES];
    MOERT_TRY(choose_form(device, norm->width, FORWARD_STEPS, &form));
    MOERT_TRY(check_results(norm->y, norm->bf16));
    MOERT_TRY(check_rotation(rotation, norm->rows, norm->width));
    const bool rounds = rotated && norm->bf16 != NULL; /* y serves as scratch */
    if (rounds && norm->y == NULL)
        return MOERT_FAIL(ERROR_USAGE, "rotated heads in bf16 need a float32 buffer as scratch");
    const int fused = norm->x != norm->y ? rotated_columns(&form, rotation) : 0;
    moert_buffer *const y = rounds && fused > 0 ? NULL : norm->y, *const bf16 = rounds && fused == 0
                                                                                    ? NULL
                                                                                    : norm->bf16;
    name_program(&form, y, bf16, fused > 0, spec);
    report_work(device, norm->rows, norm->width, 1, y, bf16);
    MOERT_TRY(MOERT_RUN(
        device, spec, "norm_forward", ((moert_grid){moert_ceil_div(norm->rows, form.block), 1, 1}),
        MOERT_ARG(norm->x), MOERT_ARG(norm->weight), MOERT_ARG(y), MOERT_ARG(bf16),
        MOERT_ARG(norm->rstd), MOERT_ARG(rotation->table),
        MOERT_ARGS(moert_norm_args, .rows = norm->rows, .block = form.block, .width = form.columns,
                   .part = (int)form.part, .epsilon = norm->epsilon, .heads = (int)rotation->heads,
                   .length = (int)rotation->length, .rotated = fused)));
    if (!rotated || fused > 0)
        return MOERT_OK;
    return rounds
               ? moert_rope_bf16(rotation, norm->rows / rotation->heads, norm->width, y, norm->bf16)
               : rotate(rotation, norm->rows, norm->width, false, y);
}

/* The pieces of a sequence: the gradient of the weight is summed over the rows of each piece. */
typedef struct cut {
    size_t sequence_rows, piece_rows, pieces;
} cut;

/* Computes dx, and the sums of all pieces: piece[sequences, pieces, width]. */
static moert_status run_pieces(const moert_norm_gradient *norm, const norm_form *form, int rotated,
                               const cut *c, moert_buffer *piece) {
    moert_device *device = moert_buffer_device(norm->x);
    const moert_rotation *rotation = &norm->rotation;
    moert_norm_args args = {.rows = norm->rows,
                            .sequence_rows = c->sequence_rows,
                            .block = c->piece_rows,
                            .pieces = c->pieces,
                            .width = form->columns,
                            .part = (int)form->part,
                            .accumulate = norm->accumulate,
                            .heads = (int)rotation->heads,
                            .length = (int)rotation->length,
                            .rotated = rotated};
    char spec[SPEC_BYTES];
    name_program(form, norm->dx, norm->bf16, rotated > 0, spec);
    if (form->steps > 0)
        return MOERT_RUN(device, spec, "norm_gradients",
                         ((moert_grid){c->pieces, norm->sequences, 1}), MOERT_ARG(norm->x),
                         MOERT_ARG(norm->weight), MOERT_ARG(norm->rstd), MOERT_ARG(norm->dy),
                         MOERT_ARG(norm->dx), MOERT_ARG(norm->bf16), MOERT_ARG(piece),
                         MOERT_ARG(rotation->table), MOERT_STRUCT(args));
    /* norm_partial runs first: norm_backward may overwrite dy, since dx may be the same buffer */
    const size_t columns = moert_by_form(device, COLUMNS, STEP);
    MOERT_TRY(MOERT_RUN(device, spec, "norm_partial",
                        ((moert_grid){moert_ceil_div(norm->width, columns),
                                      moert_by_form(device, 1, c->pieces), norm->sequences}),
                        MOERT_ARG(norm->x), MOERT_ARG(norm->rstd), MOERT_ARG(norm->dy),
                        MOERT_ARG(piece), MOERT_STRUCT(args)));
    args.block = form->block;
    return MOERT_RUN(device, spec, "norm_backward",
                     ((moert_grid){moert_ceil_div(norm->rows, form->block), 1, 1}),
                     MOERT_ARG(norm->x), MOERT_ARG(norm->weight), MOERT_ARG(norm->rstd),
                     MOERT_ARG(norm->dy), MOERT_ARG(norm->dx), MOERT_ARG(norm->bf16),
                     MOERT_STRUCT(args));
}

/* The number of rows of a piece. The length of a sequence alone determines how many rows its pieces
 * have, so the bits of the sequence's sum do not depend on how many sequences the rank has. */
static size_t rows_of_pieces(const norm_form *form, size_t sequence_rows) {
    const size_t grain = form->piece_grain, least = moert_ceil_div(sequence_rows, MOST_PIECES);
    return grain > 0 ? moert_max(PIECE_BLOCKS * grain, moert_round_up(least, grain)) : PIECE_ROWS;
}

static size_t pieces_of(size_t sequence_rows, size_t piece_rows) {
    return sequence_rows > piece_rows ? moert_ceil_div(sequence_rows, piece_rows) : 1;
}

size_t moert_norm_scratch_floats(const moert_device *device, size_t sequences, size_t rows,
                                 size_t width) {
    norm_form form;
    const size_t sequence_rows = sequences > 0 ? rows / sequences : 0;
    if (choose_form(device, width, BACKWARD_STEPS, &form) != MOERT_OK)
        return 0; /* moert_norm_backward will report the failure */
    const size_t pieces = pieces_of(sequence_rows, rows_of_pieces(&form, sequence_rows));
    return pieces > 1 ? moert_by_form(device, 0, sequences * pieces * width) : 0;
}

moert_status moert_norm_backward(const moert_norm_gradient *norm) {
    moert_device *device = moert_buffer_device(norm->x);
    const size_t rows = norm->rows, sequences = norm->sequences;
    norm_form form;
    MOERT_TRY(choose_form(device, norm->width, BACKWARD_STEPS, &form));
    if (sequences == 0 ? rows != 0 : rows % sequences != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu rows do not divide into %zu sequences", rows,
                          sequences);
    MOERT_TRY(check_results(norm->dx, norm->bf16));
    MOERT_TRY(check_rotation(&norm->rotation, rows, norm->width));
    if (norm->accumulate && norm->dx == NULL)
        return MOERT_FAIL(
            ERROR_USAGE,
            "a norm's gradient accumulates only in the float32 buffer dx, which is NULL");
    report_work(device, rows, norm->width, 2, norm->dx, norm->bf16);
    const int rotated = norm->dx != norm->dy ? rotated_columns(&form, &norm->rotation) : 0;
    if (norm->rotation.table != NULL && rotated == 0)
        MOERT_TRY(rotate(&norm->rotation, rows, norm->width, true, norm->dy));
    const size_t sequence_rows = sequences > 0 ? rows / sequences : 0;
    const size_t piece_rows =
        norm->scratch == NULL ? sequence_rows : rows_of_pieces(&form, sequence_rows);
    const cut c = {sequence_rows, piece_rows, pieces_of(sequence_rows, piece_rows)};
    if (c.pieces == 1 || moert_by_form(device, 1, 0) == 1)
        return run_pieces(norm, &form, rotated, &c, norm->partial);
    MOERT_TRY(moert_buffer_reserve(device, sequences * c.pieces * norm->width * sizeof(float),
                                   norm->scratch));
    MOERT_TRY(run_pieces(norm, &form, rotated, &c, *norm->scratch));
    char spec[SPEC_BYTES];
    name_program(&form, norm->dx, norm->bf16, rotated > 0, spec);
    return MOERT_RUN(device, spec, "norm_sum_pieces",
                     ((moert_grid){moert_ceil_div(norm->width, STEP), sequences, 1}),
                     MOERT_ARG(*norm->scratch), MOERT_ARG(norm->partial),
                     MOERT_ARGS(moert_norm_args, .pieces = c.pieces, .width = form.columns));
}
