/* The observer that profiles steps, and writes a table of the steps' times (breakdown.h), files for
 * moert-report (ledger.h) and a trace (trace.h). */
#include "base/clock.h"
#include "train/breakdown.h"
#include "train/internal.h"
#include "train/ledger.h"
#include "train/trace.h"

typedef struct profile {
    moert_device *device;
    moert_breakdown breakdown;
    moert_ledger ledger;
    moert_trace trace;
    /* whether the present step is profiled at all; recorded in the ledger; recorded in the trace */
    bool counts, logs, traced;
    uint64_t start; /* time at which the step began */
} profile;

static bool wanted(const moert_trainer *t) {
    return t->options->profile || t->options->trace != NULL;
}

static moert_status open(void *self, moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    profile *p = self;
    p->device = moert_model_mesh(t->model)->device;
    p->breakdown.from = moert_breakdown_from(t->state.step, o->steps);
    return o->profile ? moert_breakdown_start(p->device, t->world, moert_trainer_uses_bf16(t),
                                              t->state.step, o->steps, &p->breakdown)
                      : MOERT_OK;
}

static void close(void *self) {
    profile *p = self;
    moert_trace_close(&p->trace);
    moert_ledger_close(&p->ledger);
}

static moert_status start(void *self, moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    profile *p = self;
    if (o->trace != NULL) {
        MOERT_TRY(moert_comm_agree(t->world, moert_profile_enable(p->device)));
        MOERT_TRY(moert_trace_start(&p->trace, p->device, t->world, o->trace));
    }
    return o->profile && o->out != NULL ? moert_ledger_open(&p->ledger, t->model, o->out)
                                        : MOERT_OK;
}

static moert_status begin_step(void *self, moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    profile *p = self;
    const bool late = t->state.step >= p->breakdown.from;
    p->traced = late && o->trace != NULL && p->trace.steps < MOERT_TRACE_STEPS;
    p->logs = late && o->profile && o->out != NULL;
    p->counts = p->traced || (late && o->profile);
    p->start = moert_clock_ns();
    if (p->logs)
        moert_ledger_begin(&p->ledger);
    return p->counts ? moert_profile_begin(p->device) : MOERT_OK;
}

/* Ends the profile of a step that a signal has dropped. The profile includes the times of this
 * step. */
static moert_status stop(void *self, moert_trainer *t) {
    const profile *p = self;
    (void)t;
    return p->counts ? moert_profile_end(p->device) : MOERT_OK;
}

static moert_status end_step(void *self, moert_trainer *t) {
    profile *p = self;
    if (!p->counts)
        return MOERT_OK;
    p->breakdown.steps++;
    MOERT_TRY(moert_profile_end(p->device));
    if (p->traced)
        moert_trace_step(&p->trace, t->state.step, p->start, moert_clock_ns());
    return p->logs ? moert_ledger_end(&p->ledger, t->state.step, t->counts) : MOERT_OK;
}

static moert_status end(void *self, moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    profile *p = self;
    if (o->profile)
        MOERT_TRY(moert_breakdown_report(p->device, t->world, &p->breakdown, stdout, o->out));
    if (o->profile && o->out != NULL)
        MOERT_TRY(moert_ledger_write(&p->ledger));
    return o->trace != NULL ? moert_trace_write(&p->trace) : MOERT_OK;
}

const moert_observer moert_observer_profile = {wanted,
                                               sizeof(profile),
                                               open,
                                               close,
                                               {[MOERT_EVENT_START] = start,
                                                [MOERT_EVENT_STEP] = begin_step,
                                                [MOERT_EVENT_STOP] = stop,
                                                [MOERT_EVENT_DONE] = end_step,
                                                [MOERT_EVENT_END] = end}};
