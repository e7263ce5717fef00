// run: check=1,2 all=3,4,2san
/* Forward and backward of the MoE layer against float64 and its central differences, on any number
 * of ranks. If there are several ranks, one of them has no tokens. */
#include "context/context.h"
#include "device/device.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

static const double tolerance = 5e-6; /* relative error of each tensor */

/* ---- forms of layers: sizes are no multiples of a tile, numbers of experts no multiples of the
 * number of ranks ---- */

/* A layer in which every token goes to all experts. */
static moert_layer_options dense_form(void) {
    moert_layer_options options = layer_form(20, 12);
    options.router.score = MOERT_SCORE_SOFTMAX_TOPK;
    options.router.topk = options.router.experts;
    options.expert_biases = true;
    options.glu = (moert_glu_form)MOERT_GLU_GPT_OSS;
    return options;
}

/* ---- comparing ---- */

/* The expected results; only rank 0 computes them. */
static layer_results expect(oracle_layer *oracle) {
    const layer_results expected = layer_results_of(oracle);
    const size_t n = expected.count[LAYER_Y];
    double *gradient = test_alloc((n + oracle->elements[MOERT_LAYER_W1]) * sizeof *gradient),
           *of_sent = test_alloc(n * sizeof *of_sent);
    if (test_rank != 0)
        return expected;
    for (int i = 0; i < LAYER_RESULTS; i++) {
        if (i == LAYER_Y) {
            oracle_layer_loss(oracle, gradient);
        } else if (i == LAYER_DX) {
            oracle_layer_differentiate(oracle, oracle->x, n, gradient);
            oracle_layer_differentiate(oracle, oracle->sent_x, n, of_sent);
            for (size_t j = 0; j < n; j++)
                gradient[j] += of_sent[j];
        } else {
            oracle_layer_differentiate(oracle, oracle->tensor[i], expected.count[i], gradient);
        }
        for (size_t j = 0; j < expected.count[i]; j++)
            expected.value[i][j] = (float)gradient[j];
    }
    return expected;
}

/* Rank 0 compares, all ranks assert. `factor` is the number of micro-batches whose gradients add
 * up. */
static void assert_results(const layer_results *expected, const layer_results *got, float factor) {
    static const char *const names[LAYER_RESULTS] = {
#define NAME(name) #name,
        MOERT_LAYER_TENSOR_TABLE(NAME)
#undef NAME
            "y",
        "dx"};
    double error[LAYER_RESULTS] = {0.0};
    for (int i = 0; i < LAYER_RESULTS && test_rank == 0; i++) {
        float *value = got->value[i];
        for (size_t j = 0; j < got->count[i] && i < LAYER_Y; j++)
            value[j] /= factor;
        if (value != NULL)
            error[i] = relative_difference(expected->value[i], value, got->count[i]);
    }
    ASSERT_OK(moert_comm_broadcast(test_comm, 0, error, sizeof error));
    for (size_t i = 0; i < LAYER_RESULTS; i++)
        if (!(error[i] <= tolerance))
            fail_msg("%s: relative error %.3g exceeds %.3g", names[i], error[i], tolerance);
}

static void check_layer(const oracle_layer *oracle, const layer_results *expected, size_t ep,
                        size_t batches) {
    const layer_results results = layer_compute(oracle, (layer_setup){.ep = ep}, batches);
    assert_results(expected, &results, (float)batches);
}

/* Checks a layer for every EP: the number of ranks in an EP group. */
static void check_form(moert_layer_options options) {
    oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    assert_true(oracle.margin > 1e-4);
    const layer_results expected = expect(&oracle);
    for (size_t ep = 1; ep <= test_ranks; ep++)
        if (test_ranks % ep == 0)
            check_layer(&oracle, &expected, ep, 1);
    check_layer(&oracle, &expected, 1, 3);
    check_layer(&oracle, &expected, test_ranks, 2);
}

/* ---- tests ---- */

TEST(test_gradients_of_a_layer_with_every_feature_agree_with_differences) {
    check_form(layer_full_form());
}

TEST(test_gradients_of_plain_and_dense_layers_agree_with_differences) {
    check_form(layer_form(20, 12));
    check_form(dense_form());
}

/* The experts get x and dy rounded to MXFP8 or bf16; the router and the shared expert get them
 * unrounded. */
TEST(test_gradients_of_a_layer_that_dispatches_rounded_rows_are_of_the_rounded_rows) {
    for (int d = MOERT_DISPATCH_MXFP8; d <= MOERT_DISPATCH_BF16; d++) {
        moert_layer_options options = layer_full_form();
        options.dispatch = (moert_dispatch)d;
        check_form(options);
        options = dense_form();
        options.dispatch = (moert_dispatch)d;
        options.hidden = 44;
        check_form(options);
    }
}

/* Checks that two micro-batches with deferred wgrads or recomputed experts give the same bits as
 * without deferral and recomputation. */
static void check_same_bits(moert_layer_options options, bool deferred) {
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    oracle_layer changed = oracle;
    changed.options.recompute_experts = !deferred;
    const layer_results want = layer_compute(&oracle, (layer_setup){0}, 2),
                        got = layer_compute(&changed, (layer_setup){.deferred = deferred}, 2);
    ASSERT_ON_ALL(layer_same(&got, &want));
}

TEST(test_deferred_wgrad_gives_the_same_bits) {
    moert_layer_options rounded = layer_form(20, 12);
    rounded.hidden = 40;
    rounded.intermediate = 24;
    rounded.precision = MOERT_PRECISION_BF16;
    check_same_bits(layer_full_form(), true);
    check_same_bits(rounded, true);
    rounded.dispatch = MOERT_DISPATCH_BF16;
    check_same_bits(rounded, true);
}

/* Checks that gradients of W1 and W2 in bf16 are the rounded float32 gradients of another layer. */
static void check_rounded_gradients(const moert_layer_options *options, bool deferred) {
    const moert_layer_tensor which[] = {MOERT_LAYER_W1, MOERT_LAYER_W2};
    const oracle_layer oracle = oracle_layer_create(options, LAYER_TOKENS);
    const layer_setup how = {.deferred = deferred};
    layer_run plain = layer_run_open(&oracle, how), run = layer_run_open(&oracle, how);
    moert_buffer *rounded[2];
    size_t elements[2];
    for (size_t i = 0; i < 2; i++) {
        elements[i] = oracle.elements[which[i]] / options->router.experts *
                      moert_layer_local_experts(run.layer);
        rounded[i] = unset_bf16(elements[i]);
    }
    const moert_layer_losses losses = {.size = sizeof losses,
                                       .aux_gradient = run.aux,
                                       .z_factor = (float)oracle.z_factor,
                                       .w1_gradient = rounded[0],
                                       .w2_gradient = rounded[1]};
    ASSERT_OK(layer_run_step(&plain, 0, 1));
    ASSERT_OK(layer_run_forward(&run));
    ASSERT_OK(moert_pass_backward(run.pass, run.dy, &losses, run.dx));
    if (deferred)
        ASSERT_OK(moert_pass_wgrad(run.pass));
    ASSERT_OK(moert_layer_reduce(run.layer, true));
    for (size_t i = 0; i < 2; i++)
        assert_bf16("gradient", rounded[i],
                    read_floats(moert_layer_gradient(plain.layer, which[i]), elements[i]),
                    elements[i]);
}

TEST(test_rounded_gradients_of_experts_are_the_float32_ones_rounded) {
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++)
        for (int deferred = 0; deferred < 2; deferred++) {
            moert_layer_options options = layer_full_form();
            options.precision = (moert_precision)p;
            const size_t before = owned_count();
            check_rounded_gradients(&options, deferred);
            release_since(before);
        }
}

TEST(test_experts_that_are_computed_again_give_the_same_bits) {
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++)
        for (int d = MOERT_DISPATCH_F32; d <= MOERT_DISPATCH_BF16; d++) {
            moert_layer_options options = p % 2 == 0 ? layer_full_form() : layer_form(20, 12);
            options.hidden = 40;
            options.intermediate = 24;
            options.precision = (moert_precision)p;
            options.dense = d == MOERT_DISPATCH_BF16 ? MOERT_PRECISION_BF16 : MOERT_PRECISION_F32;
            options.dispatch = (moert_dispatch)d;
            check_same_bits(options, false);
        }
}

/* Rank 0's first token becomes NaN, and then gets its old value back. The ranks in rank 0's EP
 * group fail; ranks of other EP groups do not wait for them. */
TEST(test_a_bad_token_fails_in_its_ep_group_and_leaves_the_layer_usable) {
    for (size_t i = 0; i < 2 * test_ranks; i++) {
        moert_layer_options options = layer_form(64, 32);
        const size_t before = owned_count(), ep = 1 + i / 2;
        const bool fails = test_rank < ep;
        options.precision = i % 2 == 0 ? MOERT_PRECISION_F32 : MOERT_PRECISION_NVFP4;
        if (test_ranks % ep != 0)
            continue;
        const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
        const float bad = NAN, right = (float)oracle.x[0];
        layer_run run = layer_run_open(&oracle, (layer_setup){.ep = ep});
        if (test_rank == 0)
            ASSERT_OK(moert_buffer_write(run.x, 0, &bad, sizeof bad));
        const moert_status status = layer_run_forward(&run);
        ASSERT_ON_ALL(status == (fails ? MOERT_ERROR_NUMERIC : MOERT_OK));
        if (ep == test_ranks)
            ASSERT_REFUSED(moert_pass_backward(run.pass, run.dy, NULL, run.dx), "");
        if (test_rank == 0)
            ASSERT_OK(moert_buffer_write(run.x, 0, &right, sizeof right));
        ASSERT_OK(layer_run_step(&run, 0, 1));
        const layer_results got = layer_run_collect(&run),
                            want = layer_compute(&oracle, (layer_setup){.ep = ep}, 1);
        ASSERT_ON_ALL(layer_same(&got, &want));
        release_since(before);
    }
}

TEST(test_a_forward_without_a_backward_has_the_same_bits) {
    layer_run run = layer_run_of(layer_full_form());
    const size_t n = run.batch.tokens * run.oracle->options.hidden;
    ASSERT_OK(layer_run_forward(&run));
    const float *kept = read_floats(run.y, n);
    run.batch.forward_only = true;
    ASSERT_OK(layer_run_forward(&run));
    ASSERT_ON_ALL(memcmp(kept, read_floats(run.y, n), n * sizeof *kept) == 0);
    ASSERT_REFUSED(moert_pass_backward(run.pass, run.dy, NULL, run.dx), "without a forward");
}

/* Reads the router's gradient after a step in which rank 0 has other tokens than `run`. */
static float *router_gradient(layer_run *run, const moert_batch *other) {
    const moert_batch own = run->batch;
    if (test_rank == 0)
        run->batch = *other;
    ASSERT_OK_ON_ALL(layer_run_step(run, 0, 1));
    run->batch = own;
    return read_floats(moert_layer_gradient(run->layer, MOERT_LAYER_ROUTER),
                       run->oracle->elements[MOERT_LAYER_ROUTER]);
}

/* Sequences without tokens are treated like sequences of padding. */
TEST(test_a_rank_without_tokens_may_have_sequences) {
    layer_run run = layer_run_of(layer_form(20, 12));
    moert_batch padded = run.batch, empty = run.batch;
    const size_t tokens_bytes = run.batch.tokens * sizeof(int32_t),
                 ends_bytes = run.batch.sequences * sizeof(uint32_t);
    padded.token = upload(memset(test_alloc(tokens_bytes + 1), -1, tokens_bytes), tokens_bytes);
    empty.tokens = 0;
    empty.ends = upload(test_alloc(ends_bytes + 1), ends_bytes);
    const float *expected = router_gradient(&run, &padded), *got = router_gradient(&run, &empty);
    ASSERT_ON_ALL(run.batch.sequences > 0 || test_rank > 0);
    ASSERT_ON_ALL(memcmp(got, expected, run.oracle->elements[MOERT_LAYER_ROUTER] * sizeof *got) ==
                  0);
}

/* Simulates hosts of two ranks each, or of one rank each if there are only two ranks. CPUs use the
 * node engine, GPUs the default engine. */
static int open_context_of_hosts(void **state) {
    set_variable("MOERT_NODE_RANKS", test_ranks > 2 ? "2" : "1");
    if (open_test_context(state) != 0)
        return -1;
    if (moert_device_describe(test_device)->is_cpu)
        set_variable("MOERT_EXCHANGE", "node");
    return 0;
}

int main(int count, char **arguments) {
    if (!mpi_tests_begin(count, arguments))
        return 1;
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(test_gradients_of_a_layer_with_every_feature_agree_with_differences),
        cmocka_unit_test(test_deferred_wgrad_gives_the_same_bits),
        cmocka_unit_test(test_rounded_gradients_of_experts_are_the_float32_ones_rounded),
        cmocka_unit_test(test_experts_that_are_computed_again_give_the_same_bits),
        cmocka_unit_test(test_a_bad_token_fails_in_its_ep_group_and_leaves_the_layer_usable),
    };
    int failed = run_file(__FILE__, open_test_context, close_test_context);
    if (test_ranks > 1)
        failed += run_table("layer between hosts", on_hosts, MOERT_COUNT(on_hosts),
                            open_context_of_hosts, close_test_context);
    return mpi_tests_end(failed);
}
