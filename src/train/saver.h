/* The struct of a saver, its files, and its stages (save_stages.c), which save.c runs. */
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
        *files; /* files in the order of the specs; an index file goes with them if the weights are
                   split */
    size_t file_count;
    moert_tensor_spec *specs; /* [kinds, F]: see values.h */
    float *copy;              /* copy of this rank's values, in the order of the specs; NULL without
                                 `beside` */

    /* the last save */
    moert_run_state state; /* state of the run, for a checkpoint */
    char *path, *temporary;
    moert_manifest *manifest;
    size_t stage, next_value; /* next_value: index in `copy` of the next value to write */
    uint64_t begun_ns, ended_ns;
    bool busy;   /* a save is in progress */
    bool beside; /* the save runs beside training: a thread writes the values of `copy` */

    /* the save's thread, which works on one stage */
    pthread_t thread;
    bool has_thread;
    moert_status status; /* the stage's result, once it has ended */
    char *message;
    atomic_bool ended, dropped; /* dropped: tells the thread to end early, since the save has
                                   failed */
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
    bool exchanges; /* after the stage, the ranks exchange checksums */
} moert_save_stage;
enum { MOERT_SAVE_STAGES = 4 };
extern const moert_save_stage moert_save_stages[MOERT_SAVE_STAGES];
