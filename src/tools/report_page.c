/* The page of a run. */
#include "tools/report_page.h"

#include <string.h>

#include "tools/report_charts.h"

/* Colours of MOERT_TIME_TABLE, --t0 and so on, are Okabe's and Ito's, which colour-blind people
 * tell apart; waiting is hatched besides. */
static const char style[] =
    "\n:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1a1f26;--muted:#5b6673;"
    "--line:#dfe3e8;--heat:#0b4f8a;--onheat:#fff;--hot:#d55e00;--curve:#0072b2;--t0:#0072b2;"
    "--t1:#56b4e9;--t2:#009e73;--t3:#e69f00;--t4:#d55e00;--t5:#a9b1ba}"
    "\n@media(prefers-color-scheme:dark){:root{--page:#101418;--card:#181e24;--ink:#e8ecf0;"
    "--muted:#9aa7b4;--line:#2c353e;--heat:#7cc0f5;--onheat:#08131d;--hot:#ff8c3b;--curve:#56b4e9;"
    "--t0:#2f8fd0;--t1:#8fd0f7;--t2:#22b98c;--t3:#f0b429;--t4:#e8692a;--t5:#66717d}}"
    "\n*{box-sizing:border-box}"
    "\nbody{margin:0 auto;padding:1.2rem 1rem 3rem;max-width:62rem;background:var(--page);"
    "color:var(--ink);font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
    "Sans',sans-serif;"
    "font-variant-numeric:tabular-nums}"
    "\nheader p{margin:0;color:var(--muted)}"
    "\nh1{margin:.1rem 0 .6rem;font-size:1.7rem;line-height:1.2}"
    "\nh2{margin:0 0 .2rem;font-size:1.08rem}"
    "\nsection{margin:0 0 1rem;padding:1rem 1.1rem;background:var(--card);border:1px solid "
    "var(--line);"
    "border-radius:10px;break-inside:avoid}"
    "\nsection>p{margin:0 0 .8rem;color:var(--muted);max-width:46rem}"
    "\nul{margin:0;padding:0;list-style:none}"
    "\n.verdict li{padding:.28rem 0 .28rem 1.7rem;position:relative;font-size:1.03rem}"
    "\n.verdict "
    "li::before{content:'\xE2\x9C\x93';position:absolute;left:.2rem;color:var(--t2);font-weight:"
    "700}"
    "\n.verdict li.warns{font-weight:600}"
    "\n.verdict li.warns::before{content:'\xE2\x96\xB2';left:.2rem;color:var(--hot)}"
    "\nfigure{margin:0;min-width:0}"
    "\nfigcaption{margin:.2rem 0 .4rem;font-weight:600}"
    "\n.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(var(--least,19rem),100%)"
    ",1fr));gap:"
    "1rem 2rem}"
    "\n.plot{display:grid;grid-template-columns:3.4rem 1fr;gap:0 .5rem}"
    "\n.plot svg{display:block;width:100%;height:11rem;overflow:visible}"
    "\n.ylabels text{text-anchor:end;font-size:12px;fill:var(--muted)}"
    "\n.xlabels{grid-column:2;display:flex;justify-content:space-between;padding-top:.25rem;"
    "font-size:12px;color:var(--muted)}"
    "\n.curve path{vector-effect:non-scaling-stroke;fill:none}"
    "\n.grid{stroke:var(--line);stroke-width:1}"
    "\n.line{stroke:var(--curve);stroke-width:2;stroke-linejoin:round}"
    "\n.dot{stroke:var(--hot);stroke-width:8;stroke-linecap:round}"
    "\n.legend{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;margin:.2rem 0 .7rem;font-size:13.5px}"
    "\n.key{width:.85rem;height:.85rem;margin-right:.4rem;vertical-align:-.08rem;border-radius:2px}"
    "\n.bars{display:grid;grid-template-columns:auto 1fr auto;gap:.35rem .7rem;align-items:center}"
    "\n.bar{display:block;width:100%;height:1.5rem}"
    "\n.many{gap:1px .7rem;font-size:11px;line-height:1.1}.many .bar{height:.7rem}"
    "\n.who{text-align:right}.who small{color:var(--muted)}.late{color:var(--hot);font-weight:700}"
    "\n.ms{text-align:right;color:var(--muted);font-size:13px}"
    "\n.t0{fill:var(--t0)}.t1{fill:var(--t1)}.t2{fill:var(--t2)}.t3{fill:var(--t3)}"
    ".t4{fill:url(#waiting)}.t5{fill:var(--t5)}"
    "\n.heat{display:block;width:100%;height:auto}"
    "\n.heat text{font-size:12px;fill:var(--ink);text-anchor:middle}"
    "\n.heat .axis{fill:var(--muted);text-anchor:start}.heat .tick{fill:var(--muted)}"
    ".heat .row{text-anchor:end}"
    "\n.cell rect{fill:var(--heat)}.cell.deep text{fill:var(--onheat)}"
    "\n.cell.hot rect{stroke:var(--hot);stroke-width:2.5}.cell.hot text{font-weight:700}"
    "\n.heat line{stroke:var(--ink);stroke-width:1.5}"
    "\n.frame{display:inline-block;width:.85rem;height:.85rem;border:2.5px solid "
    "var(--hot);vertical-align:-.1rem}"
    "\n.wide{overflow-x:auto}"
    "\ntable{border-collapse:collapse;font-size:13.5px}"
    "\nth,td{padding:.22rem .6rem;text-align:right;border-bottom:1px solid "
    "var(--line);white-space:nowrap}"
    "\nth{color:var(--muted);font-weight:600}"
    "\n.operations{width:100%}.operations th:first-child{text-align:left}"
    "\n.operations th[scope=row]{color:var(--ink);font-weight:400}"
    "\ndetails{margin-top:.6rem}summary{cursor:pointer;color:var(--muted);font-size:13px}"
    "\nfooter{color:var(--muted);font-size:13px}"
    "\n@media(max-width:34rem){body{padding:.7rem .6rem 2rem}section{padding:.8rem .7rem}"
    "h1{font-size:1.35rem}.plot{grid-template-columns:2.6rem 1fr}}"
    "\n@media "
    "print{:root{--page:#fff;--card:#fff;--ink:#000;--muted:#444;--line:#ccc;--heat:#0b4f8a;"
    "--onheat:#fff;--hot:#c04f00;--curve:#0072b2;--t0:#0072b2;--t1:#56b4e9;--t2:#009e73;--t3:#"
    "e69f00;"
    "--t4:#d55e00;--t5:#a9b1ba}body{max-width:none;padding:0;font-size:11px}section{border:0;"
    "padding:.4rem 0}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\n";

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
    moert_markup_raw(m, style);
    moert_markup_close(m, 2);
}

/* The hatching of what waits, for all drawings. */
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

static void put_curves(moert_markup *m, const moert_run_record *record) {
    moert_markup_begin(m, "section");
    moert_markup_open(m, "div", "class=\"pair\"");
    moert_chart_loss(m, record);
    moert_chart_speed(m, record);
    moert_markup_close(m, 2);
}

/* The bars' numbers: a row for each rank. */
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
        "Of a step. The last rank to enter a message is charged with the time that the others "
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
    {"share", "share %", 1, 100.0},
    {"gflops", "GFLOP/s", 1, 1.0},
    {"peak_share", "of peak %", 1, 100.0},
    {"gbps", "GB/s", 1, 1.0},
    {"copy_share", "of copy %", 1, 100.0},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static void put_operations(moert_markup *m, const moert_run_record *record) {
    json_t *row;
    size_t i;
    open_section(m, "Operations",
                 "Of a step, means over the ranks; beside each rate, what it is of the best the "
                 "device does.");
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
                               const moert_verdict *verdict, char **page) {
    moert_markup m;
    MOERT_TRY(moert_markup_start(&m));
    put_head(&m, name, verdict);
    moert_markup_begin(&m, "body");
    put_hatching(&m);
    put_verdict(&m, name, verdict);
    put_curves(&m, record);
    if (record->ranks > 0)
        put_steps(&m, record, verdict);
    if (record->waited_ms != NULL && record->ranks > 1)
        put_exchange(&m, record);
    if (record->expert_rows != NULL)
        put_experts(&m, record);
    if (record->operations != NULL)
        put_operations(&m, record);
    put_foot(&m, record);
    return moert_markup_finish(&m, page);
}
