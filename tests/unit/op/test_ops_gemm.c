// run: check=1 all=1san
/* Grouped GEMM ops: exact results of every orientation, dtype, epilogue and permutation, on both
 * backends, with stacked and discrete weights. */
#include "base/memory.h"
#include "support/op/run.h"

static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16, MOERT_DTYPE_F16,
                                    MOERT_DTYPE_E4M3, MOERT_DTYPE_E5M2};

/* all groups empty; empty groups first, in between and last; one group with all rows; groups of one
 * row; sizes that no tile divides; rows past the last end; n and k above 128 that are no multiples
 * of 128 */
static const ops_shape shapes[] = {
    {16, 16, 0, 2, 0, {0, 0}},
    {33, 40, 5, 3, 0, {0, 0, 0}},
    {1, 1, 1, 1, 0, {1}},
    {17, 15, 12, 4, 0, {0, 0, 5, 5}},
    {64, 48, 40, 4, 0, {0, 40, 40, 40}},
    {24, 31, 36, 6, 0, {1, 2, 3, 4, 5, 6}},
    {144, 200, 60, 3, 0, {7, 32, 57}},
    {40, 136, 90, 5, 0, {13, 13, 45, 46, 80}},
    {20, 33, 1792, 4, 0, {64, 384, 960, 1792}},
    {9, 17, 1100, 36, 0, {0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,   11,
                          12,  13,  14,  15,  16,  17,  18,  127, 255, 383, 483,  515,
                          643, 718, 924, 930, 940, 950, 960, 970, 980, 990, 1000, 1100}},
};
enum { SHAPES = MOERT_COUNT(shapes), KINDS = 3, TYPES = 5 };

static moert_op_options describe(const ops_shape *s, moert_op_kind kind, moert_dtype type,
                                 moert_dtype result) {
    moert_op_options o = ops_sized(kind, s->groups, s->rows, s->n, s->k);
    o.x.type = o.weight.type = o.y.type = type;
    ops_result(&o)->type = result;
    return o;
}

/* Checks both backends, with stacked and discrete weights, for exact results. */
static void check(moert_op_options o, const uint32_t *ends) {
    for (size_t i = 0; i < 4; i++) {
        o.weight.discrete = i % 2 == 1;
        ops_check_gemm(backends[i / 2], &o, ends);
    }
}

TEST(test_every_orientation_is_exact_for_every_split_of_the_rows) {
    for (size_t i = 0; i < SHAPES * KINDS; i++) {
        const ops_shape *s = &shapes[i / KINDS];
        check(describe(s, (moert_op_kind)(i % KINDS), MOERT_DTYPE_F32, MOERT_DTYPE_F32), s->ends);
    }
}

TEST(test_results_of_16_and_8_bits_are_rounded_once_at_the_end) {
    for (size_t i = 0; i < KINDS * TYPES * TYPES; i++) {
        const ops_shape *s = &shapes[6 + i % 2];
        check(describe(s, (moert_op_kind)(i % KINDS), types[i / KINDS % TYPES],
                       types[i / KINDS / TYPES]),
              s->ends);
    }
}

TEST(test_alpha_beta_and_bias_follow_the_formula) {
    for (size_t i = 0; i < KINDS * TYPES * 4; i++) {
        const ops_shape *s = &shapes[7];
        const moert_dtype type = types[i / KINDS % TYPES];
        const unsigned mode = (unsigned)(i / KINDS / TYPES);
        moert_op_options o = describe(s, (moert_op_kind)(i % KINDS), MOERT_DTYPE_F32, type);
        o.alpha = mode != 0;
        o.beta = mode == 1;
        o.accumulate = mode == 2;
        o.bias = o.kind == MOERT_OP_GEMM_FORWARD && mode != 1;
        o.bias_scale = o.bias && mode == 3;
        o.bias_type = types[mode % 3]; /* bias never has an 8-bit dtype */
        check(o, s->ends);
    }
}

TEST(test_strides_leave_the_columns_between_rows_alone) {
    for (size_t i = 0; i < KINDS * TYPES; i++) {
        const ops_shape *s = &shapes[7];
        moert_op_options o =
            describe(s, (moert_op_kind)(i % KINDS), types[i / KINDS], types[i / KINDS]);
        o.x.stride = (ptrdiff_t)s->k + 3;
        o.y.stride = (ptrdiff_t)s->n + 5;
        check(o, s->ends);
    }
}

TEST(test_permutations_gather_and_scatter_rows) {
    const ops_shape *s = &shapes[7];
    for (size_t i = 0; i < KINDS * TYPES * 4; i++) {
        const moert_dtype type = types[i / KINDS % TYPES];
        const bool x = i / KINDS / TYPES % 2 == 0, plain = i / KINDS / TYPES / 2 == 0;
        moert_op_options o = describe(s, (moert_op_kind)(i % KINDS), type, type);
        o.permute = x ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.topk = plain ? 1 : 4;
        o.row_weight = !plain && !x && o.kind == MOERT_OP_GEMM_FORWARD;
        o.accumulate = !plain && !o.row_weight;
        check(o, s->ends);
    }
}

TEST(test_a_slot_outside_the_rows_reads_zeros_and_is_not_written) {
    const ops_shape *s = &shapes[3];
    for (size_t i = 0; i < 4; i++) {
        moert_op_options o = describe(s, i < 2 ? MOERT_OP_GEMM_FORWARD : MOERT_OP_GEMM_DGRAD,
                                      MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        o.permute = MOERT_OP_PERMUTE_Y;
        ops_data got = ops_make(&o, s->ends, true);
        ops_data want = ops_copy(&got);
        ops_gather(&got)[2] = UINT32_MAX;
        ops_execute(backends[i % 2], &got, 1);
        ops_expect_gemm(&want);
        if (i < 2) /* a forward does not write the slot of row 2 */
            memcpy(want.at[MOERT_OP_BUFFER_y] + ops_gather(&want)[2] * s->n,
                   got.at[MOERT_OP_BUFFER_y] + ops_gather(&want)[2] * s->n, s->n * sizeof(float));
        else
            memset(want.at[MOERT_OP_BUFFER_x] + 2 * s->k, 0, s->k * sizeof(float));
        ops_gather(&want)[2] = UINT32_MAX;
        ops_compare("dropped slot", &got, &want);
    }
}

TEST(test_two_accumulating_wgrads_are_the_sum) {
    for (size_t i = 0; i < 4 * TYPES * TYPES; i++) {
        const ops_shape *s = &shapes[6 + i % 2];
        moert_op_options o =
            describe(s, MOERT_OP_GEMM_WGRAD, types[i / 4 % TYPES], types[i / 4 / TYPES]);
        o.accumulate = true;
        ops_data got = ops_make(&o, s->ends, true), want = ops_copy(&got);
        ops_execute(backends[i / 2 % 2], &got, 2);
        ops_expect_gemm(&want);
        ops_expect_gemm(&want);
        ops_compare("accumulated", &got, &want);
    }
}

/* Groups 0, 1 and 3 have no rows, so alpha must not apply to them. Arithmetic would change old
 * values of -0 and NaN. */
TEST(test_a_wgrad_of_no_rows_applies_no_alpha) {
    enum { PLAIN, ACCUMULATED, WITH_BETA, MODES };
    static const float old[] = {-0.0f, 0.0f, 3.0f, -2.0f}, betas[] = {1.0f, 0.0f, 0.5f, -2.0f};
    const ops_shape *s = &shapes[3];
    const uint32_t ends[] = {0, 0, 5, 5};
    for (size_t i = 0; i < (size_t)2 * TYPES * MODES * 2 * 2; i++) {
        const size_t mode = i / 2 / TYPES % MODES, elements = s->n * s->k;
        moert_op_options o =
            describe(s, MOERT_OP_GEMM_WGRAD, MOERT_DTYPE_F32, types[i / 2 % TYPES]);
        /* without alpha, the GEMM writes float32 results directly into the result buffer */
        o.alpha = i / 2 / TYPES / MODES % 2 == 0;
        o.weight.discrete = i / 2 / TYPES / MODES / 2 == 1;
        o.accumulate = mode == ACCUMULATED;
        o.beta = mode == WITH_BETA;
        ops_data got = ops_make(&o, ends, true);
        for (size_t e = 0; e < 4 * elements; e++)
            ops_weight(&got)[e] = mode == WITH_BETA ? old[e % 4] : e % 5 == 4 ? NAN : old[e % 5];
        for (size_t g = 0; o.alpha && g < 4; g++)
            got.at[MOERT_OP_BUFFER_alpha][g] = g == 2 ? 1.0f : g == 0 ? NAN : -INFINITY;
        for (size_t g = 0; o.beta && g < 4; g++)
            got.at[MOERT_OP_BUFFER_beta][g] = betas[g];
        ops_data want = ops_copy(&got);
        ops_execute(backends[i % 2], &got, 1);
        ops_expect_gemm(&want);
        for (size_t g = 0; g < 4; g++)
            if (g != 2)
                assert_same_bits("weight", ops_weight(&got) + g * elements,
                                 ops_weight(&want) + g * elements, elements);
    }
}

TEST(test_the_portable_backend_has_the_bits_of_the_reference) {
    for (size_t i = 0; i < KINDS * TYPES * 2; i++) {
        const ops_shape *s = &shapes[6];
        moert_op_options o = describe(s, (moert_op_kind)(i % KINDS), types[i / KINDS % TYPES],
                                      types[i / KINDS % TYPES]);
        o.alpha = o.beta = i >= (size_t)KINDS * TYPES;
        o.bias = o.kind == MOERT_OP_GEMM_FORWARD;
        ops_data want = ops_make(&o, s->ends, false), got = ops_copy(&want);
        ops_execute("reference", &want, 1);
        ops_execute("portable", &got, 1);
        ops_compare(moert_op_kind_name(o.kind), &got, &want);
    }
}

TEST(test_a_group_has_the_bits_of_a_separate_gemm) {
    const ops_shape *s = &shapes[6];
    const size_t elements = s->n * s->k;
    moert_op_options o = describe(s, MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_BF16, MOERT_DTYPE_BF16);
    ops_data all = ops_make(&o, s->ends, false);
    for (size_t g = 0; g < s->groups; g++) {
        const size_t first = ops_start(&all, g), count = s->ends[g] - first;
        const uint32_t end = (uint32_t)count;
        moert_op_options own = o;
        own.groups = 1;
        own.rows = count;
        ops_data alone = ops_make(&own, &end, false), whole = ops_copy(&all);
        memcpy(alone.at[MOERT_OP_BUFFER_x], all.at[MOERT_OP_BUFFER_x] + first * s->k,
               count * s->k * sizeof(float));
        memcpy(ops_weight(&alone), ops_weight(&all) + g * elements, elements * sizeof(float));
        ops_execute("portable", &alone, 1);
        ops_execute("portable", &whole, 1);
        assert_same_bits("rows of a group", alone.at[MOERT_OP_BUFFER_y],
                         whole.at[MOERT_OP_BUFFER_y] + first * s->n, count * s->n);
    }
}

TEST(test_a_wgrad_without_rows_needs_no_operands) {
    enum { GROUPS = 2, ELEMENTS = GROUPS * 8 * 16 };
    const uint32_t ends[GROUPS] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        moert_op_options o = ops_sized(MOERT_OP_GEMM_WGRAD, GROUPS, 0, 8, 16);
        moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
        o.backend = backends[i];
        buffers.ends = upload(ends, sizeof ends);
        buffers.weight = unset_floats(ELEMENTS);
        ASSERT_OK(moert_op_once(test_device, &o, &buffers));
        float *got = download(buffers.weight, ELEMENTS * sizeof *got);
        for (size_t e = 0; e < ELEMENTS; e++)
            assert_true(got[e] == 0.0f);
    }
}

/* ---- prob and amax: a scale for each row, the largest magnitude of each group ---- */

/* empty groups, a group of one row, sizes that no tile divides, rows past the last end */
static const ops_shape prob_shape = {40, 136, 90, 5, 0, {13, 13, 14, 46, 80}};
enum { PROB_KINDS = 2, PROB_TYPES = 3 }; /* forward and dgrad; no 8-bit dtypes */

static moert_op_options with_prob(moert_op_kind kind, moert_dtype type, moert_dtype result) {
    moert_op_options o = describe(&prob_shape, kind, type, result);
    o.prob = o.amax = true;
    return o;
}

/* Checks that both backends give the exact results of integers. */
static void check_both(const moert_op_options *o) {
    for (size_t b = 0; b < 2; b++)
        ops_check_gemm(backends[b], o, prob_shape.ends);
}

TEST(test_prob_and_amax_are_exact_for_every_type) {
    for (size_t i = 0; i < PROB_KINDS * PROB_TYPES * PROB_TYPES * 3; i++) {
        moert_op_options o = with_prob((moert_op_kind)(i % 2), types[i / 2 % PROB_TYPES],
                                       types[i / 2 / PROB_TYPES % PROB_TYPES]);
        const size_t mode = i / 2 / PROB_TYPES / PROB_TYPES;
        o.alpha = mode > 0;
        o.prob = mode < 2;
        check_both(&o);
    }
}

TEST(test_permuted_rows_keep_their_prob_and_their_group) {
    for (size_t i = 0; i < PROB_KINDS * PROB_TYPES * 2; i++) {
        moert_op_options o =
            with_prob((moert_op_kind)(i % 2), types[i / 2 % PROB_TYPES], types[i / 2 % PROB_TYPES]);
        o.permute = i / 2 / PROB_TYPES == 0 ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.alpha = true;
        o.topk = 3;
        o.row_weight = o.permute == MOERT_OP_PERMUTE_Y && o.kind == MOERT_OP_GEMM_FORWARD;
        check_both(&o);
    }
}

TEST(test_amax_includes_the_bias_and_the_old_values) {
    for (size_t i = 0; i < PROB_KINDS * 3; i++) {
        moert_op_options o = with_prob((moert_op_kind)(i % 2), MOERT_DTYPE_F32, types[i / 2]);
        o.prob = false;
        o.alpha = true;
        o.beta = i / 2 == 0;
        o.accumulate = i / 2 == 1;
        o.bias = o.bias_scale = o.kind == MOERT_OP_GEMM_FORWARD;
        check_both(&o);
    }
}

TEST(test_prob_of_many_bits_has_the_bits_of_the_reference) {
    for (size_t i = 0; i < PROB_KINDS * PROB_TYPES; i++) {
        moert_op_options o = with_prob((moert_op_kind)(i % 2), types[i / 2], types[i / 2]);
        o.alpha = true;
        ops_data want = ops_make(&o, prob_shape.ends, false), got = ops_copy(&want);
        for (size_t r = 0; r < prob_shape.rows; r++) /* prob has values of many bits */
            want.at[MOERT_OP_BUFFER_prob][r] = got.at[MOERT_OP_BUFFER_prob][r] =
                sinf((float)r) / 3.0f;
        ops_execute("reference", &want, 1);
        ops_execute("portable", &got, 1);
        ops_compare(moert_op_kind_name(o.kind), &got, &want);
    }
}

/* The op has N = 384, K = 160 and groups of 64, 256 and 320 rows. */
TEST(test_alpha_0_gives_zeros_and_an_amax_of_0) {
    const uint32_t own[] = {64, 320, 640};
    for (size_t i = 0; i < PROB_KINDS * 2; i++) {
        moert_op_options o = with_prob((moert_op_kind)(i % 2), MOERT_DTYPE_BF16, MOERT_DTYPE_BF16);
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
    for (size_t i = 0; i < PROB_KINDS * 2; i++) {
        const moert_op_options o =
            with_prob((moert_op_kind)(i % 2), MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        ops_data got = ops_make(&o, prob_shape.ends, true);
        float *amax = got.at[MOERT_OP_BUFFER_amax];
        amax[0] = 1e6f;
        amax[1] = 3.0f;
        amax[4] = NAN;
        got.at[MOERT_OP_BUFFER_prob][20] = NAN; /* row 20 is in group 3 */
        ops_execute(backends[i / 2], &got, 1);
        /* group 0 had a larger amax before the op; group 1 has no rows */
        assert_true(amax[0] == 1e6f && amax[1] == 3.0f);
        assert_true(isfinite(amax[2]) && isnan(amax[3]) && isnan(amax[4]));
    }
}

TEST(test_rows_that_are_dropped_do_not_count) {
    for (size_t i = 0; i < 2; i++) {
        moert_op_options o = with_prob(MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        o.permute = MOERT_OP_PERMUTE_Y;
        ops_data got = ops_make(&o, prob_shape.ends, true);
        got.at[MOERT_OP_BUFFER_prob][20] = NAN; /* row 20 is one of 32 rows of group 3 */
        got.at[MOERT_OP_BUFFER_prob][13] = NAN; /* the only row of group 2 */
        ops_gather(&got)[20] = ops_gather(&got)[13] = UINT32_MAX;
        ops_execute(backends[i], &got, 1);
        assert_true(isfinite(got.at[MOERT_OP_BUFFER_amax][3]));
        assert_true(got.at[MOERT_OP_BUFFER_amax][2] == -INFINITY);
    }
}

TESTS(open_test_device, close_test_device)
