// run: check=1 all=1san device=0
/* The runs (contiguous parts) of a tensor's range in a file: they contain every element once, in
 * the file's order, and each run is as long as possible. */
#include "model/file_runs.h"
#include "support/test.h"

enum { ROWS = 5, COLUMNS = 4, ELEMENTS = ROWS * COLUMNS, FILE_FIRST = 2 * ELEMENTS };

static const moert_model_tensor matrix = {.rank = 3,
                                          .shape = {3, COLUMNS, ROWS},
                                          .file_first = FILE_FIRST,
                                          .elements = ELEMENTS,
                                          .transposed = true};

/* The index of the matrix element that the file stores at this position of the matrix. */
static size_t element_at(size_t position, bool transposed) {
    return transposed ? position % ROWS * COLUMNS + position / ROWS : position;
}

static bool is_in(size_t element, moert_model_range range) {
    return element >= range.first && element < range.first + range.count;
}

/* Checks all runs of a range. Element v in the model's order has the value v. */
static void check_runs(moert_model_range range, bool transposed, size_t most) {
    float values[ELEMENTS], back[ELEMENTS] = {0}, scratch[ELEMENTS];
    size_t position = 0, done = 0;
    for (size_t i = 0; i < range.count; i++)
        values[i] = (float)(range.first + i);
    moert_file_runs runs = moert_file_runs_of(&matrix, range, transposed);
    while (moert_file_runs_next(&runs, most)) {
        while (!is_in(element_at(position, transposed), range))
            position++;
        assert_int_equal(runs.first, FILE_FIRST + position);
        assert_int_equal(runs.done, done);
        const float *got = moert_file_runs_gather(&runs, values, scratch);
        for (size_t i = 0; i < runs.count; i++, position++)
            assert_true(got[i] == (float)element_at(position, transposed));
        done += runs.count;
        const bool at_border = (FILE_FIRST + position) % most == 0;
        assert_true(at_border || position == ELEMENTS ||
                    !is_in(element_at(position, transposed), range));
        if (transposed)
            moert_file_runs_scatter(&runs, got, back);
    }
    assert_int_equal(done, range.count);
    if (transposed)
        assert_memory_equal(back, values, range.count * sizeof *values);
}

TEST(test_runs_cover_every_range_once_in_the_order_of_the_file) {
    static const size_t most[] = {1, 3, 7, 1000};
    for (size_t first = 0; first < ELEMENTS; first++)
        for (size_t count = 0; first + count <= ELEMENTS; count++)
            for (size_t m = 0; m < MOERT_COUNT(most); m++)
                for (int transposed = 0; transposed <= 1; transposed++)
                    check_runs((moert_model_range){first, count}, transposed, most[m]);
}

TESTS(NULL, NULL)
