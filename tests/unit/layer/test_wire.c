// run: check=1,2 all=3,4,2san
/* Layers that dispatch MXFP8 or bf16. One rank and several ranks give the same bits, with every
 * engine, in every precision and with skewed routing. Other tests: rows that both the dispatch and
 * the experts round; the bytes sent; results in bf16. test_layer compares values with float64. */
#include "context/context.h"
#include "device/device.h"
#include "exchange/internal.h"
#include "layer/mesh.h"
#include "moert/quantize.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

/* a row is no multiple of 32 elements, and its 87 bytes as MXFP8 are no multiple of 4 */
enum { TOKENS = 4 * LAYER_TOKENS, HIDDEN = 84, TOPK = 2 };

static moert_layer_options form(moert_precision precision, moert_dispatch dispatch) {
    moert_layer_options options = layer_form(HIDDEN, 36);
    options.precision = precision;
    options.dispatch = dispatch;
    return options;
}

static moert_context *alone; /* of one rank */

static int open_contexts(void **state) {
    return open_test_context(state) != 0 ||
           moert_context_create(MPI_COMM_SELF, NULL, &alone) != MOERT_OK;
}

static int close_contexts(void **state) {
    moert_context_destroy(alone);
    return close_test_context(state);
}

/* The engines, and whether the ranks and devices of this job can use them. */
static const char *const engines[] = {"local", "window", "node", "staged"};
enum { LOCAL, WINDOW, NODE, STAGED, ENGINES };

static bool works(size_t engine) {
    return engine == LOCAL    ? test_ranks == 1
           : engine != STAGED ? test_ranks > 1 && moert_device_describe(test_device)->is_cpu
                              : true;
}

static size_t first_engine(void) {
    size_t engine = LOCAL;
    while (!works(engine))
        engine++;
    return engine;
}

/* Runs the oracle's layer with an engine. If how.context is NULL, the layer runs on all ranks.
 * Unless `bytes` is NULL, *bytes becomes the number of bytes that the dispatches move. */
static layer_results compute(const oracle_layer *oracle, layer_setup how, size_t engine,
                             uint64_t *bytes) {
    set_variable("MOERT_EXCHANGE", engines[engine]);
    set_variable("MOERT_NODE_RANKS", engine != NODE ? NULL : test_ranks > 2 ? "2" : "1");
    layer_run run = layer_run_open(oracle, how);
    ASSERT_OK(layer_run_step(&run, 0, 1));
    assert_string_equal(moert_mesh_engine(run.mesh), engines[engine]);
    if (bytes != NULL)
        *bytes = run.mesh->exchange->dispatched_bytes;
    return layer_run_collect(&run);
}

/* A skewed routing. The router's biases skew the choice of experts; NULL: the oracle's biases. */
typedef struct skew {
    const double *bias;
    size_t busy; /* the number of experts with tokens; 0: any */
} skew;

static size_t busy_experts(const oracle_layer *oracle, const layer_results *results) {
    const size_t experts = oracle->options.router.experts,
                 n = results->count[MOERT_LAYER_W1] / experts;
    size_t busy = 0;
    for (size_t e = 0; e < experts; e++) {
        size_t i = e * n;
        while (i < (e + 1) * n && results->value[MOERT_LAYER_W1][i] == 0.0f)
            i++;
        busy += i < (e + 1) * n;
    }
    return busy;
}

/* Compares all engines with a run on one rank. */
static void check_engines(const moert_layer_options *options, skew s) {
    const size_t before = owned_count();
    oracle_layer oracle = oracle_layer_create(options, TOKENS);
    for (size_t e = 0; s.bias != NULL && e < options->router.experts; e++)
        oracle.tensor[MOERT_LAYER_ROUTER_BIAS][e] = s.bias[e];
    const layer_results want = compute(&oracle, (layer_setup){.context = alone}, LOCAL, NULL);
    ASSERT_ON_ALL(s.busy == 0 || busy_experts(&oracle, &want) == s.busy);
    for (size_t e = 0; e < ENGINES; e++) {
        if (!works(e))
            continue;
        const layer_results got = compute(&oracle, (layer_setup){.deferred = e == STAGED}, e, NULL);
        ASSERT_ON_ALL(layer_same(&got, &want));
    }
    release_since(before);
}

TEST(test_ranks_and_engines_give_the_same_bits_in_every_precision) {
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++) {
        moert_layer_options options = form((moert_precision)p, MOERT_DISPATCH_BF16);
        check_engines(&options, (skew){NULL, 0});
        options.shared_intermediate = 7;
        options.expert_biases = options.router_bias = true;
        check_engines(&options, (skew){NULL, 0});
        options.dispatch = MOERT_DISPATCH_MXFP8;
        check_engines(&options, (skew){NULL, 0});
        options.dispatch = MOERT_DISPATCH_BF16;
        options.combine = MOERT_COMBINE_BF16;
        check_engines(&options, (skew){NULL, 0});
    }
}

/* Three skews: Zipf's law; most tokens choose one expert; all tokens choose one expert. */
TEST(test_skewed_routing_gives_the_same_bits) {
    static const double zipf[] = {0.0, -0.69, -1.1, -1.39, -1.61}, one[] = {1.0, -60, 0, 0, 0},
                        all[] = {-60.0, -60.0, -60.0, -60.0, 60.0};
    static const struct {
        skew s;
        size_t topk;
    } cases[] = {{{zipf, 0}, 2}, {{one, 4}, 2}, {{all, 1}, 1}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        moert_layer_options options = form(MOERT_PRECISION_F32, MOERT_DISPATCH_F32);
        options.router_bias = true;
        options.router.topk = cases[i].topk;
        check_engines(&options, cases[i].s);
    }
}

/* Runs a layer that dispatches float32, and one with the same values that dispatches in `other`. */
static void compute_both(oracle_layer *oracle, moert_dispatch other, layer_results results[2]) {
    for (size_t i = 0; i < 2; i++) {
        oracle->options.dispatch = i == 0 ? MOERT_DISPATCH_F32 : other;
        results[i] = compute(oracle, (layer_setup){0}, first_engine(), NULL);
    }
}

TEST(test_rows_that_are_already_rounded_lose_nothing) {
    for (int i = 0; i <= 2 * MOERT_PRECISION_NVFP4 + 1; i++) {
        const moert_dispatch dispatch = i % 2 == 0 ? MOERT_DISPATCH_MXFP8 : MOERT_DISPATCH_BF16;
        const moert_layer_options options = form((moert_precision)(i / 2), dispatch);
        oracle_layer oracle = oracle_layer_create(&options, TOKENS);
        layer_results results[2];
        memcpy(oracle.x, oracle.sent_x, TOKENS * HIDDEN * sizeof *oracle.x);
        memcpy(oracle.dy, oracle.sent_dy, TOKENS * HIDDEN * sizeof *oracle.dy);
        compute_both(&oracle, dispatch, results);
        ASSERT_ON_ALL(layer_same(&results[0], &results[1]));
    }
}

/* Raises every magnitude to at least 2^-8, so that no element is tiny compared with its
 * neighbours. */
static void lift(double *rows) {
    for (size_t i = 0; i < TOKENS * HIDDEN; i++)
        rows[i] = copysign(fmax(fabs(rows[i]), 0x1p-8), rows[i]);
}

/* x[:,0] is multiplied by `scale`. With precision mxfp8, forward and dgrad round the rows along the
 * same blocks as the dispatch. wgrad rounds along other blocks, but E4M3 keeps four bits of every
 * element above 2^-14 of its block's largest, whatever the block. Rounding a row to bf16 gives the
 * same bits before and after the dispatch. */
TEST(test_a_dispatch_that_rounds_like_the_experts_changes_only_tiny_elements_of_wgrad) {
    static const struct {
        moert_precision precision;
        moert_dispatch other;
        double scale;
        bool same_rows, same_gradients;
    } rows[] = {
        {MOERT_PRECISION_MXFP8, MOERT_DISPATCH_MXFP8, 1.0, true, true},
        {MOERT_PRECISION_MXFP8, MOERT_DISPATCH_MXFP8, 0x1p-17, true, false},
        {MOERT_PRECISION_F32, MOERT_DISPATCH_MXFP8, 1.0, false, false},
        {MOERT_PRECISION_BF16, MOERT_DISPATCH_BF16, 0x1p-17, true, true},
        {MOERT_PRECISION_F32, MOERT_DISPATCH_BF16, 1.0, false, false},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_layer_options options = form(rows[i].precision, MOERT_DISPATCH_F32);
        oracle_layer oracle = oracle_layer_create(&options, TOKENS);
        layer_results results[2];
        lift(oracle.x);
        lift(oracle.dy);
        for (size_t t = 0; t < TOKENS; t++)
            oracle.x[t * HIDDEN] *= rows[i].scale;
        compute_both(&oracle, rows[i].other, results);
        ASSERT_ON_ALL(layer_same_rows(&results[0], &results[1]) == rows[i].same_rows);
        ASSERT_ON_ALL(layer_same_gradients(&results[0], &results[1]) == rows[i].same_gradients);
    }
}

/* With one expert per token, y is the expert's row; sending results in bf16 rounds this row. dx
 * also contains the router's part. Weight gradients do not change. */
TEST(test_results_in_bf16_are_rounded_once) {
    layer_results results[2];
    size_t wrong = 0, rounded = 0;
    moert_layer_options options = form(MOERT_PRECISION_F32, MOERT_DISPATCH_F32);
    float largest = 0.0f;
    options.router.topk = 1;
    oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    for (int c = MOERT_COMBINE_F32; c <= MOERT_COMBINE_BF16; c++) {
        oracle.options.combine = (moert_combine)c;
        results[c] = compute(&oracle, (layer_setup){0}, first_engine(), NULL);
    }
    for (size_t i = 0; i < TOKENS * HIDDEN; i++)
        largest = fmaxf(largest, fabsf(results[0].value[LAYER_DX][i]));
    for (size_t i = 0; i < TOKENS * HIDDEN; i++) {
        const float y = results[0].value[LAYER_Y][i], dx = results[0].value[LAYER_DX][i];
        wrong += results[1].value[LAYER_Y][i] != round_to(MOERT_DTYPE_BF16, y);
        wrong += !(fabsf(results[1].value[LAYER_DX][i] - dx) <= 0x1p-8f * largest);
        rounded += results[1].value[LAYER_Y][i] != y && results[1].value[LAYER_DX][i] != dx;
    }
    const bool same = layer_same_gradients(&results[0], &results[1]);
    ASSERT_ON_ALL(wrong == 0 && rounded > TOKENS * HIDDEN / 2 && same);
}

/* A row is dispatched in forward and in backward, its weight only in forward. Rows of windows are
 * multiples of 64 bytes, rows of messages multiples of 4. */
TEST(test_dispatches_move_the_bytes_of_their_format) {
    const size_t payload = HIDDEN + moert_ceil_div(HIDDEN, 32), slot = sizeof(float);
    const size_t row[] = {HIDDEN * sizeof(float), moert_round_up(payload, sizeof(float)),
                          HIDDEN * sizeof(uint16_t)};
    for (size_t e = 0; e < ENGINES; e++) {
        for (int d = MOERT_DISPATCH_F32; d <= MOERT_DISPATCH_BF16 && works(e); d++) {
            const moert_layer_options options = form(MOERT_PRECISION_F32, (moert_dispatch)d);
            const size_t unit = e == STAGED ? sizeof(float) : 64;
            const oracle_layer oracle = oracle_layer_create(&options, TOKENS);
            uint64_t mine;
            compute(&oracle, (layer_setup){0}, e, &mine);
            double sum = (double)mine;
            sum_over_ranks(&sum, 1);
            ASSERT_ON_ALL(
                sum == (double)(TOKENS * TOPK *
                                (2 * moert_round_up(row[d], unit) + moert_round_up(slot, unit))));
        }
    }
}

/* Returns the rows in bf16, as a caller may already have them; with `instead`, returns other
 * values. */
static moert_buffer *in_bf16(const moert_buffer *rows, size_t n, bool instead) {
    moert_buffer *values = test_buffer(n * sizeof(uint16_t));
    ASSERT_OK(moert_cast_run(
        &(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16, n, rows, values}));
    if (instead)
        ASSERT_OK(moert_buffer_clear(values, 0, n * sizeof(uint16_t)));
    return values;
}

/* A bf16 dispatch reads the caller's bf16 values instead of rounding the rows. */
TEST(test_rows_that_the_caller_has_in_bf16_are_dispatched) {
    layer_run run = layer_run_of(form(MOERT_PRECISION_BF16, MOERT_DISPATCH_BF16));
    const size_t n = run.batch.tokens * HIDDEN;
    float *y[3], *dx[3];
    for (int given = 0; given < 3; given++) {
        moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
        run.batch.bf16 = given > 0 ? in_bf16(run.x, n, given == 2) : NULL;
        losses.dy_bf16 = given > 0 ? in_bf16(run.dy, n, given == 2) : NULL;
        ASSERT_OK_ON_ALL(layer_run_forward(&run));
        ASSERT_OK_ON_ALL(moert_pass_backward(run.pass, run.dy, &losses, run.dx));
        ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
        y[given] = read_floats(run.y, n);
        dx[given] = read_floats(run.dx, n);
    }
    const size_t bytes = n * sizeof(float);
    ASSERT_ON_ALL(memcmp(y[0], y[1], bytes) == 0 && memcmp(dx[0], dx[1], bytes) == 0);
    ASSERT_ON_ALL(n == 0 || (memcmp(y[0], y[2], bytes) != 0 && memcmp(dx[0], dx[2], bytes) != 0));
}

MPI_TESTS(open_contexts, close_contexts)
