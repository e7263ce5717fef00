// run: np=1
/*
 * The cuDNN frontend's tables of grouped GEMMs with quantised operands: GLU, dGLU, quant and wgrad
 * in nvfp4 (16, e4m3), mxfp4 (32, e8m0) and mxfp8, on its data: elements uniform in [-2, 2), scales
 * 1 and 2, small integers for alpha, beta and prob. Every case against float64, byte by byte where
 * the result is quantised; its tolerances are 0.1 and wider. Not offered here: fp4 with
 * (16, e8m0), and srelu.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/ops_exact.h"
#include "support/suite.h"

static const char *const backends[] = {"portable", "reference"};
enum { L = 4, M = 1024 };
static const uint32_t whole_tiles[L] = {256, 512, 768, M};

/* cuDNN's operands: tiles of scales, rows of groups that are padded to whole tiles. */
static moert_operand scaled(moert_format format, moert_axis axis) {
    moert_operand operand = {.how = MOERT_QUANTIZER_INIT, .scales = MOERT_SCALES_TILED_WHOLE};
    operand.how.format = format;
    operand.how.axis = axis;
    return operand;
}

static bool is_fp8(moert_format format) {
    return format == MOERT_FORMAT_MXFP8_E4M3 || format == MOERT_FORMAT_MXFP8_E5M2;
}

/* The factors of a forward or backward product. */
static moert_op_options describe(moert_op_kind kind, moert_format format, size_t n, size_t k) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = kind;
    o.groups = L;
    o.rows = M;
    o.n = n;
    o.k = k;
    o.row_multiple = 256;
    o.interleave = 32;
    *(kind == MOERT_OP_DGLU ? &o.y : &o.x) = scaled(format, MOERT_AXIS_ROW);
    o.weight = scaled(format, MOERT_AXIS_ROW);
    if (kind == MOERT_OP_DGLU) /* N is summed over */
        o.weight = scaled(format, MOERT_AXIS_COLUMN);
    o.alpha = true;
    o.prob = true;
    o.c.type = o.bias_type = MOERT_NUMBER_BF16;
    o.save_c = kind == MOERT_OP_GLU;
    o.beta = o.dprob = kind == MOERT_OP_DGLU;
    return o;
}

/* FP8 products have results of FP8 in both directions, and norm; FP4 ones of 16 or 32 bits. */
static void set_results(moert_op_options *o, moert_format format, bool by_groups) {
    moert_operand *d = o->kind == MOERT_OP_GEMM_FORWARD ? &o->y : &o->d;
    o->amax = !is_fp8(format);
    d->type = MOERT_NUMBER_BF16;
    if (!is_fp8(format))
        return;
    *d = scaled(format, MOERT_AXIS_ROW);
    o->column = scaled(format, MOERT_AXIS_COLUMN);
    o->column.scales = by_groups ? MOERT_SCALES_TILED : MOERT_SCALES_TILED_WHOLE;
    o->norm = true;
}

static void put_all(ops_bytes *data, moert_op_buffer which, size_t n, double (*value)(size_t)) {
    for (size_t i = 0; data->bytes[which] > 0 && i < n; i++)
        ops_bytes_put(data, which, i, value(i));
}

static double integer(size_t i) {
    return (double)(suite_bits(7, i) % 4) - 2.0;
}

static double uniform(size_t i) {
    return 4.0 * (double)suite_uniform(8, i) - 2.0;
}

static double zero(size_t i) {
    (void)i;
    return 0.0;
}

static double alpha_of(size_t i) {
    static const double alphas[] = {1.0, -1.5, 0.75, 2.0};
    return alphas[i % 4];
}

/* cuDNN's factors; a zero among alphas would hide a group. */
static ops_bytes make(const moert_op_options *o, const uint32_t *ends, double (*prob)(size_t)) {
    ops_bytes data = ops_bytes_make(o, ends);
    data.spread = true;
    put_all(&data, MOERT_OP_BUFFER_alpha, o->groups, alpha_of);
    put_all(&data, MOERT_OP_BUFFER_beta, o->groups, alpha_of);
    put_all(&data, MOERT_OP_BUFFER_prob, o->rows, prob);
    put_all(&data, MOERT_OP_BUFFER_bias, o->groups * o->n, uniform);
    if (o->kind == MOERT_OP_DGLU)
        put_all(&data, MOERT_OP_BUFFER_c, o->rows * 2 * o->k, uniform);
    if (o->norm)
        ops_floats(&data, MOERT_OP_BUFFER_norm)[0] = 0.01f;
    return data;
}

/* c and bias, which the values of the plain op are read from, in their own type. */
static ops_bytes values_of(ops_bytes *data) {
    ops_bytes plain = ops_bytes_fill(data);
    static const moert_op_buffer typed[] = {MOERT_OP_BUFFER_c, MOERT_OP_BUFFER_bias};
    for (size_t i = 0; i < 2; i++)
        memcpy(plain.at[typed[i]], data->at[typed[i]], data->bytes[typed[i]]);
    return plain;
}

static moert_format first_format(const moert_op_options *o) {
    return o->kind == MOERT_OP_DGLU ? o->y.how.format : o->x.how.format;
}

/* Both backends, or the first of them, against float64. */
static void check(const char *what, const moert_op_options *o, const uint32_t *ends,
                  double (*prob)(size_t), size_t count) {
    for (size_t b = 0; b < count; b++) {
        char title[128];
        ops_bytes data = make(o, ends, prob), plain = values_of(&data);
        /* sums of few bits are exact */
        ops_exact want = ops_exact_of(&plain, o->bias || is_fp8(first_format(o)) ? OPS_NEAR : 0.0);
        snprintf(title, sizeof title, "%s: %s, %s", what, moert_op_kind_name(o->kind), backends[b]);
        ops_bytes_execute(backends[b], &data);
        ops_exact_check(title, &data, &want);
        ops_exact_free(&want);
        ops_bytes_free(&data);
        ops_bytes_free(&plain);
    }
}

static const moert_format formats[] = {MOERT_FORMAT_NVFP4, MOERT_FORMAT_MXFP4,
                                       MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_MXFP8_E5M2};
enum { FORMATS = 4 };
static const moert_glu_form swiglu = MOERT_GLU_SWIGLU, geglu = {false, 7.0f, 1.702f, 1.0f};

/* ---- GLU ---- */

static void test_glu_grid(void **state) {
    (void)state;
    for (size_t i = 0; i < (size_t)FORMATS * 2 * 2; i++) {
        const moert_format format = formats[i % FORMATS];
        const bool second = i / FORMATS % 2 == 1, bias = i / FORMATS / 2 == 1;
        if (suite_skips(bias && second))
            continue;
        moert_op_options o = describe(MOERT_OP_GLU, format, 512, 512);
        set_results(&o, format, second);
        if (second && !is_fp8(format))
            o.d.type = MOERT_NUMBER_F32;
        o.bias = bias;
        o.glu = bias != second ? geglu : swiglu;
        check(moert_format_name(format), &o, whole_tiles, integer, i % 5 == 0 ? 2 : 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_glu_grid),
    };
    return cmocka_run_group_tests_name("suite of cuDNN, quantised", tests, open_test_device,
                                       close_test_device);
}
