/* What the files of the layer share. */
#pragma once

#include "layer/block.h"
#include "layer/mesh.h"
#include "nn/bias.h"
#include "router/router.h"

/* Blocks of a layer, and the tensors' places in them (in the order of moert_layer_tensor). */
enum { BLOCK_DENSE, BLOCK_EXPERT_IN, BLOCK_EXPERT_OUT, BLOCKS = MOERT_LAYER_BLOCKS };
enum { DENSE_ROUTER, DENSE_ROUTER_BIAS, DENSE_SHARED_W1, DENSE_SHARED_W2, DENSE_TENSORS };
enum { EXPERT_WEIGHT, EXPERT_BIAS, EXPERT_TENSORS };

/* Of an expert block, when the precision has blocks: its weight for forward, in blocks along K, and
 * for dgrad, along N; prepacked or, where that gains nothing, float32. */
typedef struct moert_rounded {
    moert_prepacked *prepacked[MOERT_PREPACKED_USES];
    moert_buffer *weight[MOERT_PREPACKED_USES];
    float amax[2]; /* NVFP4: of the last forward's x and backward's y, over all ranks */
} moert_rounded;

struct moert_layer {
    moert_mesh *mesh;
    moert_layer_options options;
    size_t first_expert, local_experts;
    moert_block *block[BLOCKS];
    moert_buffer *correction; /* [E] or NULL */
    moert_rounded rounded[BLOCKS];
    bool weights_changed; /* since `rounded` was made */
    size_t gathers;       /* of an amax, still to come in this pass */

    /* the last forward, kept for backward */
    moert_batch batch;
    const moert_buffer *input; /* x[T,H] of the caller */
    const moert_buffer *codes; /* moert_layer_give_bf16 */
    moert_buffer *logits;      /* [T,E] */
    moert_routing routing;
    moert_exchange_plan *plan;
    moert_window *x, *prob;            /* received rows, as they travel, and their weights */
    moert_buffer *v, *h;               /* [M,2I], [M,I] (moert_precision_v_type, _h_type) */
    moert_buffer *shared_v, *shared_h; /* [T,2I] (moert_operand_between), [T,I] as operands */

    enum { STAGE_NOTHING, STAGE_FORWARD, STAGE_BACKWARD } stage; /* what has been done last */

    /* the last backward, kept for a deferred wgrad */
    moert_window *dy;
    moert_buffer *dv; /* [M,2I] (moert_precision_dv_type): v, or scratch */
    bool owns_dy, accumulate;
};

/* One of the experts' GEMMs as a descriptor, on the rows of `part` or, NULL, on all: by the weight of
 * `block` or, a wgrad, to its gradients; without x and y. */
moert_gemm moert_layer_gemm(const moert_layer *layer, moert_gemm_kind kind, int block,
                            const moert_part *part);
/* The biases of the second projection, of what `gemm` has as y. */
moert_scaled_bias moert_layer_biases(const moert_layer *layer, const moert_gemm *gemm);
/* A dense projection as a GEMM descriptor over the batch's tokens, without operands; the router's with
 * x and y. */
moert_gemm moert_layer_dense_gemm(const moert_layer *layer, moert_dtype type, size_t n, size_t k);
moert_gemm moert_layer_router_gemm(const moert_layer *layer, const moert_buffer *x,
                                   moert_buffer *logits);

/* Does `work` for the experts and rows of each chunk between its dispatch and its combine, as long as
 * nothing fails. A rank that fails sends all the same. */
typedef moert_status moert_wave_work(moert_layer *layer, moert_transfer *back, size_t chunk,
                                     const moert_part *part);
moert_status moert_layer_each_wave(moert_layer *layer, moert_transfer *back, moert_wave_work *work);

/* Reserves an activation of `rows` by `width` floats, with room to grow. */
moert_status moert_layer_activation(moert_layer *layer, size_t rows, size_t width,
                                    moert_buffer **buffer);
