/* The struct of the training data, which the files of src/data share. */
#pragma once

#include "data/blend.h"
#include "data/data.h"
#include "data/epochs.h"

struct moert_data {
    moert_source *source; /* NULL if the data are an array or a blend */
    moert_blend *blend;   /* NULL: no blend */
    moert_data **parts;   /* [count] parts of the blend */
    size_t count;
    size_t tokens; /* tokens in the source, in all parts, or in all batches */
    moert_split split;
    moert_replay replay;  /* the array */
    moert_checksum sum;   /* of the array */
    moert_epochs *epochs; /* NULL: random positions */
    int32_t end;          /* token that ends a document inside a sequence; -1: none */
    char identity[MOERT_IDENTITY_BYTES];
};

/* Writes the identity of `count` files with these checksums. */
void moert_identity_write(const char *kind, size_t tokens, const moert_checksum *sums, size_t count,
                          char identity[MOERT_IDENTITY_BYTES]);
