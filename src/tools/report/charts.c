/* Bars and heat maps; curves are in curves.c. */
#include "tools/report/charts.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

/* ---- bars ---- */

/* One rank's bar; `scale_ms` is the time of the full width. */
static void put_bar(moert_markup *m, const moert_run_rank *rank, size_t number, double scale_ms) {
    double at = 0.0;
    moert_markup_open(m, "svg", "class=\"bar\" role=\"img\"");
    moert_markup_element(m, "title", "", "rank %zu: %.2f ms", number, rank->step_ms);
    for (size_t i = 0; i < MOERT_TIMES; i++) {
        const double width = 100.0 * rank->ms[i] / scale_ms;
        if (width < 0.005)
            continue;
        moert_markup_open(m, "rect",
                          "class=\"t%zu\" x=\"%.2f%%\" width=\"%.2f%%\" height=\"100%%\"", i, at,
                          width);
        moert_markup_element(m, "title", "", "rank %zu, %s: %.2f ms, %.0f %%", number,
                             moert_time_text((moert_time)i), rank->ms[i],
                             100.0 * rank->ms[i] / rank->step_ms);
        moert_markup_close(m, 1);
        at += width;
    }
    moert_markup_close(m, 1);
}

static void put_legend(moert_markup *m, const moert_run_record *record) {
    moert_markup_open(m, "ul", "class=\"legend\"");
    for (size_t i = 0; i < MOERT_TIMES; i++) {
        const double part = moert_mean_time(record, (moert_time)i) / moert_mean_step(record);
        moert_markup_begin(m, "li");
        moert_markup_open(m, "svg", "class=\"key\" aria-hidden=\"true\"");
        moert_markup_leaf(m, "rect", "class=\"t%zu\" width=\"100%%\" height=\"100%%\"", i);
        moert_markup_close(m, 1);
        moert_markup_text(m, "%s ", moert_time_text((moert_time)i));
        moert_markup_element(m, "b", "", "%.0f %%", 100.0 * part);
        moert_markup_close(m, 1);
    }
    moert_markup_close(m, 1);
}

void moert_chart_times(moert_markup *m, const moert_run_record *record,
                       const moert_verdict *verdict) {
    double scale = 0.0;
    for (size_t r = 0; r < record->ranks; r++) {
        double sum = 0.0;
        for (size_t i = 0; i < MOERT_TIMES; i++)
            sum += record->rank[r].ms[i];
        scale = fmax(scale, fmax(sum, record->rank[r].step_ms));
    }
    put_legend(m, record);
    moert_markup_open(m, "div", "class=\"bars%s\"", record->ranks > 16 ? " many" : "");
    for (size_t r = 0; r < record->ranks; r++) {
        const bool late = r == verdict->late_rank;
        moert_markup_open(m, "span", "class=\"who%s\"", late ? " late" : "");
        moert_markup_text(m, "%s%zu", late ? "\xE2\x96\xB6 " : "", r);
        if (r == 0 || record->rank[r].node != record->rank[r - 1].node)
            moert_markup_element(m, "small", "", " %s",
                                 record->rank[r].host != NULL ? record->rank[r].host : "");
        moert_markup_close(m, 1);
        put_bar(m, &record->rank[r], r, scale);
        moert_markup_element(m, "span", "class=\"ms\"", "%.1f ms", record->rank[r].step_ms);
    }
    moert_markup_close(m, 1);
}

/* ---- heat maps ---- */

/* The cells of a heat map, in units of the viewBox. */
typedef struct heat {
    size_t rows, columns;
    double width, height, left, top; /* size of a cell; margins before the first cell */
    bool numbers;                    /* cells have room for numbers */
} heat;

static double width_of(const heat *h) {
    return h->left + h->width * (double)h->columns + 2.0;
}

static void open_heat(moert_markup *m, const heat *h, const char *title, const char *about) {
    const double width = width_of(h), height = h->top + h->height * (double)h->rows + 2.0;
    moert_markup_open(
        m, "svg",
        "class=\"heat\" role=\"img\" viewBox=\"0 0 %.0f %.0f\" style=\"max-width:%.0fpx\"", width,
        height, width * 1.15);
    moert_markup_element(m, "title", "", "%s", title);
    moert_markup_element(m, "desc", "", "%s", about);
}

static void put_label(moert_markup *m, const char *class, double x, double y, const char *text) {
    moert_markup_open(m, "text", "class=\"%s\" x=\"%.1f\" y=\"%.1f\"", class, x, y);
    moert_markup_text(m, "%s", text);
    moert_markup_close(m, 1);
}

/* A cell with opacity `part` (0 to 1), a tip and, if cells have room, a number. */
typedef struct heat_cell {
    size_t row, column;
    double part;
    bool framed;
    char number[32], tip[160];
} heat_cell;

static void put_cell(moert_markup *m, const heat *h, const heat_cell *c) {
    const double x = h->left + h->width * (double)c->column;
    const double y = h->top + h->height * (double)c->row;
    const double gap = h->width > 12.0 && h->height > 12.0 ? 1.0 : 0.0,
                 inset = c->framed ? 2.0 : gap;
    moert_markup_open(m, "g", "class=\"cell%s%s\"", c->part > 0.65 ? " deep" : "",
                      c->framed ? " hot" : "");
    moert_markup_element(m, "title", "", "%s", c->tip);
    moert_markup_leaf(
        m, "rect", "x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill-opacity=\"%.3f\"",
        x + inset / 2.0, y + inset / 2.0, h->width - inset, h->height - inset, fmax(c->part, 0.02));
    if (h->numbers)
        put_label(m, "number", x + h->width / 2.0, y + h->height / 2.0 + 4.0, c->number);
    moert_markup_close(m, 1);
}

/* Column numbers above the cells and row numbers before them, as many as fit. */
static void put_axes(moert_markup *m, const heat *h, const char *rows, const char *columns) {
    const size_t every_column = (size_t)ceil(22.0 / h->width),
                 every_row = (size_t)ceil(13.0 / h->height);
    char text[64];
    snprintf(text, sizeof text, "%s \xE2\x86\x92", columns);
    put_label(m, "axis", h->left, 12.0, text);
    snprintf(text, sizeof text, "%s \xE2\x86\x93", rows);
    put_label(m, "axis", 0.0, h->top - 5.0, text);
    for (size_t i = 0; i < h->columns; i += every_column) {
        snprintf(text, sizeof text, "%zu", i);
        put_label(m, "tick", h->left + h->width * ((double)i + 0.5), h->top - 5.0, text);
    }
    for (size_t i = 0; i < h->rows; i += every_row) {
        snprintf(text, sizeof text, "%zu", i);
        put_label(m, "tick row", h->left - 7.0, h->top + h->height * ((double)i + 0.5) + 4.0, text);
    }
}

/* Prints about three digits; bytes with a decimal prefix. */
static void put_short(char *text, size_t bytes, double value, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    const bool scales = strcmp(unit, "bytes") == 0;
    size_t at = 0;
    for (; scales && value >= 1000.0 && at + 1 < MOERT_COUNT(prefixes); at++)
        value /= 1000.0;
    const int digits = value >= 100.0 || value == 0.0 ? 0 : value >= 10.0 ? 1 : 2;
    snprintf(text, bytes, "%.*f%s", digits, value, prefixes[at]);
}

/* Draws lines between the ranks of different nodes. */
static void put_borders(moert_markup *m, const heat *h, const moert_run_record *record) {
    for (size_t r = 1; r < record->ranks; r++) {
        const double x = h->left + h->width * (double)r, y = h->top + h->height * (double)r;
        if (record->rank[r].node == record->rank[r - 1].node)
            continue;
        moert_markup_leaf(m, "line", "x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"", x, x,
                          h->top, h->top + h->height * (double)h->rows);
        moert_markup_leaf(m, "line", "x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"", h->left,
                          h->left + h->width * (double)h->columns, y, y);
    }
}

static void put_numbers(moert_markup *m, const moert_run_record *record, const double *values,
                        const moert_matrix_text *text) {
    char number[32];
    moert_markup_begin(m, "details");
    moert_markup_element(m, "summary", "", "Numbers, in %s", text->unit);
    moert_markup_open(m, "div", "class=\"wide\"");
    moert_markup_begin(m, "table");
    moert_markup_begin(m, "tr");
    moert_markup_element(m, "th", "", "%s \xE2\x86\x93 %s \xE2\x86\x92", text->row, text->column);
    for (size_t c = 0; c < record->ranks; c++)
        moert_markup_element(m, "th", "scope=\"col\"", "%zu", c);
    moert_markup_close(m, 1);
    for (size_t r = 0; r < record->ranks; r++) {
        moert_markup_begin(m, "tr");
        moert_markup_element(m, "th", "scope=\"row\"", "%zu", r);
        for (size_t c = 0; c < record->ranks; c++) {
            put_short(number, sizeof number, values[r * record->ranks + c], text->unit);
            moert_markup_element(m, "td", "", "%s", number);
        }
        moert_markup_close(m, 1);
    }
    moert_markup_close(m, 3);
}

static heat matrix_of(size_t ranks) {
    const bool numbers = ranks <= 12;
    const double cell = numbers ? 46.0 : fmax(360.0 / (double)ranks, 4.0);
    return (heat){ranks, ranks, cell, numbers ? 30.0 : cell, 62.0, 32.0, numbers};
}

double moert_matrix_width(size_t ranks) {
    const heat h = matrix_of(ranks);
    return width_of(&h);
}

void moert_chart_matrix(moert_markup *m, const moert_run_record *record, const double *values,
                        const moert_matrix_text *text) {
    const size_t ranks = record->ranks;
    const heat h = matrix_of(ranks);
    double most = 0.0;
    char number[32], about[200];
    for (size_t i = 0; i < ranks * ranks; i++)
        most = fmax(most, values[i]);
    put_short(number, sizeof number, most, text->unit);
    snprintf(about, sizeof about, "A heat map of %zu by %zu ranks; the largest value is %s %s.",
             ranks, ranks, number, text->unit);
    moert_markup_begin(m, "figure");
    moert_markup_element(m, "figcaption", "", "%s", text->name);
    open_heat(m, &h, text->name, about);
    put_axes(m, &h, text->row, text->column);
    for (size_t r = 0; r < ranks; r++)
        for (size_t c = 0; c < ranks; c++) {
            const double value = values[r * ranks + c];
            heat_cell own = {.row = r, .column = c, .part = most > 0.0 ? value / most : 0.0};
            put_short(own.number, sizeof own.number, value, text->unit);
            snprintf(own.tip, sizeof own.tip, "%s %zu, %s %zu: %s %s", text->row, r, text->column,
                     c, own.number, text->unit);
            put_cell(m, &h, &own);
        }
    put_borders(m, &h, record);
    moert_markup_close(m, 1);
    put_numbers(m, record, values, text);
    moert_markup_close(m, 1);
}

void moert_chart_load(moert_markup *m, const moert_run_record *record) {
    const bool numbers = record->experts <= 16;
    const heat h = {record->layers,
                    record->experts,
                    numbers ? 46.0 : fmax(820.0 / (double)record->experts, 5.0),
                    numbers ? 30.0 : fmax(fmin(400.0 / (double)record->layers, 22.0), 8.0),
                    52.0,
                    32.0,
                    numbers};
    double most = 0.0;
    for (size_t l = 0; l < record->layers; l++)
        for (size_t e = 0; e < record->experts; e++)
            most = fmax(most, moert_expert_times(record, l, e));
    open_heat(m, &h, "Rows of each expert, layer by layer",
              "A heat map of layers by experts: the part of a layer's rows that each expert takes. "
              "Hot experts are framed.");
    put_axes(m, &h, "layer", "expert");
    for (size_t l = 0; l < record->layers; l++)
        for (size_t e = 0; e < record->experts; e++) {
            const double times = moert_expert_times(record, l, e);
            heat_cell own = {.row = l,
                             .column = e,
                             .part = most > 0.0 ? times / most : 0.0,
                             .framed = times >= MOERT_HOT_TIMES};
            snprintf(own.number, sizeof own.number, "%.0f %%",
                     100.0 * times / (double)record->experts);
            snprintf(own.tip, sizeof own.tip,
                     "layer %zu, expert %zu: %.0f rows a step, %.1f %%, %.2f times its share", l, e,
                     record->expert_rows[l * record->experts + e],
                     100.0 * times / (double)record->experts, times);
            put_cell(m, &h, &own);
        }
    moert_markup_close(m, 1);
}
