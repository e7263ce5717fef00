// run: check=1,2 all=4,2san
/* The GEMMs of the layer's low-precision recipes: their bits, and that they follow changes of the
 * weights. */
#include "context/context.h"
#include "layer/precision.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"
#include "support/quant/quantized.h"

enum { TOKENS = 16 * LAYER_TOKENS };

/* ---- weights that change ---- */

/* Changes a weight, which may be the caller's, after its third forward. By then, in every precision,
 * the weight that the second forward prepacked is in use. */
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

/* ---- dtypes of matrices between the GEMMs ---- */

/* Checks the dtypes of v and dv, with wgrad run immediately or deferred. */
static void check_types(moert_layer_options options, moert_dtype v, moert_dtype dv) {
    for (int deferred = 0; deferred < 2; deferred++) {
        options.deferred_wgrad = deferred;
        const moert_layer *layer = open_layer(open_mesh(0), &options);
        ASSERT_ON_ALL(moert_precision_v_type(layer) == v &&
                      moert_precision_dv_type(layer) == (deferred ? v : dv));
    }
}

TEST(test_v_is_kept_in_bf16_where_both_gemms_round) {
    const moert_device *device = moert_context_device(test_context);
    const bool rounds = strcmp(moert_backend_name(device), "nvidia") == 0;
    const moert_dtype f32 = MOERT_DTYPE_F32, bf16 = MOERT_DTYPE_BF16;
    for (int p = MOERT_PRECISION_F32; p <= MOERT_PRECISION_NVFP4; p++) {
        const moert_dtype operand = p == MOERT_PRECISION_BF16 ? bf16 : f32;
        moert_layer_options options = layer_form(64, 32), odd = layer_form(64, 36);
        options.precision = odd.precision = (moert_precision)p;
        check_types(options, rounds ? operand : f32, operand);
        check_types(odd, f32, operand);
        options.expert_biases = true;
        check_types(options, f32, f32);
    }
}

/* ---- GEMMs against float32 GEMMs of rounded operands ---- */

enum { ROWS = 70 };

/* Returns a matrix, rounded, as float32. NVFP4 rounds by the amax of each group if `group_scales`,
 * else by the amax of all groups. */
static moert_buffer *rounded(moert_precision precision, moert_axis axis, const matrix *m,
                             bool group_scales) {
    const size_t n = m->rows * m->columns;
    const bool nvfp4 = precision == MOERT_PRECISION_NVFP4;
    const moert_quantizer how = HOW(.format = nvfp4 ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3,
                                    .axis = axis, .group_scales = nvfp4 && group_scales);
    if (precision != MOERT_PRECISION_BF16)
        return upload_floats(quantize("portable", &how, m).back, n);
    float *values = test_alloc(n * sizeof *values);
    memcpy(values, m->x, n * sizeof *values);
    round_all(values, n, MOERT_DTYPE_BF16);
    return upload_floats(values, n);
}

/* Checks the three GEMMs of the first projection, with the GLU fused into the forward GEMM. Every
 * rank uses the same rows x and dv. */
static void check_gemms(moert_layer *layer) {
    const size_t h = layer->options.hidden, n = 2 * layer->options.intermediate,
                 experts = layer->local_experts;
    uint32_t ends[8], weight_ends[8];
    for (size_t e = 0; e < experts; e++) {
        ends[e] = (uint32_t)(experts > 1 ? e * (ROWS - 3) / (experts - 1) : ROWS - 3);
        weight_ends[e] = (uint32_t)((e + 1) * n);
    }
    moert_buffer *weight = moert_layer_weight(layer, MOERT_LAYER_W1),
                 *dw = moert_layer_gradient(layer, MOERT_LAYER_W1);
    const matrix x = {random_floats(ROWS * h, 2.0f, 5), ROWS, h, ends, experts},
                 y = {random_floats(ROWS * n, 2.0f, 6), ROWS, n, ends, experts},
                 w = {read_floats(weight, experts * n * h), experts * n, h, weight_ends, experts};
    moert_buffer *got_x = unset_floats(ROWS * h), *want_x = unset_floats(ROWS * h),
                 *got_y = unset_floats(ROWS * n), *want_y = unset_floats(ROWS * n),
                 *got_h = unset_floats(ROWS * n / 2), *want_dw = unset_floats(experts * n * h),
                 *all_x = upload_floats(x.x, ROWS * h),
                 *dv = upload_as(y.x, ROWS * n, moert_precision_dv_type(layer));
    const moert_axis along = MOERT_AXIS_ROW, across = MOERT_AXIS_COLUMN;
    const moert_precision p = layer->options.precision;
    const moert_gemm plain = {
        .groups = {upload(ends, experts * sizeof *ends), experts, ROWS}, .n = n, .k = h};
    moert_gemm gemm = plain;
#define GEMM(which, a, b, c)                                                                       \
    (gemm = plain, gemm.kind = MOERT_GEMM_##which, gemm.x = (a), gemm.weight = (b), gemm.y = (c),  \
     &gemm)
    ASSERT_OK_ON_ALL(moert_gemm_run(
        GEMM(FORWARD, rounded(p, along, &x, false), rounded(p, along, &w, true), want_y)));
    ASSERT_OK_ON_ALL(moert_gemm_run(
        GEMM(DGRAD, want_x, rounded(p, across, &w, true), rounded(p, along, &y, false))));
    ASSERT_OK_ON_ALL(moert_gemm_run(
        GEMM(WGRAD, rounded(p, across, &x, false), want_dw, rounded(p, across, &y, false))));
    moert_pass pass = {.layer = layer};
    ASSERT_OK_ON_ALL(moert_precision_refresh(layer));
    for (size_t i = 0; i < 2; i++) {
        moert_precision_begin(layer);
        moert_gemm first = *GEMM(FORWARD, all_x, weight, got_y);
        first.gated = true;
        first.glu = (moert_glu){.form = layer->options.glu, .h = got_h};
        ASSERT_OK_ON_ALL(moert_precision_gemm(&pass, BLOCK_EXPERT_IN, &first));
        moert_precision_begin(layer);
        ASSERT_OK_ON_ALL(
            moert_precision_gemm(&pass, BLOCK_EXPERT_IN, GEMM(DGRAD, got_x, weight, dv)));
        ASSERT_OK_ON_ALL(moert_precision_gemm(&pass, BLOCK_EXPERT_IN, GEMM(WGRAD, all_x, dw, dv)));
        ASSERT_ON_ALL(same_floats(got_y, want_y, ROWS * n) &&
                      same_floats(got_x, want_x, ROWS * h) &&
                      same_floats(dw, want_dw, experts * n * h));
    }
#undef GEMM
}

TEST(test_gemms_have_the_bits_of_float32_gemms_of_rounded_operands) {
    const moert_layer_options options = layer_form(52, 36);
    oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    if (moert_device_sums_in_tiles(moert_device_describe(moert_context_device(test_context))))
        set_variable("MOERT_BF16", "widened"); /* disables AMX, which sums in another order */
    for (int p = MOERT_PRECISION_BF16; p <= MOERT_PRECISION_NVFP4; p++) {
        oracle.options.precision = (moert_precision)p;
        check_gemms(layer_run_open(&oracle, (layer_setup){0}).layer);
    }
    set_variable("MOERT_BF16", NULL);
}

MPI_TESTS(open_test_context, close_test_context)
