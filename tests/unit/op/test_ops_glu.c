// run: check=1 all=1san
/* GLU and dGLU ops: every form, order and interleaving, compared with float64 and central
 * differences in float64; worked examples; rows that are gathered by a permutation. */
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

/* Each example has one row, one gate and one up. A GLU computes c from x, weight, alpha and bias; a
 * dGLU reads c. */
TEST(test_worked_examples) {
    static const uint32_t end = 1;
    static const moert_glu_form swiglu = MOERT_GLU_SWIGLU, geglu = {false, 7.0f, 1.702f, 1.0f, 0};
    static const struct {
        moert_op_kind kind;
        bool linear_first;
        const moert_glu_form *form;
        double c[2], d[2], dprob;
    } examples[] = {
        {MOERT_OP_GLU, false, &swiglu, {2.59375, -5.1875}, {-9.398172}, 0.0},
        {MOERT_OP_GLU, false, &geglu, {2.59375, -5.1875}, {-8.057284}, 0.0},
        {MOERT_OP_GLU, true, &swiglu, {2.59375, -5.1875}, {-0.0558917}, 0.0},
        {MOERT_OP_DGLU, false, &swiglu, {2.59375, -5.1875}, {-2.136515, 0.905016}, -6.259694},
        {MOERT_OP_DGLU, false, &geglu, {2.59375, -5.1875}, {-1.633425, 0.961028}, -5.365740},
        {MOERT_OP_DGLU, false, &geglu, {8.0, -9.0}, {0.0, 0.0}, -20.999860},
    };
    for (size_t i = 0; i < MOERT_COUNT(examples) * BACKENDS; i++) {
        const moert_op_kind kind = examples[i / BACKENDS].kind;
        const double *c = examples[i / BACKENDS].c, *d = examples[i / BACKENDS].d;
        const bool glu = kind == MOERT_OP_GLU;
        const double weight[] = {glu ? 1.2345678 : 0.5, -2.3456789}, bias[] = {0.125, -0.5};
        moert_op_options o = ops_sized(kind, 1, 1, glu ? 2 : 1, 1);
        o.glu = *examples[i / BACKENDS].form;
        o.linear_first = examples[i / BACKENDS].linear_first;
        o.alpha = o.bias = o.save_c = glu;
        o.prob = true;
        o.dprob = !glu;
        o.c.type = glu ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
        ops_bytes data = ops_bytes_make(&o, &end, OPS_EXACT);
        ops_bytes_put(&data, glu ? MOERT_OP_BUFFER_x : MOERT_OP_BUFFER_y, 0, 1.0);
        ops_bytes_put(&data, MOERT_OP_BUFFER_prob, 0, 0.75);
        ops_bytes_put(&data, glu ? MOERT_OP_BUFFER_alpha : MOERT_OP_BUFFER_dprob, 0,
                      glu ? 2.0 : 0.0);
        for (size_t j = 0; j < 2; j++) {
            if (j < o.n)
                ops_bytes_put(&data, MOERT_OP_BUFFER_weight, j, weight[j]);
            ops_bytes_put(&data, glu ? MOERT_OP_BUFFER_bias : MOERT_OP_BUFFER_c, j,
                          glu ? bias[j] : c[j]);
        }
        ops_bytes_execute(backends[i % BACKENDS], &data);
        for (size_t j = 0; j < 2; j++) {
            assert_within(ops_bytes_get(&data, MOERT_OP_BUFFER_c, j), c[j], 0.0);
            if (!glu || j == 0)
                assert_within(ops_bytes_get(&data, MOERT_OP_BUFFER_d, j), d[j], glu ? 1e-6 : 2e-6);
        }
        if (!glu)
            assert_within(ops_bytes_get(&data, MOERT_OP_BUFFER_dprob, 0),
                          examples[i / BACKENDS].dprob, 4e-6);
    }
}

TESTS(open_test_device, close_test_device)
