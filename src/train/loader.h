/*
 * Reads this rank's sequences of each step. While the device computes a step, a thread reads the
 * next step. No function is collective.
 */
#pragma once

#include "data/data.h"
#include "train/batch_ramp.h"

typedef struct moert_loader moert_loader;

typedef struct moert_loader_options {
    const moert_data *data; /* must outlive the loader */
    uint64_t seed;
    size_t steps; /* number of steps of the training, after which the thread reads nothing */
    moert_batch_plan batch; /* sequences of each step, over all ranks */
    size_t micro_batches;   /* parts of the batch, each divided among the ranks */
    size_t length;          /* S */
    size_t rank, ranks;
} moert_loader_options;

/* This rank's part of a step. The part stays valid until the second later call of
 * moert_loader_take. */
typedef struct moert_loaded {
    size_t sequences; /* sequences of each micro-batch */
    /* [micro_batches, sequences, S]; moert_data_sequence explains the value -1 */
    const int32_t *input, *target;
    /* [micro_batches, sequences, S]; NULL if the data have neither document ends nor epochs */
    const int32_t *positions;
    size_t targets; /* number of unmasked targets in this rank's part */
} moert_loaded;

/* Errors: ERROR_MEMORY. */
moert_status moert_loader_create(const moert_loader_options *options, moert_loader **loader);
/* Waits until the thread has ended. NULL is legal. */
void moert_loader_destroy(moert_loader *loader);

/* Returns a step, after waiting for the thread that reads it or reading it here. Then starts a
 * thread that reads step + 1, unless the training ends before it. Errors: those of
 * moert_data_sequence. */
moert_status moert_loader_take(moert_loader *loader, uint64_t step, moert_loaded *loaded);
