// run: check=1 all=1san
/* Refused descriptions and buffers of quantized ops, and the sizes of buffers that an op
 * reports. */
#include "base/memory.h"
#include "support/op/quantized.h"

static const moert_op_kind forward = MOERT_OP_GEMM_FORWARD, dgrad = MOERT_OP_GEMM_DGRAD;
static const moert_op_kind wgrad = MOERT_OP_GEMM_WGRAD, gated = MOERT_OP_GLU, dglu = MOERT_OP_DGLU;
static const moert_status usage = MOERT_ERROR_USAGE, unsupported = MOERT_ERROR_UNSUPPORTED;

/* Describes an op in which every operand that can be quantized is quantized. */
static moert_op_options base(moert_op_kind kind) {
    moert_op_options o = ops_sized(kind, 2, 100, 64, 32);
    o.x = o.y = o.d = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 0);
    if (kind != MOERT_OP_GEMM_WGRAD)
        o.weight = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 0);
    return o;
}

TEST(test_a_wrong_field_of_a_quantized_operand_is_named) {
    OPS_REFUSED(base(forward), usage, "gemm_forward: x.how.size is 7; 0 for plain",
                o.x.how.size = 7);
    OPS_REFUSED(base(dgrad), usage, "y.how.format is 9; 0 to 4", o.y.how.format = (moert_format)9);
    OPS_REFUSED(base(forward), usage, "weight.how.axis is 3; row (0)",
                o.weight.how.axis = (moert_axis)3);
    OPS_REFUSED(base(gated), usage, "d.how.scale_rounding is 2; 0 or 1",
                o.d.how.scale_rounding = (moert_scale_rounding)2);
    OPS_REFUSED(base(wgrad), usage, "y.how.nvfp4_rule is 3; 0 to 2",
                o.y.how.nvfp4_rule = (moert_nvfp4_rule)3);
    OPS_REFUSED(base(forward), usage, "x.how.rounding is 4; 0 to 3",
                o.x.how.rounding = (moert_rounding)4);
    OPS_REFUSED(base(forward), usage, "x.scales is 3; linear (0)",
                o.x.scales = (moert_scale_layout)3);
    OPS_REFUSED(base(forward), usage, "x.stride is 40; 0 with", o.x.stride = 40);
    OPS_REFUSED(base(forward), usage, "x.stride is -40; 0 with", o.x.stride = -40);
    OPS_REFUSED(base(forward), usage, "weight.stride is 32; 0 with", o.weight.stride = 32);
    OPS_REFUSED(base(forward), unsupported, "x.discrete is true", o.x.discrete = true);
    OPS_REFUSED(base(forward), usage, "x.how.transposed is true; false, except",
                o.x.how.transposed = true);
    OPS_REFUSED(base(dglu), usage, "d.how.transposed is true", o.d.how.transposed = true);
    OPS_REFUSED(base(forward), usage, "y.global is true; false, a result's is in norm",
                o.y.global = true);
    OPS_REFUSED(base(forward), usage, "x.how.group_scales is true; false without",
                o.x.how.group_scales = true);
    OPS_REFUSED(base(forward), usage, "x.how.hadamard is true; false, except",
                o.x.how.hadamard = true);
    OPS_REFUSED(base(gated), usage, "d.how.hadamard is true; false, except",
                o.d.how.hadamard = true);
    OPS_REFUSED(base(forward), unsupported, "accumulate is true; false with a quantized",
                o.accumulate = true);
    OPS_REFUSED(base(dgrad), unsupported, "beta is true; false with a quantized", o.beta = true);
    OPS_REFUSED(base(dgrad), unsupported, "permute is 1; none (0)", o.permute = MOERT_OP_PERMUTE_X);
    OPS_REFUSED(base(forward), unsupported, "permute is 2; none (0)",
                o.permute = MOERT_OP_PERMUTE_Y);
    OPS_REFUSED(base(forward), unsupported, "groups is 67108864; fewer",
                o.groups = (size_t)1 << 26);
    OPS_REFUSED(base(wgrad), unsupported,
                "weight.how.size is 48; 0, the result of gemm_wgrad is plain",
                o.weight = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 0));
    OPS_REFUSED(base(dglu), unsupported, "c.how.size is 48; 0, c is plain",
                o.c = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 0));
    OPS_REFUSED(base(forward), usage, "column.how.axis is 0; column (1)",
                o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 0));
    OPS_REFUSED(base(wgrad), unsupported, "column.how.size is 48; 0 unless the result is quantized",
                o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_COLUMN, 0));
    OPS_REFUSED(base(wgrad), usage, "norm is true; false unless", o.norm = true);
}

TEST(test_fields_that_do_not_go_together_are_refused) {
    const moert_operand plain = {.type = MOERT_DTYPE_F32};
    OPS_REFUSED(base(forward), usage, "x.scales is 1; linear (0) with fp8-block",
                (o.x.how.format = MOERT_FORMAT_FP8_BLOCK, o.x.scales = MOERT_SCALES_TILED));
    OPS_REFUSED(base(forward), usage, "x.global is true; false, except with nvfp4",
                (o.x.how.format = MOERT_FORMAT_MXFP4, o.x.global = true));
    OPS_REFUSED(
        base(forward), usage, "x.how.rounding is 3; 0 or 1, except",
        (o.x.how.format = MOERT_FORMAT_MXFP8_E4M3, o.x.how.rounding = MOERT_ROUNDING_STOCHASTIC));
    OPS_REFUSED(base(forward), usage, "weight.how.transposed is true",
                (o.weight.how.axis = MOERT_AXIS_TILE, o.weight.how.transposed = true));
    OPS_REFUSED(base(forward), unsupported, "weight.scales is 2; linear (0) or tiled (1)",
                (o.weight.how.transposed = true, o.weight.scales = MOERT_SCALES_TILED_WHOLE));
    OPS_REFUSED(base(forward), unsupported, "x.how.axis is 1; row (0) or tile (2)",
                (o.permute = MOERT_OP_PERMUTE_X, o.x.how.axis = MOERT_AXIS_COLUMN));
    OPS_REFUSED(base(gated), usage, "norm is true; false with a result of fp8-block",
                (o.norm = true, o.d.how.format = MOERT_FORMAT_FP8_BLOCK));
    OPS_REFUSED(base(forward), usage, "norm is true; false unless the result is quantized",
                (o.y = plain, o.norm = true));
    OPS_REFUSED(base(forward), usage, "y.scales is 1; linear (0), unless",
                (o.y = plain, o.y.scales = MOERT_SCALES_TILED));
    OPS_REFUSED(base(forward), usage, "x.global is true; false, except for quantized operands",
                (o.x = plain, o.x.global = true));
    OPS_REFUSED(base(forward), unsupported, "x.type is e2m1",
                (o.x = plain, o.x.type = MOERT_DTYPE_E2M1));
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
        OPS_REFUSED(base(forward), usage, "x.how.size is 0; that of MOERT_QUANTIZER_INIT",
                    o.x = wrong);
        OPS_REFUSED(base(dgrad), usage, "weight.how.size is 0; that of", o.weight = wrong);
        OPS_REFUSED(base(wgrad), usage, "y.how.size is 0; that of", o.y = wrong);
        OPS_REFUSED(base(dglu), usage, "c.how.size is 0; that of", o.c = wrong);
        OPS_REFUSED(base(gated), usage, "d.how.size is 0; that of", o.d = wrong);
        OPS_REFUSED(base(gated), usage, "column.how.size is 0; that of", o.column = wrong);
    }
}

TEST(test_column_has_no_stride_and_is_never_discrete) {
    for (size_t used = 0; used < 2; used++) {
        moert_op_options changed = base(forward);
        if (used)
            changed.column = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, 0);
        OPS_REFUSED(changed, unsupported, "column.discrete is true; false; only weight",
                    o.column.discrete = true);
        OPS_REFUSED(changed, usage, "column.stride is -1; 0 with", o.column.stride = -1);
    }
}

/* ---- buffers ---- */

TEST(test_buffers_have_the_bytes_that_the_op_reports) {
    moert_op_options o = base(forward);
    o.row_multiple = 0;
    o.x.scales = MOERT_SCALES_TILED;
    o.x.global = o.x.how.group_scales = true;
    o.weight.discrete = true;
    o.weight.scales = MOERT_SCALES_TILED;
    o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_COLUMN, 0);
    o.norm = true;
    for (size_t promise = 0; promise < 2; promise++) {
        const struct {
            const char *name;
            size_t bytes[2];
        } sizes[] = {{"ends", {8, 8}},
                     {"x", {100 * 16, 100 * 16}},
                     {"x_scale", {2 * 512, 512}}, /* each of two groups begins a new tile */
                     {"x_global", {8, 8}},
                     {"y", {100 * 32, 100 * 32}},
                     {"y_scale", {100 * 4, 100 * 4}},
                     {"weight", {0, 0}},
                     {"weight_scale", {0, 0}},
                     {"weights", {64 * 16, 64 * 16}},
                     {"weight_scales", {512, 512}},
                     {"column", {5 * 16 * 64, 4 * 16 * 64}},
                     {"column_scale", {5 * 64, 4 * 64}},
                     {"norm", {4, 4}},
                     {"alpha", {0, 0}},
                     {"nothing", {0, 0}}};
        o.row_multiple = promise * 128;
        moert_op *op = ops_open(&o);
        for (size_t i = 0; i < MOERT_COUNT(sizes); i++)
            if (moert_op_buffer_bytes(op, sizes[i].name) != sizes[i].bytes[promise])
                fail_msg("%s: %zu bytes, not %zu", sizes[i].name,
                         moert_op_buffer_bytes(op, sizes[i].name), sizes[i].bytes[promise]);
        assert_true(moert_op_workspace_bytes(op) >= (100 * (32 + 64) + 2 * 64 * 32) * 4);
    }
}

TEST(test_a_missing_or_small_buffer_is_named) {
    static const uint32_t ends[] = {40, 100};
    moert_buffer *weights[2], *scales[2], *small, *kept;
    moert_op_options o = base(dgrad);
    o.weight.discrete = true;
    ops_bytes data = ops_bytes_make(&o, ends);
    moert_op_buffers buffers = ops_bytes_upload(&data, weights, scales);
    small = test_buffer(4);
    moert_op *op = ops_open(&o);
    ASSERT_OK(moert_op_execute(op, &buffers));
    const struct {
        moert_op_buffer which;
        moert_buffer *buffer;
        const char *text;
    } wrong[] = {{MOERT_OP_BUFFER_y_scale, NULL, "y_scale is NULL"},
                 {MOERT_OP_BUFFER_y_scale, small, "y_scale has 4 bytes; 100 lines of 4"},
                 {MOERT_OP_BUFFER_y, small, "y has 4 bytes; 100 lines of 32"},
                 {MOERT_OP_BUFFER_x_scale, small, "x_scale has 4 bytes"},
                 {MOERT_OP_BUFFER_y_global, small, "y_global is given"},
                 {MOERT_OP_BUFFER_weight_scale, small, "weight_scale is given"},
                 {MOERT_OP_BUFFER_norm, small, "norm is given"}};
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++) {
        moert_op_buffers given = buffers;
        *moert_op_buffer_at(&given, wrong[i].which) = wrong[i].buffer;
        ASSERT_FAILS(moert_op_execute(op, &given), usage, wrong[i].text);
    }
    kept = scales[1];
    scales[1] = small;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "weight_scales[1] has 4 bytes");
    scales[1] = kept;
    buffers.weight_scales = NULL;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "weight_scales is NULL; 2 buffers");
    buffers.weight_scales = scales;
    ops_bytes_download(&data, &buffers);
}

TEST(test_the_reference_backend_cannot_be_recorded) {
    moert_op_options o = base(forward);
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_op_recording *recording;
    o.backend = "reference";
    moert_op *op = ops_open(&o);
    assert_string_equal(moert_op_backend_name(op), "reference");
    ASSERT_FAILS(moert_op_record(op, &buffers, &recording), unsupported, "reference");
}

TEST(test_empty_problems_need_no_buffers) {
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    for (moert_op_kind kind = 0; kind < MOERT_OP_KINDS; kind++) {
        moert_op_options o = base(kind);
        o.groups = o.rows = 0;
        moert_op *op = ops_open(&o);
        ASSERT_OK(moert_op_compile(op));
        ASSERT_OK(moert_op_execute(op, &buffers));
    }
}

TESTS(open_test_device, close_test_device)
