/* Blocks of tensors and the sums of their gradients. */
#include "layer/block.h"

#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "device/device.h"

static size_t count_parts(const moert_block_shape *shape, size_t tensor) {
    return shape->parts != NULL ? shape->parts[tensor] : 1;
}

size_t moert_block_parts(const moert_block *block) {
    size_t parts = 0;
    for (size_t i = 0; i < block->count; i++)
        parts += block->tensor[i].parts;
    return parts;
}

static size_t count_chunks(const moert_block_shape *shape, size_t tensor) {
    const size_t parts = count_parts(shape, tensor);
    return parts * moert_ceil_div(shape->elements[tensor] / parts, MOERT_SQUARES_CHUNK);
}

static size_t block_chunks(const moert_block_shape *shape) {
    size_t chunks = 0;
    for (size_t i = 0; i < shape->count; i++)
        chunks += count_chunks(shape, i);
    return chunks;
}

/* A rank's first chunk. The ranks' counts of chunks differ by at most one. */
static size_t first_chunk(size_t chunks, size_t ranks, size_t rank) {
    return chunks * rank / ranks;
}

size_t moert_block_border(const moert_block_shape *shape, size_t ranks, size_t rank) {
    size_t chunk = first_chunk(block_chunks(shape), ranks, rank), floats = 0;
    for (size_t i = 0; i < shape->count; i++) {
        const size_t chunks = count_chunks(shape, i);
        if (chunk < chunks) {
            const size_t parts = count_parts(shape, i);
            const size_t per_part = chunks / parts, part = shape->elements[i] / parts;
            return floats + chunk / per_part * part + chunk % per_part * MOERT_SQUARES_CHUNK;
        }
        chunk -= chunks;
        floats += moert_round_up(shape->elements[i], MOERT_VIEW_FLOATS);
    }
    return floats;
}

/* Calls moert_buffer_reserve; the error message names `role` and the block. */
static moert_status reserve(const moert_block *block, const char *role, size_t bytes,
                            moert_buffer **buffer) {
    const moert_status status = moert_buffer_reserve(block->device, bytes, buffer);
    if (status != MOERT_ERROR_MEMORY)
        return status;
    return MOERT_FAIL(ERROR_MEMORY, "%s%s: %s", role, block->what, moert_last_error());
}

static moert_status make_tensors(moert_block *block, const moert_block_shape *shape) {
    MOERT_TRY(MOERT_NEW_ARRAY(&block->tensor, shape->count));
    block->count = shape->count;
    for (size_t i = 0; i < shape->count; i++) {
        block->tensor[i].elements = shape->elements[i];
        block->tensor[i].offset = block->floats;
        block->tensor[i].parts = count_parts(shape, i);
        block->floats += moert_round_up(shape->elements[i], MOERT_VIEW_FLOATS);
    }
    const size_t ranks = moert_comm_size(block->comm);
    block->chunks = block_chunks(shape);
    MOERT_TRY(MOERT_NEW_ARRAY(&block->border, ranks + 1));
    for (size_t r = 0; r <= ranks; r++)
        block->border[r] = moert_block_border(shape, ranks, r);
    return MOERT_OK;
}

moert_status moert_block_create(const moert_holders *holders, const char *what, bool replicated,
                                const moert_block_shape *shape, moert_block **block) {
    moert_block *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->device = holders->device;
    made->comm = holders->comm;
    made->peers = holders->peers;
    made->what = what;
    made->replicated = replicated;
    MOERT_TRY_OR(fail, make_tensors(made, shape));
    size_t bytes = made->floats * sizeof(float);
    MOERT_TRY_OR(fail, reserve(made, "", bytes, &made->weight));
    MOERT_TRY_OR(fail, moert_buffer_clear(made->weight, 0, bytes));
    if (!holders->forward_only) {
        MOERT_TRY_OR(fail, reserve(made, "", bytes, &made->gradient));
        MOERT_TRY_OR(fail, moert_buffer_clear(made->gradient, 0, bytes));
    }
    for (size_t i = 0; i < made->count; i++) {
        moert_block_tensor *tensor = &made->tensor[i];
        tensor->cache.is_fixed = holders->forward_only;
        const size_t start = tensor->offset * sizeof(float);
        bytes = tensor->elements * sizeof(float);
        if (bytes == 0)
            continue;
        MOERT_TRY_OR(fail, moert_buffer_view(made->weight, start, bytes, &tensor->weight));
        if (made->gradient != NULL)
            MOERT_TRY_OR(fail, moert_buffer_view(made->gradient, start, bytes, &tensor->gradient));
    }
    *block = made;
    return MOERT_OK;
fail:
    moert_block_destroy(made);
    return status;
}

void moert_block_destroy(moert_block *block) {
    if (block == NULL)
        return;
    for (size_t i = 0; i < block->count; i++) {
        moert_weight_cache_free(&block->tensor[i].cache);
        moert_rounded_free(&block->tensor[i].rounded);
        MOERT_DESTROY(block->tensor[i].weight, block->tensor[i].gradient,
                      block->tensor[i].bound_gradient);
    }
    moert_block_free_fp8(block);
    MOERT_DESTROY(block->weight, block->gradient, block->nodes, block->kept);
    MOERT_FREE(block->border, block->tensor, block);
}

void moert_block_weights_changed(moert_block *block) {
    for (size_t i = 0; i < block->count; i++) {
        moert_weight_cache_changed(&block->tensor[i].cache);
        block->tensor[i].is_rounded = false;
        block->tensor[i].fp8_current = false;
    }
}

const moert_fp8_operands *moert_block_fp8(const moert_block_tensor *tensor) {
    const moert_fp8_operands *fp8 = &tensor->fp8;
    return fp8->along.q != NULL && fp8->groups.rows * fp8->columns == tensor->elements ? fp8 : NULL;
}

void moert_block_free_fp8(moert_block *block) {
    for (size_t i = 0; i < block->count; i++) {
        moert_block_tensor *tensor = &block->tensor[i];
        const moert_fp8_operands *fp8 = &tensor->fp8;
        MOERT_DESTROY(fp8->along.q, fp8->along.scale, fp8->down.q, fp8->down.scale);
        tensor->fp8 = (moert_fp8_operands){0};
        tensor->fp8_current = false;
    }
}

void moert_block_repeat(moert_block *block, bool repeats) {
    for (size_t i = 0; i < block->count; i++)
        block->tensor[i].cache.repeats = repeats;
}

moert_status moert_block_take_weight(moert_block *block, size_t tensor, moert_gemm *gemm) {
    gemm->weight.buffer = block->tensor[tensor].weight;
    return moert_weight_cache_take(&block->tensor[tensor].cache, gemm);
}

moert_status moert_block_gemm(moert_block *block, size_t tensor, const moert_gemm *gemm) {
    moert_gemm by_weight = *gemm;
    MOERT_TRY(moert_block_take_weight(block, tensor, &by_weight));
    return moert_gemm_run(&by_weight);
}

moert_status moert_block_begin(moert_block *block, const moert_batch *batch, bool accumulate) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    size_t count = moert_max(moert_tree_nodes(moert_batch_span(batch), nodes), 1);
    size_t bytes = count * block->floats * sizeof(float);
    block->accumulate = accumulate;
    MOERT_TRY(moert_block_open(block, accumulate));
    if (block->gradient == NULL && block->floats > 0)
        return MOERT_FAIL(ERROR_USAGE, "%s were created without gradients, for forwards only",
                          block->what);
    if (accumulate)
        MOERT_TRY(moert_block_take_bound(block));
    block->collects_sum = moert_comm_size(block->comm) == 1 && count == 1;
    if (block->collects_sum)
        return batch->sequences > 0 || accumulate ? MOERT_OK
                                                  : moert_buffer_clear(block->gradient, 0, bytes);
    bool fits = block->nodes != NULL && moert_buffer_bytes(block->nodes) >= bytes;
    MOERT_TRY(reserve(block, "sums of the gradients of ", bytes, &block->nodes));
    return fits ? MOERT_OK
                : moert_buffer_clear(block->nodes, 0, bytes); /* the padding must be zero */
}

moert_tree_nodes_at moert_block_nodes(const moert_block *block, size_t tensor,
                                      const moert_batch *batch, size_t first) {
    return (moert_tree_nodes_at){
        .span = moert_batch_span(batch),
        .target = block->collects_sum ? block->gradient : block->nodes,
        .stride = block->floats,
        .offset = block->tensor[tensor].offset + first,
        .accumulate = block->collects_sum && block->accumulate,
    };
}

moert_status moert_block_collect(moert_block *block, size_t tensor, const moert_batch *batch,
                                 size_t first, size_t n, moert_buffer *partial) {
    const moert_tree_nodes_at at = moert_block_nodes(block, tensor, batch, first);
    return moert_tree_reduce(&at, n, partial);
}

/* Pieces of a dense weight gradient begin at multiples of this many rows, which tensor cores
 * require. */
enum { PIECE_ROWS = 128 };

/* On an H200 each further piece costs 10 us: a head of 150,000 rows took 2.2 ms more in pieces of
 * 16 MiB than in pieces of 64 MiB. */
size_t moert_block_partial_bytes(const moert_device *device) {
    const size_t mib = 1024 * 1024;
    return device != NULL ? moert_by_form(device, 64 * mib, 256 * mib) : 64 * mib;
}

/* The number of rows of a weight [n,k] whose gradients are computed at a time. */
static size_t partial_rows(const moert_device *device, size_t sequences, size_t n, size_t k) {
    const size_t row_bytes = sequences * k * sizeof(float);
    size_t most = moert_max(1, moert_block_partial_bytes(device) / moert_max(row_bytes, 1));
    if (most > PIECE_ROWS)
        most -= most % PIECE_ROWS;
    return moert_min(n, most);
}

size_t moert_block_partial_floats(const moert_device *device, size_t sequences, size_t n,
                                  size_t k) {
    const size_t rows = partial_rows(device, sequences, n, k);
    return sequences * moert_max(rows * k, n); /* n floats per sequence leave room for the
                                                  gradient of the bias */
}

/* The wgrad of a GEMM over the sequences of a batch. */
static moert_gemm gradient_of(const moert_batch *batch, const moert_gemm *gemm) {
    moert_gemm wgrad = *gemm;
    wgrad.groups =
        (moert_row_groups){.ends = batch->ends, .count = batch->sequences, .rows = batch->tokens};
    wgrad.y.stride = gemm->y.stride > 0 ? gemm->y.stride : gemm->n;
    wgrad.epilogue.addend = MOERT_ADDEND_NONE;
    moert_gemm_set(&wgrad, MOERT_GEMM_WGRAD, moert_gemm_type(gemm));
    return wgrad;
}

moert_status moert_block_bias_gradient(moert_block *block, size_t tensor, const moert_batch *batch,
                                       const moert_gemm *gemm, moert_buffer **scratch) {
    moert_gemm sum = gradient_of(batch, gemm);
    if (batch->sequences == 0)
        return MOERT_OK;
    MOERT_TRY(
        moert_buffer_reserve(block->device, batch->sequences * gemm->n * sizeof(float), scratch));
    sum.bias = *scratch;
    sum.kind = MOERT_GEMM_BIAS_GRAD;
    MOERT_TRY(moert_gemm_run(&sum));
    return moert_block_collect(block, tensor, batch, 0, gemm->n, *scratch);
}

moert_status moert_block_dense_gradient(moert_block *block, size_t tensor, const moert_batch *batch,
                                        const moert_gemm *gemm, moert_buffer **scratch) {
    if (batch->sequences == 0)
        return MOERT_OK;
    const size_t rows = partial_rows(block->device, batch->sequences, gemm->n, gemm->k);
    moert_gemm part = gradient_of(batch, gemm);
    const size_t floats =
        moert_block_partial_floats(block->device, batch->sequences, gemm->n, gemm->k);
    MOERT_TRY(moert_buffer_reserve(block->device, floats * sizeof(float), scratch));
    for (size_t row = 0; row < gemm->n; row += rows) {
        part.n = moert_min(rows, gemm->n - row);
        part.y.first = gemm->y.first + row;
        part.weight.buffer = *scratch;
        MOERT_TRY(moert_gemm_run(&part));
        MOERT_TRY(
            moert_block_collect(block, tensor, batch, row * gemm->k, part.n * gemm->k, *scratch));
    }
    return gemm->bias != NULL ? moert_block_bias_gradient(block, tensor + 1, batch, gemm, scratch)
                              : MOERT_OK;
}

size_t moert_block_shard(const moert_block *block, size_t *first) {
    const size_t *border = block->border + moert_comm_rank(block->comm);
    *first = border[0];
    return border[1] - border[0];
}

size_t moert_block_first_chunk(const moert_block *block, size_t rank) {
    return first_chunk(block->chunks, moert_comm_size(block->comm), rank);
}

/* gradient += nodes in this rank's shard of a replicated block. Views start at multiples of
 * MOERT_VIEW_FLOATS, so this also adds some elements before the shard; other ranks hold the sums of
 * those elements. */
static moert_status add_shard(moert_block *block, size_t first, size_t count) {
    const size_t before = first % MOERT_VIEW_FLOATS;
    const size_t start = (first - before) * sizeof(float), bytes = (before + count) * sizeof(float);
    moert_buffer *sum = NULL, *shard = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_buffer_view(block->gradient, start, bytes, &sum));
    MOERT_TRY_OR(done, moert_buffer_view(block->nodes, start, bytes, &shard));
    status = moert_add(before + count, shard, sum);
done:
    MOERT_DESTROY(shard, sum);
    return status;
}

/* Returns the buffer that the ranks sum. If hosts sum, the buffer is mapped to host memory, on CPUs
 * without a copy. */
static moert_buffer *summed_buffer(const moert_block *block) {
    return block->replicated ? block->nodes : block->gradient;
}

static moert_phase phase_of_sum(const moert_block *block) {
    return block->replicated ? MOERT_PHASE_REDUCE_GRADIENTS : MOERT_PHASE_REDUCE_REPLICAS;
}

moert_status moert_block_reduce_start(moert_block *block, const moert_span *spans) {
    if (block->floats == 0 || moert_comm_size(block->comm) == 1)
        return MOERT_OK;
    if (!block->replicated)
        MOERT_TRY(moert_block_take_bound(block));
    if (block->peers != NULL && moert_peers_can_sum(block->peers, spans)) {
        moert_phase_set(phase_of_sum(block));
        return moert_peers_reduce_scatter(
            block->peers, &(moert_peers_sum){.spans = spans,
                                             .node_rows = summed_buffer(block),
                                             .border = block->border,
                                             .sum = block->gradient,
                                             .accumulate = block->replicated && block->accumulate});
    }
    MOERT_TRY(moert_buffer_map(summed_buffer(block), &block->mapped));
    return moert_tree_sum_start(block->comm, spans, block->mapped, block->border, &block->sum);
}

moert_status moert_block_reduce_progress(moert_block *block) {
    return block->sum != NULL ? moert_tree_sum_progress(block->sum) : MOERT_OK;
}

/* Completes the sum in this rank's shard of the gradient. */
static moert_status end_sum(moert_block *block) {
    size_t first;
    const size_t count = moert_block_shard(block, &first);
    moert_phase_set(phase_of_sum(block));
    MOERT_TRY(moert_tree_sum_wait(block->sum));
    block->sum = NULL;
    MOERT_TRY(moert_buffer_unmap(summed_buffer(block), block->mapped));
    if (!block->replicated || count == 0)
        return MOERT_OK;
    if (block->accumulate)
        return add_shard(block, first, count);
    return moert_buffer_copy(block->nodes, first * sizeof(float), block->gradient,
                             first * sizeof(float), count * sizeof(float));
}

moert_status moert_block_reduce_wait(moert_block *block) {
    if (block->sum != NULL)
        MOERT_TRY(end_sum(block));
    return moert_block_close(block);
}

moert_status moert_block_gather(const moert_block *block, moert_buffer *values) {
    float *mapped;
    if (moert_comm_size(block->comm) == 1 || block->floats == 0)
        return MOERT_OK;
    if (block->peers != NULL)
        return moert_peers_all_gather(block->peers, block->border, values);
    MOERT_TRY(moert_buffer_map(values, &mapped));
    moert_status status = moert_comm_gather_shards(block->comm, block->border, mapped);
    return moert_first(status, moert_buffer_unmap(values, mapped));
}
