/* Draws one step of a trace. */
#include "tools/report/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/json.h"

enum { LIMIT_BYTES = 1 << 30, ROW_STEPS = 0, MOST_RANKS = 4096 };

/* ---- reading ---- */

/* A complete event, times in us. */
typedef struct event {
    const char *name;
    size_t rank;
    bool is_step;
    double start, end;
} event;

/* False if the object is not a complete event of a rank. */
static bool read_event(const json_t *object, event *e) {
    const char *kind = json_string_value(json_object_get(object, "ph"));
    const json_int_t rank = json_integer_value(json_object_get(object, "pid"));
    e->name = json_string_value(json_object_get(object, "name"));
    if (e->name == NULL || kind == NULL || strcmp(kind, "X") != 0 || rank < 0 || rank >= MOST_RANKS)
        return false;
    e->rank = (size_t)rank;
    e->is_step = json_integer_value(json_object_get(object, "tid")) == ROW_STEPS;
    e->start = json_number_value(json_object_get(object, "ts"));
    e->end = e->start + json_number_value(json_object_get(object, "dur"));
    return e->end >= e->start;
}

/* Finds the last step: its name, and the first start and the last end over the ranks, in us. */
static void find_step(const json_t *events, moert_trace_step *step, double *start, double *end) {
    const json_t *object;
    size_t i;
    event e;
    *start = *end = -INFINITY;
    json_array_foreach(events, i, object) {
        if (!read_event(object, &e) || !e.is_step)
            continue;
        step->ranks = moert_max(step->ranks, e.rank + 1);
        if (strcmp(e.name, step->name) == 0) {
            *start = fmin(*start, e.start);
            *end = fmax(*end, e.end);
        } else if (e.start > *end - 1.0) {
            snprintf(step->name, sizeof step->name, "%s", e.name);
            *start = e.start;
            *end = e.end;
        }
    }
}

static moert_status take_spans(const json_t *events, double start, double end,
                               moert_trace_step *step) {
    const json_t *object;
    size_t i;
    event e;
    MOERT_TRY(moert_alloc(&step->span, json_array_size(events), sizeof *step->span));
    json_array_foreach(events, i, object) {
        if (read_event(object, &e) && !e.is_step && e.end > start && e.start < end)
            step->span[step->count++] =
                (moert_trace_span){e.rank, moert_time_of(e.name), fmax(e.start - start, 0.0) * 1e-3,
                                   (fmin(e.end, end) - start) * 1e-3};
    }
    step->length = (end - start) * 1e-3;
    return MOERT_OK;
}

moert_status moert_trace_step_read(const char *path, moert_trace_step *step) {
    moert_status status;
    json_t *root;
    double start, end;
    *step = (moert_trace_step){.name = ""};
    MOERT_TRY(moert_json_read(path, "the trace", LIMIT_BYTES, &root));
    const json_t *events = json_object_get(root, "traceEvents");
    find_step(events, step, &start, &end);
    if (end > start)
        status = take_spans(events, start, end, step);
    else
        status = MOERT_FAIL(ERROR_FORMAT,
                            "%s: holds no step; expected a trace of moert-train --trace", path);
    json_decref(root);
    return status;
}

void moert_trace_step_free(moert_trace_step *step) {
    free(step->span);
}

/* ---- drawing ---- */

static bool is_message(const moert_trace_span *span) {
    return span->time == MOERT_TIME_MESSAGES;
}

static void put_span(moert_markup *m, const moert_trace_step *step, const moert_trace_span *span) {
    moert_markup_leaf(m, "rect",
                      "class=\"t%d\" x=\"%.2f%%\" width=\"%.2f%%\" y=\"%s\" height=\"%s\"",
                      (int)span->time, 100.0 * span->start / step->length,
                      100.0 * (span->end - span->start) / step->length,
                      is_message(span) ? "66%" : "0", is_message(span) ? "34%" : "62%");
}

/* Draws the spans of a rank's device, or those of its messages. Joins a span to the previous one if
 * the gap is tiny, and the class is the same or the span is tiny. */
static void put_lane(moert_markup *m, const moert_trace_step *step, size_t rank, bool messages) {
    const double close = step->length * 5e-4;
    moert_trace_span one = {.end = -1.0};
    for (size_t i = 0; i < step->count; i++) {
        const moert_trace_span *span = &step->span[i];
        if (span->rank != rank || is_message(span) != messages)
            continue;
        const bool joins = one.end >= 0.0 && span->start - one.end < close &&
                           (span->time == one.time || span->end - span->start < close);
        if (joins) {
            one.end = fmax(one.end, span->end);
            continue;
        }
        if (one.end >= 0.0)
            put_span(m, step, &one);
        one = *span;
    }
    if (one.end >= 0.0)
        put_span(m, step, &one);
}

void moert_chart_trace(moert_markup *m, const moert_trace_step *step) {
    moert_markup_open(m, "div", "class=\"lanes\"");
    for (size_t r = 0; r < step->ranks; r++) {
        moert_markup_element(m, "span", "class=\"who\"", "%zu", r);
        moert_markup_open(m, "svg", "class=\"bar\" role=\"img\"");
        moert_markup_element(m, "title", "", "rank %zu in %s: its device above, messages below", r,
                             step->name);
        put_lane(m, step, r, false);
        put_lane(m, step, r, true);
        moert_markup_close(m, 1);
    }
    moert_markup_begin(m, "span");
    moert_markup_close(m, 1);
    moert_markup_open(m, "div", "class=\"xlabels\"");
    moert_markup_element(m, "span", "", "0 ms");
    moert_markup_element(m, "span", "", "%.1f ms", step->length);
    moert_markup_close(m, 2);
}
