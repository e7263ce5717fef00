// run: check=1,1gpu all=1san
/* Rotary positions against float64. */
#include "nn/nn.h"
#include "support/test.h"

/* A case rotates `width` elements of each head of `head_size` elements, from element `offset`
 * on. */
typedef struct rope_case {
    size_t sequences, length, heads, head_size, width, offset;
} rope_case;

static const rope_case cases[] = {
    {0, 5, 2, 20, 20, 0},     {2, 0, 2, 16, 16, 0},   {1, 1, 1, 2, 2, 0},
    {3, 17, 3, 20, 20, 0},    {2, 33, 1, 24, 24, 0},  {1, 40, 4, 64, 64, 0},
    {2, 9, 2, 128, 128, 0},   {2, 11, 3, 128, 64, 0}, {3, 7, 2, 20, 10, 0},
    {2, 13, 5, 192, 64, 128}, {1, 19, 1, 9, 6, 3},    {2, 5, 1, 160, 32, 128}};
#define CASES MOERT_COUNT(cases)
static const double theta = 10000.0;

static double *rotate(rope_case shape, bool interleaved, const double *x) {
    const size_t half = shape.width / 2, size = shape.head_size;
    const size_t rows = shape.sequences * shape.length * shape.heads;
    double *y = test_alloc(rows * size * sizeof *y);
    memcpy(y, x, rows * size * sizeof *y);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < half; i++) {
            const size_t t = row / shape.heads % shape.length, from = row * size + shape.offset;
            const size_t a = from + (interleaved ? 2 * i : i), b = a + (interleaved ? 1 : half);
            const double angle = (double)t * pow(theta, -2.0 * (double)i / (double)shape.width);
            y[a] = x[a] * cos(angle) - x[b] * sin(angle);
            y[b] = x[b] * cos(angle) + x[a] * sin(angle);
        }
    return y;
}

static moert_buffer *table_of(const moert_rope_scheme *scheme, size_t length) {
    moert_buffer *table;
    ASSERT_OK(moert_rope_table_create(test_device, scheme, length, &table));
    return owned_buffer(table);
}

/* The rotation of a case, with a table for `length` positions. */
static moert_rotation rotation_of(rope_case shape, bool interleaved, size_t length) {
    const moert_rope_scheme scheme = {
        .interleaved = interleaved, .width = shape.width, .theta = theta};
    return (moert_rotation){.table = table_of(&scheme, length),
                            .heads = shape.heads,
                            .length = shape.length,
                            .width = shape.width != shape.head_size ? shape.width : 0,
                            .offset = shape.offset,
                            .interleaved = interleaved};
}

/* An inverse that restores x is also the gradient: a rotation's transpose is its inverse. */
TEST(test_rope_agrees_with_float64_and_its_inverse_restores) {
    for (size_t i = 0; i < 2 * CASES; i++) {
        const rope_case shape = cases[i / 2];
        const size_t tokens = shape.sequences * shape.length,
                     n = tokens * shape.heads * shape.head_size;
        double *values = random_doubles("x", n), *want = rotate(shape, i % 2 != 0, values);
        moert_buffer *x = upload_doubles(values, n), *bf16 = unset_bf16(n);
        const moert_rotation rotation = rotation_of(shape, i % 2 != 0, shape.length + i);
        ASSERT_OK(moert_rope_bf16(&rotation, tokens, shape.head_size, x, bf16));
        ASSERT_OK(moert_rope(&rotation, tokens, shape.head_size, false, x));
        assert_near_in("x", x, want, n, 1e-5);
        assert_bf16("x in bf16", bf16, download_floats(x, n), n);
        ASSERT_OK(moert_rope(&rotation, tokens, shape.head_size, true, x));
        assert_near_in("restored x", x, values, n, 1e-6);
    }
}

/* Each of two sequences first has two documents, then is one document. */
TEST(test_rope_of_a_document_or_sequence_has_the_same_bits_alone_and_at_any_offset) {
    const rope_case shape = {2, 19, 2, 24, 20, 4};
    const size_t width = shape.heads * shape.head_size, tokens = 2 * shape.length;
    const size_t starts[][5] = {{0, 7, 19, 20, 38}, {0, 19, 38, 38, 38}};
    int32_t position[38];
    double *values = random_doubles("x", tokens * width);
    for (size_t d = 0; d < 4; d++)
        for (size_t t = starts[0][d]; t < starts[0][d + 1]; t++)
            position[t] = (int32_t)(t - starts[0][d]);
    for (size_t i = 0; i < 8; i++) {
        const bool inverse = i % 2, whole = i / 4;
        const size_t *start = starts[whole];
        moert_buffer *packed = upload_doubles(values, tokens * width);
        moert_rotation rotation = rotation_of(shape, i / 2 % 2, shape.length);
        rotation.positions = whole ? NULL : upload(position, sizeof position);
        ASSERT_OK(moert_rope(&rotation, tokens, shape.head_size, inverse, packed));
        rotation.positions = NULL;
        const float *got = download_floats(packed, tokens * width);
        for (size_t d = 0; d < 4; d++) {
            const size_t own = start[d + 1] - start[d];
            moert_buffer *alone = upload_doubles(values + start[d] * width, own * width);
            ASSERT_OK(moert_rope(&rotation, own, shape.head_size, inverse, alone));
            assert_same_bits_in("x", alone, got + start[d] * width, own * width);
        }
    }
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
    enum { LENGTH = 5000, HALF = 16 };
    static float values[LENGTH][2][HALF];
    const moert_rope_scheme scheme = {.width = 2 * HALF, .theta = theta};
    ASSERT_OK(moert_buffer_read(table_of(&scheme, LENGTH), 0, values, sizeof values));
    for (size_t n = 0; n < MOERT_COUNT(known); n++) {
        assert_same_bits("cos", &values[known[n].t][0][known[n].i], &known[n].cosine, 1);
        assert_same_bits("sin", &values[known[n].t][1][known[n].i], &known[n].sine, 1);
    }
}

TEST(test_rope_table_multiplies_by_the_attention_factor) {
    moert_rope_scheme scheme = {.type = MOERT_ROPE_YARN,
                                .width = 8,
                                .theta = theta,
                                .factor = 4.0,
                                .original = 64,
                                .attention_factor = 1.0};
    float got[2][10 * 8];
    for (int i = 0; i < 2; i++, scheme.attention_factor = 1.25)
        ASSERT_OK(moert_buffer_read(table_of(&scheme, 10), 0, got[i], sizeof got[i]));
    for (size_t i = 0; i < MOERT_COUNT(got[0]); i++)
        got[0][i] *= 1.25f;
    assert_same_bits("table", got[1], got[0], MOERT_COUNT(got[0]));
}

TEST(test_a_yarn_factor_above_1_scales_the_attention) {
    const struct {
        double factor, mscale, expected;
    } scales[] = {{0.5, 1.0, 1.0},
                  {1.0, 2.0, 1.0},
                  {1.5, 1.0, 1.0405465108108164},
                  {40.0, 0.707, 1.2608037774058554}};
    for (size_t i = 0; i < MOERT_COUNT(scales); i++)
        assert_true(fabs(moert_rope_mscale(scales[i].factor, scales[i].mscale) -
                         scales[i].expected) < 1e-12);
}

/* Checks that a rotation of `tokens` tokens of one head of 8 elements, by a table for 4 positions,
 * is refused after a change. */
#define REFUSED(text, tokens, change)                                                              \
    do {                                                                                           \
        moert_rotation rotation = rotation_of((rope_case){1, 4, 1, 8, 8, 0}, false, 4);            \
        change;                                                                                    \
        ASSERT_FAILS(moert_rope(&rotation, tokens, 8, false, x), MOERT_ERROR_USAGE, text);         \
    } while (0)

TEST(test_rope_refuses_odd_widths_and_short_tables) {
    moert_buffer *table, *x = unset_floats(64);
    moert_rope_scheme scheme = {.width = 7, .theta = theta};
    ASSERT_FAILS(moert_rope_table_create(test_device, &scheme, 4, &table), MOERT_ERROR_USAGE,
                 "even width, not 7");
    REFUSED("exceed", 8, rotation.length = 8);
    REFUSED("room for 3 tokens; 4 tokens need positions", 4,
            rotation.positions = test_buffer(3 * sizeof(int32_t)));
    REFUSED("length 0", 4, rotation.length = 0);
    REFUSED("even width, not 3", 4, rotation.width = 3);
    REFUSED("from element 3 on", 4, (rotation.width = 6, rotation.offset = 3));
    REFUSED("cannot rotate 6", 4, (rotation.width = 6, rotation.offset = SIZE_MAX));
    /* an interleaved rotation needs rows twice as long in its table */
    REFUSED("exceed", 4, rotation.interleaved = true);
}

TESTS(open_test_device, close_test_device)
