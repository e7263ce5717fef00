// run: np=1 sanitize=1
/*
 * Ops with quantised operands, group by group and against float64: exact sums in groups of which
 * many are empty, groups of any size, alone and among others, padded with garbage; every order and
 * run of a GLU with factors of any sign.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/ops_exact.h"
#include "support/suite.h"

static const char *const backends[] = {"portable", "reference"};
static const moert_op_kind kinds[] = {MOERT_OP_GEMM_FORWARD, MOERT_OP_GEMM_DGRAD,
                                      MOERT_OP_GEMM_WGRAD, MOERT_OP_GLU, MOERT_OP_DGLU};
static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                       MOERT_FORMAT_MXFP4, MOERT_FORMAT_MXFP8_E5M2};
enum { KINDS = 5, PRODUCTS = 3, FORMATS = 4 };

static moert_operand scaled(moert_format format, moert_axis axis) {
    moert_operand operand = {.how = MOERT_QUANTIZER_INIT, .scales = MOERT_SCALES_TILED};
    operand.how.format = format;
    operand.how.axis = axis;
    return operand;
}

/* Factors in blocks along what is summed over; global scales by group. */
static moert_op_options describe(moert_op_kind kind, moert_format format, size_t groups,
                                 size_t rows) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    const bool wgrad = kind == MOERT_OP_GEMM_WGRAD;
    const bool forward = kind == MOERT_OP_GEMM_FORWARD || kind == MOERT_OP_GLU;
    moert_operand factor = scaled(format, wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW);
    factor.global = factor.how.group_scales = format == MOERT_FORMAT_NVFP4;
    o.kind = kind;
    o.groups = groups;
    o.rows = rows;
    o.n = 144; /* off 128 */
    o.k = 160;
    if (forward || wgrad)
        o.x = factor;
    if (!forward)
        o.y = factor;
    factor.how.axis = forward ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN;
    if (!wgrad)
        o.weight = factor;
    o.alpha = true;
    return o;
}

/* A GLU or dGLU with all that it can have. */
static moert_op_options describe_glu(moert_op_kind kind, moert_format format, size_t groups,
                                     size_t rows) {
    moert_op_options o = describe(kind, format, groups, rows);
    o.prob = o.amax = true;
    o.interleave = kind == MOERT_OP_GLU ? 8 : 32;
    o.save_c = kind == MOERT_OP_GLU;
    o.dprob = o.dbias = o.beta = kind == MOERT_OP_DGLU;
    return o;
}

static uint32_t *ends_of(const ops_bytes *data) {
    return (uint32_t *)(void *)data->at[MOERT_OP_BUFFER_ends];
}

static void check(const char *what, const moert_op_options *o, const uint32_t *ends,
                  double tolerance) {
    for (size_t b = 0; b < 2; b++) {
        char title[128];
        ops_bytes data = ops_bytes_make(o, ends);
        data.spread = tolerance > 0.0; /* or all of a GLU's results are next to boundaries */
        ops_bytes plain = ops_bytes_fill(&data);
        ops_exact want = ops_exact_of(&plain, tolerance);
        snprintf(title, sizeof title, "%s: %s, %s", what, moert_op_kind_name(o->kind), backends[b]);
        ops_bytes_execute(backends[b], &data);
        ops_exact_check(title, &data, &want);
        ops_exact_free(&want);
        ops_bytes_free(&data);
        ops_bytes_free(&plain);
    }
}

/* ---- exact sums ---- */

/* CUTLASS's test: elements -1, 0, 1, scales that are powers of two, float32 results. Stacked,
 * discrete and group by group are then one and the same. */
static void test_signs_multiply_exactly_in_groups_of_any_size(void **state) {
    (void)state;
    static const struct {
        size_t groups, rows, block;
    } cases[] = {{8, 512, 32}, {16, 256, 16}, {36, 400, 4}};
    size_t empty = 0;
    for (size_t i = 0; i < 3; i++)
        for (size_t c = 0; c < (size_t)PRODUCTS * FORMATS; c++) {
            uint32_t ends[OPS_MOST_GROUPS];
            if (suite_skips(i > 0 && (c / PRODUCTS + i) % 2 == 1))
                continue;
            moert_op_options o = describe(kinds[c % PRODUCTS], formats[c / PRODUCTS],
                                          cases[i].groups, cases[i].rows + 9);
            suite_dirichlet(10 * i + c, cases[i].rows, cases[i].block, cases[i].groups, ends);
            for (size_t g = 1; g < cases[i].groups; g++)
                empty += ends[g] == ends[g - 1];
            o.weight.discrete = c % 2 == 1;
            check("signs", &o, ends, 0.0);
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
    {"single rows", 36, 130, {1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,
                              13,  14,  15,  16,  17,  18,  127, 127, 128, 128, 128, 128,
                              128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 129, 130}},
};

static void test_any_split_of_the_rows_agrees_with_float64(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        for (size_t k = 0; k < KINDS; k++) {
            const struct split *s = &splits[i];
            const moert_format format = formats[(i + k) % FORMATS];
            const bool glu = k >= PRODUCTS;
            moert_op_options o = glu ? describe_glu(kinds[k], format, s->groups, s->rows)
                                     : describe(kinds[k], format, s->groups, s->rows);
            if (glu) { /* results in both directions */
                o.d = scaled(formats[i % FORMATS], MOERT_AXIS_ROW);
                o.column = scaled(formats[(i + 1) % FORMATS], MOERT_AXIS_COLUMN);
            }
            if (s->rows > 1000) {
                o.n = 48;
                o.k = 64;
            }
            o.weight.discrete = i % 2 == 1;
            check(s->name, &o, s->ends, glu ? OPS_NEAR : 0.0);
        }
}

/* ---- a group alone ---- */

static const moert_op_buffer by_rows[] = {MOERT_OP_BUFFER_prob, MOERT_OP_BUFFER_dprob};
static const moert_op_buffer by_groups[] = {MOERT_OP_BUFFER_alpha,         MOERT_OP_BUFFER_beta,
                                            MOERT_OP_BUFFER_x_global,      MOERT_OP_BUFFER_y_global,
                                            MOERT_OP_BUFFER_weight_global, MOERT_OP_BUFFER_amax,
                                            MOERT_OP_BUFFER_dbias};
static const moert_op_buffer factors[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_weight,
                                          MOERT_OP_BUFFER_y, MOERT_OP_BUFFER_c};
static const moert_op_buffer results[] = {MOERT_OP_BUFFER_d, MOERT_OP_BUFFER_column,
                                          MOERT_OP_BUFFER_c};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* What is done with a byte of one op and the one that it is in another. */
typedef bool (*deed)(unsigned char *to, const unsigned char *from, unsigned mask);

static bool copy(unsigned char *to, const unsigned char *from, unsigned mask) {
    *to = (unsigned char)((*to & ~mask) | (*from & mask));
    return true;
}

static bool same(unsigned char *to, const unsigned char *from, unsigned mask) {
    return (*to & mask) == (*from & mask);
}

/* The first rows of group g in `many` and of group h in `few`, which has no more of them. */
typedef struct pair {
    ops_bytes *few;
    const ops_bytes *many;
    size_t h, g, rows;
} pair;

static bool each_plain(const pair *p, moert_op_buffer which, size_t to, size_t from, size_t n,
                       deed act) {
    bool all = true;
    const size_t bytes = p->few->shape.needs[which].stride *
                         (moert_number_bits(p->few->shape.needs[which].type) / 8);
    for (size_t i = 0; i < n * bytes; i++)
        all =
            act(p->few->at[which] + to * bytes + i, p->many->at[which] + from * bytes + i, 0xFF) &&
            all;
    return all;
}

static bool each_element(const pair *p, moert_op_buffer which, deed act) {
    const ops_operand a = ops_find(&p->few->shape, ends_of(p->few), which);
    const ops_operand b = ops_find(&p->many->shape, ends_of(p->many), which);
    const size_t lines = a.weight ? a.ends[0] : p->rows;
    bool all = true;
    for (size_t line = 0; line < lines; line++)
        for (size_t j = 0; j < a.columns; j++) {
            const ops_place to = ops_locate(&a, p->h, line, j),
                            from = ops_locate(&b, p->g, line, j);
            const bool halves = moert_format_element_bits(a.as.how.format) == 4;
            assert_int_equal(to.shift, from.shift);
            all = act(p->few->at[which] + to.byte, p->many->at[which] + from.byte,
                      halves ? 0xFu << to.shift : 0xFF) &&
                  act(p->few->at[a.scale] + to.scale, p->many->at[a.scale] + from.scale, 0xFF) &&
                  all;
        }
    return all;
}

/* Does it to what the two have in `whole`, quantised or rows of plain numbers. */
static void each_matrix(const char *title, const pair *p, const moert_op_buffer *whole,
                        size_t count, deed act) {
    for (size_t i = 0; i < count; i++) {
        const moert_op_buffer which = whole[i];
        if (p->few->bytes[which] == 0)
            continue;
        const bool plain = which == MOERT_OP_BUFFER_c;
        const bool fine = plain
                              ? each_plain(p, which, p->h > 0 ? ends_of(p->few)[p->h - 1] : 0,
                                           p->g > 0 ? ends_of(p->many)[p->g - 1] : 0, p->rows, act)
                              : each_element(p, which, act);
        if (!fine)
            fail_msg("%s: %s of group %zu differs", title, moert_op_buffer_name(which), p->g);
    }
}

/* The numbers of the rows and of the group. */
static void each_number(const char *title, const pair *p, deed act, bool sums) {
    const size_t to = p->h > 0 ? ends_of(p->few)[p->h - 1] : 0;
    const size_t from = p->g > 0 ? ends_of(p->many)[p->g - 1] : 0;
    for (size_t i = 0; i < COUNT(by_rows); i++)
        for (size_t r = 0; p->few->bytes[by_rows[i]] > 0 && r < p->rows * sizeof(float); r++)
            if (!act(p->few->at[by_rows[i]] + to * sizeof(float) + r,
                     p->many->at[by_rows[i]] + from * sizeof(float) + r, 0xFF))
                fail_msg("%s: %s of group %zu differs", title, moert_op_buffer_name(by_rows[i]),
                         p->g);
    for (size_t i = 0; sums && i < COUNT(by_groups); i++) {
        const moert_op_buffer which = by_groups[i];
        const size_t share = p->few->bytes[which] / p->few->shape.options.groups;
        for (size_t k = 0; k < share; k++)
            if (!act(p->few->at[which] + p->h * share + k, p->many->at[which] + p->g * share + k,
                     0xFF))
                fail_msg("%s: %s of group %zu differs", title, moert_op_buffer_name(which), p->g);
    }
}

static void begin(const pair *p) {
    each_matrix("begin", p, factors, COUNT(factors), copy);
    each_number("begin", p, copy, true);
}

static void compare(const char *title, const pair *p) {
    each_matrix(title, p, results, COUNT(results), same);
    each_number(title, p, same, true);
}

static void test_a_group_alone_has_the_bytes_that_it_has_among_others(void **state) {
    (void)state;
    static const uint32_t ends[] = {0, 1, 32, 159, 287, 416, 716};
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++) {
        moert_op_options o =
            describe_glu(kinds[PRODUCTS + i / FORMATS], formats[i % FORMATS], COUNT(ends), 720);
        o.d = scaled(formats[i % FORMATS], MOERT_AXIS_ROW);
        o.column = scaled(formats[(i + 1) % FORMATS], MOERT_AXIS_COLUMN);
        ops_bytes start = ops_bytes_make(&o, ends), unused = ops_bytes_fill(&start),
                  all = ops_bytes_make(&o, ends), as_well = ops_bytes_fill(&all);
        ops_bytes_execute("portable", &all);
        o.weight.discrete = true;
        ops_bytes discrete = ops_bytes_make(&o, ends), too = ops_bytes_fill(&discrete);
        ops_bytes_execute("portable", &discrete);
        o.groups = 1;
        for (size_t g = 0; g < COUNT(ends); g++) {
            const uint32_t rows = ends[g] - (g > 0 ? ends[g - 1] : 0);
            compare("discrete", &(pair){&discrete, &all, g, g, rows});
            o.rows = rows;
            ops_bytes alone = ops_bytes_make(&o, &rows);
            begin(&(pair){&alone, &start, 0, g, rows});
            ops_bytes_execute("portable", &alone);
            compare("alone", &(pair){&alone, &all, 0, g, rows});
            ops_bytes_free(&alone);
        }
        ops_bytes *const ran[] = {&start, &unused, &all, &as_well, &discrete, &too};
        for (size_t k = 0; k < COUNT(ran); k++)
            ops_bytes_free(ran[k]);
    }
}

/* ---- padding ---- */

/* Groups filled up to whole blocks by rows of anything finite, of prob 0: they give zeros, and the
 * others do not notice. */
static void test_padding_rows_of_prob_0_change_nothing(void **state) {
    (void)state;
    static const uint32_t tight[] = {5, 5, 38, 100}, wide[] = {32, 32, 96, 160};
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++) {
        moert_op_options o =
            describe_glu(kinds[PRODUCTS + i / FORMATS], formats[i % FORMATS], 4, 160);
        o.d = scaled(formats[i % FORMATS], MOERT_AXIS_ROW);
        o.column = scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN);
        ops_bytes few = ops_bytes_make(&o, tight), many = ops_bytes_make(&o, wide);
        ops_bytes a = ops_bytes_fill(&few), b = ops_bytes_fill(&many);
        for (size_t g = 0; g < 4; g++) {
            const size_t first = g > 0 ? wide[g - 1] : 0;
            const size_t rows = tight[g] - (g > 0 ? tight[g - 1] : 0);
            begin(&(pair){&few, &many, g, g, rows});
            for (size_t r = first + rows; r < wide[g]; r++)
                ops_floats(&many, MOERT_OP_BUFFER_prob)[r] = 0.0f;
        }
        ops_bytes_execute(backends[i % 2], &few);
        ops_bytes_execute(backends[i % 2], &many);
        for (size_t g = 0; g < 4; g++)
            compare("padded", &(pair){&few, &many, g, g, tight[g] - (g > 0 ? tight[g - 1] : 0)});
        ops_bytes *const all[] = {&few, &many, &a, &b};
        for (size_t k = 0; k < COUNT(all); k++)
            ops_bytes_free(all[k]);
    }
}

/* ---- GLU ---- */

static void test_every_order_and_run_takes_factors_of_any_sign(void **state) {
    (void)state;
    static const size_t runs[] = {1, 8, 32, 0};
    static const moert_glu_form forms[] = {
        MOERT_GLU_SWIGLU, {false, 7.0f, 1.702f, 1.0f}, {false, 5.0f, 1.0f, 0.0f}};
    static const uint32_t ends[] = {3, 3, 40, 70, 97};
    static const float signs[] = {-1.5f, 0.0f, 2.0f, -1.0f, 0.5f};
    for (size_t i = 0; i < COUNT(runs) * 2 * 3 * 2; i++) {
        moert_op_options o = describe_glu(kinds[PRODUCTS + i % 2], formats[i / 2 % FORMATS], 5, 99);
        o.n = i % 2 == 0 ? 192 : 80;
        o.k = i % 2 == 0 ? 80 : 96;
        o.interleave = runs[i / 2 % COUNT(runs)];
        o.linear_first = i / 2 / COUNT(runs) % 2 == 1;
        o.glu = forms[i / 4 / COUNT(runs)];
        for (size_t b = 0; b < 2; b++) {
            ops_bytes data = ops_bytes_make(&o, ends);
            for (size_t g = 0; g < 5; g++)
                ops_floats(&data, MOERT_OP_BUFFER_alpha)[g] = signs[(g + i) % 5];
            for (size_t r = 0; r < 99; r++)
                ops_floats(&data, MOERT_OP_BUFFER_prob)[r] = signs[(r + i / 5) % 5];
            ops_bytes plain = ops_bytes_fill(&data);
            ops_exact want = ops_exact_of(&plain, OPS_NEAR);
            char title[64];
            snprintf(title, sizeof title, "case %zu, %s", i, backends[b]);
            ops_bytes_execute(backends[b], &data);
            ops_exact_check(title, &data, &want);
            ops_exact_free(&want);
            ops_bytes_free(&data);
            ops_bytes_free(&plain);
        }
    }
}

/* ---- most operands ---- */

/* Every buffer that a kind can have, at once. */
static void test_an_op_takes_all_its_operands_together(void **state) {
    (void)state;
    static const uint32_t ends[] = {3, 3, 40, 96};
    for (size_t k = 0; k < KINDS * 2; k++) {
        const moert_op_kind kind = kinds[k / 2];
        const bool glu = k / 2 >= PRODUCTS;
        moert_op_options o = glu ? describe_glu(kind, MOERT_FORMAT_NVFP4, 4, 96)
                                 : describe(kind, MOERT_FORMAT_NVFP4, 4, 96);
        o.beta = kind == MOERT_OP_GEMM_WGRAD || kind == MOERT_OP_DGLU;
        o.bias = kind == MOERT_OP_GEMM_FORWARD || kind == MOERT_OP_GLU;
        o.bias_scale = kind == MOERT_OP_GEMM_FORWARD;
        o.prob = glu || kind == MOERT_OP_GEMM_DGRAD;
        o.amax = kind != MOERT_OP_GEMM_WGRAD;
        o.permute = kind == MOERT_OP_DGLU || kind == MOERT_OP_GEMM_DGRAD ? MOERT_OP_PERMUTE_Y
                    : kind == MOERT_OP_GEMM_WGRAD                        ? MOERT_OP_PERMUTE_NONE
                                                                         : MOERT_OP_PERMUTE_X;
        if (kind != MOERT_OP_GEMM_WGRAD) {
            *(glu                           ? &o.d
              : kind == MOERT_OP_GEMM_DGRAD ? &o.x
                                            : &o.y) =
                scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_ROW);
            o.column = scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN);
            o.norm = true;
            /* gathered rows are one group */
            (o.permute == MOERT_OP_PERMUTE_X ? &o.x : &o.y)->how.group_scales = false;
        }
        ops_bytes got = ops_bytes_make(&o, ends);
        for (size_t i = 0; o.beta && kind == MOERT_OP_GEMM_WGRAD && i < 4 * o.n * o.k; i++)
            ops_floats(&got, MOERT_OP_BUFFER_weight)[i] = 1.0f;
        ops_bytes want = ops_bytes_fill(&got);
        if (kind == MOERT_OP_GEMM_WGRAD)
            memcpy(want.at[MOERT_OP_BUFFER_weight], got.at[MOERT_OP_BUFFER_weight],
                   got.bytes[MOERT_OP_BUFFER_weight]);
        ops_bytes_execute(backends[k % 2], &want);
        ops_bytes_execute(backends[k % 2], &got);
        ops_bytes_compare("all operands", &got, &want);
        ops_bytes_free(&got);
        ops_bytes_free(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signs_multiply_exactly_in_groups_of_any_size),
        cmocka_unit_test(test_any_split_of_the_rows_agrees_with_float64),
        cmocka_unit_test(test_a_group_alone_has_the_bytes_that_it_has_among_others),
        cmocka_unit_test(test_padding_rows_of_prob_0_change_nothing),
        cmocka_unit_test(test_every_order_and_run_takes_factors_of_any_sign),
        cmocka_unit_test(test_an_op_takes_all_its_operands_together),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
