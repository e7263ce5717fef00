/* Reads the sequences of the next step in a thread. */
#include "train/loader.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/memory.h"
#include "model/model.h"

/* A step that the thread reads or has read. */
typedef struct slot {
    const moert_loader_options *options;
    uint64_t step;
    int32_t *input, *target, *positions;
    moert_loaded loaded;
    moert_status status;
    char *message; /* error message of a failure in the thread */
} slot;

struct moert_loader {
    moert_loader_options options;
    slot slots[2]; /* the step that was taken last, and the step after it */
    size_t next;   /* index of the slot that the thread fills */
    pthread_t thread;
    bool running;
};

static moert_status read_step(slot *s) {
    const moert_loader_options *o = s->options;
    const size_t piece = moert_batch_at(&o->batch, s->step) / o->micro_batches;
    const uint64_t before = moert_batch_before(&o->batch, s->step);
    size_t first; /* index of this rank's first sequence in each micro-batch */
    moert_model_partition(piece, o->rank, o->ranks, &first, &s->loaded.sequences);
    s->loaded.targets = 0;
    for (size_t m = 0, at = 0; m < o->micro_batches; m++)
        for (size_t i = 0; i < s->loaded.sequences; i++, at += o->length) {
            const moert_draw draw = {o->seed, s->step, m * piece + first + i, before};
            MOERT_TRY(moert_data_sequence(o->data, draw, o->length, s->input + at, s->target + at,
                                          s->positions != NULL ? s->positions + at : NULL));
            for (size_t t = at; t < at + o->length; t++)
                s->loaded.targets += s->target[t] >= 0;
        }
    return MOERT_OK;
}

static void *run(void *argument) {
    slot *s = argument;
    s->status = read_step(s);
    s->message = s->status != MOERT_OK ? moert_error_keep() : NULL;
    return NULL;
}

static void join(moert_loader *loader) {
    if (loader->running)
        pthread_join(loader->thread, NULL);
    loader->running = false;
}

static moert_status make_slot(const moert_loader_options *options, slot *s) {
    /* a smaller batch may give this rank more sequences than the largest batch does */
    const size_t piece = options->batch.largest / options->micro_batches,
                 sequences = moert_ceil_div(piece, options->ranks),
                 tokens = options->micro_batches * sequences * options->length;
    s->options = options;
    MOERT_TRY(MOERT_NEW_ARRAY(&s->input, tokens));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->target, tokens));
    if (moert_data_describe(options->data).divided)
        MOERT_TRY(MOERT_NEW_ARRAY(&s->positions, tokens));
    s->loaded.positions = s->positions;
    s->loaded.input = s->input;
    s->loaded.target = s->target;
    return MOERT_OK;
}

moert_status moert_loader_create(const moert_loader_options *options, moert_loader **loader) {
    moert_loader *made;
    moert_status status = MOERT_OK;
    MOERT_TRY(MOERT_NEW(&made));
    made->options = *options;
    for (size_t i = 0; i < MOERT_COUNT(made->slots) && status == MOERT_OK; i++)
        status = make_slot(&made->options, &made->slots[i]);
    if (status == MOERT_OK)
        *loader = made;
    else
        moert_loader_destroy(made);
    return status;
}

void moert_loader_destroy(moert_loader *loader) {
    if (loader == NULL)
        return;
    join(loader);
    for (size_t i = 0; i < MOERT_COUNT(loader->slots); i++)
        MOERT_FREE(loader->slots[i].input, loader->slots[i].target, loader->slots[i].positions,
                   loader->slots[i].message);
    free(loader);
}

/* Starts a thread that reads a step. If the thread cannot be started, moert_loader_take reads the
 * step itself. */
static void start_next(moert_loader *loader, uint64_t step) {
    slot *s = &loader->slots[loader->next];
    if (step >= loader->options.steps)
        return;
    s->step = step;
    loader->running = pthread_create(&loader->thread, NULL, run, s) == 0;
}

moert_status moert_loader_take(moert_loader *loader, uint64_t step, moert_loaded *loaded) {
    slot *s = &loader->slots[loader->next];
    const bool was_read = loader->running && s->step == step;
    join(loader);
    if (!was_read) {
        free(s->message);
        s->message = NULL;
        s->step = step;
        s->status = read_step(s);
    }
    if (s->status != MOERT_OK) {
        char *message = s->message;
        s->message = NULL;
        return moert_error_first(message, s->status, MOERT_OK);
    }
    *loaded = s->loaded;
    loader->next ^= 1;
    start_next(loader, step + 1);
    return MOERT_OK;
}
