// run: check=1 all=1san device=0
/* The loader: the sequences of every step, in any order of steps, and failures on its thread. */
#include <unistd.h>

#include "support/data.h"
#include "train/loader.h"

enum { LENGTH = 4, BATCH = 6, PIECES = 2, STEPS = 5 };

static moert_loader *open_loader(const moert_loader_options *options) {
    moert_loader *loader;
    ASSERT_OK(moert_loader_create(options, &loader));
    return owned(loader, moert_loader_destroy);
}

/* A loader of this rank's sequences of each step. */
static moert_loader *open_part(const moert_data *data, size_t rank, size_t ranks) {
    return open_loader(
        &(moert_loader_options){data, 3, STEPS, BATCH, PIECES, LENGTH, rank, ranks, -1});
}

static const char sentence[] = "The quick brown fox jumps over it.";

static void check_step(moert_loader *loader, const moert_data *data, uint64_t step, size_t first,
                       size_t count) {
    moert_loaded loaded;
    ASSERT_OK(moert_loader_take(loader, step, &loaded));
    assert_int_equal(loaded.sequences, count);
    assert_int_equal(loaded.targets, PIECES * count * LENGTH);
    for (size_t i = 0; i < PIECES * count; i++) {
        int32_t input[LENGTH], target[LENGTH];
        const moert_draw draw = {3, step, i / count * (BATCH / PIECES) + first + i % count, BATCH};
        ASSERT_OK(moert_data_sequence(data, draw, LENGTH, input, target, NULL));
        assert_memory_equal(loaded.input + i * LENGTH, input, sizeof input);
        assert_memory_equal(loaded.target + i * LENGTH, target, sizeof target);
    }
}

TEST(test_every_step_has_the_sequences_of_the_rank) {
    static const uint64_t steps[] = {0, 1, 2, 4, 1, 1, 2}; /* in order, and not */
    const char *path = write_text("text", sentence);
    const moert_data *data = open_text(&path, 1, 0.0);
    moert_loader *first = open_part(data, 0, 2), *second = open_part(data, 1, 2);
    for (size_t i = 0; i < MOERT_COUNT(steps); i++) {
        check_step(first, data, steps[i], 0, 1);
        check_step(second, data, steps[i], 1, 2);
    }
}

TEST(test_a_failure_of_the_thread_is_the_next_step_s) {
    moert_loaded loaded;
    const char *path = write_text("short", sentence);
    moert_loader *loader = open_part(open_text(&path, 1, 0.0), 0, 1);
    assert_int_equal(truncate(path, 20), 0);
    ASSERT_FAILS(moert_loader_take(loader, 0, &loaded), MOERT_ERROR_IO, "has 20 now");
    path = write_text("later", sentence);
    loader = open_part(open_text(&path, 1, 0.0), 0, 1);
    ASSERT_OK(moert_loader_take(loader, 0, &loaded));
    assert_int_equal(unlink(path), 0); /* perhaps after step 1 was read */
    moert_status status = MOERT_OK;
    for (uint64_t step = 1; step < STEPS && status == MOERT_OK; step++)
        status = moert_loader_take(loader, step, &loaded);
    assert_int_equal(status, MOERT_ERROR_IO);
    assert_non_null(strstr(moert_last_error(), "later: No such file"));
}

TESTS(make_test_directory, remove_test_directory)
