// run: check=1
/*
 * The cuDNN frontend's table of grouped weight gradients with quantized operands, with cuDNN's
 * sizes and global scales. Results are within 5e-6 of the largest element of float64; cuDNN's
 * tolerances are 0.1 and 0.2. Accumulation, experts without tokens and float32 results are tested
 * too, which cuDNN's suite does not test.
 */
#include "support/op/exact.h"
#include "support/suite.h"

static const moert_format formats[] = {MOERT_FORMAT_NVFP4, MOERT_FORMAT_MXFP4,
                                       MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_MXFP8_E5M2};
enum { FORMATS = 4, HIDDEN = 384, INTERMEDIATE = 640 };

static moert_op_options describe(moert_format format, moert_dtype type) {
    /* each expert has its own tiles of scales */
    moert_operand operand = ops_scaled(format, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
    operand.how.transposed = true; /* the tokens of a column are contiguous */
    operand.global = operand.how.group_scales = format == MOERT_FORMAT_NVFP4;
    moert_op_options o = ops_gemm(MOERT_OP_GEMM_WGRAD, operand, 2, 640, HIDDEN, INTERMEDIATE);
    o.row_multiple = 128;
    o.weight.type = type;
    return o;
}

/* Makes and fills buffers. The global scales of the experts differ and lie between 1 and 2. */
static ops_bytes make(const moert_op_options *o, const uint32_t *ends) {
    ops_bytes data = ops_bytes_make(o, ends);
    data.spread = true;
    for (size_t g = 0; o->x.global && g < o->groups; g++) {
        ops_floats(&data, MOERT_OP_BUFFER_x_global)[g] = 1.25f + 0.5f * (float)g;
        ops_floats(&data, MOERT_OP_BUFFER_y_global)[g] = 2.0f - 0.25f * (float)g;
    }
    ops_bytes_fill(&data);
    return data;
}

TEST(test_wgrad_table) {
    static const uint32_t splits[][2] = {{256, 640}, {128, 256}};
    for (size_t i = 0; i < FORMATS * 2; i++) {
        if (suite_skips(i % 3 == 2))
            continue;
        moert_op_options o =
            describe(formats[i % FORMATS], i / FORMATS ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16);
        o.backend = suite_backends[i == 0 || i == 6];
        moert_op *op = ops_open(&o);
        for (size_t s = 0; s < 2; s++) {
            ops_bytes data = make(&o, splits[s]), plain = ops_bytes_decode(&data);
            ops_exact want = ops_exact_of(&plain, OPS_NEAR);
            ops_bytes_execute_op(op, &data, 1);
            ops_exact_check(moert_format_name(formats[i % FORMATS]), &data, &want);
            o.weight.discrete = true;
            ops_bytes discrete = make(&o, splits[s]);
            ops_bytes_execute("portable", &discrete);
            ops_assert_same_results("discrete", &discrete, &data);
            o.weight.discrete = false;
        }
    }
}

/* Two accumulations onto 0 give twice the gradient. An expert without rows keeps its old values. */
TEST(test_wgrad_accumulates) {
    static const uint32_t ends[] = {0, 384};
    for (size_t i = 0; i < (size_t)FORMATS * 4; i++) {
        moert_op_options o =
            describe(formats[i % FORMATS], i / FORMATS % 2 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16);
        o.weight.discrete = i / FORMATS / 2 == 1;
        o.n = 136;
        o.k = 200;
        ops_bytes once = make(&o, ends);
        ops_bytes_execute("portable", &once);
        o.accumulate = true;
        ops_bytes twice = make(&o, ends);
        for (size_t at = 0; at < 2 * o.n * o.k; at++)
            ops_bytes_put(&twice, MOERT_OP_BUFFER_weight, at, at < o.n * o.k ? 7.0 : 0.0);
        ops_bytes_execute(suite_backends[i % 2], &twice);
        ops_bytes_execute(suite_backends[i % 2], &twice);
        for (size_t at = 0; at < 2 * o.n * o.k; at++) {
            const double got = ops_bytes_get(&twice, MOERT_OP_BUFFER_weight, at);
            const double one = ops_bytes_get(&once, MOERT_OP_BUFFER_weight, at);
            if (at < o.n * o.k)
                assert_true(got == 7.0 && one == 0.0);
            else /* the second accumulation adds to a rounded value and is rounded again */
                assert_true(fabs(got - 2.0 * one) <=
                            (o.weight.type == MOERT_DTYPE_F32 ? 0.0 : 0x1p-7 * fabs(got)));
        }
    }
}

TESTS(open_test_device, close_test_device)
