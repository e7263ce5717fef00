// run: check=1 all=1san
/* GLU and dGLU ops: every form, order and interleaving against float64 and its central differences;
 * worked examples; rows that are read through a permutation. */
#include "base/memory.h"
#include "support/op/exact.h"

TEST(test_forward_is_the_formula_on_unrounded_values) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = ops_glu_case(MOERT_OP_GLU, i / 2);
        o.bias = i % 7 != 0;
        o.save_c = i % 6 > 1;
        ops_check_on(backends[i % 2], titled("case %zu", i / 2), &o, ops_glu_ends, 0.0);
    }
}

TEST(test_backward_is_the_derivative_and_adds_to_its_sums) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = ops_glu_case(MOERT_OP_DGLU, i / 2);
        o.beta = i % 3 == 0;
        o.dprob = i % 4 != 3;
        o.dbias = i % 8 < 5;
        ops_check_on(backends[i % 2], titled("case %zu", i / 2), &o, ops_glu_ends, 0.0);
    }
}

TEST(test_permuted_inputs_are_read_where_they_lie) {
    for (size_t i = 0; i < 2; i++) {
        moert_op_options o = ops_glu_case(i == 0 ? MOERT_OP_GLU : MOERT_OP_DGLU, 1);
        o.permute = i == 0 ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.topk = 4;
        ops_check("permuted", &o, ops_glu_ends, 0.0);
    }
}

/* ---- worked examples ---- */

/* One row, one gate and one up: what each buffer holds, and what the op must give. */
typedef struct value {
    moert_op_buffer which;
    size_t at;
    double value, tolerance;
} value;

static void check_example(moert_op_options o, const value *given, size_t givens,
                          const value *wanted, size_t count) {
    const uint32_t end = 1;
    o.prob = true;
    for (size_t b = 0; b < BACKENDS; b++) {
        ops_bytes data = ops_bytes_make(&o, &end, OPS_EXACT);
        for (size_t i = 0; i < givens; i++)
            ops_bytes_put(&data, given[i].which, given[i].at, given[i].value);
        ops_bytes_execute(backends[b], &data);
        for (size_t i = 0; i < count; i++)
            assert_within(ops_bytes_get(&data, wanted[i].which, wanted[i].at), wanted[i].value,
                          wanted[i].tolerance);
    }
}

static const moert_glu_form geglu = {false, 7.0f, 1.702f, 1.0f, 0};

TEST(test_forward_example) {
    static const value given[] = {
        {MOERT_OP_BUFFER_x, 0, 1.0, 0},
        {MOERT_OP_BUFFER_alpha, 0, 2.0, 0},
        {MOERT_OP_BUFFER_weight, 0, 1.2345678, 0},
        {MOERT_OP_BUFFER_weight, 1, -2.3456789, 0},
        {MOERT_OP_BUFFER_bias, 0, 0.125, 0},
        {MOERT_OP_BUFFER_bias, 1, -0.5, 0},
        {MOERT_OP_BUFFER_prob, 0, 0.75, 0},
    };
    const struct {
        moert_glu_form form;
        bool linear_first;
        double d;
    } examples[] = {{MOERT_GLU_SWIGLU, false, -9.398172},
                    {geglu, false, -8.057284},
                    {MOERT_GLU_SWIGLU, true, -0.0558917}};
    for (size_t i = 0; i < MOERT_COUNT(examples); i++) {
        moert_op_options o = ops_sized(MOERT_OP_GLU, 1, 1, 2, 1);
        o.glu = examples[i].form;
        o.linear_first = examples[i].linear_first;
        o.alpha = o.bias = o.save_c = true;
        o.c.type = MOERT_DTYPE_BF16;
        const value wanted[] = {{MOERT_OP_BUFFER_c, 0, 2.59375, 0.0},
                                {MOERT_OP_BUFFER_c, 1, -5.1875, 0.0},
                                {MOERT_OP_BUFFER_d, 0, examples[i].d, 1e-6}};
        check_example(o, given, MOERT_COUNT(given), wanted, MOERT_COUNT(wanted));
    }
}

TEST(test_backward_example) {
    const struct {
        moert_glu_form form;
        double gate, up, d_gate, d_up, dprob;
    } examples[] = {{MOERT_GLU_SWIGLU, 2.59375, -5.1875, -2.136515, 0.905016, -6.259694},
                    {geglu, 2.59375, -5.1875, -1.633425, 0.961028, -5.365740},
                    {geglu, 8.0, -9.0, 0.0, 0.0, -20.999860}};
    for (size_t i = 0; i < MOERT_COUNT(examples); i++) {
        moert_op_options o = ops_sized(MOERT_OP_DGLU, 1, 1, 1, 1);
        o.glu = examples[i].form;
        o.dprob = true;
        const value given[] = {{MOERT_OP_BUFFER_y, 0, 1.0, 0},
                               {MOERT_OP_BUFFER_weight, 0, 0.5, 0},
                               {MOERT_OP_BUFFER_c, 0, examples[i].gate, 0},
                               {MOERT_OP_BUFFER_c, 1, examples[i].up, 0},
                               {MOERT_OP_BUFFER_prob, 0, 0.75, 0},
                               {MOERT_OP_BUFFER_dprob, 0, 0.0, 0}};
        const value wanted[] = {{MOERT_OP_BUFFER_d, 0, examples[i].d_gate, 2e-6},
                                {MOERT_OP_BUFFER_d, 1, examples[i].d_up, 2e-6},
                                {MOERT_OP_BUFFER_dprob, 0, examples[i].dprob, 4e-6}};
        check_example(o, given, MOERT_COUNT(given), wanted, MOERT_COUNT(wanted));
    }
}

TESTS(open_test_device, close_test_device)
