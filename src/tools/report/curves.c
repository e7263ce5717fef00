/* Curves over the steps of a run. The browser stretches the lines to the page's width, but not the
 * labels. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "tools/report/charts.h"

enum { POINTS = 600, TICKS = 4, HEIGHT = 1000 };

/* A curve; `line` and `dots` are the offsets in moert_run_step of the values to draw. */
typedef struct curve {
    const char *name, *about;
    size_t line, dots; /* dots: 0 = none (offset 0 is the step's number, which is not drawn) */
    int digits;
    bool from_zero;
} curve;

static double value_of(const moert_run_step *step, size_t offset) {
    double value;
    memcpy(&value, (const char *)step + offset, sizeof value);
    return offset > 0 ? value : NAN;
}

/* An axis from `low` to `high` with `gaps` intervals of a round length `gap`. */
typedef struct scale {
    double low, high, gap;
    int gaps;
} scale;

static scale scale_of(double low, double high) {
    const double span = fmax(high - low, fmax(fabs(high), 1e-9) * 1e-3);
    const double power = pow(10.0, floor(log10(span / TICKS))), units = span / TICKS / power;
    const double gap = power * (units <= 1.0   ? 1.0
                                : units <= 2.0 ? 2.0
                                : units <= 5.0 ? 5.0
                                               : 10.0);
    const double first = floor(low / gap), last = ceil(high / gap);
    return (scale){first * gap, last * gap, gap, (int)(last - first)};
}

static scale bounds_of(const moert_run_record *record, const curve *c) {
    double low = c->from_zero ? 0.0 : DBL_MAX, high = -DBL_MAX;
    for (size_t i = 0; i < record->steps; i++) {
        const double values[] = {value_of(&record->step[i], c->line),
                                 value_of(&record->step[i], c->dots)};
        for (size_t k = 0; k < 2; k++)
            if (isfinite(values[k])) {
                low = fmin(low, values[k]);
                high = fmax(high, values[k]);
            }
    }
    return low <= high ? scale_of(low, high) : scale_of(0.0, 1.0);
}

static double height_of(const scale *s, double value) {
    return HEIGHT * (s->high - value) / (s->high - s->low);
}

/* The line through the means of at most POINTS pieces of the run. It has a gap at a piece in which
 * a value is missing. */
static void put_line(moert_markup *m, const moert_run_record *record, const curve *c,
                     const scale *s) {
    const size_t piece = moert_ceil_div(record->steps, POINTS);
    bool drawing = false;
    moert_markup_raw(m, "\n<path class=\"line\" d=\"");
    for (size_t first = 0; first < record->steps; first += piece) {
        const size_t end = moert_min(first + piece, record->steps);
        double sum = 0.0;
        for (size_t i = first; i < end; i++)
            sum += value_of(&record->step[i], c->line);
        if (isfinite(sum))
            moert_markup_raw(m, "%s%.1f %.1f", drawing ? "L" : "M",
                             ((double)(first + end) / 2.0 - 0.5),
                             height_of(s, sum / (double)(end - first)));
        drawing = isfinite(sum);
    }
    moert_markup_raw(m, "\"/>");
}

static void put_dots(moert_markup *m, const moert_run_record *record, const curve *c,
                     const scale *s) {
    for (size_t i = 0; i < record->steps; i++) {
        const double value = value_of(&record->step[i], c->dots);
        if (isfinite(value))
            moert_markup_leaf(m, "path", "class=\"dot\" d=\"M%zu %.1fh0\"", i, height_of(s, value));
    }
}

static void put_labels(moert_markup *m, const curve *c, const scale *s) {
    moert_markup_open(m, "svg", "class=\"ylabels\" aria-hidden=\"true\"");
    for (int i = 0; i <= s->gaps; i++) {
        const double v = s->low + i * s->gap;
        moert_markup_open(m, "text", "x=\"100%%\" y=\"%.2f%%\" dy=\"4\"",
                          height_of(s, v) * 100.0 / HEIGHT);
        moert_markup_text(m, "%.*f", c->digits, v);
        moert_markup_close(m, 1);
    }
    moert_markup_close(m, 1);
}

static void put_curve(moert_markup *m, const moert_run_record *record, const curve *c) {
    const scale s = bounds_of(record, c);
    const double first = record->step[0].step, last = record->step[record->steps - 1].step;
    moert_markup_begin(m, "figure");
    moert_markup_element(m, "figcaption", "", "%s", c->name);
    moert_markup_open(m, "div", "class=\"plot\"");
    put_labels(m, c, &s);
    moert_markup_open(
        m, "svg",
        "class=\"curve\" role=\"img\" preserveAspectRatio=\"none\" viewBox=\"0 0 %zu %d\"",
        moert_max(record->steps - 1, 1), HEIGHT);
    moert_markup_element(m, "title", "", "%s", c->name);
    moert_markup_element(m, "desc", "", "%s, steps %.0f to %.0f: from %.*f to %.*f", c->about,
                         first, last, c->digits + 2, value_of(&record->step[0], c->line),
                         c->digits + 2, value_of(&record->step[record->steps - 1], c->line));
    for (int i = 0; i <= s.gaps; i++)
        moert_markup_leaf(m, "path", "class=\"grid\" d=\"M0 %.1fH%zu\"",
                          height_of(&s, s.low + i * s.gap), moert_max(record->steps - 1, 1));
    put_line(m, record, c, &s);
    put_dots(m, record, c, &s);
    moert_markup_close(m, 1);
    moert_markup_open(m, "div", "class=\"xlabels\"");
    moert_markup_element(m, "span", "", "step %.0f", first);
    moert_markup_element(m, "span", "", "%.0f", last);
    moert_markup_close(m, 3);
}

void moert_chart_loss(moert_markup *m, const moert_run_record *record) {
    curve loss = {.name = "Loss",
                  .about = "The training loss",
                  .line = offsetof(moert_run_step, loss),
                  .dots = offsetof(moert_run_step, heldout_loss)};
    const scale s = bounds_of(record, &loss);
    for (size_t i = 0; i < record->steps; i++)
        if (isfinite(record->step[i].heldout_loss))
            loss.name = "Loss; dots: held out";
    loss.digits = s.gap >= 1.0 ? 0 : s.gap >= 0.1 ? 1 : s.gap >= 0.01 ? 2 : 4;
    put_curve(m, record, &loss);
}

void moert_chart_speed(moert_markup *m, const moert_run_record *record) {
    put_curve(m, record,
              &(curve){.name = "Tokens per second",
                       .about = "Tokens per second",
                       .line = offsetof(moert_run_step, tokens_per_s),
                       .from_zero = true});
}

void moert_chart_mfu(moert_markup *m, const moert_run_record *record) {
    put_curve(m, record,
              &(curve){.name = "Part of the devices' peak (MFU)",
                       .about = "The model's FLOP/s as a part of the devices' peak",
                       .line = offsetof(moert_run_step, mfu),
                       .digits = 3,
                       .from_zero = true});
}
