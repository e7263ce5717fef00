// run: check=1 all=1san device=0
/* Token sources: which files are found, which sequences are drawn, and how messages name bad
 * input. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data.h"
#include "support/files.h"

static void destroy(void *data) {
    moert_data_destroy(data);
}

static moert_data *open_source(moert_source *source, double heldout) {
    moert_split split;
    moert_data *data;
    ASSERT_OK(moert_split_hold_out(heldout, &split));
    ASSERT_OK(moert_data_from_source(source, &split, &data));
    return owned(data, destroy);
}

static moert_data *open_text(const char *const *paths, size_t count, double heldout) {
    moert_source *source;
    ASSERT_OK(moert_source_open_text(paths, count, &source));
    return open_source(source, heldout);
}

static moert_data *open_raw(const char *path, unsigned bits, double heldout) {
    moert_source *source;
    ASSERT_OK(moert_source_open_raw(path, bits, &source));
    return open_source(source, heldout);
}

/* The held-out sequences of one token have these values, in order. */
static void assert_heldout(moert_data *data, const char *expected, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int32_t input, target, position;
        ASSERT_OK(moert_data_kept_sequence(data, MOERT_HELD_OUT, i, count, 1, &input, &target,
                                           &position));
        assert_int_equal(position, 0);
        assert_int_equal(input, expected[i]);
        assert_int_equal(target, expected[i + 1]);
    }
}

TEST(test_text_is_joined_by_one_zero_byte) {
    const char *paths[] = {write_text("a.txt", "hello"), write_text("b.txt", ""),
                           write_text("c.txt", "you")};
    static const char expected[] = "hello\0\0you";
    const size_t count = sizeof expected - 1;
    /* almost all tokens are held out, so held-out sequences of one token begin at every position */
    moert_data *data = open_text(paths, 3, 0.8);
    assert_int_equal(moert_data_describe(data).tokens, count);
    assert_int_equal(moert_data_describe(data).files, 3);
    assert_heldout(data, expected + 2, 7); /* 8 tokens are held out */
}

TEST(test_directories_are_walked_in_order_without_links) {
    mkdir(in_directory("tree"), 0700);
    mkdir(in_directory("tree/b"), 0700);
    write_text("tree/c", "3");
    write_text("tree/b/z", "2");
    write_text("tree/a", "1");
    write_text("tree/B", "0");
    assert_int_equal(symlink("a", in_directory("tree/aa")), 0);
    assert_int_equal(symlink("..", in_directory("tree/b/up")), 0);
    assert_int_equal(mkfifo(in_directory("tree/b/pipe"), 0600), 0);
    const char *path = in_directory("tree");
    moert_data *data = open_text(&path, 1, 0.75);
    assert_int_equal(moert_data_describe(data).files, 4);
    /* the tokens are 0, 1, 2, 3 and three zeros */
    assert_int_equal(moert_data_describe(data).tokens, 7);
    assert_heldout(data, "1\0002\0003", 4); /* the last 5 tokens are held out */
}

TEST(test_bad_files_are_named) {
    const char *missing = in_directory("missing"), *empty = write_text("empty", "");
    const char *pipe = in_directory("pipe"), *dangling = in_directory("dangling");
    moert_source *source = NULL;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("nowhere", dangling), 0);
    ASSERT_FAILS(moert_source_open_text(&missing, 1, &source), MOERT_ERROR_IO, missing);
    ASSERT_FAILS(moert_source_open_text(&pipe, 1, &source), MOERT_ERROR_IO, "regular");
    ASSERT_FAILS(moert_source_open_text(&dangling, 1, &source), MOERT_ERROR_IO, dangling);
    ASSERT_FAILS(moert_source_open_text(&empty, 1, &source), MOERT_ERROR_FORMAT, empty);
    ASSERT_FAILS(moert_source_open_text(NULL, 0, &source), MOERT_ERROR_FORMAT, "no text");
    assert_null(source);
}

/* Root may read any file, so a test as root gives up that right for a while. */
TEST(test_an_unreadable_file_or_directory_is_named) {
    enum { NOBODY = 65534 };
    const bool root = geteuid() == 0;
    const char *path = in_directory("closed");
    moert_source *source = NULL;
    chmod(test_directory, 0755);
    mkdir(path, 0755);
    write_text("closed/a", "readable");
    chmod(write_text("closed/b", "secret"), 0);
    if (root && seteuid(NOBODY) != 0)
        SKIP("root may not become another user here");
    const moert_status file = moert_source_open_text(&path, 1, &source);
    char *message = strdup(moert_last_error());
    if (root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(file, MOERT_ERROR_IO);
    assert_non_null(strstr(message, "closed/b: Permission denied"));
    free(message);
    assert_null(source);
}

static const char *identity_of_text(const char *path) {
    return moert_data_describe(open_text(&path, 1, 0.0)).identity;
}

TEST(test_the_identity_depends_on_the_content_alone) {
    mkdir(in_directory("here"), 0700);
    mkdir(in_directory("there"), 0700);
    const char *here = identity_of_text(write_text("here/a", "some text"));
    assert_non_null(strstr(here, "text of 9 tokens in 1 file, XXH3 "));
    assert_string_equal(here, identity_of_text(write_text("there/b", "some text")));
    assert_string_not_equal(here, identity_of_text(write_text("c", "same text")));
    write_text("here/c", "ab");
    write_text("here/d", "c");
    write_text("there/c", "a");
    write_text("there/d", "bc");
    assert_string_not_equal(identity_of_text(in_directory("here")),
                            identity_of_text(in_directory("there")));
    const char *raw = write_text("raw", "12345678");
    const char *narrow = moert_data_describe(open_raw(raw, 16, 0.0)).identity;
    assert_string_not_equal(narrow, moert_data_describe(open_raw(raw, 32, 0.0)).identity);
}

TEST(test_the_identity_of_much_data_is_that_of_blocks) {
    const off_t bytes = 300 << 20, distance = (bytes - 4096) / 63;
    const off_t changed[] = {0, 31 * distance, bytes - 1, bytes}; /* the last one appends a byte */
    const char *path = write_text("much", "");
    char before[MOERT_IDENTITY_BYTES];
    assert_int_equal(truncate(path, bytes), 0); /* a sparse file */
    snprintf(before, sizeof before, "%s", identity_of_text(path));
    assert_string_equal(before, identity_of_text(path));
    for (size_t i = 0; i < MOERT_COUNT(changed); i++) {
        const int file = open(path, O_WRONLY);
        assert_int_equal(pwrite(file, "x", 1, changed[i]), 1);
        close(file);
        const char *after = identity_of_text(path);
        assert_string_not_equal(before, after);
        snprintf(before, sizeof before, "%s", after);
    }
}

TEST(test_large_files_are_read_in_parts) {
    enum { BYTES = 300001 };
    unsigned char *content = test_alloc(BYTES);
    int32_t input[5], target[5], positions[5];
    for (size_t i = 0; i < BYTES; i++)
        content[i] = (unsigned char)(i * 31 % 251);
    const char *path = write_file("large", content, BYTES);
    moert_data *data = open_text(&path, 1, 0.05);
    /* the held-out end of the first of 16 stretches */
    const size_t first = BYTES / 16 - BYTES / 16 / 20;
    ASSERT_OK(moert_data_kept_sequence(data, MOERT_HELD_OUT, 0, 2, 5, input, target, positions));
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(input[i], content[first + i]);
        assert_int_equal(target[i], content[first + i + 1]);
    }
}

enum { TOKENS = 20000, DRAWN = 8 };

/* Writes a file of the tokens 0, 1, ... */
static const char *write_counting(void) {
    uint16_t *content = test_alloc(TOKENS * sizeof *content);
    for (size_t i = 0; i < TOKENS; i++)
        content[i] = (uint16_t)i;
    const char *path = write_file("counting", content, TOKENS * sizeof *content);
    return path;
}

/* Whether the position is in the held-out end of one of the 16 stretches. */
static bool is_held_out(int32_t position) {
    const int32_t stretch = TOKENS / 16, held = stretch / 20;
    return position % stretch >= stretch - held;
}

TEST(test_held_out_data_is_spread_over_all_data) {
    enum { COUNT = 64 };
    const char *path = write_counting();
    int32_t input[DRAWN], target[DRAWN], positions[DRAWN], last = -1;
    size_t stretches = 0;
    moert_data *data = open_raw(path, 16, 0.05);
    for (size_t i = 0; i < COUNT; i++) {
        ASSERT_OK(moert_data_kept_sequence(data, MOERT_HELD_OUT, i, COUNT, DRAWN, input, target,
                                           positions));
        assert_true(is_held_out(input[0]) && is_held_out(target[DRAWN - 1]));
        assert_int_equal(target[DRAWN - 1], input[0] + DRAWN);
        assert_true(input[0] > last);
        stretches += input[0] / (TOKENS / 16) > (last < 0 ? -1 : last / (TOKENS / 16));
        last = input[0];
    }
    assert_int_equal(stretches, 16);
}

TEST(test_a_sequence_depends_on_seed_step_and_index_only) {
    const char *path = write_counting();
    moert_data *data = open_raw(path, 16, 0.05), *again = open_raw(path, 16, 0.05);
    assert_int_equal(moert_data_describe(data).tokens, TOKENS);
    int32_t input[DRAWN], target[DRAWN], other[DRAWN];
    size_t same = 0, upper = 0;
    for (size_t i = 0; i < 200; i++) {
        const moert_draw draw = {.seed = 3, .step = i / 8, .index = i % 8};
        ASSERT_OK(moert_data_sequence(data, draw, DRAWN, input, target, NULL));
        for (size_t j = 0; j < DRAWN; j++) {
            assert_int_equal(input[j], input[0] + (int32_t)j);
            assert_int_equal(target[j], input[j] + 1);
        }
        assert_true(!is_held_out(input[0]) && !is_held_out(target[DRAWN - 1]));
        upper += input[0] > TOKENS / 2;
        ASSERT_OK(moert_data_sequence(again, draw, DRAWN, other, target, NULL));
        assert_memory_equal(input, other, sizeof input);
        ASSERT_OK(moert_data_sequence(data, (moert_draw){.seed = 4, .step = i / 8, .index = i % 8},
                                      DRAWN, other, target, NULL));
        same += other[0] == input[0];
        ASSERT_OK(moert_data_sequence(data,
                                      (moert_draw){.seed = 3, .step = i / 8 + 1, .index = i % 8},
                                      DRAWN, other, target, NULL));
        same += other[0] == input[0];
    }
    assert_true(same < 3);
    assert_in_range(upper, 70, 130);
}

TEST(test_too_little_data_is_refused) {
    const char *path = write_text("ten", "0123456789");
    int32_t input[16], target[16], positions[16];
    const moert_draw draw = {0};
    moert_data *data = open_text(&path, 1, 0.05);
    /* the file has room for two sequences of 4 + 1 tokens */
    ASSERT_OK(moert_data_check_length(data, 4));
    ASSERT_OK(moert_data_sequence(data, draw, 4, input, target, NULL));
    assert_int_equal(input[0], '0');
    ASSERT_OK(moert_data_kept_sequence(data, MOERT_HELD_OUT, 0, 1, 4, input, target, positions));
    assert_int_equal(input[0], '5');
    ASSERT_FAILS(moert_data_check_length(data, 5), MOERT_ERROR_MISMATCH, "10 tokens");
    ASSERT_FAILS(moert_data_sequence(data, draw, 5, input, target, NULL), MOERT_ERROR_MISMATCH,
                 "few");
    ASSERT_FAILS(moert_data_check_length(data, 0), MOERT_ERROR_USAGE, "at least one");
    ASSERT_FAILS(moert_data_kept_sequence(data, MOERT_HELD_OUT, 1, 1, 4, input, target, positions),
                 MOERT_ERROR_USAGE, "1 of 1");
    data = open_text(&path, 1, 0.0);
    ASSERT_OK(moert_data_check_length(data, 9));
    ASSERT_FAILS(moert_data_kept_sequence(data, MOERT_HELD_OUT, 0, 1, 4, input, target, positions),
                 MOERT_ERROR_USAGE, "no data are held out");
}

TEST(test_raw_files_are_checked) {
    const uint32_t wide[] = {1, 70000, 3000000000u, 5};
    const char *path = write_file("wide", wide, sizeof wide);
    moert_data *data = open_raw(path, 32, 0.0);
    int32_t input[1], target[1];
    ASSERT_FAILS(moert_data_sequence(data, (moert_draw){0}, 1, input, target, NULL),
                 MOERT_ERROR_MISMATCH,
                 "position 2: token 3000000000 is not below the vocabulary of 2147483648");
    ASSERT_FAILS(moert_data_check_vocabulary(data, 100000), MOERT_ERROR_MISMATCH,
                 "wide, position 2: token 3000000000");
    ASSERT_FAILS(moert_data_check_vocabulary(data, 70000), MOERT_ERROR_MISMATCH, "position 1");
    moert_source *source = NULL;
    ASSERT_FAILS(moert_source_open_raw(path, 8, &source), MOERT_ERROR_USAGE, "16 or 32");
    ASSERT_FAILS(moert_source_open_raw(test_directory, 16, &source), MOERT_ERROR_IO, "directory");
    path = write_text("odd", "123");
    ASSERT_FAILS(moert_source_open_raw(path, 16, &source), MOERT_ERROR_FORMAT, "3 bytes");
    assert_null(source);
}

TEST(test_text_above_the_vocabulary_is_named) {
    const char *paths[] = {write_text("low", "\x01\x02"), write_text("high", "\x01\x7f\x02")};
    moert_data *data = open_text(paths, 2, 0.05);
    ASSERT_OK(moert_data_check_vocabulary(data, 256));
    ASSERT_OK(moert_data_check_vocabulary(data, 128));
    ASSERT_FAILS(moert_data_check_vocabulary(data, 127), MOERT_ERROR_MISMATCH,
                 "high, position 1: token 127");
}

TEST(test_an_array_is_replayed_and_ends) {
    enum { STEPS = 3, BATCH = 2, LENGTH = 4 };
    int32_t tokens[STEPS * BATCH * (LENGTH + 1)], input[LENGTH], target[LENGTH];
    for (int i = 0; i < STEPS * BATCH * (LENGTH + 1); i++)
        tokens[i] = i;
    moert_replay from = {
        .name = "replay", .steps = STEPS, .batch = BATCH, .row = LENGTH + 1, .tokens = tokens};
    moert_data *data = NULL;
    ASSERT_OK(moert_data_from_array(&from, &data));
    owned(data, destroy);
    for (size_t s = 0; s < STEPS; s++)
        for (size_t b = 0; b < BATCH; b++) {
            const moert_draw draw = {.seed = s, .step = s, .index = b};
            ASSERT_OK(moert_data_sequence(data, draw, LENGTH, input, target, NULL));
            assert_memory_equal(input, tokens + (s * BATCH + b) * (LENGTH + 1), sizeof input);
            assert_memory_equal(target, tokens + (s * BATCH + b) * (LENGTH + 1) + 1, sizeof input);
        }
    ASSERT_FAILS(moert_data_sequence(data, (moert_draw){.step = 3}, LENGTH, input, target, NULL),
                 MOERT_ERROR_USAGE, "the file holds 3 batches");
    ASSERT_FAILS(moert_data_sequence(data, (moert_draw){.index = 2}, LENGTH, input, target, NULL),
                 MOERT_ERROR_USAGE, "2 sequences");
    ASSERT_FAILS(moert_data_check_length(data, 5), MOERT_ERROR_MISMATCH, "4 tokens, not 5");
    ASSERT_OK(moert_data_check_vocabulary(data, 30));
    tokens[7] = -1;
    ASSERT_FAILS(moert_data_check_vocabulary(data, 30), MOERT_ERROR_MISMATCH,
                 "replay, position 7: token -1");
    from.steps = 0;
    ASSERT_FAILS(moert_data_from_array(&from, &data), MOERT_ERROR_FORMAT, "[0,2,5]");
}

TEST(test_masked_tokens_are_no_targets) {
    const unsigned char index[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0,
                                   0,   1,   1,   0,   0,   0,   0,   0, 0, 0, 2, 0, 0, 0, 0, 0,
                                   0,   0,   4,   0,   0,   0,   0,   0, 0, 0, 0, 0, 0, 0, 0, 0,
                                   0,   0,   0,   0,   0,   0,   1,   0, 0, 0, 0, 0, 0, 0};
    const char *path = write_file("m.idx", index, sizeof index);
    int32_t input[3], target[3];
    moert_source *source;
    write_file("m.bin", "\5\6\7\10", 4);
    write_file("m.mask.bin", "\1\0\0\1", 4);
    ASSERT_OK(moert_source_open(&path, 1, 16, &source));
    moert_data *data = open_source(source, 0.0);
    ASSERT_OK(moert_data_sequence(data, (moert_draw){0}, 3, input, target, NULL));
    assert_memory_equal(input, ((const int32_t[]){5, 6, 7}), sizeof input);
    assert_memory_equal(target, ((const int32_t[]){-1, -1, 8}), sizeof target);
}

TEST(test_targets_of_an_array_replace_the_next_tokens) {
    const int32_t tokens[] = {1, 2, 3}, targets[] = {-100, 7};
    int32_t input[2], target[2], wrong[] = {9, -1};
    moert_replay from = {"replay", 1, 1, 3, tokens, targets};
    moert_data *data;
    ASSERT_OK(moert_data_from_array(&from, &data));
    owned(data, destroy);
    ASSERT_OK(moert_data_sequence(data, (moert_draw){0}, 2, input, target, NULL));
    assert_memory_equal(input, tokens, sizeof input);
    assert_int_equal(target[0], -1);
    assert_int_equal(target[1], 7);
    ASSERT_OK(moert_data_check_vocabulary(data, 8));
    const char *identity = moert_data_describe(data).identity;
    from.targets = wrong;
    ASSERT_OK(moert_data_from_array(&from, &data));
    owned(data, destroy);
    assert_string_not_equal(identity, moert_data_describe(data).identity);
    ASSERT_FAILS(moert_data_check_vocabulary(data, 8), MOERT_ERROR_MISMATCH,
                 "replay, position 0: target 9 is not below");
}

TESTS(make_test_directory, remove_test_directory)
