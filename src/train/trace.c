/* Collects the spans of a rank as JSON text; rank 0 writes the spans of all ranks. */
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

struct moert_trace {
    moert_device *device;
    moert_comm *world;
    uint64_t zero_ns;
    size_t steps;
    FILE *stream; /* writes to `text` */
    char *text;   /* events, each followed by a comma */
    size_t bytes;
    const char *path;
    char *temporary; /* name of rank 0's file until it is complete */
    FILE *file;      /* rank 0's file while moert_trace_write() runs */
    int reason;      /* errno of the first failed write, or 0 */
};

/* ---- spans ---- */

static void add(moert_trace *t, int row, const char *name, const char *category, uint64_t start_ns,
                uint64_t end_ns) {
    fprintf(t->stream,
            "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %zu, \"tid\": %d, \"ts\": "
            "%.3f, \"dur\": %.3f},\n",
            name, category, moert_comm_rank(t->world), row,
            ((double)start_ns - (double)t->zero_ns) * 1e-3, (double)(end_ns - start_ns) * 1e-3);
}

static void observe(void *context, const moert_profile_span *span) {
    const int row = span->kind == MOERT_SPAN_DEVICE              ? ROW_DEVICE
                    : span->kind == MOERT_SPAN_WAIT              ? ROW_MESSAGES
                    : span->operation == MOERT_OPERATION_COMBINE ? ROW_BACK
                                                                 : ROW_FORTH; /* may overlap */
    add(context, row, moert_operation_text(span->operation), moert_phase_name(span->phase),
        span->start_ns, span->end_ns);
}

void moert_trace_step(moert_trace *trace, uint64_t step, uint64_t start_ns, uint64_t end_ns) {
    char name[32];
    snprintf(name, sizeof name, "step %" PRIu64, step);
    add(trace, ROW_STEPS, name, "step", start_ns, end_ns);
    if (++trace->steps == MOERT_TRACE_STEPS)
        moert_profile_observe(trace->device, NULL, NULL);
}

/* ---- begin and end ---- */

static void add_name(moert_trace *t, const char *what, int row, const char *name) {
    fprintf(t->stream,
            "{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %zu, \"tid\": %d, \"args\": {\"name\": "
            "\"%s\"}},\n",
            what, moert_comm_rank(t->world), row, name);
}

static moert_status open_text(moert_trace *t) {
    const size_t rank = moert_comm_rank(t->world);
    t->stream = open_memstream(&t->text, &t->bytes);
    char *name = moert_text_format("rank %zu, %s", rank, moert_comm_host(t->world, rank));
    if (t->stream == NULL || name == NULL) {
        free(name);
        return MOERT_FAIL(ERROR_MEMORY, "no room for a trace");
    }
    add_name(t, "process_name", 0, name);
    for (int row = 0; row < ROWS; row++)
        add_name(t, "thread_name", row, row_names[row]);
    free(name);
    return MOERT_OK;
}

/* Writes to rank 0's file until a write fails. */
static void put(moert_trace *t, const char *text, size_t bytes) {
    if (t->reason == 0 && fwrite(text, 1, bytes, t->file) < bytes)
        t->reason = errno;
}

static moert_status open_file(moert_trace *t) {
    static const char head[] = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    t->file = fopen(t->temporary, "we");
    if (t->file == NULL)
        return MOERT_FAIL(ERROR_IO, "%s: %s; no trace can be written there", t->temporary,
                          strerror(errno));
    put(t, head, sizeof head - 1);
    return MOERT_OK;
}

static void drop_file(moert_trace *t) {
    if (t->file == NULL)
        return;
    fclose(t->file);
    remove(t->temporary);
    t->file = NULL;
}

/* Checks that rank 0 can write the file, so that a run does not fail at its end. */
static moert_status check_file(moert_trace *t) {
    MOERT_TRY(moert_durable_check(t->path));
    MOERT_TRY(moert_text_path(&t->temporary, "%s.tmp", t->path));
    MOERT_TRY(open_file(t));
    drop_file(t);
    return MOERT_OK;
}

moert_status moert_trace_start(moert_device *device, moert_comm *world, const char *path,
                               moert_trace **trace) {
    moert_trace *t;
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW(&t)));
    *t = (moert_trace){.device = device, .world = world, .path = path};
    moert_status status = open_text(t);
    if (status == MOERT_OK && moert_comm_rank(world) == 0)
        status = check_file(t);
    MOERT_TRY_OR(fail, moert_comm_agree(world, status));
    MOERT_TRY_OR(fail, moert_comm_barrier(world));
    t->zero_ns = moert_clock_ns();
    moert_profile_observe(device, observe, t);
    *trace = t;
    return MOERT_OK;
fail:
    moert_trace_destroy(t);
    return status;
}

void moert_trace_destroy(moert_trace *trace) {
    if (trace == NULL)
        return;
    moert_profile_observe(trace->device, NULL, NULL);
    if (trace->stream != NULL)
        fclose(trace->stream);
    drop_file(trace);
    MOERT_FREE(trace->temporary, trace->text, trace);
}

/* ---- the file ---- */

/* Broadcasts the events of rank `from`; the caller frees *text. */
static moert_status broadcast_events(moert_trace *t, size_t from, char **text, uint64_t *bytes) {
    *bytes = t->bytes;
    MOERT_TRY(moert_comm_broadcast(t->world, from, bytes, sizeof *bytes));
    MOERT_TRY(moert_comm_agree(t->world, moert_alloc(text, *bytes, 1)));
    if (moert_comm_rank(t->world) == from)
        memcpy(*text, t->text, *bytes);
    return moert_comm_broadcast(t->world, from, *text, *bytes);
}

/* Writes the ranks' events one rank at a time, so that no rank holds the text of all. */
static moert_status write_ranks(moert_trace *t) {
    const size_t ranks = moert_comm_size(t->world);
    for (size_t r = 0; r < ranks; r++) {
        char *text = NULL;
        uint64_t bytes = 0;
        const moert_status status = broadcast_events(t, r, &text, &bytes);
        if (status == MOERT_OK && t->file != NULL) /* without the last comma and new line */
            put(t, text, bytes - (r + 1 == ranks ? 2 : 0));
        free(text);
        MOERT_TRY(status);
    }
    return MOERT_OK;
}

static moert_status settle(moert_trace *t) {
    FILE *file = t->file;
    put(t, "\n]}\n", 4);
    t->file = NULL;
    errno = t->reason;
    return moert_durable_finish(file, t->temporary, t->path);
}

moert_status moert_trace_write(moert_trace *trace) {
    moert_profile_observe(trace->device, NULL, NULL);
    moert_status status = fflush(trace->stream) == 0 && !ferror(trace->stream)
                              ? MOERT_OK
                              : MOERT_FAIL(ERROR_MEMORY, "no room for a trace");
    if (status == MOERT_OK && moert_comm_rank(trace->world) == 0)
        status = open_file(trace);
    MOERT_TRY(moert_comm_agree(trace->world, status));
    MOERT_TRY(write_ranks(trace));
    return moert_comm_agree(trace->world, trace->file != NULL ? settle(trace) : MOERT_OK);
}
