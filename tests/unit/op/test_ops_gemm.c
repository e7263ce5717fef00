// run: check=1 all=1san
/* Grouped GEMM ops: exact results of every orientation, dtype, epilogue and permutation, on both
 * backends, with stacked and discrete weights. */
#include "support/op/exact.h"

static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16, MOERT_DTYPE_F16,
                                    MOERT_DTYPE_E4M3, MOERT_DTYPE_E5M2};

/* The shapes have: all groups empty; empty groups first, in between and last; one group with all
 * rows; groups of one row; sizes that are no multiples of a tile; rows past the last end; n and k
 * above 128 that are no multiples of 128; empty groups and a group of one row */
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
/* ROW_KINDS: the kinds forward and dgrad. WIDE_TYPES: the dtypes of at least 16 bits */
enum { SHAPES = MOERT_COUNT(shapes), KINDS = 3, ROW_KINDS = 2, TYPES = 5, WIDE_TYPES = 3 };
enum { DROPPED = 3, MANY = 6, USUAL = 7, PROB = 10 };

static moert_op_options describe(const ops_shape *s, size_t kind, moert_dtype type,
                                 moert_dtype result) {
    moert_op_options o = ops_sized((moert_op_kind)kind, s->groups, s->rows, s->n, s->k);
    o.x.type = o.weight.type = o.y.type = type;
    ops_result(&o)->type = result;
    return o;
}

/* Checks that both backends give exact results with stacked and with discrete weights. */
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

/* ANY: the operands have any dtype and the result any other; SAME: operands and result have one
 * dtype; RESULT: only the result's dtype varies. */
enum dtypes { ANY, SAME, RESULT };
enum { X = MOERT_OP_PERMUTE_X, Y = MOERT_OP_PERMUTE_Y };

/* Cases of ops. Cases with the shape PROB leave out the 8-bit dtypes. */
static const struct epilogue {
    size_t shape;
    enum dtypes dtypes;
    unsigned switches;
    int permute;
    size_t topk, gap; /* gap: elements between rows */
} epilogues[] = {
    /* 16-bit and 8-bit results are rounded only once, after the sum */
    {MANY, ANY, 0, .topk = 1},
    {USUAL, ANY, 0, .topk = 1},
    {MANY, ANY, OPS_accumulate, .topk = 1},
    /* alpha, beta and bias are applied as in the formula; the alpha of group 4 is 0 */
    {USUAL, RESULT, OPS_bias, .topk = 1},
    {USUAL, RESULT, OPS_alpha | OPS_beta, .topk = 1},
    {USUAL, RESULT, OPS_alpha | OPS_accumulate | OPS_bias, .topk = 1},
    {USUAL, RESULT, OPS_alpha | OPS_bias | OPS_bias_scale, .topk = 1},
    /* the op does not write the gaps between rows */
    {USUAL, SAME, 0, .topk = 1, .gap = 3},
    /* permutations gather and scatter rows; each row keeps its group and its prob */
    {USUAL, SAME, 0, .permute = X, .topk = 1},
    {USUAL, SAME, 0, .permute = Y, .topk = 1},
    {USUAL, SAME, OPS_accumulate, .permute = X, .topk = 4},
    {USUAL, SAME, OPS_accumulate, .permute = Y, .topk = 4},
    {USUAL, SAME, OPS_row_weight, .permute = Y, .topk = 4},
    {PROB, SAME, OPS_alpha | OPS_prob | OPS_amax, .permute = X, .topk = 3},
    {PROB, SAME, OPS_alpha | OPS_prob | OPS_amax | OPS_row_weight, .permute = Y, .topk = 3},
    /* prob scales rows; amax is the largest magnitude of a group's results, including bias and old
     * values */
    {PROB, ANY, OPS_prob | OPS_amax, .topk = 1},
    {PROB, ANY, OPS_alpha | OPS_prob | OPS_amax, .topk = 1},
    {PROB, ANY, OPS_alpha | OPS_amax, .topk = 1},
    {PROB, RESULT, OPS_alpha | OPS_amax | OPS_bias | OPS_bias_scale, .topk = 1},
    {PROB, RESULT, OPS_alpha | OPS_amax | OPS_bias | OPS_bias_scale | OPS_beta, .topk = 1},
    {PROB, RESULT, OPS_alpha | OPS_amax | OPS_bias | OPS_bias_scale | OPS_accumulate, .topk = 1},
};

static void check_epilogue(const struct epilogue *e, moert_op_kind kind, size_t operands,
                           size_t result) {
    const ops_shape *s = &shapes[e->shape];
    if ((e->dtypes == SAME && operands != result) || (e->dtypes == RESULT && operands != 0))
        return;
    moert_op_options o = describe(s, kind, types[operands], types[result]);
    ops_switch_on(&o, e->switches);
    o.bias_type = types[(size_t)(e - epilogues) % WIDE_TYPES]; /* bias never has an 8-bit dtype */
    o.permute = (moert_op_permute)e->permute;
    o.topk = e->topk;
    o.x.stride = (ptrdiff_t)(s->k + e->gap);
    o.y.stride = (ptrdiff_t)(s->n + 2 * e->gap);
    check(o, s);
}

TEST(test_every_epilogue_and_permutation_is_exact) {
    for (size_t i = 0; i < MOERT_COUNT(epilogues); i++) {
        const bool prob = epilogues[i].shape == PROB;
        const size_t kinds = prob ? ROW_KINDS : KINDS, count = prob ? WIDE_TYPES : TYPES;
        for (size_t k = 0; k < kinds * count * count; k++)
            check_epilogue(&epilogues[i], (moert_op_kind)(k % kinds), k / kinds % count,
                           k / kinds / count);
    }
}

/* A forward drops a row whose slot is outside the rows. The row's prob has no effect on amax
 * either. */
TEST(test_a_slot_outside_the_rows_reads_zeros_and_is_not_written) {
    /* row 13 is the only row of group 2; row 20 is one of the 32 rows of group 3 */
    static const size_t dropped[] = {13, 20};
    for (size_t i = 0; i < ROW_KINDS * BACKENDS; i++) {
        moert_op_options o = describe(&shapes[PROB], i / 2, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        const bool forward = o.kind == MOERT_OP_GEMM_FORWARD;
        o.prob = o.amax = true;
        o.permute = MOERT_OP_PERMUTE_Y;
        ops_bytes data = ops_bytes_make(&o, shapes[PROB].ends, OPS_EXACT);
        for (size_t r = 0; r < 2; r++) {
            ops_gather(&data)[dropped[r]] = UINT32_MAX;
            if (forward)
                ops_floats(&data, MOERT_OP_BUFFER_prob)[dropped[r]] = NAN;
        }
        ops_exact_run("dropped", backends[i % 2], &data, 0.0);
        assert_true(ops_floats(&data, MOERT_OP_BUFFER_amax)[2] == (forward ? -INFINITY : 0.0f));
    }
}

/* Groups 0, 1 and 3 have no rows, so their weight gradients must keep their old values. Multiplying
 * by alpha would change an old -0 or NaN. */
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

TEST(test_amax_is_raised_and_nan_stays) {
    for (size_t i = 0; i < ROW_KINDS * BACKENDS; i++) {
        moert_op_options o = describe(&shapes[PROB], i % 2, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
        o.prob = o.amax = true;
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
