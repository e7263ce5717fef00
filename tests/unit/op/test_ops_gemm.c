// run: np=1 sanitize=1
/* Grouped GEMM ops: exact results of every orientation, dtype, epilogue and permutation, on both
 * backends, with stacked and discrete weights. */
#include "base/memory.h"
#include "support/op/exact.h"

static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16, MOERT_DTYPE_F16,
                                    MOERT_DTYPE_E4M3, MOERT_DTYPE_E5M2};

/* all groups empty; empty groups first, in between and last; one group with all rows; groups of one
 * row; sizes that no tile divides; rows past the last end; n and k above 128 that are no multiples
 * of 128; empty groups and a group of one row */
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
    {40, 136, 90, 5, 0, {13, 13, 14, 46, 80}},
};
/* ROW_KINDS: forward and dgrad. WIDE_TYPES: without the 8-bit dtypes */
enum { SHAPES = MOERT_COUNT(shapes), KINDS = 3, ROW_KINDS = 2, TYPES = 5, WIDE_TYPES = 3 };
enum { DROPPED = 3, MANY = 6, USUAL = 7, PROB = 10 };

static moert_op_options describe(const ops_shape *s, size_t kind, moert_dtype type,
                                 moert_dtype result) {
    moert_op_options o = ops_sized((moert_op_kind)kind, s->groups, s->rows, s->n, s->k);
    o.x.type = o.weight.type = o.y.type = type;
    ops_result(&o)->type = result;
    return o;
}

/* Checks both backends, with stacked and discrete weights, for exact results. */
static void check(moert_op_options o, const ops_shape *s) {
    for (size_t i = 0; i < 2; i++) {
        o.weight.discrete = i == 1;
        ops_check("exact", &o, s->ends, 0.0);
    }
}

TEST(test_every_orientation_is_exact_for_every_split_of_the_rows) {
    for (size_t i = 0; i < SHAPES * KINDS; i++)
        check(describe(&shapes[i / KINDS], i % KINDS, MOERT_DTYPE_F32, MOERT_DTYPE_F32),
              &shapes[i / KINDS]);
}

TEST(test_results_of_16_and_8_bits_are_rounded_once_at_the_end) {
    for (size_t i = 0; i < KINDS * TYPES * TYPES; i++) {
        const ops_shape *s = &shapes[MANY + i % 2];
        check(describe(s, i % KINDS, types[i / KINDS % TYPES], types[i / KINDS / TYPES]), s);
    }
}

TEST(test_alpha_beta_and_bias_follow_the_formula) {
    for (size_t i = 0; i < KINDS * TYPES * 4; i++) {
        const size_t mode = i / KINDS / TYPES;
        moert_op_options o =
            describe(&shapes[USUAL], i % KINDS, MOERT_DTYPE_F32, types[i / KINDS % TYPES]);
        o.alpha = mode != 0;
        o.beta = mode == 1;
        o.accumulate = mode == 2;
        o.bias = o.kind == MOERT_OP_GEMM_FORWARD && mode != 1;
        o.bias_scale = o.bias && mode == 3;
        o.bias_type = types[mode % 3]; /* bias never has an 8-bit dtype */
        check(o, &shapes[USUAL]);
    }
}

TEST(test_strides_leave_the_columns_between_rows_alone) {
    for (size_t i = 0; i < KINDS * TYPES; i++) {
        const ops_shape *s = &shapes[USUAL];
        moert_op_options o = describe(s, i % KINDS, types[i / KINDS], types[i / KINDS]);
        o.x.stride = (ptrdiff_t)s->k + 3;
        o.y.stride = (ptrdiff_t)s->n + 5;
        check(o, s);
    }
}

TEST(test_permutations_gather_and_scatter_rows) {
    for (size_t i = 0; i < KINDS * TYPES * 4; i++) {
        const moert_dtype type = types[i / KINDS % TYPES];
        const bool x = i / KINDS / TYPES % 2 == 0, plain = i / KINDS / TYPES / 2 == 0;
        moert_op_options o = describe(&shapes[USUAL], i % KINDS, type, type);
        o.permute = x ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.topk = plain ? 1 : 4;
        o.row_weight = !plain && !x && o.kind == MOERT_OP_GEMM_FORWARD;
        o.accumulate = !plain && !o.row_weight;
        check(o, &shapes[USUAL]);
    }
}

/* Such a row is dropped: its prob does not count in amax either. */
TEST(test_a_slot_outside_the_rows_reads_zeros_and_is_not_written) {
    for (size_t i = 0; i < ROW_KINDS * BACKENDS; i++) {
        moert_op_options o = describe(&shapes[DROPPED], i / 2, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        o.permute = MOERT_OP_PERMUTE_Y;
        ops_bytes data = ops_bytes_make(&o, shapes[DROPPED].ends, OPS_EXACT);
        ops_gather(&data)[2] = UINT32_MAX;
        ops_exact_run("dropped", backends[i % 2], &data, 0.0);
    }
    for (size_t i = 0; i < BACKENDS; i++) {
        moert_op_options o =
            describe(&shapes[PROB], MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        o.prob = o.amax = true;
        o.permute = MOERT_OP_PERMUTE_Y;
        ops_bytes data = ops_bytes_make(&o, shapes[PROB].ends, OPS_EXACT);
        /* row 13 is the only one of group 2, row 20 is one of 32 rows of group 3 */
        ops_floats(&data, MOERT_OP_BUFFER_prob)[13] = ops_floats(&data, MOERT_OP_BUFFER_prob)[20] =
            NAN;
        ops_gather(&data)[13] = ops_gather(&data)[20] = UINT32_MAX;
        ops_exact_run("dropped", backends[i], &data, 0.0);
        assert_true(ops_floats(&data, MOERT_OP_BUFFER_amax)[2] == -INFINITY);
    }
}

TEST(test_two_accumulating_wgrads_are_the_sum) {
    for (size_t i = 0; i < 2 * BACKENDS * TYPES * TYPES; i++) {
        const ops_shape *s = &shapes[MANY + i % 2];
        moert_op_options o =
            describe(s, MOERT_OP_GEMM_WGRAD, types[i / 4 % TYPES], types[i / 4 / TYPES]);
        o.accumulate = true;
        o.backend = backends[i / 2 % 2];
        moert_op *op = ops_open(&o);
        ops_bytes data = ops_bytes_make(&o, s->ends, OPS_EXACT);
        ops_exact_run_op("first", op, &data, 0.0);
        ops_exact_run_op("second", op, &data, 0.0);
    }
}

/* Groups 0, 1 and 3 have no rows, so alpha must not apply to them. Arithmetic would change old
 * values of -0 and NaN. */
TEST(test_a_wgrad_of_no_rows_applies_no_alpha) {
    enum { PLAIN, ACCUMULATED, WITH_BETA, MODES };
    static const double old[] = {-0.0, 0.0, 3.0, -2.0, NAN}, betas[] = {1.0, 0.0, 0.5, -2.0},
                        alphas[] = {NAN, -INFINITY, 1.0, -INFINITY};
    for (size_t i = 0; i < (size_t)2 * TYPES * MODES * 2 * 2; i++) {
        const size_t mode = i / 2 / TYPES % MODES;
        moert_op_options o =
            describe(&shapes[DROPPED], MOERT_OP_GEMM_WGRAD, MOERT_DTYPE_F32, types[i / 2 % TYPES]);
        /* without alpha, the GEMM writes float32 results directly into the result buffer */
        o.alpha = i / 2 / TYPES / MODES % 2 == 0;
        o.weight.discrete = i / 2 / TYPES / MODES / 2 == 1;
        o.accumulate = mode == ACCUMULATED;
        o.beta = mode == WITH_BETA;
        ops_bytes data = ops_bytes_make(&o, shapes[DROPPED].ends, OPS_EXACT);
        for (size_t e = 0; e < ops_bytes_count(&data, MOERT_OP_BUFFER_weight); e++)
            ops_bytes_put(&data, MOERT_OP_BUFFER_weight, e, old[e % (mode == WITH_BETA ? 4 : 5)]);
        for (size_t g = 0; o.alpha && g < 4; g++)
            ops_bytes_put(&data, MOERT_OP_BUFFER_alpha, g, alphas[g]);
        for (size_t g = 0; o.beta && g < 4; g++)
            ops_bytes_put(&data, MOERT_OP_BUFFER_beta, g, betas[g]);
        ops_exact_run("no rows", backends[i % 2], &data, 0.0);
    }
}

TEST(test_a_wgrad_without_rows_needs_no_operands) {
    enum { GROUPS = 2, ELEMENTS = GROUPS * 8 * 16 };
    const uint32_t ends[GROUPS] = {0, 0};
    for (size_t i = 0; i < BACKENDS; i++) {
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

static moert_op_options with_prob(size_t kind, moert_dtype type, moert_dtype result) {
    moert_op_options o = describe(&shapes[PROB], kind, type, result);
    o.prob = o.amax = true;
    return o;
}

TEST(test_prob_and_amax_are_exact_for_every_type) {
    for (size_t i = 0; i < ROW_KINDS * WIDE_TYPES * WIDE_TYPES * 3; i++) {
        moert_op_options o =
            with_prob(i % 2, types[i / 2 % WIDE_TYPES], types[i / 2 / WIDE_TYPES % WIDE_TYPES]);
        const size_t mode = i / 2 / WIDE_TYPES / WIDE_TYPES;
        o.alpha = mode > 0;
        o.prob = mode < 2;
        ops_check("prob", &o, shapes[PROB].ends, 0.0);
    }
}

TEST(test_permuted_rows_keep_their_prob_and_their_group) {
    for (size_t i = 0; i < ROW_KINDS * WIDE_TYPES * 2; i++) {
        moert_op_options o = with_prob(i % 2, types[i / 2 % WIDE_TYPES], types[i / 2 % WIDE_TYPES]);
        o.permute = i / 2 / WIDE_TYPES == 0 ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.alpha = true;
        o.topk = 3;
        o.row_weight = o.permute == MOERT_OP_PERMUTE_Y && o.kind == MOERT_OP_GEMM_FORWARD;
        ops_check("permuted", &o, shapes[PROB].ends, 0.0);
    }
}

TEST(test_amax_includes_the_bias_and_the_old_values) {
    for (size_t i = 0; i < ROW_KINDS * 3; i++) {
        moert_op_options o = with_prob(i % 2, MOERT_DTYPE_F32, types[i / 2]);
        o.prob = false;
        o.alpha = true;
        o.beta = i / 2 == 0;
        o.accumulate = i / 2 == 1;
        o.bias = o.bias_scale = o.kind == MOERT_OP_GEMM_FORWARD;
        ops_check("amax", &o, shapes[PROB].ends, 0.0);
    }
}

/* The op has N = 384, K = 160 and groups of 64, 256 and 320 rows. */
TEST(test_alpha_0_gives_zeros_and_an_amax_of_0) {
    static const ops_shape s = {384, 160, 640, 3, 0, {64, 320, 640}};
    for (size_t i = 0; i < ROW_KINDS * BACKENDS; i++) {
        moert_op_options o = describe(&s, i % 2, MOERT_DTYPE_BF16, MOERT_DTYPE_BF16);
        o.alpha = o.prob = o.amax = true;
        ops_bytes data = ops_bytes_make(&o, s.ends, OPS_EXACT);
        for (size_t g = 0; g < 3; g++)
            ops_bytes_put(&data, MOERT_OP_BUFFER_alpha, g, g == 1 ? -0.0 : 0.0);
        ops_exact_run("alpha 0", backends[i / 2], &data, 0.0);
        for (size_t g = 0; g < 3; g++)
            assert_true(ops_floats(&data, MOERT_OP_BUFFER_amax)[g] == 0.0f);
    }
}

TEST(test_amax_is_raised_and_nan_stays) {
    for (size_t i = 0; i < ROW_KINDS * BACKENDS; i++) {
        const moert_op_options o = with_prob(i % 2, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        ops_bytes data = ops_bytes_make(&o, shapes[PROB].ends, OPS_EXACT);
        float *amax = ops_floats(&data, MOERT_OP_BUFFER_amax);
        amax[0] = 1e6f;
        amax[1] = 3.0f;
        amax[4] = NAN;
        ops_floats(&data, MOERT_OP_BUFFER_prob)[20] = NAN; /* row 20 is in group 3 */
        ops_bytes_execute(backends[i / 2], &data);
        /* group 0 had a larger amax before the op; group 1 has no rows */
        assert_true(amax[0] == 1e6f && amax[1] == 3.0f);
        assert_true(isfinite(amax[2]) && isnan(amax[3]) && isnan(amax[4]));
    }
}

/* ---- operands of many bits ---- */

TEST(test_the_portable_backend_has_the_bits_of_the_reference) {
    for (size_t i = 0; i < KINDS * TYPES * 3; i++) {
        const moert_dtype type = types[i / KINDS % TYPES];
        const size_t mode = i / KINDS / TYPES;
        const ops_shape *s = &shapes[mode == 2 ? PROB : MANY];
        moert_op_options o = describe(s, i % KINDS, type, type);
        if (mode == 2 && (o.kind == MOERT_OP_GEMM_WGRAD || i / KINDS % TYPES >= WIDE_TYPES))
            continue;
        o.alpha = mode > 0;
        o.beta = mode == 1;
        o.bias = mode < 2 && o.kind == MOERT_OP_GEMM_FORWARD;
        o.prob = o.amax = mode == 2;
        ops_bytes want = ops_bytes_make(&o, s->ends, OPS_NORMAL);
        for (size_t r = 0; o.prob && r < s->rows; r++)
            ops_floats(&want, MOERT_OP_BUFFER_prob)[r] = sinf((float)r) / 3.0f;
        ops_bytes got = ops_bytes_copy(&want);
        ops_bytes_execute("reference", &want);
        ops_bytes_execute("portable", &got);
        ops_assert_same(ops_title(&o), &got, &want, true);
    }
}

TESTS(open_test_device, close_test_device)
