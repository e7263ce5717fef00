/* Compares two runs. Both records have their steps in ascending order. */
#include "tools/report/compare.h"

#include <math.h>
#include <stdarg.h>

#include "tools/report/verdict.h"

/* The steps that are in both runs. */
typedef struct common {
    size_t count;
    const moert_run_step *first, *last, *differs; /* of the run; NULL: none */
    const moert_run_step *other_last, *other_differs;
} common;

/* Equal numbers, or both NaN. */
static bool same(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

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
        if (found.differs == NULL && !same(a->loss, b->loss)) {
            found.differs = a;
            found.other_differs = b;
        }
        i++;
        k++;
    }
    return found;
}

static void say(moert_comparison *comparison, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say(moert_comparison *comparison, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(comparison->line[comparison->count++], MOERT_COMPARISON_BYTES, format, arguments);
    va_end(arguments);
}

void moert_comparison_make(const moert_run_record *record, const moert_run_record *other,
                           const char *name, moert_comparison *comparison) {
    const common found = find_common(record, other);
    const double speed = moert_median_speed(record), other_speed = moert_median_speed(other);
    const double mfu = moert_mean_mfu(record), other_mfu = moert_mean_mfu(other);
    comparison->count = 0;
    if (found.count == 0)
        say(comparison, "No step is both in this run and in %.100s.", name);
    else if (found.differs == NULL)
        say(comparison,
            "The losses of the %zu steps that are also in %.100s, %.0f to %.0f, are the same in "
            "every digit.",
            found.count, name, found.first->step, found.last->step);
    else
        say(comparison,
            "The losses differ from step %.0f on: %.17g, in %.100s %.17g. %zu steps, %.0f to %.0f, "
            "are in both runs.",
            found.differs->step, found.differs->loss, name, found.other_differs->loss, found.count,
            found.first->step, found.last->step);
    if (found.differs != NULL)
        say(comparison, "The loss of step %.0f is %.4f, in %.100s %.4f (%+.4f).", found.last->step,
            found.last->loss, name, found.other_last->loss,
            found.last->loss - found.other_last->loss);
    say(comparison, "Tokens per second: %.0f, in %.100s %.0f (%.2f times as many).", speed, name,
        other_speed, speed / other_speed);
    if (mfu > 0.0 && other_mfu > 0.0)
        say(comparison, "Part of the devices' peak (MFU): %.1f %%, in %.100s %.1f %%.", 100.0 * mfu,
            name, 100.0 * other_mfu);
}
