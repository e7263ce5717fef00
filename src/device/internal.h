/* What the files of src/device share. */
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include "base/phase.h"
#include "device/device.h"

typedef struct moert_kernel {
    char *name;
    cl_kernel handle;
    cl_uint arguments;
    size_t items[3]; /* of a work-group: its reqd_work_group_size */
    char *key;       /* in the cache, until the first launch; NULL when that compiles nothing */
    struct moert_kernel *next;
} moert_kernel;

typedef struct moert_program {
    char *spec; /* "family -Doption ..." */
    char *key;  /* in the cache; NULL as above */
    cl_program handle;
    moert_kernel *kernels;
    struct moert_program *next;
} moert_program;

/* Work that is shared, and a mark behind what it needs. */
typedef struct moert_shared_work {
    moert_work run;
    void *work;
    moert_phase phase;
    struct moert_event *ready;
    moert_buffer *counts; /* kept for the next one */
} moert_shared_work;
enum { MOERT_MOST_SHARES = 4, MOERT_COUNTS_BYTES = 2 * sizeof(cl_uint) };

struct moert_device {
    cl_context context;
    cl_device_id id;
    cl_command_queue queue; /* in use */
    cl_command_queue other; /* of the two the one that is not, or NULL */
    bool aside;             /* in use is the second */
    bool both_used;         /* `other` may have commands that have not ended */
    unsigned spared_units;
    size_t shares;
    moert_shared_work share[MOERT_MOST_SHARES]; /* [shares] */
    moert_device_info info;
    moert_program *programs;
    moert_recording *recording;      /* takes the launches, or NULL */
    struct moert_profiler *profiler; /* counts commands, or NULL */
    bool serial;                     /* commands must not overlap: a profile adds up their times */
    bool adopted;                    /* the queue is the caller's */
};

/* At least so many bytes follow a buffer's last, so that a kernel may read whole vectors there;
 * also what its size is a multiple of. */
enum { MOERT_BUFFER_TAIL_BYTES = 64 };

struct moert_buffer {
    moert_device *device;
    cl_mem memory;
    size_t bytes;
    uint64_t address; /* on the device, or 0 if nobody has asked */
    /* Imported: lie side by side, `memory` is the first. Kernels see one buffer, commands do
     * not. */
    cl_mem *pieces; /* [piece_count], or NULL */
    size_t piece_count, piece_bytes;
};

/* Both queues. */
cl_int moert_queue_finish(moert_device *device);
/* The one that is not in use, whose commands have ended. */
void moert_queue_release_other(moert_device *device);

void moert_shares_release(moert_device *device);

/* Symbolic name of an OpenCL error code. */
const char *moert_cl_error_name(cl_int code);
/* Name of a device for messages; NULL is one that is not open yet. */
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
    MOERT_FAIL(ERROR_DEVICE, "%.60s: %s (device %s)", (call), moert_cl_error_name(code),           \
               moert_cl_device_name(device))

/* A kernel handle of the recording's own, since a driver may look at the arguments at replay only;
 * and the launch of work-groups with the arguments that it then has. */
moert_status moert_recording_kernel(moert_recording *recording, const moert_kernel *kernel,
                                    cl_kernel *handle);
moert_status moert_recording_add(moert_recording *recording, cl_kernel handle,
                                 const moert_kernel *kernel, const size_t groups[3]);

/* Where a command's event goes, to be enqueued next; NULL when nothing is counted. */
cl_event *moert_profile_slot(moert_device *device, const char *program);
static inline cl_event *moert_profile_event(moert_device *device, const char *program) {
    return device->profiler != NULL ? moert_profile_slot(device, program) : NULL;
}
void moert_profile_release(moert_device *device);
/* Whether times of commands are being summed, to be compared with the clock on the wall. */

/* Fills `info` from the driver. */
moert_status moert_device_query(cl_platform_id platform, int platform_index, cl_device_id id,
                                int index, moert_device_info *info);

/* The whole source of the program "family -Doption ...", to be freed: common.h, then the family
 * with what it includes. */
moert_status moert_program_source(const char *spec, char **source);
/* The kernel of a program, built or loaded on first use. */
moert_status moert_program_kernel(moert_device *device, const char *spec, const char *name,
                                  moert_kernel **kernel);
void moert_program_release_all(moert_device *device);

/* The on-disk cache: one file per key, written to a temporary name, renamed; a lock lets one
 * process of a node build. */
typedef struct moert_cache_entry {
    char *path; /* NULL when caching is off */
    int lock;   /* file descriptor of the held lock, or -1 */
} moert_cache_entry;
/* Opens and locks the entry of `key`; *data (to be freed) is NULL when it must be built. Never
 * fails: it only logs. */
void moert_cache_open(const char *key, moert_cache_entry *entry, unsigned char **data,
                      size_t *bytes);
/* Stores `data` (NULL stores nothing) and unlocks. */
void moert_cache_close(moert_cache_entry *entry, const unsigned char *data, size_t bytes);
/* The same for what PoCL stores: until a process has ended with `done`, one at a time goes between
 * the two, and has the lock. */
void moert_cache_begin(const char *key, moert_cache_entry *entry);
void moert_cache_end(moert_cache_entry *entry, bool done);
/* Tells PoCL, which looks at its first call, to cache in the same folder or not at all; what the
 * user has set stays. */
void moert_cache_lend_to_pocl(void);
