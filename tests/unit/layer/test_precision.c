// run: check=1,2 all=4,2san
/* Low-precision recipes of the layer, compared with its float32 results. test_layer compares these
 * with float64. */
#include "base/memory.h"
#include "context/context.h"
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

enum { TOKENS = 16 * LAYER_TOKENS };

/* Runs a layer with the oracle's values in a precision, with `ep` ranks per set of experts (0 =
 * all). */
static layer_results compute(const oracle_layer *oracle, moert_precision precision, size_t ep) {
    oracle_layer changed = *oracle;
    changed.options.precision = precision;
    return layer_compute(&changed, (layer_setup){.ep = ep}, 1);
}

/* 20 log10 of the norm of `want`, relative to the norm of the difference. */
static double sqnr(const layer_results *got, const layer_results *want, int which) {
    return -20.0 *
           log10(relative_difference(want->value[which], got->value[which], want->count[which]));
}

typedef struct limits {
    moert_precision precision;
    double y, dx, dw; /* least signal-to-noise ratios in dB */
} limits;

/* Compares a layer in a precision with the exact results; every rank has the results of all
 * ranks. */
static void check_near(const oracle_layer *oracle, const layer_results *exact,
                       const limits *limit) {
    const layer_results got = compute(oracle, limit->precision, 0);
    const double y = sqnr(&got, exact, LAYER_Y), dx = sqnr(&got, exact, LAYER_DX),
                 w1 = sqnr(&got, exact, MOERT_LAYER_W1), w2 = sqnr(&got, exact, MOERT_LAYER_W2);
    if (test_rank == 0)
        print_message("# precision %d: y %.1f dx %.1f dW1 %.1f dW2 %.1f dB\n",
                      (int)limit->precision, y, dx, w1, w2);
    ASSERT_ON_ALL(y >= limit->y && y < 100.0);
    ASSERT_ON_ALL(dx >= limit->dx && w1 >= limit->dw && w2 >= limit->dw);
}

/* A whole layer of normal values: the noise of both operands of two or more GEMMs adds up to four
 * times that of one operand, which is about 32 dB in E4M3. */
static const limits layer_limits[] = {
    {MOERT_PRECISION_BF16, 40.0, 40.0, 40.0}, /* 40 dB: an error of 1e-2 of the norm */
    {MOERT_PRECISION_MXFP8, 22.0, 21.0, 21.0},
    {MOERT_PRECISION_NVFP4, 10.0, 9.0, 9.0},
};
/* The least signal-to-noise ratio of one GEMM on rounded operands. */
static const limits gemm_limits[] = {
    {MOERT_PRECISION_BF16, 45.0, 45.0, 45.0},
    {MOERT_PRECISION_MXFP8, 27.0, 25.0, 24.0},
    {MOERT_PRECISION_NVFP4, 16.0, 14.0, 12.0},
};

static void check_oracle(const oracle_layer *oracle, const limits rows[3]) {
    const layer_results exact = compute(oracle, MOERT_PRECISION_F32, 0);
    for (size_t i = 0; i < 3; i++)
        check_near(oracle, &exact, &rows[i]);
}

/* The last layer has sizes that are multiples neither of a block nor of a window's alignment,
 * biases, and interleaved gates. */
TEST(test_recipes_stay_near_float32) {
    moert_layer_options forms[] = {layer_form(128, 64), layer_form(192, 160), layer_form(52, 36)};
    forms[2].shared_intermediate = 7;
    forms[2].router_bias = forms[2].expert_biases = true;
    forms[2].glu.interleaved = true;
    for (size_t i = 0; i < MOERT_COUNT(forms); i++) {
        const oracle_layer oracle = oracle_layer_create(&forms[i], TOKENS);
        check_oracle(&oracle, layer_limits);
    }
}

/* All elements of x and W1 are +-1, which is exact in every format. So y and dW2 have the noise of
 * only one GEMM, and dx and dW1 have little more. */
TEST(test_one_rounded_gemm_keeps_its_signal) {
    const moert_layer_options options = layer_form(160, 64);
    oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    for (size_t i = 0; i < TOKENS * options.hidden; i++)
        oracle.x[i] = copysign(1.0, oracle.x[i]);
    double *w1 = oracle.tensor[MOERT_LAYER_W1];
    for (size_t i = 0; i < oracle.elements[MOERT_LAYER_W1]; i++)
        w1[i] = copysign(0.25, w1[i]);
    check_oracle(&oracle, gemm_limits);
}

/* Compares layers whose shared expert computes in bf16 and in float32. Routed experts and router
 * read float32 rows in both, so their gradients have the same bits. */
static void check_shared(const moert_layer_options *options) {
    oracle_layer oracle = oracle_layer_create(options, TOKENS);
    const layer_results exact = compute(&oracle, MOERT_PRECISION_F32, 0);
    oracle.options.dense = MOERT_PRECISION_BF16;
    layer_results got = compute(&oracle, MOERT_PRECISION_F32, 0);
    static const int near[] = {LAYER_Y, LAYER_DX, MOERT_LAYER_SHARED_W1, MOERT_LAYER_SHARED_W2};
    for (size_t i = 0; i < MOERT_COUNT(near); i++) {
        const double ratio = sqnr(&got, &exact, near[i]);
        ASSERT_ON_ALL(ratio >= 40.0 && ratio < 100.0);
        got.value[near[i]] = NULL;
    }
    ASSERT_ON_ALL(layer_same(&got, &exact));
}

/* The test uses sizes that tensor cores do not support, and sizes that they support. */
TEST(test_only_a_shared_expert_in_bf16_differs_slightly_from_float32) {
    moert_layer_options odd = layer_form(52, 36), even = layer_form(64, 32);
    odd.shared_intermediate = 7;
    even.shared_intermediate = 24;
    check_shared(&odd);
    check_shared(&even);
}

/* The results of a row depend only on the row, the weights and, in NVFP4, an amax over all ranks.
 * If replicas divide an expert's rows, only the blocks of weight gradients change. */
TEST(test_replicas_of_experts_give_the_same_rows) {
    const moert_layer_options options = layer_form(64, 48);
    const oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++) {
        const layer_results shared = compute(&oracle, (moert_precision)p, 0);
        const layer_results replicated = compute(&oracle, (moert_precision)p, 1);
        ASSERT_ON_ALL(layer_same_rows(&shared, &replicated));
        ASSERT_ON_ALL(!(sqnr(&replicated, &shared, MOERT_LAYER_W1) <= 12.0));
    }
}

/* ---- failures of one rank, on every division of the ranks into EP groups ---- */

typedef struct breakage {
    /* backward: the backward fails, not the forward; late: it fails after the first gather of an
     * amax */
    bool backward, late;
    moert_status status;
} breakage;

/* Makes a pass fail on rank 0, by sizes that no device can hold or by a weight whose buffer is too
 * small. A second call restores the layer. */
static void break_or_mend(moert_layer *layer, const breakage *b, moert_buffer **small) {
    const int block = b->backward ? BLOCK_EXPERT_OUT : BLOCK_EXPERT_IN;
    const moert_prepacked_use use = moert_prepacked_use_of(
        &(moert_gemm){.kind = b->backward ? MOERT_GEMM_DGRAD : MOERT_GEMM_FORWARD,
                      .gated = true,
                      .glu.form = layer->options.glu});
    /* the rounded weight, which exists unless the weight is prepacked */
    moert_buffer **copy = &layer->rounded[block].weight[use];
    moert_buffer **weight =
        *copy != NULL ? copy : &layer->block[block]->tensor[EXPERT_WEIGHT].weight;
    moert_buffer *kept = *weight;
    if (test_rank != 0)
        return;
    if (b->late) {
        *weight = *small;
        *small = kept;
    } else {
        layer->options.intermediate ^= (size_t)1 << 40;
    }
}

static void fail_and_recover(layer_run *run, const breakage *b) {
    moert_layer *layer = run->layer;
    moert_buffer *small = test_buffer(4);
    if (b->backward)
        ASSERT_OK(layer_run_forward(run));
    break_or_mend(layer, b, &small);
    const moert_status status = b->backward ? moert_pass_backward(run->pass, run->dy, NULL, run->dx)
                                            : layer_run_forward(run);
    break_or_mend(layer, b, &small);
    ASSERT_ON_ALL(status == b->status);
    ASSERT_OK(layer_run_step(run, 0, 1));
}

TEST(test_a_failure_between_gathers_fails_on_all_ranks) {
    const breakage breakages[] = {{false, false, MOERT_ERROR_MEMORY},
                                  {false, true, MOERT_ERROR_USAGE},
                                  {true, false, MOERT_ERROR_MEMORY},
                                  {true, true, MOERT_ERROR_USAGE}};
    moert_layer_options options = layer_form(64, 32);
    options.precision = MOERT_PRECISION_NVFP4;
    const oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    for (size_t ep = 1; ep <= test_ranks; ep *= 2) {
        layer_run run = layer_run_open(&oracle, (layer_setup){.ep = ep});
        ASSERT_OK(layer_run_step(&run, 0, 1));
        for (size_t i = 0; i < MOERT_COUNT(breakages); i++)
            fail_and_recover(&run, &breakages[i]);
    }
}

MPI_TESTS(open_test_context, close_test_context)
