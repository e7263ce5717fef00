// run: np=1 sanitize=1
/* Grouped GEMM ops with a factor for each row and the largest magnitudes of the groups. */
#include "support/op/run.h"

static const char *const backends[] = {"reference", "portable"};
static const moert_number types[] = {MOERT_NUMBER_F32, MOERT_NUMBER_BF16, MOERT_NUMBER_F16};

/* empty groups, one row, sizes off every tile, rows past the last end */
enum { GROUPS = 5, ROWS = 90, KINDS = 2, TYPES = 3, BACKENDS = 2 };
static const uint32_t ends[GROUPS] = {13, 13, 14, 46, 80};

static moert_op_options describe(moert_op_kind kind, moert_number type, moert_number result) {
    moert_op_options o = ops_sized(kind, GROUPS, ROWS, 40, 136);
    o.x.type = o.y.type = o.weight.type = type;
    ops_result(&o)->type = result;
    o.prob = o.amax = true;
    return o;
}

/* Both backends give what float64 gives for integers. */
static void check(const moert_op_options *o) {
    for (size_t b = 0; b < BACKENDS; b++)
        ops_check_gemm(backends[b], o, ends);
}

TEST(test_prob_and_amax_are_exact_for_every_type) {
    for (size_t i = 0; i < KINDS * TYPES * TYPES * 3; i++) {
        moert_op_options o =
            describe((moert_op_kind)(i % 2), types[i / 2 % TYPES], types[i / 2 / TYPES % TYPES]);
        const size_t mode = i / 2 / TYPES / TYPES;
        o.alpha = mode > 0;
        o.prob = mode < 2;
        check(&o);
    }
}

TEST(test_permuted_rows_keep_their_prob_and_their_group) {
    for (size_t i = 0; i < KINDS * TYPES * 2; i++) {
        moert_op_options o =
            describe((moert_op_kind)(i % 2), types[i / 2 % TYPES], types[i / 2 % TYPES]);
        o.permute = i / 2 / TYPES == 0 ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.alpha = true;
        o.topk = 3;
        o.row_weight = o.permute == MOERT_OP_PERMUTE_Y && o.kind == MOERT_OP_GEMM_FORWARD;
        check(&o);
    }
}

TEST(test_amax_is_of_bias_and_of_what_is_added_to) {
    for (size_t i = 0; i < KINDS * 3; i++) {
        moert_op_options o = describe((moert_op_kind)(i % 2), MOERT_NUMBER_F32, types[i / 2]);
        o.prob = false;
        o.alpha = true;
        o.beta = i / 2 == 0;
        o.accumulate = i / 2 == 1;
        o.bias = o.bias_scale = o.kind == MOERT_OP_GEMM_FORWARD;
        check(&o);
    }
}

TEST(test_the_portable_backend_has_the_bits_of_the_reference) {
    for (size_t i = 0; i < KINDS * TYPES; i++) {
        moert_op_options o = describe((moert_op_kind)(i % 2), types[i / 2], types[i / 2]);
        o.alpha = true;
        ops_data want = ops_make(&o, ends, false), got = ops_copy(&want);
        for (size_t r = 0; r < ROWS; r++) /* no longer of few bits */
            want.at[MOERT_OP_BUFFER_prob][r] = got.at[MOERT_OP_BUFFER_prob][r] =
                sinf((float)r) / 3.0f;
        ops_execute("reference", &want, 1);
        ops_execute("portable", &got, 1);
        ops_compare(moert_op_kind_name(o.kind), &got, &want);
    }
}

/* N = 384, K = 160 and groups of 64, 256 and 320 rows. */
TEST(test_alpha_0_gives_zeros_and_an_amax_of_0) {
    const uint32_t own[] = {64, 320, 640};
    for (size_t i = 0; i < KINDS * BACKENDS; i++) {
        moert_op_options o = describe((moert_op_kind)(i % 2), MOERT_NUMBER_BF16, MOERT_NUMBER_BF16);
        o.groups = 3;
        o.rows = 640;
        o.n = 384;
        o.k = 160;
        o.alpha = true;
        ops_data got = ops_make(&o, own, true);
        const moert_op_buffer result = ops_result_buffer(o.kind);
        float *alpha = got.at[MOERT_OP_BUFFER_alpha];
        alpha[0] = alpha[2] = 0.0f;
        alpha[1] = -0.0f;
        ops_execute(backends[i / 2], &got, 1);
        for (size_t at = 0; at < got.count[result]; at++)
            assert_true(got.at[result][at] == 0.0f);
        for (size_t g = 0; g < 3; g++)
            assert_true(got.at[MOERT_OP_BUFFER_amax][g] == 0.0f);
    }
}

TEST(test_amax_is_raised_and_nan_stays) {
    for (size_t i = 0; i < KINDS * BACKENDS; i++) {
        const moert_op_options o =
            describe((moert_op_kind)(i % 2), MOERT_NUMBER_F32, MOERT_NUMBER_F32);
        ops_data got = ops_make(&o, ends, true);
        float *amax = got.at[MOERT_OP_BUFFER_amax];
        amax[0] = 1e6f;
        amax[1] = 3.0f;
        amax[4] = NAN;
        got.at[MOERT_OP_BUFFER_prob][20] = NAN; /* group 3 */
        ops_execute(backends[i / 2], &got, 1);
        assert_true(amax[0] == 1e6f && amax[1] == 3.0f); /* already larger; without rows */
        assert_true(isfinite(amax[2]) && isnan(amax[3]) && isnan(amax[4]));
    }
}

TEST(test_rows_that_are_dropped_do_not_count) {
    for (size_t i = 0; i < BACKENDS; i++) {
        moert_op_options o = describe(MOERT_OP_GEMM_FORWARD, MOERT_NUMBER_F32, MOERT_NUMBER_F32);
        o.permute = MOERT_OP_PERMUTE_Y;
        ops_data got = ops_make(&o, ends, true);
        got.at[MOERT_OP_BUFFER_prob][20] = NAN; /* of 32 rows in group 3 */
        got.at[MOERT_OP_BUFFER_prob][13] = NAN; /* the only row of group 2 */
        ops_gather(&got)[20] = ops_gather(&got)[13] = UINT32_MAX;
        ops_execute(backends[i], &got, 1);
        assert_true(isfinite(got.at[MOERT_OP_BUFFER_amax][3]));
        assert_true(got.at[MOERT_OP_BUFFER_amax][2] == -INFINITY);
    }
}

TESTS(open_test_device, close_test_device)
