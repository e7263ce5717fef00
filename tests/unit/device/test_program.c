// run: np=1
/* Programs: build logs, kernel files read from disk, and where compiled kernels are kept. */
#include <ftw.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "support/files.h"

static const char good_kernel[] = "kernel void add(global float *x, float value) {\n"
                                  "    x[get_group_id(0)] += value * FACTOR;\n"
                                  "}\n";

/* Creates kernel files, and empties the cache and the home directory, below the test's
 * directory. */
static int make_kernels(void **state) {
    (void)state;
    ASSERT_OK(moert_remove_tree(in_directory("cache")));
    ASSERT_OK(moert_make_directories(in_directory("kernels/lib")));
    write_text("kernels/lib/common.h", "#define FACTOR 2.0f\n");
    write_text("kernels/good.cl", good_kernel);
    set_variable("MOERT_KERNEL_DIR", in_directory("kernels"));
    set_variable("MOERT_CACHE_DIR", in_directory("cache"));
    ASSERT_OK(moert_remove_tree(in_directory("home")));
    set_variable("HOME", in_directory("home"));
    set_variable("XDG_CACHE_HOME", NULL);
    set_variable("POCL_CACHE_DIR", NULL);
    return 0;
}

/* The fixture of tests that use OpenCL in this process. PoCL keeps the first cache directory that
 * it finds, so this fixture sets one for the whole process. */
static int make_kernels_here(void **state) {
    const int failed = make_kernels(state);
    set_variable("POCL_CACHE_DIR", in_directory("pocl"));
    return failed;
}

/* Opens a device for one launch of `program`, which adds 2 * 3 to *value. *pocl: whether the device
 * is PoCL's. */
static moert_status add_once(const char *program, float *value, bool *pocl) {
    moert_device *device;
    moert_buffer *x = NULL;
    MOERT_TRY(moert_device_open("auto", NULL, 0, &device));
    *pocl = moert_device_describe(device)->is_pocl;
    moert_status status = moert_buffer_create(device, sizeof *value, &x);
    if (status == MOERT_OK)
        status = moert_buffer_write(x, 0, value, sizeof *value);
    if (status == MOERT_OK)
        status = MOERT_RUN(device, program, "add", ((moert_grid){1, 1, 1}), MOERT_ARG(x),
                           MOERT_ARG(3.0f));
    if (status == MOERT_OK)
        status = moert_buffer_read(x, 0, value, sizeof *value);
    moert_buffer_destroy(x);
    moert_device_close(device);
    return status;
}

/* Checks the sum in a child process, which uses OpenCL for the first time. Returns whether its
 * device is PoCL's. */
static bool expect_sum_elsewhere(const char *program) {
    enum { RIGHT = 0, WRONG, RIGHT_ON_POCL };
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        float value = 1.0f;
        bool pocl;
        const bool right = add_once(program, &value, &pocl) == MOERT_OK && value == 7.0f;
        if (!right)
            fprintf(stderr, "value %g; %s\n", (double)value, moert_last_error());
        _exit(!right ? WRONG : pocl ? RIGHT_ON_POCL : RIGHT);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), WRONG);
    return WEXITSTATUS(status) == RIGHT_ON_POCL;
}

static const char *counted_ending;
static size_t counted_files;

static int count_file(const char *path, const struct stat *info, int type, struct FTW *level) {
    (void)info;
    (void)level;
    counted_files += type == FTW_F && moert_text_ends_with(path, counted_ending);
    return 0;
}

/* The number of files anywhere below a directory whose names end with `ending`; 0 if it is
 * absent. */
static size_t count_below(const char *directory, const char *ending) {
    counted_ending = ending;
    counted_files = 0;
    nftw(in_directory(directory), count_file, 16, FTW_PHYS);
    return counted_files;
}

/* PoCL compiles a kernel for each launch shape. Both launches have one shape, so the cache holds
 * one entry for the program and one for the kernel. */
TEST_WITH(test_all_compiled_kernels_lie_in_the_cache_directory, make_kernels, NULL) {
    for (size_t i = 0; i < 2; i++) {
        const bool pocl = expect_sum_elsewhere("good");
        assert_int_equal(count_below("cache", ".bin"), pocl ? 2 : 1);
        assert_int_equal(count_below("cache/pocl", ".so"), pocl ? 1 : 0);
        /* NVIDIA's driver creates home/.nv */
        assert_int_equal(count_below(pocl ? "home" : "home/.cache", ""), 0);
    }
}

TEST_WITH(test_each_set_of_options_and_sources_has_its_entry, make_kernels, NULL) {
    const size_t each = expect_sum_elsewhere("good") ? 2 : 1;
    expect_sum_elsewhere("good -DUNUSED=1");
    assert_int_equal(count_below("cache", ".bin"), 2 * each);
    write_text("kernels/lib/common.h", "#define FACTOR (6.0f / 3.0f)\n");
    expect_sum_elsewhere("good");
    assert_int_equal(count_below("cache", ".bin"), 3 * each);
}

TEST_WITH(test_without_a_cache_nothing_is_kept, make_kernels, NULL) {
    set_variable("MOERT_CACHE_DIR", "off");
    expect_sum_elsewhere("good");
    assert_int_equal(count_below("cache", ""), 0);
    assert_int_equal(count_below("home", ".so") + count_below("home", ".bc"), 0);
    assert_int_not_equal(access("off", F_OK), 0);
}

TEST_WITH(test_a_cache_that_cannot_be_written_is_no_error, make_kernels, NULL) {
    write_text("taken", "a file, not a directory");
    char *deep =
        moert_text_format("%s/%0200d/%0200d/%0200d/%0200d", in_directory("cache"), 0, 0, 0, 0);
    const char *const directories[] = {in_directory("taken"), in_directory("taken/below"),
                                       "/proc/no/such/directory", deep};
    for (size_t i = 0; i < MOERT_COUNT(directories); i++) {
        set_variable("MOERT_CACHE_DIR", directories[i]);
        expect_sum_elsewhere("good");
    }
    free(deep);
}

TEST_WITH(test_pocl_keeps_the_cache_directory_that_the_user_sets, make_kernels, NULL) {
    set_variable("POCL_CACHE_DIR", in_directory("own"));
    const bool pocl = expect_sum_elsewhere("good");
    assert_int_equal(count_below("own", ".so"), pocl ? 1 : 0);
    assert_int_equal(count_below("cache/pocl", ".so"), 0);
}

TEST_WITH(test_a_failed_build_shows_the_log_of_the_compiler, make_kernels_here, NULL) {
    float value = 1.0f;
    bool pocl;
    write_text("kernels/bad.cl", "kernel void add(global float *x, float value) {\n"
                                 "    x[0] = undeclared_name;\n"
                                 "}\n");
    /* a failed build is not cached, so both attempts fail with the build log */
    for (size_t i = 0; i < 2; i++) {
        ASSERT_FAILS(add_once("bad -DX=1", &value, &pocl), MOERT_ERROR_DEVICE,
                     "program 'bad -DX=1' does not build on");
        assert_non_null(strstr(moert_last_error(), "undeclared_name"));
    }
    assert_int_equal(count_below("cache", ".bin"), 0);
}

TEST_WITH(test_a_missing_kernel_file_is_named, make_kernels_here, NULL) {
    float value = 1.0f;
    bool pocl;
    ASSERT_FAILS(add_once("absent", &value, &pocl), MOERT_ERROR_IO,
                 in_directory("kernels/absent.cl"));
    assert_non_null(strstr(moert_last_error(), "MOERT_KERNEL_DIR"));
    assert_int_equal(unlink(in_directory("kernels/lib/common.h")), 0);
    ASSERT_FAILS(add_once("good", &value, &pocl), MOERT_ERROR_IO,
                 in_directory("kernels/lib/common.h"));
}

TEST_WITH(test_options_of_any_length_reach_the_compiler, make_kernels_here, NULL) {
    float value = 1.0f;
    bool pocl;
    char *program = moert_text_format("last%1000s-DLAST=5.0f", "");
    write_text("kernels/last.cl",
               "kernel void add(global float *x, float value) { x[0] = value + LAST; }\n");
    ASSERT_OK(add_once(program, &value, &pocl));
    assert_true(value == 8.0f);
    free(program);
}

TESTS(make_test_directory, remove_test_directory)
