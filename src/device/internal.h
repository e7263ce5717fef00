/* The structs of a device and a buffer. Only the files of src/device include this header. */
#pragma once

#include "base/memory.h"
#include "base/phase.h"
#include "device/device.h"
#include "device/opencl.h"
#include "device/share.h"

/* A call of moert_device_share. */
typedef struct moert_shared_work {
    moert_work run;
    void *work;
    moert_phase phase;
    struct moert_event *ready; /* completes when the work's inputs are complete and the counts are
                                  0 */
    moert_buffer *counts;      /* reused for the next work */
} moert_shared_work;

/* Callbacks for the commands of a device, which device/profile sets. */
typedef struct moert_command_hook {
    void *context;
    /* Returns where to store the event of the next command, which belongs to `program`; or NULL. */
    cl_event *(*new_event)(void *context, const char *program);
    /* Reports that the next command, which belongs to `program`, moves `bytes` of device memory. */
    void (*add_bytes)(void *context, const char *program, double bytes);
    void (*release)(void *context); /* called when the device is closed */
    bool serial;                    /* commands must not overlap */
} moert_command_hook;

struct moert_device {
    cl_context context;
    cl_device_id id;
    cl_command_queue queue; /* the queue in use */
    cl_command_queue other; /* the queue not in use; NULL until the second queue exists */
    bool second_in_use;
    bool both_used;        /* `other` may have commands that have not ended */
    bool awaits;           /* a command in the queue may wait for an event of the caller */
    unsigned spared_units; /* reserved by moert_device_reserve_units */
    size_t shared_count;
    moert_shared_work shared[MOERT_MOST_SHARED_WORKS]; /* [shared_count] */
    moert_device_info info;
    _Atomic size_t counted_bytes, peak_bytes; /* moert_device_peak_bytes */
    struct moert_program *programs;
    struct moert_recording *recording; /* the recording that receives the launches; NULL: none */
    moert_command_hook hook;           /* zeros: no hook */
    bool adopted;                      /* the queue is the caller's */
};

static inline cl_event *moert_command_event(const moert_device *device, const char *program) {
    const moert_command_hook *hook = &device->hook;
    return hook->new_event != NULL ? hook->new_event(hook->context, program) : NULL;
}

static inline void moert_command_bytes(const moert_device *device, const char *program,
                                       size_t bytes) {
    if (device->hook.add_bytes != NULL)
        device->hook.add_bytes(device->hook.context, program, (double)bytes);
}

/* Every allocation has at least this many bytes after a buffer's end, so that kernels may read
 * whole vectors there. Allocated sizes are multiples of this number. */
enum { MOERT_BUFFER_TAIL_BYTES = 64 };

struct moert_buffer {
    moert_device *device;
    cl_mem memory;
    size_t bytes;
    size_t counted_bytes; /* bytes passed to moert_device_count; 0 for views and for memory that
                             moert did not allocate */
    uint64_t address; /* the buffer's address in kernels; 0 before the first moert_buffer_address */
    /* Memory larger than one allocation: pieces at consecutive addresses. Kernels get `memory`,
     * which starts where the buffer does, and see one range. One OpenCL command, such as a copy,
     * reaches only one piece. */
    cl_mem *pieces; /* [piece_count], or NULL */
    size_t piece_count, piece_bytes;
    size_t piece_start; /* where the buffer starts in the first piece */
    void *host;         /* memory of the pieces that this buffer owns, or NULL */
};

/* Shortens a range to the part that one command can reach. Returns that part's memory, and makes
 * *offset_bytes relative to this memory. */
static inline cl_mem moert_buffer_part(const moert_buffer *buffer, size_t *offset_bytes,
                                       size_t *bytes) {
    if (buffer->pieces == NULL)
        return buffer->memory;
    const size_t start = buffer->piece_start + *offset_bytes;
    *offset_bytes = start % buffer->piece_bytes;
    *bytes = moert_min(*bytes, buffer->piece_bytes - *offset_bytes);
    return buffer->pieces[start / buffer->piece_bytes];
}
