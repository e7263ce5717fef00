/* Files of tests: one temporary folder per program, whole files, safetensors by their bytes. */
#pragma once

#include "io/safetensors.h"
#include "support/test.h"

/* Group fixture: an empty folder, gone with all its content at the end. */
extern char test_directory[];
int make_test_directory(void **state);
int remove_test_directory(void **state);
/* The same together with the test device. */
int open_device_and_directory(void **state);
int close_device_and_directory(void **state);

/* test_directory/name; valid until the eighth call from now. */
const char *in_directory(const char *name);

/* Writes a whole file into the folder; returns its path as in_directory() does. */
const char *write_file(const char *name, const void *content, size_t bytes);
const char *write_text(const char *name, const char *text);

/* A whole file with a zero byte behind it, to be freed; `bytes` may be NULL. */
char *read_file(const char *path, size_t *bytes);

/* How many entries of a folder end so, without hidden ones; 0 if there is no such folder. */
size_t count_files(const char *folder, const char *ending);

/* The bytes of a safetensors file of this header and this data; returns their number. */
size_t compose_tensors(unsigned char *image, const char *header, const void *data, size_t bytes);
/* Writes them (at most 4096) into the folder; returns the path. */
const char *write_tensors(const char *name, const char *header, const void *data, size_t bytes);

/* The tensors of a file or a directory, closed when the test ends. */
moert_tensors *open_tensors(const char *path);
