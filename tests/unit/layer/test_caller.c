// run: check=1,2 all=3,4,2san
/* Layers and their callers. Weights and gradients in the caller's buffers give the same bits as in
 * the layer's buffers. A layer that gets another layer's routing gives that layer's bits. A pass
 * shows the results of its router. */
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

enum { TOPK = 2 }; /* of layer_form() */

/* ---- buffers of the caller ---- */

/* Binds every tensor to guarded buffers; those of gradients hold NaN. */
static void bind_all(moert_layer *layer, moert_buffer *gradients[MOERT_LAYER_TENSORS]) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_layer_tensor which = (moert_layer_tensor)i;
        moert_buffer *own = moert_layer_weight(layer, which);
        const size_t n = moert_buffer_bytes(own) / sizeof(float);
        gradients[i] = which == MOERT_LAYER_CORRECTION ? NULL : unset_floats(n);
        ASSERT_OK(
            moert_layer_bind(layer, which, upload_floats(read_floats(own, n), n), gradients[i]));
    }
}

static layer_results steps(const oracle_layer *oracle, layer_setup how, bool binds) {
    layer_run run = layer_run_open(oracle, how);
    moert_buffer *gradients[MOERT_LAYER_TENSORS] = {NULL};
    if (binds)
        bind_all(run.layer, gradients);
    for (size_t step = 0; step < 2; step++)
        for (size_t micro = 0; micro < 3; micro++)
            ASSERT_OK(layer_run_step(&run, micro, 3));
    if (binds) {
        const moert_block *const *blocks = (const moert_block *const *)run.layer->block;
        const bool replicas = how.ep == 1 && test_ranks > 1;
        ASSERT_ON_ALL(blocks[BLOCK_DENSE]->weight == NULL &&
                      blocks[BLOCK_EXPERT_IN]->weight == NULL &&
                      (blocks[BLOCK_EXPERT_OUT]->gradient == NULL) == !replicas);
    }
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++)
        if (gradients[i] != NULL) /* fails if the layer has written past the buffer */
            download_floats(gradients[i], moert_buffer_bytes(moert_layer_weight(
                                              run.layer, (moert_layer_tensor)i)) /
                                              sizeof(float));
    return layer_run_collect(&run);
}

TEST(test_bound_tensors_give_the_same_bits) {
    moert_layer_options rounded = layer_full_form();
    rounded.hidden = 40;
    rounded.intermediate = 24;
    rounded.precision = MOERT_PRECISION_BF16;
    const struct {
        moert_layer_options options;
        layer_setup how;
    } rows[] = {{layer_full_form(), {0}},
                {layer_full_form(), {.deferred = true}},
                {layer_full_form(), {.ep = 1}},
                {rounded, {0}}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const oracle_layer oracle = oracle_layer_create(&rows[i].options, LAYER_TOKENS);
        const layer_results own = steps(&oracle, rows[i].how, false),
                            bound = steps(&oracle, rows[i].how, true);
        ASSERT_ON_ALL(layer_same(&own, &bound));
    }
}

TEST(test_buffers_that_do_not_fit_are_refused) {
    moert_layer *layer = layer_run_of(layer_form(20, 12)).layer;
    moert_buffer *small = test_buffer(4);
    ASSERT_REFUSED(moert_layer_bind(layer, MOERT_LAYER_ROUTER, small, NULL),
                   "weight of a layer holds 4 bytes");
    ASSERT_REFUSED(moert_layer_bind(layer, MOERT_LAYER_ROUTER, NULL, small),
                   "gradient of a layer holds 4 bytes");
    ASSERT_REFUSED(moert_layer_bind(layer, MOERT_LAYER_B1, small, NULL), "the layer has no tensor");
    ASSERT_REFUSED(moert_layer_bind(NULL, MOERT_LAYER_W1, small, NULL), "layer is NULL");
}

/* ---- routing given by the caller ---- */

/* Opens a layer with the weights of `run`. The layer gets the routing of run's last forward from
 * the caller. */
static layer_run routed_run(const layer_run *run) {
    moert_layer_options options = run->oracle->options;
    const size_t slots = run->batch.tokens * TOPK, n = run->batch.tokens * options.hidden;
    layer_run routed = *run;
    options.external_routing = true;
    routed.pass = NULL;
    routed.layer = open_layer(run->mesh, &options);
    copy_weights(run->layer, routed.layer);
    routed.batch.index =
        upload_floats(read_floats(moert_pass_get(run->pass, MOERT_PASS_INDEX), slots), slots);
    routed.batch.weight =
        upload_floats(read_floats(moert_pass_get(run->pass, MOERT_PASS_WEIGHT), slots), slots);
    routed.y = unset_floats(n);
    routed.dx = unset_floats(n);
    return routed;
}

/* Runs backward and reduction; returns the gradient of the routing weights. */
static moert_buffer *backward(layer_run *run) {
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    losses.weight_gradient = unset_floats(run->batch.tokens * TOPK);
    ASSERT_OK_ON_ALL(moert_pass_backward(run->pass, run->dy, &losses, run->dx));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run->layer, true));
    return losses.weight_gradient;
}

/* dx differs, because only one of the layers has a router. */
TEST(test_a_layer_with_the_routing_of_another_has_its_bits) {
    moert_layer_options options = layer_form(20, 12);
    options.shared_intermediate = 7;
    options.expert_biases = true;
    layer_run run = layer_run_of(options);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    layer_run routed = routed_run(&run);
    ASSERT_OK_ON_ALL(layer_run_forward(&routed));
    ASSERT_ON_ALL(moert_layer_weight(routed.layer, MOERT_LAYER_ROUTER) == NULL &&
                  moert_pass_get(routed.pass, MOERT_PASS_SCORES) == NULL);
    ASSERT_ON_ALL(same_floats(backward(&run), backward(&routed), run.batch.tokens * TOPK));
    routed.dx = run.dx;
    ASSERT_ON_ALL(layer_run_same(&run, &routed));
}

TEST(test_rows_in_bf16_give_the_results_of_the_same_values_in_float32) {
    moert_layer_options options = layer_form(20, 12);
    options.dispatch = MOERT_DISPATCH_BF16;
    layer_run run = layer_run_of(options);
    const size_t n = run.batch.tokens * options.hidden;
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    layer_run want = routed_run(&run), got = routed_run(&run);
    got.batch.type = MOERT_DTYPE_BF16;
    got.x = upload_as(download_floats(run.x, n), n, MOERT_DTYPE_BF16);
    got.dy = upload_as(download_floats(run.dy, n), n, MOERT_DTYPE_BF16);
    got.y = unset_bf16(n);
    got.dx = unset_bf16(n);
    ASSERT_OK_ON_ALL(layer_run_forward(&want));
    ASSERT_OK_ON_ALL(layer_run_forward(&got));
    ASSERT_ON_ALL(same_floats(backward(&want), backward(&got), n / options.hidden * TOPK));
    assert_bf16("y", got.y, download_floats(want.y, n), n);
    assert_bf16("dx", got.dx, download_floats(want.dx, n), n);
    got.y = want.y;
    got.dx = want.dx;
    ASSERT_ON_ALL(layer_run_same(&want, &got));
    ASSERT_FAILS_ON_ALL(moert_layer_forward(run.layer, &got.batch, run.x, run.y, NULL),
                        MOERT_ERROR_UNSUPPORTED, "rows of type 2");
    got.batch.type = MOERT_DTYPE_F16;
    ASSERT_FAILS_ON_ALL(layer_run_forward(&got), MOERT_ERROR_UNSUPPORTED, "rows of type 1");
}

TEST(test_routing_that_does_not_fit_the_layer_is_refused) {
    moert_layer_options options = layer_form(20, 12);
    layer_run run = layer_run_of(options);
    moert_batch batch = run.batch;
    batch.index = test_buffer(0);
    ASSERT_REFUSED(moert_layer_forward(run.layer, &batch, run.x, run.y, NULL),
                   "need a layer with external_routing");
    options.external_routing = true;
    moert_layer *layer = open_layer(run.mesh, &options);
    ASSERT_REFUSED(moert_layer_forward(layer, &batch, run.x, run.y, NULL), "of a layer");
    batch.index = NULL;
    ASSERT_REFUSED(moert_layer_forward(layer, &batch, run.x, run.y, NULL),
                   "index of a layer is NULL");
}

/* ---- the router's results that a pass shows ---- */

enum { EXPERTS = 5, LSE = EXPERTS, SUMS };

/* total: this rank's sums of the scores of each expert, and of lse^2. */
static void check_losses(const layer_run *run, double total[SUMS]) {
    const double rows = LAYER_TOKENS, factor = EXPERTS / (TOPK * rows * rows);
    const uint64_t *counts = moert_pass_expert_counts(run->pass);
    double aux = 0.0;
    bool right = true;
    moert_pass_losses losses = MOERT_PASS_LOSSES_INIT;
    losses.aux_coefficient = 0.5;
    losses.aux_gradient = unset_floats(EXPERTS);
    sum_over_ranks(total, SUMS);
    ASSERT_OK_ON_ALL(moert_pass_report(run->pass, &losses));
    const float *gradient = download_floats(losses.aux_gradient, EXPERTS);
    for (size_t e = 0; e < EXPERTS; e++) {
        aux += factor * (double)counts[e] * total[e];
        right = right && fabs((double)gradient[e] - 0.5 * factor * (double)counts[e]) < 1e-7;
    }
    ASSERT_ON_ALL(right && fabs(losses.z - total[LSE] / rows) < 1e-9 &&
                  fabs(losses.aux - aux) < 1e-6 * aux);
    ASSERT_REFUSED(moert_pass_report(NULL, &losses), "pass is NULL");
    ASSERT_REFUSED(moert_pass_report(run->pass, NULL), "moert_pass_losses is NULL");
}

/* A token's weights sum to 1, and its scores sum to 1. lse is the log-sum-exp of its logits. The
 * counts must be those of the chosen experts, and the reported losses must follow from the counts,
 * the scores and lse. */
TEST(test_views_counts_and_losses_show_what_the_router_computed) {
    static const size_t width[MOERT_PASS_VIEWS] = {[MOERT_PASS_INDEX] = TOPK,
                                                   [MOERT_PASS_WEIGHT] = TOPK,
                                                   [MOERT_PASS_LOGITS] = EXPERTS,
                                                   [MOERT_PASS_SCORES] = EXPERTS,
                                                   [MOERT_PASS_LSE] = 1};
    layer_run run = layer_run_of(layer_form(20, 12));
    const size_t tokens = run.batch.tokens;
    float *value[MOERT_PASS_VIEWS];
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    for (int i = 0; i < MOERT_PASS_VIEWS; i++)
        value[i] = read_floats(moert_pass_get(run.pass, (moert_pass_view)i), tokens * width[i]);
    const int32_t *index = (const int32_t *)(const void *)value[MOERT_PASS_INDEX];
    uint64_t own[EXPERTS] = {0}, counted[EXPERTS] = {0};
    double total[SUMS] = {0};
    bool right = true;
    for (size_t t = 0; t < tokens; t++) {
        double weights = 0.0, scores = 0.0, sum = 0.0, lse = (double)value[MOERT_PASS_LSE][t];
        for (size_t k = t * TOPK; k < (t + 1) * TOPK; k++) {
            weights += (double)value[MOERT_PASS_WEIGHT][k];
            right = right && index[k] >= 0 && index[k] < EXPERTS;
            own[index[k] % EXPERTS]++;
        }
        for (size_t e = 0; e < EXPERTS; e++) {
            const double score = (double)value[MOERT_PASS_SCORES][t * EXPERTS + e];
            scores += score;
            total[e] += score;
            sum += exp((double)value[MOERT_PASS_LOGITS][t * EXPERTS + e]);
        }
        total[LSE] += lse * lse;
        right = right && fabs(weights - 1.0) < 1e-6 && fabs(scores - 1.0) < 1e-6 &&
                fabs(log(sum) - lse) < 1e-5;
    }
    const uint64_t *of_ranks = moert_pass_rank_counts(run.pass),
                   *counts = moert_pass_expert_counts(run.pass);
    for (size_t i = 0; i < test_ranks * EXPERTS; i++)
        counted[i % EXPERTS] += of_ranks[i];
    ASSERT_ON_ALL(right && memcmp(own, of_ranks + test_rank * EXPERTS, sizeof own) == 0 &&
                  memcmp(counted, counts, sizeof counted) == 0);
    ASSERT_ON_ALL(moert_pass_get(run.pass, MOERT_PASS_VIEWS) == NULL &&
                  moert_pass_get(NULL, MOERT_PASS_INDEX) == NULL);
    check_losses(&run, total);
}

MPI_TESTS(open_test_context, close_test_context)
