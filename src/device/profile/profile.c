/* Assigns commands to operations, and times the commands by events. */
#include "device/profile/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/internal.h"

enum { RING = 1024, CLOCK_TRIES = 5 }; /* RING: unread events at most */

/* A command whose event has not been read. Without an event, the command was not enqueued. */
typedef struct pending {
    cl_event event;
    moert_operation operation;
    moert_phase phase;
} pending;

struct moert_profiler {
    moert_profile sums;
    bool counting;
    cl_int failure; /* first failure of reading events */
    uint64_t began_ns;
    uint64_t arrived_ns; /* the latest end of messages with rows */
    moert_profile_observer *observer;
    void *context;
    int64_t ahead_ns; /* the host's clock minus the device's, if there is an observer */
    size_t used;
    pending ring[RING];
};

/* ---- operations ---- */

static const struct {
    const char *text;
    bool gemm;
} operations[] = {
#define OPERATION_ROW(name, text, gemm) {text, gemm},
    MOERT_OPERATION_TABLE(OPERATION_ROW)
#undef OPERATION_ROW
};

const char *moert_operation_text(moert_operation operation) {
    return operations[operation].text;
}

bool moert_operation_is_gemm(moert_operation operation) {
    return operations[operation].gemm;
}

#define OF(name) MOERT_OPERATION_##name

/* Kernel directories or families whose kernels belong to one operation in all phases. */
static const struct {
    const char *start;
    moert_operation operation;
} families[] = {
    {"attention/", OF(ATTENTION)},
    {"gemm/glu", OF(GLU)},
    {"quant/", OF(QUANTIZE)},
    {"nn/norm", OF(NORM)},
    {"router/", OF(ROUTER)},
    {"exchange/plan", OF(DISPATCH)},
    {"nn/embedding", OF(EMBEDDING)},
    {"nn/loss", OF(LOSS)},
    {"nn/elementwise", OF(ELEMENTWISE)},
    {"nn/columns", OF(ELEMENTWISE)},
    {"nn/rope", OF(ELEMENTWISE)},
    {"nn/bias", OF(ELEMENTWISE)},
    {"nn/reduce", OF(SUMS)},
    {"nn/squares", OF(SUMS)},
    {"exchange/peers", OF(SUMS)},
    {"nn/optimizer", OF(OPTIMIZER)},
};

typedef struct purpose {
    moert_phase phase;
    moert_operation operation;
} purpose;

/* Operations of the GEMMs of a phase. */
static const purpose gemms[] = {
    {MOERT_PHASE_EXPERTS, OF(EXPERTS_FPROP)},
    {MOERT_PHASE_EXPERTS_BACKWARD, OF(EXPERTS_DGRAD)},
    {MOERT_PHASE_WGRAD, OF(EXPERTS_WGRAD)},
    {MOERT_PHASE_SHARED_EXPERT, OF(SHARED_EXPERT)},
    {MOERT_PHASE_ATTENTION, OF(PROJECTIONS)},
    {MOERT_PHASE_ATTENTION_BACKWARD, OF(PROJECTIONS)},
    {MOERT_PHASE_LOGITS, OF(HEAD)},
    {MOERT_PHASE_LOGITS_BACKWARD, OF(HEAD)},
    {MOERT_PHASE_EMBEDDING_BACKWARD, OF(HEAD)}, /* of a tied head */
    {MOERT_PHASE_ROUTE, OF(ROUTER_GEMM)},
    {MOERT_PHASE_ROUTER_BACKWARD, OF(ROUTER_GEMM)},
};

/* Operations of the exchange's kernels and copies in a phase. */
static const purpose moves[] = {
    {MOERT_PHASE_PLAN, OF(DISPATCH)},
    {MOERT_PHASE_DISPATCH, OF(DISPATCH)},
    {MOERT_PHASE_COMBINE, OF(COMBINE)},
};

static moert_operation purpose_of(moert_phase phase, const purpose *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (list[i].phase == phase)
            return list[i].operation;
    return OF(OTHER);
}

static moert_operation move_of(moert_phase phase) {
    return purpose_of(phase, moves, MOERT_COUNT(moves));
}

/* Whether a program's family is `start` or, if that ends in a slash, is in that directory. */
static bool is_of(const char *program, const char *start) {
    const size_t length = strlen(start);
    return strncmp(program, start, length) == 0 &&
           (start[length - 1] == '/' || program[length] == ' ' || program[length] == '\0');
}

moert_operation moert_operation_of(const char *program, moert_phase phase) {
    for (size_t i = 0; i < MOERT_COUNT(families); i++)
        if (is_of(program, families[i].start))
            return families[i].operation;
    const moert_operation move = move_of(phase);
    if (is_of(program, "gemm/"))
        return purpose_of(phase, gemms, MOERT_COUNT(gemms));
    if (is_of(program, MOERT_FAMILY_COPY))
        return move != OF(OTHER) ? move : OF(COPIES);
    return is_of(program, "exchange/exchange") ? move : OF(OTHER);
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

static void report(const struct moert_profiler *profiler, moert_profile_span span) {
    if (profiler->observer != NULL)
        profiler->observer(profiler->context, &span);
}

/* Reads all events and empties the ring. All commands must be done. */
static void read_ring(struct moert_profiler *profiler) {
    for (size_t i = 0; i < profiler->used; i++) {
        const pending *command = &profiler->ring[i];
        moert_profile_row *row = &profiler->sums.row[command->operation];
        cl_ulong start, end;
        if (command->event == NULL)
            continue;
        const cl_int code = read_event(command->event, &start, &end);
        if (code != CL_SUCCESS && profiler->failure == CL_SUCCESS)
            profiler->failure = code;
        clReleaseEvent(command->event);
        row->calls++;
        row->ns += end - start;
        report(profiler, (moert_profile_span){MOERT_SPAN_DEVICE, command->operation, command->phase,
                                              start + (uint64_t)profiler->ahead_ns,
                                              end + (uint64_t)profiler->ahead_ns});
    }
    profiler->used = 0;
}

cl_event *moert_profile_new_event(moert_device *device, const char *program) {
    struct moert_profiler *profiler = device->profiler;
    if (!profiler->counting)
        return NULL;
    if (profiler->used == RING) {
        moert_queue_finish(device);
        read_ring(profiler);
    }
    pending *command = &profiler->ring[profiler->used++];
    const moert_phase phase = moert_phase_get();
    *command = (pending){NULL, moert_operation_of(program, phase), phase};
    return &command->event;
}

static void add_wait(void *context, moert_phase phase, uint64_t ns) {
    struct moert_profiler *profiler = context;
    const moert_operation operation = move_of(phase) != OF(OTHER) ? OF(EXCHANGE_WAIT) : OF(WAIT);
    moert_profile_row *row = &profiler->sums.row[operation];
    const uint64_t end = moert_clock_ns();
    row->calls++;
    row->ns += ns;
    report(profiler, (moert_profile_span){MOERT_SPAN_WAIT, operation, phase, end - ns, end});
}

/* Counts a time only once if messages of a dispatch and of a combine were in flight. */
void moert_profile_message(moert_device *device, moert_operation operation, uint64_t start_ns,
                           uint64_t end_ns) {
    struct moert_profiler *profiler = device->profiler;
    if (profiler == NULL || !profiler->counting)
        return;
    const uint64_t start = start_ns > profiler->arrived_ns ? start_ns : profiler->arrived_ns;
    profiler->sums.message_ns += end_ns > start ? end_ns - start : 0;
    profiler->arrived_ns = end_ns > start ? end_ns : profiler->arrived_ns;
    report(profiler, (moert_profile_span){MOERT_SPAN_MESSAGE, operation, moert_phase_get(),
                                          start_ns, end_ns});
}

void moert_profile_host(moert_device *device, moert_operation operation, uint64_t ns) {
    struct moert_profiler *profiler = device->profiler;
    if (profiler == NULL || !profiler->counting)
        return;
    profiler->sums.row[operation].calls++;
    profiler->sums.row[operation].ns += ns;
}

/* ---- spans ---- */

/* Replaces the queue by one with profiling, unless it is the caller's. */
static moert_status profiling_queue(moert_device *device) {
    cl_command_queue_properties current = 0;
    cl_command_queue queue;
    MOERT_CL(device, clGetCommandQueueInfo(device->queue, CL_QUEUE_PROPERTIES, sizeof current,
                                           &current, NULL));
    if ((current & CL_QUEUE_PROFILING_ENABLE) != 0)
        return MOERT_OK;
    if (device->adopted)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "a profile needs a queue with CL_QUEUE_PROFILING_ENABLE");
    MOERT_CL(device, moert_queue_finish(device));
    moert_queue_release_other(device);
    MOERT_TRY(moert_queue_create(device, CL_QUEUE_PROFILING_ENABLE, &queue));
    clReleaseCommandQueue(device->queue);
    device->queue = queue;
    return MOERT_OK;
}

moert_status moert_profile_enable(moert_device *device) {
    if (device->profiler != NULL)
        return MOERT_OK;
    MOERT_TRY(profiling_queue(device));
    return MOERT_NEW(&device->profiler);
}

/* Ends a span, so that no event outlives the queue. */
void moert_profile_release(moert_device *device) {
    if (device->profiler != NULL && device->profiler->counting)
        moert_profile_end(device);
    free(device->profiler);
    device->profiler = NULL;
}

static moert_status check_span(const moert_device *device, bool counting) {
    if (device->profiler == NULL)
        return MOERT_FAIL(ERROR_USAGE, "profiling is not enabled on the device");
    if (device->profiler->counting != counting)
        return MOERT_FAIL(ERROR_USAGE, counting ? "a profile ends that has not begun"
                                                : "a profile begins again before it has ended");
    return MOERT_OK;
}

/* Makes the device serial while a profile without an observer counts: it adds up the times of
 * commands, so these must not overlap. */
static void set_counting(moert_device *device, bool counting) {
    device->profiler->counting = counting;
    device->serial = counting && device->profiler->observer == NULL;
}

void moert_profile_observe(moert_device *device, moert_profile_observer *observer, void *context) {
    device->profiler->observer = observer;
    device->profiler->context = context;
    set_counting(device, device->profiler->counting);
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
            device->profiler->ahead_ns = (int64_t)(before + least / 2 - end);
        }
    }
    return MOERT_OK;
}

moert_status moert_profile_begin(moert_device *device) {
    MOERT_TRY(check_span(device, false));
    MOERT_TRY(moert_device_finish(device));
    if (device->profiler->observer != NULL)
        MOERT_TRY(compare_clocks(device));
    set_counting(device, true);
    device->profiler->began_ns = moert_clock_ns();
    moert_phase_listen(add_wait, device->profiler);
    return MOERT_OK;
}

moert_status moert_profile_end(moert_device *device) {
    struct moert_profiler *profiler = device->profiler;
    MOERT_TRY(check_span(device, true));
    moert_phase_listen(NULL, NULL);
    set_counting(device, false);
    const cl_int code = moert_queue_finish(device);
    profiler->sums.wall_ns += moert_clock_ns() - profiler->began_ns;
    read_ring(profiler);
    MOERT_CL(device, code);
    if (profiler->failure != CL_SUCCESS)
        return MOERT_CL_FAIL(device, profiler->failure, "clGetEventProfilingInfo");
    return MOERT_OK;
}

const moert_profile *moert_profile_get(const moert_device *device) {
    return device->profiler != NULL ? &device->profiler->sums : NULL;
}

static moert_profile_row *row_of(moert_device *device, const char *program) {
    return device->profiler != NULL && device->profiler->counting
               ? &device->profiler->sums.row[moert_operation_of(program, moert_phase_get())]
               : NULL;
}

void moert_profile_work(moert_device *device, const char *program, double flops, double bytes) {
    moert_profile_row *row = row_of(device, program);
    if (row == NULL)
        return;
    row->flops += flops;
    row->bytes += bytes;
}

void moert_profile_bf16_work(moert_device *device, const char *program, double flops,
                             double bytes) {
    moert_profile_row *row = row_of(device, program);
    moert_profile_work(device, program, flops, bytes);
    if (row != NULL)
        row->bf16_flops += flops;
}
