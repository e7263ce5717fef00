// run: check=1,1gpu all=1san
/* The comparison of a device's arithmetic with the host's: it passes here, finds each flaw that a
 * driver may have, and is kept in the cache. The tests write flaws into a copy of the kernels. */
#include "device/arithmetic.h"
#include "device/cache.h"
#include "device/internal.h"
#include "support/files.h"

static int open_all(void **state) {
    const int failed = make_test_directory(state);
    assert_int_equal(system(titled("cp -r kernels %s", test_directory)), 0);
    set_variable("MOERT_BACKEND", "portable");
    set_variable("MOERT_CACHE_DIR", "off");
    set_variable("MOERT_KERNEL_DIR", in_directory("kernels"));
    return failed + open_test_device(state);
}

/* Checks that moert_device_difference gives a text that begins with `wanted`, or "" if `wanted` is
 * "". */
static void expect_difference(const char *wanted) {
    char *difference;
    ASSERT_OK(moert_device_difference(test_device, &difference));
    owned(difference, free);
    if (strncmp(difference, wanted, moert_max(strlen(wanted), 1)) != 0)
        fail_msg("'%s', not '%s'", difference, wanted);
}

TEST(test_flaws_of_operations_scalars_and_sums_are_found) {
    static const char kernels[] = "kernels/lib/arithmetic.cl";
    static const char table[] = "kernels/args/arithmetic.h"; /* of operations */
    static const struct {
        const char *file, *right, *flaw, *difference;
    } rows[] = {
        /* flushes small results */
        {table, "add, x + y", "add, fabs(x + y) < 0x1p-126f ? 0.0f : x + y",
         "x + y of vectors is "},
        /* flushes small operands */
        {table, "add, x + y", "add, (fabs(x) < 0x1p-126f ? 0.0f : x) + y", "x + y of vectors is "},
        {table, "multiply, x * y", "multiply, fabs(x * y) < 0x1p-126f ? 0.0f : x * y",
         "x * y of vectors is "},
        {table, "x * y + z", "fma(x, y, z)", "x * y + z of vectors is "},
        {table, "fma(x, y, z)", "x * y + z", "fma(x, y, z) of vectors is "},
        {table, "x / y", "x * (1.0f / y)", "x / y of vectors is "},
        {table, "sqrt(x)", "1.0f / sqrt(1.0f / x)", "sqrt(x) of vectors is "},
        {table, "rint(x)", "round(x)", "rint(x) of vectors is "},
        {kernels, "y = ys[i], z", "y = ys[i] * 1.0000001f, z", "x + y of scalars is "},
        {kernels, "plain += x[i]", "plain += x[n - 1 - (i - first)]", "the sum of x is "},
        {kernels, "products += x[i] * y[i]", "products = fma(x[i], y[i], products)",
         "the sum of x * y is "},
        {kernels, "(real)x[i] * (real)x[i]", "x[i] * x[i]", "the "},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const char *text = read_file(rows[i].file, NULL), *at = strstr(text, rows[i].right);
        assert_non_null(at);
        write_text(rows[i].file, titled("%.*s%s%s", (int)(at - text), text, rows[i].flaw,
                                        at + strlen(rows[i].right)));
        expect_difference(rows[i].difference);
        write_text(rows[i].file, text);
    }
}

/* Replaces the only entry whose name ends with "-difference.bin" by an entry of other content. */
static void replace_entry(void) {
    moert_cache_entry entry;
    unsigned char *data;
    size_t bytes;
    moert_cache_open("other", &entry, &data, &bytes);
    moert_cache_close(&entry, (const unsigned char *)"machine\0code", sizeof "machine\0code");
    assert_int_equal(
        system(titled("cd %s && mv other.bin *-difference.bin", in_directory("cache"))), 0);
}

TEST(test_the_device_computes_as_the_host_and_the_cache_keeps_that) {
    set_variable("MOERT_CACHE_DIR", in_directory("cache"));
    for (int i = 0; i < 3; i++) {
        expect_difference("");
        assert_int_equal(count_files(in_directory("cache"), "-difference.bin"), 1);
        if (i == 1)
            replace_entry();
    }
    set_variable("MOERT_CACHE_DIR", "off");
}

TEST(test_tensor_cores_are_a_difference) {
    if (moert_device_describe(test_device)->nvidia == 0)
        SKIP("only for NVIDIA's GPUs");
    set_variable("MOERT_BACKEND", "auto");
    expect_difference("tensor cores add in another order");
    set_variable("MOERT_BACKEND", "portable");
}

TESTS(open_all, close_device_and_directory)
