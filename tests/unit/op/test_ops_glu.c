// run: check=1 all=1san
/* GLU ops: the worked example; every form, order and interleaving against float64; exact results;
 * rows that are read through a permutation. */
#include "support/op/glu.h"

/* The exact input of the GLU in row r and column n, before rounding. */
static double pre_activation(const ops_data *data, size_t r, size_t n) {
    const moert_op_options *o = &data->shape.options;
    const size_t g = ops_glu_group(r);
    double acc = 0.0;
    for (size_t i = 0; i < o->k; i++)
        acc += (double)data->at[MOERT_OP_BUFFER_x][r * (size_t)o->x.stride + i] *
               (double)ops_weight(data)[(g * o->n + n) * o->k + i];
    return ops_glu_operand(data, MOERT_OP_BUFFER_alpha, g) * acc +
           (o->bias ? (double)data->at[MOERT_OP_BUFFER_bias][g * o->n + n] : 0.0);
}

static void check_forward_row(const char *title, const ops_data *got, size_t r, double *peak) {
    const moert_op_options *o = &got->shape.options;
    for (size_t n = 0; o->save_c && n < o->n; n++)
        if (got->at[MOERT_OP_BUFFER_c][r * (size_t)o->c.stride + n] !=
            round_to(o->c.type, pre_activation(got, r, n)))
            fail_msg("%s: c[%zu,%zu]", title, r, n);
    for (size_t j = 0; j < got->shape.glu_width; j++) {
        const double want =
            ops_glu_operand(got, MOERT_OP_BUFFER_prob, r) *
            ops_glu_value(o->glu, pre_activation(got, r, ops_glu_column(&got->shape, j, false)),
                          pre_activation(got, r, ops_glu_column(&got->shape, j, true)));
        const double d = (double)got->at[MOERT_OP_BUFFER_d][r * (size_t)o->d.stride + j];
        assert_rounded(title, o->d.type, d, want, 0.01);
        peak[ops_glu_group(r)] = fmax(peak[ops_glu_group(r)], fabs(want));
    }
}

TEST(test_forward_is_the_formula_on_unrounded_values) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = ops_glu_case(MOERT_OP_GLU, i / 2);
        const char *title = titled("case %zu, %s", i / 2, backends[i % 2]);
        o.bias = i % 7 != 0;
        o.save_c = i % 6 > 1;
        ops_data got = ops_make(&o, ops_glu_ends, true), before = ops_copy(&got);
        double peak[OPS_GLU_GROUPS] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        ops_execute(backends[i % 2], &got, 1);
        for (size_t r = 0; r < ops_glu_ends[OPS_GLU_GROUPS - 1]; r++)
            check_forward_row(title, &got, r, peak);
        for (size_t g = 0; o.amax && g < OPS_GLU_GROUPS; g++)
            if (isinf(peak[g])) /* a group without rows keeps its amax */
                assert_true((double)got.at[MOERT_OP_BUFFER_amax][g] == peak[g]);
            else
                assert_rounded(title, MOERT_DTYPE_F32, (double)got.at[MOERT_OP_BUFFER_amax][g],
                               peak[g], 0.0);
        const size_t past = ops_glu_ends[OPS_GLU_GROUPS - 1] * (size_t)got.shape.options.d.stride;
        assert_same_bits("rows past the last end", got.at[MOERT_OP_BUFFER_d] + past,
                         before.at[MOERT_OP_BUFFER_d] + past, got.count[MOERT_OP_BUFFER_d] - past);
    }
}

TEST(test_prob_0_gives_zeros_and_leaves_c) {
    for (size_t i = 0; i < 2; i++) {
        moert_op_options o = ops_glu_case(MOERT_OP_GLU, 1);
        o.prob = o.save_c = true;
        ops_data got = ops_make(&o, ops_glu_ends, true);
        size_t others = 0;
        ops_execute(backends[i], &got, 1);
        for (size_t r = 0; r < ops_glu_ends[OPS_GLU_GROUPS - 1]; r++) {
            for (size_t j = 0; j < got.shape.glu_width; j++)
                if (got.at[MOERT_OP_BUFFER_prob][r] == 0.0f)
                    assert_true(got.at[MOERT_OP_BUFFER_d][r * got.shape.glu_width + j] == 0.0f);
            for (size_t n = 0; n < o.n; n++)
                others += got.at[MOERT_OP_BUFFER_c][r * o.n + n] != 0.0f;
        }
        assert_true(others > 0);
    }
}

/* ---- permuted rows ---- */

/* Replaces the gathered rows of an input by the same rows in the groups' order. */
static ops_data gathered_before(const ops_data *data, moert_op_buffer which) {
    moert_op_options o = data->shape.options;
    const size_t width = data->shape.needs[which].stride,
                 topk = which == MOERT_OP_BUFFER_x ? o.topk : 1;
    o.permute = MOERT_OP_PERMUTE_NONE;
    ops_data plain = ops_make(&o, ops_glu_ends, true);
    for (size_t r = 0; r < ops_glu_ends[OPS_GLU_GROUPS - 1]; r++)
        memcpy(plain.at[which] + r * width, data->at[which] + ops_gather(data)[r] / topk * width,
               width * sizeof(float));
    return plain;
}

TEST(test_permuted_inputs_are_read_where_they_lie) {
    for (size_t i = 0; i < 4; i++) {
        const bool forward = i < 2;
        moert_op_options o = ops_glu_case(forward ? MOERT_OP_GLU : MOERT_OP_DGLU, 1);
        o.permute = forward ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.topk = 4;
        ops_data got = ops_make(&o, ops_glu_ends, true);
        ops_data want = gathered_before(&got, forward ? MOERT_OP_BUFFER_x : MOERT_OP_BUFFER_y);
        ops_execute(backends[i % 2], &got, 1);
        ops_execute(backends[i % 2], &want, 1);
        assert_same_bits("d", got.at[MOERT_OP_BUFFER_d], want.at[MOERT_OP_BUFFER_d],
                         want.count[MOERT_OP_BUFFER_d]);
    }
}

/* ---- the worked example ---- */

TEST(test_forward_example) {
    const uint32_t end = 1;
    const struct {
        moert_glu_form form;
        bool linear_first;
        double d;
    } examples[] = {{MOERT_GLU_SWIGLU, false, -9.398172},
                    {{false, 7.0f, 1.702f, 1.0f, 0}, false, -8.057284},
                    {MOERT_GLU_SWIGLU, true, -0.0558917}};
    for (size_t i = 0; i < 6; i++) {
        moert_op_options o = ops_glu_one(MOERT_OP_GLU, examples[i / 2].form);
        o.linear_first = examples[i / 2].linear_first;
        o.alpha = o.bias = o.save_c = true;
        o.c.type = MOERT_DTYPE_BF16;
        ops_data data = ops_make(&o, &end, true);
        data.at[MOERT_OP_BUFFER_x][0] = 1.0f;
        ops_weight(&data)[0] = 1.2345678f;
        ops_weight(&data)[1] = -2.3456789f;
        data.at[MOERT_OP_BUFFER_alpha][0] = 2.0f;
        data.at[MOERT_OP_BUFFER_bias][0] = 0.125f;
        data.at[MOERT_OP_BUFFER_bias][1] = -0.5f;
        data.at[MOERT_OP_BUFFER_prob][0] = 0.75f;
        ops_execute(backends[i % 2], &data, 1);
        assert_true(data.at[MOERT_OP_BUFFER_c][0] == 2.59375f);
        assert_true(data.at[MOERT_OP_BUFFER_c][1] == -5.1875f);
        assert_within((double)data.at[MOERT_OP_BUFFER_d][0], examples[i / 2].d, 1e-6);
    }
}

TESTS(open_test_device, close_test_device)
