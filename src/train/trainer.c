/* The training loop. */
#include "train/internal.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/progress.h"
#include "base/text.h"
#include "io/durable.h"
#include "train/stop.h"

/* ---- steps ---- */

/* Updates the weights, or skips the step if the gradients are not finite. All ranks have the same
 * norm, so they decide alike. */
static moert_status apply(moert_trainer *t, double norm, double rate, bool *skipped) {
    const moert_trainer_options *o = t->options;
    moert_run_state *s = &t->state;
    *skipped = !isfinite(norm);
    if (!*skipped) {
        s->applied++;
        s->skipped_in_row = 0;
        t->coefficients = moert_optimizer_coefficients(t->optimizer, rate, norm, s->applied);
        MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_UPDATE));
        MOERT_TRY(moert_optimizer_step(t->optimizer, rate, norm, s->applied));
        return moert_observers_tell(t, MOERT_EVENT_UPDATED);
    }
    s->skipped++;
    s->skipped_in_row++;
    MOERT_INFO("step %llu skipped: its gradients are not finite", (unsigned long long)s->step);
    if (s->skipped_in_row < o->max_skipped)
        return MOERT_OK;
    moert_status status =
        MOERT_FAIL(ERROR_NUMERIC,
                   "%llu steps in a row had non-finite gradients, the last is step %llu; "
                   "a lower learning rate or gradient clipping may help",
                   (unsigned long long)s->skipped_in_row, (unsigned long long)s->step);
    return moert_comm_agree(t->world, status);
}

/* Computes a step and waits for the device. If a signal arrives between the step's micro-batches,
 * sets *stopped, and the step has no effect. */
static moert_status compute(moert_trainer *t, moert_metrics_row *row, moert_model_result *mean,
                            bool *stopped) {
    MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_STEP));
    MOERT_TRY(moert_trainer_gradients(t, mean, stopped));
    if (*stopped)
        return moert_observers_tell(t, MOERT_EVENT_STOP);
    row->grad_norm = NAN;
    if (t->has_gradients)
        MOERT_TRY(moert_gradient_norm_take(t->optimizer->norm, &row->grad_norm));
    MOERT_TRY(apply(t, row->grad_norm, row->lr, &row->skipped));
    MOERT_TRY(moert_device_finish(moert_model_mesh(t->model)->device));
    return moert_observers_tell(t, MOERT_EVENT_DONE);
}

/* *loss = the loss of the held-out or test data; the losses of a blend's sources get into
 * row->more[place]. */
static moert_status take_loss(moert_trainer *t, moert_use use, size_t place, double *loss) {
    MOERT_TRY(moert_evaluation_run(t->evaluation, use, loss));
    t->row.more[place].count =
        moert_evaluation_list(t->evaluation, use, &t->row.more[place].number);
    return MOERT_OK;
}

/* Ends a training whose held-out loss has not been the lowest for `early_stop` times. */
static void stop_early(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    if (o->replay.end == 0 && o->early_stop > 0 && t->state.best.since >= o->early_stop)
        t->end = t->state.step;
}

/* Computes the held-out loss if it is due, and the test loss after the last step. */
static moert_status evaluate(moert_trainer *t, moert_metrics_row *row) {
    const moert_trainer_options *o = t->options;
    moert_best *best = &t->state.best;
    row->has_heldout = moert_trainer_due(o->eval_every, t->state.step, o->steps);
    if (row->has_heldout) {
        MOERT_TRY(take_loss(t, MOERT_HELD_OUT, 1, &row->heldout_loss));
        const bool lowest = best->step == 0 || row->heldout_loss < best->loss;
        if (lowest && isfinite(row->heldout_loss))
            *best = (moert_best){t->state.step, 0, row->heldout_loss};
        else
            best->since++;
        stop_early(t);
    }
    const bool ends = t->state.step == o->steps || (o->replay.end == 0 && t->state.step == t->end);
    row->has_test = ends && moert_data_has(t->data, MOERT_TEST);
    return row->has_test ? take_loss(t, MOERT_TEST, 2, &row->test_loss) : MOERT_OK;
}

/* Prints the held-out and test losses of the model, for a run of 0 steps. */
static moert_status only_evaluate(moert_trainer *t) {
    moert_metrics_row *row = &t->row;
    MOERT_TRY(evaluate(t, row));
    if (!t->first)
        return MOERT_OK;
    if (row->has_heldout)
        printf("held-out loss %.4f\n", row->heldout_loss);
    if (row->has_test)
        printf("test loss %.4f\n", row->test_loss);
    for (size_t i = 1; i <= 2; i++)
        for (size_t k = 0; k < row->more[i].count; k++)
            printf("%s %.4f\n", row->more[i].number[k].name, row->more[i].number[k].value);
    return MOERT_OK;
}

static moert_status step(moert_trainer *t, bool *stopped) {
    const moert_trainer_options *o = t->options;
    const size_t rows = moert_data_describe(t->data).rows;
    moert_model_result mean;
    uint64_t start = moert_clock_ns();
    moert_metrics_row *row = &t->row;
    *row = (moert_metrics_row){.step = t->state.step,
                               .lr = moert_schedule_rate(&o->schedule, t->state.step, o->steps)};
    moert_phase_set_step(t->state.step);
    MOERT_TRY(compute(t, row, &mean, stopped));
    if (*stopped)
        return MOERT_OK;
    row->loss = mean.cross_entropy;
    row->aux_loss = mean.aux;
    row->expert_load = mean.expert_load;
    if (rows > 0)
        row->epoch = (double)moert_batch_before(&o->batch, t->state.step + 1) / (double)rows;
    row->save_held_s = t->held_s;
    row->save_s = t->save_s;
    t->held_s = t->save_s = 0.0;
    t->step_s = (double)(moert_clock_ns() - start) * 1e-9;
    row->tokens_per_s = (double)(moert_trainer_batch(t) * o->length) / t->step_s;
    if (moert_batch_has_ramp(&o->batch))
        row->batch = (double)moert_trainer_batch(t);
    MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_ROW));
    t->state.step++;
    MOERT_TRY(evaluate(t, row));
    const bool writes = t->first && row->step >= o->replay.first;
    return moert_comm_agree(t->world, writes ? moert_metrics_write(t->metrics, row) : MOERT_OK);
}

/* Counts a step without computing it, because its data are left out. */
static void leave_out(moert_trainer *t) {
    MOERT_INFO("the data of step %llu are left out", (unsigned long long)t->state.step);
    t->state.step++;
    t->state.left_out++;
    t->has_gradients = false;
}

/* ---- metrics ---- */

static moert_status open_metrics(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    const bool replays = o->replay.end > 0; /* a replay writes a new file, without a progress bar */
    const moert_metrics_options metrics = {.path = o->metrics,
                                           .start = replays ? 0 : t->state.step,
                                           .total = replays ? 0 : o->steps,
                                           .events = o->tensorboard && !replays ? o->out : NULL,
                                           .console = stdout,
                                           .every = o->log_every};
    return moert_comm_agree(t->world,
                            t->first ? moert_metrics_open(&metrics, &t->metrics) : MOERT_OK);
}

/* Truncates metrics.jsonl to the steps before the present step. */
static moert_status reopen_metrics(moert_trainer *t) {
    moert_metrics *old = t->metrics;
    t->metrics = NULL;
    MOERT_TRY(moert_comm_agree(t->world, moert_metrics_close(old)));
    return open_metrics(t);
}

/* Computes a step. If the step has wrong bits, and the option on_mismatch is MOERT_MISMATCH_BACK,
 * returns to the last checkpoint. Fails if the same step had wrong bits the last time. */
static moert_status step_or_go_back(moert_trainer *t, bool *interrupted) {
    const uint64_t now = t->state.step;
    const moert_status status = step(t, interrupted);
    if (status != MOERT_ERROR_HARDWARE || t->options->on_mismatch != MOERT_MISMATCH_BACK ||
        t->wrong_step == now + 1)
        return status;
    char *message = moert_error_keep();
    t->wrong_step = now + 1;
    moert_trainer_end_save(t);
    moert_status back = moert_trainer_go_back(t);
    if (back == MOERT_OK && t->first)
        MOERT_WARN("%s; going back to step %llu", message != NULL ? message : "wrong bits",
                   (unsigned long long)t->state.step);
    if (back == MOERT_OK)
        back = reopen_metrics(t);
    free(message);
    return back;
}

/* Computes the first step of a run, which has a sign of its own: it takes longer than others, and
 * no step before it shows the time. */
static moert_status first_step(moert_trainer *t, bool *interrupted) {
    moert_progress_begin("computing the first step", 0);
    const moert_status status = step_or_go_back(t, interrupted);
    moert_progress_end();
    return status;
}

static moert_status run_steps(moert_trainer *t, bool *interrupted) {
    const moert_trainer_options *o = t->options;
    bool first = true;
    while (t->state.step < t->end && !*interrupted) {
        if (moert_step_ranges_have(&o->left_out, t->state.step))
            leave_out(t);
        else {
            MOERT_TRY(first ? first_step(t, interrupted) : step_or_go_back(t, interrupted));
            first = false;
        }
        if (!*interrupted)
            MOERT_TRY(moert_stop_asked(t->world, interrupted));
        const bool ends = t->state.step == t->end;
        if (!*interrupted && !ends)
            MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_BETWEEN));
        *interrupted &= !ends; /* a signal during the last step is ignored */
        moert_trainer_poll_save(t);
        if (t->saver == NULL)
            continue;
        const bool lowest =
            o->keep_best && t->row.has_heldout && t->state.best.step == t->state.step;
        if (*interrupted || moert_trainer_due(o->save_every, t->state.step, o->steps) || lowest ||
            (ends && o->save_last))
            MOERT_TRY(moert_trainer_save(t, *interrupted || ends));
    }
    return MOERT_OK;
}

/* Prints what the run has done. */
static void say_end(const moert_trainer *t, uint64_t from, double seconds) {
    const moert_trainer_options *o = t->options;
    const moert_best *best = &t->state.best;
    const uint64_t sequences =
        moert_batch_before(&o->batch, t->state.step) - moert_batch_before(&o->batch, from);
    const double tokens = (double)(sequences * o->length);
    if (!t->first || o->replay.end > 0)
        return;
    moert_metrics_clear(t->metrics);
    if (t->state.step > from)
        printf("trained %llu step%s, %.0f tokens, in %.1f s (%.0f tokens/s with evaluations and "
               "saves)\n",
               (unsigned long long)(t->state.step - from), t->state.step - from > 1 ? "s" : "",
               tokens, seconds, tokens / seconds);
    if (best->step > 0 && o->steps > 0)
        printf("lowest held-out loss %.4f, after step %llu of %zu\n", best->loss,
               (unsigned long long)best->step, o->steps);
    if (t->end < o->steps && t->state.step == t->end)
        printf("ended before step %zu, as %llu held-out losses since then were not lower "
               "(--early-stop)\n",
               o->steps, (unsigned long long)best->since);
    fflush(stdout);
}

/* ---- start ---- */

/* Opens the run's outputs, after all checks, so that bad input leaves no files. */
static moert_status open_outputs(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    MOERT_TRY(moert_comm_agree(t->world, t->first && o->out != NULL && o->replay.end == 0
                                             ? moert_trainer_open_directory(t)
                                             : MOERT_OK));
    MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_START));
    return open_metrics(t);
}

static moert_status begin(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    MOERT_TRY(moert_comm_agree(t->world, moert_trainer_prepare(t)));
    MOERT_TRY(
        moert_comm_agree(t->world, moert_optimizer_create(t->model, &o->optimizer, &t->optimizer)));
    MOERT_TRY(moert_trainer_resume(t));
    t->end = o->replay.end > 0 ? o->replay.end : o->steps;
    stop_early(t);
    if (t->checkpoints != NULL && o->replay.end == 0)
        MOERT_TRY(moert_trainer_create_saver(t));
    MOERT_TRY(moert_observers_open(t));
    return open_outputs(t);
}

moert_status moert_train(moert_model *model, const moert_data *data,
                         const moert_trainer_options *options, bool *interrupted) {
    moert_trainer t = moert_trainer_make(model, data, options);
    struct sigaction before[MOERT_STOP_SIGNALS];
    moert_status status;
    *interrupted = false;
    moert_stop_catch(before);
    MOERT_TRY_OR(done, begin(&t));
    const uint64_t from = t.state.step, began_ns = moert_clock_ns();
    if (options->steps == 0 && options->replay.end == 0)
        MOERT_TRY_OR(done, only_evaluate(&t));
    MOERT_TRY_OR(done, run_steps(&t, interrupted));
    const double seconds = 1e-9 * (double)(moert_clock_ns() - began_ns);
    if (options->replay_gradients != NULL && !*interrupted)
        MOERT_TRY_OR(done, moert_trainer_save_gradients(&t, t.end - 1, options->replay_gradients));
    MOERT_TRY_OR(done, moert_observers_tell(&t, MOERT_EVENT_END));
    say_end(&t, from, seconds);
done:
    moert_stop_restore(before);
    char *message = moert_error_keep();
    if (status != MOERT_OK)
        moert_metrics_discard(t.metrics);
    moert_saver_destroy(t.saver);
    status = moert_error_first(message, status, moert_metrics_close(t.metrics));
    moert_observers_close(&t);
    moert_optimizer_destroy(t.optimizer);
    moert_trainer_free(&t);
    return status;
}
