/*
 * A block: tensors whose weights, and gradients, lie in one buffer each, so that they are summed,
 * clipped and written together. Replicated blocks are the same on all ranks; expert blocks hold the
 * experts of one rank, and are the same on its replicas.
 *
 * The gradient of a replicated block is first collected as tree nodes (base/tree.h): nodes[N,
 * floats], one row per node of this rank's span of sequences; moert_block_reduce sums them over all
 * ranks. A rank alone has the root of the tree only, which is the gradient: it collects there, and
 * has no nodes.
 *
 * The ranks that hold a block share its sums and its optimizer between them (ZeRO, stage 1;
 * Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models",
 * 2020). Each owns a slice:
 *
 *   tensors    | embedding                   | norm | head                        |
 *   chunks     |    |    |    |    |    |  | |  |   |    |    |    |    |    |  | |
 *   slices of 3|0                      |1                       |2                 |
 *
 * Slices are whole chunks of MOERT_SQUARES_CHUNK floats, counted from the start of each tensor of
 * the model's files, as many for each rank up to one: so what is summed by chunks has the same bits
 * for any slices.
 */
#pragma once

#include "comm/tree_sum.h"
#include "device/device.h"
#include "gemm/gemm.h"
#include "moert/layer.h"
#include "nn/nn.h"
#include "router/router.h"

typedef struct moert_block_tensor {
    size_t elements, offset;         /* in floats; offsets are multiples of 128 */
    moert_buffer *weight, *gradient; /* views of the block's buffers */
    moert_prepacks prepacks;         /* of the weight */
} moert_block_tensor;

typedef struct moert_block {
    moert_device *device;
    moert_comm *comm; /* the ranks that hold it */
    const char *what; /* it holds, for messages; a literal */
    bool replicated;
    size_t floats; /* of all tensors with their padding, which stays zero */
    size_t chunks; /* that its slices consist of */
    size_t count;
    moert_block_tensor *tensor;
    size_t *border; /* [ranks that hold it + 1] of their slices, in floats */
    moert_buffer *weight, *gradient, *nodes;
    moert_tree_sum *sum; /* under way, of rows that are mapped there */
    float *mapped;
    bool collects_sum; /* into the gradient itself */
    bool accumulate;   /* what is collected adds to the gradient */
} moert_block;

/* What a block is made of. */
typedef struct moert_block_shape {
    const size_t *elements; /* [count] floats of each tensor; 0 is legal */
    size_t count;
    size_t parts; /* that each tensor consists of: as many tensors of the model's files */
} moert_block_shape;

/* Where the slice of a rank of `ranks` begins; that of the rank after the last where the block ends,
 * with its padding. */
size_t moert_block_border(const moert_block_shape *shape, size_t ranks, size_t rank);

/* Weights and gradients start as zero. `comm`: the ranks that hold it, all for a replicated one.
 * Not collective. */
moert_status moert_block_create(moert_device *device, moert_comm *comm, const char *what,
                                bool replicated, const moert_block_shape *shape,
                                moert_block **block);
void moert_block_destroy(moert_block *block);

/* To be called when weights were written: prepacks of them are stale. */
void moert_block_weights_changed(moert_block *block);

/* moert_gemm_run of a forward or dgrad by a tensor of the block, which fills in `weight` and
 * `prepacked`. */
moert_status moert_block_gemm(moert_block *block, size_t tensor, const moert_gemm *gemm);

/* Before the gradients of a batch are collected: makes room for its nodes. With `accumulate` the
 * gradients will be added to what is there. */
moert_status moert_block_begin(moert_block *block, const moert_batch *batch, bool accumulate);

/*
 * Collects a gradient as nodes from partial[S, n] (overwritten), for elements [first, first + n) of
 * a tensor; once in a batch for each element. Further gradients of the same tensor must already be
 * in the partials: trees that were summed one by one would depend on the number of ranks.
 */
moert_status moert_block_collect(moert_block *block, size_t tensor, const moert_batch *batch,
                                 size_t first, size_t n, moert_buffer *partial);

/* Where the nodes of a tensor's elements from `first` on are collected. */
moert_tree_nodes_at moert_block_nodes(const moert_block *block, size_t tensor,
                                      const moert_batch *batch, size_t first);

/*
 * The weight gradient (and with gemm->bias != NULL the bias gradient, tensor + 1) of a dense layer
 * y = x weight^T: groups, weight and bias of `gemm` are filled in here. `scratch` is a growable
 * buffer for partials.
 */
moert_status moert_block_dense_gradient(moert_block *block, size_t tensor, const moert_batch *batch,
                                        const moert_gemm *gemm, moert_buffer **scratch);
/* Partial gradients of so many bytes are made at a time, or of a row; NULL: on a CPU. */
size_t moert_block_partial_bytes(const moert_device *device);

/* The floats of this rank's slice, from *first on. */
size_t moert_block_shard(const moert_block *block, size_t *first);
/* The first chunk of the slice of a rank of those that hold the block, or of the rank after the
 * last. */
size_t moert_block_first_chunk(const moert_block *block, size_t rank);
/*
 * Sums gradients over the ranks that hold the block, `spans`: nodes by the leaves that each has, or
 * the gradients of an expert block by its replicas; this rank's slice of the gradient gets the sum,
 * or that of nodes is added to it. start blocks until the device is done, not until the other ranks
 * are; what comes between may neither write gradients nor read those of the block. Blocks are
 * started in the same order on all ranks. progress and wait of a block that is not under way do
 * nothing.
 */
moert_status moert_block_reduce_start(moert_block *block, const moert_span *spans);
moert_status moert_block_reduce_progress(moert_block *block);
moert_status moert_block_reduce_wait(moert_block *block);
/* Completes the block's weight or gradient with the slices of the other ranks. Collective over
 * them. */
moert_status moert_block_gather(const moert_block *block, moert_buffer *values);

/* The blocks of a layer that holds `local` experts: the shape of each, by the index below. */
enum { MOERT_LAYER_BLOCKS = 3, MOERT_LAYER_BLOCK_TENSORS = 4 };

typedef struct moert_layer_shapes {
    size_t elements[MOERT_LAYER_BLOCKS][MOERT_LAYER_BLOCK_TENSORS];
    size_t count[MOERT_LAYER_BLOCKS], parts[MOERT_LAYER_BLOCKS];
} moert_layer_shapes;

moert_layer_shapes moert_layer_shapes_of(const moert_layer_options *options, size_t local);

/* The blocks of a layer, by index: the replicated one first, then the experts' first and second
 * projection; NULL past the end. */
moert_block *moert_layer_block(moert_layer *layer, size_t index);
/*
 * moert_layer_reduce, but each gradient is complete in this rank's slice of its block alone: see
 * moert_block_reduce_start; after moert_mesh_gather_spans of the batch.
 */
moert_status moert_layer_reduce_start(moert_layer *layer, bool last);
moert_status moert_layer_reduce_progress(moert_layer *layer);
moert_status moert_layer_reduce_wait(moert_layer *layer);
/* The rows of the next forward's x or backward's dy as bf16 codes, where the caller has them: what
 * travels need not be made then. NULL: none. They must stay as the rows must. */
void moert_layer_give_bf16(moert_layer *layer, const moert_buffer *codes);
/* What the router computed in the last forward. */
const moert_routing *moert_layer_routing(const moert_layer *layer);

static inline moert_span moert_batch_span(const moert_batch *batch) {
    return (moert_span){batch->first_sequence, batch->sequences, batch->total_sequences};
}
