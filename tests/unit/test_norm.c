// run: np=1 sanitize=1
/* RMSNorm against a float64 forward and its central differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ops/dense.h"
#include "support/vectors.h"

static const float epsilon = 1e-5f;

typedef struct norm_case {
    size_t sequences, rows, width;
} norm_case;

static const norm_case cases[] = {{0, 0, 20}, {2, 0, 16}, {1, 4, 2},    {1, 1, 20},   {3, 51, 20},
                                  {2, 6, 64}, {5, 5, 17}, {2, 34, 100}, {1, 70, 256}, {3, 3, 33}};
#define CASES (sizeof cases / sizeof *cases)

/* The oracle over all rows; the loss is sum(dy * y), so its gradients are what backward gives. */
typedef struct oracle {
    norm_case shape;
    double *x, *weight, *dy, *y, *rstd;
    size_t first, end; /* rows that count in the loss */
} oracle;

static double oracle_forward(void *context) {
    oracle *o = context;
    double loss = 0;
    const size_t width = o->shape.width;
    for (size_t r = o->first; r < o->end; r++) {
        double squares = 0;
        for (size_t c = 0; c < width; c++)
            squares += o->x[r * width + c] * o->x[r * width + c];
        o->rstd[r] = 1 / sqrt(squares / (double)width + (double)epsilon);
        for (size_t c = 0; c < width; c++) {
            o->y[r * width + c] = o->x[r * width + c] * o->rstd[r] * o->weight[c];
            loss += o->y[r * width + c] * o->dy[r * width + c];
        }
    }
    return loss;
}

static oracle oracle_create(norm_case shape) {
    const size_t n = shape.rows * shape.width;
    oracle o = {.shape = shape, .end = shape.rows};
    o.x = vectors_random("x", n);
    o.weight = vectors_random("weight", shape.width);
    o.dy = vectors_random("dy", n);
    o.y = vectors_random("y", n);
    o.rstd = vectors_random("rstd", shape.rows);
    oracle_forward(&o);
    return o;
}

static void oracle_destroy(oracle *o) {
    double *all[] = {o->x, o->weight, o->dy, o->y, o->rstd};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void test_norm_forward_agrees_with_float64_and_may_work_in_place(void **state) {
    for (size_t i = 0; i < CASES; i++) {
        const norm_case shape = cases[i];
        const size_t n = shape.rows * shape.width;
        oracle o = oracle_create(shape);
        moert_buffer *x = vectors_upload(*state, o.x, n);
        moert_buffer *weight = vectors_upload(*state, o.weight, shape.width);
        moert_buffer *y = vectors_upload(*state, NULL, n);
        moert_buffer *rstd = vectors_upload(*state, NULL, shape.rows);
        vectors_expect_ok(moert_norm_forward(shape.rows, shape.width, epsilon, x, weight, y, rstd));
        vectors_expect_ok(moert_norm_forward(shape.rows, shape.width, epsilon, x, weight, x, rstd));
        float *got = vectors_download(y, n), *in_place = vectors_download(x, n);
        float *scale = vectors_download(rstd, shape.rows);
        vectors_expect_near("y", got, o.y, n, 2e-6);
        vectors_expect_same("y in place", in_place, got, n);
        vectors_expect_near("rstd", scale, o.rstd, shape.rows, 2e-6);
        free(got);
        free(in_place);
        free(scale);
        moert_buffer_destroy(x);
        moert_buffer_destroy(weight);
        moert_buffer_destroy(y);
        moert_buffer_destroy(rstd);
        oracle_destroy(&o);
    }
}

/* Gradients of the rows [first, first + rows) of the oracle's inputs; dx and partial to be freed.
 */
typedef struct gradients {
    float *dx, *partial;
} gradients;

static gradients device_backward(moert_device *device, const oracle *o, size_t first, size_t rows,
                                 size_t sequences, bool in_place, const double *accumulated) {
    const size_t width = o->shape.width, n = rows * width;
    moert_buffer *x = vectors_upload(device, o->x + first * width, n);
    moert_buffer *weight = vectors_upload(device, o->weight, width);
    moert_buffer *y = vectors_upload(device, NULL, n);
    moert_buffer *rstd = vectors_upload(device, NULL, rows);
    moert_buffer *dy = vectors_upload(device, o->dy + first * width, n);
    moert_buffer *dx = in_place ? dy : vectors_upload(device, accumulated, n);
    moert_buffer *partial = vectors_upload(device, NULL, sequences * width);
    vectors_expect_ok(moert_norm_forward(rows, width, epsilon, x, weight, y, rstd));
    const moert_norm_gradient norm = {sequences,           rows,   width, x, weight, rstd, dy, dx,
                                      accumulated != NULL, partial};
    vectors_expect_ok(moert_norm_backward(&norm));
    const gradients got = {vectors_download(dx, n), vectors_download(partial, sequences * width)};
    moert_buffer *all[] = {x, weight, y, rstd, dy, in_place ? NULL : dx, partial};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        moert_buffer_destroy(all[i]);
    return got;
}

static void gradients_destroy(gradients *got) {
    free(got->dx);
    free(got->partial);
}

static void test_norm_backward_agrees_with_central_differences(void **state) {
    for (size_t i = 0; i < CASES; i++) {
        const norm_case shape = cases[i];
        oracle o = oracle_create(shape);
        gradients got =
            device_backward(*state, &o, 0, shape.rows, shape.sequences, i % 2 != 0, NULL);
        for (size_t s = 0; s < shape.sequences; s++) {
            const size_t rows = shape.rows / shape.sequences, at = s * rows * shape.width;
            o.first = s * rows;
            o.end = o.first + rows;
            vectors_expect_gradient("dx", got.dx + at, o.x + at, rows * shape.width, 7,
                                    oracle_forward, &o);
            vectors_expect_gradient("partial", got.partial + s * shape.width, o.weight, shape.width,
                                    3, oracle_forward, &o);
        }
        gradients_destroy(&got);
        oracle_destroy(&o);
    }
}

static void test_norm_backward_accumulates(void **state) {
    oracle o = oracle_create((norm_case){3, 51, 20});
    double *before = vectors_random("before", 51 * 20);
    gradients alone = device_backward(*state, &o, 0, 51, 3, false, NULL);
    gradients added = device_backward(*state, &o, 0, 51, 3, false, before);
    for (size_t i = 0; i < 51 * 20; i++)
        before[i] += alone.dx[i];
    vectors_expect_near("dx", added.dx, before, 51 * 20, 1e-6);
    vectors_expect_same("partial", added.partial, alone.partial, 3 * 20);
    gradients_destroy(&alone);
    gradients_destroy(&added);
    free(before);
    oracle_destroy(&o);
}

static void test_norm_of_a_sequence_has_the_same_bits_alone_and_in_a_batch(void **state) {
    const size_t rows = 37, widths[] = {20, 64, 100};
    for (size_t i = 0; i < 3; i++) {
        const size_t width = widths[i];
        oracle o = oracle_create((norm_case){3, 3 * rows, width});
        gradients batch = device_backward(*state, &o, 0, 3 * rows, 3, false, NULL);
        gradients alone = device_backward(*state, &o, rows, rows, 1, false, NULL);
        vectors_expect_same("dx", alone.dx, batch.dx + rows * width, rows * width);
        vectors_expect_same("partial", alone.partial, batch.partial + width, width);
        gradients_destroy(&batch);
        gradients_destroy(&alone);
        oracle_destroy(&o);
    }
}

static void test_norm_refuses_rows_that_do_not_divide(void **state) {
    moert_buffer *x = vectors_upload(*state, NULL, 16);
    const moert_norm_gradient norm = {3, 4, 4, x, x, x, x, x, false, x};
    assert_int_equal(moert_norm_backward(&norm), MOERT_ERROR_USAGE);
    assert_int_equal(moert_norm_forward(4, 0, epsilon, x, x, x, x), MOERT_ERROR_USAGE);
    moert_buffer_destroy(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_forward_agrees_with_float64_and_may_work_in_place),
        cmocka_unit_test(test_norm_backward_agrees_with_central_differences),
        cmocka_unit_test(test_norm_backward_accumulates),
        cmocka_unit_test(test_norm_of_a_sequence_has_the_same_bits_alone_and_in_a_batch),
        cmocka_unit_test(test_norm_refuses_rows_that_do_not_divide),
    };
    return cmocka_run_group_tests(tests, vectors_open_device, vectors_close_device);
}
