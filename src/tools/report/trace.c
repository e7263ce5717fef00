/* Reads one step of a trace. */
#include "tools/report/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/json.h"

enum { LIMIT_BYTES = 1 << 30, STEPS = 0, ROWS = 5, MOST_RANKS = 4096 };

/* A complete event, times in us. */
typedef struct event {
    const char *name;
    size_t rank, row; /* the row STEPS has the steps of the rank */
    moert_time time;
    double start, end;
} event;

/* False if the object is not a complete event of a rank. */
static bool read_event(const json_t *object, event *e) {
    const char *kind = json_string_value(json_object_get(object, "ph"));
    const json_int_t rank = json_integer_value(json_object_get(object, "pid"));
    const json_int_t row = json_integer_value(json_object_get(object, "tid"));
    e->name = json_string_value(json_object_get(object, "name"));
    if (e->name == NULL || kind == NULL || strcmp(kind, "X") != 0 || rank < 0 ||
        rank >= MOST_RANKS || row < 0 || row >= ROWS)
        return false;
    e->rank = (size_t)rank;
    e->row = (size_t)row;
    e->time = moert_time_of(e->name);
    e->start = json_number_value(json_object_get(object, "ts"));
    e->end = e->start + json_number_value(json_object_get(object, "dur"));
    return e->end >= e->start;
}

/* A step: its name, its first start and last end over all ranks in us, and its spans. */
typedef struct step {
    char name[32];
    double start, end;
    size_t ranks, count;
    event *span; /* [count], times in us */
} step;

/* Finds the last step. */
static void find_step(const json_t *events, step *s) {
    const json_t *object;
    size_t i;
    event e;
    s->start = s->end = -INFINITY;
    json_array_foreach(events, i, object) {
        if (!read_event(object, &e))
            continue;
        s->ranks = moert_max(s->ranks, e.rank + 1);
        if (e.row == STEPS && strcmp(e.name, s->name) == 0) {
            s->start = fmin(s->start, e.start);
            s->end = fmax(s->end, e.end);
        } else if (e.row == STEPS && e.start > s->end - 1.0) {
            snprintf(s->name, sizeof s->name, "%s", e.name);
            s->start = e.start;
            s->end = e.end;
        }
    }
}

/* Adds an event to the step as a span, or joins it to the last span of the row. *open is the index
 * of that last span plus 1; 0: the row has no span. */
static void add_span(step *s, const event *e, size_t *open) {
    const double close = (s->end - s->start) * 5e-4;
    event *one = *open > 0 ? &s->span[*open - 1] : NULL;
    if (one != NULL && e->start - one->end < close &&
        (e->time == one->time || e->end - e->start < close)) {
        one->end = fmax(one->end, fmin(e->end, s->end));
        return;
    }
    s->span[s->count] = *e;
    s->span[s->count].start = fmax(e->start, s->start);
    s->span[s->count].end = fmin(e->end, s->end);
    *open = ++s->count;
}

static moert_status take_spans(const json_t *events, step *s) {
    size_t(*open)[ROWS], i; /* [ranks] last span of each row of a rank */
    const json_t *object;
    event e;
    MOERT_TRY(moert_alloc(&s->span, json_array_size(events), sizeof *s->span));
    MOERT_TRY(moert_alloc(&open, s->ranks, sizeof *open));
    json_array_foreach(events, i, object) {
        if (read_event(object, &e) && e.row != STEPS && e.end > s->start && e.start < s->end)
            add_span(s, &e, &open[e.rank][e.row]);
    }
    free(open);
    return MOERT_OK;
}

static json_t *describe(const step *s) {
    json_t *spans = json_array();
    for (size_t i = 0; i < s->count; i++)
        json_array_append_new(spans, json_pack("[I i i f f]", (json_int_t)s->span[i].rank,
                                               (int)s->span[i].row, (int)s->span[i].time,
                                               1e-3 * (s->span[i].start - s->start),
                                               1e-3 * (s->span[i].end - s->start)));
    return json_pack("{ss sf sI so}", "name", s->name, "length", 1e-3 * (s->end - s->start),
                     "ranks", (json_int_t)s->ranks, "spans", spans);
}

moert_status moert_trace_step_read(const char *path, json_t **made) {
    step s = {.name = ""};
    moert_status status;
    json_t *root;
    MOERT_TRY(moert_json_read(path, "the trace", LIMIT_BYTES, &root));
    const json_t *events = json_object_get(root, "traceEvents");
    find_step(events, &s);
    if (s.end > s.start)
        status = take_spans(events, &s);
    else
        status = MOERT_FAIL(ERROR_FORMAT,
                            "%s: holds no step; expected a trace of moert-train --trace", path);
    if (status == MOERT_OK)
        *made = describe(&s);
    free(s.span);
    json_decref(root);
    return status;
}
