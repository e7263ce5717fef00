/* Programs and their kernels. Only the files of src/device include this header. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "device/launch.h"
#include "device/opencl.h"

typedef struct moert_kernel {
    char *name;
    cl_kernel handle;
    cl_uint arguments;
    size_t items[3];  /* work-items of a work-group: the kernel's reqd_work_group_size */
    char *key;        /* cache key of the first launch; NULL if that launch compiles nothing */
    bool launched[2]; /* launched with a small grid, with a large grid: PoCL compiles a kernel for
                         each */
    struct moert_kernel *next;
} moert_kernel;

typedef struct moert_program {
    char *spec; /* "family -Doption ..." */
    char *key;  /* cache key; NULL if memory ran out */
    cl_program handle;
    moert_kernel *kernels;
    struct moert_program *next;
} moert_program;

/* Finds a kernel; builds or loads its program on first use. */
moert_status moert_program_kernel(moert_device *device, const char *spec, const char *name,
                                  moert_kernel **kernel);
/* Sets all arguments of a handle of the kernel: arguments[kernel->arguments]. */
moert_status moert_kernel_set(const moert_kernel *kernel, cl_kernel handle,
                              const moert_argument *arguments);
/* *key = the cache key of a program on the device, which the caller frees; NULL if memory runs
 * out. */
moert_status moert_program_key(const moert_device *device, const char *spec, char **key);
/* Whether programs use the faster functions of NVIDIA's GPUs. True where tensor cores are used,
 * since sums of tensor cores differ from those of CPUs anyway. */
bool moert_program_is_fast(const moert_device *device);
void moert_program_release_all(moert_device *device);
