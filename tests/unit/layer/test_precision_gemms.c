// run: check=1,2 all=4,2san
/* The GEMMs of the layer's low-precision recipes: their bits, and that they follow changes of the
 * weights. */
#include "context/context.h"
#include "layer/precision.h"
#include "moert/quantize.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

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

static void cast(moert_dtype from, const moert_buffer *source, moert_dtype to, moert_buffer *target,
                 size_t n) {
    ASSERT_OK_ON_ALL(
        moert_cast_run(&(moert_cast){sizeof(moert_cast), from, to, n, source, target}));
}

/* Returns source[groups.rows, columns], rounded, as float32. NVFP4 rounds by the amax of each group
 * if `group_scales`, else by the amax of all groups. */
static moert_buffer *rounded(moert_precision precision, moert_axis axis, moert_groups groups,
                             size_t columns, moert_buffer *source, bool group_scales) {
    const size_t n = groups.rows * columns, bytes = n * sizeof(float);
    const bool nvfp4 = precision == MOERT_PRECISION_NVFP4;
    moert_buffer *target = test_buffer(bytes), *payload = test_buffer(bytes);
    if (precision == MOERT_PRECISION_BF16) {
        cast(MOERT_DTYPE_F32, source, MOERT_DTYPE_BF16, payload, n);
        cast(MOERT_DTYPE_BF16, payload, MOERT_DTYPE_F32, target, n);
    } else {
        moert_quantize op = {.size = sizeof op,
                             .how = MOERT_QUANTIZER_INIT,
                             .groups = groups,
                             .columns = columns,
                             .x = source,
                             .q = payload,
                             .scale = test_buffer(bytes),
                             .global = test_buffer(groups.count * sizeof(float)),
                             .amax = nvfp4 ? test_buffer(groups.count * sizeof(float)) : NULL};
        op.how.format = nvfp4 ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3;
        op.how.axis = axis;
        op.how.group_scales = nvfp4 && group_scales;
        if (nvfp4)
            ASSERT_OK_ON_ALL(moert_quantize_amax(&op));
        ASSERT_OK_ON_ALL(moert_quantize_run(&op));
        op.x = target;
        ASSERT_OK_ON_ALL(moert_dequantize_run(&op));
    }
    return target;
}

/* Returns dv in the dtype in which the layer keeps it, bf16 or float32. */
static moert_buffer *kept_dv(const moert_layer *layer, size_t n, const moert_buffer *source) {
    const moert_dtype type = moert_precision_dv_type(layer);
    moert_buffer *target = test_buffer(n * sizeof(float));
    if (type == MOERT_DTYPE_F32)
        ASSERT_OK_ON_ALL(moert_buffer_copy(source, 0, target, 0, n * sizeof(float)));
    else
        cast(MOERT_DTYPE_F32, source, type, target, n);
    return target;
}

/* Checks the three GEMMs of the first projection, with the GLU fused into the forward GEMM. Every
 * rank uses the same rows x and dv. */
static void check_gemms(layer_run *run, moert_precision precision) {
    moert_layer *layer = run->layer;
    const size_t h = layer->options.hidden, n = 2 * layer->options.intermediate,
                 experts = layer->local_experts;
    float *values = random_floats(ROWS * (h + n), 2.0f, 5);
    uint32_t ends[8], weight_ends[8];
    for (size_t e = 0; e < experts; e++) {
        ends[e] = (uint32_t)(experts > 1 ? e * (ROWS - 3) / (experts - 1) : ROWS - 3);
        weight_ends[e] = (uint32_t)((e + 1) * n);
    }
    moert_buffer *x = upload(values, ROWS * h * sizeof *values),
                 *y = upload(values + ROWS * h, ROWS * n * sizeof *values),
                 *got_x = upload(values, ROWS * h * sizeof *values),
                 *got_y = upload(values, ROWS * n * sizeof *values),
                 *got_h = upload(values, ROWS * n / 2 * sizeof *values),
                 *want_x = upload(values, ROWS * h * sizeof *values),
                 *want_y = upload(values, ROWS * n * sizeof *values),
                 *dv = kept_dv(layer, ROWS * n, y),
                 *row_ends = upload(ends, experts * sizeof *ends),
                 *line_ends = upload(weight_ends, experts * sizeof *ends);
    moert_buffer *weight = moert_layer_weight(layer, MOERT_LAYER_W1),
                 *dw = moert_layer_gradient(layer, MOERT_LAYER_W1),
                 *want_dw = test_buffer(moert_buffer_bytes(dw));
    const moert_groups rows = {row_ends, experts, ROWS}, lines = {line_ends, experts, experts * n};
    const moert_axis along = MOERT_AXIS_ROW, across = MOERT_AXIS_COLUMN;
    moert_buffer *all[] = {rounded(precision, along, rows, h, x, false),
                           rounded(precision, along, rows, n, y, false),
                           rounded(precision, across, rows, h, x, false),
                           rounded(precision, across, rows, n, y, false),
                           rounded(precision, along, lines, h, weight, true),
                           rounded(precision, across, lines, h, weight, true)};
    const moert_gemm plain = {.groups = rows, .n = n, .k = h};
    moert_gemm gemm = plain;
#define GEMM(which, a, w, b)                                                                       \
    (gemm = plain, gemm.kind = MOERT_GEMM_##which, gemm.x = (a), gemm.weight = (w), gemm.y = (b),  \
     &gemm)
    moert_pass pass = {.layer = layer};
    ASSERT_OK_ON_ALL(moert_precision_refresh(layer));
    for (size_t i = 0; i < 2; i++) {
        moert_precision_begin(layer);
        moert_gemm first = *GEMM(FORWARD, x, weight, got_y);
        first.gated = true;
        first.glu = (moert_glu){.form = layer->options.glu, .h = got_h};
        ASSERT_OK_ON_ALL(moert_precision_gemm(&pass, BLOCK_EXPERT_IN, &first));
        moert_precision_begin(layer);
        ASSERT_OK_ON_ALL(
            moert_precision_gemm(&pass, BLOCK_EXPERT_IN, GEMM(DGRAD, got_x, weight, dv)));
        ASSERT_OK_ON_ALL(moert_precision_gemm(&pass, BLOCK_EXPERT_IN, GEMM(WGRAD, x, dw, dv)));
        ASSERT_OK_ON_ALL(moert_gemm_run(GEMM(FORWARD, all[0], all[4], want_y)));
        ASSERT_OK_ON_ALL(moert_gemm_run(GEMM(DGRAD, want_x, all[5], all[1])));
        ASSERT_OK_ON_ALL(moert_gemm_run(GEMM(WGRAD, all[2], want_dw, all[3])));
        ASSERT_ON_ALL(same_floats(got_y, want_y, ROWS * n) &&
                      same_floats(got_x, want_x, ROWS * h) &&
                      same_floats(dw, want_dw, moert_buffer_bytes(dw) / sizeof(float)));
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
        layer_run run = layer_run_open(&oracle, (layer_setup){0});
        check_gemms(&run, (moert_precision)p);
    }
    set_variable("MOERT_BF16", NULL);
}

MPI_TESTS(open_test_context, close_test_context)
