/* Chooses the steps that --verify checks, and prints a summary at the end of a run. */
#include <stdio.h>

#include "train/cross_check.h"

/*
 * With --verify-share X, rank 0 decides that a step is checked if the time of all checks, including
 * this step's check, is then at most a fraction X of the run's time. The estimated time of a step
 * without a check ignores the first step, which compiles kernels. The first check is assumed to
 * take CHECK times a step without a check, and LOAD_S seconds for loading its kernels.
 */
#define CHECK  2.0
#define LOAD_S 0.5

moert_status moert_check_plan(moert_cross_check *check) {
    const moert_trainer_options *o = check->options;
    const uint64_t every = o->verify_every;
    bool due = every > 0 && (check->step + 1) % every == 0;
    if (o->verify_share > 0.0) {
        const moert_check_times *t = &check->times;
        const double next = t->checked > 0 ? t->last : CHECK * t->plain + LOAD_S;
        due = t->plain > 0.0 && t->spent + next <= o->verify_share * (t->all + t->plain + next);
        MOERT_TRY(moert_comm_broadcast(check->world, 0, &due, sizeof due));
    }
    check->due = due;
    return MOERT_OK;
}

/* Updates the estimated time of a step that is not checked. Lowers the estimate by half of a
 * decrease, but raises it by at most a tenth of an increase, since some steps are slow by
 * chance. */
static void follow(moert_check_times *times, double step_s) {
    const double late = step_s - times->plain;
    if (!(times->plain > 0.0))
        times->plain = step_s;
    else
        times->plain += late < 0.0 ? 0.5 * late : 0.1 * (late < times->plain ? late : times->plain);
}

void moert_check_measure(moert_cross_check *check, double step_s) {
    moert_check_times *times = &check->times;
    times->all += step_s;
    times->steps++;
    if (check->due) {
        times->checked++;
        times->checked_s += step_s;
        times->last = step_s > times->plain ? step_s - times->plain : 0.0;
        times->spent += times->last;
    } else if (times->steps > 1) {
        times->plains++;
        times->plain_s += step_s;
        follow(times, step_s);
    }
}

/* The checks' share of the time of all steps: what the checked steps took beyond the mean time of
 * the other steps. */
static double share_of_time(const moert_check_times *times) {
    const double mean = times->plain_s / (double)times->plains,
                 checks = times->checked_s - (double)times->checked * mean;
    return checks > 0.0 ? checks / times->all : 0.0;
}

void moert_check_report(const moert_cross_check *check) {
    const moert_check_times *times = &check->times;
    const double steps = times->steps > 0 ? (double)times->steps : 1.0;
    printf("verified %zu of %zu steps: %.1f %% of the work was repeated", times->checked,
           times->steps, 100.0 * (double)times->checked / steps);
    if (times->plains > 0)
        printf(" in %.1f %% of the time", 100.0 * share_of_time(times));
    if (times->checked == 0)
        puts("");
    else if (times->mismatches == 0)
        puts("; all bits were equal");
    else
        printf("; bits differed in %zu comparisons\n", times->mismatches);
}
