// run: check=1,1gpu all=1 night=1gpu
/*
 * The functions of kernels/lib/elementary.h against the C library's in float64: errors in units in
 * the last place of a float32, special values, and equal bits in every lane of a vector and as a
 * scalar. The tier check tests a sample of the floats and both ends of every binade, other tiers
 * all floats.
 */
#include "base/dtype.h"
#include "base/parallel.h"
#include "device/device.h"
#include "device/launch.h"
#include "support/files.h"
#include "support/suite.h"

/* X(name, bound in ulp, lowest and highest exponent of the argument): below the lowest exponent,
 * the first term of the series is exact; above the highest, the function is constant or
 * infinite. */
#define FUNCTIONS(X)                                                                               \
    X(exp, 1.03, -26, 7)                                                                           \
    X(exp2, 1.03, -26, 8) X(expm1, 1.55, -26, 7) X(log, 0.93, -127, 128) X(log1p, 1.55, -26, 128)
#define NVIDIA_BOUND 4.0 /* bound in ulp on NVIDIA GPUs; OpenCL allows as much */

#define CASE(name, bound, low, high)                                                               \
    "KERNEL void of_" #name "(global const float *x, global float *y) {\n"                         \
    "    for (size_t i = get_group_id(0) * BLOCK; i < (get_group_id(0) + 1) * BLOCK; i += VEC)\n"  \
    "        store_part(moert_" #name "(load_part(x + i, VEC)), y + i, VEC);\n"                    \
    "}\n"
#define SCALAR(name)                                                                               \
    "KERNEL void of_" #name "f(global const float *x, global float *y) {\n"                        \
    "    size_t from = get_group_id(0) * BLOCK;\n"                                                 \
    "    for (size_t i = from + item_index(); i < from + BLOCK; i += MOERT_ITEMS)\n"               \
    "        y[i] = moert_" #name "f(x[i]);\n"                                                     \
    "}\n"
static const char kernels[] =
    "/* each function */\n#include \"lib/elementary.h\"\n" FUNCTIONS(CASE) SCALAR(exp) SCALAR(log);

enum { BLOCK = 1024, CHUNK = 1 << 22 /* half a binade */, ALL_EXPONENTS = 1000 };

static int open_device_with_kernels(void **state) {
    const int failed = make_test_directory(state);
    assert_int_equal(system(titled("cp -r kernels %s", test_directory)), 0);
    write_text("kernels/functions.cl", kernels);
    set_variable("MOERT_KERNEL_DIR", in_directory("kernels"));
    return failed + open_test_device(state);
}

typedef struct function {
    const char *name;
    double (*oracle)(double);
    double bound;
    int low, high;
} function;

static const function functions[] = {
#define ROW(name, bound, low, high) {#name, name, bound, low, high},
    FUNCTIONS(ROW)
#undef ROW
};

/* y[n] = function(x[n]) by the device; n is a multiple of BLOCK. */
static void apply(const char *name, const moert_buffer *x, moert_buffer *y, size_t n) {
    const char *kernel = titled("of_%s", name);
    ASSERT_OK(MOERT_RUN(test_device, titled("functions -DBLOCK=%d", BLOCK), kernel,
                        ((moert_grid){n / BLOCK, 1, 1}), MOERT_ARG(x), MOERT_ARG(y)));
}

/* The distance of y from the oracle's value in units of a float32 in the last place; an infinite y
 * counts as 2^128. */
static double error_of(float y, double want) {
    const double reach = 0x1p128;
    if (isnan(want) || isnan(y))
        return isnan(want) && isnan(y) ? 0.0 : INFINITY;
    const double got = isinf(y) ? copysign(reach, (double)y) : (double)y;
    const double value = fabs(want) > reach ? copysign(reach, want) : want;
    if (got == value)
        return signbit(got) == signbit(want) ? 0.0 : INFINITY; /* also of zeros */
    const int exponent = value == 0.0 ? -126 : ilogb(fmin(fabs(value), 0x1.fffffep127));
    return fabs(got - value) / ldexp(1.0, (exponent < -126 ? -126 : exponent) - 23);
}

typedef struct check {
    const function *of;
    const float *x, *y;
    double worst[CHUNK / BLOCK]; /* largest error in each block */
    float at[CHUNK / BLOCK];
} check;

static void check_blocks(void *context, size_t first, size_t end) {
    check *c = context;
    for (size_t block = first; block < end; block++) {
        c->worst[block] = -1.0;
        for (size_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) {
            const double error = error_of(c->y[i], c->of->oracle((double)c->x[i]));
            if (error > c->worst[block]) {
                c->worst[block] = error;
                c->at[block] = c->x[i];
            }
        }
    }
}

/* Compares functions at n floats: the functions whose range in the table contains `exponent`, or
 * all functions if it is ALL_EXPONENTS. worst[] keeps the largest errors, at[] their arguments. */
static void compare(const float *x, size_t n, int exponent, double *worst, float *at) {
    moert_buffer *from = upload_floats(x, n), *to = unset_floats(n);
    float *y = test_alloc(n * sizeof *y);
    check *c = test_alloc(sizeof *c);
    for (size_t f = 0; f < MOERT_COUNT(functions); f++) {
        if (exponent != ALL_EXPONENTS &&
            (exponent < functions[f].low || exponent >= functions[f].high))
            continue;
        apply(functions[f].name, from, to, n);
        download_into(to, y, n * sizeof *y);
        c->of = &functions[f];
        c->x = x;
        c->y = y;
        moert_parallel(n / BLOCK, 1, check_blocks, c);
        for (size_t block = 0; block < n / BLOCK; block++)
            if (c->worst[block] > worst[f]) {
                worst[f] = c->worst[block];
                at[f] = c->at[block];
            }
    }
}

/* The sample: floats whose bits, as an integer, are a multiple of an odd number, and the floats at
 * the ends of all binades of both signs. */
static void sample(float *x) {
    enum { ENDS = 512 * 16 };
    const uint32_t step = 1021;
    for (uint32_t i = 0; i < ENDS; i++)
        x[i] = moert_float_from_bits((i / 16 << 23) + i % 16 - 8);
    for (uint32_t i = ENDS; i < CHUNK; i++)
        x[i] = moert_float_from_bits((i - ENDS) * step);
}

TEST(test_functions_are_within_their_bounds_of_float64) {
    const bool nvidia = moert_device_describe(test_device)->nvidia > 0;
    double worst[MOERT_COUNT(functions)] = {0.0};
    float at[MOERT_COUNT(functions)] = {0.0f};
    float *x = test_alloc(CHUNK * sizeof *x);
    const uint32_t chunks = suite_skips(true) ? 0 : (uint32_t)(0x100000000 / CHUNK);
    sample(x);
    compare(x, CHUNK, ALL_EXPONENTS, worst, at);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        const size_t owned_before = owned_count();
        for (uint32_t i = 0; i < CHUNK; i++)
            x[i] = moert_float_from_bits(chunk * CHUNK + i);
        compare(x, CHUNK, (int)(chunk / 2 % 256) - 127, worst, at);
        release_since(owned_before);
    }
    for (size_t f = 0; f < MOERT_COUNT(functions); f++)
        print_message("# %-5s within %.3f ulp, at %a\n", functions[f].name, worst[f],
                      (double)at[f]);
    for (size_t f = 0; f < MOERT_COUNT(functions); f++)
        assert_true(worst[f] <= (nvidia ? NVIDIA_BOUND : functions[f].bound));
}

TEST(test_special_values_are_exact) {
    const float top = 0x1.fffffep127f, least = 0x1p-149f;
    const struct {
        const char *name;
        float x, y;
    } rows[] = {
        {"exp", 0.0f, 1.0f},         {"exp", -0.0f, 1.0f},
        {"exp", INFINITY, INFINITY}, {"exp", -INFINITY, 0.0f},
        {"exp", top, INFINITY},      {"exp", -top, 0.0f},
        {"exp", NAN, NAN},           {"exp", least, 1.0f},
        {"exp2", -149.0f, least},    {"exp2", 127.0f, 0x1p127f},
        {"exp2", 128.0f, INFINITY},  {"exp2", -126.0f, 0x1p-126f},
        {"exp2", -INFINITY, 0.0f},   {"exp2", INFINITY, INFINITY},
        {"exp2", NAN, NAN},          {"expm1", -0.0f, -0.0f},
        {"expm1", 0.0f, 0.0f},       {"expm1", least, least},
        {"expm1", -least, -least},   {"expm1", 1e-9f, 1e-9f},
        {"expm1", -1e-9f, -1e-9f},   {"expm1", -INFINITY, -1.0f},
        {"expm1", -top, -1.0f},      {"expm1", INFINITY, INFINITY},
        {"expm1", 100.0f, INFINITY}, {"expm1", NAN, NAN},
        {"log", 1.0f, 0.0f},         {"log", 0.0f, -INFINITY},
        {"log", -0.0f, -INFINITY},   {"log", INFINITY, INFINITY},
        {"log", -least, NAN},        {"log", -INFINITY, NAN},
        {"log", NAN, NAN},           {"log1p", -1.0f, -INFINITY},
        {"log1p", 0.0f, 0.0f},       {"log1p", -0.0f, -0.0f},
        {"log1p", least, least},     {"log1p", 1e-9f, 1e-9f},
        {"log1p", -1e-9f, -1e-9f},   {"log1p", INFINITY, INFINITY},
        {"log1p", -2.0f, NAN},       {"log1p", -INFINITY, NAN},
        {"log1p", NAN, NAN},
    };
    moert_buffer *x = upload_floats(test_alloc(BLOCK * sizeof(float)), BLOCK),
                 *y = unset_floats(BLOCK);
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        float got;
        ASSERT_OK(moert_buffer_write(x, 0, &rows[i].x, sizeof rows[i].x));
        apply(rows[i].name, x, y, BLOCK);
        ASSERT_OK(moert_buffer_read(y, 0, &got, sizeof got));
        if (isnan(rows[i].y) ? !isnan(got) : moert_float_bits(got) != moert_float_bits(rows[i].y))
            fail_msg("%s(%a) is %a, not %a", rows[i].name, (double)rows[i].x, (double)got,
                     (double)rows[i].y);
    }
}

/* Compares each float's result in several lanes of a vector and as a scalar. */
TEST(test_all_lanes_and_scalars_have_the_same_bits) {
    const size_t n = 1 << 16, shift = 5;
    float *x = test_alloc(n * sizeof *x), *moved = test_alloc(n * sizeof *moved);
    for (size_t i = 0; i < n; i++)
        moved[(i + shift) % n] = x[i] = moert_float_from_bits((uint32_t)i * 65521);
    moert_buffer *from = upload_floats(x, n), *from_moved = upload_floats(moved, n),
                 *to = unset_floats(n);
    for (size_t f = 0; f < MOERT_COUNT(functions); f++) {
        const char *name = functions[f].name;
        apply(name, from, to, n);
        const uint32_t *want = download(to, n * sizeof *want);
        apply(name, from_moved, to, n);
        const uint32_t *got = download(to, n * sizeof *got), *scalar = NULL;
        if (strcmp(name, "exp") == 0 || strcmp(name, "log") == 0) {
            apply(titled("%sf", name), from, to, n);
            scalar = download(to, n * sizeof *scalar);
        }
        for (size_t i = 0; i < n; i++)
            if (got[(i + shift) % n] != want[i] || (scalar != NULL && scalar[i] != want[i]))
                fail_msg("%s(%a) depends on its place", name, (double)x[i]);
    }
}

TESTS(open_device_with_kernels, close_device_and_directory)
