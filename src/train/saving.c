/* The trainer's saves: starts them, waits for them, and reports their results. */
#include "base/clock.h"
#include "base/log.h"
#include "train/internal.h"

moert_status moert_trainer_create_saver(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    const moert_saver_options options = {.optimizer = t->optimizer,
                                         .config_text = o->config_text,
                                         .directory = t->checkpoints,
                                         .keep = o->keep,
                                         .keeps_best = o->keep_best,
                                         .beside =
                                             o->save_mode != MOERT_SAVE_HELD && o->save_every > 0,
                                         .bytes_per_s = o->save_bytes_per_s};
    return moert_comm_agree(t->world, moert_saver_create(&options, &t->saver));
}

/* Reports the end of a save. `status` is the result of the save. */
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

/* Advances a background save, or waits for its end, by calling `how`. If the save fails, training
 * continues. */
static void go_on_saving(moert_trainer *t, moert_status (*how)(moert_saver *)) {
    if (t->saver == NULL || !moert_saver_is_busy(t->saver))
        return;
    const moert_status status = how(t->saver);
    if (status != MOERT_OK || !moert_saver_is_busy(t->saver))
        report_save(t, status);
}

void moert_trainer_poll_save(moert_trainer *t) {
    go_on_saving(t, moert_saver_poll);
}

void moert_trainer_end_save(moert_trainer *t) {
    go_on_saving(t, moert_saver_wait);
}

/* Saves the state after the last step, and waits until it is on disk. */
static moert_status save_now(moert_trainer *t) {
    moert_trainer_end_save(t);
    if (t->saved_steps == t->state.step)
        return MOERT_OK;
    const moert_status status = moert_saver_write(t->saver, &t->state);
    if (status == MOERT_OK)
        report_save(t, status);
    return status;
}

/* Begins to save the state after the last step while training continues. */
static void save_beside(moert_trainer *t) {
    if (moert_saver_is_busy(t->saver) && t->options->save_mode == MOERT_SAVE_SKIP) {
        if (t->first)
            MOERT_WARN("the checkpoint of step %llu is skipped, since the checkpoint of step %llu "
                       "is not saved yet",
                       (unsigned long long)t->state.step,
                       (unsigned long long)moert_saver_last(t->saver).step);
        return;
    }
    moert_trainer_end_save(t);
    const moert_status status = moert_saver_begin(t->saver, &t->state);
    if (status != MOERT_OK)
        report_save(t, status);
}

moert_status moert_trainer_save(moert_trainer *t, bool last) {
    const uint64_t from = moert_clock_ns();
    moert_status status = MOERT_OK;
    if (last || t->options->save_mode == MOERT_SAVE_HELD)
        status = save_now(t);
    else
        save_beside(t);
    t->held_s += 1e-9 * (double)(moert_clock_ns() - from);
    return status;
}
