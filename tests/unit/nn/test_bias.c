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

/* Runs forward and both gradients. A shared bias is that of a dense layer: it has no routing
 * weights and is the same for all groups, but each group has a gradient of its own. Two rows past
 * the last group must keep their values.
 */
static void check(const bias_case *c, bool shared, bool accumulate) {
    const size_t used = c->ends[c->groups - 1], rows = used + 2, y_floats = rows * c->ldy,
                 probs = rows * c->prob_stride, biases = c->groups * c->n;
    double *y = random_doubles("y", y_floats), *prob = random_doubles("prob", probs),
           *bias = random_doubles("bias", biases), *dprob = random_doubles("dprob", probs),
           *dbias = random_doubles("dbias", biases);
    const moert_scaled_bias op = {
        .groups = {upload(c->ends, c->groups * sizeof *c->ends), c->groups, rows, .shared = shared},
        .n = c->n,
        .ldy = c->ldy,
        .prob = shared ? NULL : upload_doubles(prob, probs),
        .prob_stride = c->prob_stride,
        .bias = upload_doubles(bias, shared ? c->n : biases),
        .y = upload_doubles(y, y_floats),
        .dprob = upload_doubles(dprob, probs),
        .dbias = accumulate ? upload_doubles(dbias, biases) : unset_floats(biases),
        .accumulate = accumulate,
    };
    if (!shared)
        ASSERT_OK(moert_scaled_bias_dprob(&op));
    ASSERT_OK(moert_scaled_bias_gradient(&op));
    ASSERT_OK(moert_scaled_bias_forward(&op));
    for (size_t i = 0; !accumulate && i < biases; i++)
        dbias[i] = 0.0;
    for (size_t r = 0, g = 0; r < used; r++) {
        const double weight = shared ? 1.0 : prob[r * c->prob_stride];
        while (r >= c->ends[g])
            g++;
        for (size_t j = 0; j < c->n; j++) {
            double *at = &y[r * c->ldy + j], b = bias[shared ? j : g * c->n + j];
            dprob[r * c->prob_stride] += shared ? 0.0 : *at * b;
            dbias[g * c->n + j] += weight * *at;
            *at += weight * b;
        }
    }
    assert_near_in("y", op.y, y, y_floats, 3e-6);
    assert_near_in("dprob", op.dprob, dprob, probs, 3e-6);
    assert_near_in("dbias", op.dbias, dbias, biases, 3e-6);
}

TEST(test_biases_and_their_gradients_agree_with_float64) {
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        check(&cases[i], false, false);
        check(&cases[i], false, true);
        check(&cases[i], true, false);
    }
}

TESTS(open_test_device, close_test_device)
