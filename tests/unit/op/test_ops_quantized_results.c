// run: check=1 all=1san
/* Quantized results of ops have the bytes that the quantizer gives for float32 results, in every
 * layout, on both backends. */
#include "support/op/exact.h"

enum { FORMATS = 5, AXES = 3 };

static moert_op_options result_case(size_t i) {
    enum { KINDS = 4 };
    static const moert_op_kind kinds[KINDS] = {MOERT_OP_GEMM_FORWARD, MOERT_OP_GEMM_DGRAD,
                                               MOERT_OP_GLU, MOERT_OP_DGLU};
    const size_t format = i / KINDS % FORMATS, axis = i / KINDS / FORMATS % AXES;
    const size_t variant = i / KINDS / FORMATS / AXES;
    moert_op_options o = ops_usual(kinds[i % KINDS]);
    moert_operand *result = ops_result(&o);
    *result = ops_scaled((moert_format)format, (moert_axis)axis, variant);
    result->how.transposed = axis == MOERT_AXIS_COLUMN && variant % 2 == 1;
    result->how.hadamard =
        axis == MOERT_AXIS_COLUMN && format == MOERT_FORMAT_NVFP4 && variant == 2;
    if (variant > 0)
        o.column = ops_scaled((moert_format)((format + variant) % FORMATS), MOERT_AXIS_COLUMN,
                              variant + format);
    o.column.how.transposed = variant == 2;
    ops_first_operand(&o)->type = o.weight.type = MOERT_DTYPE_BF16;
    o.alpha = variant == 1;
    o.save_c = o.kind == MOERT_OP_GLU;
    o.prob = o.kind == MOERT_OP_GLU;
    return o;
}

TEST(test_quantized_results_are_those_of_the_quantizer) {
    for (size_t i = 0; i < (size_t)4 * FORMATS * AXES * 3; i++) {
        const moert_op_options o = result_case(i);
        ops_check(titled("result %zu", i), &o, ops_usual_ends, 0.0);
    }
}

/* With a norm, the scales follow cuDNN's rules instead of the quantizer's. */
TEST(test_a_norm_scales_quantized_results) {
    for (size_t i = 0; i < (size_t)4 * MOERT_FORMAT_FP8_BLOCK; i++) {
        moert_op_options o = ops_usual(i % 2 == 0 ? MOERT_OP_GEMM_FORWARD : MOERT_OP_GLU);
        moert_operand *result = ops_result(&o);
        *result = ops_scaled((moert_format)(i / 4), MOERT_AXIS_ROW, i);
        o.column = ops_scaled((moert_format)(i / 4), MOERT_AXIS_COLUMN, i + 1);
        result->how.scale_rounding = o.column.how.scale_rounding = MOERT_SCALE_FLOOR;
        result->how.nvfp4_rule = o.column.how.nvfp4_rule = MOERT_NVFP4_BRIDGE;
        o.norm = true;
        ops_check(titled("norm %zu", i), &o, ops_usual_ends, 0.0);
    }
}

/* A norm of 1 still has an effect: with a norm, the reciprocal of E8M0's least scale is FLT_MAX;
 * without a norm, it is 2^127. */
TEST(test_a_norm_of_1_counts_as_a_norm) {
    for (size_t i = 0; i < (size_t)2 * BACKENDS; i++) {
        moert_op_options o = ops_usual(MOERT_OP_GEMM_FORWARD);
        o.k = 1;
        o.y = ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_ROW, 0);
        o.norm = i / BACKENDS == 1;
        ops_bytes data = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT);
        for (size_t r = 0; r < OPS_ROWS; r++)
            ops_floats(&data, MOERT_OP_BUFFER_x)[r] = 0x1p-60f * (float)(r % 7);
        for (size_t j = 0; j < OPS_GROUPS * o.n; j++)
            ops_floats(&data, MOERT_OP_BUFFER_weight)[j] = 0x1p-61f * (float)(j % 5);
        if (o.norm)
            ops_floats(&data, MOERT_OP_BUFFER_norm)[0] = 1.0f;
        ops_exact_run(o.norm ? "norm 1" : "no norm", backends[i % BACKENDS], &data, 0.0);
    }
}

TEST(test_operands_and_results_may_all_be_quantized) {
    for (size_t i = 0; i < FORMATS; i++) {
        moert_op_options o = ops_usual(i % 2 == 0 ? MOERT_OP_GLU : MOERT_OP_DGLU);
        *ops_first_operand(&o) = o.weight = o.d =
            ops_scaled((moert_format)i, MOERT_AXIS_ROW, MOERT_SCALES_TILED);
        o.weight.discrete = true;
        o.column = ops_scaled((moert_format)i, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
        o.prob = o.alpha = true;
        ops_check("all", &o, ops_usual_ends, 0.0);
    }
}

TEST(test_plain_bytes_are_the_rounded_results) {
    for (moert_dtype type = MOERT_DTYPE_E4M3; type <= MOERT_DTYPE_E5M2; type++) {
        moert_op_options o = ops_usual(MOERT_OP_GLU);
        o.save_c = true;
        o.x.type = o.weight.type = o.c.type = o.d.type = type;
        ops_check("bytes", &o, ops_usual_ends, 0.0);
    }
}

TEST(test_column_scales_lie_where_tensor_cores_read_them) {
    const uint32_t ends[] = {256, 768, 1024};
    static const struct {
        moert_scale_layout layout;
        size_t byte;
    } positions[] = {{MOERT_SCALES_TILED_WHOLE, 5153}, {MOERT_SCALES_TILED, 4129}};
    for (size_t i = 0; i < 2 * BACKENDS; i++) {
        moert_op_options o = ops_sized(MOERT_OP_GEMM_FORWARD, 3, 1024, 256, 1);
        o.row_multiple = 256;
        o.y =
            ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN, positions[i / BACKENDS].layout);
        ops_bytes data = ops_bytes_make(&o, ends, OPS_EXACT);
        assert_int_equal(data.bytes[MOERT_OP_BUFFER_y_scale], 2 * 8 * 512);
        memset(data.at[MOERT_OP_BUFFER_x], 0, data.bytes[MOERT_OP_BUFFER_x]);
        memset(data.at[MOERT_OP_BUFFER_weight], 0, data.bytes[MOERT_OP_BUFFER_weight]);
        ops_floats(&data, MOERT_OP_BUFFER_x)[300] = 448.0f;
        ops_floats(&data, MOERT_OP_BUFFER_weight)[256 + 130] = 1.0f;
        ops_bytes_execute(backends[i % BACKENDS], &data);
        for (size_t at = 0; at < data.bytes[MOERT_OP_BUFFER_y_scale]; at++)
            assert_int_equal(data.at[MOERT_OP_BUFFER_y_scale][at],
                             at == positions[i / BACKENDS].byte ? 127 : 0);
    }
}

TESTS(open_test_device, close_test_device)
