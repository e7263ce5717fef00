// run: np=1 sanitize=1
/* Grouped GEMM: exact payloads against float64 loops, guard values, the promise of equal bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ops/grouped.h"
#include "support/test.h"

enum { MOST_GROUPS = 6 };
typedef enum operation { FORWARD, DGRAD, WGRAD, BIAS_GRAD, OPERATIONS } operation;

static const char *const backends[] = {"reference", "portable"};
static const char *const operation_names[] = {"forward", "dgrad", "wgrad", "bias_grad"};
static moert_status (*const calls[])(const moert_gemm *) = {moert_gemm_forward, moert_gemm_dgrad,
                                                            moert_gemm_wgrad, moert_gemm_bias_grad};

typedef struct problem {
    size_t n, k, rows, groups;
    uint32_t ends[MOST_GROUPS];
    bool shared, accumulate, bias;
    size_t pad_x, pad_y, y_column; /* ldx = k + pad_x, ldy = y_column + n + pad_y */
} problem;

/* The host side of a problem. */
typedef struct arrays {
    size_t ldx, ldy, x_count, weight_count, bias_count, y_count;
    float *x, *weight, *bias, *y;
} arrays;

static const problem problems[] = {
    {.n = 16, .k = 16, .rows = 0, .groups = 2, .ends = {0, 0}},
    {.n = 33, .k = 40, .rows = 5, .groups = 3, .ends = {0, 0, 0}},
    {.n = 1, .k = 1, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 17, .k = 15, .rows = 1, .groups = 4, .ends = {0, 0, 1, 1}, .bias = true},
    {.n = 32, .k = 32, .rows = 24, .groups = 3, .ends = {8, 16, 24}},
    {.n = 31, .k = 33, .rows = 23, .groups = 4, .ends = {0, 7, 7, 20}, .bias = true},
    {.n = 40, .k = 40, .rows = 30, .groups = 3, .ends = {0, 30, 30}, .pad_x = 3, .pad_y = 5},
    {.n = 64, .k = 96, .rows = 50, .groups = 5, .ends = {9, 9, 25, 26, 43}, .accumulate = true},
    {.n = 96, .k = 31, .rows = 21, .groups = 2, .ends = {0, 17}, .accumulate = true, .pad_y = 1},
    {.n = 15, .k = 17, .rows = 40, .groups = 3, .ends = {3, 20, 39}, .shared = true, .bias = true},
    {.n = 17, .k = 64, .rows = 9, .groups = 2, .ends = {4, 8}, .y_column = 5, .pad_y = 2},
    {.n = 1, .k = 40, .rows = 19, .groups = 2, .ends = {10, 18}, .y_column = 1, .shared = true},
    {.n = 1025, .k = 16, .rows = 10, .groups = 2, .ends = {1, 9}, .accumulate = true},
    {.n = 33, .k = 1025, .rows = 18, .groups = 2, .ends = {1, 18}, .bias = true, .pad_x = 7},
    {.n = 40, .k = 2100, .rows = 9, .groups = 1, .ends = {9}, .accumulate = true},
    {.n = 20, .k = 33, .rows = 1200, .groups = 3, .ends = {1, 1100, 1199}, .bias = true},
    {.n = 600, .k = 130, .rows = 11, .groups = 1, .ends = {11}, .shared = true},
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

static size_t start_of(const problem *p, size_t g) {
    return g > 0 ? p->ends[g - 1] : 0;
}

static float *filled(size_t count, bool integers, uint64_t stream) {
    float *data = test_alloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = integers ? floorf(9.0f * (float)moert_rng_uniform(1, stream, i)) - 4.0f
                           : (float)moert_rng_normal(1, stream, i);
    return data;
}

/* Everything that must be neither read nor written holds NaN: columns between the rows, rows past
 * the last end. */
static void guard(float *data, size_t rows, size_t used_rows, size_t stride, size_t first,
                  size_t width) {
    for (size_t m = 0; m < rows; m++)
        for (size_t i = 0; i < stride; i++)
            if (m >= used_rows || i < first || i >= first + width)
                data[m * stride + i] = NAN;
}

static arrays make_arrays(const problem *p, bool integers) {
    const size_t used = start_of(p, p->groups);
    arrays a = {.ldx = p->k + p->pad_x, .ldy = p->y_column + p->n + p->pad_y};
    a.x_count = p->rows * a.ldx;
    a.y_count = p->rows * a.ldy;
    a.bias_count = p->groups * p->n; /* a shared weight uses the first group's part */
    a.weight_count = a.bias_count * p->k;
    a.x = filled(a.x_count, integers, 1);
    a.weight = filled(a.weight_count, integers, 2);
    a.bias = filled(a.bias_count, integers, 3);
    a.y = filled(a.y_count, integers, 4);
    guard(a.x, p->rows, used, a.ldx, 0, p->k);
    guard(a.y, p->rows, used, a.ldy, p->y_column, p->n);
    return a;
}

static void free_arrays(arrays *a) {
    float *all[] = {a->x, a->weight, a->bias, a->y};
    for (size_t i = 0; i < 4; i++)
        free(all[i]);
}

/* Runs an operation on the device and writes all arrays back. */
static void run(const problem *p, operation op, const char *backend, arrays *a) {
    set_variable("MOERT_BACKEND", backend);
    moert_buffer *ends = upload(p->ends, p->groups * sizeof *p->ends);
    moert_gemm gemm = {
        .groups = {ends, p->groups, p->rows},
        .n = p->n,
        .k = p->k,
        .shared_weight = p->shared,
        .accumulate = p->accumulate && op != FORWARD,
        .x = upload(a->x, a->x_count * sizeof(float)),
        .weight = upload(a->weight, a->weight_count * sizeof(float)),
        .y = upload(a->y, a->y_count * sizeof(float)),
        .ldx = p->pad_x > 0 ? a->ldx : 0,
        .ldy = a->ldy,
        .y_column = p->y_column,
    };
    moert_buffer *bias = upload(a->bias, a->bias_count * sizeof(float));
    gemm.bias = p->bias || op == BIAS_GRAD ? bias : NULL;
    ASSERT_OK(calls[op](&gemm));
    moert_buffer *const buffers[] = {gemm.x, gemm.weight, bias, gemm.y};
    float *const targets[] = {a->x, a->weight, a->bias, a->y};
    const size_t counts[] = {a->x_count, a->weight_count, a->bias_count, a->y_count};
    for (size_t i = 0; i < 4; i++) {
        download_into(buffers[i], targets[i], counts[i] * sizeof(float));
        moert_buffer_destroy(buffers[i]);
    }
    moert_buffer_destroy(ends);
}

static void expect_forward(const problem *p, arrays *a, size_t g) {
    const size_t line = p->shared ? 0 : g * p->n;
    for (size_t m = start_of(p, g); m < p->ends[g]; m++)
        for (size_t n = 0; n < p->n; n++) {
            double sum = p->bias ? (double)a->bias[line + n] : 0.0;
            for (size_t k = 0; k < p->k; k++)
                sum += (double)a->x[m * a->ldx + k] * (double)a->weight[(line + n) * p->k + k];
            a->y[m * a->ldy + p->y_column + n] = (float)sum;
        }
}

static void expect_dgrad(const problem *p, arrays *a, size_t g) {
    const size_t line = p->shared ? 0 : g * p->n;
    for (size_t m = start_of(p, g); m < p->ends[g]; m++)
        for (size_t k = 0; k < p->k; k++) {
            float *out = &a->x[m * a->ldx + k];
            double sum = p->accumulate ? (double)*out : 0.0;
            for (size_t n = 0; n < p->n; n++)
                sum += (double)a->y[m * a->ldy + p->y_column + n] *
                       (double)a->weight[(line + n) * p->k + k];
            *out = (float)sum;
        }
}

static void expect_wgrad(const problem *p, arrays *a, size_t g) {
    for (size_t n = 0; n < p->n; n++)
        for (size_t k = 0; k < p->k; k++) {
            float *out = &a->weight[(g * p->n + n) * p->k + k];
            double sum = p->accumulate ? (double)*out : 0.0;
            for (size_t m = start_of(p, g); m < p->ends[g]; m++)
                sum += (double)a->y[m * a->ldy + p->y_column + n] * (double)a->x[m * a->ldx + k];
            *out = (float)sum;
        }
}

static void expect_bias_grad(const problem *p, arrays *a, size_t g) {
    for (size_t n = 0; n < p->n; n++) {
        float *out = &a->bias[g * p->n + n];
        double sum = p->accumulate ? (double)*out : 0.0;
        for (size_t m = start_of(p, g); m < p->ends[g]; m++)
            sum += (double)a->y[m * a->ldy + p->y_column + n];
        *out = (float)sum;
    }
}

typedef void (*expectation)(const problem *, arrays *, size_t);
static const expectation expectations[] = {expect_forward, expect_dgrad, expect_wgrad,
                                           expect_bias_grad};

static void compare(const char *title, const arrays *got, const arrays *want) {
    char what[96];
    const float *a[] = {got->x, got->weight, got->bias, got->y};
    const float *b[] = {want->x, want->weight, want->bias, want->y};
    const size_t counts[] = {got->x_count, got->weight_count, got->bias_count, got->y_count};
    for (size_t i = 0; i < 4; i++) {
        snprintf(what, sizeof what, "%s, array %zu", title, i);
        assert_same_bits(what, a[i], b[i], counts[i]);
    }
}

static void check_exact(operation op) {
    for (size_t i = 0; i < PROBLEMS; i++) {
        const problem *p = &problems[i];
        arrays want = make_arrays(p, true);
        for (size_t g = 0; g < p->groups; g++)
            expectations[op](p, &want, g);
        for (size_t b = 0; b < 2; b++) {
            char title[64];
            arrays got = make_arrays(p, true);
            run(p, op, backends[b], &got);
            snprintf(title, sizeof title, "problem %zu, %s, %s", i, operation_names[op],
                     backends[b]);
            compare(title, &got, &want);
            free_arrays(&got);
        }
        free_arrays(&want);
    }
}

static void test_forward_is_exact_and_stays_within_its_rows(void **state) {
    (void)state;
    check_exact(FORWARD);
}

static void test_dgrad_is_exact_and_stays_within_its_rows(void **state) {
    (void)state;
    check_exact(DGRAD);
}

static void test_wgrad_and_bias_grad_are_exact_and_give_empty_groups_zeros(void **state) {
    (void)state;
    check_exact(WGRAD);
    check_exact(BIAS_GRAD);
}

static void test_portable_has_the_bits_of_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < PROBLEMS; i++)
        for (operation op = 0; op < OPERATIONS; op++) {
            char title[64];
            arrays want = make_arrays(&problems[i], false), got = make_arrays(&problems[i], false);
            run(&problems[i], op, "reference", &want);
            run(&problems[i], op, "portable", &got);
            snprintf(title, sizeof title, "problem %zu, %s", i, operation_names[op]);
            compare(title, &got, &want);
            free_arrays(&want);
            free_arrays(&got);
        }
}

/* The result rows of `op` for `count` rows of `whole` from `first` on, computed alone as one group.
 */
static void run_alone(const problem *whole, operation op, size_t first, size_t count,
                      arrays *from) {
    arrays a = make_arrays(whole, false);
    problem p = *whole;
    p.rows = p.ends[0] = (uint32_t)count;
    p.groups = 1;
    *from = make_arrays(&p, false);
    memcpy(from->x, a.x + first * a.ldx, count * a.ldx * sizeof(float));
    memcpy(from->y, a.y + first * a.ldy, count * a.ldy * sizeof(float));
    run(&p, op, "portable", from);
    free_arrays(&a);
}

static void test_a_row_has_the_same_bits_in_any_company(void **state) {
    (void)state;
    const problem whole = {.n = 70,
                           .k = 1100,
                           .rows = 300,
                           .groups = 3,
                           .ends = {50, 50, 300},
                           .shared = true,
                           .bias = true};
    const size_t starts[] = {0, 3, 49, 117, 299};
    for (operation op = FORWARD; op <= DGRAD; op++) {
        arrays all = make_arrays(&whole, false);
        run(&whole, op, "portable", &all);
        for (size_t i = 0; i < 5; i++)
            for (size_t count = 1; count <= 13 && starts[i] + count <= whole.rows; count += 4) {
                arrays alone;
                run_alone(&whole, op, starts[i], count, &alone);
                assert_same_bits("x", alone.x, all.x + starts[i] * all.ldx, count * all.ldx);
                assert_same_bits("y", alone.y, all.y + starts[i] * all.ldy, count * all.ldy);
                free_arrays(&alone);
            }
        free_arrays(&all);
    }
}

static void test_wgrad_of_a_group_has_the_same_bits_wherever_its_rows_lie(void **state) {
    (void)state;
    const problem whole = {
        .n = 40, .k = 70, .rows = 1500, .groups = 4, .ends = {13, 13, 1300, 1500}};
    arrays all = make_arrays(&whole, false);
    run(&whole, WGRAD, "portable", &all);
    for (size_t g = 0; g < whole.groups; g++) {
        arrays alone;
        run_alone(&whole, WGRAD, start_of(&whole, g), whole.ends[g] - start_of(&whole, g), &alone);
        assert_same_bits("weight", alone.weight, all.weight + g * whole.n * whole.k,
                         whole.n * whole.k);
        free_arrays(&alone);
    }
    free_arrays(&all);
}

static void test_nothing_is_added_to_a_chain_after_its_last_term(void **state) {
    (void)state;
    /* a sum of negative zeros stays one only if nothing follows: the old value -0 plus 17 times 0 *
     * -1 */
    const problem p = {.n = 17, .k = 17, .rows = 3, .groups = 1, .ends = {3}, .accumulate = true};
    for (size_t b = 0; b < 2; b++) {
        arrays a = make_arrays(&p, true);
        for (size_t i = 0; i < a.x_count; i++)
            a.x[i] = -0.0f;
        for (size_t i = 0; i < a.y_count; i++)
            a.y[i] = 0.0f;
        for (size_t i = 0; i < a.weight_count; i++)
            a.weight[i] = -1.0f;
        run(&p, DGRAD, backends[b], &a);
        for (size_t i = 0; i < a.x_count; i++)
            assert_true(a.x[i] == 0.0f && signbit(a.x[i]));
        free_arrays(&a);
    }
}

static void test_wrong_sizes_are_refused_before_anything_is_written(void **state) {
    (void)state;
    const uint32_t end = 4;
    float data[64] = {0};
    moert_buffer *ends = upload(&end, sizeof end), *x = upload(data, 16 * sizeof *data);
    moert_buffer *y = upload(data, 16 * sizeof *data), *small;
    ASSERT_OK(moert_buffer_create(test_device, 15 * sizeof *data, &small));
    moert_gemm gemm = {.groups = {ends, 1, 4}, .n = 4, .k = 4, .x = x, .weight = x, .y = y};
    ASSERT_OK(moert_gemm_forward(&gemm));
    moert_gemm wrong[] = {gemm, gemm, gemm, gemm, gemm};
    wrong[0].y = small;
    wrong[1].ldx = 3;
    wrong[2].weight = NULL;
    wrong[3].y_column = 1;
    wrong[4].k = 0;
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(moert_gemm_forward(&wrong[i]), MOERT_ERROR_USAGE);
    moert_buffer_destroy(ends);
    moert_buffer_destroy(small);
    moert_buffer_destroy(x);
    moert_buffer_destroy(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_is_exact_and_stays_within_its_rows),
        cmocka_unit_test(test_dgrad_is_exact_and_stays_within_its_rows),
        cmocka_unit_test(test_wgrad_and_bias_grad_are_exact_and_give_empty_groups_zeros),
        cmocka_unit_test(test_portable_has_the_bits_of_the_reference),
        cmocka_unit_test(test_a_row_has_the_same_bits_in_any_company),
        cmocka_unit_test(test_wgrad_of_a_group_has_the_same_bits_wherever_its_rows_lie),
        cmocka_unit_test(test_nothing_is_added_to_a_chain_after_its_last_term),
        cmocka_unit_test(test_wrong_sizes_are_refused_before_anything_is_written),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
