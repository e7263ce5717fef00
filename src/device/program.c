/* Builds programs from kernel files or loads them from the on-disk cache, and finds their
 * kernels. */
#include "device/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "args/forms.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/progress.h"
#include "base/text.h"
#include "device/cache.h"
#include "device/internal.h"
#include "device/nvidia/ptx.h"
#include "device/pocl/pocl.h"
#include "device/source.h"

#define CACHE_FORMAT "4"

/* Registers of a work-item at entry, before setmaxnreg changes their number. With 168, 384
 * work-items use all registers of an SM. */
#define HOPPER_OPTIONS "-cl-nv-maxrregcount=168"

/* The bits of results depend on the rounding of / and sqrt. Drivers that refuse this option, such
 * as those that do not announce CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, build without it. Intel's
 * driver for CPUs does not announce that feature, but accepts the option and rounds correctly. */
#define ROUND_CORRECTLY "-cl-fp32-correctly-rounded-divide-sqrt "

/* Whether a family is in a directory nvidia/, which only NVIDIA's compiler can compile. */
static bool is_nvidia(const char *spec) {
    return strstr(spec, "/nvidia/") != NULL;
}

/* The option with the bytes of the arena of a family for sm_90a. */
#define ARENA_OPTION "-DARENA="

static bool is_hopper(const char *spec) {
    return is_nvidia(spec) && strstr(spec, ARENA_OPTION) != NULL;
}

/* Families whose kernels have only the CPU form. */
static const char *const cpu_families[] = {"attention/attention", "gemm/gemm", "gemm/prepacked",
                                           "lib/roof", "router/router"};

/* Work-items of a row group of the family, see kernels/lib/common.h. */
static int row_group_items(const moert_device *device, const char *spec) {
    if (is_nvidia(spec))
        return MOERT_GPU_ITEMS;
    const size_t length = strcspn(spec, " ");
    for (size_t i = 0; i < MOERT_COUNT(cpu_families); i++)
        if (strlen(cpu_families[i]) == length && strncmp(spec, cpu_families[i], length) == 0)
            return 1;
    return device->info.gpu_form ? MOERT_GPU_ITEMS : 1;
}

bool moert_program_is_fast(const moert_device *device) {
    const unsigned backend = moert_config_get()->backend;
    return device->info.nvidia > 0 &&
           (backend == MOERT_BACKEND_AUTO || backend == MOERT_BACKEND_NVIDIA);
}

/* Whether divisions and square roots of a program must round correctly. If programs are fast
 * (moert_program_is_fast), only programs that quantize or read block formats must round correctly;
 * otherwise all programs must. An optimizer that also quantizes has the bits of other optimizers:
 * its quantizer does not divide. */
static bool must_round_correctly(const moert_device *device, const char *spec) {
    return !moert_program_is_fast(device) || strncmp(spec, "quant/", 6) == 0 ||
           (strstr(spec, "-DELEMENT=") != NULL && strncmp(spec, "nn/", 3) != 0);
}

/* Uses -w for CPUs: without AVX-512 the compiler warns at every vector of 16 floats that the
 * calling convention differs from other CPUs. tests/e2e/kernels.sh checks the other warnings. */
static moert_status build_options(const moert_device *device, const char *spec, char **options) {
    char capability[48] = "";
    if (device->info.nvidia > 0)
        snprintf(capability, sizeof capability, " -DMOERT_NVIDIA=%u%s", device->info.nvidia,
                 moert_program_is_fast(device) ? " -DMOERT_FAST" : "");
    *options = moert_text_format("%s-cl-std=%s%s -DMOERT_CPU=%d -DMOERT_FP64=%d "
                                 "-DMOERT_ITEMS=%d%s%s",
                                 must_round_correctly(device, spec) ? ROUND_CORRECTLY : "",
                                 is_hopper(spec)   ? "CL3.0 " HOPPER_OPTIONS
                                 : is_nvidia(spec) ? "CL3.0"
                                                   : "CL1.2",
                                 device->info.is_cpu ? " -w" : "", device->info.is_cpu,
                                 device->info.has_fp64, row_group_items(device, spec), capability,
                                 spec + strcspn(spec, " "));
    return *options != NULL ? MOERT_OK
                            : MOERT_FAIL(ERROR_MEMORY, "no room for the options of %s", spec);
}

/* A hint for the end of a message that the compiler may lack memory; or "". */
static const char *memory_hint(cl_int code) {
    struct rlimit limit;
    const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return limited                         ? " (the compiler may lack memory: ulimit -v is set)"
           : code == CL_OUT_OF_HOST_MEMORY ? " (the compiler lacks memory)"
                                           : "";
}

static moert_status build_failed(const moert_device *device, cl_program program, const char *spec,
                                 cl_int code) {
    char log[900] = "";
    char *whole = NULL;
    size_t bytes = 0;
    if (device->info.is_pocl)
        MOERT_TRY(moert_pocl_prepare(spec, true)); /* the disk may be full by now */
    clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if (bytes > 0 && moert_alloc(&whole, bytes + 1, 1) == MOERT_OK) {
        clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, bytes, whole, NULL);
        snprintf(log, sizeof log, "%s", whole);
        free(whole);
    }
    return MOERT_CL_RECORD(code, "program '%s' does not build on %s: %s%s\n%s", spec,
                           device->info.name, moert_cl_error_name(code), memory_hint(code), log);
}

static moert_status build_source(moert_device *device, const char *spec, const char *source,
                                 const char *options, cl_program *program) {
    cl_int code;
    uint64_t start = moert_clock_ns();
    cl_program made = clCreateProgramWithSource(device->context, 1, &source, NULL, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(device, code, "clCreateProgramWithSource");
    moert_phase_busy_begin();
    moert_progress_begin("compiling kernels", 0);
    code = clBuildProgram(made, 1, &device->id, options, NULL, NULL);
    if (code == CL_INVALID_BUILD_OPTIONS &&
        strncmp(options, ROUND_CORRECTLY, strlen(ROUND_CORRECTLY)) == 0)
        code = clBuildProgram(made, 1, &device->id, options + strlen(ROUND_CORRECTLY), NULL, NULL);
    moert_progress_add(device->info.is_pocl ? 0 : 1); /* PoCL compiles kernels at their launch */
    moert_progress_end();
    moert_phase_busy_end();
    if (code != CL_SUCCESS) {
        moert_status status = build_failed(device, made, spec, code);
        clReleaseProgram(made);
        return status;
    }
    MOERT_DEBUG("built '%s' in %.2f s", spec, (double)(moert_clock_ns() - start) * 1e-9);
    *program = made;
    return MOERT_OK;
}

/* Makes a program from stored machine code; NULL if the driver refuses it. */
static cl_program load_binary(moert_device *device, const char *spec, const unsigned char *data,
                              size_t bytes) {
    cl_int code, binary_code;
    cl_program program = clCreateProgramWithBinary(device->context, 1, &device->id, &bytes, &data,
                                                   &binary_code, &code);
    if (code != CL_SUCCESS)
        return NULL;
    if (binary_code == CL_SUCCESS &&
        clBuildProgram(program, 1, &device->id, is_hopper(spec) ? HOPPER_OPTIONS : NULL, NULL,
                       NULL) == CL_SUCCESS)
        return program;
    clReleaseProgram(program);
    return NULL;
}

static moert_status read_binary(moert_device *device, cl_program program, unsigned char **data,
                                size_t *bytes) {
    MOERT_CL(device,
             clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof *bytes, bytes, NULL));
    MOERT_TRY(moert_alloc(data, *bytes, 1));
    cl_int code = clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof *data, data, NULL);
    if (code == CL_SUCCESS)
        return MOERT_OK;
    free(*data);
    *data = NULL;
    return MOERT_CL_FAIL(device, code, "clGetProgramInfo");
}

/* Transforms a binary, which is PTX text with NVIDIA's driver, to the target sm_90a. */
static moert_status transform_ptx(const char *spec, unsigned char **data, size_t *bytes) {
    const size_t arena = strtoul(strstr(spec, ARENA_OPTION) + sizeof ARENA_OPTION - 1, NULL, 10);
    char *text = NULL, *transformed;
    MOERT_TRY(moert_alloc(&text, *bytes + 1, 1));
    memcpy(text, *data, *bytes);
    moert_status status = moert_ptx_transform(text, arena, &transformed);
    free(text);
    MOERT_TRY(status);
    free(*data);
    *data = (unsigned char *)transformed;
    *bytes = strlen(transformed);
    return MOERT_OK;
}

/* Replaces a program built from source by a program loaded from its binary; the caller stores the
 * binary. This avoids a second compilation. Families for sm_90a also work only from the transformed
 * binary. */
static moert_status reload(moert_device *device, const char *spec, cl_program *program,
                           unsigned char **data, size_t *bytes) {
    moert_status status = read_binary(device, *program, data, bytes);
    if (status == MOERT_OK && is_hopper(spec))
        status = transform_ptx(spec, data, bytes);
    cl_program loaded = status == MOERT_OK ? load_binary(device, spec, *data, *bytes) : NULL;
    if (loaded == NULL && !is_hopper(spec))
        return MOERT_OK;
    clReleaseProgram(*program);
    *program = loaded;
    if (loaded == NULL && status == MOERT_OK)
        status = MOERT_FAIL(ERROR_DEVICE, "the driver refuses the sm_90a PTX of '%s'", spec);
    return status;
}

/* Loads a program from the cache, or builds and stores it. */
static moert_status load_or_build(moert_device *device, const char *spec, const char *source,
                                  const char *options, const char *key, cl_program *program) {
    moert_cache_entry entry;
    moert_status status = MOERT_OK;
    unsigned char *data = NULL;
    size_t bytes = 0;
    moert_cache_open(key, &entry, &data, &bytes);
    *program = data != NULL ? load_binary(device, spec, data, bytes) : NULL;
    free(data);
    data = NULL;
    if (*program == NULL) {
        status = build_source(device, spec, source, options, program);
        if (status == MOERT_OK && (entry.path != NULL || is_hopper(spec)))
            status = reload(device, spec, program, &data, &bytes);
    } else {
        MOERT_DEBUG("loaded '%s' from the kernel cache", spec);
    }
    moert_cache_close(&entry, data, bytes);
    free(data);
    return status;
}

/* Assembles the source and the options of a program. *key = the program's cache key, or NULL if
 * memory runs out. The caller frees *source, *options and *key. */
static moert_status assemble(const moert_device *device, const char *spec, char **source,
                             char **options, char **key) {
    const moert_device_info *info = &device->info;
    *source = *options = *key = NULL;
    MOERT_TRY(moert_program_source(spec, source));
    MOERT_TRY(build_options(device, spec, options));
    char *all = moert_text_format("%s\n%s\n%s\n%s\n%s\n%s\n" CACHE_FORMAT, *source, *options,
                                  info->name, info->driver, info->version, info->platform_name);
    if (all != NULL) {
        char digits[MOERT_CHECKSUM_DIGITS + 1];
        *key = strdup(moert_checksum_text(moert_checksum_of(all, strlen(all)), digits));
        free(all);
    }
    return MOERT_OK;
}

moert_status moert_program_key(const moert_device *device, const char *spec, char **key) {
    char *source, *options;
    const moert_status status = assemble(device, spec, &source, &options, key);
    MOERT_FREE(options, source);
    return status;
}

/* Builds or loads the program of program->spec; sets program->handle and program->key. */
static moert_status obtain(moert_device *device, moert_program *program) {
    const char *spec = program->spec;
    char *source, *options;
    moert_status status;
    MOERT_TRY_OR(free_texts, assemble(device, spec, &source, &options, &program->key));
    if (device->info.is_pocl) {
        /* PoCL compiles a kernel at the kernel's first launch, for the shape of that launch. To
         * return a binary, PoCL would compile all kernels again, for any shape. */
        moert_pocl_step step;
        MOERT_TRY_OR(free_texts, moert_pocl_begin(program->key, spec, &step));
        status = build_source(device, spec, source, options, &program->handle);
        moert_pocl_end(&step, status == MOERT_OK);
    } else {
        status = load_or_build(device, spec, source, options, program->key, &program->handle);
    }
free_texts:
    MOERT_FREE(options, source);
    return status;
}

static void free_program(moert_program *program) {
    MOERT_FREE(program->key, program->spec, program);
}

static moert_status find_program(moert_device *device, const char *spec, moert_program **program) {
    for (moert_program *at = device->programs; at != NULL; at = at->next)
        if (strcmp(at->spec, spec) == 0) {
            *program = at;
            return MOERT_OK;
        }
    moert_program *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->spec = strdup(spec);
    moert_status status = made->spec != NULL ? obtain(device, made)
                                             : MOERT_FAIL(ERROR_MEMORY, "no room for a program");
    if (status != MOERT_OK) {
        free_program(made);
        return status;
    }
    made->next = device->programs;
    device->programs = made;
    *program = made;
    return MOERT_OK;
}

static void free_kernel(moert_kernel *kernel) {
    if (kernel->handle != NULL)
        clReleaseKernel(kernel->handle);
    MOERT_FREE(kernel->key, kernel->name, kernel);
}

moert_status moert_program_kernel(moert_device *device, const char *spec, const char *name,
                                  moert_kernel **kernel) {
    moert_program *program = NULL;
    MOERT_TRY(find_program(device, spec, &program));
    for (moert_kernel *at = program->kernels; at != NULL; at = at->next)
        if (strcmp(at->name, name) == 0) {
            *kernel = at;
            return MOERT_OK;
        }
    moert_kernel *made;
    cl_int code;
    MOERT_TRY(MOERT_NEW(&made));
    made->handle = clCreateKernel(program->handle, name, &code);
    made->name = strdup(name);
    if (code == CL_SUCCESS)
        code = clGetKernelInfo(made->handle, CL_KERNEL_NUM_ARGS, sizeof made->arguments,
                               &made->arguments, NULL);
    if (code == CL_SUCCESS)
        code = clGetKernelWorkGroupInfo(made->handle, device->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                        sizeof made->items, made->items, NULL);
    for (int i = 0; i < 3; i++)
        made->items[i] = moert_max(made->items[i], 1); /* 0: the kernel declares no size */
    if (code != CL_SUCCESS || made->name == NULL) {
        const bool forgotten = code == CL_SUCCESS; /* true: no memory for the kernel's name */
        free_kernel(made);
        return forgotten ? MOERT_FAIL(ERROR_MEMORY, "no room for the name of kernel %s", name)
                         : MOERT_CL_RECORD(code, "kernel %s of '%s': %s", name, spec,
                                           moert_cl_error_name(code));
    }
    /* A kernel that PoCL compiles at its first launch has a cache entry. On the caller's own queue,
     * which any event may block, a kernel gets no entry, so that no other process waits for this
     * launch. */
    if (device->info.is_pocl && !device->adopted && program->key != NULL)
        made->key = moert_text_format("%s-%s", program->key, name);
    made->next = program->kernels;
    program->kernels = made;
    *kernel = made;
    return MOERT_OK;
}

static moert_status set_argument(const moert_kernel *kernel, cl_kernel handle, cl_uint index,
                                 const moert_argument *argument) {
    const bool is_buffer = argument->kind == MOERT_ARGUMENT_BUFFER;
    cl_mem memory = argument->buffer != NULL ? argument->buffer->memory : NULL;
    const void *const value = is_buffer                                 ? &memory
                              : argument->kind == MOERT_ARGUMENT_LOCAL  ? NULL
                              : argument->kind == MOERT_ARGUMENT_STRUCT ? argument->value.data
                                                                        : &argument->value;
    const cl_int code =
        clSetKernelArg(handle, index, is_buffer ? sizeof memory : argument->bytes, value);
    if (moert_cl_status(code) == MOERT_ERROR_MEMORY)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the arguments of kernel %s", kernel->name);
    if (code != CL_SUCCESS)
        return MOERT_FAIL(ERROR_INTERNAL, "argument %u of kernel %s (%zu bytes) cannot be set: %s",
                          index, kernel->name, argument->bytes, moert_cl_error_name(code));
    return MOERT_OK;
}

moert_status moert_kernel_set(const moert_kernel *kernel, cl_kernel handle,
                              const moert_argument *arguments) {
    for (cl_uint i = 0; i < kernel->arguments; i++)
        MOERT_TRY(set_argument(kernel, handle, i, &arguments[i]));
    return MOERT_OK;
}

void moert_program_release_all(moert_device *device) {
    for (moert_program *program = device->programs, *next; program != NULL; program = next) {
        next = program->next;
        for (moert_kernel *kernel = program->kernels, *after; kernel != NULL; kernel = after) {
            after = kernel->next;
            free_kernel(kernel);
        }
        clReleaseProgram(program->handle);
        free_program(program);
    }
    device->programs = NULL;
}
