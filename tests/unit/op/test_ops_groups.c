// run: check=1 all=1,1san
/* Groups of ops. Groups of plain and quantized GLU and dGLU ops and of plain GEMMs. A group's
 * results have the same bytes with discrete weights, in an op of only that group, and with padding
 * rows of garbage and prob 0. Results do not depend on the position of the group's tiles of scales.
 * Ops with quantized operands agree with float64. The cases are exact sums with many empty groups
 * and groups of any size; every order and run of a GLU, with alpha and prob of any sign; ops with
 * all operands. */
#include "support/op/exact.h"
#include "support/suite.h"

static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                       MOERT_FORMAT_MXFP4, MOERT_FORMAT_MXFP8_E5M2};
enum { GEMMS = 3, FORMATS = 4 };

/* ---- ops ---- */

/* Describes an op with a global scale per group; a GLU or dGLU gets every option. */
static moert_op_options describe(size_t kind, moert_format format, size_t groups, size_t rows) {
    moert_op_options o = ops_gemm((moert_op_kind)kind, ops_scaled_by_groups(format), groups, rows,
                                  144, 160); /* n and k are no multiples of 128 */
    if (kind >= GEMMS)
        ops_add_everything(&o);
    o.alpha = true;
    return o;
}

/* Gives an op results that are quantized along rows and along columns. */
static moert_op_options with_results(moert_op_options o, moert_format d, moert_format column) {
    o.d = ops_scaled(d, MOERT_AXIS_ROW, MOERT_SCALES_TILED);
    o.column = ops_scaled(column, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
    return o;
}

/* Describes a plain op with every option that GLU case i allows. */
static moert_op_options case_of(size_t i) {
    moert_op_options o = ops_glu_case(i % 2 ? MOERT_OP_DGLU : MOERT_OP_GLU, i / 2);
    const bool glu = o.kind == MOERT_OP_GLU;
    o.save_c = glu;
    o.bias = glu && i / 2 % 3 == 1;
    o.dprob = o.dbias = !glu;
    o.beta = !glu && i / 2 % 2 == 1;
    o.weight.discrete = false;
    return o;
}

static bool is_plain(moert_op_options o) {
    return ops_first_operand(&o)->how.size == 0;
}

static ops_bytes make(const moert_op_options *o, const uint32_t *ends) {
    return ops_bytes_make(o, ends, is_plain(*o) ? OPS_NORMAL : OPS_EXACT);
}

/* ---- single groups ---- */

static void check_alone(const char *title, const char *backend, moert_op_options o,
                        const uint32_t *ends) {
    const size_t before = owned_count();
    const ops_bytes start = make(&o, ends);
    ops_bytes all = ops_bytes_copy(&start);
    ops_bytes_execute(backend, &all);
    o.weight.discrete = true;
    ops_bytes discrete = make(&o, ends);
    ops_bytes_execute(backend, &discrete);
    ops_assert_same(title, &discrete, &all, false);
    for (size_t g = 0; g < o.groups; g++) /* also the weights */
        ops_assert_same_rows(
            titled("%s, discrete", title),
            &(ops_pair){&discrete, &all, g, g, ends[g] - ops_group_start(ends, g), 0});
    o.weight.discrete = !is_plain(o);
    ops_check_alone(title, backend, o, &start, &all);
    release_since(before);
}

TEST(test_a_group_alone_has_the_bytes_that_it_has_among_others) {
    static const uint32_t ends[] = {0, 1, 32, 159, 287, 416, 716};
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++)
        check_alone(moert_format_name(formats[i % FORMATS]), "portable",
                    with_results(describe(MOERT_OP_GLU + i / FORMATS, formats[i % FORMATS],
                                          MOERT_COUNT(ends), 720),
                                 formats[i % FORMATS], formats[(i + 1) % FORMATS]),
                    ends);
}

TEST(test_stacked_discrete_and_single_groups_have_the_same_bits) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++)
        check_alone(titled("case %zu", i), backends[i % 5 != 0], case_of(i), ops_glu_ends);
    for (moert_op_kind kind = MOERT_OP_GEMM_FORWARD; kind <= MOERT_OP_GEMM_DGRAD; kind++) {
        static const uint32_t ends[] = {7, 32, 57};
        moert_op_options o = ops_sized(kind, 3, 60, 144, 200);
        o.x.type = o.y.type = o.weight.type = MOERT_DTYPE_BF16;
        check_alone("GEMM", "portable", o, ends);
    }
}

/* ---- padding ---- */

/* Fills row r of an input with garbage. */
static void spoil(ops_bytes *data, moert_op_buffer which, size_t r) {
    const size_t stride = data->shape.needs[which].stride;
    for (size_t j = 0; data->bytes[which] > 0 && j < stride; j++)
        ops_bytes_put(data, which, r * stride + j, j % 2 ? -104.0 : 96.0);
}

/* Pads the groups with rows of finite garbage and prob 0. Checks that the padding rows give zeros,
 * and that the other rows do not change. */
static void check_padded(const char *title, const char *backend, moert_op_options o,
                         const uint32_t *tight, const uint32_t *wide) {
    const size_t before = owned_count();
    ops_bytes few = make(&o, tight);
    o.rows = wide[o.groups - 1];
    ops_bytes many = make(&o, wide);
    const moert_op_need *d = &many.shape.needs[MOERT_OP_BUFFER_d];
    for (size_t g = 0; g < o.groups; g++) {
        const size_t rows = tight[g] - ops_group_start(tight, g);
        ops_copy_rows(&(ops_pair){&few, &many, g, g, rows, 0});
        for (size_t r = ops_group_start(wide, g) + rows; r < wide[g]; r++) {
            ops_floats(&many, MOERT_OP_BUFFER_prob)[r] = 0.0f;
            for (moert_op_buffer i = MOERT_OP_BUFFER_x; is_plain(o) && i < MOERT_OP_BUFFER_d; i++)
                if (i != MOERT_OP_BUFFER_weight)
                    spoil(&many, i, r);
        }
    }
    ops_bytes_execute(backend, &few);
    ops_bytes_execute(backend, &many);
    for (size_t g = 0; g < o.groups; g++) {
        const size_t rows = tight[g] - ops_group_start(tight, g);
        ops_assert_same_rows(title, &(ops_pair){&few, &many, g, g, rows, 0});
        for (size_t r = ops_group_start(wide, g) + rows; is_plain(o) && r < wide[g]; r++)
            for (size_t j = 0; j < d->width; j++)
                assert_true(ops_bytes_get(&many, MOERT_OP_BUFFER_d, r * d->stride + j) == 0.0);
    }
    release_since(before);
}

TEST(test_padding_rows_of_prob_0_change_nothing) {
    static const uint32_t tight[] = {5, 5, 38, 100}, whole_blocks[] = {32, 32, 96, 160};
    uint32_t wide[OPS_GLU_GROUPS], end = 0;
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++)
        check_padded(
            moert_format_name(formats[i % FORMATS]), backends[i % 2],
            with_results(describe(MOERT_OP_GLU + i / FORMATS, formats[i % FORMATS], 4, 160),
                         formats[i % FORMATS], MOERT_FORMAT_MXFP8_E4M3),
            tight, whole_blocks);
    for (size_t g = 0; g < OPS_GLU_GROUPS; g++)
        wide[g] = end +=
            (uint32_t)moert_round_up(ops_glu_ends[g] - ops_group_start(ops_glu_ends, g), 16);
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = case_of(i);
        o.prob = true;
        check_padded(titled("case %zu", i), backends[i % 5 != 0], o, ops_glu_ends, wide);
    }
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

/* ---- any split of the rows into groups ---- */

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
            if (k >= GEMMS)
                o = with_results(o, formats[i % FORMATS], formats[(i + 1) % FORMATS]);
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

/* ---- ops with as many operands as possible ---- */

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
