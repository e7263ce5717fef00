/* Runs a MoE layer over all ranks. */
#include "support/layer/layer_run.h"

#include <stdlib.h>
#include <string.h>

#include "support/test.h"
#include "context/context.h"

static const size_t piece_tokens[] = {3, 1, 4, 2, 3};
enum { PIECES = MOERT_COUNT(piece_tokens) };

/* Pieces [first, end) of a rank; with several ranks, the middle one has none. */
static void share_pieces(size_t rank, size_t size, size_t *first, size_t *end) {
    const size_t idle = size / 2, workers = size > 1 ? size - 1 : 1;
    const size_t worker = size > 1 && rank > idle ? rank - 1 : rank;
    *first = PIECES * worker / workers;
    *end = size > 1 && rank == idle ? *first : PIECES * (worker + 1) / workers;
}

static size_t tokens_before(const oracle_layer *oracle, size_t piece) {
    size_t tokens = 0;
    for (size_t i = 0; i < piece; i++)
        tokens += piece_tokens[i];
    return tokens * (oracle->tokens / LAYER_TOKENS);
}

static moert_status new_buffer(moert_device *device, size_t bytes, moert_buffer **buffer) {
    const moert_status status = moert_buffer_create(device, bytes, buffer);
    owned_buffer(*buffer);
    return status;
}

static moert_status put_values(moert_device *device, const double *values, size_t n,
                               moert_buffer **buffer) {
    float *narrow = test_alloc(n * sizeof *narrow);
    for (size_t i = 0; i < n; i++)
        narrow[i] = (float)values[i];
    if (*buffer == NULL)
        MOERT_TRY(new_buffer(device, n * sizeof *narrow, buffer));
    return moert_buffer_write(*buffer, 0, narrow, n * sizeof *narrow);
}

/* The elements of a tensor that this rank holds. */
static void part_of(const layer_run *run, moert_layer_tensor which, size_t *first, size_t *count) {
    const size_t elements = run->oracle->elements[which],
                 experts = run->oracle->options.router.experts;
    *first = 0;
    *count = elements;
    if (oracle_layer_of_experts(which)) {
        *first = moert_layer_first_expert(run->layer) * (elements / experts);
        *count = moert_layer_local_experts(run->layer) * (elements / experts);
    }
}

static moert_status load_weights(const layer_run *run) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        moert_buffer *weight = moert_layer_weight(run->layer, (moert_layer_tensor)i);
        size_t first, count;
        part_of(run, (moert_layer_tensor)i, &first, &count);
        if (count > 0)
            MOERT_TRY(put_values(NULL, run->oracle->tensor[i] + first, count, &weight));
    }
    return MOERT_OK;
}

static moert_status share_tokens(moert_device *device, layer_run *run) {
    const size_t hidden = run->oracle->options.hidden;
    size_t first, end, bytes;
    uint32_t ends[PIECES] = {0};
    share_pieces(moert_comm_rank(run->world), moert_comm_size(run->world), &first, &end);
    run->first_token = tokens_before(run->oracle, first);
    for (size_t i = first; i < end; i++)
        ends[i - first] = (uint32_t)(tokens_before(run->oracle, i + 1) - run->first_token);
    const size_t tokens = tokens_before(run->oracle, end) - run->first_token;
    bytes = (end - first) * sizeof *ends;
    MOERT_TRY(new_buffer(device, bytes, &run->ends));
    MOERT_TRY(moert_buffer_write(run->ends, 0, ends, bytes));
    run->batch = (moert_batch){tokens, end - first, first, PIECES, run->ends, false};
    bytes = tokens * hidden * sizeof(float);
    MOERT_TRY(
        put_values(device, run->oracle->x + run->first_token * hidden, tokens * hidden, &run->x));
    MOERT_TRY(
        put_values(device, run->oracle->dy + run->first_token * hidden, tokens * hidden, &run->dy));
    MOERT_TRY(put_values(device, run->oracle->aux, run->oracle->options.router.experts, &run->aux));
    MOERT_TRY(new_buffer(device, bytes, &run->y));
    return new_buffer(device, bytes, &run->dx);
}

moert_status layer_run_create(moert_context *context, moert_mesh *mesh, const oracle_layer *oracle,
                              bool deferred, layer_run *run) {
    moert_layer_options options = oracle->options;
    options.deferred_wgrad = deferred;
    *run =
        (layer_run){.world = moert_context_comm(context), .oracle = oracle, .deferred = deferred};
    MOERT_TRY(moert_layer_create(mesh, &options, &run->layer));
    moert_status status = load_weights(run);
    if (status == MOERT_OK)
        status = share_tokens(moert_context_device(context), run);
    return moert_comm_agree(run->world, status);
}

moert_status layer_run_step(layer_run *run, size_t index, size_t count) {
    const moert_layer_losses losses = {run->aux, (float)run->oracle->z_factor, index > 0};
    MOERT_TRY(moert_layer_forward(run->layer, &run->batch, run->x, run->y));
    MOERT_TRY(moert_layer_backward(run->layer, run->dy, &losses, run->dx));
    if (run->deferred)
        MOERT_TRY(moert_layer_wgrad(run->layer));
    return moert_layer_reduce(run->layer, index > 0, index + 1 == count);
}

/* all[T,H] from every rank's rows. */
static moert_status collect_rows(const layer_run *run, const moert_buffer *rows, float **all) {
    const size_t hidden = run->oracle->options.hidden, size = moert_comm_size(run->world);
    size_t bytes[64];
    *all = test_alloc(run->oracle->tokens * hidden * sizeof **all);
    for (size_t r = 0; r < size; r++) {
        size_t first, end;
        share_pieces(r, size, &first, &end);
        bytes[r] = (tokens_before(run->oracle, end) - tokens_before(run->oracle, first)) * hidden *
                   sizeof **all;
    }
    float *mine = *all + run->first_token * hidden;
    MOERT_TRY(moert_buffer_read(rows, 0, mine, bytes[moert_comm_rank(run->world)]));
    return moert_comm_allgatherv(run->world, mine, bytes, *all);
}

/* Each rank tells the others its part; who holds the same part compares. */
static moert_status collect_gradient(const layer_run *run, moert_layer_tensor which, float *all) {
    size_t mine[2];
    bool differs = false;
    part_of(run, which, &mine[0], &mine[1]);
    float *part = test_alloc(mine[1] * sizeof *part),
          *told = test_alloc(run->oracle->elements[which] * sizeof *told);
    moert_status status =
        moert_buffer_read(moert_layer_gradient(run->layer, which), 0, part, mine[1] * sizeof *part);
    for (size_t r = 0; r < moert_comm_size(run->world) && status == MOERT_OK; r++) {
        const bool speaks = r == moert_comm_rank(run->world);
        size_t range[2] = {mine[0], mine[1]};
        if (speaks)
            memcpy(told, part, mine[1] * sizeof *part);
        status = moert_comm_broadcast(run->world, r, range, sizeof range);
        if (status == MOERT_OK)
            status = moert_comm_broadcast(run->world, r, told, range[1] * sizeof *told);
        memcpy(all + range[0], told, range[1] * sizeof *told);
        if (range[0] == mine[0])
            differs |= memcmp(told, part, mine[1] * sizeof *part) != 0;
    }
    if (status == MOERT_OK && differs)
        status = MOERT_FAIL(ERROR_MISMATCH, "replicas of tensor %d differ", (int)which);
    return moert_comm_agree(run->world, status);
}

moert_status layer_run_collect(const layer_run *run, layer_results *results) {
    *results = (layer_results){0};
    MOERT_TRY(collect_rows(run, run->y, &results->y));
    MOERT_TRY(collect_rows(run, run->dx, &results->dx));
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        if (run->oracle->elements[i] == 0 || i == MOERT_LAYER_CORRECTION)
            continue;
        results->gradient[i] = test_alloc(run->oracle->elements[i] * sizeof(float));
        MOERT_TRY(collect_gradient(run, (moert_layer_tensor)i, results->gradient[i]));
    }
    return MOERT_OK;
}
