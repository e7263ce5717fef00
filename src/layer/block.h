/*
 * A block is a group of tensors with one buffer for all weights and one for all gradients, so that
 * the tensors of a block are summed, clipped and written together. Replicated blocks are the same
 * on all ranks. Expert blocks hold the experts of one rank and are the same on its replicas.
 *
 * The gradient of a replicated block is first collected as partial sums, the nodes of a tree
 * (base/tree.h): nodes[N, floats], one row per node of this rank's span of sequences.
 * moert_block_reduce_start sums them over all ranks. If there is only one rank, and its only node
 * is the root, the block has no nodes: the rank collects directly to the gradient.
 *
 * The ranks that hold a block divide its sums and its optimizer among themselves (ZeRO, stage 1;
 * Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models",
 * 2020). Each rank owns a shard:
 *
 *   tensors    | embedding                   | norm | head                        |
 *   chunks     |    |    |    |    |    |  | |  |   |    |    |    |    |    |  | |
 *   shards of 3|0                      |1                       |2                 |
 *
 * Shards are whole chunks of MOERT_SQUARES_CHUNK floats, counted from the start of each tensor of
 * the model's files. The sizes of shards differ by at most one chunk. So sums that are formed chunk
 * by chunk have the same bits for any number of shards.
 */
#pragma once

#include "base/memory.h"
#include "comm/tree_sum.h"
#include "device/elements.h"
#include "exchange/peers.h"
#include "gemm/gemm.h"
#include "layer/rounded.h"
#include "moert/device.h"
#include "moert/layer.h"
#include "nn/nn.h"
#include "plan/expert_map.h"
#include "quant/fp8_operands.h"
#include "router/router.h"

enum { MOERT_VIEW_FLOATS = 128 }; /* 512 bytes: the alignment of buffer views */

/* The ranks that hold a block. */
typedef struct moert_holders {
    moert_device *device;
    moert_comm *comm;
    moert_peers *peers; /* the ranks' devices, if devices sum and gather without their hosts; else
                           NULL */
    bool forward_only;  /* blocks have no gradients */
} moert_holders;

typedef struct moert_block_tensor {
    size_t elements, offset;         /* size and offset in floats; offsets are multiples of 128 */
    size_t parts;                    /* number of the model files' tensors that form this tensor */
    moert_buffer *weight, *gradient; /* views of the block's buffers, or of the caller's */
    bool bound_weight;               /* the weight is in a buffer of the caller (bind.c) */
    moert_buffer *bound_gradient;    /* a view of the caller's buffer, or NULL */
    moert_weight_cache cache;        /* the weight's panels */
    moert_rounded rounded;           /* copies that a recipe rounds (layer/dense_rounding.h) */
    bool is_rounded;                 /* `rounded` is that of the current weight */
    moert_fp8_operands fp8;          /* the weight as FP8 operands, along for forward and down for
                                        dgrad (layer/fp8.h); without payloads there are none */
    bool fp8_current;                /* whether these have the values of the weight */
} moert_block_tensor;

/* Float32 gradient buffers that blocks with bf16 gradients use while they are open
 * (moert_block_keep_bf16). */
typedef struct moert_gradient_pool {
    moert_device *device;
    struct {
        const char *what; /* moert_block.what of the blocks that may use the buffer; the buffer's
                             padding is zero */
        moert_buffer *buffer;
    } free[16]; /* buffer NULL: empty entry. Room for two buffers of each kind of block */
} moert_gradient_pool;

typedef struct moert_block {
    moert_device *device;
    moert_comm *comm;   /* the ranks that hold the block */
    moert_peers *peers; /* as in moert_holders */
    const char *what;   /* a description for messages; a literal */
    bool replicated;
    size_t floats; /* floats of all tensors with their padding, which stays zero */
    size_t chunks; /* chunks of all tensors; see MOERT_SQUARES_CHUNK */
    size_t count;
    moert_block_tensor *tensor;
    size_t *border; /* offsets in floats where the shards start; the last element is the end of
                       the block */
    moert_buffer *weight, *gradient, *nodes;
    moert_buffer *kept;        /* the gradient in bf16, or NULL. With `kept`, `gradient` exists only
                                  while the block is open */
    moert_gradient_pool *pool; /* where `gradient` comes from if `kept` is set */
    moert_tree_sum *sum;       /* the sum in progress, or NULL */
    float *mapped;             /* host memory in which `sum` adds */
    bool collects_sum;         /* partial sums go to the gradient; the block has no nodes */
    bool accumulate;           /* add to the gradient instead of replacing it */
} moert_block;

/* The sizes of a block's tensors. */
typedef struct moert_block_shape {
    const size_t *elements; /* [count] floats of each tensor; 0 is legal */
    size_t count;
    const size_t
        *parts; /* [count] number of the model files' tensors that form each tensor; NULL: 1 for
                   each */
} moert_block_shape;

/* The offset in floats where the shard of rank `rank` of `ranks` starts. With rank == ranks: the
 * size of the block with its padding. */
size_t moert_block_border(const moert_block_shape *shape, size_t ranks, size_t rank);

/* How many tensors of the model's files the block consists of. */
size_t moert_block_parts(const moert_block *block);

/* Weights and gradients start as zero. All ranks hold a replicated block. Not collective. With
 * holders->forward_only the block has no gradients, and moert_block_begin fails. */
moert_status moert_block_create(const moert_holders *holders, const char *what, bool replicated,
                                const moert_block_shape *shape, moert_block **block);
void moert_block_destroy(moert_block *block);

/*
 * Keeps the gradient in bf16 from now on. A block is open from moert_block_open, which
 * moert_block_begin calls, to the end of moert_block_reduce_wait. An open block has a float32
 * gradient from the pool. With `accumulate` the float32 gradient starts as the kept gradient, and
 * the backward adds to it. When the block closes, the float32 gradient is rounded to nearest even
 * and kept. Not collective.
 */
moert_status moert_gradient_pool_create(moert_device *device, moert_gradient_pool **pool);
void moert_gradient_pool_destroy(moert_gradient_pool *pool);
moert_status moert_block_keep_bf16(moert_block *block, moert_gradient_pool *pool);
moert_status moert_block_open(moert_block *block, bool accumulate);
moert_status moert_block_close(moert_block *block);
/* The elements of the kept gradient (bf16 or float32) from `at` on. */
moert_elements moert_block_gradient(const moert_block *block, size_t at);
/* target[floats] = the kept gradient. */
moert_status moert_block_copy_gradient(const moert_block *block, moert_buffer *target);

/* Moves a tensor's weight and gradient to buffers of the caller. With a NULL buffer, the weight or
 * gradient stays where it is. */
moert_status moert_block_bind(moert_block *block, size_t tensor, const moert_buffer *weight,
                              const moert_buffer *gradient);
/* take copies the caller's bound gradients to the block's buffer, before a sum over ranks or
 * sequences that adds to them; give copies them back after the sum. */
moert_status moert_block_take_bound(const moert_block *block);
moert_status moert_block_give_bound(const moert_block *block);

/* Marks prepacked and rounded weights and FP8 operands as stale. Call it after writing to the
 * weights. */
void moert_block_weights_changed(moert_block *block);

/* The FP8 operands of a whole tensor, which a caller that changes the weight may also write, or
 * NULL. The caller then calls moert_block_weights_changed, and after that sets fp8_current. */
const moert_fp8_operands *moert_block_fp8(const moert_block_tensor *tensor);
void moert_block_free_fp8(moert_block *block);

/* With `repeats`, later GEMMs with the block's weights are repetitions of earlier GEMMs, so they
 * prepack the weights only where tensor cores need it (moert_weight_cache). */
void moert_block_repeat(moert_block *block, bool repeats);

/* Makes a tensor of the block the weight of a forward or dgrad: sets `weight` and `panels`. */
moert_status moert_block_take_weight(moert_block *block, size_t tensor, moert_gemm *gemm);
/* Runs a forward or dgrad with a tensor of the block as its weight. */
moert_status moert_block_gemm(moert_block *block, size_t tensor, const moert_gemm *gemm);

/* Reserves the nodes of a batch; call it before the batch's gradients are collected. With
 * `accumulate` the nodes are added to the block's gradient, otherwise they replace the gradient. */
moert_status moert_block_begin(moert_block *block, const moert_batch *batch, bool accumulate);

/*
 * Reduces partial[S, n], the gradients per sequence of elements [first, first + n) of a tensor, to
 * nodes. Overwrites `partial`. Each element is collected once per batch. If a tensor has several
 * gradients, the caller adds them in `partial` first, because the sum of several trees would depend
 * on the number of ranks.
 */
moert_status moert_block_collect(moert_block *block, size_t tensor, const moert_batch *batch,
                                 size_t first, size_t n, moert_buffer *partial);

/* The location of the nodes of a tensor's elements from `first` on. */
moert_tree_nodes_at moert_block_nodes(const moert_block *block, size_t tensor,
                                      const moert_batch *batch, size_t first);

/*
 * Collects the weight gradient of a dense layer y = x weight^T. If gemm->bias is not NULL, also
 * collects the gradient of the bias, which is tensor `tensor` + 1. Fills in groups, weight and bias
 * of `gemm`. `scratch` is a growable buffer for gradients per sequence.
 */
moert_status moert_block_dense_gradient(moert_block *block, size_t tensor, const moert_batch *batch,
                                        const moert_gemm *gemm, moert_buffer **scratch);
/* Collects the gradient of a bias, tensor `tensor`: sums over the rows of y. */
moert_status moert_block_bias_gradient(moert_block *block, size_t tensor, const moert_batch *batch,
                                       const moert_gemm *gemm, moert_buffer **scratch);
/* The most bytes of gradients per sequence to compute at once; one row of the weight is always
 * allowed. With device == NULL: the value for CPUs. */
size_t moert_block_partial_bytes(const moert_device *device);
/* The size in floats of `scratch` for a weight [n,k]. */
size_t moert_block_partial_floats(const moert_device *device, size_t sequences, size_t n, size_t k);

/* The size in floats of this rank's shard; sets *first to the shard's offset. */
size_t moert_block_shard(const moert_block *block, size_t *first);
/* The first chunk of a rank's shard; `rank` is an index among the ranks that hold the block. If
 * `rank` is the number of these ranks, returns the number of chunks. */
size_t moert_block_first_chunk(const moert_block *block, size_t rank);
/*
 * Sums gradients over the ranks that hold the block. For a replicated block the functions sum the
 * nodes, and `spans` has the sequences of each rank. For an expert block the functions sum the
 * gradients of the replicas, and `spans` has one leaf per replica. The sum replaces this rank's
 * shard of the gradient. With `accumulate`, a sum of nodes is added to the shard instead.
 *
 * start waits for the device but not for other ranks; where devices sum (exchange/peers.h), it
 * enqueues the whole sum and waits for nothing. Between start and wait, the caller may neither
 * write gradients nor read those of the block. All ranks start blocks in the same order. If no sum
 * is in progress, progress and wait do nothing.
 */
moert_status moert_block_reduce_start(moert_block *block, const moert_span *spans);
moert_status moert_block_reduce_progress(moert_block *block);
moert_status moert_block_reduce_wait(moert_block *block);
/* Gathers the shards of the other ranks into `values`, the block's weight or gradient. Collective
 * over the ranks that hold the block. */
moert_status moert_block_gather(const moert_block *block, moert_buffer *values);

/* The block with this index: 0 is the replicated block, 1 and 2 the experts' first and second
 * projection. NULL past the end. */
moert_block *moert_layer_block(moert_layer *layer, size_t index);
/*
 * moert_layer_reduce in parts (see moert_block_reduce_start). These functions complete a gradient
 * only in this rank's shard of the block. Call moert_mesh_gather_spans for the batch first.
 */
moert_status moert_layer_reduce_start(moert_layer *layer, bool last);
moert_status moert_layer_reduce_progress(moert_layer *layer);
moert_status moert_layer_reduce_wait(moert_layer *layer);
/* For comparisons of speed: from now on hashes of the router's logits replace the logits, so that
 * the experts get nearly equal numbers of rows. The backward treats the logits as if they were not
 * replaced, so the model does not learn to route. */
void moert_layer_balance_routing(moert_layer *layer);
/* Begins to send the weights of experts to their clones. Without this call the next forward sends
 * the weights first. With this call, the weights travel while the caller computes the work before
 * this layer. Until the layer's next forward the weights must not change, and no other layer of the
 * mesh may run. Collective over the EP group. */
moert_status moert_layer_send_weights(moert_layer *layer);
/* From now on forward does not check the ends of batches, since reading them waits for the device.
 */
void moert_layer_trust_batches(moert_layer *layer);
/* From now on the layer shares the pass list of `with`, a layer of the same mesh and options: each
 * reuses the memory of passes that the other has destroyed. The layer must not have created a pass
 * before. */
void moert_layer_share_passes(moert_layer *layer, const moert_layer *with);
/* The most rows of a plan so far: of this rank, and of any rank of its EP group. */
typedef struct moert_row_peak {
    size_t rows, largest;
} moert_row_peak;
static inline void moert_row_peak_add(moert_row_peak *peak, size_t rows, size_t largest) {
    peak->rows = moert_max(peak->rows, rows);
    peak->largest = moert_max(peak->largest, largest);
}
/* The peak over all passes in the layer's list. */
moert_row_peak moert_layer_row_peak(const moert_layer *layer);
/* From now on the layer's passes take digests (layer/probe.h). NULL: they take none. */
typedef struct moert_probe moert_probe;
void moert_layer_set_probe(moert_layer *layer, moert_probe *probe);
/* Where the experts are; valid until moert_layer_place. */
const moert_expert_map *moert_layer_placement(const moert_layer *layer);
/* The router's results of a pass. */
const moert_routing *moert_pass_routing(const moert_pass *pass);

static inline moert_span moert_batch_span(const moert_batch *batch) {
    return (moert_span){batch->first_sequence, batch->sequences, batch->total_sequences};
}
