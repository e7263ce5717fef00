/* Starts a run from a checkpoint or from step 0. */
#include "train/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/text.h"
#include "io/durable.h"
#include "train/checksums.h"
#include "train/ledger.h"

/* X(name in messages, value): values that must be equal in the config of a checkpoint and of the
 * run. */
#define MODEL_TABLE(X, c)                                                                          \
    X("model family number", (c)->family)                                                          \
    X("num_hidden_layers", (c)->layers)                                                            \
    X("hidden_size", (c)->hidden)                                                                  \
    X("vocab_size", (c)->vocabulary)                                                               \
    X("number of experts", (c)->router.experts)                                                    \
    X("size of an expert", (c)->intermediate)                                                      \
    X("size of the shared expert", (c)->shared_intermediate)                                       \
    X("size of dense layers", (c)->dense_intermediate)                                             \
    X("pad_token_id", (c)->pad_token)                                                              \
    X("tied embeddings", (c)->tied_embeddings)                                                     \
    X("num_attention_heads", (c)->heads)                                                           \
    X("num_key_value_heads", (c)->kv_heads)                                                        \
    X("head_dim", (c)->head_size)                                                                  \
    X("num_experts_per_tok", (c)->router.topk)                                                     \
    X("rms_norm_eps", (c)->norm_epsilon)                                                           \
    X("rope_theta", (c)->rope.theta)                                                               \
    X("rope_type number", (c)->rope.type)                                                          \
    X("rope factor", (c)->rope.factor)                                                             \
    X("qk_rope_head_dim", (c)->latent.rope)                                                        \
    X("v_head_dim", (c)->latent.value)                                                             \
    X("sliding_window", (c)->sliding_window)                                                       \
    X("clip_qkv", (c)->clip_qkv)                                                                   \
    X("swiglu_alpha", (c)->glu.alpha)                                                              \
    X("swiglu_limit", (c)->glu.limit)                                                              \
    X("interleaved rotation", (c)->rope.interleaved)                                               \
    X("n_group", (c)->router.groups)                                                               \
    X("topk_group", (c)->router.kept_groups)                                                       \
    X("normalised routing weights", (c)->router.renormalise)                                       \
    X("routing scale", (c)->router.scale)

/* Checks that a checkpoint was written for the model of this run. */
static moert_status check_model(const moert_trainer *t, const char *path) {
    moert_model_config saved;
    const moert_model_config *given = moert_model_describe(t->model);
    MOERT_TRY(moert_model_config_read(path, &saved));
#define MODEL_NAME(what, value)  what,
#define MODEL_VALUE(what, value) (double)(value),
    const char *const names[] = {MODEL_TABLE(MODEL_NAME, given)};
    const double before[] = {MODEL_TABLE(MODEL_VALUE, &saved)};
    const double now[] = {MODEL_TABLE(MODEL_VALUE, given)};
#undef MODEL_VALUE
#undef MODEL_NAME
    moert_model_config_free(&saved);
    for (size_t i = 0; i < MOERT_COUNT(now); i++)
        if (before[i] != now[i])
            return MOERT_FAIL(ERROR_MISMATCH, "%s was made with %s %g, this run has %g", path,
                              names[i], before[i], now[i]);
    return MOERT_OK;
}

/* Finds the line "--name value\n" of option name[length] in `lines`. Returns the end of `lines` if
 * there is no such line. */
static const char *find_option(const char *lines, const char *name, size_t length) {
    while (*lines != '\0' && (strncmp(lines, name, length) != 0 || lines[length] != ' ')) {
        lines += strcspn(lines, "\n");
        lines += *lines == '\n';
    }
    return lines;
}

/* Checks that the checkpoint has the moments of this run's optimizer. */
static moert_status check_optimizer(const moert_trainer *t, const char *path,
                                    const moert_run_state *s) {
    static const char name[] = "--optimizer";
    const char *given = moert_optimizer_of(t->model)->name, *saved = moert_optimizers[0].name;
    const char *line = find_option(s->options, name, sizeof name - 1);
    if (*line != '\0') /* older checkpoints do not name their optimizer, which was AdamW */
        saved = line + sizeof name;
    const size_t length = strcspn(saved, "\n");
    if (strlen(given) == length && strncmp(saved, given, length) == 0)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_MISMATCH,
                      "%s has the moments of --optimizer %.*s, but this run has --optimizer %s; "
                      "give the optimizer of the checkpoint, or start a new run by --model",
                      path, (int)length, saved, given);
}

static moert_status check_state(const moert_trainer *t, const char *path,
                                const moert_run_state *s) {
    const moert_trainer_options *o = t->options;
    const struct {
        const char *what;
        uint64_t saved, given;
    } rows[] = {{"seed", s->seed, o->seed},
                {"batch", s->batch, o->batch.largest},
                {"sequence length", s->length, o->length}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        if (rows[i].saved != rows[i].given)
            return MOERT_FAIL(ERROR_MISMATCH, "%s was made with %s %llu, this run has %llu", path,
                              rows[i].what, (unsigned long long)rows[i].saved,
                              (unsigned long long)rows[i].given);
    if (strcmp(s->batch_ramp, t->state.batch_ramp) != 0)
        return MOERT_FAIL(ERROR_MISMATCH, "%s was made with --batch-ramp %s, this run has %s", path,
                          s->batch_ramp[0] != '\0' ? s->batch_ramp : "none",
                          t->state.batch_ramp[0] != '\0' ? t->state.batch_ramp : "none");
    const uint64_t left_out = moert_step_ranges_below(&o->left_out, s->step);
    if (s->left_out != left_out)
        return MOERT_FAIL(
            ERROR_MISMATCH,
            "%s was made with %llu steps left out, but --skip-steps leaves out %llu steps before "
            "this checkpoint; give --skip-steps the ranges of the earlier run",
            path, (unsigned long long)s->left_out, (unsigned long long)left_out);
    MOERT_TRY(check_model(t, path));
    MOERT_TRY(check_optimizer(t, path, s));
    if (s->data[0] != '\0' && strcmp(s->data, t->state.data) != 0)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s was trained on %s, but this run has %s; give the --data, --order and "
                          "--document-end of the earlier run, or start a new run by --model",
                          path, s->data, t->state.data);
    if (s->split[0] != '\0' && strcmp(s->split, t->state.split) != 0)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s was trained with %s of the data as training, held-out and test data, "
                          "but this run has %s; give the --split or --held-out of the earlier run",
                          path, s->split, t->state.split);
    return MOERT_OK;
}

/* steps[count] = the steps of the checkpoints in `directory`, newest first. Rank 0 lists the
 * checkpoints and broadcasts their steps. The caller frees *steps. Collective. */
static moert_status list_checkpoints(const moert_trainer *t, const char *directory,
                                     uint64_t **steps, size_t *count) {
    *steps = NULL;
    *count = 0;
    const moert_status listed =
        t->first ? moert_checkpoint_list(directory, steps, count) : MOERT_OK;
    MOERT_TRY(moert_comm_agree(t->world, listed));
    MOERT_TRY(moert_comm_broadcast(t->world, 0, count, sizeof *count));
    MOERT_TRY(moert_comm_agree(t->world, t->first ? MOERT_OK : MOERT_NEW_ARRAY(steps, *count)));
    return moert_comm_broadcast(t->world, 0, *steps, *count * sizeof **steps);
}

/* A run removes old checkpoints of its directory. So if the directory has checkpoints, the
 * checkpoint to resume must be one of them. */
static moert_status check_directory(const moert_trainer *t, const char *directory,
                                    uint64_t newest) {
    const moert_trainer_options *o = t->options;
    char *parent =
        o->resume == MOERT_RESUME_PATH ? moert_text_format("%s/..", o->checkpoint) : NULL;
    const bool goes_on = parent != NULL && moert_same_file(parent, directory);
    free(parent);
    if (goes_on || o->steps == 0)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE,
                      "%s/step-%08llu is of an older run; --resume auto goes on with it, "
                      "--overwrite replaces it, another --out begins anew",
                      directory, (unsigned long long)newest);
}

/* Fails if --resume names a checkpoint that does not exist. */
static moert_status check_exists(const moert_trainer *t) {
    const char *path = t->options->checkpoint;
    bool there = true;
    if (t->options->resume == MOERT_RESUME_PATH)
        MOERT_TRY(moert_file_exists(&there, "%s", path));
    return there ? MOERT_OK
                 : MOERT_FAIL(ERROR_IO,
                              "--resume %s: there is no such checkpoint; --resume auto takes the "
                              "newest",
                              path);
}

/* Warns about each option "--name value\n" of the checkpoint whose value differs in this run. Older
 * checkpoints have no options. */
static void warn_of_options(const char *path, const char *saved, const char *given) {
    for (const char *at = saved; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n') {
        const size_t name = strcspn(at, " \n"), whole = strcspn(at, "\n");
        const char *now = find_option(given, at, name);
        const size_t length = strcspn(now, "\n");
        if (*now != '\0' && (length != whole || memcmp(now, at, whole) != 0))
            MOERT_WARN("%s was trained with %.*s; this run goes on with %.*s", path, (int)whole, at,
                       (int)length, now);
    }
}

/* Warns if another number of steps changes the learning rate at the resume. */
static void warn_of_rate(const moert_trainer *t, const char *path, const moert_run_state *saved) {
    const moert_schedule *schedule = &t->options->schedule;
    unsigned long long steps;
    const char *line = find_option(saved->options, "--steps", strlen("--steps"));
    if (strcmp(saved->schedule, t->state.schedule) != 0 ||
        sscanf(line, "--steps %llu", &steps) != 1)
        return;
    const double before = moert_schedule_rate(schedule, saved->step, steps),
                 now = moert_schedule_rate(schedule, saved->step, t->options->steps);
    if (fabs(now - before) > 1e-6 * before)
        MOERT_WARN("%s: the learning rate goes from %.3g to %.3g, since --steps stretches its "
                   "schedule",
                   path, before, now);
}

/* The first of the last steps, in which a recipe computes in bf16. */
static size_t first_in_bf16(double share, size_t steps) {
    return steps - (size_t)(share * (double)steps);
}

/* Warns if another number of steps moves the last steps, in which a recipe computes in bf16. */
static void warn_of_finish(const moert_trainer *t, const char *path, const moert_run_state *saved) {
    const double share = moert_model_describe(t->model)->recipe.bf16_finish;
    const char *line = find_option(saved->options, "--steps", strlen("--steps"));
    const size_t now = t->options->steps;
    unsigned long long before;
    if (share > 0.0 && sscanf(line, "--steps %llu", &before) == 1 && before != now)
        MOERT_WARN("%s: the steps in bf16 at the end begin at step %zu instead of %zu, since the "
                   "recipe of --precision counts them from --steps",
                   path, first_in_bf16(share, now), first_in_bf16(share, (size_t)before));
}

/* Warns if the checkpoint is of a version whose --precision nvfp4 was today's nvfp4-plain. */
static void warn_of_recipe(const moert_trainer *t, const char *path, const moert_run_state *saved) {
    static const char old[] = "--precision nvfp4\n";
    const char *before = find_option(saved->options, old, strlen("--precision")),
               *now = find_option(t->state.options, old, strlen("--precision"));
    if (!saved->has_recipe && strncmp(before, old, strlen(old)) == 0 &&
        strncmp(now, old, strlen(old)) == 0)
        MOERT_WARN("%s was trained by a version whose --precision nvfp4 is now nvfp4-plain; this "
                   "run goes on with the published recipe of nvfp4; --precision nvfp4-plain goes "
                   "on as before",
                   path);
}

/* Resumes the run from a checkpoint. With options->checksums, first checks the checkpoint's bytes.
 * Collective. */
static moert_status load(moert_trainer *t, const char *path) {
    moert_run_state saved = {0};
    moert_manifest *manifest = NULL;
    moert_status status = MOERT_OK;
    moert_progress_begin("reading the checkpoint", 0);
    if (t->options->checksums)
        status = moert_checksums_begin(t->world, path, &manifest);
    if (status == MOERT_OK) {
        status = moert_checkpoint_state(path, &saved);
        if (status == MOERT_OK)
            status = check_state(t, path, &saved);
        status = moert_comm_agree(t->world, status);
    }
    if (status == MOERT_OK)
        status = moert_checkpoint_load(t->optimizer, path, manifest);
    status = moert_checksums_finish(t->world, manifest, status);
    moert_progress_end();
    const bool checked = manifest != NULL;
    moert_manifest_free(manifest);
    MOERT_TRY(status);
    if (!checked && t->options->checksums && t->first)
        MOERT_WARN("%s has no manifest.json; its bytes were not checked", path);
    if (t->first)
        printf("resumed from %s at step %llu\n", path, (unsigned long long)saved.step);
    const bool trains = t->options->steps > 0; /* else it only evaluates */
    if (trains && saved.step >= t->options->steps && t->first)
        MOERT_WARN("%s has done %llu steps already; none of this run's %zu steps is left", path,
                   (unsigned long long)saved.step, t->options->steps);
    if (t->first && saved.schedule[0] != '\0' && strcmp(saved.schedule, t->state.schedule) != 0)
        MOERT_WARN("%s was trained with %s; this run goes on with %s", path, saved.schedule,
                   t->state.schedule);
    if (t->first) {
        warn_of_options(path, saved.options, t->state.options);
        if (trains) {
            warn_of_rate(t, path, &saved);
            warn_of_finish(t, path, &saved);
            warn_of_recipe(t, path, &saved);
        }
    }
    /* an older state.json lacks these texts */
    memcpy(saved.data, t->state.data, sizeof saved.data);
    memcpy(saved.split, t->state.split, sizeof saved.split);
    memcpy(saved.schedule, t->state.schedule, sizeof saved.schedule);
    memcpy(saved.options, t->state.options, sizeof saved.options);
    t->state = saved;
    return MOERT_OK;
}

/* Resumes from the newest undamaged checkpoint at or before step `last`. Does nothing if there is
 * no such checkpoint. Collective. */
static moert_status load_newest(moert_trainer *t, const uint64_t *steps, size_t count,
                                uint64_t last) {
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < count; i++) {
        char *path;
        if (steps[i] > last)
            continue;
        MOERT_TRY(moert_checkpoint_path(t->checkpoints, steps[i], &path));
        status = load(t, path);
        free(path);
        if (status != MOERT_ERROR_IO && status != MOERT_ERROR_FORMAT)
            return status;
        if (t->first && i + 1 < count)
            MOERT_WARN("passed over a damaged checkpoint: %s", moert_last_error());
    }
    return status;
}

/* Fails if OUT/checkpoints has checkpoints, but --save-dir, which this run would use instead, has
 * none. */
static moert_status check_moved(const moert_trainer *t) {
    char *before;
    uint64_t *steps;
    size_t count;
    MOERT_TRY(moert_text_path(&before, "%s/checkpoints", t->options->out));
    moert_status status = moert_checkpoint_list(before, &steps, &count);
    if (count > 0)
        status = MOERT_FAIL(ERROR_USAGE,
                            "%s has checkpoints, and --save-dir %s has none; move them there, or "
                            "leave out --save-dir",
                            before, t->checkpoints);
    MOERT_FREE(steps, before);
    return status;
}

moert_status moert_trainer_resume(moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    const bool replays = o->replay.end > 0, must = o->resume == MOERT_RESUME_MUST,
               newest = must || o->resume == MOERT_RESUME_AUTO;
    const char *directory = t->checkpoints;
    uint64_t *steps = NULL;
    size_t count = 0;
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(t->world, t->first ? check_exists(t) : MOERT_OK));
    if (directory != NULL)
        MOERT_TRY_OR(done, list_checkpoints(t, directory, &steps, &count));
    if (t->options->save_dir != NULL && count == 0 && !replays)
        MOERT_TRY_OR(done, moert_comm_agree(t->world, t->first ? check_moved(t) : MOERT_OK));
    if (must && count == 0)
        status = moert_comm_agree(
            t->world, MOERT_FAIL(ERROR_USAGE, "--resume must: %s has no checkpoint", directory));
    else if (newest && count == 0 && !replays && t->first)
        printf("no checkpoint in %s; starting at step 0\n", directory);
    if (status != MOERT_OK)
        goto done;
    if (replays) /* a replay without a checkpoint starts at step 0 */
        status = load_newest(t, steps, count, o->replay.first);
    else if (newest)
        status = load_newest(t, steps, count, UINT64_MAX);
    else {
        const bool refuses = t->first && count > 0;
        MOERT_TRY_OR(done,
                     moert_comm_agree(t->world, refuses ? check_directory(t, directory, steps[0])
                                                        : MOERT_OK));
        if (o->resume == MOERT_RESUME_PATH)
            status = load(t, o->checkpoint);
    }
done:
    free(steps);
    return status;
}

moert_status moert_trainer_go_back(moert_trainer *t) {
    uint64_t *steps = NULL;
    size_t count = 0;
    moert_status status = MOERT_OK;
    moert_run_end(t->run); /* ends the last batch's passes, so that experts may move */
    if (t->checkpoints != NULL)
        MOERT_TRY_OR(done, list_checkpoints(t, t->checkpoints, &steps, &count));
    if (count > 0)
        status = load_newest(t, steps, count, UINT64_MAX);
    else
        status = moert_error_pass(MOERT_ERROR_HARDWARE, __func__, __LINE__);
done:
    free(steps);
    return status;
}

moert_status moert_trainer_open_directory(const moert_trainer *t) {
    const moert_trainer_options *o = t->options;
    MOERT_TRY(moert_make_directories(o->out));
    MOERT_TRY(moert_checkpoint_sweep(t->checkpoints));
    return o->profile || t->state.step == 0 ? moert_ledger_clear(o->out) : MOERT_OK;
}
