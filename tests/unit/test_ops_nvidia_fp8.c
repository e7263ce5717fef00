// run: np=1 sanitize=1
/* Grouped GEMM ops on FP8 factors on the tensor cores of an NVIDIA GPU, where there is one: exact
 * results of small integers, random ones near float64, whatever the groups. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "support/ops_quantized.h"
#include "support/ops_run.h"

enum { MOST_GROUPS = 36 };
/* What is multiplied: the kinds of a GEMM, and a dgrad by weights that are stored transposed. */
enum { DGRAD_TURNED = MOERT_OP_GEMM_WGRAD + 1, CASES };
typedef struct shape {
    size_t n, k, rows, groups, padding; /* padding: numbers between plain rows */
    uint32_t ends[MOST_GROUPS];
} shape;

/* the least; all empty; tiles that are whole, and by one too long or short; blocks that end early,
 * empty groups and rows past the end; strides; groups of a few rows; more tiles than work-groups */
static const shape shapes[] = {
    {16, 16, 1, 1, 0, {1}},
    {16, 32, 0, 2, 0, {0, 0}},
    {256, 128, 128, 1, 0, {128}},
    {272, 144, 130, 2, 0, {129, 130}},
    {240, 112, 127, 3, 0, {0, 127, 127}},
    {512, 320, 900, 5, 0, {0, 300, 301, 301, 813}},
    {144, 1040, 700, 4, 16, {64, 128, 427, 690}},
    {1040, 272, 300, 3, 32, {5, 5, 300}},
    {48, 64, 60, 36, 0, {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18,
                         19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 60}},
    {3328, 32, 1300, 3, 0, {600, 601, 1299}},
    {32, 3328, 1300, 3, 0, {600, 601, 1299}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], RANDOM_SHAPE = 6 };

static moert_op_options describe(const shape *s, moert_op_kind kind, moert_number result) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = kind;
    o.groups = s->groups;
    o.rows = s->rows;
    o.n = s->n;
    o.k = s->k;
    o.x.type = o.y.type = result;
    return o;
}

/* Factors in DeepSeek's blocks, those of a wgrad along the rows. */
static moert_op_options describe_blocks(const shape *s, size_t which, moert_number result) {
    const bool turned = which == DGRAD_TURNED;
    const moert_op_kind kind = turned ? MOERT_OP_GEMM_DGRAD : (moert_op_kind)which;
    moert_op_options o = describe(s, kind, result);
    if (kind == MOERT_OP_GEMM_WGRAD) {
        o.x = o.y = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_COLUMN, 0);
        o.x.how.transposed = o.y.how.transposed = true;
        o.weight.type = result;
        o.rows = moert_ceil_div(s->rows, 16) * 16;
        o.row_multiple = 16;
        return o;
    }
    *ops_first_factor(&o) = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_ROW, 0);
    o.weight = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_TILE, 0);
    o.weight.how.transposed = turned;
    return o;
}

/* The ends of the groups, which a wgrad wants at multiples of 16. */
static const uint32_t *ends_of(const shape *s, const moert_op_options *o) {
    static uint32_t ends[MOST_GROUPS];
    const uint32_t multiple = o->row_multiple > 0 ? (uint32_t)o->row_multiple : 1;
    for (size_t g = 0; g < s->groups; g++)
        ends[g] = (s->ends[g] + multiple - 1) / multiple * multiple;
    return ends;
}

static void title_of(const moert_op_options *o, char title[128]) {
    snprintf(title, 128, "%s, %zu groups, %zu rows, n %zu, k %zu", moert_op_kind_name(o->kind),
             o->groups, o->rows, o->n, o->k);
}

static void test_scaled_blocks_are_exact_for_every_split_of_the_rows(void **state) {
    (void)state;
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * CASES * 2; i++) {
        const shape *s = &shapes[i / 2 / CASES];
        const moert_op_options o =
            describe_blocks(s, i % CASES, i / CASES % 2 ? MOERT_NUMBER_F32 : MOERT_NUMBER_BF16);
        ops_bytes got = ops_bytes_make(&o, ends_of(s, &o)), want = ops_bytes_fill(&got);
        char title[128];
        title_of(&o, title);
        ops_bytes_execute("reference", &want);
        ops_bytes_execute("nvidia", &got);
        ops_bytes_compare(title, &got, &want);
        ops_bytes_free(&got);
        ops_bytes_free(&want);
    }
}

static void test_plain_factors_times_alpha_are_exact_for_every_split_of_the_rows(void **state) {
    (void)state;
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * 8; i++) {
        const shape *s = &shapes[i / 8];
        const bool dgrad = i % 2, e5m2 = i / 2 % 2, floats = i / 4 % 2;
        moert_op_options o = describe(s, dgrad ? MOERT_OP_GEMM_DGRAD : MOERT_OP_GEMM_FORWARD,
                                      floats ? MOERT_NUMBER_F32 : MOERT_NUMBER_BF16);
        o.weight.type = ops_first_factor(&o)->type = e5m2 ? MOERT_NUMBER_E5M2 : MOERT_NUMBER_E4M3;
        o.x.stride = (ptrdiff_t)(s->k + s->padding);
        o.y.stride = (ptrdiff_t)(s->n + s->padding);
        o.alpha = i % 3 != 0;
        ops_data got = ops_make(&o, s->ends, true), want = ops_copy(&got);
        char title[128];
        title_of(&o, title);
        ops_expect_gemm(&want);
        ops_execute("nvidia", &got, 1);
        ops_compare(title, &got, &want);
        ops_free(&got);
        ops_free(&want);
    }
}

/* Term i of element (line, j) of a result, by the values of the factors; line within group g. */
static double term_of(const ops_bytes *plain, size_t g, size_t line, size_t j, size_t i) {
    const moert_op_options *o = &plain->shape.options;
    const uint32_t *ends = (const uint32_t *)(const void *)plain->at[MOERT_OP_BUFFER_ends];
    const float *x = ops_floats(plain, MOERT_OP_BUFFER_x),
                *y = ops_floats(plain, MOERT_OP_BUFFER_y);
    const float *weight = ops_floats(plain, MOERT_OP_BUFFER_weight) + g * o->n * o->k;
    const size_t first = g > 0 ? ends[g - 1] : 0;
    switch (o->kind) {
    case MOERT_OP_GEMM_FORWARD:
        return (double)x[(first + line) * o->k + i] * (double)weight[j * o->k + i];
    case MOERT_OP_GEMM_DGRAD:
        return (double)y[(first + line) * o->n + i] * (double)weight[i * o->k + j];
    default:
        return (double)y[(first + i) * o->n + line] * (double)x[(first + i) * o->k + j];
    }
}

/* The largest difference from float64 over the sum of the magnitudes of a result's products. */
static double worst_of(const ops_bytes *got, const ops_bytes *plain, moert_op_buffer which) {
    const moert_op_options *o = &plain->shape.options;
    const bool forward = o->kind == MOERT_OP_GEMM_FORWARD, wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const uint32_t *ends = (const uint32_t *)(const void *)plain->at[MOERT_OP_BUFFER_ends];
    const float *result = ops_floats(got, which);
    double worst = 0.0;
    for (size_t g = 0; g < o->groups; g++) {
        const size_t first = g > 0 ? ends[g - 1] : 0, rows = ends[g] - first;
        const size_t lines = wgrad ? o->n : rows, columns = forward ? o->n : o->k;
        const size_t terms = wgrad ? rows : forward ? o->k : o->n;
        for (size_t at = 0; at < lines * columns; at++) {
            double sum = 0.0, size = 1e-30;
            for (size_t i = 0; i < terms; i++) {
                const double term = term_of(plain, g, at / columns, at % columns, i);
                sum += term;
                size += fabs(term);
            }
            const double value = (double)result[(wgrad ? g * o->n : first) * columns + at];
            worst = fmax(worst, fabs(value - sum) / size);
        }
    }
    return worst;
}

static void test_random_factors_are_near_float64(void **state) {
    (void)state;
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < CASES; i++) {
        const shape *s = &shapes[RANDOM_SHAPE];
        const moert_op_options o = describe_blocks(s, i, MOERT_NUMBER_F32);
        ops_bytes got = ops_bytes_make(&o, ends_of(s, &o));
        got.spread = true;
        ops_bytes plain = ops_bytes_fill(&got);
        ops_bytes_execute("nvidia", &got);
        const moert_op_buffer results[] = {MOERT_OP_BUFFER_y, MOERT_OP_BUFFER_x,
                                           MOERT_OP_BUFFER_weight, MOERT_OP_BUFFER_x};
        const double worst = worst_of(&got, &plain, results[i]);
        print_message("# %s: off by %.2e of the sum of magnitudes\n", moert_op_kind_name(o.kind),
                      worst);
        assert_true(worst <= 1e-4); /* the tensor cores drop what is below 2^-13 of a block */
        ops_bytes_free(&got);
        ops_bytes_free(&plain);
    }
}

static void test_results_repeat_bit_for_bit(void **state) {
    (void)state;
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < CASES; i++) {
        const shape *s = &shapes[5];
        const moert_op_options o = describe_blocks(s, i, MOERT_NUMBER_F32);
        ops_bytes first = ops_bytes_make(&o, ends_of(s, &o));
        first.spread = true;
        ops_bytes plain = ops_bytes_fill(&first);
        ops_bytes_execute("nvidia", &first);
        for (size_t j = 0; j < 10; j++) {
            ops_bytes again = ops_bytes_make(&o, ends_of(s, &o));
            again.spread = true;
            ops_bytes other = ops_bytes_fill(&again);
            ops_bytes_execute("nvidia", &again);
            for (moert_op_buffer b = 0; b < MOERT_OP_BUFFERS; b++)
                assert_memory_equal(again.at[b], first.at[b], first.bytes[b]);
            ops_bytes_free(&again);
            ops_bytes_free(&other);
        }
        ops_bytes_free(&first);
        ops_bytes_free(&plain);
    }
}

static void test_what_the_kernel_cannot_do_is_refused_or_left_to_others(void **state) {
    (void)state;
    const bool hopper = has_hopper("skipped");
    moert_op_options o = describe_blocks(&shapes[3], MOERT_OP_GEMM_FORWARD, MOERT_NUMBER_BF16);
    const char *const takes = hopper ? "takes rows of fp8-block" : "takes GPUs";
    moert_op *op;
    o.backend = "nvidia";
    o.weight.how.axis = MOERT_AXIS_ROW;
    ASSERT_FAILS(moert_op_create(test_device, &o, &op), MOERT_ERROR_UNSUPPORTED, takes);
    o.fallback = true;
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    assert_string_equal(moert_op_backend_name(op), "portable");
    moert_op_destroy(op);
}

/* One group is left out, having no rows. */
static void test_weights_of_bytes_are_transposed(void **state) {
    (void)state;
    enum { GROUPS = 3, N = 272, K = 144, BYTES = GROUPS * N * K };
    const uint32_t ends[GROUPS] = {4, 4, 7};
    unsigned char *from = test_alloc(BYTES), *to = test_alloc(BYTES), *got;
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(256.0 * moert_rng_uniform(1, 0, i));
    memset(to, 0xCD, BYTES);
    moert_buffer *source = upload(from, BYTES), *result = upload(to, BYTES);
    moert_buffer *groups = upload(ends, sizeof ends);
    ASSERT_OK(MOERT_RUN(test_device, "turn", "turn_bytes", ((moert_grid){2, 3, GROUPS}),
                        MOERT_ARG(source), MOERT_ARG(result), MOERT_ARG((unsigned)N),
                        MOERT_ARG((unsigned)K), MOERT_ARG(groups)));
    for (size_t i = 0; i < BYTES; i++)
        if (i / (N * K) != 1)
            to[i / (N * K) * N * K + i % K * N + i / K % N] = from[i];
    got = download(result, BYTES);
    assert_memory_equal(got, to, BYTES);
    moert_buffer_destroy(source);
    moert_buffer_destroy(result);
    moert_buffer_destroy(groups);
    free(from);
    free(to);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaled_blocks_are_exact_for_every_split_of_the_rows),
        cmocka_unit_test(test_plain_factors_times_alpha_are_exact_for_every_split_of_the_rows),
        cmocka_unit_test(test_random_factors_are_near_float64),
        cmocka_unit_test(test_results_repeat_bit_for_bit),
        cmocka_unit_test(test_what_the_kernel_cannot_do_is_refused_or_left_to_others),
        cmocka_unit_test(test_weights_of_bytes_are_transposed),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
