/* The temporary directory of a test program, and its files. */
#include "support/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include "base/text.h"
#include "io/durable.h"

char test_directory[] = "/tmp/moert-test-XXXXXX";

/* Replaces fsync() of the C library, so that tests do not wait for the disk. */
int fsync(int file) {
    return fcntl(file, F_GETFD) >= 0 ? 0 : -1;
}

int make_test_directory(void **state) {
    (void)state;
    return mkdtemp(test_directory) != NULL ? 0 : -1;
}

int remove_test_directory(void **state) {
    (void)state;
    return moert_remove_tree(test_directory) == MOERT_OK ? 0 : -1;
}

const char *in_directory(const char *name) {
    static char paths[8][PATH_MAX];
    static size_t next;
    char *path = paths[next++ % 8];
    snprintf(path, PATH_MAX, "%s/%s", test_directory, name);
    return path;
}

const char *write_file(const char *name, const void *content, size_t bytes) {
    const char *path = in_directory(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

const char *write_text(const char *name, const char *text) {
    return write_file(name, text, strlen(text));
}

const char *write_json(const char *name, const char *text) {
    char *json = owned(strdup(text), free);
    for (char *at = json; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    return write_text(name, json);
}

char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("no file %s", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const size_t size = (size_t)ftell(file);
    char *content = test_alloc(size + 1);
    rewind(file);
    assert_int_equal(fread(content, 1, size, file), size);
    fclose(file);
    if (bytes != NULL)
        *bytes = size;
    return content;
}

void limit_files(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN); /* a write past the limit would send this signal */
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

void limit_memory(rlim_t bytes) {
    struct rlimit limit;
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    /* the number of pages that this process maps */
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur =
        bytes != RLIM_INFINITY ? pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
}

size_t count_files(const char *directory, const char *ending) {
    size_t count = 0;
    DIR *opened = opendir(directory);
    const struct dirent *entry;
    while (opened != NULL && (entry = readdir(opened)) != NULL)
        count += entry->d_name[0] != '.' && moert_text_ends_with(entry->d_name, ending);
    if (opened != NULL)
        closedir(opened);
    return count;
}

int open_device_and_directory(void **state) {
    return make_test_directory(state) != 0 || open_test_device(state) != 0;
}

int close_device_and_directory(void **state) {
    return close_test_device(state) != 0 || remove_test_directory(state) != 0;
}

const char *write_tensors(const char *name, const file_tensor *tensors, size_t count) {
    const char *path = in_directory(name);
    moert_tensor_spec *specs = test_alloc(count * sizeof *specs);
    moert_tensor_writer *writer;
    for (size_t i = 0; i < count; i++)
        specs[i] = tensors[i].spec;
    ASSERT_OK(moert_writer_open(path, specs, count, NULL, true, &writer));
    for (size_t i = 0; i < count; i++) {
        size_t elements = 1;
        for (size_t d = 0; d < specs[i].rank; d++)
            elements *= specs[i].shape[d];
        ASSERT_OK(moert_writer_put(writer, specs[i].name, 0, elements, tensors[i].data));
    }
    ASSERT_OK(moert_writer_close(writer));
    return path;
}

moert_tensors *open_tensors(const char *path) {
    moert_tensors *tensors;
    ASSERT_OK(moert_tensors_open(path, &tensors));
    return owned(tensors, moert_tensors_close);
}
