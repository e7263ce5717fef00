/* A saver inside: its files and its stages (save_stages.c), which save.c runs. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "train/save.h"

/* A safetensors file: specs [first, first + count). */
typedef struct moert_saved_file {
    char name[64];
    size_t first, count;
} moert_saved_file;

struct moert_saver {
    moert_saver_options options;
    const char *companions; /* moert_export.from */
    moert_model *model;
    moert_comm *world;
    moert_saved_file
        *files; /* in the order of the specs; those of the weights have an index if split */
    size_t file_count;
    moert_tensor_spec *specs; /* [kinds, F]: see values.h */
    float *copy;              /* this rank's values, in the order of the specs; NULL: none */

    /* the last save */
    moert_run_state state; /* of a checkpoint */
    char *path, *temporary;
    moert_manifest *manifest;
    size_t stage, next_value; /* next_value: the place in `copy` from which to write */
    uint64_t begun_ns, ended_ns;
    bool busy;   /* in progress */
    bool beside; /* training: writes the copy, in a thread */

    /* its thread, which works on one stage */
    pthread_t thread;
    bool has_thread;
    moert_status status; /* the stage's result, once it has ended */
    char *message;
    atomic_bool ended, dropped; /* dropped: the thread shall end soon, since the save has failed */
    uint64_t written_bytes, writing_ns;
};

static inline bool moert_saver_is_first(const moert_saver *s) {
    return moert_comm_rank(s->world) == 0;
}

/* Lists the files of the save, with at most file_bytes of weights in each; 0: one for all. */
moert_status moert_saver_make_files(moert_saver *s, size_t file_bytes);

/* A stage: the work of each rank, in any thread, without MPI. */
typedef struct moert_save_stage {
    moert_status (*work)(moert_saver *saver);
    bool exchanges; /* the ranks then exchange checksums */
} moert_save_stage;
enum { MOERT_SAVE_STAGES = 4 };
extern const moert_save_stage moert_save_stages[MOERT_SAVE_STAGES];
