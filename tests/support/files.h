/* Files of tests: a temporary directory per program, whole files. */
#pragma once

#include <sys/resource.h>

#include "io/safetensors.h"
#include "support/test.h"

/* Group fixture: an empty directory, removed with its content at the end. */
extern char test_directory[];
int make_test_directory(void **state);
int remove_test_directory(void **state);
/* Group fixture: the temporary directory and the test device. */
int open_device_and_directory(void **state);
int close_device_and_directory(void **state);

/* Returns test_directory/name. The text stays valid until the eighth call after this one. */
const char *in_directory(const char *name);

/* Writes a whole file into the directory; returns its path as in_directory() does. */
const char *write_file(const char *name, const void *content, size_t bytes);
const char *write_text(const char *name, const char *text);

/* Writes JSON, in which ' stands for ". */
const char *write_json(const char *name, const char *text);

/* Returns the content of a file, followed by a zero byte; the running test owns it (test.h).
 * *bytes, unless NULL, becomes the size of the file. */
char *read_file(const char *path, size_t *bytes);

/* Limits the size of files to `bytes` (RLIM_INFINITY: removes the limit). A write past the limit
 * fails. */
void limit_files(rlim_t bytes);

/* Limits this process's mapped memory to the present size plus `bytes` (RLIM_INFINITY: removes the
 * limit). */
void limit_memory(rlim_t bytes);

/* Counts the entries of a directory whose names end in `ending`, except hidden entries. Returns 0
 * if the directory does not exist. */
size_t count_files(const char *directory, const char *ending);

/* A tensor of a file, with its bytes. */
typedef struct file_tensor {
    moert_tensor_spec spec;
    const void *data;
} file_tensor;

/* Writes the tensors as a safetensors file in the test's directory; returns its path as
 * in_directory() does. */
const char *write_tensors(const char *name, const file_tensor *tensors, size_t count);

/* Opens the tensors of a file or a directory, and closes them when the test ends. */
moert_tensors *open_tensors(const char *path);
