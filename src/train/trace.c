/* Records the spans of a rank. Rank 0 writes the spans of all ranks. */
#include "train/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"

/* A rank's rows of the trace, in this order. */
enum { ROW_STEPS, ROW_DEVICE, ROW_MESSAGES, ROW_FORTH, ROW_BACK, ROWS };
static const char *const row_names[ROWS] = {"steps", "device", "messages", "rows in flight forth",
                                            "rows in flight back"};

typedef struct moert_trace_event {
    double start_us, us; /* start of the event, counted from the start of the trace, and duration;
                            in microseconds */
    uint64_t step;       /* step number, for events in ROW_STEPS */
    moert_operation operation;
    moert_phase phase;
    int row;
} event;

/* ---- spans ---- */

static void add(moert_trace *t, uint64_t start_ns, uint64_t end_ns, event made) {
    made.start_us = ((double)start_ns - (double)t->zero_ns) * 1e-3;
    made.us = (double)(end_ns - start_ns) * 1e-3;
    t->full = t->full || MOERT_GROW(&t->events, &t->room, t->count + 1) != MOERT_OK;
    if (!t->full)
        t->events[t->count++] = made;
}

static void observe(void *trace, const moert_profile_span *span) {
    const int row = span->kind == MOERT_SPAN_DEVICE              ? ROW_DEVICE
                    : span->kind == MOERT_SPAN_WAIT              ? ROW_MESSAGES
                    : span->operation == MOERT_OPERATION_COMBINE ? ROW_BACK
                                                                 : ROW_FORTH; /* may overlap */
    add(trace, span->start_ns, span->end_ns,
        (event){.row = row, .operation = span->operation, .phase = span->phase});
}

void moert_trace_step(moert_trace *trace, uint64_t step, uint64_t start_ns, uint64_t end_ns) {
    add(trace, start_ns, end_ns, (event){.row = ROW_STEPS, .step = step});
    if (++trace->steps == MOERT_TRACE_STEPS)
        moert_profile_observe(trace->device, NULL, NULL);
}

/* ---- opening and closing a trace ---- */

/* Opens the file on rank 0 before the run, so that a bad path does not make the run fail at its
 * end. */
static moert_status open_file(moert_trace *t) {
    MOERT_TRY(moert_durable_check(t->path));
    MOERT_TRY(moert_text_path(&t->temporary, "%s.tmp", t->path));
    t->file = fopen(t->temporary, "we");
    return t->file != NULL ? MOERT_OK
                           : MOERT_FAIL(ERROR_IO, "%s: %s; no trace can be written there",
                                        t->temporary, strerror(errno));
}

moert_status moert_trace_start(moert_trace *t, moert_device *device, moert_comm *world,
                               const char *path) {
    *t = (moert_trace){.device = device, .world = world, .path = path};
    MOERT_TRY(moert_comm_agree(world, moert_comm_rank(world) == 0 ? open_file(t) : MOERT_OK));
    MOERT_TRY(moert_comm_barrier(world));
    t->zero_ns = moert_clock_ns();
    moert_profile_observe(device, observe, t);
    return MOERT_OK;
}

void moert_trace_close(moert_trace *t) {
    if (t->device == NULL)
        return;
    moert_profile_observe(t->device, NULL, NULL);
    if (t->file != NULL) {
        fclose(t->file);
        remove(t->temporary);
    }
    MOERT_FREE(t->temporary, t->events);
}

/* ---- the file ---- */

static void put_event(FILE *file, size_t rank, const event *e) {
    if (e->row == ROW_STEPS)
        fprintf(file, ",\n{\"name\": \"step %" PRIu64 "\", \"cat\": \"step\"", e->step);
    else
        fprintf(file, ",\n{\"name\": \"%s\", \"cat\": \"%s\"", moert_operation_text(e->operation),
                moert_phase_name(e->phase));
    fprintf(file, ", \"ph\": \"X\", \"pid\": %zu, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f}", rank,
            e->row, e->start_us, e->us);
}

/* Writes the events of a rank, until a write fails. */
static void put_rank(const moert_trace *t, size_t rank, const event *events, size_t count) {
    fprintf(t->file,
            "%s{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %zu, \"tid\": 0, \"args\": "
            "{\"name\": \"rank %zu, %s\"}}",
            rank > 0 ? ",\n" : "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", rank, rank,
            moert_comm_host(t->world, rank));
    for (int row = 0; row < ROWS; row++)
        fprintf(t->file,
                ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %zu, \"tid\": %d, "
                "\"args\": {\"name\": \"%s\"}}",
                rank, row, row_names[row]);
    for (size_t i = 0; i < count && !ferror(t->file); i++)
        put_event(t->file, rank, &events[i]);
}

/* Broadcasts the events of rank `from`; the caller frees them. */
static moert_status broadcast_events(moert_trace *t, size_t from, event **events, size_t *count) {
    *count = t->count;
    MOERT_TRY(moert_comm_broadcast(t->world, from, count, sizeof *count));
    MOERT_TRY(moert_comm_agree(t->world, MOERT_NEW_ARRAY(events, *count)));
    if (moert_comm_rank(t->world) == from && *count > 0)
        memcpy(*events, t->events, *count * sizeof **events);
    return moert_comm_broadcast(t->world, from, *events, *count * sizeof **events);
}

/* Writes the events of one rank after the other, so that no rank needs memory for all events.
 * *reason = errno of the first failed write, or 0. */
static moert_status write_ranks(moert_trace *t, int *reason) {
    *reason = 0;
    for (size_t r = 0; r < moert_comm_size(t->world); r++) {
        event *events = NULL;
        size_t count = 0;
        const moert_status status = broadcast_events(t, r, &events, &count);
        if (status == MOERT_OK && t->file != NULL && *reason == 0) {
            put_rank(t, r, events, count);
            *reason = ferror(t->file) ? errno : 0;
        }
        free(events);
        MOERT_TRY(status);
    }
    return MOERT_OK;
}

/* Completes rank 0's file. `reason` is errno of an earlier failed write, or 0. */
static moert_status end_file(moert_trace *t, int reason) {
    FILE *file = t->file;
    t->file = NULL;
    fputs("\n]}\n", file);
    errno = reason != 0 ? reason : errno;
    return moert_durable_finish(file, t->temporary, t->path);
}

moert_status moert_trace_write(moert_trace *t) {
    int reason;
    moert_profile_observe(t->device, NULL, NULL);
    MOERT_TRY(moert_comm_agree(t->world, t->full ? MOERT_FAIL(ERROR_MEMORY, "no room for a trace")
                                                 : MOERT_OK));
    MOERT_TRY(write_ranks(t, &reason));
    return moert_comm_agree(t->world, t->file != NULL ? end_file(t, reason) : MOERT_OK);
}
