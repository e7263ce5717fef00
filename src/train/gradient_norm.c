/* Computes the norm of a model's gradient. Each rank sums the squares in its shards. */
#include "train/gradient_norm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "base/phase.h"
#include "nn/nn.h"

#define NO_TENSOR SIZE_MAX

struct moert_gradient_norm {
    moert_model *model;
    moert_squares *squares;
    /* [held] index in the model of each tensor that this rank holds, block after block; NO_TENSOR
     * for slots without an expert */
    size_t *tensor;
    size_t held;
    size_t *first_chunk;          /* [blocks + 1] */
    double *chunk_sum;            /* [chunks] */
    double *by_rank;              /* [chunks] the values of chunk_sum, in the order of the ranks */
    size_t *bytes;                /* [ranks] size in bytes of each rank's part of `by_rank` */
    uint64_t own[2];              /* see moert_gradient_norm_own */
    double *held_sum, *sum, *all; /* [held], [tensors], [EP][tensors] */
};

/* A tensor of the model that lies in a block: its offset in the block, and its index in the
 * model. */
typedef struct held_part {
    size_t offset, tensor;
} held_part;

static int compare_offsets(const void *left, const void *right) {
    const held_part *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* parts[...] = the model's tensors that lie in a block, in the order of the block. Returns the
 * number of parts. */
static size_t find_parts(const moert_gradient_norm *norm, const moert_block *block,
                         held_part *parts) {
    const moert_model_tensor *tensor = moert_model_tensors(norm->model);
    size_t count = 0;
    for (size_t i = 0; i < moert_model_tensor_count(norm->model); i++)
        if (tensor[i].block == block)
            parts[count++] = (held_part){tensor[i].offset, i};
    qsort(parts, count, sizeof *parts, compare_offsets);
    return count;
}

/* Adds a block's parts to `span`. Slots without an expert also have parts, with NO_TENSOR as
 * index. */
static void list_block(moert_gradient_norm *norm, const moert_block *block, held_part *parts,
                       moert_square_span *span) {
    const size_t count = find_parts(norm, block, parts);
    size_t next = 0;
    for (size_t i = 0; i < block->count; i++) {
        const moert_block_tensor *whole = &block->tensor[i];
        const size_t elements = whole->elements / whole->parts;
        for (size_t p = 0; elements > 0 && p < whole->parts; p++) {
            const size_t offset = whole->offset + p * elements;
            const bool held = next < count && parts[next].offset == offset;
            span[norm->held] = (moert_square_span){moert_block_gradient(block, offset), elements};
            norm->tensor[norm->held++] = held ? parts[next++].tensor : NO_TENSOR;
        }
    }
}

/* The number of parts in all blocks. */
static size_t count_parts(const moert_model *model) {
    size_t parts = 0;
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        parts += moert_block_parts(moert_model_block(model, b));
    return parts;
}

static moert_status list_tensors(moert_gradient_norm *norm, held_part *parts,
                                 moert_square_span *span) {
    const size_t blocks = moert_model_block_count(norm->model);
    for (size_t b = 0; b < blocks; b++) {
        const moert_block *block = moert_model_block(norm->model, b);
        norm->first_chunk[b + 1] = norm->first_chunk[b] + block->chunks;
        list_block(norm, block, parts, span);
    }
    MOERT_TRY(moert_squares_create(moert_model_mesh(norm->model)->device, span, norm->held,
                                   &norm->squares));
    const size_t chunks = moert_squares_chunks(norm->squares);
    if (chunks != norm->first_chunk[blocks])
        return MOERT_FAIL(
            ERROR_INTERNAL,
            "the model's tensors have %zu chunks, but the model's blocks have %zu chunks", chunks,
            norm->first_chunk[blocks]);
    return MOERT_OK;
}

static moert_status prepare(moert_gradient_norm *norm) {
    const moert_mesh *mesh = moert_model_mesh(norm->model);
    const size_t count = moert_model_tensor_count(norm->model), held = count_parts(norm->model);
    moert_square_span *span;
    held_part *parts = NULL;
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->tensor, held));
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->first_chunk, moert_model_block_count(norm->model) + 1));
    MOERT_TRY(MOERT_NEW_ARRAY(&span, held));
    moert_status status = MOERT_NEW_ARRAY(&parts, count);
    if (status == MOERT_OK)
        status = list_tensors(norm, parts, span);
    MOERT_FREE(parts, span);
    MOERT_TRY(status);
    const size_t chunks = moert_squares_chunks(norm->squares);
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->chunk_sum, chunks));
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->by_rank, chunks));
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->bytes, moert_comm_size(mesh->world)));
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->held_sum, norm->held));
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->sum, count));
    return moert_alloc(&norm->all, moert_comm_size(mesh->experts), count * sizeof *norm->all);
}

moert_status moert_gradient_norm_create(moert_model *model, moert_gradient_norm **norm) {
    moert_gradient_norm *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->model = model;
    const moert_status status = prepare(made);
    if (status == MOERT_OK)
        *norm = made;
    else
        moert_gradient_norm_destroy(made);
    return status;
}

void moert_gradient_norm_destroy(moert_gradient_norm *norm) {
    if (norm == NULL)
        return;
    moert_squares_destroy(norm->squares);
    MOERT_FREE(norm->tensor, norm->first_chunk, norm->chunk_sum, norm->by_rank, norm->bytes,
               norm->held_sum, norm->sum, norm->all, norm);
}

/* ---- chunks ---- */

/* Sets *first to the first chunk of a block in a rank's shard. Returns the number of chunks in the
 * shard. */
static size_t chunks_of(const moert_gradient_norm *norm, size_t block, size_t rank, size_t *first) {
    const moert_block *at = moert_model_block(norm->model, block);
    const size_t start = norm->first_chunk[block];
    *first = start + moert_block_first_chunk(at, rank);
    return start + moert_block_first_chunk(at, rank + 1) - *first;
}

/* Copies chunk_sum to by_rank for the blocks that the ranks of `comm` hold. With `back`, copies
 * by_rank to chunk_sum. */
static void reorder(moert_gradient_norm *norm, const moert_comm *comm, bool back) {
    double *by_rank = norm->by_rank;
    for (size_t r = 0; r < moert_comm_size(comm); r++) {
        const double *const start = by_rank;
        for (size_t b = 0; b < moert_model_block_count(norm->model); b++) {
            size_t first;
            if (moert_model_block(norm->model, b)->comm != comm)
                continue;
            const size_t count = chunks_of(norm, b, r, &first);
            double *const sum = norm->chunk_sum + first;
            memcpy(back ? sum : by_rank, back ? by_rank : sum, count * sizeof *sum);
            by_rank += count;
        }
        norm->bytes[r] = (size_t)(by_rank - start) * sizeof *by_rank;
    }
}

/* Gathers the chunk sums of the blocks that the ranks of `comm` hold. Collective. */
static moert_status gather_chunks(moert_gradient_norm *norm, moert_comm *comm) {
    const char *mine = (const char *)norm->by_rank;
    if (moert_comm_size(comm) == 1)
        return MOERT_OK;
    reorder(norm, comm, false);
    for (size_t r = 0; r < moert_comm_rank(comm); r++)
        mine += norm->bytes[r];
    MOERT_TRY(moert_comm_allgatherv(comm, mine, norm->bytes, norm->by_rank));
    reorder(norm, comm, true);
    return MOERT_OK;
}

/* Adds `count` sums to a hash. */
static void add_hash(uint64_t *hash, const double *sum, size_t count) {
    const moert_checksum of = moert_checksum_of(sum, count * sizeof *sum);
    uint64_t pair[2] = {*hash, 0};
    memcpy(&pair[1], of.byte, sizeof pair[1]);
    memcpy(hash, moert_checksum_of(pair, sizeof pair).byte, sizeof *hash);
}

/* held_sum[held] = the sums of squares of the tensors that this rank holds. Collective. */
static moert_status sum_held(moert_gradient_norm *norm) {
    const moert_mesh *mesh = moert_model_mesh(norm->model);
    norm->own[0] = norm->own[1] = 0;
    if (moert_comm_size(mesh->world) == 1) {
        MOERT_TRY(moert_squares_sum(norm->squares, norm->held_sum));
        add_hash(&norm->own[1], norm->held_sum, norm->held);
        return MOERT_OK;
    }
    for (size_t b = 0; b < moert_model_block_count(norm->model); b++) {
        size_t first;
        const size_t rank = moert_comm_rank(moert_model_block(norm->model, b)->comm);
        const size_t count = chunks_of(norm, b, rank, &first);
        MOERT_TRY(moert_squares_sum_chunks(norm->squares, first, first + count));
    }
    MOERT_TRY(moert_squares_get_chunks(norm->squares, norm->chunk_sum));
    for (size_t b = 0; b < moert_model_block_count(norm->model); b++) {
        size_t first;
        const size_t rank = moert_comm_rank(moert_model_block(norm->model, b)->comm);
        const size_t count = chunks_of(norm, b, rank, &first);
        add_hash(&norm->own[0], norm->chunk_sum + first, count);
    }
    MOERT_TRY(gather_chunks(norm, mesh->world));
    MOERT_TRY(gather_chunks(norm, mesh->replicas));
    MOERT_TRY(moert_squares_set_chunks(norm->squares, norm->chunk_sum));
    MOERT_TRY(moert_squares_join(norm->squares, norm->held_sum));
    add_hash(&norm->own[1], norm->held_sum, norm->held);
    return MOERT_OK;
}

void moert_gradient_norm_own(const moert_gradient_norm *norm, uint64_t hash[2]) {
    memcpy(hash, norm->own, sizeof norm->own);
}

/* ---- tensors ---- */

/* Adds the sums of experts that other ranks hold to sum[tensors]. Collective. */
static moert_status gather_experts(moert_gradient_norm *norm) {
    moert_comm *experts = moert_model_mesh(norm->model)->experts;
    const size_t count = moert_model_tensor_count(norm->model);
    const moert_model_tensor *tensor = moert_model_tensors(norm->model);
    MOERT_TRY(moert_comm_allgather(experts, norm->sum, count * sizeof *norm->sum, norm->all));
    for (size_t i = 0; i < count; i++)
        if (!tensor[i].replicated)
            norm->sum[i] = norm->all[tensor[i].owner * count + i];
    return MOERT_OK;
}

moert_status moert_gradient_norm_take(moert_gradient_norm *norm, double *value) {
    double sum = 0.0;
    moert_phase_set(MOERT_PHASE_GRADIENT_NORM);
    MOERT_TRY(sum_held(norm));
    for (size_t i = 0; i < norm->held; i++)
        if (norm->tensor[i] != NO_TENSOR)
            norm->sum[norm->tensor[i]] = norm->held_sum[i];
    MOERT_TRY(gather_experts(norm));
    for (size_t i = 0; i < moert_model_tensor_count(norm->model); i++)
        sum += norm->sum[i];
    *value = sqrt(sum);
    return MOERT_OK;
}

void moert_gradient_norm_layers(const moert_gradient_norm *norm, double *layer) {
    const size_t count = moert_model_describe(norm->model)->layers + 1;
    const moert_model_tensor *tensor = moert_model_tensors(norm->model);
    for (size_t l = 0; l < count; l++)
        layer[l] = 0.0;
    for (size_t i = 0; i < moert_model_tensor_count(norm->model); i++)
        layer[tensor[i].layer] += norm->sum[i];
    for (size_t l = 0; l < count; l++)
        layer[l] = sqrt(layer[l]);
}
