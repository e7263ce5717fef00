/*
 * Manages one OpenCL device per rank: choice of the device, buffers, programs with an on-disk
 * cache, and launches.
 *
 * Only src/device includes CL/cl.h, apart from the public header for contexts on the caller's
 * OpenCL objects.
 *
 * A family is a file kernels/<family>.cl. A program is a family with its -D options, written as one
 * text such as "attention/attention -DHEAD_DIM=64". A program is built on first use and kept. Every
 * program begins with kernels/lib/common.h, which defines the CPU form and the GPU form. A launch
 * gives the number of work-groups; the kernel declares the size of a work-group. Families in a
 * directory nvidia/ compile only with NVIDIA's compiler. Families with -DARENA= need sm_90a
 * (device/nvidia/ptx.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "moert/device.h"
#include "moert/formats.h"

typedef struct moert_device_info {
    int platform, index; /* "P:D" */
    bool is_cpu, is_gpu, is_pocl;
    unsigned compute_units;
    size_t global_bytes, local_bytes;
    size_t largest_bytes; /* of a buffer */
    size_t piece_bytes;   /* of one allocation; on a CPU a buffer may consist of several */
    bool has_fp64;
    bool imports_files; /* cl_khr_external_memory_opaque_fd */
    bool has_bf16_dot;  /* the CPU has vdpbf16ps (AVX-512 BF16), and it is worth using */
    bool has_tiles;     /* the CPU has AMX with bf16, and GEMMs may use it */
    bool is_simulator;  /* Oclgrind: kernels can access only OpenCL buffers */
    bool gpu_form;      /* kernels in GPU form: 32 work-items per row (kernels/lib/common.h) */
    unsigned nvidia;    /* compute capability, such as 90 for sm_90; 0: not an NVIDIA GPU */
    char name[128], vendor[64], platform_name[128], driver[64], version[128];
    char pci[24]; /* "0000:3b:00.0", or "" if the driver does not report it */
} moert_device_info;

/* Lists the devices of all platforms; the caller frees the list. ERROR_DEVICE without any. */
moert_status moert_device_list(moert_device_info **list, size_t *count);

/*
 * Opens the device that `selector` names (see MOERT_DEVICE). If several devices match, it opens the
 * one at `pci`, or else number `local_rank` modulo their count. Errors: ERROR_USAGE (nothing
 * matches; the message lists all devices), ERROR_DEVICE.
 */
moert_status moert_device_open(const char *selector, const char *pci, unsigned local_rank,
                               moert_device **device);

/* Makes a device from OpenCL objects that the caller owns and keeps alive: a cl_context, a
 * cl_device_id and an in-order cl_command_queue. */
moert_status moert_device_adopt(void *context, void *id, void *queue, moert_device **device);

void moert_device_close(moert_device *device);

const moert_device_info *moert_device_describe(const moert_device *device);

/* The most bytes that this rank's buffers and windows took of the device's memory at one time. */
size_t moert_device_peak_bytes(const moert_device *device);
/* Takes the peak back to `bytes`, one of before, for a measurement whose memory does not count. */
void moert_device_set_peak(moert_device *device, size_t bytes);
/* For memory that moert_buffer_create did not allocate: adds `more` bytes to those in use, then
 * subtracts `fewer`. */
void moert_device_count(moert_device *device, size_t more, size_t fewer);

/*
 * Compares the device's arithmetic with the host's, by a sample of operations and sums that takes
 * less than a millisecond. *difference = why runs on the device may have other digits than on a CPU
 * with another driver; "" if they have the same. The caller frees it. The cache keeps the result
 * with the compiled kernels. Errors: those of moert_launch, ERROR_MEMORY.
 */
moert_status moert_device_difference(const moert_device *device, char **difference);

/* Requests AMX from Linux, and returns whether this process's threads may use it with bf16. */
bool moert_cpu_has_tiles(void);

/* Whether bf16 GEMMs on the device add in the order of AMX tiles (kernels/gemm/add_amx.h). */
bool moert_device_sums_in_tiles(const moert_device_info *info);

/* Stops the device's GEMMs from using AMX. All ranks call it when some ranks have no AMX. */
void moert_device_disable_tiles(moert_device *device);

/* Selects a value by the form of the device's kernels. */
static inline size_t moert_by_form(const moert_device *device, size_t cpu, size_t gpu) {
    return moert_device_describe(device)->gpu_form ? gpu : cpu;
}

/* The program of a family. `sizes` is the bitwise or of all row sizes and strides in floats: in the
 * GPU form, if all are multiples of 4, the program is built with ALIGNED (kernels/lib/common.h). */
#define MOERT_PROGRAM(device, family, sizes)                                                       \
    (moert_by_form((device), 1, (sizes) % 4) == 0 ? family " -DALIGNED" : family)

/* Waits for all commands enqueued so far, and calls `meanwhile` repeatedly during the wait. Returns
 * a failure of `meanwhile` at once. */
moert_status moert_device_wait(moert_device *device, moert_status (*meanwhile)(void *context),
                               void *context);

/* ---- launches ---- */

typedef struct moert_argument {
    enum {
        MOERT_ARGUMENT_BUFFER,
        MOERT_ARGUMENT_VALUE,
        MOERT_ARGUMENT_LOCAL,
        MOERT_ARGUMENT_STRUCT
    } kind;
    const moert_buffer *buffer; /* NULL passes a null pointer */
    size_t bytes;               /* size of the value, or of local memory */
    union {
        int32_t i32;
        uint32_t u32;
        uint64_t u64;
        float f32;
        const void *data; /* pointer to a struct, which the launch reads */
    } value;
} moert_argument;

static inline moert_argument moert_argument_buffer(const moert_buffer *buffer) {
    return (moert_argument){.kind = MOERT_ARGUMENT_BUFFER, .buffer = buffer};
}
static inline moert_argument moert_argument_int(int32_t value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 4, .value.i32 = value};
}
static inline moert_argument moert_argument_uint(uint32_t value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 4, .value.u32 = value};
}
static inline moert_argument moert_argument_ulong(uint64_t value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 8, .value.u64 = value};
}
static inline moert_argument moert_argument_float(float value) {
    return (moert_argument){.kind = MOERT_ARGUMENT_VALUE, .bytes = 4, .value.f32 = value};
}
/* An argument of local memory per work-group. The launch checks its size against the device's
 * limit, since PoCL would abort the process. */
static inline moert_argument moert_argument_local(size_t bytes) {
    return (moert_argument){.kind = MOERT_ARGUMENT_LOCAL, .bytes = bytes};
}

static inline moert_argument moert_argument_struct(const void *data, size_t bytes) {
    return (moert_argument){.kind = MOERT_ARGUMENT_STRUCT, .bytes = bytes, .value.data = data};
}

/* A kernel argument by its C type: a buffer, an int, an unsigned, a float, or a size_t as ulong. */
/* clang-format off */
#define MOERT_ARG(x)                                                                               \
    _Generic((x),                                                                                  \
        moert_buffer *: moert_argument_buffer, const moert_buffer *: moert_argument_buffer,        \
        int: moert_argument_int, unsigned: moert_argument_uint, size_t: moert_argument_ulong,      \
        float: moert_argument_float)(x)
/* clang-format on */

typedef struct moert_grid {
    size_t x, y, z; /* work-groups; 0 anywhere makes the launch a no-op */
} moert_grid;

/*
 * Enqueues a kernel: moert_launch(device, "gemm/glu", "glu_forward", grid, arguments, count). Does
 * not block, except to build the program at first. Errors: ERROR_DEVICE (the message has the build
 * log), ERROR_UNSUPPORTED (too much local memory), ERROR_INTERNAL (arguments).
 */
moert_status moert_launch(moert_device *device, const char *program, const char *kernel,
                          moert_grid grid, const moert_argument *arguments, size_t count);

/* A struct of kernels/args as an argument: MOERT_ARGS(moert_rope_args, .heads = 8, ...). */
#define MOERT_ARGS(type, ...) moert_argument_struct(&(const type){__VA_ARGS__}, sizeof(type))

/* Like MOERT_ARGS, from an existing struct. */
#define MOERT_STRUCT(x) moert_argument_struct(&(x), sizeof(x))

/* MOERT_RUN(device, "gemm/glu", "glu_forward", ((moert_grid){n, 1, 1}), MOERT_ARG(x),
 * MOERT_ARG(rows)) */
#define MOERT_RUN(device, program, kernel, grid, ...)                                              \
    moert_launch((device), (program), (kernel), grid, (const moert_argument[]){__VA_ARGS__},       \
                 sizeof((const moert_argument[]){__VA_ARGS__}) / sizeof(moert_argument))

/* Submits the enqueued commands, which a driver may otherwise hold back until the host waits.
 * ERROR_DEVICE. */
moert_status moert_device_flush(moert_device *device);

/*
 * A second in-order queue, for kernels that wait for other devices or move rows between them. Only
 * events (device/staging.h) order commands of the two queues. moert_device_use_queue(device, true)
 * selects the second queue for all later commands, `false` the first. moert_device_finish waits for
 * both.
 *
 * A device has no second queue on a CPU without MOERT_SYNC=device, on the caller's queue, during a
 * recording, and in a profile without an observer. In these cases all commands go to the first
 * queue.
 */
bool moert_device_has_second_queue(const moert_device *device);
moert_status moert_device_use_queue(moert_device *device, bool aside);

/*
 * moert_device_reserve_units reserves `units` compute units. Persistent kernels launched later use
 * the rest, moert_device_units() of them.
 *
 * moert_device_share launches a persistent kernel by run(work, units, counts). `counts` are two
 * uint32 on the device, 0 at first: counters from which the kernel's work-groups take tiles.
 * moert_device_run_shared launches the kernel once more, on the queue in use and the reserved
 * units, with the same counts. The kernel's work must be complete when its first launch ends.
 * Without reserved units, or with more than MOERT_MOST_SHARED_WORKS works (device/internal.h),
 * `run` is called once, with counts NULL.
 */
typedef moert_status (*moert_work)(const void *work, unsigned units, moert_buffer *counts);
void moert_device_reserve_units(moert_device *device, unsigned units);
unsigned moert_device_units(const moert_device *device);
/* Copies work[bytes]. Errors: those of `run`, ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_device_share(moert_device *device, moert_work run, const void *work,
                                size_t bytes);
/* Launches again all work that was shared since moert_device_reserve_units. */
moert_status moert_device_run_shared(moert_device *device);

/* ---- NVIDIA GPUs from sm_90 on: local memory, and tensors for TMA ---- */

/* The largest -DARENA of a family in a directory nvidia/, which is local memory of a work-group:
 * 227 KiB, less the driver's 1 KiB. */
enum { MOERT_ARENA_BYTES = 231424 };

/*
 * A tensor [groups, rows, columns] of 16-bit or 8-bit elements with `stride` elements from row to
 * row. TMA loads boxes of box_rows rows of one group by box_bytes bytes, swizzled, with zeros past
 * the tensor's end. The address and the strides in bytes must be multiples of 16.
 *
 * With run > 0, blocks of `run` gate rows and `run` up rows alternate. The tensor is then
 * [groups, rows / (2 run), 2, run, columns], and a box holds only gates or only ups.
 */
typedef struct moert_tensor_layout {
    size_t groups, rows, columns, stride;
    size_t first;       /* elements of the buffer before the tensor */
    size_t run;         /* rows of a block of gates or ups; 0: gates and ups do not alternate */
    uint32_t box_rows;  /* up to 256; with several runs a multiple of `run` */
    uint32_t box_bytes; /* bytes of a box's row, and the swizzle: 32, 64 or 128 (also 0) */
    bool f16;           /* elements are f16, not bf16 */
    bool bytes;         /* elements are bytes */
} moert_tensor_layout;
typedef struct moert_tensor_map {
    _Alignas(64) unsigned char bytes[128];
} moert_tensor_map;
/* MOERT_OK if the device supports tensor maps; the message of ERROR_UNSUPPORTED says why it does
 * not. */
moert_status moert_tensor_map_ready(const moert_device *device);
/* Encodes a map. The first map of a buffer blocks until the buffer's address is known. Errors:
 * ERROR_UNSUPPORTED, ERROR_DEVICE. */
moert_status moert_tensor_map_make(moert_buffer *buffer, const moert_tensor_layout *tensor,
                                   moert_tensor_map *map);

/* ---- memory that devices of other processes reach: NVIDIA GPUs ---- */

/* moert_export_ready: MOERT_OK if the device can export its memory to other processes.
 * moert_export_reaches: MOERT_OK if the device can also access the GPU at `pci`. The message of
 * ERROR_UNSUPPORTED gives the reason. */
moert_status moert_export_ready(const moert_device *device);
moert_status moert_export_reaches(const moert_device *device, const char *pci);

/* Divides memory for a buffer of `bytes` into equal pieces that the driver accepts and places next
 * to each other. */
moert_status moert_export_cut(const moert_device *device, size_t bytes, size_t *count,
                              size_t *piece_bytes);

/*
 * Allocates `count` pieces of memory on the device, not cleared, and opens a file for each. The
 * caller closes files[count]. destroy releases this process's handles; buffers imported from the
 * files stay valid. Errors: ERROR_UNSUPPORTED, ERROR_MEMORY, ERROR_DEVICE.
 */
typedef struct moert_export moert_export;
moert_status moert_export_create(moert_device *device, size_t count, size_t piece_bytes, int *files,
                                 moert_export **export);
void moert_export_destroy(moert_export *export); /* NULL is legal. */

/*
 * Imports pieces that any process exported as one buffer, which kernels see as one range of
 * addresses. The files stay open; the caller closes them. Errors: ERROR_UNSUPPORTED (the driver did
 * not place the pieces next to each other), ERROR_MEMORY, ERROR_DEVICE.
 */
moert_status moert_buffer_import(moert_device *device, const int *files, size_t count,
                                 size_t piece_bytes, moert_buffer **buffer);

/* *address = the address of a buffer as kernels on its device see it. The first call for a buffer
 * blocks. */
moert_status moert_buffer_address(moert_buffer *buffer, uint64_t *address);

/* ---- recorded launches ---- */

/*
 * Between start and stop, launches on the device go into the recording instead of the queue, and
 * nothing else may be enqueued. play enqueues the recorded launches, any number of times. The
 * buffers of these launches must outlive the recording. destroy waits for the device; NULL is
 * legal. Errors: ERROR_UNSUPPORTED (the device has no cl_khr_command_buffer), ERROR_DEVICE,
 * ERROR_MEMORY.
 */
typedef struct moert_recording moert_recording;
moert_status moert_recording_start(moert_device *device, moert_recording **recording);
moert_status moert_recording_stop(moert_recording *recording);
moert_status moert_recording_play(moert_recording *recording);
void moert_recording_destroy(moert_recording *recording);

/* ---- files ---- */

/* *text = a kernel file, built in or from MOERT_KERNEL_DIR; the caller frees it. */
moert_status moert_kernel_source(const char *file, char **text);

/* Path of a file in the directory of the kernel cache, which the caller frees; NULL without a
 * cache. */
char *moert_cache_file(const char *name);

/* ---- copies ---- */

/* Enqueues a copy of `rows` rows of `target_row_bytes` each, at a stride of `source_row_bytes`, to
 * rows without gaps. Errors: ERROR_USAGE (outside the buffers), ERROR_UNSUPPORTED (imported memory
 * and sizes that are not multiples of 4), ERROR_DEVICE. */
moert_status moert_buffer_copy_rows(const moert_buffer *source, size_t source_row_bytes,
                                    moert_buffer *target, size_t target_row_bytes, size_t rows);

/* Destroys several buffers, any of which may be NULL: MOERT_DESTROY(one, other). */
#define MOERT_DESTROY(...)                                                                         \
    moert_buffers_destroy((moert_buffer *[]){__VA_ARGS__},                                         \
                          sizeof((moert_buffer *[]){__VA_ARGS__}) / sizeof(moert_buffer *))
void moert_buffers_destroy(moert_buffer *const *buffers, size_t count);

/* Float32 or bf16 elements of a buffer, from element `at` on. */
typedef struct moert_elements {
    moert_buffer *buffer;
    moert_dtype type; /* F32 or BF16 */
    size_t at;
} moert_elements;

/* Copy elements [first, first + count) to and from floats on the host; block. bf16 elements are
 * rounded to nearest even. Errors: those of moert_buffer_read and moert_buffer_write. */
moert_status moert_elements_read(const moert_elements *elements, size_t first, size_t count,
                                 float *values);
moert_status moert_elements_write(const moert_elements *elements, size_t first, size_t count,
                                  const float *values);

/* Whether two buffers share memory: one buffer, views of it, or wrapped host memory. */
bool moert_buffers_overlap(const moert_buffer *a, const moert_buffer *b);

/* Writes ends[groups], uint32: the ends of equal groups of `rows` rows. Errors: those of
 * moert_buffer_write, ERROR_MEMORY. */
moert_status moert_buffer_write_ends(size_t groups, size_t rows, moert_buffer *ends);

/* ---- growable scratch ---- */

/* Ensures that *buffer (NULL at first) holds at least `bytes`. A new buffer replaces a buffer that
 * is too small, whose content is lost; if there is no room for it, *buffer is NULL. */
moert_status moert_buffer_reserve(moert_device *device, size_t bytes, moert_buffer **buffer);
