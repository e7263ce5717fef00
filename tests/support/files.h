/* Files of tests: a temporary directory per program, whole files, safetensors byte by byte. */
#pragma once

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

/* Returns the content of a file, followed by a zero byte; the running test owns it (test.h).
 * *bytes, unless NULL, becomes the size of the file. */
char *read_file(const char *path, size_t *bytes);

/* Counts the entries of a directory whose names end in `ending`, except hidden entries. Returns 0
 * if the directory does not exist. */
size_t count_files(const char *directory, const char *ending);

/* Composes a safetensors file in `image`; returns its size in bytes. */
size_t compose_tensors(unsigned char *image, const char *header, const void *data, size_t bytes);
/* Writes a safetensors file of at most 4096 bytes into the directory; returns its path. */
const char *write_tensors(const char *name, const char *header, const void *data, size_t bytes);

/* Opens the tensors of a file or a directory; they are closed when the test ends. */
moert_tensors *open_tensors(const char *path);
