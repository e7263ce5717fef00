/* The struct of a token source, which the files of src/data share. */
#pragma once

#include "base/checksum.h"
#include "data/corpus.h"
#include "data/data.h"

typedef enum moert_data_kind { TEXT, RAW, ARRAY } moert_data_kind;

struct moert_data {
    moert_data_kind kind;
    moert_corpus corpus;
    size_t *starts; /* text: position of each file's first byte */
    unsigned width; /* raw: bytes of a token */
    size_t tokens;  /* tokens of all files, or of all batches */
    double held_out;
    const char *name;
    const int32_t *array; /* [steps,batch,row] */
    size_t steps, batch, row;
    moert_checksum *sums; /* of each file; an array counts as a file */
    char identity[MOERT_DATA_IDENTITY_BYTES];
};

/* Computes the checksums and the identity of a source that holds its data. Errors:
 * ERROR_MEMORY. */
moert_status moert_data_identify(moert_data *data);
