/* Opens the data of a run. Reads the config of the run's model, or creates it for a new model. */
#include "tools/train/inputs.h"

#include <math.h>

#include "base/memory.h"
#include "tools/common/program.h"

moert_status moert_train_open_data(moert_train_options *o, moert_train_data *data) {
    const moert_train_data_options sources = {&o->data_paths, o->token_file,
                                              (unsigned)o->token_bits, o->split};
    MOERT_TRY(moert_train_data_open(&sources, data));
    moert_data_info info = moert_data_describe(data->data);
    if (o->trainer.batch.largest == 0)
        o->trainer.batch.largest = info.batch > 0 ? info.batch : 16;
    if (o->batch_ramp != NULL && info.steps > 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--batch-ramp %s: all batches of the token file have %zu sequences; "
                          "leave out --batch-ramp",
                          o->batch_ramp, info.batch);
    MOERT_TRY(moert_batch_ramp_check(&o->trainer.batch, o->trainer.micro_batches));
    if (o->trainer.length == 0)
        o->trainer.length = info.length;
    if (o->trainer.steps == SIZE_MAX)
        o->trainer.steps = info.steps > 0 ? info.steps : 100;
    return MOERT_OK;
}

/* Reads or creates the config. Sequences for which neither an option nor the data give a length
 * have 128 tokens, or as many as the model takes. */
static moert_status make_config(moert_train_options *o, moert_model_config *config) {
    const bool chooses = o->trainer.length == 0;
    if (chooses)
        o->trainer.length = 128;
    o->sizes.max_positions = o->trainer.length;
    MOERT_TRY(o->model_path != NULL ? moert_model_config_read(o->model_path, config)
                                    : moert_config_from_sizes(&o->sizes, config));
    if (chooses)
        o->trainer.length = moert_min(o->trainer.length, config->max_positions);
    return MOERT_OK;
}

static moert_status order_data(const moert_train_options *o, moert_data *data) {
    enum { AUTO, EPOCHS };
    return o->order == EPOCHS || (o->order == AUTO && moert_data_describe(data).documents)
               ? moert_data_order_epochs(data, o->trainer.seed, o->trainer.length)
               : MOERT_OK;
}

/* Checks that the data's tokens were made for this model's vocabulary. */
static moert_status check_tokens(const moert_train_options *o, const moert_data_info *info,
                                 size_t vocabulary) {
    if (info->vocabulary_made > vocabulary)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "the data have tokens of a tokenizer with a vocabulary of %zu, above the "
                          "model's %zu; tokenize them by the model's own tokenizer",
                          info->vocabulary_made, vocabulary);
    if (info->text && vocabulary != 256 && !o->takes_bytes)
        return MOERT_FAIL(
            ERROR_USAGE,
            "--data is text, and the model's vocabulary is %zu, not the 256 bytes; "
            "make tokens of it by launch/tokenize --tokenizer %s --out NAME, and give "
            "--data NAME; or give --bytes if bytes are meant",
            vocabulary, o->model_path != NULL ? o->model_path : "DIR");
    return MOERT_OK;
}

moert_status moert_train_take_config(moert_train_options *o, moert_train_inputs *inputs) {
    moert_data *data = inputs->data.data;
    moert_model_config *config = &inputs->config;
    int32_t end;
    const moert_data_info info = moert_data_describe(data);
    o->sizes.end_token = info.end_made;
    if (!o->has_vocabulary && info.vocabulary_made > 0)
        o->sizes.vocabulary = info.vocabulary_made;
    MOERT_TRY(make_config(o, config));
    MOERT_TRY(order_data(o, data));
    MOERT_TRY(moert_program_compute(&o->compute, config));
    config->memory = o->memory;
    config->balanced_routing = o->balanced_routing;
    if (o->reads_weights)
        MOERT_TRY(moert_model_config_check_tied(o->model_path, config, &inputs->untied));
    if (isnan(o->trainer.bias_rate))
        o->trainer.bias_rate = config->correction_bias && o->model_path == NULL ? 1e-3 : 0.0;
    MOERT_TRY(check_tokens(o, &info, config->vocabulary));
    MOERT_TRY(moert_data_check_vocabulary(data, config->vocabulary));
    MOERT_TRY(moert_config_document_end(o->document_end, o->model_path, config, &end));
    moert_data_end_documents(data, end, o->document_end == NULL);
    if (o->sample_bytes > 0 && config->vocabulary != 256)
        return MOERT_FAIL(ERROR_USAGE,
                          "--sample writes bytes; the vocabulary of this model is %zu, not 256; "
                          "launch/generate continues texts with a tokenizer",
                          config->vocabulary);
    o->trainer.config_text = config->text;
    return moert_train_note_settings(o, config);
}
