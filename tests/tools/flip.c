/*
 * A library for LD_PRELOAD that flips bits of device memory after a launch of a kernel, as a faulty
 * device or memory would. tests/flips uses it.
 *
 *   FLIP_LOG=PATH   PATH.RANK gets a line `KERNEL ARGUMENT LAUNCHES WORDS` for each argument of a
 *                   kernel that was a buffer, with the words of the largest one, or `flipped` when
 *                   bits have been flipped
 *   FLIP="KERNEL ARGUMENT LAUNCH WORD MASK"
 *                   after this launch of the kernel (0 is the first), flips the bits of MASK
 *                   (hexadecimal) in word WORD, modulo the words, of the argument's buffer, on rank
 *                   FLIP_RANK (0). The buffer may also be one that the kernel reads only.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 1024, ARGUMENTS = 32, BUFFERS = 1 << 16, NAME = 64 };

/* A kernel's name, and its arguments that are buffers. Several handles may have one name. */
typedef struct kernel {
    cl_kernel handle;
    unsigned name;
    cl_mem argument[ARGUMENTS];
} kernel;

/* All kernel handles of one name: the number of their launches, and the words of their buffer
 * arguments. */
typedef struct named {
    char name[NAME];
    uint64_t launches, words[ARGUMENTS];
} named;

static kernel kernels[KERNELS];
static named names[KERNELS];
static unsigned kernel_count, name_count;
static cl_mem buffers[BUFFERS]; /* a hash table of all buffers ever created */
static char chosen[NAME];       /* "": none */
static unsigned chosen_argument;
static uint64_t chosen_launch, chosen_word;
static uint32_t mask;
static FILE *log_file;

static const char *rank_text(void) {
    const char *open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *mpich = getenv("PMI_RANK");
    return open_mpi != NULL ? open_mpi : mpich != NULL ? mpich : "0";
}

__attribute__((constructor)) static void start(void) {
    const char *prefix = getenv("FLIP_LOG"), *flip = getenv("FLIP"), *rank = getenv("FLIP_RANK");
    char path[4096];
    if (prefix == NULL || strncmp(program_invocation_short_name, "moert-", 6) != 0)
        return;
    snprintf(path, sizeof path, "%s.%s", prefix, rank_text());
    log_file = fopen(path, "w");
    if (flip == NULL || strcmp(rank_text(), rank != NULL ? rank : "0") != 0)
        return;
    if (sscanf(flip, "%63s %u %" SCNu64 " %" SCNu64 " %" SCNx32, chosen, &chosen_argument,
               &chosen_launch, &chosen_word, &mask) != 5 ||
        chosen_argument >= ARGUMENTS)
        abort();
}

__attribute__((destructor)) static void finish(void) {
    for (unsigned n = 0; log_file != NULL && chosen[0] == '\0' && n < name_count; n++)
        for (unsigned a = 0; a < ARGUMENTS; a++)
            if (names[n].words[a] > 0)
                fprintf(log_file, "%s %u %" PRIu64 " %" PRIu64 "\n", names[n].name, a,
                        names[n].launches, names[n].words[a]);
    if (log_file != NULL)
        fclose(log_file);
}

#define PUBLIC     __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))find_real(#name))
static void *find_real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

/* ---- buffers ---- */

static cl_mem *slot_of(cl_mem handle) {
    size_t i = (uintptr_t)handle / 16 % BUFFERS;
    for (size_t tries = 0; buffers[i] != NULL && buffers[i] != handle; tries++) {
        if (tries == BUFFERS)
            abort();
        i = (i + 1) % BUFFERS;
    }
    return &buffers[i];
}

static cl_mem note(cl_mem made) {
    if (made != NULL)
        *slot_of(made) = made;
    return made;
}

PUBLIC cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                             cl_int *code) {
    return note(REAL(clCreateBuffer)(context, flags, bytes, host, code));
}

PUBLIC cl_mem clCreateSubBuffer(cl_mem whole, cl_mem_flags flags, cl_buffer_create_type type,
                                const void *info, cl_int *code) {
    return note(REAL(clCreateSubBuffer)(whole, flags, type, info, code));
}

/* ---- kernels ---- */

PUBLIC cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *code) {
    const cl_kernel made = REAL(clCreateKernel)(program, name, code);
    unsigned n = 0;
    while (n < name_count && strcmp(names[n].name, name) != 0)
        n++;
    if (kernel_count == KERNELS || strlen(name) >= NAME)
        abort();
    if (n == name_count)
        memcpy(names[name_count++].name, name, strlen(name) + 1);
    kernels[kernel_count++] = (kernel){.handle = made, .name = n};
    return made;
}

/* Returns the newest kernel with this handle, because the driver may reuse the handle of an older
 * kernel. */
static kernel *find_kernel(cl_kernel handle) {
    for (unsigned i = kernel_count; i-- > 0;)
        if (kernels[i].handle == handle)
            return &kernels[i];
    abort();
}

PUBLIC cl_int clSetKernelArg(cl_kernel handle, cl_uint index, size_t bytes, const void *value) {
    cl_mem memory = NULL;
    if (value != NULL && bytes == sizeof memory)
        memcpy(&memory, value, sizeof memory);
    if (index < ARGUMENTS)
        find_kernel(handle)->argument[index] =
            memory != NULL && *slot_of(memory) != NULL ? memory : NULL;
    return REAL(clSetKernelArg)(handle, index, bytes, value);
}

static uint64_t words_of(cl_mem memory) {
    size_t bytes = 0;
    clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    return bytes / sizeof(uint32_t);
}

/* Flips the bits after the queue has finished all earlier commands. */
static void flip(cl_command_queue queue, cl_mem memory) {
    const uint64_t words = words_of(memory);
    uint32_t word;
    if (words == 0)
        return;
    const size_t at = chosen_word % words * sizeof word;
    clEnqueueReadBuffer(queue, memory, CL_TRUE, at, sizeof word, &word, 0, NULL, NULL);
    word ^= mask;
    clEnqueueWriteBuffer(queue, memory, CL_TRUE, at, sizeof word, &word, 0, NULL, NULL);
    fputs("flipped\n", log_file);
    fflush(log_file);
}

PUBLIC cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel handle, cl_uint dimensions,
                                     const size_t *offset, const size_t *all, const size_t *items,
                                     cl_uint count, const cl_event *before, cl_event *event) {
    const kernel *k = find_kernel(handle);
    named *of = &names[k->name];
    const cl_int code = REAL(clEnqueueNDRangeKernel)(queue, handle, dimensions, offset, all, items,
                                                     count, before, event);
    for (unsigned a = 0; log_file != NULL && chosen[0] == '\0' && a < ARGUMENTS; a++)
        if (k->argument[a] != NULL && words_of(k->argument[a]) > of->words[a])
            of->words[a] = words_of(k->argument[a]);
    if (code == CL_SUCCESS && chosen[0] != '\0' && strcmp(of->name, chosen) == 0 &&
        of->launches == chosen_launch && k->argument[chosen_argument] != NULL)
        flip(queue, k->argument[chosen_argument]);
    of->launches++;
    return code;
}
