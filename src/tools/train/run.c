/* Runs moert-train: creates the model, trains it, and writes the results. */
#include "tools/train/run.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/text.h"
#include "io/durable.h"
#include "tools/common/text.h"
#include "tools/common/option_file.h"
#include "tools/common/program.h"
#include "tools/train/directories.h"
#include "tools/train/inputs.h"
#include "tools/train/memory.h"
#include "train/checksums.h"

typedef struct job {
    moert_context *context;
    moert_comm *world;
    moert_train_options *options;
    moert_train_inputs inputs;
    moert_manifest *manifest; /* manifest of --model, or NULL */
    moert_mesh *mesh;
    moert_train_memory memory;
    char *record;
} job;

/* Prints a text that the model generates, byte by byte. */
static moert_status show_sample(const job *j, moert_model *model) {
    const moert_train_options *o = j->options;
    const moert_generation_options options = {
        .sampling = {.temperature = o->temperature, .top_p = 1.0, .seed = o->trainer.seed},
        .window = o->trainer.length};
    moert_program_say(j->context, "\nsample: %s", o->prompt);
    const moert_status status =
        moert_text_continue_bytes(j->context, model, &options, o->prompt, o->sample_bytes);
    moert_program_say(j->context, "\n");
    return status;
}

/* Prints a sample of generated text, and saves the model in Hugging Face form. Prints the paths of
 * the run's files. */
static moert_status finish(const job *j, moert_model *model) {
    const moert_train_options *o = j->options;
    if (o->sample_bytes > 0)
        MOERT_TRY(show_sample(j, model));
    if (o->trainer.metrics != NULL)
        moert_program_say(j->context, "metrics %s\n", o->trainer.metrics);
    if (o->trainer.out == NULL)
        return MOERT_OK;
    const moert_export how = {.config_text = o->trainer.config_text,
                              .type = o->save_dtype == 1 ? MOERT_FILE_BF16 : MOERT_FILE_F32,
                              .file_bytes = 1000000 * o->model_file_mb,
                              .from = o->model_path};
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/model", o->trainer.out));
    moert_model_join_experts(model, o->fuse_experts);
    const moert_status status = moert_model_save(model, &how, path);
    if (status == MOERT_OK)
        moert_program_say(j->context, "model   %s\n", path);
    free(path);
    return status;
}

/* Loads or initializes the weights. */
static moert_status make_weights(const job *j, moert_model *model) {
    const moert_train_options *o = j->options;
    moert_status status;
    moert_progress_begin(o->reads_weights ? "reading weights" : "making weights", 0);
    if (o->reads_weights)
        status = moert_checksums_finish(j->world, j->manifest,
                                        moert_model_load(model, o->model_path, j->manifest));
    else
        status = moert_comm_agree(j->world, moert_model_initialize(model, o->trainer.seed));
    moert_progress_end();
    return status;
}

/* Sets the number of slots per rank, including spare slots for experts that move. */
static moert_status make_slots(job *j) {
    const moert_train_options *o = j->options;
    const size_t experts = j->inputs.config.router.experts;
    size_t group;
    MOERT_TRY(moert_mesh_group(moert_context_size(j->context), o->ep, &group));
    if (o->trainer.rebalance_every > 0 && group > 1)
        j->inputs.config.expert_slots =
            moert_min(moert_ceil_div(experts, group) + o->spare_slots, experts);
    return MOERT_OK;
}

/* Prints a summary of the run, and properties of its inputs that users may not expect. */
static void say_begin(const job *j) {
    const moert_train_options *o = j->options;
    const moert_context *context = j->context;
    const moert_model_config *config = &j->inputs.config;
    const moert_data *data = j->inputs.data.data;
    const int32_t end = moert_data_describe(data).end, made = moert_data_describe(data).end_made;
    moert_program_say(context, "moert-train: %zu rank%s, %s, exchange %s, bf16 sums %s\n",
                      moert_context_size(context), moert_context_size(context) > 1 ? "s" : "",
                      moert_device_name(moert_context_device(context)), moert_mesh_engine(j->mesh),
                      moert_gemm_bf16_order(moert_context_device(context)));
    moert_train_say_fit(context, &j->memory);
    if (end >= 0)
        moert_program_say(
            context, "%s end with token %d%s\n",
            o->document_end == NULL ? "documents of raw token files" : "documents", (int)end,
            o->document_end == NULL ? ", the model's eos_token_id (--document-end)" : "");
    if (j->inputs.untied)
        moert_program_say(context,
                          "config.json of %s ties the embeddings, but lm_head.weight has values of "
                          "its own, which are used, as in transformers\n",
                          o->model_path);
    if (made >= 0 && config->end_token >= 0 && made != config->end_token)
        moert_program_say(context,
                          "the dataset's texts end with token %d; the model's eos_token_id is %d\n",
                          (int)made, (int)config->end_token);
    moert_train_data_say(context, data, moert_batch_before(&o->trainer.batch, o->trainer.steps));
    if (o->trainer.out == NULL && !o->computes_only && o->trainer.steps > 0)
        moert_program_say(context, "without --out, nothing is saved\n");
    if (config->prediction_layers > 0)
        moert_program_say(context, "%s has %zu multi-token-prediction layers, which are left out\n",
                          o->model_path, config->prediction_layers);
}

static moert_status train(const job *j) {
    const moert_train_options *o = j->options;
    const moert_data *data = j->inputs.data.data;
    moert_model *model;
    bool interrupted = false;
    MOERT_TRY(moert_model_create(j->mesh, &j->inputs.config, &model));
    moert_status status = MOERT_OK;
    MOERT_TRY_OR(done, make_weights(j, model));
    say_begin(j);
    if (o->logits_path != NULL)
        MOERT_TRY_OR(done, moert_train_logits(model, data, &o->trainer, o->logits_path));
    if (o->gradients_path != NULL && !o->replays)
        MOERT_TRY_OR(done, moert_train_gradients(model, data, &o->trainer, o->gradients_path));
    if (o->computes_only)
        goto done;
    MOERT_TRY_OR(done, moert_train(model, data, &o->trainer, &interrupted));
    MOERT_TRY_OR(done, moert_train_say_memory(j->context, model, &j->memory));
    if (o->replays)
        moert_program_say(j->context, "replay  %s%s\n", o->trainer.metrics,
                          interrupted ? ", stopped by a signal" : "");
    else if (interrupted)
        moert_program_say(j->context, "stopped by a signal; %s\n",
                          o->trainer.out != NULL ? "continue with --resume auto"
                                                 : "without --out nothing is saved");
    else
        status = finish(j, model);
done:
    moert_model_destroy(model);
    return status;
}

static moert_status open_data(job *j) {
    MOERT_TRY(moert_train_check_out(j->options));
    moert_progress_begin("reading data", 0);
    const moert_status status = moert_train_open_data(j->options, &j->inputs.data);
    moert_progress_end();
    return status;
}

/* Leaves out an --ep of a file, such as the record of a run on more ranks, that does not divide the
 * number of ranks. */
static void fit_groups(const job *j) {
    moert_train_options *o = j->options;
    const size_t ranks = moert_context_size(j->context);
    if (o->ep == 0 || ranks % o->ep == 0 ||
        !moert_options_of_file(&o->command, &o->ep, sizeof o->ep))
        return;
    if (moert_context_rank(j->context) == 0)
        MOERT_WARN("--ep %zu of the file of options does not divide %zu rank%s; all ranks share "
                   "one set of experts",
                   o->ep, ranks, ranks > 1 ? "s" : "");
    o->ep = 0;
}

/* Opens the inputs, creates the mesh, locks the directories, and trains. */
static moert_status run(job *j, moert_lock *locks[2]) {
    moert_train_options *o = j->options;
    moert_train_inputs *inputs = &j->inputs;
    fit_groups(j);
    MOERT_TRY(moert_comm_agree(j->world, open_data(j)));
    if (o->reads_weights && o->trainer.checksums)
        MOERT_TRY(moert_checksums_begin(j->world, o->model_path, &j->manifest));
    MOERT_TRY(moert_comm_agree(j->world, moert_train_take_config(o, inputs)));
    MOERT_TRY(moert_data_compare(inputs->data.data, j->world));
    MOERT_TRY(moert_config_compare(j->world, inputs->config.text));
    MOERT_TRY((o->replicas == MOERT_REPLICAS_EXACT ? moert_mesh_create_exact : moert_mesh_create)(
        j->context, o->ep, &j->mesh));
    MOERT_TRY(make_slots(j));
    if (!o->computes_only)
        MOERT_TRY(moert_train_fit(j->context, j->mesh, &o->trainer, o->most_bytes, &inputs->config,
                                  &j->memory));
    MOERT_TRY(moert_comm_agree(
        j->world, moert_context_rank(j->context) == 0 ? moert_train_lock(o, locks) : MOERT_OK));
    MOERT_TRY(moert_comm_agree(j->world, moert_option_record(&o->command, &j->record)));
    o->trainer.record = j->record;
    return train(j);
}

moert_status moert_train_run(moert_context *context, moert_train_options *o) {
    job j = {.context = context, .world = moert_context_comm(context), .options = o};
    moert_lock *locks[2] = {NULL, NULL};
    const moert_status status = run(&j, locks);
    moert_manifest_free(j.manifest);
    moert_lock_release(locks[1]);
    moert_lock_release(locks[0]);
    moert_mesh_destroy(j.mesh);
    moert_train_data_close(&j.inputs.data);
    moert_model_config_free(&j.inputs.config);
    MOERT_FREE(j.memory.places, j.record, o->data_paths.words, o->default_metrics);
    return status;
}
