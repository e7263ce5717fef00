/*
 * The elements of a range of a tensor, in the order of the model's file.
 *
 * A run is a part of the range that is consecutive in the file. A range of a tensor that is not
 * transposed is one run. The file stores a transposed matrix [rows, columns] column after column,
 * so a range of rows has a run in each column:
 *
 *   in the model            in the file
 *     . . a b                 . c g | . d h | a e . | b f .
 *     c d e f                   runs: c g, d h a e, b f
 *     g h . .
 *
 * If a column of the file also has rows of other tensors, runs end with the columns.
 *
 * Runs also end at multiples of `most` elements, so that callers read and write whole pieces.
 */
#pragma once

#include "model/model.h"

typedef struct moert_file_runs {
    size_t first, count; /* the run: elements [first, first + count) of the file's tensor */
    size_t done;         /* number of the range's elements in earlier runs */
    /* private */
    size_t file_first, rows, columns; /* columns is 0 if the tensor is not transposed */
    size_t gap;                       /* elements between the columns in the file */
    moert_model_range range;
    size_t at; /* start of the run, in the file's order of the tensor */
    size_t to; /* end of the run, in the file's order of the tensor */
} moert_file_runs;

/* Returns an iterator before the first run. `transposed`: the file stores the tensor transposed. */
moert_file_runs moert_file_runs_of(const moert_model_tensor *tensor, moert_model_range range,
                                   bool transposed);
/* Advances to the next run, which ends at the next multiple of `most` elements or before. Returns
 * false after the last run. */
bool moert_file_runs_next(moert_file_runs *runs, size_t most);

/* Returns the run's values, taken from values[range.count], which holds the whole range in the
 * model's order. If the tensor is transposed, copies the values to scratch[count]. */
const float *moert_file_runs_gather(const moert_file_runs *runs, const float *values,
                                    float *scratch);
/* Stores the run's values, run[count], in values[range.count]. Only for transposed tensors. */
void moert_file_runs_scatter(const moert_file_runs *runs, const float *run, float *values);
