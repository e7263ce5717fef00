/* The training loop. */
#include "train/internal.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/durable.h"
#include "train/stop.h"

/* ---- steps ---- */

/* Applies the gradients, or skips the step if they are not finite. All ranks have the same norm. */
static moert_status apply(moert_trainer *t, double norm, double rate, bool *skipped) {
    const moert_trainer_options *o = t->options;
    moert_run_state *s = &t->state;
    *skipped = !isfinite(norm);
    if (!*skipped) {
        s->applied++;
        s->skipped_in_row = 0;
        const moert_adamw coefficients =
            moert_optimizer_coefficients(t->optimizer, rate, norm, s->applied);
        MOERT_TRY(moert_cross_check_keep(t->check));
        MOERT_TRY(moert_optimizer_step(t->optimizer, rate, norm, s->applied));
        MOERT_TRY(moert_cross_check_compare(t->check, &coefficients));
        return o->bias_rate > 0.0
                   ? moert_model_update_correction(t->model, t->counts, (float)o->bias_rate)
                   : MOERT_OK;
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

static bool due(uint64_t every, uint64_t done, uint64_t total) {
    return every > 0 && (done % every == 0 || done == total);
}

/* Computes a step and waits for the device. If a signal comes between its micro-batches, sets
 * *stopped; the step then has no effect, except that a profile has the times so far. */
static moert_status compute(moert_trainer *t, moert_metrics_row *row, moert_model_result *mean,
                            bool *stopped) {
    moert_device *device = moert_model_mesh(t->model)->device;
    const bool late = t->state.step >= t->breakdown.from;
    const bool traced =
        late && t->trace != NULL && t->state.step - t->breakdown.from < MOERT_TRACE_STEPS;
    const bool counts = traced || (late && t->options->profile);
    const uint64_t start = moert_clock_ns();
    moert_ledger *ledger = counts ? t->ledger : NULL;
    moert_ledger_begin(ledger);
    if (counts)
        MOERT_TRY(moert_profile_begin(device));
    MOERT_TRY(moert_trainer_gradients(t, mean, stopped));
    if (*stopped)
        return counts ? moert_profile_end(device) : MOERT_OK;
    row->grad_norm = NAN;
    if (t->has_gradients)
        MOERT_TRY(moert_gradient_norm_take(t->optimizer->norm, &row->grad_norm));
    MOERT_TRY(apply(t, row->grad_norm, row->lr, &row->skipped));
    MOERT_TRY(moert_device_finish(device));
    if (!counts)
        return MOERT_OK;
    t->breakdown.steps++;
    MOERT_TRY(moert_profile_end(device));
    if (traced)
        moert_trace_step(t->trace, t->state.step, start, moert_clock_ns());
    return moert_ledger_end(ledger, t->state.step);
}

/* Computes the held-out loss when it is due, and after the last step the test loss. */
static moert_status evaluate(moert_trainer *t, moert_metrics_row *row) {
    const moert_trainer_options *o = t->options;
    row->has_heldout = due(o->eval_every, t->state.step, o->steps);
    row->has_test = t->state.step == o->steps && moert_data_has(t->data, MOERT_TEST);
    const struct {
        moert_use use;
        bool has;
        double *loss;
    } rows[] = {{MOERT_HELD_OUT, row->has_heldout, &row->heldout_loss},
                {MOERT_TEST, row->has_test, &row->test_loss}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        if (!rows[i].has)
            continue;
        MOERT_TRY(moert_evaluation_run(t->evaluation, rows[i].use, rows[i].loss));
        row->more[1 + i].count =
            moert_evaluation_list(t->evaluation, rows[i].use, &row->more[1 + i].number);
    }
    return MOERT_OK;
}

static moert_status step(moert_trainer *t, bool *stopped) {
    const moert_trainer_options *o = t->options;
    const size_t rows = moert_data_describe(t->data).rows;
    moert_model_result mean;
    uint64_t start = moert_clock_ns();
    moert_metrics_row row = {.step = t->state.step,
                             .lr = moert_schedule_rate(&o->schedule, t->state.step, o->steps)};
    moert_phase_set_step(t->state.step);
    MOERT_TRY(compute(t, &row, &mean, stopped));
    if (*stopped)
        return MOERT_OK;
    row.loss = mean.cross_entropy;
    row.aux_loss = mean.aux;
    row.expert_load = mean.expert_load;
    if (rows > 0)
        row.epoch = (double)((t->state.step + 1) * o->batch) / (double)rows;
    row.rank_load = t->rebalance != NULL ? moert_rebalance_load(t->rebalance) : 0.0;
    row.moved_experts = (double)t->moved.experts;
    row.clones = t->rebalance != NULL ? (double)moert_rebalance_clones(t->rebalance) : 0.0;
    row.move_s = t->moved.taken_s;
    t->moved = (moert_rebalanced){0};
    row.save_held_s = t->held_s;
    row.save_s = t->save_s;
    t->held_s = t->save_s = 0.0;
    const double seconds = (double)(moert_clock_ns() - start) * 1e-9;
    row.tokens_per_s = (double)(o->batch * o->length) / seconds;
    if (t->monitor != NULL)
        row.more[0].count = moert_monitor_list(t->monitor, t->optimizer->norm, t->counts, seconds,
                                               &row.more[0].number);
    t->state.step++;
    MOERT_TRY(evaluate(t, &row));
    const bool writes = t->first && row.step >= o->replay.first;
    return moert_comm_agree(t->world, writes ? moert_metrics_write(t->metrics, &row) : MOERT_OK);
}

/* Goes past a step whose data are left out. */
static void leave_out(moert_trainer *t) {
    MOERT_INFO("the data of step %llu are left out", (unsigned long long)t->state.step);
    t->state.step++;
    t->state.left_out++;
    t->has_gradients = false;
}

/* ---- saving ---- */

/* Reports the end of a save with the result `status`. */
static void report_save(moert_trainer *t, moert_status status) {
    const moert_saved saved = moert_saver_last(t->saver);
    t->save_s = saved.taken_s;
    if (status == MOERT_OK) {
        t->saved_steps = saved.step;
        MOERT_INFO("checkpoint %s, saved in %.3f s", saved.path, saved.taken_s);
    } else if (t->first)
        MOERT_WARN("the checkpoint of step %llu is not saved, training goes on: %s",
                   (unsigned long long)saved.step, moert_last_error());
}

/* Lets a save beside training go on, or waits for its end. If it fails, training goes on. */
static void go_on_saving(moert_trainer *t, moert_status (*how)(moert_saver *)) {
    if (t->saver == NULL || !moert_saver_is_busy(t->saver))
        return;
    const moert_status status = how(t->saver);
    if (status != MOERT_OK || !moert_saver_is_busy(t->saver))
        report_save(t, status);
}

/* Saves the state after the last step, and waits until it is on disk. */
static moert_status save_now(moert_trainer *t) {
    go_on_saving(t, moert_saver_wait);
    if (t->saved_steps == t->state.step)
        return MOERT_OK;
    const moert_status status = moert_saver_write(t->saver, &t->state);
    if (status == MOERT_OK)
        report_save(t, status);
    return status;
}

/* Begins to save the state after the last step beside training. */
static void save_beside(moert_trainer *t) {
    if (moert_saver_is_busy(t->saver) && t->options->save_mode == MOERT_SAVE_SKIP) {
        if (t->first)
            MOERT_WARN("the checkpoint of step %llu is skipped: that of step %llu is not done",
                       (unsigned long long)t->state.step,
                       (unsigned long long)moert_saver_last(t->saver).step);
        return;
    }
    go_on_saving(t, moert_saver_wait);
    const moert_status status = moert_saver_begin(t->saver, &t->state);
    if (status != MOERT_OK)
        report_save(t, status);
}

static moert_status save(moert_trainer *t, bool last) {
    const uint64_t from = moert_clock_ns();
    moert_status status = MOERT_OK;
    if (last || t->options->save_mode == MOERT_SAVE_HELD)
        status = save_now(t);
    else
        save_beside(t);
    t->held_s += 1e-9 * (double)(moert_clock_ns() - from);
    return status;
}

/* ---- metrics ---- */

static moert_status open_metrics(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    const bool replays = o->replay.end > 0; /* to a new file, without a bar */
    const moert_metrics_options metrics = {.path = o->metrics,
                                           .start = replays ? 0 : t->state.step,
                                           .total = replays ? 0 : o->steps,
                                           .events = o->tensorboard && !replays ? o->out : NULL,
                                           .console = stdout,
                                           .every = o->log_every};
    return moert_comm_agree(t->world,
                            t->first ? moert_metrics_open(&metrics, &t->metrics) : MOERT_OK);
}

/* Drops the lines of steps from the present one on. */
static moert_status reopen_metrics(moert_trainer *t) {
    moert_metrics *old = t->metrics;
    t->metrics = NULL;
    MOERT_TRY(moert_comm_agree(t->world, moert_metrics_close(old)));
    return open_metrics(t);
}

/* Moves experts after a step. A save in progress still has them in their old places. */
static moert_status rebalance(moert_trainer *t) {
    go_on_saving(t, moert_saver_wait);
    MOERT_TRY(moert_rebalance_run(t->rebalance, &t->moved));
    if (t->moved.experts > 0)
        MOERT_INFO("%zu experts and clones have moved in %.3f s, there are %zu clones; the busiest "
                   "rank's rows / mean: %.3f, were %.3f",
                   t->moved.experts, t->moved.taken_s, moert_rebalance_clones(t->rebalance),
                   t->moved.after, t->moved.before);
    return MOERT_OK;
}

/* Computes a step. After wrong bits it goes back, if it may, unless they are in the same step as
 * the last ones. */
static moert_status step_or_go_back(moert_trainer *t, bool *interrupted) {
    const uint64_t now = t->state.step;
    const moert_status status = step(t, interrupted);
    if (status != MOERT_ERROR_HARDWARE || !t->options->goes_back || t->wrong_step == now + 1)
        return status;
    char *message = moert_error_keep();
    t->wrong_step = now + 1;
    go_on_saving(t, moert_saver_wait);
    moert_status back = moert_trainer_go_back(t);
    if (back == MOERT_OK && t->first)
        MOERT_WARN("%s; going back to step %llu", message != NULL ? message : "wrong bits",
                   (unsigned long long)t->state.step);
    if (back == MOERT_OK)
        back = reopen_metrics(t);
    free(message);
    return back;
}

static moert_status run_steps(moert_trainer *t, bool *interrupted) {
    const moert_trainer_options *o = t->options;
    while (t->state.step < t->end && !*interrupted) {
        if (moert_step_ranges_have(&o->left_out, t->state.step))
            leave_out(t);
        else
            MOERT_TRY(step_or_go_back(t, interrupted));
        if (!*interrupted)
            MOERT_TRY(moert_stop_asked(t->world, interrupted));
        const bool ends = t->state.step == t->end;
        if (t->rebalance != NULL && !*interrupted && !ends &&
            due(o->rebalance_every, t->state.step, o->steps))
            MOERT_TRY(rebalance(t));
        *interrupted &= !ends; /* the last step ends the run anyway */
        go_on_saving(t, moert_saver_poll);
        if (t->saver == NULL)
            continue;
        if (*interrupted || due(o->save_every, t->state.step, o->steps) || (ends && o->save_last))
            MOERT_TRY(save(t, *interrupted || ends));
    }
    return MOERT_OK;
}

/* ---- start ---- */

/* Creates the run directory. Removes an older profile if this run writes one or starts at step
 * 0. */
static moert_status open_directory(const moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    MOERT_TRY(moert_make_directories(o->out));
    return o->profile || t->state.step == 0 ? moert_ledger_clear(o->out) : MOERT_OK;
}

/* Opens the run's outputs, after all checks, so that bad input leaves no files. */
static moert_status open_outputs(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    moert_device *device = moert_model_mesh(t->model)->device;
    MOERT_TRY(moert_comm_agree(
        t->world, t->first && o->out != NULL && o->replay.end == 0 ? open_directory(t) : MOERT_OK));
    if (o->trace != NULL) {
        t->breakdown.from = moert_breakdown_from(t->state.step, o->steps);
        MOERT_TRY(moert_comm_agree(t->world, moert_profile_enable(device)));
        MOERT_TRY(moert_trace_start(device, t->world, o->trace, &t->trace));
    }
    if (o->profile && o->out != NULL)
        MOERT_TRY(moert_ledger_open(t->run, o->out, &t->ledger));
    return open_metrics(t);
}

static moert_status create_saver(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    const moert_saver_options options = {.optimizer = t->optimizer,
                                         .config_text = o->config_text,
                                         .directory = t->checkpoints,
                                         .keep = o->keep,
                                         .beside =
                                             o->save_mode != MOERT_SAVE_HELD && o->save_every > 0,
                                         .bytes_per_s = o->save_bytes_per_s};
    return moert_comm_agree(t->world, moert_saver_create(&options, &t->saver));
}

static moert_status begin(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    MOERT_TRY(moert_comm_agree(t->world, moert_trainer_prepare(t)));
    MOERT_TRY(
        moert_comm_agree(t->world, moert_optimizer_create(t->model, &o->optimizer, &t->optimizer)));
    MOERT_TRY(moert_trainer_resume(t));
    t->end = o->replay.end > 0 ? o->replay.end : o->steps;
    if (o->rebalance_every > 0 && moert_comm_size(moert_model_mesh(t->model)->experts) > 1)
        MOERT_TRY(moert_comm_agree(
            t->world, moert_rebalance_create(t->optimizer, t->run, o->clones, &t->rebalance)));
    if (t->checkpoints != NULL && o->replay.end == 0)
        MOERT_TRY(create_saver(t));
    if (o->verify_every > 0)
        MOERT_TRY(moert_cross_check_create(&(moert_cross_check_options){t->optimizer, t->run,
                                                                        o->verify_every,
                                                                        o->micro_batches, o->seed},
                                           &t->check));
    if (o->watch)
        MOERT_TRY(moert_monitor_create(
            &(moert_monitor_options){t->run, o->batch, o->length, o->peak_flops}, &t->monitor));
    if (o->profile)
        MOERT_TRY(moert_breakdown_start(moert_model_mesh(t->model)->device, t->world, t->state.step,
                                        o->steps, &t->breakdown));
    return open_outputs(t);
}

static moert_status report_profile(moert_trainer *t) {
    const char *out = t->options->out;
    char *path = NULL;
    MOERT_TRY(moert_comm_agree(
        t->world, out != NULL ? moert_text_path(&path, "%s/profile.json", out) : MOERT_OK));
    const moert_status status = moert_breakdown_report(moert_model_mesh(t->model)->device, t->world,
                                                       &t->breakdown, stdout, path);
    free(path);
    return status == MOERT_OK ? moert_ledger_write(t->ledger) : status;
}

moert_status moert_train(moert_model *model, const moert_data *data,
                         const moert_trainer_options *options, bool *interrupted) {
    moert_trainer t = moert_trainer_make(model, data, options);
    struct sigaction before[MOERT_STOP_SIGNALS];
    moert_status status;
    *interrupted = false;
    moert_stop_catch(before);
    MOERT_TRY_OR(done, begin(&t));
    MOERT_TRY_OR(done, run_steps(&t, interrupted));
    if (options->replay_gradients != NULL && !*interrupted)
        MOERT_TRY_OR(done, moert_trainer_save_gradients(&t, t.end - 1, options->replay_gradients));
    if (options->profile)
        MOERT_TRY_OR(done, report_profile(&t));
    if (options->trace != NULL)
        MOERT_TRY_OR(done, moert_trace_write(t.trace));
done:
    moert_stop_restore(before);
    char *message = moert_error_keep();
    if (status != MOERT_OK)
        moert_metrics_discard(t.metrics);
    moert_saver_destroy(t.saver);
    status = moert_error_first(message, status, moert_metrics_close(t.metrics));
    moert_cross_check_destroy(t.check);
    moert_monitor_destroy(t.monitor);
    moert_rebalance_destroy(t.rebalance);
    moert_optimizer_destroy(t.optimizer);
    moert_trace_destroy(t.trace);
    moert_ledger_destroy(t.ledger);
    moert_trainer_free(&t);
    return status;
}
