// run: all=1
/*
 * Other libraries' tables of grouped GEMMs with quantized operands. From the cuDNN frontend: GLU,
 * dGLU, quant and weight gradients in nvfp4 (16, e4m3), mxfp4 (32, e8m0) and mxfp8. The data are
 * cuDNN's: elements uniform in [-2, 2), scales 1 and 2, few bits for alpha, beta and prob; prob is
 * 0 in a fifth of the rows. From TransformerEngine: NVFP4, and grouped NVFP4 and MXFP8, in TN, NN
 * and NT. Plain results may differ from float64 by 5e-6 of the largest element of their row;
 * quantized results must have equal bytes. cuDNN's tolerances are 0.1 and wider,
 * TransformerEngine's 8e-3. moert does not support fp4 with (16, e8m0), nor srelu.
 */
#include "device/internal.h"
#include "support/op/exact.h"
#include "support/suite.h"

enum { L = 4, M = 1024 };
static const uint32_t whole_tiles[L] = {256, 512, 768, M};

/* Describes an operand in cuDNN's layout: tiled scales, with groups padded to whole tiles. */
static moert_operand scaled(moert_format format, moert_axis axis) {
    moert_operand operand = ops_scaled(format, axis, MOERT_SCALES_TILED);
    operand.scales = MOERT_SCALES_TILED_WHOLE;
    return operand;
}

static bool is_fp8(moert_format format) {
    return format == MOERT_FORMAT_MXFP8_E4M3 || format == MOERT_FORMAT_MXFP8_E5M2;
}

/* Describes an op. FP8 GEMMs have FP8 results in blocks along rows and along columns, and a norm.
 * FP4 GEMMs have plain results of 16 or 32 bits. */
static moert_op_options describe(moert_op_kind kind, moert_format format, size_t n, size_t k,
                                 bool by_groups) {
    moert_op_options o = ops_gemm(kind, scaled(format, MOERT_AXIS_ROW), L, M, n, k);
    o.row_multiple = 256;
    o.interleave = 32;
    o.alpha = true;
    o.prob = true;
    o.c.type = o.bias_type = MOERT_DTYPE_BF16;
    o.save_c = kind == MOERT_OP_GLU;
    o.beta = o.dprob = kind == MOERT_OP_DGLU;
    o.amax = !is_fp8(format);
    ops_result(&o)->type = MOERT_DTYPE_BF16;
    if (!is_fp8(format))
        return o;
    *ops_result(&o) = scaled(format, MOERT_AXIS_ROW);
    o.column = scaled(format, MOERT_AXIS_COLUMN);
    o.column.scales = by_groups ? MOERT_SCALES_TILED : MOERT_SCALES_TILED_WHOLE;
    o.norm = true;
    return o;
}

/* Makes cuDNN's operands. No alpha is 0, because a group with alpha 0 has results of 0 in any case.
 * test_ops_groups tests such groups. */
static ops_bytes make(const moert_op_options *o, const uint32_t *ends) {
    ops_bytes data = ops_bytes_make(o, ends, OPS_SPREAD);
    for (size_t g = 0; g < o->groups; g++)
        ops_floats(&data, MOERT_OP_BUFFER_alpha)[g] = g % 2 == 0 ? 0.75f : -1.5f;
    return data;
}

/* Compares the first `count` backends with float64. */
static void check(const char *what, const moert_op_options *o, const uint32_t *ends, size_t count) {
    moert_op_options copy = *o;
    /* sums are exact, unless the op has a bias or FP8 operands: other values have few bits */
    const bool rounds = o->bias || is_fp8(ops_first_operand(&copy)->how.format);
    for (size_t b = 0; b < count; b++) {
        const size_t before = owned_count();
        ops_bytes data = make(o, ends);
        ops_exact_run(what, suite_backends[b], &data, rounds ? OPS_NEAR : 0.0);
        release_since(before);
    }
}

static const moert_format formats[] = {MOERT_FORMAT_NVFP4, MOERT_FORMAT_MXFP4,
                                       MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_MXFP8_E5M2};
enum { FORMATS = 4 };
static const moert_glu_form swiglu = MOERT_GLU_SWIGLU, geglu = {false, 7.0f, 1.702f, 1.0f, 0};

/* ---- GLU ---- */

TEST(test_glu_grid) {
    for (size_t i = 0; i < (size_t)FORMATS * 2 * 2; i++) {
        const moert_format format = formats[i % FORMATS];
        const bool second = i / FORMATS % 2 == 1, bias = i / FORMATS / 2 == 1;
        moert_op_options o = describe(MOERT_OP_GLU, format, 512, 512, second);
        if (second && !is_fp8(format))
            o.d.type = MOERT_DTYPE_F32;
        o.bias = bias;
        o.glu = bias != second ? geglu : swiglu;
        check(moert_format_name(format), &o, whole_tiles, i == 0 || i == 6 ? 2 : 1);
    }
}

/* Groups of 128, 320 and 96 rows are padded. The number of columns is not a multiple of any
 * tile. */
TEST(test_rectangular_glu) {
    static const uint32_t ends[] = {256, 768, 1024};
    for (size_t i = 0; i < FORMATS * 2; i++) {
        moert_op_options o = describe(MOERT_OP_GLU, formats[i % FORMATS], 384, 192, true);
        o.groups = 3;
        o.bias = i / FORMATS == 1;
        o.bias_type = i % 2 == 0 ? MOERT_DTYPE_F16 : MOERT_DTYPE_F32;
        check("rectangular", &o, ends, i == 0 || i == 2 ? 2 : 1);
    }
}

/* ---- discrete ---- */

/* K-major and N-major weights, stacked or discrete, give the same bits. */
TEST(test_discrete_weights_of_either_major_give_the_bits_of_the_stack) {
    for (size_t i = 0; i < (size_t)FORMATS * 2 * 2; i++) {
        const moert_format format = formats[i % FORMATS];
        const moert_op_kind kind = i / FORMATS % 2 == 0 ? MOERT_OP_GLU : MOERT_OP_DGLU;
        moert_op_options o = describe(kind, format, 192, 320, true);
        const uint32_t ends[L] = {0, 256, 512, 512};
        o.rows = 512;
        o.weight.scales = MOERT_SCALES_TILED; /* discrete weights need tiled scales */
        o.glu = i / FORMATS / 2 == 0 ? swiglu : geglu;
        o.bias = kind == MOERT_OP_GLU;
        o.dbias = kind == MOERT_OP_DGLU;
        ops_bytes stack = make(&o, ends);
        ops_exact_run("stacked", "portable", &stack, OPS_NEAR);
        for (size_t b = 1; b < 4; b++) {
            o.weight.discrete = b & 1;
            o.weight.how.transposed = b >> 1;
            ops_bytes other = make(&o, ends);
            ops_bytes_execute("portable", &other);
            ops_assert_same(b == 1 ? "discrete" : "the other major", &other, &stack, false);
        }
    }
}

/* ---- quant ---- */

TEST(test_quant_grid) {
    for (size_t i = 0; i < FORMATS * 2; i++) {
        moert_op_options o =
            describe(MOERT_OP_GEMM_FORWARD, formats[i % FORMATS], 512, 512, i / FORMATS == 0);
        /* with cuDNN's bias_scale (prob applied to the bias), cuDNN's suite never tests amax */
        if (i / FORMATS == 1) {
            o.prob = o.amax = false;
            o.bias = o.bias_scale = true;
        }
        check("quant", &o, whole_tiles, i == 0 ? 2 : 1);
    }
}

/* ---- dGLU ---- */

TEST(test_dglu_grid) {
    for (size_t i = 0; i < (size_t)FORMATS * 4; i++) {
        const moert_format format = formats[i % FORMATS];
        const size_t variant = i / FORMATS;
        moert_op_options o = describe(MOERT_OP_DGLU, format, 512, 256, variant % 2 == 1);
        o.weight.how.transposed = variant % 2 == 1;
        o.weight.scales = MOERT_SCALES_TILED;
        o.dbias = variant > 0;
        o.c.type = is_fp8(format) && variant == 2 ? MOERT_DTYPE_E4M3 : MOERT_DTYPE_BF16;
        o.glu = variant == 3 ? geglu : swiglu;
        if (!is_fp8(format) && variant == 2)
            o.d.type = MOERT_DTYPE_F32;
        check(moert_format_name(format), &o, whole_tiles, i % 10 == 0 ? 2 : 1);
    }
}

/* ---- groups of any size ---- */

/* An op that is compiled builds no other program, whatever the sizes of its groups. */
TEST(test_one_op_serves_every_size_of_the_groups) {
    static const uint32_t sizes[] = {64, 320, 576, 832, 0, 64};
    for (size_t i = 0; i < 4; i++) {
        moert_op_options o = i < 2 ? describe(MOERT_OP_GLU, formats[2 * i], 64, 128, true)
                                   : ops_sized(MOERT_OP_GEMM_FORWARD, L, 0, 40, 48);
        o.rows = L * 832;
        o.row_multiple = 64;
        o.backend = suite_backends[i == 3];
        moert_op *op = ops_open(&o);
        ASSERT_OK(moert_op_compile(op));
        for (size_t k = 0; k < MOERT_COUNT(sizes); k++) {
            const struct moert_program *const newest = test_device->programs;
            const uint32_t m = sizes[k], ends[L] = {m, 2 * m, 3 * m, 4 * m};
            ops_bytes data = i < 2 ? make(&o, ends) : ops_bytes_make(&o, ends, OPS_EXACT),
                      first = ops_bytes_copy(&data);
            ops_bytes_execute_op(op, &first);
            assert_ptr_equal(test_device->programs, newest);
            ops_exact_run_op("other sizes", op, &data, i < 2 ? OPS_NEAR : 0.0);
        }
    }
}

/* ---- cuDNN's weight gradients ---- */

static moert_op_options describe_wgrad(moert_format format, moert_dtype type) {
    /* each expert has its own tiles of scales */
    moert_operand operand = ops_scaled(format, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
    operand.how.transposed = true; /* the elements of a column, one per token, are contiguous */
    operand.global = operand.how.group_scales = format == MOERT_FORMAT_NVFP4;
    moert_op_options o = ops_gemm(MOERT_OP_GEMM_WGRAD, operand, 2, 640, 384, 640);
    o.row_multiple = 128;
    o.weight.type = type;
    return o;
}

/* If the op accumulates, the gradient of an expert without rows keeps its old values. */
TEST(test_wgrad_table) {
    static const struct {
        size_t n, k;
        bool accumulate;
        uint32_t splits[2][2];
    } cases[] = {{384, 640, false, {{256, 640}, {128, 256}}},
                 {136, 200, true, {{0, 384}, {0, 384}}}};
    for (size_t i = 0; i < FORMATS * 2 * 2; i++) {
        const size_t c = i / FORMATS / 2;
        moert_op_options o = describe_wgrad(formats[i % FORMATS],
                                            i / FORMATS % 2 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16);
        o.n = cases[c].n;
        o.k = cases[c].k;
        o.accumulate = cases[c].accumulate;
        o.backend = suite_backends[o.accumulate ? i % 2 : i == 0 || i == 6];
        moert_op *op = ops_open(&o);
        for (size_t s = 0; s < 2; s++) {
            ops_bytes data = ops_bytes_make(&o, cases[c].splits[s], OPS_SPREAD);
            ops_exact_run_op("wgrad", op, &data, OPS_NEAR);
            o.weight.discrete = true;
            ops_bytes discrete = ops_bytes_make(&o, cases[c].splits[s], OPS_SPREAD);
            ops_bytes_execute("portable", &discrete);
            ops_assert_same("discrete", &discrete, &data, false);
            o.weight.discrete = false;
            if (o.accumulate)
                ops_exact_run_op("wgrad of the sum", op, &data, OPS_NEAR);
        }
    }
}

/* ---- TransformerEngine ---- */

/* Tests one group in NVFP4 with results in float32 and bf16, and random splits into groups in NVFP4
 * and MXFP8 with stacked or discrete weights. */
TEST(test_quantized_gemms_of_every_layout) {
    enum { GEMMS = 3, ALONE = 8 };
    static const size_t shapes[][4] = {
        /* groups, rows, k, n */
        {1, 128, 128, 128},   {1, 256, 256, 256},   {1, 112, 128, 96},    {1, 304, 640, 304},
        {1, 256, 64, 256},    {1, 128, 128, 112},   {1, 1008, 3072, 992}, {1, 4096, 512, 3072},
        {1, 128, 128, 512},   {8, 1024, 128, 512},  {3, 768, 256, 384},   {3, 864, 288, 416},
        {16, 4096, 128, 512}, {2, 256, 2880, 2880}, {3, 1536, 384, 640}};
    for (size_t i = 0; i < MOERT_COUNT(shapes) * GEMMS * 2; i++) {
        const size_t *s = shapes[i / GEMMS / 2];
        const bool alone = i / GEMMS / 2 < ALONE, second = i / GEMMS % 2;
        const moert_format format = alone || second ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3;
        uint32_t ends[OPS_MOST_GROUPS];
        moert_op_options o = ops_gemm((moert_op_kind)(i % GEMMS), ops_scaled_by_groups(format),
                                      s[0], s[1], s[3], s[2]);
        suite_split(i, s[1], s[0], ends);
        ops_result(&o)->type = alone && second ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
        o.weight.discrete = !alone && (i + i / GEMMS / 2) % 2 == 1;
        const bool small = o.rows * o.n * o.k <= (size_t)16 << 20;
        for (size_t b = 0; b < (small ? BACKENDS : 1u); b++)
            ops_check_on(suite_backends[b], "GEMM", &o, ends, OPS_NEAR);
    }
}

TESTS(open_test_device, close_test_device)
