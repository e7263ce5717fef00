/*
 * GEMMs of the portable backend over a batch of groups, [start, start + gemm->groups.count). These
 * GEMMs compute the part of the batch that gemm->groups selects. gemm->weight holds the weights of
 * the batch; `ends` and `bias` are those of all groups. The caller has checked the arguments.
 */
#pragma once

#include "args/gemm.h"
#include "base/memory.h"
#include "device/launch.h"
#include "gemm/backend.h"
#include "gemm/tuning/tuning.h"
#include "quant/quantize.h"

/* Forward and dgrad use gemm->weight.quantized unless it is NULL. In the GPU form
 * gemm->weight.quantized must be NULL: the caller dequantizes weights. */
moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start);

moert_status moert_portable_bias_grad(const moert_gemm *gemm);
/* moert_portable_gated computes a forward followed by the GLU; moert_portable_glu is the GLU as a
 * separate call. */
moert_status moert_portable_gated(const moert_gemm *gemm);
moert_status moert_portable_glu(const moert_glu *glu, bool backward);

/* The functions of the GPU form (src/gemm/portable/gpu.c), which the functions above call. */
moert_status moert_portable_gpu_rows(const moert_gemm *gemm, size_t start, bool forward);
moert_status moert_portable_gpu_wgrad(const moert_gemm *gemm, size_t start);
moert_status moert_portable_gpu_bias_grad(const moert_gemm *gemm);

/* The kernel arguments that the CPU form and the GPU form both set. */
static inline moert_gemm_args moert_portable_args(const moert_gemm *gemm, size_t start) {
    return (moert_gemm_args){.ldx = gemm->x.stride,
                             .ldy = gemm->y.stride,
                             .y_column = gemm->y.first,
                             .start = (unsigned)start,
                             .skip = (unsigned)gemm->groups.first,
                             .shared = gemm->groups.shared ? (unsigned)gemm->groups.count : 0,
                             .rows = (unsigned)moert_groups_filled(gemm->groups).end_row,
                             .n = (int)gemm->n,
                             .k = (int)gemm->k,
                             .accumulate = gemm->epilogue.addend == MOERT_ADDEND_FIRST};
}

/* src/gemm/portable/prepacked.c */
extern const moert_prepacker moert_portable_prepacker;

/* WEIGHT_ARGUMENTS of kernels/gemm/panels.h: `quantized` or, if that is NULL, `weight`. */
#define MOERT_WEIGHT_ARGS(weight, quantized)                                                       \
    MOERT_ARG((quantized) != NULL ? (quantized)->q : (weight)),                                    \
        MOERT_ARG((quantized) != NULL ? (quantized)->scale : NULL),                                \
        MOERT_ARG((quantized) != NULL ? (quantized)->global : NULL)

/* The program for a type and a tile: for prepacked weights or, if `panels` is NULL, weights in
 * their own order. `quantized` NULL: weights are float32. */
void moert_gemm_program(const moert_device *device, moert_dtype type, const moert_panels *panels,
                        const moert_quantized *quantized, const moert_choices *tile,
                        char spec[MOERT_SPEC_BYTES]);

/* Values of a dot. */
static inline size_t moert_per_dot(moert_dot dot) {
    return dot == MOERT_DOT_SCALAR ? 1 : 2;
}
/* Panels are padded to a multiple of this many values of the reduction. */
static inline size_t moert_per_step(moert_dot dot) {
    return dot == MOERT_DOT_TILE ? 32 : 16;
}

/* Returns `c`; if `dot` is MOERT_DOT_TILE, with the only tile that the AMX kernel has. */
static inline moert_choices moert_with_tile(moert_choices c, moert_dot dot) {
    if (dot == MOERT_DOT_TILE) {
        c.lines = 32;
        c.width = 2;
    }
    return c;
}

/* Rows of a prepacked panel. */
static inline size_t moert_panel_height(const moert_panels *panels, size_t reduction) {
    return moert_round_up(reduction, moert_per_step(panels->dot)) / moert_per_dot(panels->dot);
}

/* The tile width of a GEMM by prepacked weights: the chosen width if it is a multiple of the
 * panels' width, else the width of one panel. */
static inline unsigned moert_panels_width(const moert_panels *panels, unsigned chosen) {
    return chosen % panels->tile.width == 0 ? chosen : panels->tile.width;
}

/* Whether the GEMM can prefetch the next panels to the cache, as the choice `prefetch` says. */
static inline bool moert_prefetches(const moert_panels *panels) {
    return panels != NULL && panels->dot != MOERT_DOT_TILE;
}

/* Whether a tile of this width can hold gates and ups, for a GLU in the epilogue. A tile that holds
 * gates and ups has as many vectors of gates as of ups (kernels/gemm/gemm_glu.h). */
static inline bool moert_gates_fit(unsigned width) {
    return width % 2 == 0;
}
/* Columns of all panels of `width` gates and `width` ups. */
static inline size_t moert_gated_columns(size_t width, unsigned tile_width) {
    const size_t columns = tile_width * (size_t)MOERT_VECTOR;
    return moert_ceil_div(width, columns / 2) * columns;
}
