/* The norm of a model's gradient. Each rank sums the squares in its shards. */
#include "train/gradient_norm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "nn/nn.h"

struct moert_gradient_norm {
    moert_model *model;
    moert_squares *squares;
    size_t *tensor; /* [held] tensors of the model that this rank holds, block after block */
    size_t held;
    size_t *first_chunk;          /* [blocks + 1] */
    double *chunk_sum;            /* [chunks] */
    double *by_rank;              /* [chunks] the same sums, ordered by rank */
    size_t *bytes;                /* [ranks] bytes of each rank's part of `by_rank` */
    double *held_sum, *sum, *all; /* [held], [tensors], [EP][tensors] */
};

static moert_status list_tensors(moert_gradient_norm *norm, moert_square_span *span) {
    const moert_model_tensor *tensor = moert_model_tensors(norm->model);
    const size_t count = moert_model_tensor_count(norm->model);
    const size_t blocks = moert_model_block_count(norm->model);
    for (size_t b = 0; b < blocks; b++) {
        const moert_block *block = moert_model_block(norm->model, b);
        norm->first_chunk[b + 1] = norm->first_chunk[b] + block->chunks;
        for (size_t i = 0; i < count; i++)
            if (tensor[i].block == block) {
                span[norm->held] =
                    (moert_square_span){block->gradient, tensor[i].offset, tensor[i].elements};
                norm->tensor[norm->held++] = i;
            }
    }
    MOERT_TRY(moert_squares_create(moert_model_mesh(norm->model)->device, span, norm->held,
                                   &norm->squares));
    const size_t chunks = moert_squares_chunks(norm->squares);
    if (chunks != norm->first_chunk[blocks])
        return MOERT_FAIL(ERROR_INTERNAL, "the model's tensors have %zu chunks, its blocks %zu",
                          chunks, norm->first_chunk[blocks]);
    return MOERT_OK;
}

static moert_status prepare(moert_gradient_norm *norm) {
    const moert_mesh *mesh = moert_model_mesh(norm->model);
    const size_t count = moert_model_tensor_count(norm->model);
    moert_square_span *span;
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->tensor, count));
    MOERT_TRY(MOERT_NEW_ARRAY(&norm->first_chunk, moert_model_block_count(norm->model) + 1));
    MOERT_TRY(MOERT_NEW_ARRAY(&span, count));
    const moert_status status = list_tensors(norm, span);
    free(span);
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

/* The chunks of a block in a rank's shard: sets *first and returns their number. */
static size_t chunks_of(const moert_gradient_norm *norm, size_t block, size_t rank, size_t *first) {
    const moert_block *at = moert_model_block(norm->model, block);
    const size_t start = norm->first_chunk[block];
    *first = start + moert_block_first_chunk(at, rank);
    return start + moert_block_first_chunk(at, rank + 1) - *first;
}

/* Copies the sums of the blocks that the ranks of `comm` hold from chunk_sum to by_rank, or with
 * `back` from by_rank to chunk_sum. */
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

/* Gives every rank of `comm` the chunk sums of the blocks that any of them holds. Collective. */
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

/* held_sum[held] = the sums of squares of the tensors that this rank holds. Collective. */
static moert_status sum_held(moert_gradient_norm *norm) {
    const moert_mesh *mesh = moert_model_mesh(norm->model);
    if (moert_comm_size(mesh->world) == 1)
        return moert_squares_sum(norm->squares, norm->held_sum);
    for (size_t b = 0; b < moert_model_block_count(norm->model); b++) {
        size_t first;
        const size_t rank = moert_comm_rank(moert_model_block(norm->model, b)->comm);
        const size_t count = chunks_of(norm, b, rank, &first);
        MOERT_TRY(moert_squares_sum_chunks(norm->squares, first, first + count));
    }
    MOERT_TRY(moert_squares_get_chunks(norm->squares, norm->chunk_sum));
    MOERT_TRY(gather_chunks(norm, mesh->world));
    MOERT_TRY(gather_chunks(norm, mesh->replicas));
    MOERT_TRY(moert_squares_set_chunks(norm->squares, norm->chunk_sum));
    return moert_squares_join(norm->squares, norm->held_sum);
}

/* ---- tensors ---- */

/* Adds to sum[tensors] the sums for experts that other ranks hold. Collective. */
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
        norm->sum[norm->tensor[i]] = norm->held_sum[i];
    MOERT_TRY(gather_experts(norm));
    for (size_t i = 0; i < moert_model_tensor_count(norm->model); i++)
        sum += norm->sum[i];
    *value = sqrt(sum);
    return MOERT_OK;
}
