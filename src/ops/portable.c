/* The portable backend: chooses a work-group's share and launches kernels/gemm.cl,
 * kernels/gemm_packed.cl and kernels/glu.cl. */
#include <stdio.h>

#include "base/config.h"
#include "base/memory.h"
#include "ops/backend.h"
#include "ops/portable.h"

enum {
    PANEL_BYTES = 128,   /* of a panel in kernels/gemm.h, per term of the reduction */
    LINE_BYTES = 32,     /* of 8 lines of pairs there */
    STRIP_BYTES = 256,   /* of STRIP lines in kernels/gemm.cl, per term of the reduction */
    LARGEST_SPLIT = 512, /* lines of a work-group: enough to repay the making of its panels */
    SMALLEST_SPLIT = 128,
    SHARES_PER_UNIT = 8, /* work-groups per compute unit that even out their differences */
    GLU_FLOATS = 16384,  /* a GLU's work-group takes about as many */
};

/* Of a work-group: panels side by side, their depth, and local memory beside them for each of it.
 * A panel that lies in global memory takes none. */
typedef struct limits {
    size_t panels, depth, panel_bytes, more_bytes;
} limits;

static const limits row_limits = {4, 1024, PANEL_BYTES, 0};
static const limits packed_limits = {4, 1024, 0, 0};
/* packed: more columns repay the turning of lines */
static const limits pair_limits = {8, 1024, 0, 0};
/* here both factors are packed and share the first cache, and more columns use a strip of lines */
static const limits wgrad_limits = {16, 128, PANEL_BYTES, STRIP_BYTES};

/* `groups` products of about `lines` lines, at most `most_lines`, by `columns`, over `reduction`
 * terms. */
typedef struct product {
    size_t groups, lines, most_lines, columns, reduction;
} product;

/* A work-group's share of a product; see the picture in kernels/gemm.h. */
typedef struct share {
    int panels, depth, split;
    size_t local_bytes;
    moert_grid grid;
} share;

/* None of the choices shows in the bits. */
static share choose_share(const moert_device *device, product p, limits most) {
    const moert_device_info *info = moert_device_describe(device);
    const size_t wanted = SHARES_PER_UNIT * moert_max(info->compute_units, 1);
    const size_t blocks = moert_ceil_div(p.columns, MOERT_PANEL_COLUMNS);
    size_t panels = moert_min(most.panels, blocks), split = LARGEST_SPLIT;
    size_t depth = moert_min(moert_round_up(moert_max(p.reduction, 1), 16), most.depth);
    /* half of the local memory: on a CPU it is the cache, which serves the other factor too */
    while (depth > 16 &&
           depth * (panels * most.panel_bytes + most.more_bytes) > info->local_bytes / 2) {
        if (panels > 1)
            panels--;
        else
            depth = moert_round_up(depth / 2, 16);
    }
    while (p.groups * moert_ceil_div(p.lines, split) * moert_ceil_div(blocks, panels) < wanted) {
        if (panels > 1)
            panels--;
        else if (split > SMALLEST_SPLIT)
            split /= 2;
        else
            break;
    }
    panels = moert_ceil_div(blocks, moert_ceil_div(blocks, panels)); /* equal shares */
    return (share){(int)panels,
                   (int)depth,
                   (int)split,
                   panels * depth * most.panel_bytes,
                   {moert_ceil_div(p.most_lines, split), p.groups, moert_ceil_div(blocks, panels)}};
}

/* The share of forward and dgrad, whose lines are the rows. */
static share choose_rows(const moert_device *device, const moert_gemm *gemm, size_t columns,
                         size_t reduction, limits most) {
    const size_t groups = gemm->shared_weight ? 1 : gemm->groups.count, rows = gemm->groups.rows;
    const product p = {groups, moert_ceil_div(rows, groups), rows, columns,
                       moert_ceil_div(reduction, moert_per_term(gemm->type))};
    return choose_share(device, p, most);
}

/* Local memory for lines of pairs in kernels/gemm.h. */
static moert_argument turned_lines(const moert_gemm *gemm, share s) {
    return moert_argument_local(
        gemm->type == MOERT_NUMBER_BF16 ? ((size_t)s.depth + 16) * LINE_BYTES : sizeof(float));
}

/* The groups that share one weight, or 0. */
static unsigned shared_groups(const moert_gemm *gemm) {
    return gemm->shared_weight ? (unsigned)gemm->groups.count : 0;
}

void moert_gemm_program(const moert_device *device, moert_number type, bool packed,
                        const moert_coded *coded, char spec[MOERT_SPEC_BYTES]) {
    const bool pairs = type == MOERT_NUMBER_BF16;
    const bool dot = pairs && moert_device_describe(device)->has_bf16_dot &&
                     moert_config_get()->bf16 == MOERT_BF16_AUTO;
    char family[64];
    snprintf(family, sizeof family, "%s -DBF16=%d -DDOT=%d -DCODED=%d",
             packed ? "gemm_packed" : "gemm", pairs, dot, coded != NULL);
    if (coded != NULL)
        moert_format_program(family, coded->format, spec);
    else
        snprintf(spec, MOERT_SPEC_BYTES, "%s", family);
}

/* Forward (a is x, c is y) and dgrad (a is y, c is x) by panels. */
static moert_status run_packed(const moert_gemm *gemm, size_t start, bool forward) {
    moert_buffer *a = forward ? gemm->x : gemm->y, *c = forward ? gemm->y : gemm->x;
    moert_device *device = moert_buffer_device(c);
    const moert_groups *groups = &gemm->groups;
    const size_t width = forward ? gemm->n : gemm->k, reduction = forward ? gemm->k : gemm->n;
    const limits most = gemm->type == MOERT_NUMBER_BF16 ? pair_limits : packed_limits;
    const share s = choose_rows(device, gemm, width, reduction, most);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, true, NULL, spec);
    return MOERT_RUN(
        device, spec, "gemm_packed", s.grid, MOERT_ARG(groups->ends), MOERT_ARG((unsigned)start),
        MOERT_ARG(shared_groups(gemm)), MOERT_ARG((unsigned)groups->rows), MOERT_ARG(a),
        MOERT_ARG(forward ? gemm->ldx : gemm->ldy), MOERT_ARG(forward ? (size_t)0 : gemm->y_column),
        MOERT_ARG(gemm->packed->panels), MOERT_ARG(forward ? gemm->bias : NULL), MOERT_ARG(c),
        MOERT_ARG(forward ? gemm->ldy : gemm->ldx), MOERT_ARG(forward ? gemm->y_column : (size_t)0),
        MOERT_ARG((int)width), MOERT_ARG((int)reduction), MOERT_ARG((int)gemm->accumulate),
        MOERT_ARG((int)moert_panel_height(gemm->type, reduction)), MOERT_ARG(s.panels),
        MOERT_ARG(s.depth), MOERT_ARG(s.split), turned_lines(gemm, s));
}

moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start,
                                         const moert_coded *coded) {
    moert_device *device = moert_buffer_device(gemm->y);
    const moert_groups *groups = &gemm->groups;
    if (gemm->packed != NULL)
        return run_packed(gemm, start, true);
    const share s = choose_rows(device, gemm, gemm->n, gemm->k, row_limits);
    const moert_weight_source w = moert_weight_source_of(gemm->weight, coded);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, false, coded, spec);
    return MOERT_RUN(
        device, spec, "gemm_forward", s.grid, MOERT_ARG(groups->ends), MOERT_ARG((unsigned)start),
        MOERT_ARG(shared_groups(gemm)), MOERT_ARG((unsigned)groups->rows), MOERT_ARG(gemm->x),
        MOERT_ARG(gemm->ldx), MOERT_WEIGHT_ARGS(w), MOERT_ARG(gemm->bias), MOERT_ARG(gemm->y),
        MOERT_ARG(gemm->ldy), MOERT_ARG(gemm->y_column), MOERT_ARG((int)gemm->n),
        MOERT_ARG((int)gemm->k), MOERT_ARG(s.panels), MOERT_ARG(s.depth), MOERT_ARG(s.split),
        moert_argument_local(s.local_bytes), turned_lines(gemm, s));
}

moert_status moert_portable_gemm_forward(const moert_gemm *gemm) {
    return moert_portable_forward_from(gemm, 0, NULL);
}

moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start,
                                       const moert_coded *coded) {
    moert_device *device = moert_buffer_device(gemm->x);
    const moert_groups *groups = &gemm->groups;
    if (gemm->packed != NULL)
        return run_packed(gemm, start, false);
    const share s = choose_rows(device, gemm, gemm->k, gemm->n, row_limits);
    const moert_weight_source w = moert_weight_source_of(gemm->weight, coded);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, false, coded, spec);
    return MOERT_RUN(
        device, spec, "gemm_dgrad", s.grid, MOERT_ARG(groups->ends), MOERT_ARG((unsigned)start),
        MOERT_ARG(shared_groups(gemm)), MOERT_ARG((unsigned)groups->rows), MOERT_ARG(gemm->y),
        MOERT_ARG(gemm->ldy), MOERT_ARG(gemm->y_column), MOERT_WEIGHT_ARGS(w), MOERT_ARG(gemm->x),
        MOERT_ARG(gemm->ldx), MOERT_ARG((int)gemm->n), MOERT_ARG((int)gemm->k),
        MOERT_ARG((int)gemm->accumulate), MOERT_ARG(s.panels), MOERT_ARG(s.depth),
        MOERT_ARG(s.split), moert_argument_local(s.local_bytes), turned_lines(gemm, s));
}

moert_status moert_portable_gemm_dgrad(const moert_gemm *gemm) {
    return moert_portable_dgrad_from(gemm, 0, NULL);
}

moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start) {
    moert_device *device = moert_buffer_device(gemm->weight);
    const moert_groups *groups = &gemm->groups;
    const product p = {groups->count, gemm->n, gemm->n, gemm->k,
                       moert_ceil_div(groups->rows, moert_per_term(gemm->type))};
    const share s = choose_share(device, p, wgrad_limits);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, false, NULL, spec);
    return MOERT_RUN(device, spec, "gemm_wgrad", s.grid, MOERT_ARG(groups->ends),
                     MOERT_ARG((unsigned)start), MOERT_ARG((unsigned)groups->rows),
                     MOERT_ARG(gemm->y), MOERT_ARG(gemm->ldy), MOERT_ARG(gemm->y_column),
                     MOERT_ARG(gemm->x), MOERT_ARG(gemm->ldx), MOERT_ARG(gemm->weight),
                     MOERT_ARG((int)gemm->n), MOERT_ARG((int)gemm->k),
                     MOERT_ARG((int)gemm->accumulate), MOERT_ARG(s.panels), MOERT_ARG(s.depth),
                     MOERT_ARG(s.split), moert_argument_local(s.local_bytes),
                     moert_argument_local((size_t)s.depth * STRIP_BYTES));
}

moert_status moert_portable_gemm_wgrad(const moert_gemm *gemm) {
    return moert_portable_wgrad_from(gemm, 0);
}

moert_status moert_portable_gemm_bias_grad(const moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->bias);
    const moert_groups *groups = &gemm->groups;
    const moert_grid grid = {moert_ceil_div(gemm->n, 16), groups->count, 1};
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, gemm->type, false, NULL, spec);
    return MOERT_RUN(device, spec, "gemm_bias_grad", grid, MOERT_ARG(groups->ends),
                     MOERT_ARG((unsigned)groups->rows), MOERT_ARG(gemm->y), MOERT_ARG(gemm->ldy),
                     MOERT_ARG(gemm->y_column), MOERT_ARG(gemm->bias), MOERT_ARG((int)gemm->n),
                     MOERT_ARG((int)gemm->accumulate));
}

/* Rows of a GLU's work-group. */
static size_t glu_split(const moert_glu *glu) {
    return moert_ceil_div(GLU_FLOATS, glu->width);
}

moert_status moert_portable_glu_forward(const moert_glu *glu) {
    const size_t split = glu_split(glu);
    const moert_grid grid = {moert_ceil_div(glu->rows, split), 1, 1};
    return MOERT_RUN(moert_buffer_device(glu->v), "glu", "glu_forward", grid, MOERT_ARG(glu->v),
                     MOERT_ARG(glu->prob), MOERT_ARG(glu->prob_stride), MOERT_ARG(glu->h),
                     MOERT_ARG((unsigned)glu->rows), MOERT_ARG((int)glu->width),
                     MOERT_ARG((int)glu->form.interleaved), MOERT_ARG(glu->form.limit),
                     MOERT_ARG(glu->form.alpha), MOERT_ARG(glu->form.offset),
                     MOERT_ARG((unsigned)split));
}

moert_status moert_portable_glu_backward(const moert_glu *glu) {
    const size_t split = glu_split(glu);
    const moert_grid grid = {moert_ceil_div(glu->rows, split), 1, 1};
    return MOERT_RUN(moert_buffer_device(glu->v), "glu", "glu_backward", grid, MOERT_ARG(glu->v),
                     MOERT_ARG(glu->prob), MOERT_ARG(glu->prob_stride), MOERT_ARG(glu->dh),
                     MOERT_ARG(glu->dv), MOERT_ARG(glu->dprob), MOERT_ARG((unsigned)glu->rows),
                     MOERT_ARG((int)glu->width), MOERT_ARG((int)glu->form.interleaved),
                     MOERT_ARG(glu->form.limit), MOERT_ARG(glu->form.alpha),
                     MOERT_ARG(glu->form.offset), MOERT_ARG((unsigned)split));
}
