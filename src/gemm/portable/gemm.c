/* Portable GEMMs and the GLU: chooses the tiles of a work-group and launches kernels/gemm/gemm.cl,
 * kernels/gemm/prepacked.cl and kernels/gemm/glu.cl. gpu.c launches the GEMMs of the GPU form. */
#include <math.h>
#include <stdio.h>

#include "args/gemm.h"
#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"
#include "gemm/backend.h"
#include "gemm/portable/gemm.h"

enum {
    DOT_BYTES = 4, /* a float or a pair of bf16 values (kernels/gemm/dots.h) */
    COLUMN_BYTES = MOERT_VECTOR * DOT_BYTES,    /* bytes of one vector in a panel's row */
    STRIP_BYTES = MOERT_GEMM_STRIP * DOT_BYTES, /* bytes of a wgrad's packed lines for one dot of
                                                   the reduction */
    SMALLEST_SPLIT = 128,
    WORK_GROUPS_PER_UNIT = 8,    /* with so many work-groups each, compute units finish at about the
                                    same time */
    PAST_CACHE_BYTES = 16 << 20, /* a larger v does not stay in caches until the backward reads
                                    it */
    GLU_FLOATS = 16384,          /* about the number of the GLU's results per work-group on CPUs */
    GPU_GLU_FLOATS = 768,        /* about the number of the GLU's results per work-group on GPUs,
                                    which need more work-groups */
};

/* Where the panels are (local or global memory), and which operands are packed into panels. */
typedef enum form { FORM_ROWS, FORM_PREPACKED, FORM_WGRAD } form;

/* The shape of `groups` GEMMs. Each GEMM has about `lines` lines (at most `most_lines`), `columns`
 * columns and a reduction of `reduction` dots. */
typedef struct problem {
    size_t groups, lines, most_lines, columns, reduction;
} problem;

/* The part of a GEMM that a work-group computes; see the picture in kernels/gemm/gemm.cl. */
typedef struct tiling {
    int panels, depth, split, prefetch;
    size_t local_bytes, converted_bytes; /* bytes of panels; bytes of lines converted from bf16 */
    moert_grid grid;
    moert_choices tile;
} tiling;

static size_t converted_bytes(moert_dtype type, size_t depth, size_t lines) {
    return type == MOERT_DTYPE_BF16 ? (depth + MOERT_GEMM_LINE_EXCESS) * lines * DOT_BYTES
                                    : sizeof(float);
}

/* Chooses a tiling. No tiling changes the bits of a result, and all choices within the bounds of
 * gemm/tuning/tuning.h are safe. */
static tiling choose_tiling(const moert_device *device, moert_dtype type, problem p, form of,
                            const moert_choices *c) {
    const moert_device_info *info = moert_device_describe(device);
    const size_t wanted = WORK_GROUPS_PER_UNIT * moert_max(info->compute_units, 1);
    const size_t blocks = moert_ceil_div(p.columns, c->width * MOERT_VECTOR);
    const size_t panel_bytes = c->width * COLUMN_BYTES;
    /* in a wgrad every work-group packs both operands; with square tilings, operands are packed the
     * fewest times */
    const bool both = of == FORM_WGRAD;
    const size_t strip_bytes = both ? STRIP_BYTES : 0;
    size_t panels = moert_min(c->panels, blocks), split = c->split;
    size_t depth = moert_min(moert_round_up(moert_max(p.reduction, 1), 16), c->depth);
    /* On a CPU, local memory is the core's cache. Panels may fill half of this memory; the other
     * half is for the other operand and prefetched panels. In a wgrad the panels of both operands
     * may fill three quarters of this memory; the rest is for sums. */
    for (const size_t room = info->local_bytes / 4 * (both ? 3 : 2);;) {
        const bool wide = depth * (panels * panel_bytes + strip_bytes) > room;
        if (wide && panels > 1)
            panels--;
        else if (depth > 16 && (wide || converted_bytes(type, depth, c->lines) > room))
            depth = moert_round_up(depth / 2, 16);
        else
            break;
    }
    if (both)
        split = moert_min(split, p.lines);
    while (p.groups * moert_ceil_div(p.lines, split) * moert_ceil_div(blocks, panels) < wanted) {
        const bool wide = !both || panels * c->width * MOERT_VECTOR >= split;
        if (panels > 1 && (wide || split <= SMALLEST_SPLIT))
            panels--;
        else if (split > SMALLEST_SPLIT)
            split = moert_max(split / 2, SMALLEST_SPLIT);
        else
            break;
    }
    panels = moert_ceil_div(blocks, moert_ceil_div(blocks, panels)); /* spread evenly */
    if (both)
        split = moert_round_up(moert_ceil_div(p.lines, moert_ceil_div(p.lines, split)), c->lines);
    const size_t layers = MOERT_GEMM_IDLE_LAYERS + moert_ceil_div(blocks, panels);
    return (tiling){
        .panels = (int)panels,
        .depth = (int)depth,
        .split = (int)split,
        .prefetch = (int)c->prefetch,
        .local_bytes = of != FORM_PREPACKED ? panels * depth * panel_bytes : 0,
        .converted_bytes = converted_bytes(type, depth, c->lines),
        .grid = {moert_ceil_div(p.most_lines, split), p.groups, layers},
        .tile = *c,
    };
}

/* The groups and lines of forward and dgrad. */
static problem rows_of(const moert_gemm *gemm) {
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const size_t groups = gemm->groups.shared ? 1 : part.end - part.first;
    const size_t rows = part.end_row - part.first_row;
    return (problem){.groups = groups, .lines = moert_ceil_div(rows, groups), .most_lines = rows};
}

static size_t dots_of(const moert_gemm *gemm, const moert_device *device, size_t reduction) {
    return moert_ceil_div(reduction, moert_per_dot(moert_gemm_dot(gemm, device)));
}

/* The choices in the GEMM or, if the GEMM has no choices, those of the tuning rows for groups of
 * `rows`. */
static moert_choices find_choices(const moert_gemm *gemm, moert_tuned operation, size_t rows) {
    const moert_tuning_key key = {operation, moert_gemm_type(gemm), gemm->n, gemm->k, rows};
    return gemm->more->choices != NULL
               ? *gemm->more->choices
               : moert_tuning_find(moert_buffer_device(gemm->groups.ends), &key);
}

/* The choices for a GEMM whose tile need not hold gates and ups. */
static moert_choices choices_of(const moert_gemm *gemm, moert_tuned operation) {
    const moert_device *device = moert_buffer_device(gemm->groups.ends);
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const size_t groups = gemm->groups.shared && operation != MOERT_TUNED_WGRAD
                              ? 1
                              : moert_max(part.end - part.first, 1);
    const size_t rows = moert_ceil_div(part.end_row - part.first_row, groups);
    moert_choices choices = find_choices(gemm, operation, rows);
    if (gemm->panels != NULL)
        choices.width = moert_panels_width(gemm->panels, choices.width);
    return moert_with_tile(choices, moert_gemm_dot(gemm, device));
}

/* The tiling of forward or dgrad, where lines are rows. */
static tiling choose_rows(const moert_gemm *gemm, moert_tuned operation) {
    const bool dgrad = operation == MOERT_TUNED_DGRAD || operation == MOERT_TUNED_PREPACKED_DGRAD;
    const moert_device *device = moert_buffer_device(gemm->x.buffer);
    const moert_choices c = choices_of(gemm, operation);
    problem p = rows_of(gemm);
    p.columns = dgrad ? gemm->k : gemm->n;
    p.reduction = dots_of(gemm, device, dgrad ? gemm->n : gemm->k);
    return choose_tiling(device, moert_gemm_type(gemm), p,
                         gemm->panels != NULL ? FORM_PREPACKED : FORM_ROWS, &c);
}

static moert_gemm_args args_of(const moert_gemm *gemm, size_t start, const tiling *t) {
    moert_gemm_args args = moert_portable_args(gemm, start);
    args.panels = t->panels;
    args.depth = t->depth;
    args.split = t->split;
    args.every = t->prefetch;
    return args;
}

static bool has_gpu_form(const moert_device *device) {
    return moert_device_describe(device)->gpu_form;
}

/* Forward (a is x, c is y) and dgrad (a is y, c is x) by prepacked weights. */
static moert_status run_prepacked(const moert_gemm *gemm, size_t start, bool forward) {
    moert_buffer *a = forward ? gemm->x.buffer : gemm->y.buffer,
                 *c = forward ? gemm->y.buffer : gemm->x.buffer;
    moert_device *device = moert_buffer_device(c);
    const size_t width = forward ? gemm->n : gemm->k, reduction = forward ? gemm->k : gemm->n;
    const tiling t =
        choose_rows(gemm, forward ? MOERT_TUNED_PREPACKED_FORWARD : MOERT_TUNED_PREPACKED_DGRAD);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, moert_gemm_type(gemm), gemm->panels, NULL, &t.tile, spec);
    moert_gemm_args args = args_of(gemm, start, &t);
    args.lda = forward ? gemm->x.stride : gemm->y.stride;
    args.a_column = forward ? 0 : gemm->y.first;
    args.ldc = forward ? gemm->y.stride : gemm->x.stride;
    args.c_column = forward ? gemm->y.first : 0;
    args.width = (int)width;
    args.reduction = (int)reduction;
    args.height = (int)moert_panel_height(gemm->panels, reduction);
    return MOERT_RUN(device, spec, "gemm_prepacked", t.grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(a), MOERT_ARG(gemm->panels->buffer),
                     MOERT_ARG(forward ? gemm->bias : NULL), MOERT_ARG(c), MOERT_STRUCT(args),
                     moert_argument_local(t.converted_bytes));
}

/* Forward and dgrad in the CPU or GPU form, by any kind of weight. */
static moert_status run_rows(const moert_gemm *gemm, size_t start, bool forward) {
    const moert_quantized *quantized = gemm->weight.quantized;
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    char spec[MOERT_SPEC_BYTES];
    if (has_gpu_form(device))
        return moert_portable_gpu_rows(gemm, start, forward);
    if (gemm->panels != NULL)
        return run_prepacked(gemm, start, forward);
    const tiling t = choose_rows(gemm, forward ? MOERT_TUNED_FORWARD : MOERT_TUNED_DGRAD);
    moert_gemm_program(device, moert_gemm_type(gemm), NULL, quantized, &t.tile, spec);
    moert_gemm_args args = args_of(gemm, start, &t);
    args.axis = quantized != NULL ? (int)quantized->axis : 0;
    args.transposed = quantized != NULL && quantized->transposed;
    const moert_argument panels = moert_argument_local(t.local_bytes),
                         converted = moert_argument_local(t.converted_bytes);
    if (forward)
        return MOERT_RUN(device, spec, "gemm_forward", t.grid, MOERT_ARG(gemm->groups.ends),
                         MOERT_ARG(gemm->x.buffer),
                         MOERT_WEIGHT_ARGS(gemm->weight.buffer, quantized), MOERT_ARG(gemm->bias),
                         MOERT_ARG(gemm->y.buffer), MOERT_STRUCT(args), panels, converted);
    return MOERT_RUN(device, spec, "gemm_dgrad", t.grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(gemm->y.buffer), MOERT_WEIGHT_ARGS(gemm->weight.buffer, quantized),
                     MOERT_ARG(gemm->x.buffer), MOERT_STRUCT(args), panels, converted);
}

moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start) {
    return run_rows(gemm, start, true);
}

moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start) {
    return run_rows(gemm, start, false);
}

moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start) {
    moert_device *device = moert_buffer_device(gemm->weight.buffer);
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    if (has_gpu_form(device))
        return moert_portable_gpu_wgrad(gemm, start);
    const problem p = {part.end - part.first, gemm->n, gemm->n, gemm->k,
                       dots_of(gemm, device, part.end_row - part.first_row)};
    const moert_choices c = choices_of(gemm, MOERT_TUNED_WGRAD);
    const tiling t = choose_tiling(device, moert_gemm_type(gemm), p, FORM_WGRAD, &c);
    /* neighbouring work-groups compute different groups */
    const moert_grid grid = {t.grid.y, t.grid.x, t.grid.z};
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, moert_gemm_type(gemm), NULL, NULL, &t.tile, spec);
    const moert_gemm_args args = args_of(gemm, start, &t);
    return MOERT_RUN(device, spec, "gemm_wgrad", grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(gemm->y.buffer), MOERT_ARG(gemm->x.buffer),
                     MOERT_ARG(gemm->weight.buffer), MOERT_ARG(gemm->more->rounded),
                     MOERT_STRUCT(args), moert_argument_local(t.local_bytes),
                     moert_argument_local((size_t)t.depth * STRIP_BYTES));
}

moert_status moert_portable_bias_grad(const moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->bias);
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const moert_grid grid = {moert_ceil_div(gemm->n, MOERT_VECTOR), part.end - part.first, 1};
    char spec[MOERT_SPEC_BYTES];
    if (has_gpu_form(device))
        return moert_portable_gpu_bias_grad(gemm);
    const moert_choices tile =
        moert_with_tile(find_choices(gemm, MOERT_TUNED_WGRAD, 0),
                        moert_dot_of(device, moert_gemm_type(gemm))); /* not used */
    moert_gemm_program(device, moert_gemm_type(gemm), NULL, NULL, &tile, spec);
    const moert_gemm_args args = moert_portable_args(gemm, 0);
    return MOERT_RUN(device, spec, "gemm_bias_grad", grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(gemm->y.buffer), MOERT_ARG(gemm->bias), MOERT_STRUCT(args));
}

moert_status moert_portable_glu(const moert_glu *glu, bool backward) {
    const moert_glu_form *f = &glu->form;
    const bool plain = !f->interleaved && isinf(f->limit) && f->alpha == 1.0f && f->offset == 0.0f;
    moert_device *device = moert_buffer_device(glu->v);
    const size_t split =
        moert_ceil_div(moert_by_form(device, GLU_FLOATS, GPU_GLU_FLOATS), glu->width);
    const moert_grid grid = {moert_ceil_div(glu->rows - glu->first_row, split), 1, 1};
    const moert_argument args =
        MOERT_ARGS(moert_plain_glu_args, .prob_stride = glu->prob_stride,
                   .first_row = (unsigned)glu->first_row, .rows = (unsigned)glu->rows,
                   .width = (int)glu->width, .interleaved = f->interleaved, .limit = f->limit,
                   .alpha = f->alpha, .offset = f->offset, .activation = f->activation,
                   .split = (unsigned)split);
    char spec[MOERT_SPEC_BYTES];
    snprintf(spec, sizeof spec, "%s -DFROM=%d -DTYPE=%d%s",
             MOERT_PROGRAM(device, "gemm/glu", glu->width), (int)glu->from, (int)glu->type,
             plain ? " -DPLAIN" : "");
    if (backward)
        return MOERT_RUN(device, spec, "glu_backward", grid, MOERT_ARG(glu->v),
                         MOERT_ARG(glu->prob), MOERT_ARG(glu->dh), MOERT_ARG(glu->dv),
                         MOERT_ARG(glu->dprob), args);
    return MOERT_RUN(device, spec, "glu_forward", grid, MOERT_ARG(glu->v), MOERT_ARG(glu->prob),
                     MOERT_ARG(glu->h), args);
}

/* Finds the tile of a GEMM with a GLU; false if the tile cannot apply the GLU. */
static bool find_gated_tile(const moert_gemm *gemm, moert_choices *tile) {
    const moert_panels *panels = gemm->panels;
    const moert_device *device = moert_buffer_device(gemm->y.buffer);
    *tile = find_choices(gemm, panels != NULL ? MOERT_TUNED_PREPACKED_FORWARD : MOERT_TUNED_FORWARD,
                         rows_of(gemm).lines);
    if (panels != NULL)
        tile->width = moert_panels_width(panels, tile->width);
    *tile = moert_with_tile(*tile, moert_gemm_dot(gemm, device));
    return moert_gates_fit(panels != NULL ? panels->tile.width : tile->width);
}

/* The tiling of a GEMM with a GLU; its columns hold gates and ups. */
static tiling choose_gated(const moert_gemm *gemm, size_t width, const moert_choices *tile) {
    const moert_device *device = moert_buffer_device(gemm->y.buffer);
    problem p = rows_of(gemm);
    p.columns = moert_gated_columns(width, tile->width);
    p.reduction = dots_of(gemm, device, gemm->k);
    return choose_tiling(device, moert_gemm_type(gemm), p,
                         gemm->panels != NULL ? FORM_PREPACKED : FORM_ROWS, tile);
}

moert_status moert_portable_gated(const moert_gemm *gemm) {
    const moert_glu *glu = &gemm->glu;
    moert_device *device = moert_buffer_device(gemm->y.buffer);
    moert_choices tile;
    if (has_gpu_form(device) || !find_gated_tile(gemm, &tile)) {
        MOERT_TRY(moert_portable_forward_from(gemm, 0));
        return moert_portable_glu(glu, false);
    }
    const bool prepacked = gemm->panels != NULL;
    const tiling t = choose_gated(gemm, glu->width, &tile);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, moert_gemm_type(gemm), gemm->panels, NULL, &t.tile, spec);
    moert_gemm_args args = args_of(gemm, 0, &t);
    args.prob_stride = glu->prob_stride;
    args.width = (int)glu->width;
    args.height = prepacked ? (int)moert_panel_height(gemm->panels, gemm->k) : 0;
    args.keep = !gemm->glu.drop_v;
    args.once = moert_buffer_bytes(gemm->y.buffer) >= PAST_CACHE_BYTES;
    args.quantized = glu->type != MOERT_DTYPE_F32;
    args.interleaved = glu->form.interleaved;
    args.limit = glu->form.limit;
    args.alpha = glu->form.alpha;
    args.offset = glu->form.offset;
    args.activation = glu->form.activation;
    const moert_argument all[] = {MOERT_ARG(gemm->groups.ends),
                                  MOERT_ARG(gemm->x.buffer),
                                  MOERT_ARG(prepacked ? gemm->panels->buffer : gemm->weight.buffer),
                                  MOERT_ARG(gemm->bias),
                                  MOERT_ARG(gemm->y.buffer),
                                  MOERT_ARG(glu->prob),
                                  MOERT_ARG(glu->h),
                                  MOERT_STRUCT(args),
                                  moert_argument_local(t.converted_bytes),
                                  moert_argument_local(t.local_bytes)};
    const size_t count = MOERT_COUNT(all); /* prepacked panels need no local memory */
    return moert_launch(device, spec, prepacked ? "gemm_prepacked_glu" : "gemm_glu_forward", t.grid,
                        all, prepacked ? count - 1 : count);
}
