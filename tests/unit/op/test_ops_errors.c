// run: check=1 all=1san
/* Refused descriptions and buffers of plain and quantized ops; sizes of buffers; creating,
 * executing, recording and destroying an op. */
#include "support/op/bytes.h"

static const moert_op_kind forward = MOERT_OP_GEMM_FORWARD, dgrad = MOERT_OP_GEMM_DGRAD;
static const moert_op_kind wgrad = MOERT_OP_GEMM_WGRAD, gated = MOERT_OP_GLU, dglu = MOERT_OP_DGLU;
static const moert_status usage = MOERT_ERROR_USAGE, unsupported = MOERT_ERROR_UNSUPPORTED;
static const uint32_t plain_ends[] = {1, 4}, quantized_ends[] = {40, 100};

static moert_op_options plain(moert_op_kind kind) {
    return ops_sized(kind, 2, 4, 64, 32);
}

/* Describes an op in which every operand that can be quantized is quantized. */
static moert_op_options quantized(moert_op_kind kind) {
    moert_op_options o = ops_sized(kind, 2, 100, 64, 32);
    o.x = o.y = o.d = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 0);
    if (kind != MOERT_OP_GEMM_WGRAD)
        o.weight = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 0);
    return o;
}

/* Copies a description to `o`, applies `change`, and checks that moert_op_create() refuses `o`. */
#define REFUSED(description, status, text, change)                                                 \
    do {                                                                                           \
        moert_op_options o = (description);                                                        \
        change;                                                                                    \
        ops_check_refused(&o, (status), (text));                                                   \
    } while (0)
#define PLAIN(kind, status, text, change)     REFUSED(plain(kind), status, text, change)
#define QUANTIZED(kind, status, text, change) REFUSED(quantized(kind), status, text, change)

TEST(test_a_wrong_field_is_named_with_its_value) {
    PLAIN(forward, usage, "size is 8", o.size = 8);
    PLAIN(forward, usage, "kind is 77", o.kind = (moert_op_kind)77);
    PLAIN(forward, usage, "n is 0", o.n = 0);
    PLAIN(forward, usage, "k is 0", o.k = 0);
    PLAIN(forward, unsupported, "rows is 2147483648", o.rows = (size_t)1 << 31);
    PLAIN(forward, unsupported, "groups is 1099511627776", o.groups = (size_t)1 << 40);
    PLAIN(forward, unsupported, "backend is 'quantum'", o.backend = "quantum");
    PLAIN(forward, unsupported, "x.type is e2m1", o.x.type = MOERT_DTYPE_E2M1);
    PLAIN(forward, usage, "y.type is dtype 99", o.y.type = (moert_dtype)99);
    PLAIN(forward, unsupported, "weight.type is bf16", o.weight.type = MOERT_DTYPE_BF16);
    PLAIN(wgrad, unsupported, "y.type is f16", o.y.type = MOERT_DTYPE_F16);
    PLAIN(dgrad, unsupported, "weight.type is e2m1", o.weight.type = MOERT_DTYPE_E2M1);
    PLAIN(forward, usage, "x.stride is -32", o.x.stride = -32);
    PLAIN(forward, usage, "y.stride is 63", o.y.stride = 63);
    PLAIN(forward, unsupported, "weight.stride is 33", o.weight.stride = 33);
    PLAIN(forward, unsupported, "x.discrete is true", o.x.discrete = true);
    PLAIN(dgrad, unsupported, "bias is true", o.bias = true);
    PLAIN(forward, usage, "bias_scale is true", o.bias_scale = true);
    PLAIN(wgrad, unsupported, "prob is true", o.prob = true);
    PLAIN(wgrad, unsupported, "amax is true", o.amax = true);
    PLAIN(gated, unsupported, "accumulate is true", o.accumulate = true);
    PLAIN(gated, unsupported, "dbias is true", o.dbias = true);
    PLAIN(dglu, unsupported, "save_c is true", o.save_c = true);
    PLAIN(forward, usage, "permute is 3", o.permute = (moert_op_permute)3);
    PLAIN(gated, unsupported, "permute is y", o.permute = MOERT_OP_PERMUTE_Y);
    PLAIN(dglu, unsupported, "permute is x", o.permute = MOERT_OP_PERMUTE_X);
    PLAIN(forward, usage, "row_weight is true", o.row_weight = true);
    PLAIN(gated, unsupported, "interleave is 16", o.interleave = 16);
    PLAIN(gated, usage, "glu.limit is 0", o.glu.limit = 0.0f);
    PLAIN(gated, usage, "glu.activation is 9", o.glu.activation = 9);
    PLAIN(gated, usage, "n is 63", o.n = 63);
    PLAIN(gated, unsupported, "d.type is e2m1", o.d.type = MOERT_DTYPE_E2M1);
    PLAIN(dglu, usage, "c.stride is 63", o.c.stride = 63);
}

TEST(test_fields_are_refused_in_kinds_that_lack_them) {
    for (moert_op_kind kind = 0; kind < MOERT_OP_KINDS; kind++)
        for (size_t i = 0; i < MOERT_OP_FIELDS; i++) {
            const moert_op_field *f = &moert_op_fields[i];
            if (!moert_op_has_field(kind, f))
                REFUSED(plain(kind), unsupported, titled("%s is true; %s", f->name, f->legal),
                        *moert_op_flag(&o, f) = true);
        }
}

TEST(test_each_buffer_is_described_once) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const int others = i == MOERT_OP_BUFFER_ends || i == MOERT_OP_BUFFER_gather ||
                           i == MOERT_OP_BUFFER_workspace;
        assert_int_equal(others + (moert_op_field_of(i) != NULL) + (moert_op_matrix_of(i) != NULL),
                         1);
    }
}

TEST(test_fields_that_do_not_go_together_are_refused) {
    PLAIN(forward, usage, "accumulate is true", o.beta = o.accumulate = true);
    PLAIN(dgrad, usage, "prob is true; false with beta", o.prob = o.beta = true);
    PLAIN(forward, usage, "prob is true; false with beta or accumulate",
          o.prob = o.accumulate = true);
    PLAIN(forward, usage, "prob is true; false with bias; bias_scale", o.prob = o.bias = true);
    PLAIN(forward, usage, "topk is 0", (o.permute = MOERT_OP_PERMUTE_X, o.topk = 0));
    PLAIN(gated, usage, "n is 96; expected a multiple of 64", (o.n = 96, o.interleave = 32));
    PLAIN(dglu, usage, "2k is 40; expected a multiple of 16", (o.k = 20, o.interleave = 8));
    PLAIN(forward, unsupported, "bias_type is e4m3",
          (o.bias = true, o.bias_type = MOERT_DTYPE_E4M3));
    PLAIN(gated, usage, "interleave is 8", (o.glu.interleaved = true, o.interleave = 8));
    PLAIN(forward, unsupported, "groups is 65537; at most 65536",
          (o.weight.discrete = true, o.groups = 65537));
}

TEST(test_a_wrong_field_of_a_quantized_operand_is_named) {
    QUANTIZED(forward, usage, "gemm_forward: x.how.size is 7; 0 for plain", o.x.how.size = 7);
    QUANTIZED(dgrad, usage, "y.how.format is 9; 0 to 4", o.y.how.format = (moert_format)9);
    QUANTIZED(forward, usage, "weight.how.axis is 3; row (0)", o.weight.how.axis = (moert_axis)3);
    QUANTIZED(gated, usage, "d.how.scale_rounding is 2; 0 or 1",
              o.d.how.scale_rounding = (moert_scale_rounding)2);
    QUANTIZED(wgrad, usage, "y.how.nvfp4_rule is 3; 0 to 2",
              o.y.how.nvfp4_rule = (moert_nvfp4_rule)3);
    QUANTIZED(forward, usage, "x.how.rounding is 4; 0 to 3", o.x.how.rounding = (moert_rounding)4);
    QUANTIZED(forward, usage, "x.scales is 3; linear (0)", o.x.scales = (moert_scale_layout)3);
    QUANTIZED(forward, usage, "x.stride is 40; 0 with", o.x.stride = 40);
    QUANTIZED(forward, usage, "x.stride is -40; 0 with", o.x.stride = -40);
    QUANTIZED(forward, usage, "weight.stride is 32; 0 with", o.weight.stride = 32);
    QUANTIZED(forward, unsupported, "x.discrete is true", o.x.discrete = true);
    QUANTIZED(forward, usage, "x.how.transposed is true; false, except", o.x.how.transposed = true);
    QUANTIZED(dglu, usage, "d.how.transposed is true", o.d.how.transposed = true);
    QUANTIZED(forward, usage, "y.global is true; false, a result's is in norm", o.y.global = true);
    QUANTIZED(forward, usage, "x.how.group_scales is true; false without",
              o.x.how.group_scales = true);
    QUANTIZED(forward, usage, "x.how.hadamard is true; false, except", o.x.how.hadamard = true);
    QUANTIZED(gated, usage, "d.how.hadamard is true; false, except", o.d.how.hadamard = true);
    QUANTIZED(forward, unsupported, "accumulate is true; false with a quantized",
              o.accumulate = true);
    QUANTIZED(dgrad, unsupported, "beta is true; false with a quantized", o.beta = true);
    QUANTIZED(dgrad, unsupported, "permute is 1; none (0)", o.permute = MOERT_OP_PERMUTE_X);
    QUANTIZED(forward, unsupported, "permute is 2; none (0)", o.permute = MOERT_OP_PERMUTE_Y);
    QUANTIZED(forward, unsupported, "groups is 67108864; fewer", o.groups = (size_t)1 << 26);
    QUANTIZED(wgrad, unsupported, "weight.how.size is 48; 0, the result of gemm_wgrad is plain",
              o.weight = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 0));
    QUANTIZED(dglu, unsupported, "c.how.size is 48; 0, c is plain",
              o.c = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 0));
    QUANTIZED(forward, usage, "column.how.axis is 0; column (1)",
              o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 0));
    QUANTIZED(wgrad, unsupported, "column.how.size is 48; 0 unless the result is quantized",
              o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_COLUMN, 0));
    QUANTIZED(wgrad, usage, "norm is true; false unless", o.norm = true);
    QUANTIZED(forward, unsupported, "column.discrete is true; false; only weight",
              o.column.discrete = true);
    QUANTIZED(forward, usage, "column.stride is -1; 0 with", o.column.stride = -1);
}

TEST(test_fields_of_quantized_operands_that_do_not_go_together_are_refused) {
    const moert_operand floats = {.type = MOERT_DTYPE_F32},
                        column = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, 0);
    QUANTIZED(forward, unsupported, "column.discrete is true; false; only weight",
              (o.column = column, o.column.discrete = true));
    QUANTIZED(forward, usage, "column.stride is -1; 0 with",
              (o.column = column, o.column.stride = -1));
    QUANTIZED(forward, usage, "x.scales is 1; linear (0) with fp8-block",
              (o.x.how.format = MOERT_FORMAT_FP8_BLOCK, o.x.scales = MOERT_SCALES_TILED));
    QUANTIZED(forward, usage, "x.global is true; false, except with nvfp4",
              (o.x.how.format = MOERT_FORMAT_MXFP4, o.x.global = true));
    QUANTIZED(
        forward, usage, "x.how.rounding is 3; 0 or 1, except",
        (o.x.how.format = MOERT_FORMAT_MXFP8_E4M3, o.x.how.rounding = MOERT_ROUNDING_STOCHASTIC));
    QUANTIZED(forward, usage, "weight.how.transposed is true",
              (o.weight.how.axis = MOERT_AXIS_TILE, o.weight.how.transposed = true));
    QUANTIZED(forward, unsupported, "weight.scales is 2; linear (0) or tiled (1)",
              (o.weight.how.transposed = true, o.weight.scales = MOERT_SCALES_TILED_WHOLE));
    QUANTIZED(forward, unsupported, "x.how.axis is 1; row (0) or tile (2)",
              (o.permute = MOERT_OP_PERMUTE_X, o.x.how.axis = MOERT_AXIS_COLUMN));
    QUANTIZED(gated, usage, "norm is true; false with a result of fp8-block",
              (o.norm = true, o.d.how.format = MOERT_FORMAT_FP8_BLOCK));
    QUANTIZED(forward, usage, "norm is true; false unless the result is quantized",
              (o.y = floats, o.norm = true));
    QUANTIZED(forward, usage, "y.scales is 1; linear (0), unless",
              (o.y = floats, o.y.scales = MOERT_SCALES_TILED));
    QUANTIZED(forward, usage, "x.global is true; false, except for quantized operands",
              (o.x = floats, o.x.global = true));
    QUANTIZED(forward, unsupported, "x.type is e2m1", (o.x = floats, o.x.type = MOERT_DTYPE_E2M1));
}

/* Without the size of MOERT_QUANTIZER_INIT, a quantizer would count as a plain operand. */
TEST(test_a_quantizer_without_a_size_is_refused) {
    static const moert_quantizer forgotten[] = {{.format = MOERT_FORMAT_NVFP4},
                                                {.axis = MOERT_AXIS_TILE},
                                                {.scale_rounding = 1},
                                                {.nvfp4_rule = MOERT_NVFP4_TORCHAO},
                                                {.rounding = MOERT_ROUNDING_NEAREST},
                                                {.seed = 1},
                                                {.transposed = true},
                                                {.hadamard = true},
                                                {.group_scales = true}};
    for (size_t i = 0; i < MOERT_COUNT(forgotten); i++) {
        const moert_operand wrong = {.how = forgotten[i]};
        QUANTIZED(forward, usage, "x.how.size is 0; that of MOERT_QUANTIZER_INIT", o.x = wrong);
        QUANTIZED(dgrad, usage, "weight.how.size is 0; that of", o.weight = wrong);
        QUANTIZED(wgrad, usage, "y.how.size is 0; that of", o.y = wrong);
        QUANTIZED(dglu, usage, "c.how.size is 0; that of", o.c = wrong);
        QUANTIZED(gated, usage, "d.how.size is 0; that of", o.d = wrong);
        QUANTIZED(gated, usage, "column.how.size is 0; that of", o.column = wrong);
    }
}

TEST(test_the_type_of_a_quantized_operand_is_ignored) {
    moert_op_options o = plain(forward);
    o.x.how = o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    o.x.type = o.weight.type = (moert_dtype)77;
    for (int discrete = 0; discrete < 2; discrete++) {
        o.weight.discrete = discrete;
        moert_op *op = ops_open(&o);
        ASSERT_OK(moert_op_compile(op));
        assert_int_equal(moert_op_buffer_bytes(op, "x"), 4 * 32);
    }
}

TEST(test_a_quantized_op_without_memory_for_its_gemm_is_refused) {
    moert_op_options o = plain(forward);
    o.x.how = o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    o.alpha = true; /* with alpha, the GEMM's result needs a separate buffer */
    o.groups = o.k = 1;
    o.rows = o.n = 1 << 24;
    for (size_t i = 0; i < BACKENDS; i++) {
        o.backend = backends[i];
        ops_check_refused(&o, MOERT_ERROR_MEMORY, "bytes");
    }
}

/* ---- buffers ---- */

/* Checks that an execute with `wrong` in the place of one buffer fails with this text. */
static void check_wrong(moert_op *op, const moert_op_buffers *buffers, moert_buffer **at,
                        moert_buffer *wrong, const char *text) {
    moert_buffer *const good = *at;
    ASSERT_OK(moert_op_execute(op, buffers));
    *at = wrong;
    ASSERT_FAILS(moert_op_execute(op, buffers), usage, text);
    *at = good;
}

static moert_op_buffers upload_plain(const moert_op_options *o) {
    const ops_bytes data = ops_bytes_make(o, plain_ends, OPS_EXACT);
    return ops_bytes_upload(&data);
}

TEST(test_buffers_must_be_those_of_the_description) {
    const moert_op_options o = plain(forward);
    moert_op_buffers b = upload_plain(&o);
    moert_buffer *small = test_buffer(4), *weight = b.weight;
    moert_op *op = ops_open(&o);
    check_wrong(op, &b, &b.ends, NULL, "ends is NULL");
    check_wrong(op, &b, &b.y, NULL, "y is NULL");
    check_wrong(op, &b, &b.x, small, "x has 4 bytes, too few for 4 lines of 32");
    check_wrong(op, &b, &b.weight, small, "weight has 4 bytes");
    check_wrong(op, &b, &b.alpha, b.ends, "alpha is given");
    check_wrong(op, &b, &b.gather, b.ends, "gather is given");
    b.weights = &weight;
    ASSERT_FAILS(moert_op_execute(op, &b), usage, "weights is given");
    b.size = 3;
    ASSERT_FAILS(moert_op_execute(op, &b), usage, "moert_op_buffers.size is 3");
}

TEST(test_a_missing_or_small_buffer_of_a_quantized_or_discrete_op_is_named) {
    moert_buffer *small = test_buffer(4);
    moert_op_options o = quantized(dgrad);
    o.weight.discrete = true;
    const ops_bytes data = ops_bytes_make(&o, quantized_ends, OPS_EXACT);
    moert_op_buffers b = ops_bytes_upload(&data);
    moert_buffer **weights = (moert_buffer **)b.weights,
                 **scales = (moert_buffer **)b.weight_scales;
    moert_op *op = ops_open(&o);
    check_wrong(op, &b, &b.y_scale, NULL, "y_scale is NULL");
    check_wrong(op, &b, &b.y_scale, small, "y_scale has 4 bytes, too few for 100 lines of 4");
    check_wrong(op, &b, &b.y, small, "y has 4 bytes, too few for 100 lines of 32");
    check_wrong(op, &b, &b.x_scale, small, "x_scale has 4 bytes");
    check_wrong(op, &b, &b.y_global, small, "y_global is given");
    check_wrong(op, &b, &b.weight_scale, small, "weight_scale is given");
    check_wrong(op, &b, &b.norm, small, "norm is given");
    check_wrong(op, &b, &weights[1], NULL, "weights[1] is NULL");
    check_wrong(op, &b, &weights[1], small, "weights[1] has 4 bytes");
    check_wrong(op, &b, &scales[1], small, "weight_scales[1] has 4 bytes");
    b.weight_scales = NULL;
    ASSERT_FAILS(moert_op_execute(op, &b), usage,
                 "weight_scales is NULL; expected an array with a buffer per group (groups is 2)");
    b.weights = NULL;
    ASSERT_FAILS(moert_op_execute(op, &b), usage,
                 "weights is NULL; expected an array with a buffer per group (groups is 2)");
    o.groups = 1;
    ASSERT_FAILS(moert_op_execute(ops_open(&o), &b), usage,
                 "weights is NULL; expected an array with a buffer per group (groups is 1)");
}

TEST(test_the_reference_finds_ends_that_decrease) {
    const uint32_t ends[] = {3, 2};
    moert_op_options o = plain(forward);
    moert_op_buffers buffers = upload_plain(&o);
    o.backend = "reference";
    ASSERT_OK(moert_buffer_write(buffers.ends, 0, ends, sizeof ends));
    ASSERT_FAILS(moert_op_once(test_device, &o, &buffers), usage, "group 1");
}

TEST(test_empty_problems_need_no_buffers) {
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    for (size_t i = 0; i < (size_t)MOERT_OP_KINDS * 2; i++) {
        const moert_op_kind kind = (moert_op_kind)(i / 2);
        moert_op_options o = i % 2 == 0 ? plain(kind) : quantized(kind);
        o.groups = o.rows = 0;
        moert_op *op = ops_open(&o);
        ASSERT_OK(moert_op_compile(op));
        ASSERT_OK(moert_op_execute(op, &buffers));
    }
    assert_null(moert_op_kind_name(MOERT_OP_KINDS));
}

TEST(test_buffers_have_the_bytes_that_the_op_reports) {
    moert_op_options o = quantized(forward);
    o.row_multiple = 0;
    o.x.scales = MOERT_SCALES_TILED;
    o.x.global = o.x.how.group_scales = true;
    o.weight.discrete = true;
    o.weight.scales = MOERT_SCALES_TILED;
    o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_COLUMN, 0);
    o.norm = true;
    static const char *const names[] = {"ends",    "x",
                                        "x_scale", "x_global",
                                        "y",       "y_scale",
                                        "weight",  "weight_scale",
                                        "weights", "weight_scales",
                                        "column",  "column_scale",
                                        "norm",    "alpha",
                                        "nothing"};
    /* Without row_multiple, each of the two groups begins a new tile of x_scale, and column has
     * five blocks of rows */
    static const char *const wanted[] = {
        "ends 8, x 1600, x_scale 1024, x_global 8, y 3200, y_scale 400, weight 0, weight_scale 0, "
        "weights 1024, weight_scales 512, column 5120, column_scale 320, norm 4, alpha 0, nothing "
        "0",
        "ends 8, x 1600, x_scale 512, x_global 8, y 3200, y_scale 400, weight 0, weight_scale 0, "
        "weights 1024, weight_scales 512, column 4096, column_scale 256, norm 4, alpha 0, nothing "
        "0"};
    for (size_t promise = 0; promise < 2; promise++) {
        const char *got = "";
        o.row_multiple = promise * 128;
        moert_op *op = ops_open(&o);
        for (size_t i = 0; i < MOERT_COUNT(names); i++)
            got = titled("%s%s%s %zu", got, i > 0 ? ", " : "", names[i],
                         moert_op_buffer_bytes(op, names[i]));
        assert_string_equal(got, wanted[promise]);
        assert_true(moert_op_workspace_bytes(op) >= (100 * (32 + 64) + 2 * 64 * 32) * 4);
    }
}

/* ---- backends and recordings ---- */

static const char *backend_of(const char *requested, const char *variable, bool fallback) {
    moert_op_options o = plain(forward);
    set_variable("MOERT_BACKEND", variable);
    o.backend = requested;
    o.fallback = fallback;
    const char *name = moert_op_backend_name(ops_open(&o));
    set_variable("MOERT_BACKEND", NULL);
    return name;
}

TEST(test_backends_are_chosen_by_name_or_automatically) {
    assert_string_equal(backend_of(NULL, NULL, false), "portable");
    assert_string_equal(backend_of("auto", "reference", false), "reference");
    assert_string_equal(backend_of("reference", "portable", false), "reference");
    assert_string_equal(backend_of("quantum", NULL, true), "portable");

    /* tensor cores do not multiply float32: the nvidia backend is refused, whether an option or a
     * variable names it */
    const char *const refused = "backend is 'nvidia', which takes ";
    const moert_op_options o = plain(forward);
    set_variable("MOERT_BACKEND", "nvidia");
    ops_check_refused(&o, unsupported, refused);
    set_variable("MOERT_BACKEND", NULL);
    ops_check_fallback("nvidia", o, refused);
    assert_string_equal(backend_of(NULL, "nvidia", true), "portable");
}

TEST(test_a_replay_computes_on_the_present_contents_of_its_buffers) {
    moert_op_options o = plain(forward);
    float x[4 * 32], y[4 * 64] = {0}, weight[2 * 64 * 32];
    moert_op_recording *recording;
    o.accumulate = true; /* with accumulate, the op is a GEMM and a separate epilogue */
    moert_op *op = ops_open(&o);
    moert_op_buffers buffers = upload_plain(&o);
    const moert_status status = moert_op_record(op, &buffers, &recording);
    if (status == unsupported)
        SKIP("the device's driver records no commands");
    ASSERT_OK(status);
    for (size_t i = 0; i < 2 * 64 * 32; i++)
        x[i % (4 * 32)] = weight[i] = 0.5f;
    ASSERT_OK(moert_buffer_write(buffers.x, 0, x, sizeof x));
    ASSERT_OK(moert_buffer_write(buffers.y, 0, y, sizeof y));
    ASSERT_OK(moert_buffer_write(buffers.weight, 0, weight, sizeof weight));
    /* buffers of another execute, which comes before the replay */
    moert_op_buffers others = buffers;
    others.y = buffers.weight;
    others.weight = others.x = upload_plain(&o).weight;
    ASSERT_OK(moert_op_execute(op, &others));
    ASSERT_OK(moert_buffer_write(buffers.weight, 0, weight, sizeof weight));
    for (size_t i = 0; i < 3; i++)
        ASSERT_OK(moert_op_replay(recording));
    ASSERT_OK(moert_op_execute(op, &buffers));
    download_into(buffers.y, y, sizeof y);
    for (size_t i = 0; i < 4 * 64; i++)
        assert_true(y[i] == 4 * 8.0f);
    moert_op_recording_destroy(recording);
    moert_op_recording_destroy(NULL);
    moert_op_destroy(NULL);
}

TEST(test_the_reference_backend_cannot_be_recorded) {
    for (size_t i = 0; i < 2; i++) {
        const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
        moert_op_recording *recording;
        moert_op_options o = i == 0 ? plain(forward) : quantized(forward);
        o.backend = "reference";
        moert_op *op = ops_open(&o);
        assert_string_equal(moert_op_backend_name(op), "reference");
        ASSERT_FAILS(moert_op_record(op, &buffers, &recording), unsupported, "reference");
    }
}

/* ---- workspace ---- */

TEST(test_a_check_tells_the_backend_and_the_workspace) {
    moert_op_options o = plain(forward);
    /* a quantized weight needs a workspace of several parts */
    o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    const char *backend = NULL;
    size_t bytes = 0;
    ASSERT_OK(moert_op_check(test_device, &o, NULL, NULL));
    ASSERT_OK(moert_op_check(test_device, &o, &backend, &bytes));
    moert_op *op = ops_open(&o);
    assert_string_equal(backend, moert_op_backend_name(op));
    assert_true(bytes >= moert_op_workspace_bytes(op) ||
                strcmp(backend, "reference") == 0); /* moert_op_check() rounds each part up */
    o.n = 0;
    ASSERT_FAILS(moert_op_check(test_device, &o, &backend, &bytes), usage, "n is 0");
    ASSERT_FAILS(moert_op_check(NULL, &o, NULL, NULL), usage, "device is NULL");
}

TEST(test_an_op_in_the_callers_workspace_has_the_bits_of_one_call) {
    const uint32_t ends[] = {3, 8};
    size_t bytes;
    moert_op_options o = ops_sized(forward, 2, 8, 32, 64);
    o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    /* the GEMM leaves its sums in the workspace, and prob is applied to them later */
    o.prob = true;
    ops_bytes start = ops_bytes_make(&o, ends, OPS_SPREAD), want = ops_bytes_copy(&start), got;
    moert_op_buffers buffers = ops_bytes_upload(&want);
    ASSERT_OK(moert_op_once(test_device, &o, &buffers));
    ops_bytes_download(&want, &buffers);
    o.caller_workspace = true;
    ASSERT_OK(moert_op_check(test_device, &o, NULL, &bytes));
    moert_op *op = ops_open(&o);
    assert_int_equal(moert_op_buffer_bytes(op, "workspace"), bytes);
    assert_true(bytes > 0);
    /* executes in workspaces with different old contents */
    for (size_t i = 0; i < 3; i++) {
        got = ops_bytes_copy(&start);
        buffers = ops_bytes_upload(&got);
        buffers.workspace =
            i != 1 ? upload(random_floats(bytes / 4, 1e30f, 3), bytes) : test_buffer(bytes);
        ASSERT_OK(moert_op_execute(op, &buffers));
        ASSERT_OK(moert_op_execute(op, &buffers));
        download_into(buffers.y, got.at[MOERT_OP_BUFFER_y], got.bytes[MOERT_OP_BUFFER_y]);
        ops_assert_same("workspace", &got, &want, true);
    }
    buffers.workspace = test_buffer(bytes - 1);
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "buffer workspace has");
    buffers.workspace = NULL;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "buffer workspace is NULL");
    moert_op_recording *recording;
    ASSERT_FAILS(moert_op_record(op, &buffers, &recording), unsupported,
                 "caller_workspace is true");
}

TEST(test_missing_arguments_are_named) {
    const moert_op_options options = plain(forward);
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_op *op = NULL;
    ASSERT_FAILS(moert_op_create(NULL, &options, &op), usage, "device is NULL");
    ASSERT_FAILS(moert_op_create(test_device, NULL, &op), usage, "moert_op_options is NULL");
    ASSERT_FAILS(moert_op_create(test_device, &options, NULL), usage, "op is NULL");
    ASSERT_FAILS(moert_op_execute(NULL, &buffers), usage, "op is NULL");
    ASSERT_OK(moert_op_create(test_device, &options, &op));
    ASSERT_FAILS(moert_op_execute(op, NULL), usage, "moert_op_buffers is NULL");
    moert_op_destroy(op);
    assert_int_equal(moert_op_workspace_bytes(NULL), 0);
}

TESTS(open_test_device, close_test_device)
