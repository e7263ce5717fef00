/* The portable backend: chooses a work-group's share and launches kernels/gemm/gemm.cl,
 * kernels/gemm/prepacked.cl and kernels/gemm/glu.cl; in GPU form products are gpu.c's. */
#include <math.h>
#include <stdio.h>

#include "args/gemm.h"
#include "base/config.h"
#include "base/memory.h"
#include "gemm/backend.h"
#include "gemm/portable/gemm.h"

enum {
    COLUMN_BYTES = 64, /* of a panel's vector in kernels/gemm/gemm.h, per term of the reduction */
    LINE_BYTES = 4,    /* of a converted line there */
    STRIP_BYTES = 256, /* of STRIP lines in kernels/gemm/gemm.cl, per term of the reduction */
    SMALLEST_SPLIT = 128,
    IDLE_LAYERS =
        1, /* of a grid, its first, as in kernels/gemm/gemm.h (docs/design.md, "One launch") */
    SHARES_PER_UNIT = 8,  /* work-groups per compute unit that even out their differences */
    GLU_FLOATS = 16384,   /* a GLU's work-group takes about as many; */
    GPU_GLU_FLOATS = 768, /* there are more of them on GPUs */
};

/* Where a work-group's panels lie, and what else takes local memory. */
typedef enum form { FORM_ROWS, FORM_PREPACKED, FORM_WGRAD } form;

/* `groups` products of about `lines` lines, at most `most_lines`, by `columns`, over `reduction`
 * terms. */
typedef struct product {
    size_t groups, lines, most_lines, columns, reduction;
} product;

/* A work-group's share of a product; see the picture in kernels/gemm/gemm.h. */
typedef struct share {
    int panels, depth, split, prefetch;
    size_t local_bytes, transposed_bytes; /* of panels; of converted lines */
    moert_grid grid;
    moert_choices tile;
} share;

static size_t transposed_bytes(moert_dtype type, size_t depth, size_t lines) {
    return type == MOERT_DTYPE_BF16 ? (depth + 16) * lines * LINE_BYTES : sizeof(float);
}

/* None of the choices shows in the bits, and any within their bounds (gemm/tuning/tuning.h) are
 * safe. */
static share choose_share(const moert_device *device, moert_dtype type, product p, form of,
                          const moert_choices *c) {
    const moert_device_info *info = moert_device_describe(device);
    const size_t wanted = SHARES_PER_UNIT * moert_max(info->compute_units, 1);
    const size_t blocks = moert_ceil_div(p.columns, c->width * MOERT_VECTOR);
    const size_t panel_bytes = c->width * COLUMN_BYTES;
    /* both operands of a gradient are prepacked by every share: the squarer it is, the less often */
    const bool both = of == FORM_WGRAD;
    const size_t strip_bytes = both ? STRIP_BYTES : 0;
    size_t panels = moert_min(c->panels, blocks), split = c->split;
    size_t depth = moert_min(moert_round_up(moert_max(p.reduction, 1), 16), c->depth);
    /* on a CPU local memory is the core's cache. Packed panels pass through half of it, and the
     * other half is for the other factor and the panels that are fetched; of gradients both
     * operands are counted, and a quarter is left for sums */
    for (const size_t room = info->local_bytes / 4 * (both ? 3 : 2);;) {
        const bool wide = depth * (panels * panel_bytes + strip_bytes) > room;
        if (wide && panels > 1)
            panels--;
        else if (depth > 16 && (wide || transposed_bytes(type, depth, c->lines) > room))
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
    panels = moert_ceil_div(blocks, moert_ceil_div(blocks, panels)); /* equal shares */
    if (both)
        split = moert_round_up(moert_ceil_div(p.lines, moert_ceil_div(p.lines, split)), c->lines);
    const size_t layers = IDLE_LAYERS + moert_ceil_div(blocks, panels);
    return (share){
        .panels = (int)panels,
        .depth = (int)depth,
        .split = (int)split,
        .prefetch = (int)c->prefetch,
        .local_bytes = of != FORM_PREPACKED ? panels * depth * panel_bytes : 0,
        .transposed_bytes = transposed_bytes(type, depth, c->lines),
        .grid = {moert_ceil_div(p.most_lines, split), p.groups, layers},
        .tile = *c,
    };
}

/* The groups and rows of forward and dgrad. */
static product rows_of(const moert_gemm *gemm) {
    const moert_part part = moert_part_of(gemm);
    const size_t groups = gemm->shared_weight ? 1 : part.end - part.first;
    const size_t rows = part.end_row - part.first_row;
    return (product){.groups = groups, .lines = moert_ceil_div(rows, groups), .most_lines = rows};
}

static size_t terms_of(const moert_gemm *gemm, const moert_device *device, size_t reduction) {
    return moert_ceil_div(reduction, moert_per_dot(moert_gemm_dot(gemm, device)));
}

static moert_choices choices_of(const moert_gemm *gemm, moert_tuned operation, size_t start) {
    static moert_portable_run *const runs[] = {
        [MOERT_TUNED_FORWARD] = moert_portable_forward_from,
        [MOERT_TUNED_DGRAD] = moert_portable_dgrad_from,
        [MOERT_TUNED_WGRAD] = moert_portable_wgrad_from,
        [MOERT_TUNED_PREPACKED_FORWARD] = moert_portable_forward_from,
        [MOERT_TUNED_PREPACKED_DGRAD] = moert_portable_dgrad_from};
    return moert_portable_choices(gemm, operation, start, runs[operation]);
}

/* The share of forward and dgrad, whose lines are the rows. */
static share choose_rows(const moert_gemm *gemm, moert_tuned operation, size_t start) {
    const bool dgrad = operation == MOERT_TUNED_DGRAD || operation == MOERT_TUNED_PREPACKED_DGRAD;
    const moert_device *device = moert_buffer_device(gemm->x);
    const moert_choices c = choices_of(gemm, operation, start);
    product p = rows_of(gemm);
    p.columns = dgrad ? gemm->k : gemm->n;
    p.reduction = terms_of(gemm, device, dgrad ? gemm->n : gemm->k);
    return choose_share(device, gemm->type, p, gemm->prepacked != NULL ? FORM_PREPACKED : FORM_ROWS,
                        &c);
}

/* The numbers of a GEMM and of its work-groups' share. */
static moert_gemm_args numbers_of(const moert_gemm *gemm, size_t start, const share *s) {
    moert_gemm_args args = moert_portable_args(gemm, start);
    args.panels = s->panels;
    args.depth = s->depth;
    args.split = s->split;
    args.every = s->prefetch;
    return args;
}

static bool has_gpu_form(const moert_device *device) {
    return moert_device_describe(device)->gpu_form;
}

/* Forward (a is x, c is y) and dgrad (a is y, c is x) by panels. */
static moert_status run_prepacked(const moert_gemm *gemm, size_t start, bool forward) {
    moert_buffer *a = forward ? gemm->x : gemm->y, *c = forward ? gemm->y : gemm->x;
    moert_device *device = moert_buffer_device(c);
    const size_t width = forward ? gemm->n : gemm->k, reduction = forward ? gemm->k : gemm->n;
    const share s = choose_rows(
        gemm, forward ? MOERT_TUNED_PREPACKED_FORWARD : MOERT_TUNED_PREPACKED_DGRAD, start);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, gemm->prepacked, NULL, &s.tile, spec);
    moert_gemm_args args = numbers_of(gemm, start, &s);
    args.lda = forward ? gemm->ldx : gemm->ldy;
    args.a_column = forward ? 0 : gemm->y_column;
    args.ldc = forward ? gemm->ldy : gemm->ldx;
    args.c_column = forward ? gemm->y_column : 0;
    args.width = (int)width;
    args.reduction = (int)reduction;
    args.height = (int)moert_panel_height(gemm->prepacked, reduction);
    return MOERT_RUN(device, spec, "gemm_packed", s.grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(a), MOERT_ARG(gemm->prepacked->panels),
                     MOERT_ARG(forward ? gemm->bias : NULL), MOERT_ARG(c), MOERT_STRUCT(args),
                     moert_argument_local(s.transposed_bytes));
}

/* Forward and dgrad by any weight. */
static moert_status run_rows(const moert_gemm *gemm, size_t start, bool forward) {
    const moert_quantized *quantized = gemm->weight_quantized;
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    char spec[MOERT_SPEC_BYTES];
    if (has_gpu_form(device))
        return moert_portable_gpu_rows(gemm, start, forward);
    if (gemm->prepacked != NULL)
        return run_prepacked(gemm, start, forward);
    const share s = choose_rows(gemm, forward ? MOERT_TUNED_FORWARD : MOERT_TUNED_DGRAD, start);
    moert_gemm_program(device, gemm->type, NULL, quantized, &s.tile, spec);
    moert_gemm_args args = numbers_of(gemm, start, &s);
    args.axis = quantized != NULL ? (int)quantized->axis : 0;
    args.flipped = quantized != NULL && quantized->flipped;
    const moert_argument panels = moert_argument_local(s.local_bytes),
                         transposed = moert_argument_local(s.transposed_bytes);
    if (forward)
        return MOERT_RUN(device, spec, "gemm_forward", s.grid, MOERT_ARG(gemm->groups.ends),
                         MOERT_ARG(gemm->x), MOERT_WEIGHT_ARGS(gemm->weight, quantized),
                         MOERT_ARG(gemm->bias), MOERT_ARG(gemm->y), MOERT_STRUCT(args), panels,
                         transposed);
    return MOERT_RUN(device, spec, "gemm_dgrad", s.grid, MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(gemm->y), MOERT_WEIGHT_ARGS(gemm->weight, quantized),
                     MOERT_ARG(gemm->x), MOERT_STRUCT(args), panels, transposed);
}

moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start) {
    return run_rows(gemm, start, true);
}

moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start) {
    return run_rows(gemm, start, false);
}

moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start) {
    moert_device *device = moert_buffer_device(gemm->weight);
    const moert_groups *groups = &gemm->groups;
    if (has_gpu_form(device))
        return moert_portable_gpu_wgrad(gemm, start);
    const product p = {groups->count, gemm->n, gemm->n, gemm->k,
                       terms_of(gemm, device, groups->rows)};
    const moert_choices c = choices_of(gemm, MOERT_TUNED_WGRAD, start);
    const share s = choose_share(device, gemm->type, p, FORM_WGRAD, &c);
    const moert_grid grid = {s.grid.y, s.grid.x, s.grid.z}; /* neighbours are of other groups */
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, NULL, NULL, &s.tile, spec);
    const moert_gemm_args args = numbers_of(gemm, start, &s);
    return MOERT_RUN(device, spec, "gemm_wgrad", grid, MOERT_ARG(groups->ends), MOERT_ARG(gemm->y),
                     MOERT_ARG(gemm->x), MOERT_ARG(gemm->weight), MOERT_STRUCT(args),
                     moert_argument_local(s.local_bytes),
                     moert_argument_local((size_t)s.depth * STRIP_BYTES));
}

moert_status moert_portable_bias_grad(const moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->bias);
    const moert_groups *groups = &gemm->groups;
    const moert_grid grid = {moert_ceil_div(gemm->n, MOERT_VECTOR), groups->count, 1};
    const moert_tuning_key key = {MOERT_TUNED_WGRAD, gemm->type, gemm->n, gemm->k, 0};
    char spec[MOERT_SPEC_BYTES];
    bool measured;
    if (has_gpu_form(device))
        return moert_portable_gpu_bias_grad(gemm);
    const moert_choices tile = moert_with_tile(moert_tuning_find(device, &key, &measured),
                                               moert_dot_of(device, gemm->type)); /* no effect */
    moert_gemm_program(device, gemm->type, NULL, NULL, &tile, spec);
    const moert_gemm_args args = moert_portable_args(gemm, 0);
    return MOERT_RUN(device, spec, "gemm_bias_grad", grid, MOERT_ARG(groups->ends),
                     MOERT_ARG(gemm->y), MOERT_ARG(gemm->bias), MOERT_STRUCT(args));
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

/* Finds the tile of a product with its GLU; false: it takes none. */
static bool find_gated_tile(const moert_gemm *gemm, moert_choices *tile) {
    const moert_prepacked *prepacked = gemm->prepacked;
    const moert_tuning_key key = {prepacked != NULL ? MOERT_TUNED_PREPACKED_FORWARD
                                                    : MOERT_TUNED_FORWARD,
                                  gemm->type, gemm->n, gemm->k, rows_of(gemm).lines};
    bool measured;
    const moert_device *device = moert_buffer_device(gemm->y);
    *tile = moert_tuning_find(device, &key, &measured);
    if (prepacked != NULL)
        tile->width = moert_prepacked_width(prepacked, tile->width);
    *tile = moert_with_tile(*tile, moert_gemm_dot(gemm, device));
    return moert_gates_fit(prepacked != NULL ? prepacked->tile.width : tile->width);
}

/* Its share: the columns of h. */
static share choose_gated(const moert_gemm *gemm, size_t width, const moert_choices *tile) {
    const moert_device *device = moert_buffer_device(gemm->y);
    product p = rows_of(gemm);
    p.columns = moert_gated_columns(width, tile->width);
    p.reduction = terms_of(gemm, device, gemm->k);
    return choose_share(device, gemm->type, p, gemm->prepacked != NULL ? FORM_PREPACKED : FORM_ROWS,
                        tile);
}

moert_status moert_portable_gated(const moert_gemm *gemm) {
    const moert_glu *glu = &gemm->glu;
    moert_device *device = moert_buffer_device(gemm->y);
    moert_choices tile;
    if (has_gpu_form(device) || !find_gated_tile(gemm, &tile)) {
        MOERT_TRY(moert_portable_forward_from(gemm, 0));
        return moert_portable_glu(glu, false);
    }
    const bool prepacked = gemm->prepacked != NULL;
    const share s = choose_gated(gemm, glu->width, &tile);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, gemm->prepacked, NULL, &s.tile, spec);
    moert_gemm_args args = numbers_of(gemm, 0, &s);
    args.prob_stride = glu->prob_stride;
    args.width = (int)glu->width;
    args.height = prepacked ? (int)moert_panel_height(gemm->prepacked, gemm->k) : 0;
    args.keep = !gemm->drop_v;
    args.quantized = glu->type != MOERT_DTYPE_F32;
    args.interleaved = glu->form.interleaved;
    args.limit = glu->form.limit;
    args.alpha = glu->form.alpha;
    args.offset = glu->form.offset;
    args.activation = glu->form.activation;
    const moert_argument all[] = {MOERT_ARG(gemm->groups.ends),
                                  MOERT_ARG(gemm->x),
                                  MOERT_ARG(prepacked ? gemm->prepacked->panels : gemm->weight),
                                  MOERT_ARG(gemm->bias),
                                  MOERT_ARG(gemm->y),
                                  MOERT_ARG(glu->prob),
                                  MOERT_ARG(glu->h),
                                  MOERT_STRUCT(args),
                                  moert_argument_local(s.transposed_bytes),
                                  moert_argument_local(s.local_bytes)};
    const size_t count = MOERT_COUNT(all); /* prepacked panels take no local memory */
    return moert_launch(device, spec, prepacked ? "gemm_packed_glu" : "gemm_glu_forward", s.grid,
                        all, prepacked ? count - 1 : count);
}
