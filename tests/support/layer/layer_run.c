/* Runs a MoE layer over all ranks. */
#include "support/layer/layer_run.h"

#include "context/context.h"
#include "support/mpi.h"

static const size_t piece_tokens[LAYER_PIECES] = {3, 1, 4, 2, 3};

size_t layer_tokens_before(const oracle_layer *oracle, size_t piece) {
    size_t tokens = 0;
    for (size_t i = 0; i < piece; i++)
        tokens += piece_tokens[i];
    return tokens * (oracle->tokens / LAYER_TOKENS);
}

/* Returns the number of parts of a tensor on this rank: one part per slot for a tensor of all
 * experts, otherwise one. */
static size_t count_parts(const layer_run *run, moert_layer_tensor which) {
    return oracle_layer_of_experts(which) ? moert_layer_local_experts(run->layer) : 1;
}

static size_t part_elements(const layer_run *run, moert_layer_tensor which) {
    const oracle_layer *oracle = run->oracle;
    return oracle->elements[which] /
           (oracle_layer_of_experts(which) ? oracle->options.router.experts : 1);
}

/* Returns the expert of a part; 0 if the tensor does not belong to experts; MOERT_LAYER_NO_EXPERT
 * if the slot is empty or has a clone. */
static uint32_t expert_of(const layer_run *run, moert_layer_tensor which, size_t part) {
    return oracle_layer_of_experts(which) ? moert_layer_expert(run->layer, part) : 0;
}

static void load_weights(const layer_run *run) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_layer_tensor which = (moert_layer_tensor)i;
        const size_t n = part_elements(run, which), bytes = n * sizeof(float);
        for (size_t p = 0; n > 0 && p < count_parts(run, which); p++) {
            const uint32_t expert = expert_of(run, which, p);
            if (expert != MOERT_LAYER_NO_EXPERT)
                ASSERT_OK(moert_buffer_write(moert_layer_weight(run->layer, which), p * bytes,
                                             to_floats(run->oracle->tensor[i] + expert * n, n),
                                             bytes));
        }
    }
}

/* Uploads this rank's pieces [first, end) of the tokens. If there are several ranks, the middle
 * rank has no pieces. */
static void upload_tokens(layer_run *run) {
    const oracle_layer *oracle = run->oracle;
    const size_t hidden = oracle->options.hidden;
    uint32_t ends[LAYER_PIECES] = {0};
    const size_t rank = moert_comm_rank(run->world), size = moert_comm_size(run->world),
                 idle = size / 2, workers = size > 1 ? size - 1 : 1,
                 worker = size > 1 && rank > idle ? rank - 1 : rank;
    const size_t first = LAYER_PIECES * worker / workers,
                 end = size > 1 && rank == idle ? first : LAYER_PIECES * (worker + 1) / workers;
    run->first_token = layer_tokens_before(oracle, first);
    for (size_t i = first; i < end; i++)
        ends[i - first] = (uint32_t)(layer_tokens_before(oracle, i + 1) - run->first_token);
    const size_t tokens = layer_tokens_before(oracle, end) - run->first_token, n = tokens * hidden;
    run->batch = (moert_batch){.size = sizeof run->batch,
                               .tokens = tokens,
                               .sequences = end - first,
                               .first_sequence = first,
                               .total_sequences = LAYER_PIECES,
                               .ends = upload(ends, (end - first) * sizeof *ends)};
    run->x = upload_doubles(oracle->x + run->first_token * hidden, n);
    run->dy = upload_doubles(oracle->dy + run->first_token * hidden, n);
    run->aux = upload_doubles(oracle->aux, oracle->options.router.experts);
    run->y = unset_floats(n);
    run->dx = unset_floats(n);
}

moert_layer *open_layer(moert_mesh *mesh, const moert_layer_options *options) {
    moert_layer *layer;
    ASSERT_OK(moert_layer_create(mesh, options, &layer));
    return owned(layer, moert_layer_destroy);
}

layer_run layer_run_open(const oracle_layer *oracle, layer_setup how) {
    moert_device *const device = test_device;
    moert_context *const context = how.context != NULL ? how.context : test_context;
    moert_layer_options options = oracle->options;
    options.deferred_wgrad |= how.deferred;
    layer_run run = {
        .world = moert_context_comm(context), .oracle = oracle, .deferred = options.deferred_wgrad};
    ASSERT_OK(how.exact ? moert_mesh_create_exact(context, how.ep, &run.mesh)
                        : moert_mesh_create(context, how.ep, &run.mesh));
    owned(run.mesh, moert_mesh_destroy);
    run.layer = open_layer(run.mesh, &options);
    test_device = moert_context_device(context);
    load_weights(&run);
    upload_tokens(&run);
    test_device = device;
    return run;
}

layer_run layer_run_of(moert_layer_options options) {
    oracle_layer *oracle = test_alloc(sizeof *oracle);
    *oracle = oracle_layer_create(&options, LAYER_TOKENS);
    return layer_run_open(oracle, (layer_setup){0});
}

void layer_run_end(layer_run *run) {
    moert_pass_destroy(run->pass);
    run->pass = NULL;
}

moert_status layer_run_forward(layer_run *run) {
    layer_run_end(run);
    return moert_layer_forward(run->layer, &run->batch, run->x, run->y, &run->pass);
}

moert_status layer_run_backward(layer_run *run, size_t index, size_t count) {
    const moert_layer_losses losses = {.size = sizeof losses,
                                       .aux_gradient = run->aux,
                                       .z_factor = (float)run->oracle->z_factor,
                                       .accumulate = index > 0};
    MOERT_TRY(moert_pass_backward(run->pass, run->dy, &losses, run->dx));
    if (run->deferred)
        MOERT_TRY(moert_pass_wgrad(run->pass));
    return moert_layer_reduce(run->layer, index + 1 == count);
}

moert_status layer_run_step(layer_run *run, size_t index, size_t count) {
    MOERT_TRY(layer_run_forward(run));
    return layer_run_backward(run, index, count);
}

/* Gathers the rows of all ranks: all[T,H]. */
static void collect_rows(const layer_run *run, const moert_buffer *rows, float *all) {
    const size_t hidden = run->oracle->options.hidden,
                 own = run->batch.tokens * hidden * sizeof *all;
    size_t bytes[64];
    float *mine = all + run->first_token * hidden;
    ASSERT_OK(moert_comm_allgather(run->world, &own, sizeof own, bytes));
    ASSERT_OK(moert_buffer_read(rows, 0, mine, own));
    ASSERT_OK(moert_comm_allgatherv(run->world, mine, bytes, all));
}

/* Each rank broadcasts its parts of a gradient. Replicas must have the same bits. */
static void collect_gradient(const layer_run *run, moert_layer_tensor which, float *all) {
    const size_t n = part_elements(run, which), bytes = n * sizeof *all,
                 elements = run->oracle->elements[which];
    const uint32_t unset = UINT32_MAX;
    uint32_t *mine = test_alloc(elements * sizeof *mine), *theirs = test_alloc(elements * 4),
             *merged = (uint32_t *)all;
    bool differ = false;
    memset(mine, 0xFF, elements * sizeof *mine);
    memset(merged, 0xFF, elements * sizeof *merged);
    for (size_t p = 0; p < count_parts(run, which); p++) {
        const uint32_t expert = expert_of(run, which, p);
        if (expert != MOERT_LAYER_NO_EXPERT)
            ASSERT_OK(moert_buffer_read(moert_layer_gradient(run->layer, which), p * bytes,
                                        mine + expert * n, bytes));
    }
    for (size_t r = 0; r < moert_comm_size(run->world); r++) {
        memcpy(theirs, mine, elements * sizeof *mine);
        ASSERT_OK(moert_comm_broadcast(run->world, r, theirs, elements * sizeof *theirs));
        for (size_t i = 0; i < elements; i++) {
            differ |= theirs[i] != unset && merged[i] != unset && theirs[i] != merged[i];
            merged[i] = theirs[i] != unset ? theirs[i] : merged[i];
        }
    }
    if (differ)
        fail_msg("replicas of tensor %d differ", (int)which);
}

layer_results layer_results_of(const oracle_layer *oracle) {
    layer_results results = {0};
    for (int i = 0; i < LAYER_RESULTS; i++) {
        if (i >= LAYER_Y)
            results.count[i] = oracle->tokens * oracle->options.hidden;
        else if (i != MOERT_LAYER_CORRECTION)
            results.count[i] = oracle->elements[i];
        if (results.count[i] > 0)
            results.value[i] = test_alloc(results.count[i] * sizeof(float));
    }
    return results;
}

layer_results layer_run_collect(const layer_run *run) {
    const layer_results results = layer_results_of(run->oracle);
    collect_rows(run, run->y, results.value[LAYER_Y]);
    collect_rows(run, run->dx, results.value[LAYER_DX]);
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++)
        if (results.value[i] != NULL)
            collect_gradient(run, (moert_layer_tensor)i, results.value[i]);
    return results;
}

layer_results layer_compute(const oracle_layer *oracle, layer_setup how, size_t batches) {
    layer_run run = layer_run_open(oracle, how);
    for (size_t i = 0; i < batches; i++)
        ASSERT_OK(layer_run_step(&run, i, batches));
    return layer_run_collect(&run);
}

static bool same(const layer_results *a, const layer_results *b, int first, int end) {
    bool all = true;
    for (int i = first; i < end; i++)
        if (a->value[i] != NULL && b->value[i] != NULL)
            all &= memcmp(a->value[i], b->value[i], a->count[i] * sizeof(float)) == 0;
    return all;
}

bool layer_same_rows(const layer_results *a, const layer_results *b) {
    return same(a, b, LAYER_Y, LAYER_RESULTS);
}

bool layer_same_gradients(const layer_results *a, const layer_results *b) {
    return same(a, b, 0, LAYER_Y);
}

bool layer_same(const layer_results *a, const layer_results *b) {
    return same(a, b, 0, LAYER_RESULTS);
}

bool layer_run_same(const layer_run *a, const layer_run *b) {
    const size_t n = a->batch.tokens * a->oracle->options.hidden;
    bool all = same_floats(a->y, b->y, n) && same_floats(a->dx, b->dx, n);
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_buffer *x = moert_layer_gradient(a->layer, (moert_layer_tensor)i),
                           *y = moert_layer_gradient(b->layer, (moert_layer_tensor)i);
        if (x != NULL && y != NULL)
            all = all && same_floats(x, y, moert_buffer_bytes(x) / sizeof(float));
    }
    return all;
}

void copy_weights(moert_layer *from, moert_layer *to) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_buffer *source = moert_layer_weight(from, (moert_layer_tensor)i);
        moert_buffer *target = moert_layer_weight(to, (moert_layer_tensor)i);
        if (source != NULL && target != NULL)
            ASSERT_OK(moert_buffer_copy(source, 0, target, 0, moert_buffer_bytes(source)));
    }
    moert_layer_weights_changed(to);
}
