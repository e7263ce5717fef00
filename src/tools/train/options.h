/* The options of moert-train, and values derived from them. */
#pragma once

#include "data/split.h"
#include "tools/common/options.h"
#include "tools/train/config.h"
#include "train/trainer.h"

typedef struct moert_train_options {
    moert_trainer_options trainer;
    moert_command command;

    /* model */
    const char *model_path;
    bool random_weights;
    moert_model_sizes sizes; /* sizes of a new model */
    bool has_vocabulary;     /* --vocabulary is given */
    bool reads_weights;      /* --model gives the weights */
    moert_compute_choice compute;
    moert_memory_choice memory;
    const char *most_memory;
    size_t most_bytes; /* bytes given by --memory, or 0 */
    bool balanced_routing;
    size_t ep, spare_slots;
    unsigned replicas;

    /* data */
    moert_option_list data_paths;
    const char *token_file, *document_end, *split_weights;
    size_t token_bits;
    unsigned order;
    double held_out;
    moert_split split;
    bool takes_bytes;

    /* training */
    const char *batch_ramp, *skip_steps, *replay_steps;
    unsigned schedule_kind, aux_form, on_mismatch;
    double peak_tflops;
    bool replays;

    /* output */
    const char *resume;
    bool overwrites, fuse_experts;
    unsigned save_mode, save_dtype;
    double save_rate;
    size_t model_file_mb, sample_bytes;
    const char *prompt;
    double temperature;
    const char *gradients_path, *logits_path;
    bool computes_only; /* the run only computes the gradients or logits of the first step */
    /* path of the metrics if --metrics is not given; trainer.metrics points to it */
    char *default_metrics;
} moert_train_options;

/* Checks the parsed options, and sets the fields that depend on them. The caller frees
 * `default_metrics`. Errors: ERROR_USAGE, ERROR_MEMORY. */
moert_status moert_train_check(moert_train_options *options);

/* trainer.settings = the options that change the results of a run, with their values. The number of
 * steps is one of these options if the schedule or the recipe depends on it. Errors:
 * ERROR_MEMORY. */
moert_status moert_train_note_settings(moert_train_options *options,
                                       const moert_model_config *config);
