/*
 * Reads this rank's sequences of each step. While the device computes a step, a thread reads the
 * next one. No call is collective.
 */
#pragma once

#include "data/data.h"

typedef struct moert_loader moert_loader;

typedef struct moert_loader_options {
    const moert_data *data; /* must outlive the loader */
    uint64_t seed;
    size_t steps;         /* steps of the training; the thread reads no step from here on */
    size_t batch;         /* sequences per step, over all ranks */
    size_t micro_batches; /* parts of the batch, each divided among the ranks */
    size_t length;        /* S */
    size_t rank, ranks;
} moert_loader_options;

/* This rank's part of a step, which stays valid until the second take after it. */
typedef struct moert_loaded {
    size_t sequences;              /* sequences of each micro-batch */
    const int32_t *input, *target; /* [micro_batches, sequences, S]; -1: see moert_data_sequence */
    const int32_t *positions; /* [micro_batches, sequences, S]; NULL: neither ends nor epochs */
    size_t targets;           /* targets that count, in this rank's part */
} moert_loaded;

/* Errors: ERROR_MEMORY. */
moert_status moert_loader_create(const moert_loader_options *options, moert_loader **loader);
/* Waits for the thread. NULL is legal. */
void moert_loader_destroy(moert_loader *loader);

/* Returns a step, which the thread has read or this call reads. Then starts to read step + 1,
 * unless that is the end of the training. Errors: those of moert_data_sequence. */
moert_status moert_loader_take(moert_loader *loader, uint64_t step, moert_loaded *loaded);
