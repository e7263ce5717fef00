// run: check=1 all=1san
/* Grouped GEMM ops on FP8 operands on the tensor cores of an NVIDIA GPU, if there is one: exact
 * results of small integers, and random results near float64, for any groups. */
#include <float.h>

#include "base/rng.h"
#include "device/launch.h"
#include "support/op/exact.h"

enum { BLOCK = 128 };
/* The cases: the three kinds of GEMM, and a dgrad whose weights are stored transposed. */
enum { DGRAD_TRANSPOSED = MOERT_OP_GEMM_WGRAD + 1, CASES };
enum {
    ALL = (1 << CASES) - 1,
    FORWARD = 1 << MOERT_OP_GEMM_FORWARD,
    DGRAD = 1 << MOERT_OP_GEMM_DGRAD | 1 << DGRAD_TRANSPOSED,
    WGRAD = 1 << MOERT_OP_GEMM_WGRAD,
};
/* The shapes have: the smallest sizes; all groups empty; whole tiles; sizes one above or below a
 * tile; partial blocks, empty groups and rows past the end; strides; groups of a few rows; more
 * tiles than work-groups */
static const struct row {
    ops_shape shape;
    unsigned cases; /* one bit for each case that runs this shape */
} shapes[] = {
    {{16, 16, 1, 1, 0, {1}}, ALL},
    {{16, 32, 0, 2, 0, {0, 0}}, ALL},
    {{256, 128, 128, 1, 0, {128}}, ALL},
    {{272, 144, 130, 2, 0, {129, 130}}, ALL},
    {{240, 112, 127, 3, 0, {0, 127, 127}}, ALL},
    {{272, 320, 500, 5, 0, {0, 200, 201, 201, 413}}, ALL},
    {{144, 528, 400, 4, 16, {64, 128, 297, 390}}, ALL},
    {{528, 144, 200, 3, 32, {5, 5, 200}}, ALL},
    {{48, 64, 60, 36, 0, OPS_SINGLE_ROWS}, ALL},
    {{3328, 16, 1300, 3, 0, {600, 601, 1299}}, FORWARD},
    {{16, 3328, 1300, 3, 0, {600, 601, 1299}}, DGRAD},
    {{640, 1296, 160, 6, 0, {16, 16, 48, 64, 80, 160}}, WGRAD},
};
enum { SHAPES = MOERT_COUNT(shapes), RANDOM_SHAPE = 6 };

static bool is_of(size_t shape, size_t which) {
    return (shapes[shape].cases >> which & 1) != 0;
}

/* Describes an op whose operands have DeepSeek's blocks; the blocks of a wgrad lie along the
 * rows. */
static moert_op_options describe_blocks(const ops_shape *s, size_t which, moert_dtype result) {
    const bool transposed = which == DGRAD_TRANSPOSED;
    const moert_op_kind kind = transposed ? MOERT_OP_GEMM_DGRAD : (moert_op_kind)which;
    moert_op_options o = ops_sized(kind, s->groups, s->rows, s->n, s->k);
    ops_result(&o)->type = result;
    if (kind == MOERT_OP_GEMM_WGRAD) {
        o.x = o.y = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_COLUMN, 0);
        o.x.how.transposed = o.y.how.transposed = true;
        o.rows = moert_ceil_div(s->rows, 16) * 16;
        o.row_multiple = 16;
        return o;
    }
    *ops_first_operand(&o) = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_ROW, 0);
    o.weight = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_TILE, 0);
    o.weight.how.transposed = transposed;
    return o;
}

/* Returns the ends of the groups; for a wgrad, the ends are rounded up to multiples of 16. */
static const uint32_t *ends_of(const ops_shape *s, const moert_op_options *o) {
    static uint32_t ends[OPS_MOST_GROUPS];
    const uint32_t multiple = o->row_multiple > 0 ? (uint32_t)o->row_multiple : 1;
    for (size_t g = 0; g < s->groups; g++)
        ends[g] = (s->ends[g] + multiple - 1) / multiple * multiple;
    return ends;
}

TEST(test_scaled_blocks_are_exact_for_every_split_of_the_rows) {
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * CASES; i++) {
        const ops_shape *s = &shapes[i / CASES].shape;
        if (!is_of(i / CASES, i % CASES))
            continue;
        /* result dtypes alternate, so that each case runs with both dtypes */
        const bool floats = (i / CASES + i) % 2;
        const moert_op_options o =
            describe_blocks(s, i % CASES, floats ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16);
        ops_check_on("nvidia", "blocks", &o, ends_of(s, &o), 0.0);
    }
}

TEST(test_plain_operands_times_alpha_are_exact_for_every_split_of_the_rows) {
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * 4; i++) {
        const ops_shape *s = &shapes[i / 4].shape;
        const bool dgrad = i % 2, e5m2 = i / 2 % 2, floats = (i / 4 + i / 2) % 2;
        const moert_op_kind kind = dgrad ? MOERT_OP_GEMM_DGRAD : MOERT_OP_GEMM_FORWARD;
        if (!is_of(i / 4, kind))
            continue;
        moert_op_options o = ops_sized(kind, s->groups, s->rows, s->n, s->k);
        ops_result(&o)->type = floats ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16;
        o.weight.type = ops_first_operand(&o)->type = e5m2 ? MOERT_DTYPE_E5M2 : MOERT_DTYPE_E4M3;
        o.x.stride = (ptrdiff_t)(s->k + s->padding);
        o.y.stride = (ptrdiff_t)(s->n + s->padding);
        o.alpha = i % 3 != 0;
        ops_check_on("nvidia", "plain", &o, s->ends, 0.0);
    }
}

/* Returns x, rounded towards 0 to a multiple of `unit`, a power of two. */
static double cut(double x, double unit) {
    return trunc(x / unit) * unit;
}

/*
 * Models how tensor cores add up to STEP products to a sum. Tensor cores align all addends with the
 * largest addend, and cut off the bits below 2^-13 of the largest addend's power of two. Tensor
 * cores cut the sum at the same relative position. *loss grows by the largest possible loss: one
 * unit per addend (or the addend, if smaller), and one unit of the result.
 */
enum { STEP = 32, KEPT = 13 };
static double add_step(const double *products, size_t count, double sum, double *loss) {
    int top = ilogb(sum);
    for (size_t i = 0; i < count; i++)
        if (products[i] != 0.0 && ilogb(products[i]) > top)
            top = ilogb(products[i]);
    if (top == FP_ILOGB0)
        return 0.0;
    const double unit = ldexp(1.0, top - KEPT);
    double next = cut(sum, unit);
    *loss += fmin(fabs(sum), unit);
    for (size_t i = 0; i < count; i++) {
        *loss += fmin(fabs(products[i]), unit);
        next += cut(products[i], unit);
    }
    if (next == 0.0)
        return 0.0;
    const double last = ldexp(1.0, ilogb(next) - KEPT);
    *loss += last;
    return cut(next, last);
}

/* Checks an element, which is the sum of these products. Returns the element's error relative to
 * the sum of the products' magnitudes. */
static double check_sum(double value, const double *products, size_t count) {
    double exact = 0.0, size = 0.0, loss = 0.0;
    float sum = 0.0f;
    for (size_t block = 0; block < count; block += BLOCK) {
        const size_t end = moert_min(block + BLOCK, count);
        double part = 0.0;
        for (size_t i = block; i < end; i += STEP)
            part = add_step(&products[i], moert_min(STEP, end - i), part, &loss);
        sum += (float)part; /* the products include their scales, which are powers of two */
        loss += fabs((double)sum) * (double)FLT_EPSILON / 2.0;
    }
    for (size_t i = 0; i < count; i++) {
        exact += products[i];
        size += fabs(products[i]);
    }
    assert_true(fabs(value - exact) <= loss);
    return fabs(value - exact) / size;
}

TEST(test_random_operands_lose_only_what_the_tensor_cores_cut) {
    enum { SAMPLES = 1000 };
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < CASES; i++) {
        const ops_shape *s = &shapes[RANDOM_SHAPE].shape;
        const moert_op_options o = describe_blocks(s, i, MOERT_DTYPE_F32);
        ops_bytes got = ops_bytes_make(&o, ends_of(s, &o), OPS_SPREAD);
        const ops_bytes plain = ops_bytes_decode(&got);
        double worst = 0.0;
        ops_bytes_execute("nvidia", &got);
        for (size_t n = 0; n < SAMPLES; n++) {
            ops_element e;
            assert_true(ops_draw(&plain, n, &e));
            double *products = test_alloc(e.terms * sizeof *products);
            for (size_t t = 0; t < e.terms; t++) {
                const ops_factors f = ops_factors_of(&plain, &e, t);
                products[t] = (double)f.a * (double)f.b;
            }
            worst = fmax(worst, check_sum(ops_bytes_get(&got, ops_result_buffer(o.kind), e.at),
                                          products, e.terms));
        }
        print_message("# %s: off by %.2e of the sum of magnitudes\n", moert_op_kind_name(o.kind),
                      worst);
    }
}

TEST(test_results_repeat_bit_for_bit) {
    if (!has_hopper("skipped"))
        return;
    for (size_t i = 0; i < CASES; i++) {
        const ops_shape *s = &shapes[5].shape;
        const moert_op_options o = describe_blocks(s, i, MOERT_DTYPE_F32);
        const ops_bytes data = ops_bytes_make(&o, ends_of(s, &o), OPS_SPREAD);
        ops_bytes_check_repeats("nvidia", &data, 10);
    }
}

TEST(test_unsupported_ops_are_refused_or_left_to_other_backends) {
    const bool hopper = has_hopper("skipped");
    moert_op_options o = describe_blocks(&shapes[3].shape, MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_BF16);
    o.weight.how.axis = MOERT_AXIS_ROW;
    ops_check_fallback("nvidia", o, hopper ? "takes only rows of fp8-block" : "takes only GPUs");
}

/* The kernel that transposes weights skips groups without rows. */
TEST(test_weights_of_8_bits_are_transposed) {
    enum { GROUPS = 3, N = 272, K = 144, BYTES = GROUPS * N * K };
    const uint32_t ends[GROUPS] = {4, 4, 7};
    unsigned char *from = test_alloc(BYTES), *to = test_alloc(BYTES), *got;
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(256.0 * moert_rng_uniform(1, 0, i));
    memset(to, 0xCD, BYTES);
    moert_buffer *source = upload(from, BYTES), *result = upload(to, BYTES);
    moert_buffer *groups = upload(ends, sizeof ends);
    ASSERT_OK(MOERT_RUN(test_device, "op/transpose", "transpose_bytes",
                        ((moert_grid){2, 3, GROUPS}), MOERT_ARG(source), MOERT_ARG(result),
                        MOERT_ARG((unsigned)N), MOERT_ARG((unsigned)K), MOERT_ARG(groups)));
    for (size_t i = 0; i < BYTES; i++)
        if (i / (N * K) != 1)
            to[i / (N * K) * N * K + i % K * N + i / K % N] = from[i];
    got = download(result, BYTES);
    assert_memory_equal(got, to, BYTES);
}

TESTS(open_test_device, close_test_device)
