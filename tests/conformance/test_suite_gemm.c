// run: check=1 night=1
/*
 * Other libraries' tables of grouped GEMMs in 32 and 16 bits: TransformerEngine's TN, NN and NT,
 * with and without accumulation; the table of the cuDNN frontend, whose own suite does not check
 * the results; the exact test of CUTLASS's MoE example, with small integers and many empty groups;
 * Unsloth's forward, dX and dW in a MoE block. Results are within each library's tolerance of
 * float64, and have the bits of the fma chain that moert/ops.h promises, on both backends, and for
 * each group alone.
 */
#include "base/dtype.h"
#include "support/op/exact.h"
#include "support/suite.h"

static const moert_dtype types[] = {MOERT_DTYPE_BF16, MOERT_DTYPE_F32, MOERT_DTYPE_F16};
enum { KINDS = 3, TYPES = 3, MOST_GROUPS = OPS_MOST_GROUPS };

/* How a library's results are checked. */
typedef struct library {
    ops_values values;
    size_t samples;
    double absolute, relative;
    /* largest number of products for which the reference backend runs, too, and must have the same
     * bits */
    size_t most;
    bool alone; /* also run each group in an op of its own */
} library;
static const library te = {OPS_SMALL, 1024, 1e-5, 1e-5, (size_t)16 << 20, true},
                     te_grouped = {OPS_SMALL, 1024, 1e-5, 1.6e-2, (size_t)16 << 20, true},
                     cudnn = {OPS_SMALL, 4096, 1e-5, 1e-5, SIZE_MAX, true},
                     cutlass = {OPS_EXACT, 4096, 0.0, 0.0, SIZE_MAX, false};

/* Checks an element of a result. The element must have the bits of the promised chain of fma, and
 * differ from float64 by at most absolute + (relative + rounding of the dtype) * |value|. */
static void check_element(const char *title, const library *by, const ops_bytes *before,
                          const ops_bytes *got, const ops_element *e) {
    const moert_op_options *o = &before->shape.options;
    const moert_op_buffer which = ops_result_buffer(o->kind);
    const moert_dtype type = before->shape.needs[which].type;
    const double unit = type == MOERT_DTYPE_BF16  ? 0x1p-8
                        : type == MOERT_DTYPE_F16 ? 0x1p-11
                                                  : 0x1p-24;
    float chain = 0.0f;
    double exact = 0.0;
    for (size_t t = 0; t < e->terms; t++) {
        const ops_factors f = ops_factors_of(before, e, t);
        chain = fmaf(f.a, f.b, chain);
        exact += (double)f.a * (double)f.b;
    }
    if (o->bias) {
        const size_t row = ops_group_start(ops_bytes_ends(before), e->g) + e->line;
        const float bias =
            (float)ops_bytes_get(before, MOERT_OP_BUFFER_bias, e->g * o->n + e->j) *
            (o->bias_scale ? ops_floats(before, MOERT_OP_BUFFER_bias_scale)[row] : 1.0f);
        chain += bias;
        exact += (double)bias;
    }
    if (o->accumulate) {
        const double old = ops_bytes_get(before, which, e->at);
        chain += (float)old;
        exact += old;
    }
    const double value = ops_bytes_get(got, which, e->at), want = (double)round_to(type, chain);
    if (value != want || signbit(value) != signbit(want) ||
        !(fabs(value - exact) <= by->absolute + (by->relative + unit) * fabs(exact)))
        fail_msg("%s: element (%zu, %zu) of group %zu is %a, not %a (%.9g in float64)", title,
                 e->line, e->j, e->g, value, want, exact);
}

/* Checks sampled elements of every group. Checks that the reference backend and ops on single
 * groups give the same bits. gather[M] is used if rows are permuted. */
static void check(const char *what, const library *by, const moert_op_options *o,
                  const uint32_t *ends, const uint32_t *gather) {
    const size_t owned_before = owned_count();
    const char *title = titled("%s: %s", what, ops_title(o));
    ops_bytes start = ops_bytes_make(o, ends, by->values);
    if (gather != NULL)
        memcpy(ops_gather(&start), gather, o->rows * sizeof *gather);
    ops_bytes got = ops_bytes_copy(&start);
    ops_bytes_execute("portable", &got);
    for (size_t s = 0; s < by->samples; s++) {
        ops_element e;
        if (ops_draw(&start, s, &e))
            check_element(title, by, &start, &got, &e);
    }
    if (o->rows * o->n * o->k <= by->most) {
        ops_bytes want = ops_bytes_copy(&start);
        ops_bytes_execute("reference", &want);
        ops_assert_same(title, &want, &got, true);
    }
    if (by->alone)
        ops_check_alone(title, "portable", *o, &start, &got);
    release_since(owned_before);
}

/* A row of a table, and its GEMM in one kind and dtype. */
typedef struct shape {
    size_t groups, rows, k, n;
    bool slow;
} shape;

static moert_op_options gemm_of(const shape *s, size_t kind, moert_dtype type) {
    moert_op_options o = ops_sized((moert_op_kind)kind, s->groups, s->rows, s->n, s->k);
    o.x.type = o.weight.type = o.y.type = o.bias_type = type;
    return o;
}

/* ---- TransformerEngine ---- */

TEST(test_random_splits_have_the_bits_of_each_group_alone) {
    static const shape shapes[] = {{1, 127, 128, 512, false},
                                   {8, 15, 128, 512, false},
                                   {8, 1027, 128, 512, false},
                                   {16, 10027, 128, 512, true}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (size_t c = 0; c < (size_t)KINDS * TYPES * 2 && !suite_skips(shapes[i].slow); c++) {
            uint32_t ends[MOST_GROUPS];
            suite_split(i, shapes[i].rows, shapes[i].groups, ends);
            moert_op_options o = gemm_of(&shapes[i], c % KINDS, types[c / KINDS % TYPES]);
            o.accumulate = c >= (size_t)KINDS * TYPES;
            check("random split", &te, &o, ends, NULL);
        }
}

/* Tests wgrad with 16-bit operands that accumulates in float32. */
TEST(test_weight_gradients_of_16_bits_accumulate_in_float32) {
    for (size_t i = 0; i < 4; i++) {
        const shape s = {8, i / 2 == 0 ? 15 : 1027, 128, 512, false};
        uint32_t ends[MOST_GROUPS];
        suite_split(i, s.rows, s.groups, ends);
        moert_op_options o = gemm_of(&s, MOERT_OP_GEMM_WGRAD, types[i % 2 * 2]);
        o.weight.type = MOERT_DTYPE_F32;
        o.accumulate = true;
        check("main gradient", &te, &o, ends, NULL);
    }
}

TEST(test_grouped_tensors_take_discrete_weights_and_scaled_biases) {
    static const shape shapes[] = {{4, 256, 256, 256, false},
                                   {4, 512, 512, 256, false},
                                   {4, 512, 256, 512, false},
                                   {8, 512, 512, 256, false}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (size_t c = 0; c < KINDS * 4; c++) {
            uint32_t ends[MOST_GROUPS];
            suite_split(100 + i, shapes[i].rows, shapes[i].groups, ends);
            moert_op_options o = gemm_of(&shapes[i], c % KINDS, MOERT_DTYPE_BF16);
            o.weight.discrete = c / KINDS % 2 == 1;
            o.bias = c % KINDS == 0;
            o.bias_scale = o.bias && c / KINDS / 2 == 1;
            o.accumulate = c % KINDS != 0 && c / KINDS / 2 == 1;
            check("grouped tensor", &te_grouped, &o, ends, NULL);
        }
}

/* Tests groups of equal sizes, of different sizes, and without rows. If the weights of a table row
 * differ in size, each weight is a separate case. */
TEST(test_groups_with_equal_different_or_no_rows) {
    static const struct {
        shape s;
        uint32_t ends[3];
    } cases[] = {
        {{3, 384, 384, 256, false}, {128, 256, 384}}, {{3, 384, 384, 256, false}, {64, 192, 384}},
        {{3, 512, 384, 256, false}, {128, 128, 512}}, {{1, 384, 256, 128, false}, {384}},
        {{1, 384, 640, 512, false}, {384}},           {{1, 128, 384, 256, false}, {128}},
        {{3, 480, 416, 288, false}, {160, 320, 480}}, {{3, 0, 384, 256, false}, {0, 0, 0}},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        for (size_t c = 0; c < KINDS * 2; c++) {
            moert_op_options o = gemm_of(&cases[i].s, c % KINDS, MOERT_DTYPE_BF16);
            o.accumulate = o.weight.discrete = c >= KINDS;
            check("fixed split", &te_grouped, &o, cases[i].ends, NULL);
        }
}

/* ---- cuDNN and CUTLASS ---- */

/* moe_grouped_matmul: 36 experts, 2000 tokens. */
TEST(test_thirty_six_experts_of_one_to_many_tokens) {
    static const shape s = {36, 2000, 520, 248, false};
    static const uint32_t ends[] = OPS_36_EXPERTS;
    for (size_t i = 0; i < KINDS * TYPES && !suite_skips(i >= KINDS); i++) {
        const moert_op_options o = gemm_of(&s, i % KINDS, types[i / KINDS]);
        check("moe_grouped_matmul", &cudnn, &o, ends, NULL);
    }
}

/* All sums are small integers, so nothing is rounded and results equal float64. */
TEST(test_signs_multiply_exactly_in_groups_of_any_size) {
    static const struct {
        shape s;
        size_t block;
    } cases[] = {{{8, 512, 128, 256, false}, 32},
                 {{16, 256, 200, 136, false}, 16},
                 {{32, 1024, 160, 128, false}, 32},
                 {{64, 8192, 384, 512, true}, 64}};
    size_t empty = 0;
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        for (size_t c = 0; c < KINDS * TYPES && !suite_skips(cases[i].s.slow); c++) {
            const shape *s = &cases[i].s;
            uint32_t ends[MOST_GROUPS];
            suite_dirichlet(i, s->rows, cases[i].block, s->groups, ends);
            for (size_t g = 1; g < s->groups; g++)
                empty += ends[g] == ends[g - 1];
            moert_op_options o = gemm_of(s, c % KINDS, types[c / KINDS]);
            ops_result(&o)->type = MOERT_DTYPE_F32;
            check("signs", &cutlass, &o, ends, NULL);
        }
    assert_true(empty > KINDS * TYPES);
}

/* ---- Unsloth ---- */

/* The first projection [2I,H] reads tokens in their order or sorted by expert. The second
 * projection [H,I] writes results in either order. */
typedef struct model {
    size_t hidden, intermediate, experts, topk, tokens;
    bool discrete;
} model;

/* Checks the first `kinds` of forward, dX and dW, for both projections, with and without a
 * permutation of rows. */
static void check_model(const model *m, moert_dtype type, size_t kinds) {
    const double tolerance = type == MOERT_DTYPE_BF16  ? 1e-3
                             : type == MOERT_DTYPE_F16 ? 1e-4
                                                       : 1e-5;
    const library unsloth = {OPS_SMALL, 512, tolerance, tolerance, (size_t)8 << 20, false};
    const size_t rows = m->tokens * m->topk;
    uint32_t ends[MOST_GROUPS], *gather = test_alloc(rows * sizeof *gather);
    int32_t *index = test_alloc(rows * sizeof *index);
    suite_route(m->experts, m->tokens, m->topk, m->experts, index);
    /* gather: the slots sorted by expert; ends: the ends of the experts' rows */
    suite_sort(index, rows, m->experts, gather, ends);
    for (size_t c = 0; c < kinds * 4; c++) {
        const bool second = c % 2 == 1, permuted = c / 2 % 2 == 1;
        const shape s = {m->experts, rows, second ? m->intermediate : m->hidden,
                         second ? m->hidden : 2 * m->intermediate, false};
        moert_op_options o = gemm_of(&s, c / 4, type);
        o.weight.discrete = m->discrete;
        o.topk = m->topk;
        if (permuted)
            o.permute = second ? MOERT_OP_PERMUTE_Y : MOERT_OP_PERMUTE_X;
        check(second ? "W2" : "W1", &unsloth, &o, ends, permuted ? gather : NULL);
    }
}

TEST(test_small_models_in_every_legal_permutation) {
    static const size_t sizes[] = {32, 128, 512}, experts[] = {4, 16}, topk[] = {1, 4},
                        tokens[] = {128, 1024};
    for (size_t i = 0; i < 3 * 2 * 2 * 2; i++) {
        const size_t size = sizes[i / 8];
        const model m = {size, size, experts[i % 2], topk[i / 2 % 2], tokens[i / 4 % 2], false};
        if (!suite_skips(size * m.tokens * m.topk > (size_t)1 << 20))
            check_model(&m, MOERT_DTYPE_BF16, KINDS);
    }
}

TEST(test_small_models_in_the_other_types) {
    for (size_t i = 0; i < 8; i++) {
        const size_t size = i / 4 ? 128 : 32;
        const model m = {size, size, 16, i / 2 % 2 ? 4 : 1, 128, i % 2};
        check_model(&m, i % 2 ? MOERT_DTYPE_F32 : MOERT_DTYPE_F16, KINDS);
    }
}

/* The first model has an eighth of Qwen3's widths. Llama 4's backward runs only at a smaller size,
 * as in Unsloth's tests. */
TEST(test_qwen3_and_llama4) {
    static const struct {
        model m;
        size_t kinds;
        bool slow;
    } rows[] = {
        {{256, 96, 128, 8, 128, true}, 3, false},   {{2048, 768, 128, 8, 128, false}, 3, true},
        {{2048, 768, 128, 8, 1024, true}, 3, true}, {{5120, 8192, 16, 1, 128, true}, 1, true},
        {{5120, 8192, 16, 1, 1024, true}, 1, true}, {{1024, 1024, 16, 1, 1024, true}, 3, true},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        if (!suite_skips(rows[i].slow))
            check_model(&rows[i].m, MOERT_DTYPE_BF16, rows[i].kinds);
}

TESTS(open_test_device, close_test_device)
