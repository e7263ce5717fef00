// run: check=1
/*
 * TransformerEngine's tables of grouped GEMMs in 32 and 16 bits: TN, NN and NT, with and without
 * accumulation. Each group has the same bits when computed alone. Results are within
 * TransformerEngine's tolerances of float64, and have the bits of the fma chain that moert/ops.h
 * promises.
 */
#include "base/memory.h"
#include "support/gemm/suite_gemm.h"
#include "support/op/cases.h"
#include "support/suite.h"

static const moert_dtype types[] = {MOERT_DTYPE_BF16, MOERT_DTYPE_F32, MOERT_DTYPE_F16};
enum { KINDS = 3, TYPES = 3, MOST_GROUPS = 16, SAMPLES = 1024 };

/* Checks a GEMM on the portable backend. If it is small, the reference must have the same bits. */
static void check(const char *what, const suite_gemm *p, double absolute, double relative) {
    const char *title = titled("%s: %s", what, ops_title(&p->options));
    void *result = suite_gemm_run("portable", p);
    suite_gemm_check(title, p, result, SAMPLES, absolute, relative);
    suite_gemm_check_parts(title, p, result);
    suite_gemm_check_backends(title, p, result, (size_t)16 << 20);
}

typedef struct shape {
    size_t groups, rows, k, n;
    bool slow;
} shape;

TEST(test_random_splits_have_the_bits_of_each_group_alone) {
    static const shape shapes[] = {{1, 127, 128, 512, false},
                                   {8, 15, 128, 512, false},
                                   {8, 1027, 128, 512, false},
                                   {16, 10027, 128, 512, true}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (size_t c = 0; c < (size_t)KINDS * TYPES * 2 && !suite_skips(shapes[i].slow); c++) {
            const shape *s = &shapes[i];
            uint32_t ends[MOST_GROUPS];
            suite_gemm p = suite_gemm_of((moert_op_kind)(c % KINDS), types[c / KINDS % TYPES],
                                         s->groups, s->rows, s->n, s->k);
            suite_split(i, s->rows, s->groups, ends);
            p.ends = ends;
            p.options.accumulate = c >= (size_t)KINDS * TYPES;
            check("random split", &p, 1e-5, 1e-5);
        }
}

/* Tests wgrad with 16-bit operands that accumulates in float32. */
TEST(test_weight_gradients_of_16_bits_accumulate_in_float32) {
    static const size_t rows[] = {15, 1027};
    for (size_t i = 0; i < 4; i++) {
        uint32_t ends[8];
        suite_gemm p =
            suite_gemm_of(MOERT_OP_GEMM_WGRAD, types[i % 2 * 2], 8, rows[i / 2], 512, 128);
        suite_split(i, rows[i / 2], 8, ends);
        p.ends = ends;
        p.options.weight.type = MOERT_DTYPE_F32;
        p.options.accumulate = true;
        check("main gradient", &p, 1e-5, 1e-5);
    }
}

TEST(test_grouped_tensors_take_discrete_weights_and_scaled_biases) {
    static const shape shapes[] = {{4, 256, 256, 256, false},
                                   {4, 512, 512, 256, false},
                                   {4, 512, 256, 512, false},
                                   {8, 512, 512, 256, false}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (size_t c = 0; c < KINDS * 4; c++) {
            const shape *s = &shapes[i];
            uint32_t ends[MOST_GROUPS];
            suite_gemm p = suite_gemm_of((moert_op_kind)(c % KINDS), MOERT_DTYPE_BF16, s->groups,
                                         s->rows, s->n, s->k);
            suite_split(100 + i, s->rows, s->groups, ends);
            p.ends = ends;
            p.options.weight.discrete = c / KINDS % 2 == 1;
            p.options.bias = c % KINDS == 0;
            p.options.bias_scale = p.options.bias && c / KINDS / 2 == 1;
            p.options.accumulate = c % KINDS != 0 && c / KINDS / 2 == 1;
            check("grouped tensor", &p, 1e-5, 1.6e-2);
        }
}

/* Tests groups of equal sizes, of different sizes, and without rows. If the weights of a table row
 * differ in size, each weight is a separate case. */
TEST(test_groups_with_equal_different_or_no_rows) {
    static const struct {
        size_t groups, n, k, rows[3];
    } cases[] = {
        {3, 256, 384, {128, 128, 128}}, {3, 256, 384, {64, 128, 192}}, {3, 256, 384, {128, 0, 384}},
        {1, 128, 256, {384}},           {1, 512, 640, {384}},          {1, 256, 384, {128}},
        {3, 288, 416, {160, 160, 160}}, {3, 256, 384, {0, 0, 0}},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        for (size_t c = 0; c < KINDS * 2; c++) {
            uint32_t ends[3], rows = 0;
            for (size_t g = 0; g < cases[i].groups; g++)
                ends[g] = rows += (uint32_t)cases[i].rows[g];
            suite_gemm p = suite_gemm_of((moert_op_kind)(c % KINDS), MOERT_DTYPE_BF16,
                                         cases[i].groups, rows, cases[i].n, cases[i].k);
            p.ends = ends;
            p.options.accumulate = c >= KINDS;
            p.options.weight.discrete = c >= KINDS;
            check("fixed split", &p, 1e-5, 1.6e-2);
        }
}

TESTS(open_test_device, close_test_device)
