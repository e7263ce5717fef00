/* Declarations that the files of src/device share. */
#pragma once

#define CL_TARGET_OPENCL_VERSION          300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS /* clCreateCommandQueue */
#include <CL/cl.h>

#include "base/phase.h"
#include "device/device.h"

typedef struct moert_kernel {
    char *name;
    cl_kernel handle;
    cl_uint arguments;
    size_t items[3];  /* of a work-group: its reqd_work_group_size */
    char *key;        /* cache key of the first launch; NULL if that launch compiles nothing */
    bool launched[2]; /* with a small grid, with a large grid: PoCL compiles a kernel for each */
    struct moert_kernel *next;
} moert_kernel;

typedef struct moert_program {
    char *spec; /* "family -Doption ..." */
    char *key;  /* cache key; NULL if memory ran out */
    cl_program handle;
    moert_kernel *kernels;
    struct moert_program *next;
} moert_program;

/* A call of moert_device_share. */
typedef struct moert_shared_work {
    moert_work run;
    void *work;
    moert_phase phase;
    struct moert_event *ready; /* completes when the work's inputs are complete and the counts are
                                  0 */
    moert_buffer *counts;      /* kept for the next work */
} moert_shared_work;
enum { MOERT_MOST_SHARED_WORKS = 4, MOERT_COUNTS_BYTES = 2 * sizeof(cl_uint) };

struct moert_device {
    cl_context context;
    cl_device_id id;
    cl_command_queue queue; /* the queue in use */
    cl_command_queue other; /* the queue not in use; NULL until the second queue exists */
    bool second_in_use;
    bool both_used;        /* `other` may have commands that have not ended */
    bool awaits;           /* the queue may wait for an event of the program */
    unsigned spared_units; /* reserved by moert_device_reserve_units */
    size_t shared_count;
    moert_shared_work shared[MOERT_MOST_SHARED_WORKS]; /* [shared_count] */
    moert_device_info info;
    _Atomic size_t counted_bytes, peak_bytes; /* moert_device_peak_bytes */
    moert_program *programs;
    moert_recording *recording;      /* receives the launches, or NULL */
    struct moert_profiler *profiler; /* counts commands, or NULL */
    bool serial;                     /* a profile adds up times, so commands must not overlap */
    bool adopted;                    /* the queue is the caller's */
};

/* Every allocation has at least this many bytes after a buffer's end, so that kernels may read
 * whole vectors there. Allocated sizes are multiples of this number. */
enum { MOERT_BUFFER_TAIL_BYTES = 64 };

struct moert_buffer {
    moert_device *device;
    cl_mem memory;
    size_t bytes;
    size_t counted_bytes; /* of the device's memory; 0 for views and memory of others */
    uint64_t address; /* the buffer's address in kernels; 0 before the first moert_buffer_address */
    /* Memory larger than one allocation: pieces at consecutive addresses. Kernels get `memory`,
     * which starts where the buffer does, and see one range. A command reaches only one piece. */
    cl_mem *pieces; /* [piece_count], or NULL */
    size_t piece_count, piece_bytes;
    size_t piece_start; /* where the buffer starts in the first piece */
    void *host;         /* memory of the pieces that this buffer owns, or NULL */
};

/* Shortens a range to the part that one command can reach. Returns that part's memory, and makes
 * *offset_bytes relative to it. */
cl_mem moert_buffer_part(const moert_buffer *buffer, size_t *offset_bytes, size_t *bytes);

/* *queue = a new in-order queue. Calls a function of OpenCL 1.2, as drivers of that version have no
 * other; the loader never returns from its successor with Oclgrind 21.10. */
moert_status moert_queue_create(const moert_device *device, cl_command_queue_properties properties,
                                cl_command_queue *queue);
/* Waits for both queues. */
cl_int moert_queue_finish(moert_device *device);
/* Releases the queue that is not in use; its commands must have ended. */
void moert_queue_release_other(moert_device *device);

void moert_shared_work_release(moert_device *device);

/* Symbolic name of an OpenCL error code. */
const char *moert_cl_error_name(cl_int code);
/* The status of an OpenCL error: ERROR_MEMORY if host or device memory has run out, else
 * ERROR_DEVICE. */
moert_status moert_cl_status(cl_int code);
/* Name of a device for messages; "not open" for NULL. */
const char *moert_cl_device_name(const moert_device *device);

/* MOERT_CL(device, clCall(...)): passes an OpenCL failure up with the call, the error's name and
 * the device. */
#define MOERT_CL(device, call)                                                                     \
    do {                                                                                           \
        cl_int cl_code_ = (call);                                                                  \
        if (cl_code_ != CL_SUCCESS)                                                                \
            return MOERT_CL_FAIL(device, cl_code_, #call);                                         \
    } while (0)
#define MOERT_CL_FAIL(device, code, call)                                                          \
    MOERT_CL_RECORD(code, "%.60s: %s (device %s)", (call), moert_cl_error_name(code),              \
                    moert_cl_device_name(device))
/* Like MOERT_FAIL, with the status of an OpenCL error. */
#define MOERT_CL_RECORD(code, ...)                                                                 \
    moert_error_record(moert_cl_status(code), __func__, __LINE__, __VA_ARGS__)

/* *handle = a new kernel handle that the recording owns. A driver may read arguments as late as at
 * replay, so recorded launches must not share a handle. moert_recording_add records a launch with
 * the handle's current arguments. */
moert_status moert_recording_kernel(moert_recording *recording, const moert_kernel *kernel,
                                    cl_kernel *handle);
moert_status moert_recording_add(moert_recording *recording, cl_kernel handle,
                                 const moert_kernel *kernel, const size_t groups[3]);

/* Where the next command's event is to be stored; NULL if no profile is counting. */
cl_event *moert_profile_new_event(moert_device *device, const char *program);
static inline cl_event *moert_profile_event(moert_device *device, const char *program) {
    return device->profiler != NULL ? moert_profile_new_event(device, program) : NULL;
}
void moert_profile_release(moert_device *device);

/* Fills `info` from the driver. */
moert_status moert_device_query(cl_platform_id platform, int platform_index, cl_device_id id,
                                int index, moert_device_info *info);

/* *source = the source of the program "family -Doption ...": lib/common.h, then the family with its
 * includes. The caller frees it. */
moert_status moert_program_source(const char *spec, char **source);
/* Finds a kernel; builds or loads its program on first use. */
moert_status moert_program_kernel(moert_device *device, const char *spec, const char *name,
                                  moert_kernel **kernel);
/* *key = the cache key of a program on the device, which the caller frees; NULL if memory runs
 * out. */
moert_status moert_program_key(const moert_device *device, const char *spec, char **key);
/* Whether programs use the faster functions of NVIDIA's GPUs: where tensor cores are used, whose
 * sums differ from those of CPUs anyway. */
bool moert_program_is_fast(const moert_device *device);
void moert_program_release_all(moert_device *device);

/* The on-disk cache: one file per key, written under a temporary name, then renamed. A lock lets
 * one process of a host build an entry. */
typedef struct moert_cache_entry {
    char *path; /* NULL when caching is off */
    int lock;   /* file descriptor of the held lock, or -1 */
} moert_cache_entry;
/* Reads the entry of `key` into *data, which the caller frees. If there is none, locks the entry
 * and sets *data = NULL; the caller then builds it. Does not fail, only logs. */
void moert_cache_open(const char *key, moert_cache_entry *entry, unsigned char **data,
                      size_t *bytes);
/* Stores `data` (NULL stores nothing) and unlocks. */
void moert_cache_close(moert_cache_entry *entry, const unsigned char *data, size_t bytes);
/* The longest time that moert_cache_open() waits for an entry that another process compiles. */
extern uint64_t moert_cache_patience_ns;
