// run: check=1 all=1
/* Programs: build logs, kernel files read from disk, and the directories that keep compiled
 * kernels. */
#include <unistd.h>

#include "device/device.h"
#include "device/launch.h"
#include "io/durable.h"
#include "support/files.h"
#include "support/suite.h"

static void empty_directories(void) {
    ASSERT_OK(moert_remove_tree(in_directory("cache")));
    ASSERT_OK(moert_remove_tree(in_directory("tmp")));
    ASSERT_OK(moert_make_directories(in_directory("tmp")));
}

/* Creates kernel files, and empties the cache, the home directory and the directory of temporary
 * files, below the test's directory. */
static int make_kernels(void **state) {
    (void)state;
    set_variable("MOERT_KERNEL_DIR", in_directory("kernels"));
    set_variable("MOERT_CACHE_DIR", in_directory("cache"));
    set_variable("HOME", in_directory("home"));
    set_variable("XDG_CACHE_HOME", NULL);
    set_variable("POCL_CACHE_DIR", NULL);
    /* mpirun sets this variable, which would take precedence over TMPDIR */
    set_variable("PMIX_SERVER_TMPDIR", NULL);
    set_variable("TMPDIR", in_directory("tmp"));
    empty_directories();
    ASSERT_OK(moert_remove_tree(in_directory("home")));
    ASSERT_OK(moert_make_directories(in_directory("kernels/lib")));
    write_text("kernels/lib/common.h", "#define FACTOR 2.0f\n");
    write_text("kernels/good.cl", "kernel void add(global float *x, float value) {\n"
                                  "    x[get_group_id(0)] += value * FACTOR;\n"
                                  "}\n");
    return 0;
}

/* The fixture of tests that use OpenCL in this process. PoCL keeps the first cache directory that
 * it finds, so this fixture sets one for the whole process. */
static int make_kernels_here(void **state) {
    const int failed = make_kernels(state);
    set_variable("POCL_CACHE_DIR", in_directory("pocl"));
    return failed;
}

enum { RIGHT = 0, WRONG, RIGHT_ON_POCL };

/* Opens a device for one launch of a program, which adds 2 * 3 to sum.value = 1. */
static struct {
    float value;
    bool pocl; /* whether the device is PoCL's */
} sum;

static moert_status add_once(const char *program) {
    moert_device *device;
    moert_buffer *x = NULL;
    moert_status status;
    sum.value = 1.0f;
    MOERT_TRY(moert_device_open("auto", NULL, 0, &device));
    sum.pocl = moert_device_describe(device)->is_pocl;
    MOERT_TRY_OR(close, moert_buffer_create(device, sizeof sum.value, &x));
    MOERT_TRY_OR(close, moert_buffer_write(x, 0, &sum.value, sizeof sum.value));
    MOERT_TRY_OR(close, MOERT_RUN(device, program, "add", ((moert_grid){1, 1, 1}), MOERT_ARG(x),
                                  MOERT_ARG(3.0f)));
    status = moert_buffer_read(x, 0, &sum.value, sizeof sum.value);
close:
    moert_buffer_destroy(x);
    moert_device_close(device);
    return status;
}

static int add_here(const void *program) {
    const bool right = add_once(program) == MOERT_OK && sum.value == 7.0f;
    if (!right)
        fprintf(stderr, "value %g; %s\n", (double)sum.value, moert_last_error());
    return !right ? WRONG : sum.pocl ? RIGHT_ON_POCL : RIGHT;
}

/* Checks the sum in a child process, which uses OpenCL for the first time. Returns whether the
 * device is PoCL's. */
static bool expect_sum_elsewhere(const char *program) {
    const int end = end_of(start_child(add_here, program));
    assert_true(end == RIGHT || end == RIGHT_ON_POCL);
    return end == RIGHT_ON_POCL;
}

enum { MOST_FILES = 256 };
static char found[MOST_FILES][200];

/* Counts the files anywhere below a directory whose names end with `ending`; 0 if the directory is
 * absent. */
static size_t count_below(const char *directory, const char *ending) {
    size_t count = 0;
    FILE *list = popen(
        titled("find %s -type f -name '*%s' 2>&- | sort", in_directory(directory), ending), "r");
    assert_non_null(list);
    while (count < MOST_FILES && fscanf(list, "%199s", found[count]) == 1)
        count++;
    pclose(list);
    return count;
}

/* PoCL compiles a kernel for each launch shape. Both launches have the same shape, so the cache
 * holds one entry for the program and one for the kernel. PoCL's own files are in another
 * directory. */
TEST_WITH(test_all_compiled_kernels_lie_in_the_cache_directory, make_kernels, NULL) {
    for (size_t i = 0; i < 2; i++) {
        const bool pocl = expect_sum_elsewhere("good");
        assert_int_equal(count_below("cache", ".bin"), pocl ? 2 : 1);
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

/* test_cache.c tests more directories that the cache cannot or must not use. */
TEST_WITH(test_a_cache_that_cannot_be_written_or_no_home_is_no_error, make_kernels, NULL) {
    const char *home = in_directory("home");
    const char *const rows[][2] = {
        {write_text("taken", "a file, not a directory"), home},
        {titled("%s/%0200d/%0200d/%0200d/%0200d", in_directory("cache"), 0, 0, 0, 0), home},
        {NULL, NULL},
        {NULL, ""},
        {NULL, "/proc/none"},
        {NULL, "relative"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        set_variable("MOERT_CACHE_DIR", rows[i][0]);
        set_variable("HOME", rows[i][1]);
        expect_sum_elsewhere("good");
    }
}

TEST_WITH(test_pocl_keeps_the_cache_directory_that_the_user_sets, make_kernels, NULL) {
    set_variable("POCL_CACHE_DIR", in_directory("own"));
    const bool pocl = expect_sum_elsewhere("good");
    assert_int_equal(count_below("own", ".so"), pocl ? 1 : 0);
    assert_int_equal(count_below("cache", ".bin"), pocl ? 0 : 1);
}

/* ---- damaged files ---- */

/* Damages a file below the cache directory; the random bits of `r` choose the file and the damage.
 * Returns a description. */
static const char *damage(const uint32_t r[4]) {
    const size_t files = count_below("cache", "");
    assert_true(files > 0);
    const char *path = found[r[0] % files], *other = found[r[1] % files];
    size_t bytes;
    unsigned char *content = (unsigned char *)read_file(path, &bytes);
    const size_t at = bytes > 0 ? r[2] % bytes : 0;
    static const char *const ways[] = {"flipped", "cut",         "emptied", "removed",
                                       "swapped", "overwritten", "extended"};
    const size_t way = r[3] % MOERT_COUNT(ways);
    if (way == 0 && bytes > 0)
        content[at] ^= (unsigned char)(1 << r[1] % 8);
    for (size_t i = 0; way == 5 && i < bytes; i++)
        content[i] = (unsigned char)suite_bits(r[0], i);
    const size_t length = way == 1 ? at : way == 2 ? 0 : way == 6 ? bytes + 1 : bytes;
    if (way == 3) {
        assert_int_equal(unlink(path), 0);
    } else if (way == 4 && strcmp(path, other) != 0) {
        assert_int_equal(rename(path, in_directory("aside")), 0);
        assert_int_equal(rename(other, path), 0);
        assert_int_equal(rename(in_directory("aside"), other), 0);
    } else {
        write_file(path + strlen(test_directory) + 1, content, length);
    }
    return titled("%s %s, %s, byte %zu", ways[way], path, other, at);
}

/* DAMAGE_SEED=N makes another choice of damages (1). DAMAGE_COUNT=N sets how many there are. */
TEST_WITH(test_damaged_files_of_the_cache_cost_only_time, make_kernels, NULL) {
    const char *seed = getenv("DAMAGE_SEED"), *count = getenv("DAMAGE_COUNT");
    const uint64_t key = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    const size_t cases = count != NULL ? strtoull(count, NULL, 10) : suite_skips(true) ? 6 : 300;
    print_message("# DAMAGE_SEED=%llu\n", (unsigned long long)key);
    const size_t entries = expect_sum_elsewhere("good") ? 2 : 1;
    for (size_t i = 0; i < cases; i++) {
        uint32_t r[4];
        for (size_t j = 0; j < 4; j++)
            r[j] = suite_bits(key, 4 * i + j);
        const char *done = damage(r);
        const int end = end_of(start_child(add_here, "good"));
        if (end != RIGHT && end != RIGHT_ON_POCL)
            fail_msg("case %zu of DAMAGE_SEED=%llu, %s: %d", i, (unsigned long long)key, done, end);
    }
    expect_sum_elsewhere("good");
    assert_int_equal(count_below("cache", ".bin"), entries);
}

/* ---- PoCL's directory ---- */

TEST_WITH(test_a_killed_process_leaves_no_files_for_long, make_kernels, NULL) {
    /* The children call no exit handlers, so each leaves PoCL's temporary directory, and the next
     * child removes it. Without PoCL there is no directory. If the device is a GPU, the directory
     * has no kernel */
    const bool pocl = expect_sum_elsewhere("good");
    expect_sum_elsewhere("good");
    assert_in_range(count_files(in_directory("tmp"), ""), pocl, 1);
    assert_int_equal(count_below("tmp", "add.so"), pocl);
}

static int run_without_directories(const void *context) {
    int end = RIGHT;
    for (size_t i = 0; i < 3 && end != WRONG; i++) {
        end = add_here(i < 2 ? titled("good -DN=%zu", i) : "good -DN=0");
        empty_directories();
    }
    (void)context;
    return end;
}

/* Opens a device when the disk is full, or compiles a kernel if the device has been opened before.
 * A limit of the size of files stands for a full disk. */
static int use_full_disk(const void *opened) {
    moert_device *device;
    if (opened != NULL && moert_device_open("cpu", NULL, 0, &device) != MOERT_OK)
        return WRONG;
    limit_files(1 << 20);
    const char *room = titled("PoCL finds no room for 16 MiB of temporary files (%s: File too "
                              "large, /dev/shm: ",
                              in_directory("tmp"));
    const bool right =
        opened == NULL
            ? failed_with(moert_device_open("cpu", NULL, 0, &device), MOERT_ERROR_DEVICE, room)
            : failed_with(add_once("good -DNEW"), MOERT_ERROR_IO,
                          "File too large; for 'good -DNEW' PoCL needs 4 MiB in this directory");
    return right ? RIGHT : WRONG;
}

TEST_WITH(test_deleted_directories_cost_only_time, make_kernels, NULL) {
    assert_int_not_equal(end_of(start_child(run_without_directories, NULL)), WRONG);
}

TEST_WITH(test_a_full_disk_ends_with_a_message, make_kernels, NULL) {
    if (!expect_sum_elsewhere("good"))
        SKIP("the device is not PoCL's");
    assert_int_equal(end_of(start_child(use_full_disk, NULL)), RIGHT);
    assert_int_equal(end_of(start_child(use_full_disk, "opened")), RIGHT);
}

/* Compiles a kernel in a process that can map `more` bytes than before. */
static int use_little_memory(const void *more) {
    moert_device *device;
    if (moert_device_open("cpu", NULL, 0, &device) != MOERT_OK)
        return WRONG;
    limit_memory(*(const rlim_t *)more);
    return failed_with(add_once("good -DNEW"), MOERT_ERROR_MEMORY,
                       "for 'good -DNEW' PoCL's compiler needs 160 MiB of memory")
               ? RIGHT
               : WRONG;
}

TEST_WITH(test_a_compiler_without_memory_ends_with_a_message, make_kernels, NULL) {
    if (!expect_sum_elsewhere("good"))
        SKIP("the device is not PoCL's");
    for (rlim_t more = 16; more < 160; more *= 3)
        assert_int_equal(end_of(start_child(use_little_memory, &(rlim_t){more << 20})), RIGHT);
}

/* ---- messages ---- */

TEST_WITH(test_a_failed_build_shows_the_log_of_the_compiler, make_kernels_here, NULL) {
    write_text("kernels/bad.cl", "kernel void add(global float *x, float value) {\n"
                                 "    x[0] = undeclared_name;\n"
                                 "}\n");
    /* a failed build is not cached, so both attempts fail with the build log */
    for (size_t i = 0; i < 2; i++) {
        ASSERT_FAILS(add_once("bad -DX=1"), MOERT_ERROR_DEVICE,
                     "program 'bad -DX=1' does not build on");
        assert_non_null(strstr(moert_last_error(), "undeclared_name"));
        assert_null(strstr(moert_last_error(), "memory"));
    }
    limit_memory((rlim_t)1 << 40);
    ASSERT_FAILS(add_once("bad -DX=1"), MOERT_ERROR_DEVICE,
                 "(the compiler may lack memory: ulimit -v is set)");
    limit_memory(RLIM_INFINITY);
    assert_int_equal(count_below("cache", ".bin"), 0);
}

TEST_WITH(test_a_missing_kernel_file_is_named, make_kernels_here, NULL) {
    ASSERT_FAILS(add_once("absent"), MOERT_ERROR_IO, in_directory("kernels/absent.cl"));
    assert_non_null(strstr(moert_last_error(), "MOERT_KERNEL_DIR"));
    assert_int_equal(unlink(in_directory("kernels/lib/common.h")), 0);
    ASSERT_FAILS(add_once("good"), MOERT_ERROR_IO, in_directory("kernels/lib/common.h"));
}

TEST_WITH(test_options_of_any_length_reach_the_compiler, make_kernels_here, NULL) {
    write_text("kernels/last.cl",
               "kernel void add(global float *x, float value) { x[0] = value + LAST; }\n");
    ASSERT_OK(add_once(titled("last%1000s-DLAST=5.0f", "")));
    assert_true(sum.value == 8.0f);
}

TESTS(make_test_directory, remove_test_directory)
