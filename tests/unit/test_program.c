// run: np=1 sanitize=1
/* Programs: build logs, kernel files read from disk, and the cache of compiled kernels. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "io/durable.h"
#include "support/files.h"

static const char good_kernel[] = "kernel void add(global float *x, float value) {\n"
                                  "    x[get_group_id(0)] += value * FACTOR;\n"
                                  "}\n";

/* Kernel files and an empty cache, both in the folder of the test. */
static int make_kernels(void **state) {
    (void)state;
    ASSERT_OK(moert_remove_tree(in_folder("cache")));
    ASSERT_OK(moert_make_folders(in_folder("kernels")));
    write_text("kernels/common.h", "#define FACTOR 2.0f\n");
    write_text("kernels/good.cl", good_kernel);
    set_variable("MOERT_KERNEL_DIR", in_folder("kernels"));
    set_variable("MOERT_CACHE_DIR", in_folder("cache"));
    return 0;
}

/* Opens a device for one launch of `program`, which adds 2 * 3 to one number. */
static moert_status add_once(const char *program, float *value) {
    moert_device *device;
    moert_buffer *x = NULL;
    MOERT_TRY(moert_device_open("auto", NULL, 0, &device));
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

static void expect_sum(const char *program) {
    float value = 1.0f;
    ASSERT_OK(add_once(program, &value));
    assert_true(value == 7.0f);
}

/* Files of the cache that end so; the path of the last one in path[512], unless NULL. */
static size_t count_files(const char *ending, char *path) {
    size_t count = 0;
    DIR *folder = opendir(in_folder("cache"));
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.' || !moert_text_ends_with(entry->d_name, ending))
            continue;
        count++;
        if (path != NULL)
            snprintf(path, 512, "%s/%s", in_folder("cache"), entry->d_name);
    }
    if (folder != NULL)
        closedir(folder);
    return count;
}

static size_t count_lines(const char *text, const char *part) {
    size_t count = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

/* Comes first: processes fork only while nobody has used OpenCL. */
static void test_of_two_processes_one_builds_and_the_other_loads(void **state) {
    (void)state;
    pid_t children[2];
    fflush(NULL);
    for (size_t i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] != 0)
            continue;
        float value = 1.0f;
        const int log = open(in_folder("log"), O_CREAT | O_WRONLY | O_APPEND, 0600);
        dup2(log, STDERR_FILENO);
        set_variable("MOERT_LOG", "debug");
        _exit(add_once("good", &value) == MOERT_OK && value == 7.0f ? 0 : 1);
    }
    for (size_t i = 0; i < 2; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    char *text = read_file(in_folder("log"), NULL);
    assert_int_equal(count_lines(text, "built 'good'"), 1);
    assert_int_equal(count_lines(text, "loaded 'good'"), 1);
    free(text);
    assert_int_equal(count_files(".bin", NULL), 1);
}

static void test_a_program_is_stored_once_and_then_loaded(void **state) {
    (void)state;
    struct stat before, after;
    char path[512];
    expect_sum("good");
    assert_int_equal(count_files(".bin", path), 1);
    assert_int_equal(count_files("", NULL), 2); /* and its lock */
    assert_int_equal(stat(path, &before), 0);
    expect_sum("good");
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_memory_equal(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim);
    assert_int_equal(count_files("", NULL), 2);
}

static void test_options_and_sources_have_entries_of_their_own(void **state) {
    (void)state;
    float value = 1.0f;
    expect_sum("good");
    expect_sum("good -DUNUSED=1");
    assert_int_equal(count_files(".bin", NULL), 2);
    write_text("kernels/common.h", "#define FACTOR 4.0f\n");
    ASSERT_OK(add_once("good", &value));
    assert_true(value == 13.0f);
    assert_int_equal(count_files(".bin", NULL), 3);
}

static void test_a_damaged_entry_is_built_again(void **state) {
    (void)state;
    char path[512];
    size_t bytes, rebuilt_bytes;
    expect_sum("good");
    assert_int_equal(count_files(".bin", path), 1);
    char *sound = read_file(path, &bytes), *damaged = test_alloc(bytes + 1);
    const char *name = path + strlen(test_folder) + 1;
    const size_t lengths[] = {1, 7, 100, bytes / 2, bytes - 1, bytes + 1, bytes};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(damaged, sound, bytes);
        if (lengths[i] == bytes) /* one bit, in the middle of the machine code */
            damaged[bytes / 2] ^= 4;
        write_file(name, damaged, lengths[i]);
        expect_sum("good");
        char *rebuilt = read_file(path, &rebuilt_bytes);
        assert_true(rebuilt_bytes > bytes / 2);
        assert_true(rebuilt_bytes != lengths[i] || memcmp(rebuilt, damaged, lengths[i]) != 0);
        free(rebuilt);
    }
    for (size_t i = 0; i < bytes; i++)
        damaged[i] = (char)(i * 31);
    write_file(name, damaged, bytes);
    expect_sum("good");
    write_file(name, damaged, 0);
    expect_sum("good");
    assert_int_equal(count_files("", NULL), 2);
    free(sound);
    free(damaged);
}

static void test_without_a_cache_nothing_is_written(void **state) {
    (void)state;
    set_variable("MOERT_CACHE_DIR", "off");
    expect_sum("good");
    assert_int_equal(count_files("", NULL), 0);
    assert_int_not_equal(access("off", F_OK), 0);
}

static void test_a_cache_that_cannot_be_written_is_no_error(void **state) {
    (void)state;
    write_text("taken", "a file, not a folder");
    set_variable("MOERT_CACHE_DIR", in_folder("taken"));
    expect_sum("good");
    set_variable("MOERT_CACHE_DIR", in_folder("taken/below"));
    expect_sum("good");
    set_variable("MOERT_CACHE_DIR", "/proc/no/such/folder");
    expect_sum("good");
}

static void test_the_folders_above_a_cache_are_made(void **state) {
    (void)state;
    set_variable("MOERT_CACHE_DIR", in_folder("cache/a//b/"));
    expect_sum("good");
    assert_int_equal(access(in_folder("cache/a/b"), F_OK), 0);
}

static void test_a_failed_build_shows_the_log_of_the_compiler(void **state) {
    (void)state;
    float value = 1.0f;
    write_text("kernels/bad.cl", "kernel void add(global float *x, float value) {\n"
                                 "    x[0] = undeclared_name;\n"
                                 "}\n");
    for (size_t i = 0; i < 2; i++) { /* a failure is not cached */
        ASSERT_FAILS(add_once("bad -DX=1", &value), MOERT_ERROR_DEVICE,
                     "program 'bad -DX=1' does not build on");
        assert_non_null(strstr(moert_last_error(), "undeclared_name"));
    }
    assert_int_equal(count_files(".bin", NULL), 0);
}

static void test_a_missing_kernel_file_is_named(void **state) {
    (void)state;
    float value = 1.0f;
    ASSERT_FAILS(add_once("absent", &value), MOERT_ERROR_IO, in_folder("kernels/absent.cl"));
    assert_non_null(strstr(moert_last_error(), "MOERT_KERNEL_DIR"));
    assert_int_equal(unlink(in_folder("kernels/common.h")), 0);
    ASSERT_FAILS(add_once("good", &value), MOERT_ERROR_IO, in_folder("kernels/common.h"));
}

static void test_options_of_any_length_reach_the_compiler(void **state) {
    (void)state;
    float value = 1.0f;
    char *program = moert_text_format("last%1000s-DLAST=5.0f", "");
    write_text("kernels/last.cl",
               "kernel void add(global float *x, float value) { x[0] = value + LAST; }\n");
    ASSERT_OK(add_once(program, &value));
    assert_true(value == 8.0f);
    free(program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_of_two_processes_one_builds_and_the_other_loads, make_kernels),
        cmocka_unit_test_setup(test_a_program_is_stored_once_and_then_loaded, make_kernels),
        cmocka_unit_test_setup(test_options_and_sources_have_entries_of_their_own, make_kernels),
        cmocka_unit_test_setup(test_a_damaged_entry_is_built_again, make_kernels),
        cmocka_unit_test_setup(test_without_a_cache_nothing_is_written, make_kernels),
        cmocka_unit_test_setup(test_a_cache_that_cannot_be_written_is_no_error, make_kernels),
        cmocka_unit_test_setup(test_the_folders_above_a_cache_are_made, make_kernels),
        cmocka_unit_test_setup(test_a_failed_build_shows_the_log_of_the_compiler, make_kernels),
        cmocka_unit_test_setup(test_a_missing_kernel_file_is_named, make_kernels),
        cmocka_unit_test_setup(test_options_of_any_length_reach_the_compiler, make_kernels),
    };
    return cmocka_run_group_tests_name("program", tests, make_test_folder, remove_test_folder);
}
