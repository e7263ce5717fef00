// run: check=1 all=1san env=MOERT_FORM=gpu
/* The grouped GEMM in GPU form, on any device: every tile gives the bits of the reference. */
#include "device/device.h"
#include "support/gemm/gemm.h"

static void check_all(const problem *p) {
    /* in gemm_ways, the portable way follows each of these references */
    static const size_t ways[] = {REFERENCE_F32, REFERENCE_BF16};
    for (operation op = 0; op < OPERATIONS; op++)
        for (size_t i = 0; i < 2; i++) {
            const ops_bytes want = run_new(p, op, &gemm_ways[ways[i]]);
            check_run(p, op, &gemm_ways[ways[i] + 1], &want);
        }
}

TEST(test_gemms_in_gpu_form_have_the_bits_of_the_reference) {
    assert_true(moert_device_describe(test_device)->gpu_form);
    for (size_t i = 0; i < gemm_problem_count; i++)
        check_all(&gemm_problems[i]);
}

/* The number of rows of a group determines the height of its tiles. The test uses group sizes
 * around each height. */
TEST(test_no_tile_changes_a_bit_in_gpu_form) {
    for (uint32_t lines = 31; lines <= 129; lines += lines % 32 == 1 ? 30 : 1)
        check_all(&(problem){.n = 36,
                             .k = 20,
                             .rows = 4 * lines + 3,
                             .groups = 4,
                             .ends = {lines, lines, 3 * lines, 4 * lines},
                             .bias = true,
                             .accumulate = lines % 2 == 0});
}

TEST(test_weights_are_not_prepacked_in_gpu_form) {
    const moert_panels_shape shape = {2, 64, 64, MOERT_PANELS_FORWARD, MOERT_DTYPE_F32};
    moert_panels *panels;
    assert_int_equal(moert_panels_need(test_device, &shape), 0);
    ASSERT_OK(moert_panels_create(test_device, &shape, &panels));
    assert_null(panels);
}

TESTS(open_test_device, close_test_device)
