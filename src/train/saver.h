/* The struct of a saver, its files and its stages. save_stages.c has the work of the stages, and
 * save.c runs them. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "train/save.h"

/* A safetensors file, which contains the tensors of specs [first, first + count). */
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
        /* files in the order of the specs; if the weights are split, an index file is also
         * written */
        *files;
    size_t file_count;
    moert_tensor_spec *specs; /* [kinds, F] specs of all tensors, as values.h explains */
    float *copy; /* copy of this rank's values, in the order of the specs; NULL without `beside` */

    /* the last save */
    moert_run_state state; /* state of the run, for a checkpoint */
    char *path, *temporary;
    moert_manifest *manifest;
    size_t stage, next_value; /* present stage; index in `copy` of the next value to write */
    uint64_t begun_ns, ended_ns;
    bool busy;   /* a save is in progress */
    bool beside; /* training continues during the save: a thread writes the values of `copy` */

    /* the save's thread, which works on one stage */
    pthread_t thread;
    bool has_thread;
    moert_status status; /* result of the present stage, once it has ended */
    char *message;
    /* ended: the stage's work has ended; dropped: the save has failed, so the thread should end
     * early */
    atomic_bool ended, dropped;
    uint64_t written_bytes, writing_ns;
};

static inline bool moert_saver_is_first(const moert_saver *s) {
    return moert_comm_rank(s->world) == 0;
}

/* Lists the files of the save. Each file has at most file_bytes bytes of weights; file_bytes 0: one
 * file for all weights. */
moert_status moert_saver_make_files(moert_saver *s, size_t file_bytes);

/* A stage: work of each rank without MPI, so that any thread may run it. */
typedef struct moert_save_stage {
    moert_status (*work)(moert_saver *saver);
    bool exchanges; /* after the stage, the ranks exchange checksums */
} moert_save_stage;
enum { MOERT_SAVE_STAGES = 4 };
extern const moert_save_stage moert_save_stages[MOERT_SAVE_STAGES];
