// run: check=1,2 all=4,2san
/* Low-precision recipes of the layer, compared with its float32 results (test_layer compares those
 * with float64). Also compares the bits of the recipes' GEMMs, and checks that prepacked
 * weights follow changes of the weights. */
#include "context/context.h"
#include "device/device.h"
#include "layer/internal.h"
#include "layer/rounding.h"
#include "quant/backend.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"
#include "support/quant/quantized.h"

enum { TOKENS = 16 * LAYER_TOKENS, ROWS = 70 };

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

/* Limits for a whole layer of normal values. Rounding one operand to E4M3 gives about 32 dB. The
 * noise of both operands of two or more GEMMs adds up to four times that of one operand. */
static const limits layer_limits[] = {
    {MOERT_PRECISION_BF16, 40.0, 40.0, 40.0}, /* 40 dB: an error of 1e-2 of the norm */
    {MOERT_PRECISION_MXFP8, 22.0, 21.0, 21.0},
    {MOERT_PRECISION_FP8, 22.0, 21.0, 21.0},
    {MOERT_PRECISION_NVFP4_PLAIN, 10.0, 9.0, 9.0},
    {MOERT_PRECISION_NVFP4, 10.0, 7.0, 7.0}, /* stochastic rounding doubles the noise */
};
/* The least signal-to-noise ratios of a single GEMM on rounded operands. */
static const limits gemm_limits[] = {
    {MOERT_PRECISION_BF16, 45.0, 45.0, 45.0}, {MOERT_PRECISION_MXFP8, 27.0, 25.0, 24.0},
    {MOERT_PRECISION_FP8, 27.0, 25.0, 24.0},  {MOERT_PRECISION_NVFP4_PLAIN, 16.0, 14.0, 12.0},
    {MOERT_PRECISION_NVFP4, 16.0, 11.0, 9.0},
};

enum { LIMITS = MOERT_COUNT(layer_limits) };

static void check_oracle(const oracle_layer *oracle, const limits rows[LIMITS]) {
    const layer_results exact = compute(oracle, MOERT_PRECISION_F32, 0);
    for (size_t i = 0; i < LIMITS; i++)
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

/* All elements of x are +-1.5, those of W1 +-0.375: 6 times a power of two, which is exact in every
 * format. So y and dW2 have the noise of only one GEMM, and dx and dW1 have little more noise. */
TEST(test_one_rounded_gemm_keeps_its_signal) {
    const moert_layer_options options = layer_form(160, 64);
    oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    for (size_t i = 0; i < TOKENS * options.hidden; i++)
        oracle.x[i] = copysign(1.5, oracle.x[i]);
    double *w1 = oracle.tensor[MOERT_LAYER_W1];
    for (size_t i = 0; i < oracle.elements[MOERT_LAYER_W1]; i++)
        w1[i] = copysign(0.375, w1[i]);
    check_oracle(&oracle, gemm_limits);
}

/* Compares a layer whose shared expert computes in bf16 with one in float32. In both layers the
 * routed experts and the router read float32 rows, so their gradients have the same bits. */
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

/* The results of a row depend only on the row and the weights. If replicas divide an expert's rows,
 * only the blocks along which weight gradients are quantized change, and the numbers of rows by
 * which NVFP4 draws. */
TEST(test_replicas_of_experts_give_the_same_rows) {
    const moert_layer_options options = layer_form(64, 48);
    const oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    for (int p = MOERT_PRECISION_F32; p < MOERT_PRECISION_NVFP4; p++) {
        const layer_results shared = compute(&oracle, (moert_precision)p, 0);
        const layer_results replicated = compute(&oracle, (moert_precision)p, 1);
        ASSERT_ON_ALL(layer_same_rows(&shared, &replicated));
        ASSERT_ON_ALL(!(sqnr(&replicated, &shared, MOERT_LAYER_W1) <= 12.0));
    }
}

/* ---- weights that change ---- */

/* Changes a weight after the third forward, and checks that the results follow. The weight may be
 * in the caller's buffer (`bound`). In every precision, the third forward uses the weight that the
 * second one prepacked. */
static void follow_weights(moert_precision precision, bool bound) {
    moert_layer_options options = layer_form(64, 32);
    options.precision = precision;
    layer_run run = layer_run_of(options);
    moert_buffer *weight = moert_layer_weight(run.layer, MOERT_LAYER_W2);
    const size_t n = run.batch.tokens * options.hidden,
                 floats = moert_buffer_bytes(weight) / sizeof(float);
    if (bound) {
        weight = upload_floats(read_floats(weight, floats), floats);
        ASSERT_OK(moert_layer_bind(run.layer, MOERT_LAYER_W2, weight, NULL));
    }
    float *y[5];
    for (size_t i = 0; i < 5; i++) {
        if (i == 3) {
            ASSERT_OK_ON_ALL(moert_buffer_clear(weight, 0, floats * sizeof(float)));
            moert_layer_weights_changed(run.layer);
        }
        ASSERT_OK(layer_run_forward(&run));
        y[i] = read_floats(run.y, n);
    }
    bool right =
        memcmp(y[1], y[0], n * sizeof(float)) == 0 && memcmp(y[2], y[0], n * sizeof(float)) == 0;
    for (size_t i = 0; i < n; i++)
        right &= y[0][i] != 0.0f && y[3][i] == 0.0f && y[4][i] == 0.0f;
    ASSERT_ON_ALL(right);
}

TEST(test_prepacked_weights_follow_an_announced_change) {
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++)
        for (int bound = 0; bound < 2; bound++)
            follow_weights((moert_precision)p, bound);
}

/* ---- batches in bf16 ---- */

/* Runs the passes of two batches, of which the first asks for bf16 if `bf16_first`, and the second
 * one otherwise. Their backwards come in the same order. */
static void run_both(layer_run run[2], bool bf16_first) {
    for (size_t i = 0; i < 2; i++) {
        run[i].batch.bf16_operands = (i == 0) == bf16_first;
        ASSERT_OK(layer_run_forward(&run[i]));
    }
    for (size_t i = 0; i < 2; i++)
        ASSERT_OK(layer_run_backward(&run[i], i, 2));
}

/* A batch in bf16 has the results of a layer of that precision; a batch beside it, those of the
 * recipe. */
TEST(test_a_batch_may_compute_in_bf16) {
    moert_layer_options options = layer_form(52, 36);
    float *want[2][2]; /* y and dx of bf16 and of the recipe */
    size_t n = 0;
    for (int p = MOERT_PRECISION_MXFP8; p <= MOERT_PRECISION_NVFP4; p++) {
        for (size_t i = 0; i < 2; i++) {
            options.precision = i == 0 ? MOERT_PRECISION_BF16 : (moert_precision)p;
            layer_run run = layer_run_of(options);
            ASSERT_OK(layer_run_step(&run, 0, 1));
            n = run.batch.tokens * options.hidden;
            want[i][0] = read_floats(run.y, n);
            want[i][1] = read_floats(run.dx, n);
        }
        for (int bf16_first = 0; bf16_first < 2; bf16_first++) {
            layer_run run[2] = {layer_run_of(options), layer_run_of(options)};
            run[1].layer = run[0].layer;
            run_both(run, bf16_first);
            for (size_t i = 0; i < 2; i++) {
                const size_t which = (i == 0) == bf16_first ? 0 : 1;
                ASSERT_ON_ALL(
                    memcmp(read_floats(run[i].y, n), want[which][0], n * sizeof(float)) == 0 &&
                    memcmp(read_floats(run[i].dx, n), want[which][1], n * sizeof(float)) == 0);
            }
        }
    }
}

/* ---- dtypes of matrices between the GEMMs ---- */

/* Checks the dtypes of v and dv, with wgrad run immediately or deferred. */
static void check_types(moert_layer_options options, moert_dtype v, moert_dtype dv) {
    for (int deferred = 0; deferred < 2; deferred++) {
        options.deferred_wgrad = deferred;
        const moert_layer *layer = open_layer(open_mesh(0), &options);
        ASSERT_ON_ALL(layer->choices.v == v && layer->choices.dv == (deferred ? v : dv));
    }
}

TEST(test_v_is_kept_in_bf16_where_both_gemms_round) {
    const moert_device *device = moert_context_device(test_context);
    const bool rounds = strcmp(moert_backend_name(device), "nvidia") == 0;
    const moert_dtype f32 = MOERT_DTYPE_F32, bf16 = MOERT_DTYPE_BF16;
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++) {
        const moert_dtype operand = p == MOERT_PRECISION_F32 ? f32 : bf16;
        /* rounding to a format needs the buffer of another dv */
        const bool own = p <= MOERT_PRECISION_BF16;
        moert_layer_options options = layer_form(64, 32), odd = layer_form(64, 36);
        options.precision = odd.precision = (moert_precision)p;
        check_types(options, rounds ? operand : f32, own || rounds ? operand : f32);
        check_types(odd, f32, own ? operand : f32);
        options.expert_biases = true;
        check_types(options, f32, f32);
    }
}

/* ---- GEMMs against float32 GEMMs of rounded operands ---- */

enum { MOST_EXPERTS = 8 };
/* streams and rows of the random bits of each expert, as in a plan */
static const uint32_t draws[MOST_EXPERTS][2] = {{0, 3}, {8, 100}, {4, 0}, {12, 7}, {20, 1}};

/* Returns a matrix rounded along `axis` and converted back to float32. */
static moert_buffer *rounded(uint32_t rounding, moert_axis axis, const matrix *m) {
    const size_t n = m->rows * m->columns;
    float *values = test_alloc(n * sizeof *values);
    memcpy(values, m->x, n * sizeof *values);
    if (rounding == MOERT_ROUND_BF16) {
        round_all(values, n, MOERT_DTYPE_BF16);
        return upload_floats(values, n);
    }
    moert_buffer *result = upload_as(values, n, MOERT_DTYPE_BF16);
    const bool tiles = rounding & MOERT_ROUND_TILES, row = axis == MOERT_AXIS_ROW || tiles;
    const moert_fake_quantize op = {
        .how = HOW(.format = (moert_format)((rounding & MOERT_ROUND_FORMAT) - 1),
                   .axis = tiles ? MOERT_AXIS_TILE : MOERT_AXIS_ROW,
                   .rounding = rounding & MOERT_ROUND_STOCHASTIC ? MOERT_ROUNDING_STOCHASTIC
                                                                 : MOERT_ROUNDING_NEAREST,
                   .hadamard = rounding & MOERT_ROUND_HADAMARD),
        .groups = {upload(m->ends, m->groups * sizeof *m->ends), m->groups, m->rows},
        .draws = upload(draws, sizeof draws),
        .columns = m->columns,
        .x = upload_floats(m->x, n),
        .x_stride = m->columns,
        .along = row ? result : NULL,
        .down = row ? NULL : result};
    ASSERT_OK(moert_reference_fake_quantize(&op));
    download_as(result, values, n, MOERT_DTYPE_BF16);
    return upload_floats(values, n);
}

/* Runs a GEMM of the first projection on rounded operands. */
static moert_status run_rounded(moert_pass *pass, const moert_gemm *plain) {
    moert_gemm gemm = *plain;
    if (gemm.kind != MOERT_GEMM_FORWARD)
        gemm.y.type = pass->layer->choices.dv;
    if (gemm.kind != MOERT_GEMM_DGRAD)
        MOERT_TRY(moert_round_rows(pass, &gemm, BLOCK_EXPERT_IN, false, &gemm.x));
    if (gemm.kind != MOERT_GEMM_FORWARD)
        MOERT_TRY(moert_round_rows(pass, &gemm, BLOCK_EXPERT_IN, true, &gemm.y));
    if (gemm.kind != MOERT_GEMM_WGRAD)
        MOERT_TRY(moert_round_take_weight(pass, BLOCK_EXPERT_IN, &gemm));
    return moert_gemm_run(&gemm);
}

/* Random values that the layer's dtype of dv holds. */
static float *dv_floats(const moert_layer *layer, size_t n) {
    float *values = random_floats(n, 2.0f, 6);
    if (layer->choices.dv != MOERT_DTYPE_F32)
        round_all(values, n, layer->choices.dv);
    return values;
}

/* Checks the three GEMMs of the first projection, with the GLU fused into the forward GEMM. Every
 * rank uses the same rows x and dv. */
static void check_gemms(moert_layer *layer) {
    const size_t h = layer->options.hidden, n = 2 * layer->options.intermediate,
                 experts = layer->local_experts;
    uint32_t ends[MOST_EXPERTS], weight_ends[MOST_EXPERTS], table[3 * MOST_EXPERTS];
    for (size_t e = 0; e < experts; e++) {
        ends[e] = (uint32_t)(experts > 1 ? e * (ROWS - 3) / (experts - 1) : ROWS - 3);
        weight_ends[e] = (uint32_t)((e + 1) * n);
    }
    memcpy(table, ends, experts * sizeof *ends);
    memcpy(table + experts, draws, 2 * experts * sizeof *draws[0]);
    moert_buffer *weight = moert_layer_weight(layer, MOERT_LAYER_W1),
                 *dw = moert_layer_gradient(layer, MOERT_LAYER_W1);
    const matrix x = {random_floats(ROWS * h, 2.0f, 5), ROWS, h, ends, experts},
                 y = {dv_floats(layer, ROWS * n), ROWS, n, ends, experts},
                 w = {read_floats(weight, experts * n * h), experts * n, h, weight_ends, experts};
    moert_buffer *got_x = unset_floats(ROWS * h), *want_x = unset_floats(ROWS * h),
                 *got_y = unset_floats(ROWS * n), *want_y = unset_floats(ROWS * n),
                 *got_h = unset_floats(ROWS * n / 2), *want_dw = unset_floats(experts * n * h),
                 *all_x = upload_floats(x.x, ROWS * h),
                 *dv = upload_as(y.x, ROWS * n, layer->choices.dv);
    const moert_axis along = MOERT_AXIS_ROW, across = MOERT_AXIS_COLUMN;
    const moert_recipe *r = &layer->choices.recipe;
    const moert_gemm plain = {
        .groups = {upload(table, sizeof table), experts, ROWS}, .n = n, .k = h};
    moert_gemm gemm = plain;
#define GEMM(which, a, b, c)                                                                       \
    (gemm = plain, gemm.kind = MOERT_GEMM_##which, gemm.x.buffer = (a), gemm.weight.buffer = (b),  \
     gemm.y.buffer = (c), &gemm)
    ASSERT_OK_ON_ALL(moert_gemm_run(
        GEMM(FORWARD, rounded(r->x, along, &x), rounded(r->weight, along, &w), want_y)));
    ASSERT_OK_ON_ALL(moert_gemm_run(
        GEMM(DGRAD, want_x, rounded(r->weight, across, &w), rounded(r->dy, along, &y))));
    ASSERT_OK_ON_ALL(moert_gemm_run(
        GEMM(WGRAD, rounded(r->wgrad_x, across, &x), want_dw, rounded(r->wgrad_dy, across, &y))));
    moert_plan rows = {.rows = ROWS};
    moert_exchange_plan plan = {.plan = &rows};
    moert_pass pass = {.layer = layer, .plan = &plan};
    for (size_t i = 0; i < 2; i++) {
        moert_gemm first = *GEMM(FORWARD, all_x, weight, got_y);
        first.glu = (moert_glu){.gated = MOERT_GATED, .form = layer->options.glu, .h = got_h};
        ASSERT_OK_ON_ALL(run_rounded(&pass, &first));
        ASSERT_OK_ON_ALL(run_rounded(&pass, GEMM(DGRAD, got_x, weight, dv)));
        ASSERT_OK_ON_ALL(run_rounded(&pass, GEMM(WGRAD, all_x, dw, dv)));
        ASSERT_ON_ALL(same_floats(got_y, want_y, ROWS * n) &&
                      same_floats(got_x, want_x, ROWS * h) &&
                      same_floats(dw, want_dw, experts * n * h));
    }
#undef GEMM
}

/* ---- FP8 tensor cores ---- */

/* Runs a layer with two micro-batches, with FP8 operands only if `fp8` is set. */
static layer_results compute_fp8(const oracle_layer *oracle, bool fp8) {
    layer_run run = layer_run_open(oracle, (layer_setup){0});
    ASSERT_ON_ALL(run.layer->choices.fp8 == has_hopper("values in bf16"));
    run.layer->choices.fp8 &= fp8;
    for (size_t i = 0; i < 2; i++)
        ASSERT_OK(layer_run_step(&run, i, 2));
    return layer_run_collect(&run);
}

/* FP8 operands have the values of the bf16 operands. Sums and v are rounded differently, which
 * changes some of the operands of later GEMMs by one step of E4M3. */
TEST(test_gemms_of_fp8_operands_stay_near_gemms_of_their_values) {
    static const int near[] = {LAYER_Y, LAYER_DX, MOERT_LAYER_W1, MOERT_LAYER_W2};
    moert_layer_options options = layer_form(256, 128);
    options.precision = MOERT_PRECISION_FP8;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        options.dispatch = bf16 ? MOERT_DISPATCH_BF16 : MOERT_DISPATCH_F32;
        options.combine = bf16 ? MOERT_COMBINE_BF16 : MOERT_COMBINE_F32;
        options.recompute_experts = bf16;
        const oracle_layer oracle = oracle_layer_create(&options, TOKENS);
        const layer_results want = compute_fp8(&oracle, false), got = compute_fp8(&oracle, true);
        for (size_t i = 0; i < MOERT_COUNT(near); i++) {
            const double ratio = sqnr(&got, &want, near[i]);
            if (test_rank == 0)
                print_message("# result %d: %.1f dB\n", near[i], ratio);
            ASSERT_ON_ALL(!(ratio < 36.0));
        }
    }
}

/* Recipes whose wgrads, or whose operands x, are in bf16. */
static const moert_recipe mixed[] = {
    {.x = MOERT_ROUND_TO(MOERT_FORMAT_MXFP8_E4M3),
     .weight = MOERT_ROUND_TO(MOERT_FORMAT_MXFP8_E4M3) | MOERT_ROUND_TILES,
     .dy = MOERT_ROUND_TO(MOERT_FORMAT_MXFP8_E5M2)},
    {.dy = MOERT_ROUND_TO(MOERT_FORMAT_MXFP4) | MOERT_ROUND_STOCHASTIC,
     .wgrad_dy = MOERT_ROUND_TO(MOERT_FORMAT_MXFP8_E4M3)}};

TEST(test_gemms_have_the_bits_of_float32_gemms_of_rounded_operands) {
    const moert_layer_options options = layer_form(52, 36);
    oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    if (moert_device_sums_in_tiles(moert_device_describe(moert_context_device(test_context))))
        set_variable("MOERT_BF16", "widened"); /* disables AMX, because AMX sums in another order */
    for (int p = MOERT_PRECISION_BF16; p <= MOERT_PRECISION_NVFP4; p++) {
        oracle.options.precision = (moert_precision)p;
        check_gemms(layer_run_open(&oracle, (layer_setup){0}).layer);
    }
    oracle.options.precision = MOERT_PRECISION_RECIPE;
    for (size_t i = 0; i < MOERT_COUNT(mixed); i++) {
        oracle.options.recipe = mixed[i];
        check_gemms(layer_run_open(&oracle, (layer_setup){0}).layer);
    }
    set_variable("MOERT_BF16", NULL);
}

MPI_TESTS(open_test_context, close_test_context)
