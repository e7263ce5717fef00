// run: np=1
/* Grouped GEMM ops on the tensor cores of an NVIDIA GPU, where there is one: exact results of small
 * integers, whatever the groups, and the same bits in every run. */
#include <stdio.h>

#include "support/ops_run.h"

enum { MOST_GROUPS = 40, KINDS = 3 };
typedef struct shape {
    size_t n, k, rows, groups, padding; /* padding: numbers between rows */
    uint32_t ends[MOST_GROUPS];
} shape;

/* one number of a tile; all empty; tiles that are whole, and by one too long or short; blocks of
 * terms that end early; many tiles and rows past the end; groups of a few rows; strides */
static const shape shapes[] = {
    {8, 8, 1, 1, 0, {1}},
    {16, 24, 0, 2, 0, {0, 0}},
    {256, 64, 128, 1, 0, {128}},
    {264, 72, 130, 2, 0, {129, 130}},
    {248, 56, 127, 3, 0, {0, 127, 127}},
    {512, 320, 900, 5, 0, {0, 300, 301, 301, 813}},
    {136, 1048, 700, 4, 8, {64, 128, 427, 690}},
    {1032, 520, 640, 3, 24, {5, 5, 640}},
    {40, 48, 60, 36, 0, {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18,
                         19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 60}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static moert_op_options describe(const shape *s, moert_op_kind kind, moert_number type) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = kind;
    o.groups = s->groups;
    o.rows = s->rows;
    o.n = s->n;
    o.k = s->k;
    o.x = (moert_operand){.type = type, .stride = (ptrdiff_t)(s->k + s->padding)};
    o.y = (moert_operand){.type = type, .stride = (ptrdiff_t)(s->n + s->padding)};
    o.weight.type = type;
    return o;
}

static bool has_hopper(void) {
    const bool has = moert_device_describe(test_device)->nvidia == 90;
    if (!has)
        print_message("# skipped: the device has no tensor cores of Hopper's\n");
    return has;
}

static void test_every_orientation_is_exact_for_every_split_of_the_rows(void **state) {
    (void)state;
    if (!has_hopper())
        return;
    for (size_t i = 0; i < SHAPES * KINDS * 2; i++) {
        const shape *s = &shapes[i / 2 / KINDS];
        const moert_op_options o = describe(s, (moert_op_kind)(i / 2 % KINDS),
                                            i % 2 ? MOERT_NUMBER_F16 : MOERT_NUMBER_BF16);
        ops_data got = ops_make(&o, s->ends, true), want = ops_copy(&got);
        char title[96];
        ops_expect_gemm(&want);
        ops_execute("nvidia", &got, 1);
        snprintf(title, sizeof title, "%s %s, %zu groups, %zu rows, n %zu, k %zu",
                 moert_op_kind_name(o.kind), moert_number_name(o.x.type), o.groups, o.rows, o.n,
                 o.k);
        ops_compare(title, &got, &want);
        ops_free(&got);
        ops_free(&want);
    }
}

static void test_results_repeat_bit_for_bit(void **state) {
    (void)state;
    if (!has_hopper())
        return;
    for (size_t kind = 0; kind < KINDS; kind++) {
        const shape *s = &shapes[5];
        const moert_op_options o = describe(s, (moert_op_kind)kind, MOERT_NUMBER_BF16);
        ops_data start = ops_make(&o, s->ends, false), first = ops_copy(&start);
        ops_execute("nvidia", &first, 1);
        for (size_t i = 0; i < 20; i++) {
            ops_data again = ops_copy(&start);
            ops_execute("nvidia", &again, 1 + i % 3);
            ops_compare("again", &again, &first);
            ops_free(&again);
        }
        ops_free(&first);
        ops_free(&start);
    }
}

static void test_what_the_kernel_cannot_do_is_refused_and_left_to_others(void **state) {
    (void)state;
    moert_op_options o = describe(&shapes[0], MOERT_OP_GEMM_FORWARD, MOERT_NUMBER_F32);
    moert_op *op;
    o.backend = "nvidia";
    ASSERT_FAILS(moert_op_create(test_device, &o, &op), MOERT_ERROR_UNSUPPORTED, "takes");
    o.fallback = true;
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    assert_string_equal(moert_op_backend_name(op), "portable");
    moert_op_destroy(op);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_orientation_is_exact_for_every_split_of_the_rows),
        cmocka_unit_test(test_results_repeat_bit_for_bit),
        cmocka_unit_test(test_what_the_kernel_cannot_do_is_refused_and_left_to_others),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
