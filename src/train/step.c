/* Forward and backward over the batches of a training run; export of gradients and logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/rng.h"
#include "base/text.h"
#include "device/profile/profile.h"
#include "train/internal.h"
#include "train/shared_file.h"
#include "train/stop.h"
#include "train/values.h"

moert_trainer moert_trainer_make(moert_model *model, const moert_data *data,
                                 const moert_trainer_options *options) {
    moert_comm *world = moert_model_mesh(model)->world;
    return (moert_trainer){.model = model,
                           .data = data,
                           .options = options,
                           .world = world,
                           .first = moert_comm_rank(world) == 0};
}

static moert_status check_replay(const moert_trainer_options *o) {
    if (o->replay.end == 0)
        return MOERT_OK;
    if (o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--replay needs the run directory; give --out DIR");
    if (o->replay.end > o->steps)
        return MOERT_FAIL(ERROR_USAGE, "--replay of step %llu: the run has %zu steps, from 0 on",
                          (unsigned long long)o->replay.end - 1, o->steps);
    if (o->resume == MOERT_RESUME_PATH)
        return MOERT_FAIL(ERROR_USAGE,
                          "--replay finds its checkpoint in --out; leave out --resume");
    if (o->profile)
        return MOERT_FAIL(
            ERROR_USAGE,
            "--profile would replace the profile of the run; leave out --profile with --replay");
    return MOERT_OK;
}

static moert_status check_verify(const moert_trainer_options *o, bool exact) {
    const bool verifies = o->verify_every > 0 || o->verify_share > 0.0;
    if (o->verify_every > 0 && o->verify_share > 0.0)
        return MOERT_FAIL(
            ERROR_USAGE,
            "--verify and --verify-share cannot be used together; leave out one of them");
    if ((o->clones || exact) && verifies)
        return MOERT_FAIL(ERROR_USAGE,
                          "--verify does not check experts with clones or exact replicas; leave "
                          "out --%s or --verify",
                          exact ? "replicas" : "clones");
    return MOERT_OK;
}

static moert_status check_options(const moert_trainer_options *o, bool exact,
                                  const moert_data *data) {
    moert_data_info info = moert_data_describe(data);
    if (o->micro_batches == 0 || o->batch.largest % o->micro_batches != 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "a batch of %zu sequences cannot be cut into %zu micro-batches",
                          o->batch.largest, o->micro_batches);
    if (info.steps > 0 && o->batch.largest != info.batch)
        return MOERT_FAIL(ERROR_MISMATCH, "the token file has batches of %zu sequences, not %zu",
                          info.batch, o->batch.largest);
    if (info.steps > 0 && o->steps > info.steps)
        return MOERT_FAIL(ERROR_MISMATCH, "%zu steps, but the token file holds %zu batches",
                          o->steps, info.steps);
    if (o->save_every > 0 && o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--save-every needs a directory for the checkpoints; give --out DIR");
    if (o->tensorboard && o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--tensorboard needs a directory for the events; give --out DIR");
    if (o->save_dir != NULL && o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--save-dir %s needs the run directory; give --out DIR",
                          o->save_dir);
    if (o->resume > MOERT_RESUME_PATH && o->out == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--resume %s needs the run directory; give --out DIR",
                          o->resume == MOERT_RESUME_AUTO ? "auto" : "must");
    if (o->clones && o->rebalance_every == 0)
        return MOERT_FAIL(ERROR_USAGE, "--clones needs --rebalance N, which places them");
    MOERT_TRY(check_verify(o, exact));
    if (exact && o->rebalance_every > 0)
        return MOERT_FAIL(ERROR_USAGE, "--rebalance does not move experts that have exact "
                                       "replicas; leave out --replicas or --rebalance");
    if (o->eval_every > 0 && !moert_data_has(data, MOERT_HELD_OUT))
        return MOERT_FAIL(ERROR_USAGE, "--eval-every needs held-out data: give --data with "
                                       "--held-out, or with a second weight of --split above 0");
    MOERT_TRY(check_replay(o));
    return moert_data_check_length(data, o->length);
}

moert_status moert_trainer_prepare(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    const moert_data_info info = moert_data_describe(t->data);
    MOERT_TRY(check_options(o, moert_model_mesh(t->model)->exact > 1, t->data));
    if (o->bias_rate > 0.0 && !moert_model_describe(t->model)->correction_bias)
        return MOERT_FAIL(ERROR_USAGE,
                          "--bias-rate %g: the routers of this model have no correction bias",
                          o->bias_rate);
    MOERT_TRY(moert_model_config_check_length(moert_model_describe(t->model), o->length));
    t->state = (moert_run_state){.seed = o->seed, .batch = o->batch.largest, .length = o->length};
    moert_batch_ramp_text(&o->batch, t->state.batch_ramp);
    int used = snprintf(t->state.data, sizeof t->state.data, "%s", info.identity);
    if (info.rows > 0)
        used += snprintf(t->state.data + used, sizeof t->state.data - (size_t)used, ", epochs");
    else if (info.documents)
        used += snprintf(t->state.data + used, sizeof t->state.data - (size_t)used,
                         ", cut at documents");
    if (info.end >= 0)
        snprintf(t->state.data + used, sizeof t->state.data - (size_t)used, ", document end %d",
                 (int)info.end);
    if (info.steps == 0)
        moert_split_text(&info.split, t->state.split);
    moert_schedule_text(&o->schedule, t->state.schedule);
    snprintf(t->state.options, sizeof t->state.options, "%s",
             o->settings != NULL ? o->settings : "");
    if (o->save_dir != NULL)
        MOERT_TRY(moert_text_path(&t->checkpoints, "%s", o->save_dir));
    else if (o->out != NULL)
        MOERT_TRY(moert_text_path(&t->checkpoints, "%s/checkpoints", o->out));
    MOERT_TRY(MOERT_NEW_ARRAY(&t->counts, moert_trainer_experts(t)));
    MOERT_TRY(moert_run_create(t->model, &t->run));
    const moert_evaluation_options evaluation = {.run = t->run,
                                                 .data = t->data,
                                                 .sequences = o->eval_sequences,
                                                 .at_once = o->batch.largest / o->micro_batches,
                                                 .length = o->length,
                                                 .losses = o->losses};
    MOERT_TRY(moert_evaluation_create(&evaluation, &t->evaluation));
    const moert_loader_options loader = {.data = t->data,
                                         .seed = o->seed,
                                         .steps = o->steps,
                                         .batch = o->batch,
                                         .micro_batches = o->micro_batches,
                                         .length = o->length,
                                         .rank = moert_comm_rank(t->world),
                                         .ranks = moert_comm_size(t->world)};
    return moert_loader_create(&loader, &t->loader);
}

void moert_trainer_free(moert_trainer *t) {
    moert_loader_destroy(t->loader);
    moert_evaluation_destroy(t->evaluation);
    moert_run_destroy(t->run);
    MOERT_FREE(t->counts, t->checkpoints);
}

moert_status moert_trainer_load(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    moert_phase_set(MOERT_PHASE_DATA);
    const uint64_t start = moert_clock_ns();
    const moert_status status = moert_loader_take(t->loader, t->state.step, &t->loaded);
    moert_profile_host(moert_model_mesh(t->model)->device, MOERT_OPERATION_DATA,
                       moert_clock_ns() - start);
    MOERT_TRY(moert_comm_agree(t->world, status));
    t->targets = t->loaded.targets;
    MOERT_TRY(moert_comm_sum(t->world, &t->targets));
    return t->targets > 0
               ? MOERT_OK
               : MOERT_FAIL(ERROR_MISMATCH,
                            "the batch of step %llu: none of its %zu tokens counts as a target; "
                            "check the masks and targets",
                            (unsigned long long)t->state.step, moert_trainer_batch(t) * o->length);
}

/* Whether the step is among the last ones, in which a recipe lets all layers compute in bf16. */
static bool finishes_in_bf16(const moert_trainer *t) {
    const double share = moert_model_describe(t->model)->recipe.bf16_finish;
    return (double)(t->options->steps - t->state.step) <= share * (double)t->options->steps;
}

moert_status moert_trainer_forward(moert_trainer *t, size_t index) {
    const moert_trainer_options *o = t->options;
    const size_t at = index * t->loaded.sequences * o->length;
    const moert_model_batch batch = {
        .total_sequences = moert_trainer_batch(t) / o->micro_batches,
        .length = o->length,
        .input = t->loaded.input + at,
        .target = t->loaded.target + at,
        .positions = t->loaded.positions != NULL ? t->loaded.positions + at : NULL,
        .targets = t->targets,
        .accumulate = index > 0,
        .draws = moert_rng_key(o->seed, moert_rng_stream("rounding"),
                               t->state.step * o->micro_batches + index),
        .bf16_operands = finishes_in_bf16(t)};
    return moert_run_forward(t->run, &batch);
}

/* Ends a step whose routing scores are not finite, without gradients. All ranks do so. */
static moert_status give_up(moert_trainer *t, moert_model_result *mean) {
    mean->cross_entropy = NAN;
    if (t->first)
        MOERT_WARN("step %llu, %s", (unsigned long long)t->state.step, moert_last_error());
    return moert_observers_tell(t, MOERT_EVENT_GIVE_UP);
}

moert_status moert_trainer_gradients(moert_trainer *t, moert_model_result *mean, bool *stopped) {
    const moert_trainer_options *o = t->options;
    size_t pieces = o->micro_batches;
    double factor = 1.0 / (double)pieces;
    *mean = (moert_model_result){0};
    *stopped = t->has_gradients = false;
    memset(t->counts, 0, moert_trainer_experts(t) * sizeof *t->counts);
    MOERT_TRY(moert_trainer_load(t));
    for (size_t i = 0; i < pieces; i++) {
        moert_model_result *result = &t->result;
        t->micro_batch = i;
        if (i > 0)
            MOERT_TRY(moert_stop_asked(t->world, stopped));
        if (*stopped)
            return MOERT_OK;
        MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_BATCH));
        const moert_status status = moert_trainer_forward(t, i);
        if (status == MOERT_ERROR_NUMERIC)
            return give_up(t, mean);
        MOERT_TRY(status);
        MOERT_TRY(moert_run_loss(t->run, &o->losses, factor, result));
        for (size_t e = 0; e < moert_trainer_experts(t); e++)
            t->counts[e] += moert_run_expert_counts(t->run)[e];
        MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_LOSS));
        MOERT_TRY(moert_run_backward(t->run, i + 1 == pieces));
        MOERT_TRY(moert_observers_tell(t, MOERT_EVENT_BACKWARD));
        mean->cross_entropy += result->cross_entropy;
        mean->aux += result->aux * factor;
        mean->z += result->z * factor;
        mean->expert_load = fmax(mean->expert_load, result->expert_load);
    }
    t->has_gradients = true;
    return MOERT_OK;
}

moert_status moert_trainer_save_gradients(const moert_trainer *t, uint64_t step, const char *path) {
    return t->has_gradients
               ? moert_gradients_save(t->model, path)
               : MOERT_FAIL(ERROR_NUMERIC,
                            "step %llu has no gradients to save: its routing scores are not "
                            "finite, or --skip-steps leaves it out",
                            (unsigned long long)step);
}

moert_status moert_train_gradients(moert_model *model, const moert_data *data,
                                   const moert_trainer_options *options, const char *path) {
    moert_trainer t = moert_trainer_make(model, data, options);
    moert_model_result result;
    moert_status status;
    bool stopped;
    MOERT_TRY_OR(done, moert_comm_agree(t.world, moert_trainer_prepare(&t)));
    MOERT_TRY_OR(done, moert_trainer_gradients(&t, &result, &stopped));
    status = moert_trainer_save_gradients(&t, 0, path);
done:
    moert_trainer_free(&t);
    return status;
}

/* Writes the logits of this rank's sequences of a micro-batch. */
static moert_status put_logits(const void *context, moert_tensor_writer *writer) {
    const moert_trainer *t = context;
    const size_t length = t->options->length,
                 vocabulary = moert_model_describe(t->model)->vocabulary;
    size_t first, own_count;
    float *row;
    moert_model_partition(moert_trainer_batch(t) / t->options->micro_batches,
                          moert_comm_rank(t->world), moert_comm_size(t->world), &first, &own_count);
    MOERT_TRY(MOERT_NEW_ARRAY(&row, vocabulary));
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < own_count * length && status == MOERT_OK; i++) {
        status = moert_run_logits(t->run, i, row);
        if (status == MOERT_OK)
            status = moert_writer_put(writer, "logits", (first * length + i) * vocabulary,
                                      vocabulary, row);
    }
    free(row);
    return status;
}

moert_status moert_train_logits(moert_model *model, const moert_data *data,
                                const moert_trainer_options *options, const char *path) {
    moert_trainer t = moert_trainer_make(model, data, options);
    const size_t count = moert_trainer_batch(&t) / options->micro_batches;
    const moert_tensor_spec spec = {
        "logits",
        MOERT_FILE_F32,
        3,
        {count, options->length, moert_model_describe(model)->vocabulary}};
    const moert_shared_file file = {path, &spec, 1, NULL, put_logits, &t};
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(t.world, moert_trainer_prepare(&t)));
    MOERT_TRY_OR(done, moert_trainer_load(&t));
    MOERT_TRY_OR(done, moert_trainer_forward(&t, 0));
    status = moert_shared_file_write(t.world, &file, true, MOERT_OK);
done:
    moert_trainer_free(&t);
    return status;
}
