// run: check=1,1gpu all=1san
/* The scaled bias of the experts and its gradients, against float64. */
#include "nn/bias.h"
#include "support/test.h"

enum { MOST_GROUPS = 5 };

/* Groups of rows that end at ends[g]; a row has n columns, and rows are ldy elements apart. */
typedef struct bias_case {
    size_t groups, n, ldy, prob_stride;
    uint32_t ends[MOST_GROUPS];
} bias_case;

static const bias_case cases[] = {
    {1, 1, 1, 1, {1}},
    {3, 20, 20, 1, {0, 7, 7}},
    {2, 37, 41, 3, {5, 12}},
    {5, 128, 128, 1, {1, 1, 90, 91, 250}},
    {4, 300, 304, 16, {16, 33, 33, 150}},
    {2, 513, 513, 1, {0, 0}},
};
#define CASES MOERT_COUNT(cases)

static size_t rows_of(const bias_case *c) {
    return c->ends[c->groups - 1];
}

static size_t group_of(const bias_case *c, size_t row) {
    size_t g = 0;
    while (row >= c->ends[g])
        g++;
    return g;
}

/* A case on the device, and its inputs. Two rows past the last group must keep their values. */
typedef struct problem {
    const bias_case *shape;
    size_t rows, y_floats, probs;
    double *y, *prob, *bias, *dprob, *dbias;
    moert_scaled_bias op;
} problem;

static problem problem_create(const bias_case *c, bool accumulate) {
    problem p = {.shape = c, .rows = rows_of(c) + 2};
    p.y_floats = p.rows * c->ldy;
    p.probs = p.rows * c->prob_stride;
    p.y = random_doubles("y", p.y_floats);
    p.prob = random_doubles("prob", p.probs);
    p.bias = random_doubles("bias", c->groups * c->n);
    p.dprob = random_doubles("dprob", p.probs);
    p.dbias = random_doubles("dbias", c->groups * c->n);
    p.op = (moert_scaled_bias){
        .groups = {.rows = p.rows,
                   .count = c->groups,
                   .ends = upload(c->ends, c->groups * sizeof *c->ends)},
        .n = c->n,
        .ldy = c->ldy,
        .prob = upload_doubles(p.prob, p.probs),
        .prob_stride = c->prob_stride,
        .bias = upload_doubles(p.bias, c->groups * c->n),
        .y = upload_doubles(p.y, p.y_floats),
        .dprob = upload_doubles(p.dprob, p.probs),
        .dbias =
            accumulate ? upload_doubles(p.dbias, c->groups * c->n) : unset_floats(c->groups * c->n),
        .accumulate = accumulate,
    };
    return p;
}

TEST(test_forward_adds_the_bias_of_each_rows_group) {
    for (size_t i = 0; i < CASES; i++) {
        const bias_case *c = &cases[i];
        problem p = problem_create(c, false);
        ASSERT_OK(moert_scaled_bias_forward(&p.op));
        for (size_t r = 0; r < rows_of(c); r++)
            for (size_t j = 0; j < c->n; j++)
                p.y[r * c->ldy + j] +=
                    p.prob[r * c->prob_stride] * p.bias[group_of(c, r) * c->n + j];
        assert_near_in("y", p.op.y, p.y, p.y_floats, 3e-6);
    }
}

TEST(test_dprob_gains_the_product_of_row_and_bias) {
    for (size_t i = 0; i < CASES; i++) {
        const bias_case *c = &cases[i];
        problem p = problem_create(c, false);
        ASSERT_OK(moert_scaled_bias_dprob(&p.op));
        for (size_t r = 0; r < rows_of(c); r++)
            for (size_t j = 0; j < c->n; j++)
                p.dprob[r * c->prob_stride] +=
                    p.y[r * c->ldy + j] * p.bias[group_of(c, r) * c->n + j];
        assert_near_in("dprob", p.op.dprob, p.dprob, p.probs, 3e-6);
    }
}

TEST(test_gradient_sums_the_scaled_rows_of_each_group) {
    for (size_t i = 0; i < 2 * CASES; i++) {
        const bias_case *c = &cases[i / 2];
        problem p = problem_create(c, i % 2 == 0);
        ASSERT_OK(moert_scaled_bias_gradient(&p.op));
        for (size_t j = 0; i % 2 != 0 && j < c->groups * c->n; j++)
            p.dbias[j] = 0.0;
        for (size_t r = 0; r < rows_of(c); r++)
            for (size_t j = 0; j < c->n; j++)
                p.dbias[group_of(c, r) * c->n + j] +=
                    p.prob[r * c->prob_stride] * p.y[r * c->ldy + j];
        assert_near_in("dbias", p.op.dbias, p.dbias, c->groups * c->n, 3e-6);
    }
}

/* The bias of a dense layer: without weights, one for all groups; each group has its gradient. */
TEST(test_shared_bias_is_added_to_all_rows_and_has_a_gradient_for_each_group) {
    for (size_t i = 0; i < CASES; i++) {
        const bias_case *c = &cases[i];
        problem p = problem_create(c, false);
        const size_t bytes = p.y_floats * sizeof(float);
        double *dbias = test_alloc((c->groups * c->n + 1) * sizeof *dbias);
        p.op.prob = NULL;
        p.op.shared = true;
        p.op.bias = upload_doubles(p.bias, c->n);
        ASSERT_OK(moert_scaled_bias_gradient(&p.op));
        ASSERT_OK(moert_scaled_bias_forward(&p.op));
        for (size_t r = 0; r < rows_of(c); r++)
            for (size_t j = 0; j < c->n; j++) {
                dbias[group_of(c, r) * c->n + j] += p.y[r * c->ldy + j];
                p.y[r * c->ldy + j] += p.bias[j];
            }
        assert_near("y", download(p.op.y, bytes), p.y, p.y_floats, 3e-6);
        assert_near_in("dbias", p.op.dbias, dbias, c->groups * c->n, 3e-6);
    }
}

TESTS(open_test_device, close_test_device)
