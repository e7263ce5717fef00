/* Checks the options of moert-train. */
#include "tools/train/options.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "train/run_file.h"
#include "train/values.h"

/* Sets the fields that depend on a single option. */
static void derive(moert_train_options *o) {
    o->replays = o->replay_steps != NULL;
    o->computes_only = !o->replays && (o->gradients_path != NULL || o->logits_path != NULL);
    o->reads_weights = o->model_path != NULL && !o->random_weights;
    o->trainer.resume = o->resume == NULL                ? MOERT_RESUME_NONE
                        : strcmp(o->resume, "auto") == 0 ? MOERT_RESUME_AUTO
                        : strcmp(o->resume, "must") == 0 ? MOERT_RESUME_MUST
                                                         : MOERT_RESUME_PATH;
    o->trainer.checkpoint = o->resume;
    o->trainer.replay_gradients = o->replays ? o->gradients_path : NULL;
    o->trainer.schedule.kind = (int)o->schedule_kind;
    o->trainer.save_mode = (moert_save_mode)o->save_mode;
    o->trainer.save_bytes_per_s = 1e6 * o->save_rate;
    o->trainer.on_mismatch = (moert_mismatch)o->on_mismatch;
    o->trainer.peak_flops = 1e12 * o->peak_tflops;
    o->trainer.losses.aux_form = (moert_aux_form)o->aux_form;
}

/* Reads the options about steps, and chooses the file of the metrics. */
static moert_status check_steps(moert_train_options *o) {
    o->default_metrics = NULL;
    o->trainer.batch = (moert_batch_plan){.largest = o->trainer.batch.largest};
    o->trainer.left_out = (moert_step_ranges){0};
    o->trainer.replay = (moert_step_range){0};
    if (o->batch_ramp != NULL)
        MOERT_TRY(moert_batch_ramp_read(o->batch_ramp, &o->trainer.batch));
    if (o->skip_steps != NULL)
        MOERT_TRY(moert_step_ranges_read(o->skip_steps, &o->trainer.left_out));
    if (o->replays && o->logits_path != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--replay and --save-logits do not go together");
    if (o->replays)
        MOERT_TRY(moert_step_range_read(o->replay_steps, &o->trainer.replay));
    if (o->trainer.out == NULL || (o->trainer.metrics != NULL && !o->replays))
        return MOERT_OK;
    MOERT_TRY(o->replays
                  ? moert_text_path(&o->default_metrics, "%s/replay-%08llu.jsonl", o->trainer.out,
                                    (unsigned long long)o->trainer.replay.first)
                  : moert_text_path(&o->default_metrics, "%s/metrics.jsonl", o->trainer.out));
    o->trainer.metrics = o->default_metrics;
    return MOERT_OK;
}

/* Fails if an option applies only to the optimizer that was not chosen. */
static moert_status check_optimizer(const moert_train_options *o) {
    const char *const of_adamw =
        moert_options_given(&o->command, &o->trainer.optimizer.beta1, 3 * sizeof(double));
    const char *const of_sgd =
        moert_options_given(&o->command, &o->trainer.optimizer.momentum, sizeof(double));
    const bool sgd = o->memory.optimizer == MOERT_OPTIMIZER_SGD;
    const char *const other = sgd ? of_adamw : of_sgd;
    return other == NULL ? MOERT_OK
                         : MOERT_FAIL(ERROR_USAGE, "--%s goes with --optimizer %s, not with %s",
                                      other, moert_optimizers[!sgd].name,
                                      moert_optimizers[o->memory.optimizer].name);
}

/* Fails if the run directory, which may be mistyped, has no record that gives the data. */
static moert_status check_record(const moert_train_options *o) {
    if ((o->resume == NULL && !o->replays) || o->trainer.out == NULL || o->data_paths.count > 0 ||
        o->token_file != NULL || o->command.from_file > 0)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE,
                      "--%s takes its options from %s/" MOERT_RUN_FILE ", which is not there; give "
                      "another --out, or the data by --data or --tokens",
                      o->replays ? "replay" : "resume", o->trainer.out);
}

moert_status moert_train_check(moert_train_options *o) {
    derive(o);
    const char *size = moert_options_given(&o->command, &o->sizes, sizeof o->sizes);
    if (o->model_path != NULL && size != NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--%s is for a new model; the config.json of --model gives the sizes",
                          size);
    o->has_vocabulary =
        moert_options_given(&o->command, &o->sizes.vocabulary, sizeof o->sizes.vocabulary) != NULL;
    if (o->split_weights != NULL &&
        moert_options_given(&o->command, &o->held_out, sizeof o->held_out) != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--split and --held-out both divide the data; give one");
    MOERT_TRY(o->split_weights != NULL ? moert_split_read(o->split_weights, &o->split)
                                       : moert_split_hold_out(o->held_out, &o->split));
    if (o->random_weights && o->model_path == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--random-weights needs --model: the config.json there gives the sizes");
    if (o->token_bits != 16 && o->token_bits != 32)
        return MOERT_FAIL(ERROR_USAGE, "--token-bits %zu: expected 16 or 32", o->token_bits);
    o->most_bytes = 0;
    if (o->most_memory != NULL)
        MOERT_TRY(moert_text_get_bytes(o->most_memory, "--memory", &o->most_bytes));
    if (o->sample_bytes > 0 && o->prompt[0] == '\0')
        return MOERT_FAIL(ERROR_USAGE, "--sample needs a --prompt of at least one byte");
    if (o->overwrites && o->resume != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--resume goes on with the run that --overwrite replaces; "
                                       "give one");
    if (o->computes_only && o->trainer.resume != MOERT_RESUME_NONE &&
        o->trainer.resume != MOERT_RESUME_AUTO)
        return MOERT_FAIL(ERROR_USAGE, "--save-logits and --save-gradients need --model (a "
                                       "checkpoint directory works); --resume does not apply");
    if ((o->trainer.keep_best || o->trainer.early_stop > 0) && o->trainer.eval_every == 0)
        return MOERT_FAIL(ERROR_USAGE, "--%s needs held-out losses; give --eval-every",
                          o->trainer.keep_best ? "keep-best" : "early-stop");
    if (o->trainer.keep_best && o->trainer.out == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--keep-best saves checkpoints; give --out");
    MOERT_TRY(check_record(o));
    MOERT_TRY(check_optimizer(o));
    return check_steps(o);
}

/* Options that change the results of a run, except for options of the schedule and the data. */
static const char *const lasting[] = {
    "optimizer", "weight-decay", "decay-all", "beta1",         "beta2",
    "epsilon",   "momentum",     "grad-clip", "aux-coef",      "aux-form",
    "z-coef",    "bias-rate",    "precision", "dense",         "dispatch",
    "combine",   "moments",      "gradients", "micro-batches", "balanced-routing"};

static bool lasts(const char *line) {
    const char *name = line + strspn(line, "no "); /* "no --flag" */
    for (size_t i = 0; i < MOERT_COUNT(lasting); i++) {
        const size_t length = strlen(lasting[i]);
        if (strncmp(name, "--", 2) == 0 && strncmp(name + 2, lasting[i], length) == 0 &&
            (name[2 + length] == ' ' || name[2 + length] == '\0'))
            return true;
    }
    return false;
}

moert_status moert_train_note_settings(moert_train_options *o, const moert_model_config *config) {
    static char settings[MOERT_SETTINGS_BYTES];
    moert_text_stream all;
    size_t used = 0;
    MOERT_TRY(moert_text_open("the options", &all));
    moert_options_print(o->command.table, o->command.count, all.file);
    MOERT_TRY(moert_text_close(&all));
    settings[0] = '\0';
    for (const char *line = all.text; line < all.text + all.bytes; line += strlen(line) + 1)
        if (lasts(line) && used < sizeof settings) {
            /* a line is "--name value" if the option is given, else "no --name" */
            const bool given = line[0] == '-';
            used += (size_t)snprintf(settings + used, sizeof settings - used, "%s%s\n",
                                     line + (given ? 0 : 3), given ? "" : " none");
        }
    const bool counts_steps =
        o->trainer.schedule.kind != MOERT_SCHEDULE_CONSTANT || config->recipe.bf16_finish > 0.0;
    if (counts_steps && o->trainer.steps > 0 && used < sizeof settings)
        snprintf(settings + used, sizeof settings - used, "--steps %zu\n", o->trainer.steps);
    free(all.text);
    o->trainer.settings = settings;
    return MOERT_OK;
}
