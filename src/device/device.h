/*
 * One OpenCL device per rank: choice, buffers, programs with an on-disk cache, launches.
 *
 * Only src/device includes CL/cl.h (and the public header of contexts made on the caller's own
 * OpenCL objects).
 *
 * Kernels live in kernels/<family>.cl. A program is a family plus its -D options, written as one
 * text such as "attention/attention -DHEAD_DIM=64"; it is built on first use and kept. Every family
 * is preceded by kernels/lib/common.h, which says what the CPU form and the GPU form are. Launches
 * give the number of work-groups only, the kernel the size of one. Families of a directory nvidia/
 * are for NVIDIA's compiler alone, with -DARENA= for sm_90a (device/nvidia/ptx.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "moert/device.h"

typedef struct moert_device_info {
    int platform, index; /* "P:D" */
    bool is_cpu, is_gpu, is_pocl;
    unsigned compute_units;
    size_t global_bytes, largest_bytes, local_bytes;
    bool has_fp64;
    bool imports_files; /* cl_khr_external_memory_opaque_fd */
    bool has_bf16_dot;  /* vdpbf16ps (AVX-512 BF16), by inline assembly, pays */
    bool has_tiles;     /* AMX with bf16, which products use unless another form is asked for */
    bool gpu_form;      /* of its kernels: 32 work-items share a row (kernels/lib/common.h) */
    unsigned nvidia;    /* compute capability, 90 for sm_90; 0: no GPU of NVIDIA's */
    char name[128], vendor[64], platform_name[128], driver[64], version[128];
    char pci[24]; /* "0000:3b:00.0", or "" when the driver does not tell */
} moert_device_info;

/* All devices of all platforms, to be freed; ERROR_DEVICE if there is no OpenCL platform at all. */
moert_status moert_device_list(moert_device_info **list, size_t *count);

/*
 * Opens the device that `selector` names (see MOERT_DEVICE). Among several equally good GPUs the
 * one at `pci` is taken, else number `local_rank` modulo their count. Errors: ERROR_USAGE (nothing
 * matches; says what there is), ERROR_DEVICE.
 */
moert_status moert_device_open(const char *selector, const char *pci, unsigned local_rank,
                               moert_device **device);

/* A device on OpenCL objects that the caller owns and keeps alive (cl_context, cl_device_id,
 * in-order cl_command_queue). */
moert_status moert_device_adopt(void *context, void *id, void *queue, moert_device **device);

void moert_device_close(moert_device *device);

const moert_device_info *moert_device_describe(const moert_device *device);

/* Whether this process's threads may use AMX with bf16; asks for it. */
bool moert_cpu_has_tiles(void);

/* Whether the device's products of bf16 are summed in tiles (kernels/gemm/amx.h). */
bool moert_device_sums_in_tiles(const moert_device_info *info);

/* Products on the device go without AMX from now on, as where ranks' CPUs differ. */
void moert_device_forgo_tiles(moert_device *device);

/* What a work-group takes, in the form of the device's kernels. */
static inline size_t moert_by_form(const moert_device *device, size_t cpu, size_t gpu) {
    return moert_device_describe(device)->gpu_form ? gpu : cpu;
}

/* A family's program, for rows that begin and end at multiples of 4 floats (ALIGNED in
 * kernels/lib/common.h) when all sizes do, which are given or'ed: what helps GPUs alone. */
#define MOERT_PROGRAM(device, family, sizes)                                                       \
    (moert_by_form((device), 1, (sizes) % 4) == 0 ? family " -DALIGNED" : family)

/* Returns when all commands enqueued so far have ended; until then calls `meanwhile` now and then,
 * whose failure it passes on. */
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
        const void *data; /* of a struct, read by the launch */
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
/* Local memory of a work-group; checked against the device's limit (PoCL would abort the
 * process). */
static inline moert_argument moert_argument_local(size_t bytes) {
    return (moert_argument){.kind = MOERT_ARGUMENT_LOCAL, .bytes = bytes};
}

static inline moert_argument moert_argument_struct(const void *data, size_t bytes) {
    return (moert_argument){.kind = MOERT_ARGUMENT_STRUCT, .bytes = bytes, .value.data = data};
}

/* One kernel argument by its C type: buffers; int, unsigned and float as such; size_t as ulong. */
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
 * Enqueues a kernel: moert_launch(device, "gemm/glu", "glu_forward", grid, arguments, count); does
 * not block. Errors: ERROR_DEVICE (build log in the message), ERROR_UNSUPPORTED (too much local
 * memory), ERROR_INTERNAL (arguments).
 */
moert_status moert_launch(moert_device *device, const char *program, const char *kernel,
                          moert_grid grid, const moert_argument *arguments, size_t count);

/* The numbers of a launch, as a struct of kernels/args: MOERT_ARGS(moert_rope_args, .heads = 8, ...). */
#define MOERT_ARGS(type, ...) moert_argument_struct(&(const type){__VA_ARGS__}, sizeof(type))

/* The same of one that is there. */
#define MOERT_STRUCT(x) moert_argument_struct(&(x), sizeof(x))

/* MOERT_RUN(device, "gemm/glu", "glu_forward", ((moert_grid){n, 1, 1}), MOERT_ARG(x),
 * MOERT_ARG(rows)) */
#define MOERT_RUN(device, program, kernel, grid, ...)                                              \
    moert_launch((device), (program), (kernel), grid, (const moert_argument[]){__VA_ARGS__},       \
                 sizeof((const moert_argument[]){__VA_ARGS__}) / sizeof(moert_argument))

/* Lets what is enqueued start, which a device need not do before its host waits. ERROR_DEVICE. */
moert_status moert_device_flush(moert_device *device);

/*
 * A second queue, in order too, beside the first: for kernels that wait for other devices or move
 * rows between them. Nothing orders the two but marks (device/staging.h). From a turn aside to the
 * turn back all commands go there; where there is none (a CPU without MOERT_SYNC=device, the caller's own queue, a
 * recording, a profile that nobody observes) to the first. moert_device_finish waits for both.
 */
bool moert_device_has_aside(const moert_device *device);
moert_status moert_device_turn(moert_device *device, bool aside);

/*
 * Kernels that would keep every compute unit busy until they end leave so many to others from now
 * on. What they then take, units, is not lost on those: work that is dealt out on the device, by
 * counts[2], two uint32 that begin at 0, is enqueued by `run` for the units not spared, and once
 * more for the others, to follow in the queue in use, by moert_device_join_in. It must be all done
 * when the first of the two is. Without units to spare `run` gets all of them, and NULL for counts.
 */
typedef moert_status (*moert_work)(const void *work, unsigned units, moert_buffer *counts);
void moert_device_spare(moert_device *device, unsigned units);
unsigned moert_device_units(const moert_device *device);
/* work[bytes] is copied. Errors: those of `run`, ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_device_share(moert_device *device, moert_work run, const void *work,
                                size_t bytes);
/* For all that has been shared since moert_device_spare. */
moert_status moert_device_join_in(moert_device *device);

/* ---- NVIDIA GPUs from sm_90 on: local memory, and tensors for TMA ---- */

/* The most local memory of a work-group that a family of a directory nvidia/ may ask for by
 * -DARENA: 227 KiB less the driver's one. */
enum { MOERT_ARENA_BYTES = 231424 };

/*
 * A tensor [groups, rows, columns] of 16-bit numbers, or bytes, whose rows lie `stride` numbers
 * apart, loaded in boxes of 128 bytes (swizzled) by box_rows rows of one group; zeros past its end.
 * The address and the strides in bytes must be multiples of 16.
 *
 * With a run its rows are `run` gates, then as many ups, and so on: a tensor
 * [groups, rows / (2 run), 2, run, columns], whose boxes hold gates or ups alone.
 */
typedef struct moert_tensor_layout {
    size_t groups, rows, columns, stride;
    size_t first;       /* numbers of the buffer before the tensor */
    size_t run;         /* 0: rows are as they lie */
    uint32_t box_rows;  /* up to 256; of several runs a multiple of one */
    uint32_t box_bytes; /* of a row: 32, 64 or 128 (0), by which boxes are swizzled */
    bool f16;           /* not bf16 */
    bool bytes;         /* neither */
} moert_tensor_layout;
typedef struct moert_tensor_map {
    _Alignas(64) unsigned char bytes[128];
} moert_tensor_map;
/* Whether maps can be made: ERROR_UNSUPPORTED says why not. */
moert_status moert_tensor_map_ready(const moert_device *device);
/* Blocks once per buffer, for its address. Errors: ERROR_UNSUPPORTED, ERROR_DEVICE. */
moert_status moert_tensor_map_make(moert_buffer *buffer, const moert_tensor_layout *tensor,
                                   moert_tensor_map *map);

/* ---- memory that devices of other processes reach: NVIDIA GPUs ---- */

/* Whether the device's memory can be given to other processes, and whether it reaches the GPU at
 * `pci`. ERROR_UNSUPPORTED says why not. */
moert_status moert_export_ready(const moert_device *device);
moert_status moert_export_reaches(const moert_device *device, const char *pci);

/* Cuts memory for a buffer of `bytes` into equal pieces that the driver takes and lays side by
 * side. */
moert_status moert_export_cut(const moert_device *device, size_t bytes, size_t *count,
                              size_t *piece_bytes);

/*
 * Pieces of memory on the device, not cleared, and a file to import each from: files[count], the
 * caller's to close. Destroying gives up this process's hold on them; buffers imported from them
 * stay. Errors: ERROR_UNSUPPORTED, ERROR_MEMORY, ERROR_DEVICE.
 */
typedef struct moert_export moert_export;
moert_status moert_export_create(moert_device *device, size_t count, size_t piece_bytes, int *files,
                                 moert_export **export);
void moert_export_destroy(moert_export *export); /* NULL is legal. */

/*
 * A buffer over the pieces of any process, in kernels one range of addresses. The files stay the
 * caller's. Errors: ERROR_UNSUPPORTED (the pieces do not lie side by side), ERROR_DEVICE.
 */
moert_status moert_buffer_import(moert_device *device, const int *files, size_t count,
                                 size_t piece_bytes, moert_buffer **buffer);

/* The address of a buffer in kernels on its device; blocks for the first time. */
moert_status moert_buffer_address(moert_buffer *buffer, uint64_t *address);

/* ---- recorded launches ---- */

/*
 * From start to stop, launches on the device go into the recording instead of the queue; nothing
 * else may be enqueued in between. play enqueues them all, any number of times; their buffers must
 * stay. destroy waits for what was played; NULL is legal. Errors: ERROR_UNSUPPORTED (the device has
 * no cl_khr_command_buffer), ERROR_DEVICE, ERROR_MEMORY.
 */
typedef struct moert_recording moert_recording;
moert_status moert_recording_start(moert_device *device, moert_recording **recording);
moert_status moert_recording_stop(moert_recording *recording);
moert_status moert_recording_play(moert_recording *recording);
void moert_recording_destroy(moert_recording *recording);
bool moert_recording_is_open(const moert_device *device); /* between start and stop */

/* ---- files ---- */

/* Source of a kernel file, built in or from MOERT_KERNEL_DIR; *text is to be freed. */
moert_status moert_kernel_source(const char *file, char **text);

/* Path of a file in the folder of the kernel cache, to be freed; NULL if there is no such
 * folder. */
char *moert_cache_file(const char *name);

/* ---- copies ---- */

/* Enqueues a copy of `rows` rows of `target_row_bytes` each, which lie `source_row_bytes` apart, to
 * rows without gaps. Errors: ERROR_USAGE (outside the buffers), ERROR_DEVICE. */
moert_status moert_buffer_copy_rows(const moert_buffer *source, size_t source_row_bytes,
                                    moert_buffer *target, size_t target_row_bytes, size_t rows);

/* Destroys several buffers, of which any may be NULL: MOERT_DESTROY(one, other). */
#define MOERT_DESTROY(...)                                                                         \
    moert_buffers_destroy((moert_buffer *[]){__VA_ARGS__},                                         \
                          sizeof((moert_buffer *[]){__VA_ARGS__}) / sizeof(moert_buffer *))
void moert_buffers_destroy(moert_buffer *const *buffers, size_t count);

/* ends[groups] = the ends of equal groups of `rows`, as uint32. Errors: those of moert_buffer_write,
 * ERROR_MEMORY. */
moert_status moert_buffer_write_ends(size_t groups, size_t rows, moert_buffer *ends);

/* ---- growable scratch ---- */

/* Makes *buffer hold at least `bytes`, replacing it (its content is lost) when too small; starts
 * from NULL. */
moert_status moert_buffer_reserve(moert_device *device, size_t bytes, moert_buffer **buffer);
