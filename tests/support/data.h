/* Sources of tokens for tests: data of a source, and Megatron datasets byte by byte. */
#pragma once

#include "data/data.h"
#include "support/files.h"

/* All objects are released when the test ends. open_data() becomes the owner of the source. */
moert_source *open_source(const char *path);
moert_data *open_data(moert_source *source, const moert_split *split);
/* Opens text files as data; a fraction of the tokens is held out. */
moert_data *open_text(const char *const *paths, size_t count, double held_out);

/* The lists that the index file (.idx) of a Megatron dataset holds. `positions` NULL: the sequences
 * lie one after another; `documents` NULL: each sequence is a document. */
typedef struct index_lists {
    unsigned char code; /* Megatron's code for the type of the tokens */
    size_t sequences;
    const int32_t *lengths;
    const int64_t *positions, *documents;
    size_t entries; /* of `documents` */
} index_lists;

/* Writes NAME.bin and NAME.idx into the test's directory; returns the path of NAME.idx. */
const char *write_dataset(const char *name, const void *tokens, size_t bytes, index_lists of);
