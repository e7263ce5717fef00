// run: check=1,2 all=3,4,2san
/* Weights and gradients in buffers of the caller give the bits of the layer's own, with and without
 * replicas of experts, over several micro-batches. */
#include "base/memory.h"
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

static moert_layer_options form(void) {
    moert_layer_options options = layer_form(20, 12);
    options.shared_intermediate = 7;
    options.router.score = MOERT_SCORE_SIGMOID;
    options.router_bias = options.correction_bias = options.expert_biases = options.shared_gate =
        true;
    return options;
}

/* Binds every tensor to buffers with guards, of which the gradients are unset. */
static void bind_all(moert_layer *layer, moert_buffer *gradients[MOERT_LAYER_TENSORS]) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_layer_tensor which = (moert_layer_tensor)i;
        moert_buffer *own = moert_layer_weight(layer, which);
        const size_t n = moert_buffer_bytes(own) / sizeof(float);
        float *values = test_alloc((n + 1) * sizeof *values);
        ASSERT_OK(moert_buffer_read(own, 0, values, n * sizeof *values));
        gradients[i] = which == MOERT_LAYER_CORRECTION ? NULL : unset_floats(n);
        ASSERT_OK(moert_layer_bind(layer, which, upload_floats(values, n), gradients[i]));
    }
}

static layer_results steps(moert_layer_options options, size_t ep, bool deferred, bool binds) {
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, ep, &oracle, deferred);
    moert_buffer *gradients[MOERT_LAYER_TENSORS];
    if (binds)
        bind_all(run.layer, gradients);
    for (size_t step = 0; step < 2; step++)
        for (size_t micro = 0; micro < 3; micro++)
            ASSERT_OK(layer_run_step(&run, micro, 3));
    const layer_results results = layer_run_collect(&run);
    if (binds) {
        const moert_block *const *blocks = (const moert_block *const *)run.layer->block;
        const bool replicas = ep == 1 && test_ranks > 1;
        ASSERT_ON_ALL(blocks[BLOCK_DENSE]->weight == NULL &&
                      blocks[BLOCK_EXPERT_IN]->weight == NULL &&
                      (blocks[BLOCK_EXPERT_OUT]->gradient == NULL) == !replicas);
    }
    for (int i = 0; i < MOERT_LAYER_TENSORS && binds; i++)
        if (gradients[i] != NULL) /* fails if the layer has written past the buffer */
            download_floats(gradients[i], moert_buffer_bytes(moert_layer_weight(
                                              run.layer, (moert_layer_tensor)i)) /
                                              sizeof(float));
    layer_run_close(&run);
    return results;
}

static void compare(moert_layer_options options, size_t ep, bool deferred) {
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    const layer_results own = steps(options, ep, deferred, false);
    const layer_results bound = steps(options, ep, deferred, true);
    const size_t n = LAYER_TOKENS * options.hidden;
    bool same = memcmp(own.y, bound.y, n * sizeof(float)) == 0 &&
                memcmp(own.dx, bound.dx, n * sizeof(float)) == 0;
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++)
        if (own.gradient[i] != NULL)
            same = same && memcmp(own.gradient[i], bound.gradient[i],
                                  oracle.elements[i] * sizeof(float)) == 0;
    ASSERT_ON_ALL(same);
}

TEST(test_bound_tensors_give_the_same_bits) {
    moert_layer_options options = form();
    compare(options, 0, false);
    compare(options, 0, true);
    compare(options, 1, false);
    options.expert_biases = options.router_bias = options.correction_bias = true;
    options.hidden = 40;
    options.intermediate = 24;
    options.precision = MOERT_PRECISION_BF16;
    compare(options, 0, false);
}

TEST(test_a_bound_weight_may_change) {
    const moert_layer_options options = layer_form(20, 12);
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t n = moert_buffer_bytes(moert_layer_weight(run.layer, MOERT_LAYER_W2)) / 4;
    moert_buffer *weight = unset_floats(n);
    ASSERT_OK(moert_layer_bind(run.layer, MOERT_LAYER_W2, weight, NULL));
    ASSERT_OK(moert_buffer_clear(weight, 0, n * sizeof(float)));
    moert_layer_weights_changed(run.layer);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    const float *y = download_floats(run.y, run.batch.tokens * options.hidden);
    bool zero = true;
    for (size_t i = 0; i < run.batch.tokens * options.hidden; i++)
        zero = zero && y[i] == 0.0f;
    ASSERT_ON_ALL(zero);
    layer_run_close(&run);
}

TEST(test_buffers_that_do_not_fit_are_refused) {
    const moert_layer_options options = layer_form(20, 12);
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    moert_buffer *small = test_buffer(4);
    ASSERT_FAILS_ON_ALL(moert_layer_bind(run.layer, MOERT_LAYER_ROUTER, small, NULL),
                        MOERT_ERROR_USAGE, "weight of a layer holds 4 bytes");
    ASSERT_FAILS_ON_ALL(moert_layer_bind(run.layer, MOERT_LAYER_ROUTER, NULL, small),
                        MOERT_ERROR_USAGE, "gradient of a layer holds 4 bytes");
    ASSERT_FAILS_ON_ALL(moert_layer_bind(run.layer, MOERT_LAYER_B1, small, NULL), MOERT_ERROR_USAGE,
                        "the layer has no tensor");
    ASSERT_FAILS_ON_ALL(moert_layer_bind(NULL, MOERT_LAYER_W1, small, NULL), MOERT_ERROR_USAGE,
                        "layer is NULL");
    layer_run_close(&run);
}

MPI_TESTS(open_test_context, close_test_context)
