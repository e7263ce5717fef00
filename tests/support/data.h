/* Sources of tokens for tests: data of a source, and Megatron datasets byte by byte. */
#pragma once

#include "data/data.h"
#include "support/files.h"

/* All objects are released when the test ends. open_data() also takes the source over. */
moert_source *open_source(const char *path);
moert_data *open_data(moert_source *source, const moert_split *split);
/* Data of text files, of which a fraction is held out. */
moert_data *open_text(const char *const *paths, size_t count, double held_out);

/* Lists of an index file; `positions` NULL: the sequences lie one after another. */
typedef struct index_lists {
    unsigned char code;
    size_t width, sequences, entries;
    const int32_t *lengths;
    const int64_t *positions, *documents;
} index_lists;

/* Writes NAME.idx into the test's directory; returns its path. */
const char *write_index(const char *name, const index_lists *of);
