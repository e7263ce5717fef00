/* Summarizes a run in sentences. */
#include "tools/report/verdict.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "moert/plan.h"

/* ---- numbers ---- */

/* The time of a step in one class, or in all classes, as the mean over the ranks in ms. */
static double mean_time(const moert_run_record *record, size_t time) {
    double sum = 0.0;
    for (size_t r = 0; r < record->ranks; r++)
        sum += time < MOERT_TIMES ? record->rank[r].ms[time] : record->rank[r].step_ms;
    return record->ranks > 0 ? sum / (double)record->ranks : 0.0;
}

/* The mean time for which another rank waits for `rank` in a step, in ms; 0 if unknown. */
static double waited_for(const moert_run_record *record, size_t rank) {
    double sum = 0.0;
    for (size_t r = 0; record->waited_ms != NULL && record->ranks > 1 && r < record->ranks; r++)
        sum += record->waited_ms[r * record->ranks + rank] / (double)(record->ranks - 1);
    return sum;
}

/* The number of rows of a rank divided by the mean over the ranks. */
static double rank_times(const moert_run_record *record, size_t rank) {
    double mine = 0.0, all = 0.0;
    for (size_t from = 0; from < record->ranks; from++)
        for (size_t to = 0; to < record->ranks; to++) {
            const double bytes = record->dispatched_bytes[from * record->ranks + to];
            all += bytes;
            mine += to == rank ? bytes : 0.0;
        }
    return all > 0.0 ? mine * (double)record->ranks / all : 1.0;
}

/* The number of rows of an expert divided by the mean over the experts of its layer. */
static double expert_times(const moert_run_record *record, size_t layer, size_t expert) {
    const double *rows = record->expert_rows + layer * record->experts;
    double sum = 0.0;
    for (size_t e = 0; e < record->experts; e++)
        sum += rows[e];
    return sum > 0.0 ? rows[expert] * (double)record->experts / sum : 1.0;
}

/* The median of tokens per second; the mean time of a step divided by the median time; the mean MFU
 * (0: not recorded). The three values are taken over the last half of the steps, since the first
 * steps compile kernels. NaN if memory is short. */
typedef struct pace {
    double tokens_per_s, unevenness, mfu;
} pace;

static pace pace_of(const moert_run_record *record) {
    const size_t count = (record->steps + 1) / 2, first = record->steps - count;
    double *values = malloc(count * sizeof *values), sum = 0.0, mfu = 0.0;
    if (values == NULL)
        return (pace){NAN, NAN, NAN};
    for (size_t i = 0; i < count; i++) {
        values[i] = record->step[first + i].tokens_per_s;
        sum += 1.0 / values[i];
        mfu += isfinite(record->step[first + i].mfu) ? record->step[first + i].mfu : 0.0;
    }
    moert_sort_numbers(values, count);
    const double median = values[count / 2];
    free(values);
    return (pace){median, sum / (double)count * median, mfu / (double)count};
}

/* ---- words ---- */

/* Adds a line, formatted like printf. */
static void say(moert_verdict *v, bool warns, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(moert_verdict *v, bool warns, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    v->line[v->count].warns = warns;
    vsnprintf(v->line[v->count++].text, MOERT_VERDICT_BYTES, format, arguments);
    va_end(arguments);
}

static void say_speed(const moert_run_record *record, moert_verdict *v) {
    const pace p = pace_of(record);
    size_t nodes = 0;
    for (size_t r = 0; r < record->ranks; r++)
        nodes = record->rank[r].node >= nodes ? record->rank[r].node + 1 : nodes;
    int used =
        snprintf(v->headline, sizeof v->headline, "%.0f tokens/s", fmin(p.tokens_per_s, 1e15));
    if (record->ranks > 0)
        used += snprintf(v->headline + used, sizeof v->headline - (size_t)used, " on %zu rank%s",
                         record->ranks, record->ranks > 1 ? "s" : "");
    if (record->exchange != NULL)
        snprintf(v->headline + used, sizeof v->headline - (size_t)used, " of %zu host%s", nodes,
                 nodes > 1 ? "s" : "");
    if (p.unevenness > MOERT_UNEVEN)
        say(v, true,
            "The steps are uneven: on average a step takes %.1f times as long as the median step.",
            p.unevenness);
}

/* Adds a line about the three largest parts of a step. */
static void say_parts(const moert_run_record *record, moert_verdict *v) {
    const double step = mean_time(record, MOERT_TIMES);
    bool said[MOERT_TIMES] = {false};
    char text[MOERT_VERDICT_BYTES];
    int used = 0;
    if (!(step > 0.0))
        return;
    for (int n = 0; n < 3; n++) {
        size_t most = 0;
        for (size_t i = 0; i < MOERT_TIMES; i++)
            if (said[most] || (!said[i] && mean_time(record, i) > mean_time(record, most)))
                most = i;
        said[most] = true;
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s %.0f %%",
                         n == 0   ? ""
                         : n == 1 ? ", "
                                  : " and ",
                         moert_time_text((moert_time)most),
                         fmin(100.0, 100.0 * mean_time(record, most) / step));
    }
    say(v, false, "Of a mean step of %.*f ms, %s.", step < 10.0 ? 2 : 1, step, text);
}

static void say_late(const moert_run_record *record, moert_verdict *v) {
    const double step = mean_time(record, MOERT_TIMES);
    size_t late = 0;
    double second = 0.0;
    for (size_t r = 0; r < record->ranks; r++)
        if (waited_for(record, r) > waited_for(record, late))
            late = r;
    for (size_t r = 0; r < record->ranks; r++)
        second = r != late ? fmax(second, waited_for(record, r)) : second;
    const double most = waited_for(record, late);
    if (most < MOERT_LATE_FRACTION * step || step <= 0.0) {
        if (record->waited_ms != NULL && record->ranks > 1)
            say(v, false, "The ranks keep pace: none is waited for more than %.0f %% of the step.",
                ceil(100.0 * most / step));
        return;
    }
    if (second > 0.5 * most) {
        say(v, true,
            "The ranks wait for each other, none much more than the others: %.0f %% of a step.",
            100.0 * mean_time(record, MOERT_TIME_WAITING) / step);
        return;
    }
    v->late_rank = late;
    const double times = rank_times(record, late);
    if (times > 1.25)
        say(v, true,
            "Rank %zu on %s has too much to do, %.1f times its share of the rows: the others wait "
            "%.0f %% of the step for it.",
            late, record->rank[late].host, times, 100.0 * most / step);
    else
        say(v, true, "Rank %zu on %s is slow: the others wait %.0f %% of the step for it.", late,
            record->rank[late].host, 100.0 * most / step);
}

static void say_hot(const moert_run_record *record, moert_verdict *v) {
    size_t layer = 0, expert = 0, hot_layers = 0;
    for (size_t l = 0; l < record->layers; l++) {
        bool hot = false;
        for (size_t e = 0; e < record->experts; e++) {
            const double times = expert_times(record, l, e);
            hot = hot || times >= MOERT_HOT_TIMES;
            if (times > expert_times(record, layer, expert)) {
                layer = l;
                expert = e;
            }
        }
        hot_layers += hot ? 1 : 0;
    }
    if (record->layers == 0)
        return;
    const double times = expert_times(record, layer, expert);
    if (hot_layers == 0) {
        say(v, false,
            "The experts are loaded evenly: none has more than %.1f times its share of the rows.",
            times);
        return;
    }
    char more[64] = "", owner[64] = "";
    if (hot_layers > 1)
        snprintf(more, sizeof more, "; %zu layers have such hot experts", hot_layers);
    if (record->group > 1)
        snprintf(owner, sizeof owner, " (of rank %zu%s)",
                 record->expert_ranks != NULL
                     ? (size_t)record->expert_ranks[layer * record->experts + expert]
                     : moert_plan_owner(record->experts, record->group, expert),
                 record->group < record->ranks ? " of each group" : "");
    say(v, true, "Layer %zu: expert %zu%s takes %.0f %% of the rows, %.1f times its share%s.",
        layer, expert, owner, 100.0 * times / (double)record->experts, times, more);
}

static void say_loss(const moert_run_record *record, moert_verdict *v) {
    const moert_run_step *first = &record->step[0], *last = &record->step[record->steps - 1];
    double heldout = NAN;
    size_t skipped = 0;
    char more[96] = "";
    for (size_t i = 0; i < record->steps; i++) {
        heldout = isfinite(record->step[i].heldout_loss) ? record->step[i].heldout_loss : heldout;
        skipped += record->step[i].skipped == 1.0 ? 1 : 0;
    }
    if (isfinite(heldout))
        snprintf(more, sizeof more, "; held out %.4f", heldout);
    say(v, false, "The loss went from %.4f to %.4f in %.0f steps%s.", first->loss, last->loss,
        last->step - first->step + 1.0, more);
    if (skipped > 0)
        say(v, true, "%zu step%s skipped: %s gradients were not finite.", skipped,
            skipped > 1 ? "s were" : " was", skipped > 1 ? "their" : "its");
}

static void say_parting(const moert_run_record *record, moert_verdict *v) {
    double lowest = INFINITY, at = NAN, sum = 0.0, first = NAN, last = NAN; /* training: means */
    size_t count = 0, later = 0;
    for (size_t i = 0; i < record->steps; i++) {
        const moert_run_step *step = &record->step[i];
        if (isfinite(step->loss)) {
            sum += step->loss;
            count++;
        }
        if (!isfinite(step->heldout_loss))
            continue;
        last = sum / (double)count;
        sum = 0.0;
        count = 0;
        if (step->heldout_loss < lowest) {
            lowest = step->heldout_loss;
            at = step->step;
            later = 0;
        } else if (later++ == 0) {
            first = last;
        }
    }
    if (later < MOERT_PART_LATER || !(last <= (1.0 - MOERT_PART_FALL) * first))
        return;
    v->parts = at;
    say(v, true,
        "Held-out and training loss part at step %.0f: held out has not fallen below "
        "%.4f since, training fell from %.4f to %.4f.",
        at, lowest, first, last);
}

void moert_verdict_make(const moert_run_record *record, moert_verdict *verdict) {
    *verdict = (moert_verdict){.late_rank = SIZE_MAX, .parts = NAN};
    say_speed(record, verdict);
    say_late(record, verdict);
    say_hot(record, verdict);
    say_parts(record, verdict);
    say_loss(record, verdict);
    say_parting(record, verdict);
}

/* ---- comparison of two runs, each with its steps in ascending order ---- */

/* The steps that are in both runs. */
typedef struct common {
    size_t count;
    const moert_run_step *first, *last, *differs; /* steps of the first run; NULL: no such step */
    const moert_run_step *other_last, *other_differs;
} common;

static common find_common(const moert_run_record *record, const moert_run_record *other) {
    common found = {0};
    for (size_t i = 0, k = 0; i < record->steps && k < other->steps;) {
        const moert_run_step *a = &record->step[i], *b = &other->step[k];
        if (a->step != b->step) {
            *(a->step < b->step ? &i : &k) += 1;
            continue;
        }
        if (found.count++ == 0)
            found.first = a;
        found.last = a;
        found.other_last = b;
        if (found.differs == NULL && a->loss != b->loss && !(isnan(a->loss) && isnan(b->loss))) {
            found.differs = a;
            found.other_differs = b;
        }
        i++;
        k++;
    }
    return found;
}

void moert_comparison_make(const moert_run_record *record, const moert_run_record *other,
                           const char *name, moert_verdict *v) {
    const common found = find_common(record, other);
    const pace own = pace_of(record), others = pace_of(other);
    *v = (moert_verdict){.count = 0};
    if (found.count == 0)
        say(v, false, "No step is both in this run and in %.100s.", name);
    else if (found.differs == NULL)
        say(v, false,
            "The losses of the %zu steps that are also in %.100s, %.0f to %.0f, are the same in "
            "every digit.",
            found.count, name, found.first->step, found.last->step);
    else
        say(v, false,
            "The losses differ from step %.0f on: %.17g, in %.100s %.17g. %zu steps, %.0f to %.0f, "
            "are in both runs.",
            found.differs->step, found.differs->loss, name, found.other_differs->loss, found.count,
            found.first->step, found.last->step);
    if (found.differs != NULL)
        say(v, false, "The loss of step %.0f is %.4f, in %.100s %.4f (%+.4f).", found.last->step,
            found.last->loss, name, found.other_last->loss,
            found.last->loss - found.other_last->loss);
    say(v, false, "Tokens per second: %.0f, in %.100s %.0f (%.2f times as many).", own.tokens_per_s,
        name, others.tokens_per_s, own.tokens_per_s / others.tokens_per_s);
    if (own.mfu > 0.0 && others.mfu > 0.0)
        say(v, false, "Part of the devices' peak (MFU): %.1f %%, in %.100s %.1f %%.",
            100.0 * own.mfu, name, 100.0 * others.mfu);
}
