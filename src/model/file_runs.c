/* Divides ranges of tensors into runs that are consecutive in files. */
#include "model/file_runs.h"

#include "base/memory.h"

moert_file_runs moert_file_runs_of(const moert_model_tensor *tensor, moert_model_range range,
                                   bool transposed) {
    const size_t rows = transposed ? tensor->elements / tensor->shape[1] : 0;
    return (moert_file_runs){.file_first = tensor->file_first,
                             .rows = rows,
                             .columns = transposed ? tensor->shape[1] : 0,
                             .gap = transposed ? tensor->shape[2] - rows : 0,
                             .range = range,
                             .to = transposed ? 0 : range.first};
}

/* The number of rows of a column that are among the first `end` elements of a matrix. */
static size_t rows_before(const moert_file_runs *runs, size_t end, size_t column) {
    return end > column ? moert_ceil_div(end - column, runs->columns) : 0;
}

/* Finds the longest run from runs->to on in the file's columns. The run may be up to a column
 * longer than `most`. Returns false if the columns have no further run. */
static bool find_in_columns(moert_file_runs *runs, size_t most) {
    const size_t first = runs->range.first, end = first + runs->range.count, rows = runs->rows;
    size_t column = runs->to / rows, row = runs->to % rows;
    for (; column < runs->columns; column++, row = 0) {
        row = moert_max(row, rows_before(runs, first, column));
        if (row < rows_before(runs, end, column))
            break;
    }
    if (column == runs->columns)
        return false;
    runs->at = column * rows + row;
    runs->to = column * rows + rows_before(runs, end, column);
    while (runs->gap == 0 && runs->to == (column + 1) * rows && runs->to - runs->at < most &&
           ++column < runs->columns && rows_before(runs, first, column) == 0)
        runs->to = column * rows + rows_before(runs, end, column);
    return true;
}

bool moert_file_runs_next(moert_file_runs *runs, size_t most) {
    runs->done += runs->count;
    runs->count = 0;
    if (runs->done == runs->range.count)
        return false;
    if (runs->columns > 0) {
        if (!find_in_columns(runs, most))
            return false;
    } else {
        runs->at = runs->to;
        runs->to = runs->range.first + runs->range.count;
    }
    runs->first = runs->file_first + runs->at;
    if (runs->gap > 0)
        runs->first += runs->at / runs->rows * runs->gap;
    runs->count = moert_min(runs->to - runs->at, most - runs->first % most);
    runs->to = runs->at + runs->count;
    return true;
}

/* A position in a run: row and column in the model's matrix. */
typedef struct cursor {
    size_t row, column;
} cursor;

static cursor begin(const moert_file_runs *runs) {
    return (cursor){runs->at % runs->rows, runs->at / runs->rows};
}

/* Returns the index in values[range.count] of the cursor's element, and advances the cursor. */
static size_t step(const moert_file_runs *runs, cursor *c) {
    const size_t place = c->row * runs->columns + c->column - runs->range.first;
    if (++c->row == runs->rows)
        *c = (cursor){0, c->column + 1};
    return place;
}

const float *moert_file_runs_gather(const moert_file_runs *runs, const float *values,
                                    float *scratch) {
    if (runs->columns == 0)
        return values + runs->done;
    cursor c = begin(runs);
    for (size_t i = 0; i < runs->count; i++)
        scratch[i] = values[step(runs, &c)];
    return scratch;
}

void moert_file_runs_scatter(const moert_file_runs *runs, const float *run, float *values) {
    cursor c = begin(runs);
    for (size_t i = 0; i < runs->count; i++)
        values[step(runs, &c)] = run[i];
}
