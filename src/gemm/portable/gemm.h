/*
 * The products of the portable backend over a batch of the groups: those from number `start` on,
 * gemm->groups.count of them, whose weights begin the buffer gemm->weight, and of these gemm->part.
 * `ends` and `bias` are of all groups, `accumulate` is as in gemm/gemm.h. The arguments have been
 * checked.
 */
#pragma once

#include "args/gemm.h"
#include "base/memory.h"
#include "gemm/backend.h"
#include "gemm/tuning/tuning.h"
#include "quant/quantize.h"

/* By gemm->weight_quantized unless they are NULL, as always in GPU form, where weights are dequantized
 * before their products. */
moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start);

moert_status moert_portable_bias_grad(const moert_gemm *gemm);
/* A forward with the GLU of its result; and the GLU alone. */
moert_status moert_portable_gated(const moert_gemm *gemm);
moert_status moert_portable_glu(const moert_glu *glu, bool backward);

/* The same by the kernels of the GPU form (src/gemm/portable/gpu.c), which the ones above call. */
moert_status moert_portable_gpu_rows(const moert_gemm *gemm, size_t start, bool forward);
moert_status moert_portable_gpu_wgrad(const moert_gemm *gemm, size_t start);
moert_status moert_portable_gpu_bias_grad(const moert_gemm *gemm);

/* What the kernels of both forms are told of a GEMM. */
static inline moert_gemm_args moert_portable_args(const moert_gemm *gemm, size_t start) {
    return (moert_gemm_args){.ldx = gemm->ldx,
                             .ldy = gemm->ldy,
                             .y_column = gemm->y_column,
                             .start = (unsigned)start,
                             .skip = (unsigned)gemm->part.first,
                             .shared = gemm->shared_weight ? (unsigned)gemm->groups.count : 0,
                             .rows = (unsigned)moert_part_of(gemm).end_row,
                             .n = (int)gemm->n,
                             .k = (int)gemm->k,
                             .accumulate = gemm->accumulate};
}

/* src/gemm/portable/prepacked.c */
extern const moert_prepack moert_portable_prepack;

/* WEIGHT_ARGUMENTS of kernels/gemm/panels.h: a weight, or its codes unless they are NULL. */
#define MOERT_WEIGHT_ARGS(weight, quantized)                                                       \
    MOERT_ARG((quantized) != NULL ? (quantized)->q : (weight)),                                    \
        MOERT_ARG((quantized) != NULL ? (quantized)->scale : NULL),                                \
        MOERT_ARG((quantized) != NULL ? (quantized)->global : NULL)

/* The program of the products of a type by a tile, by weights in panels or, if `prepacked` is NULL,
 * native ones, quantized ones unless NULL. */
void moert_gemm_program(const moert_device *device, moert_dtype type,
                        const moert_prepacked *prepacked, const moert_quantized *quantized,
                        const moert_choices *tile, char spec[MOERT_SPEC_BYTES]);

/* What a product over the groups from `start` on chooses; with MOERT_TUNE=auto a new shape is
 * measured first, for which the product is run, unless its weight is quantized. */
typedef moert_status moert_portable_run(const moert_gemm *gemm, size_t start);
moert_choices moert_portable_choices(const moert_gemm *gemm, moert_tuned operation, size_t start,
                                     moert_portable_run *run);

enum { MOERT_VECTOR = 16 }; /* VEC in kernels/lib/common.h */

/* The numbers of a term, and those to which panels are filled up. */
static inline size_t moert_per_dot(moert_dot term) {
    return term == MOERT_DOT_SCALAR ? 1 : 2;
}
static inline size_t moert_per_step(moert_dot term) {
    return term == MOERT_DOT_TILE ? 32 : 16;
}

/* The choices of a row, with the tile of sums by tiles, of which there is one. */
static inline moert_choices moert_with_tile(moert_choices c, moert_dot term) {
    if (term == MOERT_DOT_TILE) {
        c.lines = 32;
        c.width = 2;
    }
    return c;
}

/* Rows of a prepacked panel. */
static inline size_t moert_panel_height(const moert_prepacked *prepacked, size_t reduction) {
    return moert_round_up(reduction, moert_per_step(prepacked->term)) /
           moert_per_dot(prepacked->term);
}

/* The width of a product's tile by prepacked weights, in whole panels. */
static inline unsigned moert_prepacked_width(const moert_prepacked *prepacked, unsigned chosen) {
    return chosen % prepacked->tile.width == 0 ? chosen : prepacked->tile.width;
}

/* A product by prepacked weights brings the next panels to the cache, if a row says so. */
static inline bool moert_prefetches(const moert_prepacked *prepacked) {
    return prepacked != NULL && prepacked->term != MOERT_DOT_TILE;
}

/* A product's tile takes a GLU behind it by vectors of gates and as many of ups
 * (kernels/gemm/gemm_glu.h): whether it can, and the columns of all panels. */
static inline bool moert_gates_fit(unsigned width) {
    return width % 2 == 0;
}
static inline size_t moert_gated_columns(size_t width, unsigned tile_width) {
    const size_t columns = tile_width * (size_t)MOERT_VECTOR;
    return moert_ceil_div(width, columns / 2) * columns;
}
