/* The page of a run. */
#include "tools/report/page.h"
#include "base/memory.h"

#include "tools/report/charts.h"

static void open_section(moert_markup *m, const char *title, const char *about) {
    moert_markup_begin(m, "section");
    moert_markup_element(m, "h2", "", "%s", title);
    if (about != NULL)
        moert_markup_element(m, "p", "", "%s", about);
}

static void put_head(moert_markup *m, const char *name, const moert_verdict *verdict) {
    moert_markup_raw(m, "<!DOCTYPE html>");
    moert_markup_open(m, "html", "xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"");
    moert_markup_begin(m, "head");
    moert_markup_leaf(m, "meta", "charset=\"utf-8\"");
    moert_markup_leaf(m, "meta",
                      "name=\"viewport\" content=\"width=device-width,initial-scale=1\"");
    moert_markup_element(m, "title", "", "%s: %s", name, verdict->headline);
    moert_markup_begin(m, "style");
    moert_markup_raw(m, "%s", moert_report_style);
    moert_markup_close(m, 2);
}

/* Defines the hatching of waiting times, for all drawings. */
static void put_hatching(moert_markup *m) {
    moert_markup_open(m, "svg",
                      "width=\"0\" height=\"0\" aria-hidden=\"true\" style=\"position:absolute\"");
    moert_markup_open(m, "pattern",
                      "id=\"waiting\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                      "patternTransform=\"rotate(45)\"");
    moert_markup_leaf(m, "rect", "width=\"6\" height=\"6\" style=\"fill:var(--t4)\"");
    moert_markup_leaf(m, "rect",
                      "width=\"2\" height=\"6\" style=\"fill:var(--card)\" fill-opacity=\"0.55\"");
    moert_markup_close(m, 2);
}

static void put_verdict(moert_markup *m, const char *name, const moert_verdict *verdict) {
    moert_markup_begin(m, "header");
    moert_markup_element(m, "p", "", "moert-train, run %s", name);
    moert_markup_element(m, "h1", "", "%s", verdict->headline);
    moert_markup_close(m, 1);
    moert_markup_begin(m, "section");
    moert_markup_open(m, "ul", "class=\"verdict\"");
    for (size_t i = 0; i < verdict->count; i++)
        moert_markup_element(m, "li", verdict->line[i].warns ? "class=\"warns\"" : "", "%s",
                             verdict->line[i].text);
    moert_markup_close(m, 2);
}

/* The numbers of the bars as a table, with a row for each rank. */
static void put_times(moert_markup *m, const moert_run_record *record) {
    moert_markup_begin(m, "details");
    moert_markup_element(m, "summary", "", "Numbers, in ms");
    moert_markup_open(m, "div", "class=\"wide\"");
    moert_markup_begin(m, "table");
    moert_markup_begin(m, "tr");
    moert_markup_element(m, "th", "scope=\"col\"", "rank");
    moert_markup_element(m, "th", "scope=\"col\"", "step");
    for (size_t i = 0; i < MOERT_TIMES; i++)
        moert_markup_element(m, "th", "scope=\"col\"", "%s", moert_time_text((moert_time)i));
    moert_markup_close(m, 1);
    for (size_t r = 0; r < record->ranks; r++) {
        moert_markup_begin(m, "tr");
        moert_markup_element(m, "th", "scope=\"row\"", "%zu", r);
        moert_markup_element(m, "td", "", "%.2f", record->rank[r].step_ms);
        for (size_t i = 0; i < MOERT_TIMES; i++)
            moert_markup_element(m, "td", "", "%.2f", record->rank[r].ms[i]);
        moert_markup_close(m, 1);
    }
    moert_markup_close(m, 3);
}

static void put_steps(moert_markup *m, const moert_run_record *record,
                      const moert_verdict *verdict) {
    open_section(
        m, "A step, rank by rank",
        "Where the time of a mean step goes. Hatched: waiting for a rank that is not there yet.");
    moert_chart_times(m, record, verdict);
    put_times(m, record);
    moert_markup_close(m, 1);
}

static void put_exchange(moert_markup *m, const moert_run_record *record) {
    open_section(
        m, "Who waits for whom, who sends to whom",
        "Per step. The last rank to enter a message is charged with the time that the others "
        "waited there. Bytes are those of the routed rows.");
    moert_markup_open(m, "div", "class=\"pair\" style=\"--least:%.0fpx\"",
                      moert_matrix_width(record->ranks));
    moert_chart_matrix(m, record, record->waited_ms,
                       &(moert_matrix_text){"Waiting", "rank", "for rank", "ms"});
    moert_chart_matrix(
        m, record, record->dispatched_bytes,
        &(moert_matrix_text){"Dispatch: rows to their experts", "from", "to rank", "bytes"});
    moert_chart_matrix(m, record, record->combined_bytes,
                       &(moert_matrix_text){"Combine: results back", "from", "to rank", "bytes"});
    moert_markup_close(m, 2);
}

static void put_experts(moert_markup *m, const moert_run_record *record) {
    open_section(m, "Load of the experts", NULL);
    moert_markup_begin(m, "p");
    moert_markup_text(m, "The part of its layer's rows that each expert takes; ");
    moert_markup_open(m, "span", "class=\"frame\"");
    moert_markup_close(m, 1);
    moert_markup_text(m, " has %.0f times its share or more.", MOERT_HOT_TIMES);
    moert_markup_close(m, 1);
    moert_markup_open(m, "div", "class=\"wide\"");
    moert_chart_load(m, record);
    moert_markup_close(m, 2);
}

/* ---- the table of operations ---- */

/* Columns of profile.json: key, title, digits, factor. */
static const struct {
    const char *key, *title;
    int digits;
    double factor;
} columns[] = {
    {"calls", "calls", 1, 1.0},
    {"ms_per_step", "ms", 3, 1.0},
    {"share", "of step %", 1, 100.0},
    {"gflops", "GFLOP/s", 1, 1.0},
    {"peak_share", "of peak %", 1, 100.0},
    {"gbps", "GB/s", 1, 1.0},
    {"copy_share", "of copy %", 1, 100.0},
};
enum { COLUMNS = MOERT_COUNT(columns) };

static void put_operations(moert_markup *m, const moert_run_record *record) {
    json_t *row;
    size_t i;
    open_section(m, "Operations",
                 "Per step, means over the ranks. Each rate is followed by its percentage of the "
                 "best rate measured on the device.");
    moert_markup_open(m, "div", "class=\"wide\"");
    moert_markup_open(m, "table", "class=\"operations\"");
    moert_markup_begin(m, "tr");
    moert_markup_element(m, "th", "scope=\"col\"", "operation");
    for (size_t c = 0; c < COLUMNS; c++)
        moert_markup_element(m, "th", "scope=\"col\"", "%s", columns[c].title);
    moert_markup_close(m, 1);
    json_array_foreach(json_object_get(record->operations, "rows"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        moert_markup_begin(m, "tr");
        moert_markup_element(m, "th", "scope=\"row\"", "%s", name != NULL ? name : "?");
        for (size_t c = 0; c < COLUMNS; c++) {
            const json_t *value = json_object_get(row, columns[c].key);
            if (json_is_number(value))
                moert_markup_element(m, "td", "", "%.*f", columns[c].digits,
                                     json_number_value(value) * columns[c].factor);
            else
                moert_markup_element(m, "td", "", "\xE2\x80\x93");
        }
        moert_markup_close(m, 1);
    }
    moert_markup_close(m, 3);
}

/* ---- a watched run; another run ---- */

static void put_number(moert_markup *m, const moert_run_record *record, const char *what,
                       size_t layer) {
    char key[64];
    snprintf(key, sizeof key, "%s/layer_%zu", what, layer);
    const json_t *value = json_object_get(record->last_step, key);
    if (json_is_number(value))
        moert_markup_element(m, "td", "", "%.4g", json_number_value(value));
    else
        moert_markup_element(m, "td", "", "\xE2\x80\x93");
}

static void put_layers(moert_markup *m, const moert_run_record *record) {
    /* as train/monitor.c names them */
    static const char *const keys[] = {"grad_norm", "activation_rms", "router_entropy"};
    static const char *const titles[] = {"layer", "gradient norm", "activation RMS",
                                         "router entropy"};
    const json_t *dead = json_object_get(record->last_step, "dead_experts");
    open_section(m, "Layers", "Of the last step.");
    moert_markup_element(m, "p", "", "Experts without a row: %.0f.", json_number_value(dead));
    moert_chart_mfu(m, record);
    moert_markup_open(m, "div", "class=\"wide\"");
    moert_markup_open(m, "table", "class=\"operations\"");
    moert_markup_begin(m, "tr");
    for (size_t i = 0; i < MOERT_COUNT(titles); i++)
        moert_markup_element(m, "th", "scope=\"col\"", "%s", titles[i]);
    moert_markup_close(m, 1);
    for (size_t layer = 0;; layer++) {
        char key[64];
        snprintf(key, sizeof key, "%s/layer_%zu", keys[0], layer);
        if (json_object_get(record->last_step, key) == NULL)
            break;
        moert_markup_begin(m, "tr");
        moert_markup_element(m, "th", "scope=\"row\"", "%zu", layer);
        for (size_t i = 0; i < MOERT_COUNT(keys); i++)
            put_number(m, record, keys[i], layer);
        moert_markup_close(m, 1);
    }
    moert_markup_close(m, 3);
}

static void put_comparison(moert_markup *m, const moert_comparison *comparison) {
    open_section(m, "Another run", NULL);
    for (size_t i = 0; i < comparison->count; i++)
        moert_markup_element(m, "p", "", "%s", comparison->line[i]);
    moert_markup_close(m, 1);
}

static void put_foot(moert_markup *m, const moert_run_record *record) {
    moert_markup_begin(m, "footer");
    if (record->ranks == 0)
        moert_markup_text(m, "Train with --profile to see times, waits, bytes and experts here.");
    else
        moert_markup_text(m, "Times are means of %zu profiled steps%s%s.", record->profiled_steps,
                          record->engine != NULL ? "; exchange " : "",
                          record->engine != NULL ? record->engine : "");
    moert_markup_close(m, 1);
}

moert_status moert_report_page(const char *name, const moert_run_record *record,
                               const moert_verdict *verdict, const moert_comparison *comparison,
                               const moert_trace_step *trace, char **page) {
    moert_markup m;
    MOERT_TRY(moert_markup_start(&m));
    put_head(&m, name, verdict);
    moert_markup_begin(&m, "body");
    put_hatching(&m);
    put_verdict(&m, name, verdict);
    moert_markup_begin(&m, "section");
    moert_markup_open(&m, "div", "class=\"pair\"");
    moert_chart_loss(&m, record);
    moert_chart_speed(&m, record);
    moert_markup_close(&m, 2);
    if (comparison != NULL)
        put_comparison(&m, comparison);
    if (moert_mean_mfu(record) > 0.0)
        put_layers(&m, record);
    if (record->ranks > 0)
        put_steps(&m, record, verdict);
    if (trace != NULL) {
        open_section(&m, "One step in time",
                     "From the trace. Upper bars: what each rank's device computes, in the colours "
                     "above. Lower bars: when the rank waits for messages.");
        moert_chart_trace(&m, trace);
        moert_markup_close(&m, 1);
    }
    if (record->waited_ms != NULL && record->ranks > 1)
        put_exchange(&m, record);
    if (record->expert_rows != NULL)
        put_experts(&m, record);
    if (record->operations != NULL)
        put_operations(&m, record);
    put_foot(&m, record);
    return moert_markup_finish(&m, page);
}
