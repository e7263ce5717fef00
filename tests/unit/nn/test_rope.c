// run: np=1 gpu=1 sanitize=1
/* Rotary positions against float64. */
#include "nn/nn.h"
#include "support/test.h"

typedef struct rope_case {
    size_t sequences, length, heads, head_size;
} rope_case;

static const rope_case cases[] = {{0, 5, 2, 20},  {2, 0, 2, 16},  {1, 1, 1, 2},  {3, 17, 3, 20},
                                  {2, 33, 1, 24}, {1, 40, 4, 64}, {2, 9, 2, 128}};
#define CASES MOERT_COUNT(cases)
static const float theta = 10000.0f;

static double *rotate(rope_case shape, const double *x) {
    const size_t half = shape.head_size / 2, size = shape.head_size;
    double *y = test_alloc(shape.sequences * shape.length * shape.heads * size * sizeof *y);
    for (size_t row = 0; row < shape.sequences * shape.length * shape.heads; row++)
        for (size_t i = 0; i < half; i++) {
            const size_t t = row / shape.heads % shape.length, at = row * size + i;
            const double angle = (double)t * pow(theta, -2.0 * (double)i / (double)size);
            y[at] = x[at] * cos(angle) - x[at + half] * sin(angle);
            y[at + half] = x[at + half] * cos(angle) + x[at] * sin(angle);
        }
    return y;
}

TEST(test_rope_agrees_with_float64_and_its_inverse_restores) {
    for (size_t i = 0; i < CASES; i++) {
        const rope_case shape = cases[i];
        const size_t tokens = shape.sequences * shape.length,
                     n = tokens * shape.heads * shape.head_size;
        double *values = random_doubles("x", n), *want = rotate(shape, values);
        moert_buffer *x = upload_doubles(values, n), *table;
        ASSERT_OK(
            moert_rope_table_create(test_device, shape.length + i, shape.head_size, theta, &table));
        owned_buffer(table);
        const moert_rotation rotation = {table, shape.heads, shape.length};
        ASSERT_OK(moert_rope(&rotation, tokens, shape.head_size, false, x));
        assert_near_in("x", x, want, n, 1e-5);
        ASSERT_OK(moert_rope(&rotation, tokens, shape.head_size, true, x));
        assert_near_in("restored x", x, values, n, 1e-6);
    }
}

TEST(test_rope_of_a_sequence_has_the_same_bits_alone_and_in_a_batch) {
    const size_t length = 19, n = length * 2 * 20;
    double *values = random_doubles("x", 3 * n);
    moert_buffer *batch = upload_doubles(values, 3 * n), *table;
    moert_buffer *alone = upload_doubles(values + n, n);
    ASSERT_OK(moert_rope_table_create(test_device, length, 20, theta, &table));
    owned_buffer(table);
    const moert_rotation rotation = {table, 2, length};
    ASSERT_OK(moert_rope(&rotation, 3 * length, 20, false, batch));
    ASSERT_OK(moert_rope(&rotation, length, 20, false, alone));
    assert_same_bits_in("x", alone, download_floats(batch, 3 * n) + n, n);
}

/* Values at far positions differ visibly if the angle is not first rounded to float32. */
TEST(test_rope_table_rounds_the_angle_to_float32) {
    static const struct {
        size_t t, i;
        float cosine, sine;
    } known[] = {
        {1, 15, 1.0f, 0.00017782794f},          {4096, 0, 0.803990602f, -0.594641984f},
        {4999, 1, -0.835838556f, 0.548975348f}, {4999, 5, -0.0580993593f, -0.998310804f},
        {3001, 7, -0.99916333f, 0.0408985391f},
    };
    const size_t length = 5000, half = 16;
    moert_buffer *table;
    ASSERT_OK(moert_rope_table_create(test_device, length, 2 * half, theta, &table));
    owned_buffer(table);
    float *values = test_alloc(length * 2 * half * sizeof *values);
    ASSERT_OK(moert_buffer_read(table, 0, values, length * 2 * half * sizeof *values));
    for (size_t n = 0; n < MOERT_COUNT(known); n++) {
        const float *row = values + known[n].t * 2 * half + known[n].i;
        assert_same_bits("cos", row, &known[n].cosine, 1);
        assert_same_bits("sin", row + half, &known[n].sine, 1);
    }
}

TEST(test_rope_refuses_odd_heads_and_short_tables) {
    moert_buffer *table, *x = unset_floats(64);
    assert_int_equal(moert_rope_table_create(test_device, 4, 7, theta, &table), MOERT_ERROR_USAGE);
    assert_int_equal(moert_rope_table_create(test_device, 4, 8, 0.0f, &table), MOERT_ERROR_USAGE);
    ASSERT_OK(moert_rope_table_create(test_device, 4, 8, theta, &table));
    owned_buffer(table);
    const moert_rotation too_long = {table, 1, 8}, empty = {table, 1, 0};
    assert_int_equal(moert_rope(&too_long, 8, 8, false, x), MOERT_ERROR_USAGE);
    assert_int_equal(moert_rope(&empty, 4, 8, false, x), MOERT_ERROR_USAGE);
}

TESTS(open_test_device, close_test_device)
