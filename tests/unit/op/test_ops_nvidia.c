// run: check=1
/* Grouped GEMM ops on the tensor cores of an NVIDIA GPU, if there is one: exact results of small
 * integers for any groups and epilogue, and the same bits in every run, whatever other rows are in
 * the batch. */
#include "base/memory.h"
#include "support/op/exact.h"

enum { KINDS = 3 };
#define F32  MOERT_DTYPE_F32
#define F16  MOERT_DTYPE_F16
#define BF16 MOERT_DTYPE_BF16

/* a very small GEMM; all groups empty; whole tiles; sizes one above or below a tile; partial blocks
 * of K; many tiles and rows past the end; groups of a few rows; strides; more tiles than compute
 * units */
static const ops_shape shapes[] = {
    {8, 8, 1, 1, 0, {1}},
    {16, 24, 0, 2, 0, {0, 0}},
    {256, 64, 128, 1, 0, {128}},
    {264, 72, 130, 2, 0, {129, 130}},
    {248, 56, 127, 3, 0, {0, 127, 127}},
    {512, 320, 900, 5, 0, {0, 300, 301, 301, 813}},
    {136, 1048, 700, 4, 8, {64, 128, 427, 690}},
    {1032, 520, 640, 3, 24, {5, 5, 640}},
    {40, 48, 60, 36, 0, OPS_SINGLE_ROWS},
    {136, 152, 200, 4, 8, {64, 128, 128, 190}},
    {8, 72, 17100, 3, 0, {5, 17090, 17095}},
    {8520, 8, 20, 2, 0, {13, 19}},
};
/* MOST_PRODUCTS: limit of multiplications on the host, per check */
enum { SHAPES = MOERT_COUNT(shapes), MOST_PRODUCTS = 8000000 };

static moert_op_options describe(const ops_shape *s, moert_op_kind kind, moert_dtype type) {
    moert_op_options o = ops_sized(kind, s->groups, s->rows, s->n, s->k);
    o.x = (moert_operand){.type = type, .stride = (ptrdiff_t)(s->k + s->padding)};
    o.y = (moert_operand){.type = type, .stride = (ptrdiff_t)(s->n + s->padding)};
    o.weight.type = type;
    return o;
}

TEST(test_every_orientation_is_exact_for_every_split_of_the_rows) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * KINDS * 2; i++) {
        const ops_shape *s = &shapes[i / 2 / KINDS];
        const moert_op_options o =
            describe(s, (moert_op_kind)(i / 2 % KINDS), i % 2 ? MOERT_DTYPE_F16 : MOERT_DTYPE_BF16);
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

/* ---- epilogues ---- */

static const struct variant {
    moert_dtype result;
    unsigned switches;
    moert_dtype bias;
} variants[] = {
    {F32, 0, F32},
    {F32, OPS_ACCUMULATE, F32},
    {BF16, OPS_ACCUMULATE | OPS_ALPHA, F32},
    {F16, OPS_ALPHA | OPS_BETA, F32},
    {F32, OPS_ALPHA | OPS_BETA | OPS_AMAX, F32},
    {F16, OPS_PROB | OPS_AMAX, F32},
    {BF16, OPS_ALPHA | OPS_PROB, F32},
    {F32, OPS_BIAS, F32},
    {BF16, OPS_BIAS | OPS_BIAS_SCALE | OPS_AMAX, BF16},
    {F32, OPS_ALPHA | OPS_BETA | OPS_BIAS | OPS_BIAS_SCALE, F16},
};
enum { VARIANTS = MOERT_COUNT(variants) };

/* Returns false if ops of this kind do not have one of the variant's switches. */
static bool add_variant(moert_op_options *o, const struct variant *v) {
    if ((o->kind != MOERT_OP_GEMM_FORWARD && (v->switches & OPS_BIAS) != 0) ||
        (o->kind == MOERT_OP_GEMM_WGRAD && (v->switches & (OPS_PROB | OPS_AMAX)) != 0) ||
        (o->rows == 0 && (v->switches & OPS_BETA) != 0))
        return false;
    ops_switch_on(o, v->switches);
    ops_result(o)->type = v->result;
    o->bias_type = v->bias;
    return true;
}

TEST(test_epilogues_are_exact) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * KINDS * VARIANTS; i++) {
        const ops_shape *s = &shapes[i / VARIANTS / KINDS];
        moert_op_options o = describe(s, (moert_op_kind)(i / VARIANTS % KINDS),
                                      i % 2 ? MOERT_DTYPE_F16 : MOERT_DTYPE_BF16);
        if (s->rows * s->n * s->k > MOST_PRODUCTS || !add_variant(&o, &variants[i % VARIANTS]))
            continue;
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

/* ---- GLU ---- */

/* the width I, and the index of the shape from which rows and K come */
static const struct layout {
    size_t width, shape;
} layouts[] = {{8, 0}, {32, 9}, {96, 3}, {128, 2}, {136, 9}, {264, 3}, {1056, 4}, {520, 8}};
static const struct recipe {
    size_t run; /* consecutive columns of gate or up; 0: gate and up are the two halves of a row */
    bool linear_first;
    unsigned switches;
    moert_dtype operands, d, bias;
    bool save_c;
    moert_dtype c;
    moert_glu_form form;
} recipes[] = {
    {0, false, OPS_PROB, BF16, F32, F32, true, F32, MOERT_GLU_SWIGLU},
    {0, true, OPS_BIAS | OPS_PROB, F16, F16, F16, false, F32, {false, 5.0f, 1.0f, 0.0f, 0}},
    {0,
     false,
     OPS_ALPHA | OPS_BIAS | OPS_AMAX,
     BF16,
     BF16,
     BF16,
     true,
     BF16,
     {false, 7.0f, 1.702f, 1.0f, 0}},
    {1, false, OPS_BIAS | OPS_PROB | OPS_AMAX, BF16, F32, F32, true, F16, MOERT_GLU_GPT_OSS},
    {1, true, 0, BF16, BF16, F32, false, F32, MOERT_GLU_SWIGLU},
    {8, true, OPS_ALPHA | OPS_BIAS, BF16, F32, BF16, true, BF16, {false, 5.0f, 1.0f, 0.0f, 0}},
    {32, false, OPS_PROB, BF16, BF16, F32, true, BF16, MOERT_GLU_SWIGLU},
};
enum {
    LAYOUTS = MOERT_COUNT(layouts),
    GLU_CASES = LAYOUTS * MOERT_COUNT(recipes),
};

static moert_op_options glu_case(size_t i) {
    const struct layout *at = &layouts[i % LAYOUTS];
    const struct recipe *r = &recipes[i / LAYOUTS];
    ops_shape s = shapes[at->shape];
    s.n = 2 * at->width;
    moert_op_options o = describe(&s, MOERT_OP_GLU, r->operands);
    o.y = (moert_operand){.type = MOERT_DTYPE_F32};
    o.glu = r->form;
    o.interleave = r->run;
    o.linear_first = r->linear_first;
    o.d = (moert_operand){.type = r->d, .stride = (ptrdiff_t)(at->width + s.padding)};
    o.c = (moert_operand){.type = r->c, .stride = (ptrdiff_t)(s.n + s.padding)};
    o.save_c = r->save_c;
    o.bias_type = r->bias;
    ops_switch_on(&o, r->switches);
    return o;
}

TEST(test_a_glu_follows_its_gemm_in_every_layout) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < GLU_CASES; i++) {
        moert_op_options o = glu_case(i);
        if (o.interleave > 0 && o.n % (2 * o.interleave) != 0)
            continue;
        ops_check_on("nvidia", titled("GLU case %zu", i), &o,
                     shapes[layouts[i % LAYOUTS].shape].ends, 0.0);
    }
}

/* ---- bits ---- */

/* Checks that the rows from `first` on have the same bits without the other rows. */
static void check_rows_alone(const moert_op_options *options, const ops_bytes *whole, size_t first,
                             uint32_t rows) {
    moert_op_options o = *options;
    o.rows = rows;
    ops_bytes alone = ops_bytes_make(&o, &rows, OPS_NORMAL);
    const moert_op_buffer inputs[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_y, MOERT_OP_BUFFER_prob};
    for (size_t i = 0; i < 3; i++)
        memcpy(alone.at[inputs[i]], whole->at[inputs[i]] + first * (alone.bytes[inputs[i]] / rows),
               alone.bytes[inputs[i]]);
    ops_bytes_execute("nvidia", &alone);
    const moert_op_buffer result = ops_result_buffer(o.kind);
    assert_memory_equal(alone.at[result], whole->at[result] + first * (alone.bytes[result] / rows),
                        alone.bytes[result]);
}

TEST(test_a_row_has_the_same_bits_with_any_other_rows) {
    if (!has_tensor_cores("skipped"))
        return;
    static const moert_op_kind kinds[] = {MOERT_OP_GEMM_FORWARD, MOERT_OP_GEMM_DGRAD, MOERT_OP_GLU};
    for (size_t i = 0; i < 3; i++) {
        const ops_shape s = {272, 1048, 300, 1, 0, {300}};
        moert_op_options o = describe(&s, kinds[i], MOERT_DTYPE_BF16);
        *(kinds[i] == MOERT_OP_GEMM_DGRAD ? &o.x : &o.y) = (moert_operand){.stride = 0};
        o.prob = true;
        ops_bytes whole = ops_bytes_make(&o, s.ends, OPS_NORMAL);
        ops_bytes_execute("nvidia", &whole);
        check_rows_alone(&o, &whole, 0, 1);
        check_rows_alone(&o, &whole, 7, 65);
        check_rows_alone(&o, &whole, 127, 173);
        check_rows_alone(&o, &whole, 299, 1);
    }
}

TEST(test_results_repeat_bit_for_bit) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t kind = 0; kind < KINDS; kind++) {
        const ops_shape *s = &shapes[5];
        const moert_op_options o = describe(s, (moert_op_kind)kind, MOERT_DTYPE_BF16);
        const ops_bytes data = ops_bytes_make(&o, s->ends, OPS_NORMAL);
        ops_bytes_check_repeats("nvidia", &data, 20);
    }
}

TEST(test_unsupported_ops_are_refused_and_left_to_other_backends) {
    ops_check_fallback("nvidia", describe(&shapes[0], MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_F32),
                       "takes");
}

int main(void) {
    return run_tensor_forms(__FILE__);
}
