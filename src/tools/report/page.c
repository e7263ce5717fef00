/* Inserts a run's record into page.html, as JSON. */
#include "tools/report/page.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/json.h"

enum { DIGITS = 10 };

/* The text of page.html, which kernels/embed.c embeds at build time. */
extern const char *const moert_page_texts[];

/* ---- values ---- */

/* A JSON string of `text`. If `text` is not UTF-8, which the name of a directory need not be, its
 * bytes that are not UTF-8 become %NN (moert_text_encode). */
static json_t *string(const char *text) {
    json_t *value = json_string(text);
    char *encoded;
    if (value != NULL || moert_text_encode(text, &encoded) != MOERT_OK)
        return value;
    value = json_string(encoded);
    free(encoded);
    return value;
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *numbers(const double *values, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, number(values[i]));
    return array;
}

static json_t *object_or_null(json_t *object) {
    return object != NULL ? json_incref(object) : json_null();
}

/* ---- the record ---- */

/* Lists the steps as columns; omits columns without any number. */
static json_t *list_steps(const moert_run_record *record) {
    static const struct {
        const char *name;
        size_t offset;
    } columns[] = {
#define COLUMN(name) {#name, offsetof(moert_run_step, name)},
        MOERT_METRIC_TABLE(COLUMN)
#undef COLUMN
    };
    json_t *steps = json_object();
    for (size_t c = 0; c < MOERT_COUNT(columns); c++) {
        json_t *column = json_array();
        bool any = false;
        for (size_t i = 0; i < record->steps; i++) {
            double value;
            memcpy(&value, (const char *)&record->step[i] + columns[c].offset, sizeof value);
            any = any || isfinite(value);
            json_array_append_new(column, number(value));
        }
        if (any)
            json_object_set(steps, columns[c].name, column);
        json_decref(column);
    }
    return steps;
}

static json_t *list_ranks(const moert_run_record *record) {
    json_t *ranks = json_array();
    for (size_t r = 0; r < record->ranks; r++) {
        const moert_run_rank *rank = &record->rank[r];
        json_array_append_new(
            ranks, json_pack("{so sI so so}", "host", string(rank->host != NULL ? rank->host : ""),
                             "node", (json_int_t)rank->node, "step_ms", number(rank->step_ms), "ms",
                             numbers(rank->ms, MOERT_TIMES)));
    }
    return ranks;
}

static json_t *list_times(void) {
    json_t *times = json_array();
    for (size_t i = 0; i < MOERT_TIMES; i++)
        json_array_append_new(times, json_string(moert_time_text((moert_time)i)));
    return times;
}

static json_t *list_sentences(const moert_verdict *verdict) {
    json_t *sentences = json_array();
    for (size_t i = 0; i < verdict->count; i++)
        json_array_append_new(sentences, json_pack("{so sb}", "text", string(verdict->line[i].text),
                                                   "warns", (int)verdict->line[i].warns));
    return sentences;
}

static json_t *describe_profile(const moert_run_record *record) {
    if (record->ranks == 0)
        return json_null();
    return json_pack("{sI so so so}", "steps", (json_int_t)record->profiled_steps, "ranks",
                     list_ranks(record), "exchange", object_or_null(record->exchange), "operations",
                     object_or_null(record->operations));
}

/* ---- the page ---- */

/* *page = `text` with @RECORD@ replaced by the JSON `data`. In JSON, <, > and & occur only in
 * strings. These characters are escaped, so that they cannot end an HTML element. */
static moert_status fill(const char *text, const char *data, char **page) {
    static const char mark[] = "@RECORD@";
    const char *at = strstr(text, mark);
    size_t escapes = 0;
    for (const char *c = data; *c != '\0'; c++)
        escapes += strchr("<>&", *c) != NULL ? 1 : 0;
    MOERT_TRY(moert_alloc(page, strlen(text) + strlen(data) + 5 * escapes + 1, 1));
    char *to = *page + sprintf(*page, "%.*s", (int)(at - text), text);
    for (const char *c = data; *c != '\0'; c++)
        if (strchr("<>&", *c) != NULL)
            to += sprintf(to, "\\u%04x", (unsigned)*c);
        else
            *to++ = *c;
    strcpy(to, at + sizeof mark - 1);
    return MOERT_OK;
}

moert_status moert_report_page(const char *name, const moert_run_record *record,
                               const moert_verdict *verdict, const moert_verdict *comparison,
                               json_t *trace, char **page) {
    char *text;
    json_t *root = json_pack(
        "{so so so so so so so sf so so so so so}", "name", string(name), "headline",
        string(verdict->headline), "verdict", list_sentences(verdict), "comparison",
        list_sentences(comparison), "parts", number(verdict->parts), "times", list_times(), "late",
        verdict->late_rank < record->ranks ? json_integer((json_int_t)verdict->late_rank)
                                           : json_null(),
        "hot_times", MOERT_HOT_TIMES, "run", object_or_null(record->run), "steps",
        list_steps(record), "last", object_or_null(record->last_step), "profile",
        describe_profile(record), "trace", object_or_null(trace));
    moert_status status = moert_json_text(
        "the page", root, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(DIGITS), &text);
    json_decref(root);
    if (status != MOERT_OK)
        return status;
    status = fill(moert_page_texts[0], text, page);
    free(text);
    return status;
}
