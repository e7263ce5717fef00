/* The training loop. */
#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/durable.h"

typedef struct trainer {
    moert_model *model;
    const moert_data *data;
    const moert_trainer_options *options;
    moert_comm *world;
    bool first; /* rank 0 */
    moert_optimizer *optimizer;
    moert_metrics *metrics;
    moert_run_state state;
    int32_t *input, *target; /* this rank's sequences of a micro-batch */
} trainer;

static volatile sig_atomic_t terminated;

static void on_signal(int number)
{
    (void)number;
    terminated = 1;
}

static moert_status check_options(const moert_trainer_options *o, const moert_data *data)
{
    moert_data_info info = moert_data_describe(data);
    if (o->micro_batches == 0 || o->batch % o->micro_batches != 0)
        return MOERT_FAIL(ERROR_USAGE, "a batch of %zu sequences cannot be cut into %zu micro-batches", o->batch,
                          o->micro_batches);
    if (info.steps > 0 && o->batch != info.batch)
        return MOERT_FAIL(ERROR_MISMATCH, "the token file has batches of %zu sequences, not %zu", info.batch, o->batch);
    if (info.steps > 0 && o->steps > info.steps)
        return MOERT_FAIL(ERROR_MISMATCH, "%llu steps, but the token file holds %zu batches", (unsigned long long)o->steps,
                          info.steps);
    if (o->save_every > 0 && o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--save-every needs a folder for the checkpoints; give --out DIR");
    if (o->resume != NULL && strcmp(o->resume, "auto") == 0 && o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--resume auto needs the folder of the run; give --out DIR");
    return moert_data_check_length(data, o->length);
}

/* ---- batches ---- */

/* Runs sequences [first, first + count) of the step (or of the held-out part) forward. */
static moert_status forward(trainer *t, bool held_out, size_t first, size_t count)
{
    const moert_trainer_options *o = t->options;
    size_t mine, share, length = o->length;
    moert_status status = MOERT_OK;
    moert_phase_set("data");
    moert_model_share(count, moert_comm_rank(t->world), moert_comm_size(t->world), &mine, &share);
    for (size_t i = 0; i < share && status == MOERT_OK; i++) {
        size_t index = first + mine + i;
        int32_t *input = t->input + i * length, *target = t->target + i * length;
        status = held_out ? moert_data_heldout_sequence(t->data, index, o->eval_sequences, length, input, target)
                          : moert_data_sequence(t->data, (moert_draw){t->state.seed, t->state.step, index}, length, input,
                                                target);
    }
    MOERT_TRY(moert_comm_agree(t->world, status));
    const moert_model_batch batch = {count, length, t->input, t->target};
    return moert_model_forward(t->model, &batch);
}

/* Mean cross-entropy over the held-out sequences, in pieces of the micro-batch. */
static moert_status held_out_loss(trainer *t, double *loss)
{
    const moert_trainer_options *o = t->options;
    size_t piece = o->batch / o->micro_batches;
    moert_model_result result;
    double sum = 0.0;
    for (size_t first = 0; first < o->eval_sequences; first += piece) {
        size_t count = moert_min(piece, o->eval_sequences - first);
        MOERT_TRY(forward(t, true, first, count));
        MOERT_TRY(moert_model_loss(t->model, &o->losses, 0.0, &result));
        sum += result.cross_entropy * (double)count;
    }
    *loss = sum / (double)o->eval_sequences;
    return MOERT_OK;
}

/* Losses and gradients of one step; means over the micro-batches, in order. */
static moert_status compute_gradients(trainer *t, moert_model_result *mean)
{
    const moert_trainer_options *o = t->options;
    size_t pieces = o->micro_batches, piece = o->batch / pieces;
    double factor = 1.0 / (double)pieces;
    *mean = (moert_model_result){0};
    for (size_t i = 0; i < pieces; i++) {
        moert_model_result result;
        MOERT_TRY(forward(t, false, i * piece, piece));
        MOERT_TRY(moert_model_loss(t->model, &o->losses, factor, &result));
        MOERT_TRY(moert_model_backward(t->model, i, pieces));
        mean->cross_entropy += result.cross_entropy * factor;
        mean->aux += result.aux * factor;
        mean->z += result.z * factor;
        mean->expert_load = fmax(mean->expert_load, result.expert_load);
    }
    return MOERT_OK;
}

/* ---- steps ---- */

/* Applies the gradients, or leaves the step out when they are not finite; all ranks see the same norm. */
static moert_status apply(trainer *t, double norm, double rate, bool *skipped)
{
    const moert_trainer_options *o = t->options;
    moert_run_state *s = &t->state;
    *skipped = !isfinite(norm);
    if (!*skipped) {
        s->applied++;
        s->skipped_in_row = 0;
        return moert_optimizer_step(t->optimizer, rate, norm, s->applied);
    }
    s->skipped++;
    s->skipped_in_row++;
    MOERT_INFO("step %llu skipped: its gradients are not finite", (unsigned long long)s->step);
    if (s->skipped_in_row < o->max_skipped)
        return MOERT_OK;
    moert_status status = MOERT_FAIL(ERROR_NUMERIC, "%llu steps in a row had non-finite gradients, the last is step %llu; "
                                                    "a lower learning rate or gradient clipping may help",
                                     (unsigned long long)s->skipped_in_row, (unsigned long long)s->step);
    return moert_comm_agree(t->world, status);
}

static bool due(uint64_t every, uint64_t done, uint64_t total)
{
    return every > 0 && (done % every == 0 || done == total);
}

static moert_status step(trainer *t)
{
    const moert_trainer_options *o = t->options;
    moert_model_result mean;
    double norm, rate = moert_schedule_rate(&o->schedule, t->state.step, o->steps);
    uint64_t start = moert_clock_ns();
    moert_metrics_row row = {.step = t->state.step, .lr = rate};
    moert_phase_set_step(t->state.step);
    MOERT_TRY(compute_gradients(t, &mean));
    MOERT_TRY(moert_optimizer_norm(t->optimizer, &norm));
    MOERT_TRY(apply(t, norm, rate, &row.skipped));
    MOERT_TRY(moert_device_finish(moert_model_mesh(t->model)->device));
    row.loss = mean.cross_entropy;
    row.aux_loss = mean.aux;
    row.grad_norm = norm;
    row.expert_load = mean.expert_load;
    row.tokens_per_s = (double)(o->batch * o->length) / ((double)(moert_clock_ns() - start) * 1e-9);
    t->state.step++;
    if (due(o->eval_every, t->state.step, o->steps)) {
        row.has_heldout = true;
        MOERT_TRY(held_out_loss(t, &row.heldout_loss));
    }
    return moert_comm_agree(t->world, t->first ? moert_metrics_write(t->metrics, &row) : MOERT_OK);
}

/* ---- saving ---- */

static moert_status save_checkpoint(trainer *t)
{
    char *folder = moert_text_format("%s/checkpoints", t->options->out);
    char *path = folder != NULL ? moert_checkpoint_path(folder, t->state.step) : NULL;
    moert_status status = path != NULL ? moert_checkpoint_save(t->optimizer, t->options->config_text, &t->state, path)
                                       : MOERT_FAIL(ERROR_MEMORY, "no room for a path");
    if (status == MOERT_OK)
        status = moert_comm_agree(t->world, t->first ? moert_checkpoint_prune(folder, t->options->keep_last) : MOERT_OK);
    if (status == MOERT_OK)
        MOERT_INFO("checkpoint %s", path);
    free(path);
    free(folder);
    return status;
}

/* True on all ranks when any of them got a signal to stop. Collective. */
static moert_status any_terminated(trainer *t, bool *any)
{
    unsigned char mine = terminated != 0, *all;
    MOERT_TRY(moert_alloc(&all, moert_comm_size(t->world), 1));
    moert_status status = moert_comm_allgather(t->world, &mine, 1, all);
    *any = false;
    for (size_t r = 0; r < moert_comm_size(t->world); r++)
        *any |= all[r] != 0;
    free(all);
    return status;
}

static moert_status run_steps(trainer *t, bool *interrupted)
{
    const moert_trainer_options *o = t->options;
    while (t->state.step < o->steps && !*interrupted) {
        MOERT_TRY(step(t));
        MOERT_TRY(any_terminated(t, interrupted));
        *interrupted &= t->state.step < o->steps; /* the last step ends the run anyway */
        if (o->out != NULL && (*interrupted || due(o->save_every, t->state.step, o->steps)))
            MOERT_TRY(save_checkpoint(t));
    }
    return MOERT_OK;
}

/* ---- beginning ---- */

static moert_status check_state(const trainer *t, const char *path, const moert_run_state *s)
{
    const moert_trainer_options *o = t->options;
    const struct {
        const char *what;
        uint64_t saved, given;
    } rows[] = {{"seed", s->seed, o->seed}, {"batch", s->batch, o->batch}, {"sequence length", s->length, o->length}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].saved != rows[i].given)
            return MOERT_FAIL(ERROR_MISMATCH, "%s was made with %s %llu, this run has %llu", path, rows[i].what,
                              (unsigned long long)rows[i].saved, (unsigned long long)rows[i].given);
    if (s->data_tokens != t->state.data_tokens && t->first)
        MOERT_WARN("%s was made on data of %llu tokens, this data has %llu", path, (unsigned long long)s->data_tokens,
                   (unsigned long long)t->state.data_tokens);
    return MOERT_OK;
}

/* The checkpoint to start from, to be freed; NULL for a fresh start. Rank 0 looks, all ranks get its answer. */
static moert_status find_checkpoint(trainer *t, char **path)
{
    const moert_trainer_options *o = t->options;
    *path = NULL;
    if (o->resume == NULL)
        return MOERT_OK;
    if (strcmp(o->resume, "auto") != 0) {
        *path = strdup(o->resume);
        return *path != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room for a path");
    }
    char *folder = moert_text_format("%s/checkpoints", o->out);
    moert_status status = folder != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room for a path");
    if (status == MOERT_OK && t->first)
        status = moert_checkpoint_latest(folder, path);
    uint64_t length = *path != NULL ? strlen(*path) + 1 : 0;
    free(folder);
    MOERT_TRY(moert_comm_agree(t->world, status));
    MOERT_TRY(moert_comm_broadcast(t->world, 0, &length, sizeof length));
    if (length == 0)
        return MOERT_OK;
    if (*path == NULL)
        MOERT_TRY(moert_alloc(path, length, 1));
    return moert_comm_broadcast(t->world, 0, *path, length);
}

static moert_status resume(trainer *t)
{
    char *path;
    moert_run_state saved;
    MOERT_TRY(find_checkpoint(t, &path));
    if (path == NULL)
        return MOERT_OK;
    moert_status status = moert_checkpoint_load(t->optimizer, path, &saved);
    if (status == MOERT_OK)
        status = moert_comm_agree(t->world, check_state(t, path, &saved));
    if (status == MOERT_OK) {
        MOERT_INFO("resumed from %s at step %llu", path, (unsigned long long)saved.step);
        t->state = saved;
    }
    free(path);
    return status;
}

/* Room for this rank's sequences, and the state of a fresh run. */
static moert_status prepare(trainer *t)
{
    const moert_trainer_options *o = t->options;
    MOERT_TRY(check_options(o, t->data));
    size_t room = moert_ceil_div(o->batch / o->micro_batches, moert_comm_size(t->world)) * o->length;
    t->state = (moert_run_state){.seed = o->seed,
                                 .batch = o->batch,
                                 .length = o->length,
                                 .data_tokens = moert_data_describe(t->data).tokens};
    MOERT_TRY(moert_alloc(&t->input, room, sizeof *t->input));
    return moert_alloc(&t->target, room, sizeof *t->target);
}

/* Rank 0 opens what the run writes: only now, so that bad input leaves nothing behind. */
static moert_status open_outputs(trainer *t)
{
    const moert_trainer_options *o = t->options;
    const moert_metrics_options metrics = {
        .path = o->metrics, .start = t->state.step, .total = o->steps, .console = stdout, .every = o->log_every};
    if (o->out != NULL)
        MOERT_TRY(moert_make_folders(o->out));
    return moert_metrics_open(&metrics, &t->metrics);
}

static moert_status begin(trainer *t)
{
    const moert_trainer_options *o = t->options;
    MOERT_TRY(moert_comm_agree(t->world, prepare(t)));
    MOERT_TRY(moert_comm_agree(t->world, moert_optimizer_create(t->model, &o->optimizer, &t->optimizer)));
    MOERT_TRY(resume(t));
    return moert_comm_agree(t->world, t->first ? open_outputs(t) : MOERT_OK);
}

static trainer make_trainer(moert_model *model, const moert_data *data, const moert_trainer_options *options)
{
    moert_comm *world = moert_model_mesh(model)->world;
    return (trainer){
        .model = model, .data = data, .options = options, .world = world, .first = moert_comm_rank(world) == 0};
}

/* The signals that end a run in order: what schedulers send some time before they kill (Slurm: --signal=USR1@120). */
static const int stop_signals[] = {SIGTERM, SIGUSR1};
enum { STOP_SIGNALS = sizeof stop_signals / sizeof stop_signals[0] };

static void catch_signals(struct sigaction before[STOP_SIGNALS])
{
    struct sigaction action = {.sa_handler = on_signal};
    action.sa_flags = (int)(SA_RESTART | SA_RESETHAND); /* a second one ends the process */
    terminated = 0;
    for (int i = 0; i < STOP_SIGNALS; i++)
        sigaction(stop_signals[i], &action, &before[i]);
}

static moert_status close_metrics(trainer *t, moert_status status)
{
    if (status == MOERT_OK)
        return moert_metrics_close(t->metrics);
    char *message = moert_error_keep();
    moert_metrics_close(t->metrics);
    moert_error_restore(message);
    return status;
}

moert_status moert_train(moert_model *model, const moert_data *data, const moert_trainer_options *options,
                         bool *interrupted)
{
    trainer t = make_trainer(model, data, options);
    struct sigaction before[STOP_SIGNALS];
    moert_status status;
    *interrupted = false;
    catch_signals(before);
    MOERT_TRY_OR(done, begin(&t));
    MOERT_TRY_OR(done, run_steps(&t, interrupted));
done:
    for (int i = 0; i < STOP_SIGNALS; i++)
        sigaction(stop_signals[i], &before[i], NULL);
    status = close_metrics(&t, status);
    moert_optimizer_destroy(t.optimizer);
    free(t.target);
    free(t.input);
    return status;
}

moert_status moert_train_gradients(moert_model *model, const moert_data *data, const moert_trainer_options *options,
                                   const char *path)
{
    trainer t = make_trainer(model, data, options);
    moert_model_result result;
    moert_status status = moert_comm_agree(t.world, prepare(&t));
    if (status == MOERT_OK)
        status = compute_gradients(&t, &result);
    if (status == MOERT_OK)
        status = moert_gradients_save(model, path);
    free(t.target);
    free(t.input);
    return status;
}
