/* Times commands by their events, and adds up spans by operation. */
#include "device/profile/profile.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/internal.h"
#include "device/queue.h"

enum { RING = 1024, CLOCK_TRIES = 5 }; /* RING: the most unread events */

/* A command whose event has not been read. Without an event, the command was not enqueued. */
typedef struct pending {
    cl_event event;
    moert_operation operation;
    moert_phase phase;
} pending;

struct profiler {
    moert_device *device;
    moert_profile sums, last; /* sums: over all ended spans; last: over the present span or, if no
                                 span is in progress, over the last span */
    bool counting;
    cl_int failure; /* first failure of reading events */
    uint64_t began_ns;
    uint64_t arrived_ns; /* the latest end of a time in which messages with rows were in flight */
    moert_profile_observer *observer;
    void *context;
    int64_t ahead_ns; /* the host's clock minus the device's, if there is an observer */
    size_t used;
    pending ring[RING];
};

/* Returns NULL if profiling is not enabled. */
static struct profiler *profiler_of(const moert_device *device) {
    return device->hook.context;
}

/* ---- events ---- */

static cl_int read_event(cl_event event, cl_ulong *start, cl_ulong *end) {
    *start = *end = 0;
    cl_int code =
        clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof *start, start, NULL);
    if (code == CL_SUCCESS)
        code = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof *end, end, NULL);
    *end = *end > *start ? *end : *start;
    return code;
}

/* ---- spans ---- */

/* Adds a span to the sums, and passes it to the observer. Time in which messages of both a dispatch
 * and a combine are in flight counts once. */
static void record(struct profiler *profiler, moert_profile_span span) {
    if (span.kind == MOERT_SPAN_MESSAGE) {
        const uint64_t from =
            span.start_ns > profiler->arrived_ns ? span.start_ns : profiler->arrived_ns;
        if (span.end_ns > from) {
            profiler->last.message_ns += (double)(span.end_ns - from);
            profiler->arrived_ns = span.end_ns;
        }
    } else {
        profiler->last.row[span.operation].calls++;
        profiler->last.row[span.operation].ns += (double)(span.end_ns - span.start_ns);
    }
    if (profiler->observer != NULL)
        profiler->observer(profiler->context, &span);
}

/* Reads all events and empties the ring. All commands must be done. */
static void read_ring(struct profiler *profiler) {
    for (size_t i = 0; i < profiler->used; i++) {
        const pending *command = &profiler->ring[i];
        cl_ulong start, end;
        if (command->event == NULL)
            continue;
        const cl_int code = read_event(command->event, &start, &end);
        if (code != CL_SUCCESS && profiler->failure == CL_SUCCESS)
            profiler->failure = code;
        clReleaseEvent(command->event);
        record(profiler, (moert_profile_span){MOERT_SPAN_DEVICE, command->operation, command->phase,
                                              start + (uint64_t)profiler->ahead_ns,
                                              end + (uint64_t)profiler->ahead_ns});
    }
    profiler->used = 0;
}

static cl_event *new_event(void *context, const char *program) {
    struct profiler *profiler = context;
    if (!profiler->counting)
        return NULL;
    if (profiler->used == RING) {
        moert_queue_finish(profiler->device);
        read_ring(profiler);
    }
    pending *command = &profiler->ring[profiler->used++];
    const moert_phase phase = moert_phase_get();
    *command = (pending){NULL, moert_operation_of(program, phase), phase};
    return &command->event;
}

static void add_wait(void *profiler, moert_phase phase, uint64_t ns) {
    const bool exchange = moert_operation_of("exchange/exchange", phase) != MOERT_OPERATION_OTHER;
    const uint64_t end = moert_clock_ns();
    record(profiler,
           (moert_profile_span){MOERT_SPAN_WAIT,
                                exchange ? MOERT_OPERATION_EXCHANGE_WAIT : MOERT_OPERATION_WAIT,
                                phase, end - ns, end});
}

/* Returns NULL outside moert_profile_begin and moert_profile_end. */
static struct profiler *counting(const moert_device *device) {
    struct profiler *profiler = profiler_of(device);
    return profiler != NULL && profiler->counting ? profiler : NULL;
}

void moert_profile_message(moert_device *device, moert_operation operation, uint64_t start_ns,
                           uint64_t end_ns) {
    struct profiler *profiler = counting(device);
    if (profiler != NULL)
        record(profiler, (moert_profile_span){MOERT_SPAN_MESSAGE, operation, moert_phase_get(),
                                              start_ns, end_ns});
}

/* ---- sums ---- */

void moert_profile_add(moert_profile *to, const moert_profile *from, double factor) {
    double *sum = (double *)to;
    for (size_t i = 0; i < sizeof *to / sizeof *sum; i++)
        sum[i] += factor * ((const double *)from)[i];
}

void moert_profile_host(moert_device *device, moert_operation operation, uint64_t ns) {
    struct profiler *profiler = counting(device);
    if (profiler == NULL)
        return;
    profiler->last.row[operation].calls++;
    profiler->last.row[operation].ns += (double)ns;
}

static void add_work(const moert_device *device, const char *program, double flops,
                     double bf16_flops, double bytes) {
    struct profiler *profiler = counting(device);
    if (profiler == NULL)
        return;
    moert_profile_row *row = &profiler->last.row[moert_operation_of(program, moert_phase_get())];
    row->flops += flops;
    row->bf16_flops += bf16_flops;
    row->bytes += bytes;
}

void moert_profile_work(moert_device *device, const char *program, double flops, double bytes) {
    add_work(device, program, flops, 0.0, bytes);
}

void moert_profile_bf16_work(moert_device *device, const char *program, double flops,
                             double bytes) {
    add_work(device, program, flops, flops, bytes);
}

static void add_bytes(void *context, const char *program, double bytes) {
    add_work(((struct profiler *)context)->device, program, 0.0, 0.0, bytes);
}

const moert_profile *moert_profile_get(const moert_device *device) {
    return profiler_of(device) != NULL ? &profiler_of(device)->sums : NULL;
}

const moert_profile *moert_profile_last(const moert_device *device) {
    return profiler_of(device) != NULL ? &profiler_of(device)->last : NULL;
}

/* Makes the times add up to the wall time: shortens waits if the sum is longer, and assigns
 * remaining time to HOST. */
static void fit(moert_profile *profile) {
    moert_profile_row *row = profile->row;
    const double waits = row[MOERT_OPERATION_WAIT].ns + row[MOERT_OPERATION_EXCHANGE_WAIT].ns;
    double room = profile->wall_ns + waits;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++)
        room -= row[i].ns;
    room = fmax(room, 0.0);
    if (waits > room) {
        row[MOERT_OPERATION_EXCHANGE_WAIT].ns *= room / waits;
        row[MOERT_OPERATION_WAIT].ns = room - row[MOERT_OPERATION_EXCHANGE_WAIT].ns;
    }
    row[MOERT_OPERATION_HOST].ns = fmax(room - waits, 0.0);
}

/* ---- begin and end ---- */

/* Replaces the queue by one with profiling. Fails if the queue is the caller's and has no
 * profiling. */
static moert_status profiling_queue(moert_device *device) {
    cl_command_queue_properties current = 0;
    MOERT_CL(device, clGetCommandQueueInfo(device->queue, CL_QUEUE_PROPERTIES, sizeof current,
                                           &current, NULL));
    if ((current & CL_QUEUE_PROFILING_ENABLE) != 0)
        return MOERT_OK;
    if (device->adopted)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "a profile needs a queue with CL_QUEUE_PROFILING_ENABLE");
    MOERT_CL(device, moert_queue_finish(device));
    moert_queue_release_other(device);
    return moert_queue_open(device, true);
}

/* Ends the span in progress, if any, so that no event outlives the queue. */
static void release(void *context) {
    struct profiler *profiler = context;
    if (profiler->counting)
        moert_profile_end(profiler->device);
    profiler->device->hook = (moert_command_hook){NULL};
    free(profiler);
}

moert_status moert_profile_enable(moert_device *device) {
    struct profiler *made;
    if (profiler_of(device) != NULL)
        return MOERT_OK;
    MOERT_TRY(profiling_queue(device));
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    device->hook = (moert_command_hook){
        .context = made, .new_event = new_event, .add_bytes = add_bytes, .release = release};
    return MOERT_OK;
}

static moert_status check_span(const moert_device *device, bool counting) {
    const struct profiler *profiler = profiler_of(device);
    if (profiler == NULL)
        return MOERT_FAIL(ERROR_USAGE, "profiling is not enabled on the device");
    if (profiler->counting != counting)
        return MOERT_FAIL(ERROR_USAGE, counting
                                           ? "a profile was ended, but none had begun"
                                           : "a profile was begun, but the last one had not ended");
    return MOERT_OK;
}

/* Forbids commands to overlap while a profile without an observer counts, since such a profile adds
 * up the commands' times. */
static void set_counting(struct profiler *profiler, bool counting) {
    profiler->counting = counting;
    profiler->device->hook.serial = counting && profiler->observer == NULL;
}

void moert_profile_observe(moert_device *device, moert_profile_observer *observer, void *context) {
    struct profiler *profiler = profiler_of(device);
    profiler->observer = observer;
    profiler->context = context;
    set_counting(profiler, profiler->counting);
}

/* Measures how far the host's clock is ahead of the device's. An empty command ends between two
 * readings of the host's clock; the measurement whose readings are closest counts. The queue must
 * be empty. */
static moert_status compare_clocks(moert_device *device) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < CLOCK_TRIES; i++) {
        cl_event event;
        cl_ulong start, end;
        const uint64_t before = moert_clock_ns();
        MOERT_CL(device, clEnqueueMarkerWithWaitList(device->queue, 0, NULL, &event));
        cl_int code = clWaitForEvents(1, &event);
        const uint64_t after = moert_clock_ns();
        if (code == CL_SUCCESS)
            code = read_event(event, &start, &end);
        clReleaseEvent(event);
        MOERT_CL(device, code);
        if (after - before < least) {
            least = after - before;
            profiler_of(device)->ahead_ns = (int64_t)(before + least / 2 - end);
        }
    }
    return MOERT_OK;
}

moert_status moert_profile_begin(moert_device *device) {
    struct profiler *profiler = profiler_of(device);
    MOERT_TRY(check_span(device, false));
    MOERT_TRY(moert_device_finish(device));
    if (profiler->observer != NULL)
        MOERT_TRY(compare_clocks(device));
    set_counting(profiler, true);
    profiler->last = (moert_profile){0};
    profiler->began_ns = moert_clock_ns();
    moert_phase_listen(add_wait, profiler);
    return MOERT_OK;
}

moert_status moert_profile_end(moert_device *device) {
    struct profiler *profiler = profiler_of(device);
    MOERT_TRY(check_span(device, true));
    moert_phase_listen(NULL, NULL);
    set_counting(profiler, false);
    const cl_int code = moert_queue_finish(device);
    profiler->last.wall_ns = (double)(moert_clock_ns() - profiler->began_ns);
    read_ring(profiler);
    fit(&profiler->last);
    moert_profile_add(&profiler->sums, &profiler->last, 1.0);
    MOERT_CL(device, code);
    if (profiler->failure != CL_SUCCESS)
        return MOERT_CL_FAIL(device, profiler->failure, "clGetEventProfilingInfo");
    return MOERT_OK;
}
