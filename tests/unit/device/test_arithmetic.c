// run: check=1,1gpu all=1san
/* The comparison of a device's arithmetic with the host's: it passes here, finds each flaw that a
 * driver may have, and is kept in the cache. Flaws are written into the kernels. */
#include "device/internal.h"
#include "io/durable.h"
#include "support/files.h"

static char *kernels, *table; /* the texts of the kernels and of the table of operations */

static int open_all(void **state) {
    const int failed = make_test_directory(state);
    ASSERT_OK(moert_make_directories(in_directory("kernels/lib")));
    ASSERT_OK(moert_make_directories(in_directory("kernels/args")));
    write_text("kernels/lib/common.h", read_file("kernels/lib/common.h", NULL));
    kernels = strdup(read_file("kernels/lib/arithmetic.cl", NULL));
    table = strdup(read_file("kernels/args/arithmetic.h", NULL));
    set_variable("MOERT_BACKEND", "portable");
    set_variable("MOERT_CACHE_DIR", "off");
    set_variable("MOERT_KERNEL_DIR", in_directory("kernels"));
    return failed + open_test_device(state);
}

static int close_all(void **state) {
    MOERT_FREE(kernels, table);
    return close_test_device(state) + remove_test_directory(state);
}

static void write_right_kernels(void) {
    write_text("kernels/lib/arithmetic.cl", kernels);
    write_text("kernels/args/arithmetic.h", table);
}

/* Writes `text` as a kernel file, with `right` replaced by `flaw`. Returns whether it was there. */
static bool write_flaw(const char *file, const char *text, const char *right, const char *flaw) {
    const char *at = strstr(text, right);
    if (at != NULL)
        write_text(file, titled("%.*s%s%s", (int)(at - text), text, flaw, at + strlen(right)));
    return at != NULL;
}

/* Fails unless moert_device_difference gives a text that begins with `wanted`, or "" if that is
 * "". */
static void expect_difference(const char *wanted) {
    char *difference;
    ASSERT_OK(moert_device_difference(test_device, &difference));
    const bool as_wanted = wanted[0] == '\0' ? difference[0] == '\0'
                                             : strncmp(difference, wanted, strlen(wanted)) == 0;
    if (!as_wanted)
        print_message("# '%s', not '%s'\n", difference, wanted);
    free(difference);
    assert_true(as_wanted);
}

TEST(test_the_device_computes_as_the_host) {
    write_right_kernels();
    expect_difference("");
}

TEST(test_flaws_of_operations_scalars_and_sums_are_found) {
    const struct {
        bool in_kernels; /* else in the table of operations */
        const char *right, *flaw, *difference;
    } rows[] = {
        /* flushes small results */
        {false, "add, x + y", "add, fabs(x + y) < 0x1p-126f ? 0.0f : x + y",
         "x + y of vectors is "},
        /* flushes small operands */
        {false, "add, x + y", "add, (fabs(x) < 0x1p-126f ? 0.0f : x) + y", "x + y of vectors is "},
        {false, "multiply, x * y", "multiply, fabs(x * y) < 0x1p-126f ? 0.0f : x * y",
         "x * y of vectors is "},
        {false, "x * y + z", "fma(x, y, z)", "x * y + z of vectors is "},
        {false, "fma(x, y, z)", "x * y + z", "fma(x, y, z) of vectors is "},
        {false, "x / y", "x * (1.0f / y)", "x / y of vectors is "},
        {false, "sqrt(x)", "1.0f / sqrt(1.0f / x)", "sqrt(x) of vectors is "},
        {false, "rint(x)", "round(x)", "rint(x) of vectors is "},
        {true, "y = ys[i], z", "y = ys[i] * 1.0000001f, z", "x + y of scalars is "},
        {true, "plain += x[i]", "plain += x[n - 1 - (i - first)]", "the sum of x is "},
        {true, "products += x[i] * y[i]", "products = fma(x[i], y[i], products)",
         "the sum of x * y is "},
        {true, "(real)x[i] * (real)x[i]", "x[i] * x[i]", "the "},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        write_right_kernels();
        assert_true(
            rows[i].in_kernels
                ? write_flaw("kernels/lib/arithmetic.cl", kernels, rows[i].right, rows[i].flaw)
                : write_flaw("kernels/args/arithmetic.h", table, rows[i].right, rows[i].flaw));
        expect_difference(rows[i].difference);
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

TEST(test_the_cache_keeps_the_result) {
    write_right_kernels();
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

TESTS(open_all, close_all)
