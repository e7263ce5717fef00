// run: check=1,2 all=3,4,2san
/* What a pass shows of its router, and routing that the caller brings: a layer that gets another
 * layer's index and weights has its bits. */
#include "base/memory.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

static moert_layer_options form(void) {
    moert_layer_options options = layer_form(20, 12);
    options.shared_intermediate = 7;
    options.expert_biases = true;
    return options;
}

/* Copies the first `count` floats of a buffer into one of its own. */
static moert_buffer *copy_of(const moert_buffer *from, size_t count) {
    moert_buffer *copy = test_buffer(count * sizeof(float));
    ASSERT_OK(moert_buffer_copy(from, 0, copy, 0, count * sizeof(float)));
    return copy;
}

static bool same(const moert_buffer *a, const moert_buffer *b, size_t count) {
    float *x = test_alloc(count * sizeof *x), *y = test_alloc(count * sizeof *y);
    ASSERT_OK(moert_buffer_read(a, 0, x, count * sizeof *x));
    ASSERT_OK(moert_buffer_read(b, 0, y, count * sizeof *y));
    return memcmp(x, y, count * sizeof *x) == 0;
}

/* Copies all weights that both layers have. */
static void copy_weights(moert_layer *from, moert_layer *to) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_buffer *source = moert_layer_weight(from, (moert_layer_tensor)i);
        moert_buffer *target = moert_layer_weight(to, (moert_layer_tensor)i);
        if (source != NULL && target != NULL)
            ASSERT_OK(moert_buffer_copy(source, 0, target, 0, moert_buffer_bytes(source)));
    }
    moert_layer_weights_changed(to);
}

TEST(test_a_layer_with_the_routing_of_another_has_its_bits) {
    moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t tokens = run.batch.tokens, slots = tokens * options.router.topk;
    const size_t n = tokens * options.hidden;
    moert_layer *layer;
    moert_pass *pass = NULL;
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    options.external_routing = true;
    ASSERT_OK_ON_ALL(moert_layer_create(run.mesh, &options, &layer));
    ASSERT_ON_ALL(moert_layer_weight(layer, MOERT_LAYER_ROUTER) == NULL);
    copy_weights(run.layer, layer);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    moert_batch batch = run.batch;
    batch.index = copy_of(moert_pass_get(run.pass, MOERT_PASS_INDEX), slots);
    batch.weight = copy_of(moert_pass_get(run.pass, MOERT_PASS_WEIGHT), slots);
    losses.weight_gradient = unset_floats(slots);
    ASSERT_OK_ON_ALL(moert_pass_backward(run.pass, run.dy, &losses, run.dx));
    moert_buffer *y = unset_floats(n), *dx = unset_floats(n), *weight = losses.weight_gradient;
    ASSERT_OK_ON_ALL(moert_layer_forward(layer, &batch, run.x, y, &pass));
    ASSERT_ON_ALL(same(y, run.y, n));
    ASSERT_ON_ALL(moert_pass_get(pass, MOERT_PASS_SCORES) == NULL);
    losses.weight_gradient = unset_floats(slots);
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, &losses, dx));
    ASSERT_ON_ALL(same(weight, losses.weight_gradient, slots));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
    ASSERT_OK_ON_ALL(moert_layer_reduce(layer, true));
    for (int i = MOERT_LAYER_SHARED_W1; i < MOERT_LAYER_CORRECTION; i++) {
        const moert_buffer *theirs = moert_layer_gradient(run.layer, (moert_layer_tensor)i);
        ASSERT_ON_ALL(theirs == NULL ||
                      same(theirs, moert_layer_gradient(layer, (moert_layer_tensor)i),
                           moert_buffer_bytes(theirs) / sizeof(float)));
    }
    moert_layer_destroy(layer);
    layer_run_close(&run);
}

/* Runs a pass of the batch, and returns the gradient of W1. */
static moert_buffer *run_pass(moert_layer *layer, const moert_batch *batch,
                              moert_buffer *const rows[4]) {
    moert_pass *pass = NULL;
    ASSERT_OK_ON_ALL(moert_layer_forward(layer, batch, rows[0], rows[1], &pass));
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, rows[2], NULL, rows[3]));
    ASSERT_OK_ON_ALL(moert_layer_reduce(layer, true));
    moert_pass_destroy(pass);
    const moert_buffer *gradient = moert_layer_gradient(layer, MOERT_LAYER_W1);
    return copy_of(gradient, moert_buffer_bytes(gradient) / sizeof(float));
}

TEST(test_rows_in_bf16_give_the_results_of_the_same_values_in_float32) {
    moert_layer_options options = layer_form(20, 12);
    options.dispatch = MOERT_DISPATCH_BF16;
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t tokens = run.batch.tokens, slots = tokens * options.router.topk;
    const size_t n = tokens * options.hidden;
    moert_layer *layer;
    options.external_routing = true;
    ASSERT_OK_ON_ALL(moert_layer_create(run.mesh, &options, &layer));
    copy_weights(run.layer, layer);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    moert_batch batch = run.batch;
    batch.index = copy_of(moert_pass_get(run.pass, MOERT_PASS_INDEX), slots);
    batch.weight = copy_of(moert_pass_get(run.pass, MOERT_PASS_WEIGHT), slots);
    moert_buffer *const floats[] = {run.x, run.y, run.dy, run.dx};
    moert_buffer *const bf16[] = {
        upload_as(download_floats(run.x, n), n, MOERT_DTYPE_BF16), unset_bf16(n),
        upload_as(download_floats(run.dy, n), n, MOERT_DTYPE_BF16), unset_bf16(n)};
    const moert_buffer *want = run_pass(layer, &batch, floats);
    batch.type = MOERT_DTYPE_BF16;
    const moert_buffer *got = run_pass(layer, &batch, bf16);
    assert_bf16("y", bf16[1], download_floats(run.y, n), n);
    assert_bf16("dx", bf16[3], download_floats(run.dx, n), n);
    ASSERT_ON_ALL(same(got, want, moert_buffer_bytes(want) / sizeof(float)));
    ASSERT_FAILS_ON_ALL(moert_layer_forward(run.layer, &batch, run.x, run.y, NULL),
                        MOERT_ERROR_UNSUPPORTED, "rows of type 2");
    batch.type = MOERT_DTYPE_F16;
    ASSERT_FAILS_ON_ALL(moert_layer_forward(layer, &batch, run.x, run.y, NULL),
                        MOERT_ERROR_UNSUPPORTED, "rows of type 1");
    moert_layer_destroy(layer);
    layer_run_close(&run);
}

/* A token's weights sum to 1, its scores too, and lse is the log-sum-exp of its logits. */
TEST(test_views_show_what_the_router_computed) {
    const moert_layer_options options = layer_form(20, 12);
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t tokens = run.batch.tokens, experts = options.router.experts;
    const size_t topk = options.router.topk;
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    float *values[MOERT_PASS_VIEWS];
    for (int v = 0; v < MOERT_PASS_VIEWS; v++) {
        values[v] = test_alloc((tokens * experts + 1) * sizeof(float));
        const size_t width = v == MOERT_PASS_LSE                               ? 1
                             : v == MOERT_PASS_INDEX || v == MOERT_PASS_WEIGHT ? topk
                                                                               : experts;
        ASSERT_OK(moert_buffer_read(moert_pass_get(run.pass, (moert_pass_view)v), 0, values[v],
                                    tokens * width * sizeof(float)));
    }
    bool right = true;
    for (size_t t = 0; t < tokens; t++) {
        double weights = 0.0, scores = 0.0, sum = 0.0;
        for (size_t k = 0; k < topk; k++) {
            const int32_t e =
                ((const int32_t *)(const void *)values[MOERT_PASS_INDEX])[t * topk + k];
            weights += (double)values[MOERT_PASS_WEIGHT][t * topk + k];
            right = right && e >= 0 && e < (int32_t)experts;
        }
        for (size_t e = 0; e < experts; e++) {
            scores += (double)values[MOERT_PASS_SCORES][t * experts + e];
            sum += exp((double)values[MOERT_PASS_LOGITS][t * experts + e]);
        }
        right = right && fabs(weights - 1.0) < 1e-6 && fabs(scores - 1.0) < 1e-6 &&
                fabs(log(sum) - (double)values[MOERT_PASS_LSE][t]) < 1e-5;
    }
    ASSERT_ON_ALL(right);
    ASSERT_ON_ALL(moert_pass_get(run.pass, MOERT_PASS_VIEWS) == NULL &&
                  moert_pass_get(NULL, MOERT_PASS_INDEX) == NULL);
    layer_run_close(&run);
}

/* The reported losses are those of the views; with the reported gradient, dx is that of the losses
 * that the test computes itself. */
TEST(test_losses_are_reported) {
    const moert_layer_options options = layer_form(20, 12);
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t tokens = run.batch.tokens, experts = options.router.experts;
    double sums[16] = {0}, all[64][16], total[16] = {0};
    moert_pass_losses losses = MOERT_PASS_LOSSES_INIT;
    float *scores = test_alloc((tokens * experts + 1) * sizeof *scores), gradient[16];
    float *lse = test_alloc((tokens + 1) * sizeof *lse);
    losses.aux_coefficient = 0.5;
    losses.aux_gradient = unset_floats(experts);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    ASSERT_OK(moert_buffer_read(moert_pass_get(run.pass, MOERT_PASS_SCORES), 0, scores,
                                tokens * experts * sizeof *scores));
    ASSERT_OK(
        moert_buffer_read(moert_pass_get(run.pass, MOERT_PASS_LSE), 0, lse, tokens * sizeof *lse));
    for (size_t t = 0; t < tokens; t++) {
        sums[15] += (double)lse[t] * (double)lse[t];
        for (size_t e = 0; e < experts; e++)
            sums[e] += (double)scores[t * experts + e];
    }
    ASSERT_OK(moert_comm_allgather(test_comm, sums, sizeof sums, all));
    for (size_t r = 0; r < test_ranks; r++)
        for (size_t i = 0; i < 16; i++)
            total[i] += all[r][i];
    const uint64_t *counts = moert_pass_expert_counts(run.pass);
    const double rows = LAYER_TOKENS, topk = (double)options.router.topk;
    const double factor = (double)experts / (topk * rows * rows);
    double aux = 0.0;
    ASSERT_OK_ON_ALL(moert_pass_report(run.pass, &losses));
    download_into(losses.aux_gradient, gradient, experts * sizeof *gradient);
    bool right = fabs(losses.z - total[15] / rows) < 1e-9;
    for (size_t e = 0; e < experts; e++) {
        aux += factor * (double)counts[e] * total[e];
        right = right && fabs((double)gradient[e] - 0.5 * factor * (double)counts[e]) < 1e-7;
    }
    ASSERT_ON_ALL(right && fabs(losses.aux - aux) < 1e-6 * aux);
    ASSERT_FAILS_ON_ALL(moert_pass_report(NULL, &losses), MOERT_ERROR_USAGE, "pass is NULL");
    ASSERT_FAILS_ON_ALL(moert_pass_report(run.pass, NULL), MOERT_ERROR_USAGE,
                        "moert_pass_losses is NULL");
    layer_run_close(&run);
}

TEST(test_counts_are_those_of_the_index) {
    const moert_layer_options options = layer_form(20, 12);
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t slots = run.batch.tokens * options.router.topk, experts = options.router.experts;
    int *index = test_alloc((slots + 1) * sizeof *index);
    uint64_t own[16] = {0}, sums[16] = {0};
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    ASSERT_OK(moert_buffer_read(moert_pass_get(run.pass, MOERT_PASS_INDEX), 0, index,
                                slots * sizeof *index));
    for (size_t s = 0; s < slots; s++)
        own[index[s]]++;
    const uint64_t *counts = moert_pass_rank_counts(run.pass);
    for (size_t i = 0; i < test_ranks * experts; i++)
        sums[i % experts] += counts[i];
    ASSERT_ON_ALL(memcmp(own, counts + test_rank * experts, experts * sizeof *own) == 0);
    ASSERT_ON_ALL(memcmp(sums, moert_pass_expert_counts(run.pass), experts * sizeof *sums) == 0);
    layer_run_close(&run);
}

TEST(test_routing_that_does_not_fit_the_layer_is_refused) {
    moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    moert_layer *layer;
    moert_batch batch = run.batch;
    batch.index = test_buffer(0);
    ASSERT_FAILS_ON_ALL(moert_layer_forward(run.layer, &batch, run.x, run.y, NULL),
                        MOERT_ERROR_USAGE, "without external_routing");
    options.external_routing = true;
    ASSERT_OK_ON_ALL(moert_layer_create(run.mesh, &options, &layer));
    ASSERT_FAILS_ON_ALL(moert_layer_forward(layer, &batch, run.x, run.y, NULL), MOERT_ERROR_USAGE,
                        "of a layer");
    batch.index = NULL;
    ASSERT_FAILS_ON_ALL(moert_layer_forward(layer, &batch, run.x, run.y, NULL), MOERT_ERROR_USAGE,
                        "index of a layer is NULL");
    moert_layer_destroy(layer);
    layer_run_close(&run);
}

MPI_TESTS(open_test_context, close_test_context)
