/*
 * Writes checkpoints and models (train/checkpoint.h lists their files), at once or beside training.
 *
 * A save has stages: rank 0 creates the files; all ranks write their values; all ranks compute the
 * checksums that are missing; rank 0 writes the manifest and gives the directory its final name.
 * The ranks agree on the status of each stage. A save beside training first copies this rank's
 * values to host memory. Then a thread works on each stage, and the training thread, which alone
 * calls MPI, begins the next stage in moert_saver_poll. Both kinds of saves give the same bytes.
 */
#pragma once

#include "train/checkpoint.h"

typedef struct moert_saver moert_saver;

typedef struct moert_saver_options {
    const moert_optimizer *optimizer;
    const char *config_text; /* content of config.json */
    const char *directory;   /* directory of the checkpoints */
    moert_keep keep;
    bool beside;        /* allocates the host memory for saves beside training */
    double bytes_per_s; /* bandwidth limit of all ranks together for saves beside training; 0 = no
                           limit */
} moert_saver_options;

/* The host memory of a saver with `beside`, in floats: weight and moments (moert_checkpoint_kinds)
 * of this rank's shards, with their padding. */
size_t moert_saver_floats(const moert_model *model);

/* The options' pointers must outlive the saver. Not collective. Errors: ERROR_MEMORY. */
moert_status moert_saver_create(const moert_saver_options *options, moert_saver **saver);
/* Gives up a save in progress, and removes its files. NULL is legal. Not collective. */
void moert_saver_destroy(moert_saver *saver);

/*
 * Writes the checkpoint of `state`, then removes older ones, unless the last steps of the run were
 * skipped. No other save may be in progress. Collective; all ranks return the same status. If an
 * older checkpoint cannot be removed, a warning says so. On failure, no part of the new checkpoint
 * remains, and an older one of the same step stays. Errors: ERROR_IO, ERROR_MEMORY, ...
 */
moert_status moert_saver_write(moert_saver *saver, const moert_run_state *state);

/* Begins to write a checkpoint beside training: copies the values, and lets a thread write them.
 * Collective. Errors: ERROR_MEMORY, those of moert_buffer_read. */
moert_status moert_saver_begin(moert_saver *saver, const moert_run_state *state);
/* True from moert_saver_begin until the save has ended; the same on all ranks. */
bool moert_saver_is_busy(const moert_saver *saver);
/* Advances the save in progress without waiting for the disk. It has ended when moert_saver_is_busy
 * is false. Collective. Errors: those of moert_saver_write, when it has failed. */
moert_status moert_saver_poll(moert_saver *saver);
/* Waits for the end of the save in progress, if any. Collective. Errors: those of
 * moert_saver_write. */
moert_status moert_saver_wait(moert_saver *saver);

/* The last save that was begun. */
typedef struct moert_saved {
    uint64_t step;
    char *path;     /* owned by the saver */
    double taken_s; /* duration of the save */
} moert_saved;
moert_saved moert_saver_last(const moert_saver *saver);

typedef struct moert_export {
    const char *config_text; /* content of config.json */
    moert_file_type type;    /* F32, or BF16, to which the weights are rounded; config.json then
                                says so */
    size_t file_bytes; /* above 0: splits the weights into files of at most that size, as far as
                          tensors fit, with an index, as transformers does */
    const char *from;  /* a model's directory, from which the files of the tokenizer and of the
                          generation are copied; NULL: none */
} moert_export;

/* Writes config.json and model.safetensors to the new directory `path`; replaces an older one.
 * Collective. Errors: those of moert_saver_write. */
moert_status moert_model_save(moert_model *model, const moert_export *how, const char *path);
