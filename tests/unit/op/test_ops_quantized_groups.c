// run: check=1 all=1,1san
/* Ops with quantized operands against float64: exact sums, with many empty groups and groups of any
 * size; every order and run of a GLU, with alpha and prob of any sign; ops with all operands. */
#include "base/memory.h"
#include "support/op/exact.h"
#include "support/suite.h"

static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                       MOERT_FORMAT_MXFP4, MOERT_FORMAT_MXFP8_E5M2};
enum { GEMMS = 3, FORMATS = 4 };

/* An op with a global scale per group; a GLU or dGLU has every option. */
static moert_op_options describe(size_t kind, moert_format format, size_t groups, size_t rows) {
    moert_op_options o = ops_gemm((moert_op_kind)kind, ops_scaled_by_groups(format), groups, rows,
                                  144, 160); /* n and k are no multiples of 128 */
    if (kind >= GEMMS)
        ops_add_everything(&o);
    o.alpha = true;
    return o;
}

/* ---- exact sums ---- */

/* As in CUTLASS's test, elements are -1, 0 and 1, scales are powers of two, and results are
 * float32. Sums are exact, so stacked, discrete and single groups have the same results. */
TEST(test_signs_multiply_exactly_in_groups_of_any_size) {
    static const struct {
        size_t groups, rows, block;
    } cases[] = {{8, 512, 32}, {16, 256, 16}, {36, 400, 4}};
    size_t empty = 0;
    for (size_t i = 0; i < 3; i++)
        for (size_t c = 0; c < (size_t)GEMMS * FORMATS; c++) {
            uint32_t ends[OPS_MOST_GROUPS];
            if (suite_skips(i > 0 && (c / GEMMS + i) % 2 == 1))
                continue;
            moert_op_options o =
                describe(c % GEMMS, formats[c / GEMMS], cases[i].groups, cases[i].rows + 9);
            suite_dirichlet(10 * i + c, cases[i].rows, cases[i].block, cases[i].groups, ends);
            for (size_t g = 1; g < cases[i].groups; g++)
                empty += ends[g] == ends[g - 1];
            o.weight.discrete = c % 2 == 1;
            ops_check("signs", &o, ends, 0.0);
        }
    assert_true(empty > 50);
}

/* ---- groups ---- */

static const struct split {
    const char *name;
    size_t groups, rows;
    uint32_t ends[OPS_MOST_GROUPS];
} splits[] = {
    {"scales from tile to tile", 7, 720, {0, 1, 32, 159, 287, 416, 716}},
    {"all empty", 4, 40, {0}},
    {"empty in front", 4, 70, {0, 0, 31, 70}},
    {"empty between", 4, 70, {33, 33, 33, 70}},
    {"empty behind", 4, 70, {3, 64, 64, 64}},
    {"one takes all", 4, 100, {0, 100, 100, 100}},
    {"rows past the end", 3, 200, {1, 2, 65}},
    {"unaligned", 4, 1792, {64, 384, 960, 1792}},
    {"single rows", 36, 2000, OPS_36_EXPERTS},
};

TEST(test_any_split_of_the_rows_agrees_with_float64) {
    for (size_t i = 0; i < MOERT_COUNT(splits); i++)
        for (size_t k = 0; k < MOERT_OP_KINDS; k++) {
            const struct split *s = &splits[i];
            const moert_format format = formats[(i + k) % FORMATS];
            moert_op_options o = describe(k, format, s->groups, s->rows);
            if (k >= GEMMS) { /* a GLU has results quantized along rows and along columns */
                o.d = ops_scaled(formats[i % FORMATS], MOERT_AXIS_ROW, MOERT_SCALES_TILED);
                o.column =
                    ops_scaled(formats[(i + 1) % FORMATS], MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
            }
            if (s->rows > 1000) {
                o.n = 48;
                o.k = 64;
            }
            o.weight.discrete = i % 2 == 1;
            ops_check(s->name, &o, s->ends, 0.0);
        }
}

/* ---- GLU ---- */

TEST(test_every_order_and_run_takes_alpha_and_prob_of_any_sign) {
    enum { RUNS = 4 };
    static const size_t runs[RUNS] = {1, 8, 32, 0};
    static const moert_glu_form forms[] = {
        MOERT_GLU_SWIGLU, {false, 7.0f, 1.702f, 1.0f, 0}, {false, 5.0f, 1.0f, 0.0f, 0}};
    static const uint32_t ends[] = {3, 3, 40, 70, 97};
    for (size_t i = 0; i < RUNS * 2 * 3 * 2; i++) {
        moert_op_options o = describe(GEMMS + i % 2, formats[i / 2 % FORMATS], 5, 99);
        o.n = i % 2 == 0 ? 192 : 80;
        o.k = i % 2 == 0 ? 80 : 96;
        o.interleave = runs[i / 2 % RUNS];
        o.linear_first = i / 2 / RUNS % 2 == 1;
        o.glu = forms[i / 4 / RUNS];
        ops_check(titled("case %zu", i), &o, ends, OPS_NEAR);
    }
}

/* ---- most operands ---- */

/* Each op has every buffer that its kind can have. */
TEST(test_an_op_takes_all_its_operands_together) {
    static const uint32_t ends[] = {3, 3, 40, 96};
    for (size_t k = 0; k < (size_t)MOERT_OP_KINDS * 2; k++) {
        const moert_op_kind kind = (moert_op_kind)(k / 2);
        const bool glu = kind >= MOERT_OP_GLU;
        moert_op_options o = describe(kind, MOERT_FORMAT_NVFP4, 4, 96);
        o.beta = kind == MOERT_OP_GEMM_WGRAD || kind == MOERT_OP_DGLU;
        o.bias = kind == MOERT_OP_GEMM_FORWARD || kind == MOERT_OP_GLU;
        o.bias_scale = kind == MOERT_OP_GEMM_FORWARD;
        o.prob = glu || kind == MOERT_OP_GEMM_DGRAD;
        o.amax = kind != MOERT_OP_GEMM_WGRAD;
        o.permute = kind == MOERT_OP_DGLU || kind == MOERT_OP_GEMM_DGRAD ? MOERT_OP_PERMUTE_Y
                    : kind == MOERT_OP_GEMM_WGRAD                        ? MOERT_OP_PERMUTE_NONE
                                                                         : MOERT_OP_PERMUTE_X;
        if (kind != MOERT_OP_GEMM_WGRAD) {
            *ops_result(&o) =
                ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_ROW, MOERT_SCALES_TILED);
            o.column = ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
            o.norm = true;
            /* a gathered operand has one global scale for all rows */
            (o.permute == MOERT_OP_PERMUTE_X ? &o.x : &o.y)->how.group_scales = false;
        }
        ops_check_on(backends[k % 2], "all operands", &o, ends, 0.0);
    }
}

TESTS(open_test_device, close_test_device)
