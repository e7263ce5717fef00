/*
 * Writes checkpoints and models (train/checkpoint.h lists their files), at once or while training
 * continues.
 *
 * A save has stages: (1) rank 0 creates the files; (2) all ranks write their values; (3) all ranks
 * compute the missing checksums; (4) rank 0 writes the manifest and gives the directory its final
 * name. The ranks agree on the status of each stage. A save during training first copies this
 * rank's values to host memory. Then each stage runs in a thread without MPI. The training thread
 * begins the next stage in moert_saver_poll. A save during training writes the same bytes as a save
 * at once.
 */
#pragma once

#include "train/checkpoint.h"

typedef struct moert_saver moert_saver;

typedef struct moert_saver_options {
    const moert_optimizer *optimizer;
    const char *config_text; /* content of config.json */
    const char *directory;   /* directory of the checkpoints */
    moert_keep keep;
    bool keeps_best; /* also keep the checkpoint with the lowest held-out loss */
    bool beside;     /* allocates host memory for saves while training continues */
    /* bandwidth limit of all ranks together for saves while training continues; 0 = no limit */
    double bytes_per_s;
} moert_saver_options;

/* The size in floats of the host memory of a saver with `beside`: for the weights and moments
 * (moert_checkpoint_kinds) of this rank's shards, with padding. */
size_t moert_saver_floats(const moert_model *model);

/* The pointers in `options` must outlive the saver. Not collective. Errors: ERROR_MEMORY. */
moert_status moert_saver_create(const moert_saver_options *options, moert_saver **saver);
/* If a save is in progress, stops it and removes its files. NULL is legal. Not collective. */
void moert_saver_destroy(moert_saver *saver);

/*
 * Writes the checkpoint of `state`. Then removes older checkpoints, unless the last steps of the
 * run were skipped. No other save may be in progress. Collective; all ranks return the same status.
 * Only warns if an older checkpoint cannot be removed. On failure, no part of the new checkpoint
 * remains, and an older checkpoint of the same step is kept. Errors: ERROR_IO, ERROR_MEMORY, ...
 */
moert_status moert_saver_write(moert_saver *saver, const moert_run_state *state);

/* Begins to write a checkpoint while training continues: copies the values, and starts a thread
 * that writes them. Collective. Errors: ERROR_MEMORY, those of moert_buffer_read. */
moert_status moert_saver_begin(moert_saver *saver, const moert_run_state *state);
/* True from moert_saver_begin until the save has ended. The result is the same on all ranks. */
bool moert_saver_is_busy(const moert_saver *saver);
/* Advances the save in progress without waiting for the disk. The save has ended when
 * moert_saver_is_busy returns false. Collective. If the save has failed, returns an error as
 * moert_saver_write does. */
moert_status moert_saver_poll(moert_saver *saver);
/* Waits until the save in progress has ended, if there is one. Collective. Errors: those of
 * moert_saver_write. */
moert_status moert_saver_wait(moert_saver *saver);

/* The save that was begun last. */
typedef struct moert_saved {
    uint64_t step;
    char *path;     /* owned by the saver */
    double taken_s; /* duration of the save */
} moert_saved;
moert_saved moert_saver_last(const moert_saver *saver);

typedef struct moert_export {
    const char *config_text; /* content of config.json */
    /* F32, or BF16 for weights rounded to bf16; config.json then names that dtype */
    moert_file_type type;
    /* if above 0, splits the weights into files of at most this size and writes an index, as
     * transformers does; a larger tensor has its own file */
    size_t file_bytes;
    /* directory of a model whose tokenizer and generation files are copied; NULL: no files are
     * copied */
    const char *from;
} moert_export;

/* Writes config.json and model.safetensors to the new directory `path`, and replaces an older
 * directory. Collective. Errors: those of moert_saver_write. */
moert_status moert_model_save(moert_model *model, const moert_export *how, const char *path);
