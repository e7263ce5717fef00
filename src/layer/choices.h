/*
 * Decisions that follow from a layer's options: how rows travel, and the dtypes in which the
 * experts compute. moert_layer_choose makes all these decisions: no other file reads the options
 * precision, dispatch, combine or expert_biases.
 *
 *   precision      operands of the experts' GEMMs                     v, dh      h      dv
 *   f32            float32                                            F32        F32    F32
 *   bf16           bf16                                               BF16 (1)   BF16   BF16 (2)
 *   recipes        bf16, or a format's values in bf16 (rounding.h)    BF16 (1)   BF16   as v (3)
 *                  or FP8 payloads and scales (fp8.h)
 *
 * (1) v and dh are F32 if the GEMMs cannot round their results, or with biases: dv replaces v, and
 *     the gradient of the biases reads dv in float32.
 * (2) dv is F32 with biases. With a deferred wgrad dv has the dtype of v, because dv then uses the
 *     buffer of v.
 * (3) dv uses the buffer of v, since its rounded copy uses the scratch buffer of a separate dv.
 *
 * GEMMs of bf16 operands may treat operands below 2^-126 as zero.
 */
#pragma once

#include "layer/block.h"

/* The rows that travel between ranks in one direction. The exchange copies these rows bit by bit,
 * as rows of floats. */
typedef struct moert_hop {
    moert_dispatch encoding; /* float32, bf16, or MXFP8 payload and scales */
    size_t bytes;            /* bytes of a row */
    size_t width;            /* width in floats of a window that receives rows in this encoding */
} moert_hop;

/* What the last GEMM of a forward or backward can do with results that travel in bf16. */
typedef struct moert_storing {
    bool rounds;   /* the GEMM rounds its results to bf16 */
    bool scatters; /* the GEMM also stores its results in the windows of other ranks */
} moert_storing;

typedef struct moert_layer_choices {
    moert_hop forth;      /* how x and dy travel to the owners of their experts */
    moert_hop back;       /* how y and dx travel to the ranks of their tokens */
    moert_storing y, dx;  /* the GEMMs whose results travel back */
    bool pushes;          /* ranks may push y; the same on all ranks, whatever their devices */
    bool chunks;          /* experts can compute some rows while others travel: no conversion
                             before or after the GEMMs needs all rows */
    bool biases;          /* both projections of the experts have biases */
    moert_dtype operand;  /* dtype of the operands of the experts' GEMMs */
    moert_dtype shared;   /* dtype of the operands of the shared expert's GEMMs; a recipe rounds
                             them as it rounds those of the experts */
    moert_dtype received; /* x and dy as the GEMMs get them: BF16 if the GEMMs read the window */
    moert_dtype v, h, dv; /* dtype of v[M,2I] and dh[M,I], of h[M,I], and of dv[M,2I] */
    bool quantizes;       /* operands are rounded by `recipe` */
    bool fp8;             /* GEMMs multiply FP8 operands on tensor cores (layer/fp8.h) */
    moert_recipe recipe;  /* all operands in bf16 if the layer does not quantize */
    bool casts;      /* some operands of the recipe are in bf16, or in some of a model's batches
                             all are */
    bool keeps_down; /* a dgrad rounds y both ways and keeps the result for the wgrad */
    bool copies_in_order; /* rounded copies of weights are bf16 in the weights' order */
    bool splits_router;   /* the router's GEMMs may split float32 operands into sums of bf16
                             values */
} moert_layer_choices;

/* The choices of a layer with `experts` experts on this rank. Without a device, in an estimate, no
 * GEMM rounds its results. */
moert_layer_choices moert_layer_choose(const moert_layer_options *options,
                                       const moert_device *device, size_t experts);
/* Checks the options that the choices depend on. Errors: ERROR_USAGE, ERROR_UNSUPPORTED. */
moert_status moert_layer_check_choices(const moert_layer_options *options);

/* moert_expert_map.cut of the layer: a multiple of the rows of a block of a wgrad. */
size_t moert_layer_cut_rows(const moert_layer_options *options);

/* The shapes of the blocks of a layer that holds `local` experts, by the index of
 * moert_layer_block. */
enum { MOERT_LAYER_BLOCKS = 3, MOERT_LAYER_BLOCK_TENSORS = 6 };

typedef struct moert_layer_shapes {
    size_t elements[MOERT_LAYER_BLOCKS][MOERT_LAYER_BLOCK_TENSORS];
    size_t parts[MOERT_LAYER_BLOCKS][MOERT_LAYER_BLOCK_TENSORS];
    size_t count[MOERT_LAYER_BLOCKS];
} moert_layer_shapes;

moert_layer_shapes moert_layer_shapes_of(const moert_layer_options *options, size_t local);
