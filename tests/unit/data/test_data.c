// run: check=1 all=1san device=0
/* Token sources: which files are found, which sequences are drawn, and how messages name bad
 * input. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/data.h"

static moert_data *open_raw(const char *path, unsigned bits, double heldout) {
    moert_source *source;
    moert_split split;
    ASSERT_OK(moert_source_open_raw(path, bits, &source));
    ASSERT_OK(moert_split_hold_out(heldout, &split));
    return open_data(source, &split);
}

static moert_data *open_array(const moert_replay *from) {
    moert_data *data;
    ASSERT_OK(moert_data_from_array(from, &data));
    return owned(data, moert_data_destroy);
}

enum { MOST = 8 };

/* A sequence of at most MOST tokens. */
typedef struct sequence {
    int32_t input[MOST], target[MOST], positions[MOST];
} sequence;

static sequence drawn(const moert_data *data, moert_draw draw, size_t length) {
    sequence s;
    ASSERT_OK(moert_data_sequence(data, draw, length, s.input, s.target, s.positions));
    return s;
}

static sequence held_out(const moert_data *data, size_t i, size_t count, size_t length) {
    sequence s;
    ASSERT_OK(moert_data_kept_sequence(data, (moert_kept_draw){MOERT_HELD_OUT, i, count}, length,
                                       s.input, s.target, s.positions));
    return s;
}

static void refuse_draw(const moert_data *data, moert_draw draw, size_t length, moert_status status,
                        const char *text) {
    sequence s;
    ASSERT_FAILS(moert_data_sequence(data, draw, length, s.input, s.target, s.positions), status,
                 text);
}

/* Checks that the held-out sequences, of one token each, have these values in order. */
static void assert_heldout(moert_data *data, const char *expected, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const sequence s = held_out(data, i, count, 1);
        assert_int_equal(s.positions[0], 0);
        assert_int_equal(s.input[0], expected[i]);
        assert_int_equal(s.target[0], expected[i + 1]);
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

/* test_refusals has missing and empty files, pipes, and directories without text. Root may read any
 * file, so a test as root gives up that right for a while. */
TEST(test_dangling_links_unreadable_files_and_no_paths_are_refused) {
    enum { NOBODY = 65534 };
    const bool root = geteuid() == 0;
    const char *path = in_directory("closed"), *dangling = in_directory("dangling");
    moert_source *source = NULL;
    assert_int_equal(symlink("nowhere", dangling), 0);
    ASSERT_FAILS(moert_source_open_text(&dangling, 1, &source), MOERT_ERROR_IO, dangling);
    ASSERT_FAILS(moert_source_open_text(NULL, 0, &source), MOERT_ERROR_FORMAT, "no text");
    chmod(test_directory, 0755);
    mkdir(path, 0755);
    write_text("closed/a", "readable");
    chmod(write_text("closed/b", "secret"), 0);
    if (root && seteuid(NOBODY) != 0)
        SKIP("root may not become another user here");
    const moert_status status = moert_source_open_text(&path, 1, &source);
    if (root)
        assert_int_equal(seteuid(0), 0);
    ASSERT_FAILS(status, MOERT_ERROR_IO, "closed/b: Permission denied");
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
    /* the last offset appends a byte */
    const off_t changed[] = {0, 31 * distance, bytes - 1, bytes};
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
    for (size_t i = 0; i < BYTES; i++)
        content[i] = (unsigned char)(i * 31 % 251);
    const char *path = write_file("large", content, BYTES);
    moert_data *data = open_text(&path, 1, 0.05);
    /* the held-out end of the first of 16 stretches */
    const size_t first = BYTES / 16 - BYTES / 16 / 20;
    const sequence s = held_out(data, 0, 2, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(s.input[i], content[first + i]);
        assert_int_equal(s.target[i], content[first + i + 1]);
    }
}

enum { TOKENS = 20000 };

/* Opens data whose tokens are 0, 1, 2, ... */
static moert_data *open_counting(void) {
    uint16_t *content = test_alloc(TOKENS * sizeof *content);
    for (size_t i = 0; i < TOKENS; i++)
        content[i] = (uint16_t)i;
    return open_raw(write_file("counting", content, TOKENS * sizeof *content), 16, 0.05);
}

/* Whether the position is in the held-out end of one of the 16 stretches of the data. */
static bool is_held_out(int32_t position) {
    const int32_t stretch = TOKENS / 16, held = stretch / 20;
    return position % stretch >= stretch - held;
}

TEST(test_held_out_data_is_spread_over_all_data) {
    enum { COUNT = 64 };
    int32_t last = -1;
    size_t stretches = 0;
    const moert_data *data = open_counting();
    for (size_t i = 0; i < COUNT; i++) {
        const sequence s = held_out(data, i, COUNT, MOST);
        const int32_t first = s.input[0], end = s.target[MOST - 1];
        assert_true(is_held_out(first) && is_held_out(end));
        assert_int_equal(end, first + MOST);
        assert_true(first > last);
        stretches += first / (TOKENS / 16) > (last < 0 ? -1 : last / (TOKENS / 16));
        last = first;
    }
    assert_int_equal(stretches, 16);
}

TEST(test_a_sequence_depends_on_seed_step_and_index_only) {
    const moert_data *data = open_counting(), *again = open_raw(in_directory("counting"), 16, 0.05);
    assert_int_equal(moert_data_describe(data).tokens, TOKENS);
    size_t same = 0, upper = 0;
    for (size_t i = 0; i < 200; i++) {
        const moert_draw draw = {.seed = 3, .step = i / 8, .index = i % 8};
        moert_draw other_seed = draw, next_step = draw;
        other_seed.seed++;
        next_step.step++;
        const sequence s = drawn(data, draw, MOST), repeated = drawn(again, draw, MOST);
        for (size_t j = 0; j < MOST; j++) {
            assert_int_equal(s.input[j], s.input[0] + (int32_t)j);
            assert_int_equal(s.target[j], s.input[j] + 1);
        }
        assert_true(!is_held_out(s.input[0]) && !is_held_out(s.target[MOST - 1]));
        upper += s.input[0] > TOKENS / 2;
        assert_memory_equal(s.input, repeated.input, sizeof s.input);
        same += drawn(data, other_seed, MOST).input[0] == s.input[0];
        same += drawn(data, next_step, MOST).input[0] == s.input[0];
    }
    assert_true(same < 3);
    assert_in_range(upper, 70, 130);
}

TEST(test_too_little_data_is_refused) {
    const char *path = write_text("ten", "0123456789");
    sequence s;
    moert_data *data = open_text(&path, 1, 0.05);
    /* the file has room for two sequences of 4 + 1 tokens */
    ASSERT_OK(moert_data_check_length(data, 4));
    assert_int_equal(drawn(data, (moert_draw){0}, 4).input[0], '0');
    assert_int_equal(held_out(data, 0, 1, 4).input[0], '5');
    ASSERT_FAILS(moert_data_check_length(data, 5), MOERT_ERROR_MISMATCH, "10 tokens");
    refuse_draw(data, (moert_draw){0}, 5, MOERT_ERROR_MISMATCH, "few");
    ASSERT_FAILS(moert_data_check_length(data, 0), MOERT_ERROR_USAGE, "at least one");
    ASSERT_FAILS(moert_data_kept_sequence(data, (moert_kept_draw){MOERT_HELD_OUT, 1, 1}, 4, s.input,
                                          s.target, s.positions),
                 MOERT_ERROR_USAGE, "there are 1");
    data = open_text(&path, 1, 0.0);
    ASSERT_OK(moert_data_check_length(data, 9));
    ASSERT_FAILS(moert_data_kept_sequence(data, (moert_kept_draw){MOERT_HELD_OUT, 0, 1}, 4, s.input,
                                          s.target, s.positions),
                 MOERT_ERROR_USAGE, "no data are held out");
}

TEST(test_raw_files_and_tokens_above_the_vocabulary_are_refused) {
    const uint32_t wide[] = {1, 70000, 3000000000u, 5};
    const char *path = write_file("wide", wide, sizeof wide);
    moert_data *data = open_raw(path, 32, 0.0);
    refuse_draw(data, (moert_draw){0}, 1, MOERT_ERROR_MISMATCH,
                "position 2: token 3000000000 is not below the vocabulary of 2147483648");
    ASSERT_FAILS(moert_data_check_vocabulary(data, 100000), MOERT_ERROR_MISMATCH,
                 "wide, position 2: token 3000000000");
    ASSERT_FAILS(moert_data_check_vocabulary(data, 70000), MOERT_ERROR_MISMATCH, "position 1");
    const char *texts[] = {write_text("low", "\x01\x02"), write_text("high", "\x01\x7f\x02")};
    data = open_text(texts, 2, 0.05);
    ASSERT_OK(moert_data_check_vocabulary(data, 128));
    ASSERT_FAILS(moert_data_check_vocabulary(data, 127), MOERT_ERROR_MISMATCH,
                 "high, position 1: token 127");
    moert_source *source = NULL;
    ASSERT_FAILS(moert_source_open_raw(path, 8, &source), MOERT_ERROR_USAGE, "16 or 32");
    ASSERT_FAILS(moert_source_open_raw(test_directory, 16, &source), MOERT_ERROR_IO, "directory");
    assert_null(source);
}

TEST(test_an_array_is_replayed_and_ends) {
    enum { STEPS = 3, BATCH = 2, LENGTH = 4, ROW = LENGTH + 1 };
    int32_t tokens[STEPS * BATCH * ROW];
    for (int i = 0; i < STEPS * BATCH * ROW; i++)
        tokens[i] = i;
    moert_replay from = {
        .name = "replay", .steps = STEPS, .batch = BATCH, .row = ROW, .tokens = tokens};
    moert_data *data = open_array(&from);
    for (size_t i = 0; i < STEPS * BATCH; i++) {
        const sequence s =
            drawn(data, (moert_draw){.seed = i, .step = i / BATCH, .index = i % BATCH}, LENGTH);
        assert_memory_equal(s.input, tokens + i * ROW, LENGTH * sizeof *tokens);
        assert_memory_equal(s.target, tokens + i * ROW + 1, LENGTH * sizeof *tokens);
    }
    refuse_draw(data, (moert_draw){.step = 3}, LENGTH, MOERT_ERROR_USAGE,
                "the file holds 3 batches");
    refuse_draw(data, (moert_draw){.index = 2}, LENGTH, MOERT_ERROR_USAGE, "2 sequences");
    ASSERT_FAILS(moert_data_check_length(data, 5), MOERT_ERROR_MISMATCH, "4 tokens, not 5");
    ASSERT_OK(moert_data_check_vocabulary(data, 30));
    /* golden_model trains on arrays with targets */
    from.targets = (const int32_t[STEPS * BATCH * LENGTH]){0};
    assert_string_not_equal(moert_data_describe(open_array(&from)).identity,
                            moert_data_describe(data).identity);
    from.targets = NULL;
    tokens[7] = -1;
    ASSERT_FAILS(moert_data_check_vocabulary(data, 30), MOERT_ERROR_MISMATCH,
                 "replay, position 7: token -1");
    from.steps = 0;
    ASSERT_FAILS(moert_data_from_array(&from, &data), MOERT_ERROR_FORMAT, "[0,2,5]");
}

TEST(test_masked_tokens_are_no_targets) {
    moert_source *source;
    const char *path =
        write_dataset("m", "\5\6\7\10", 4, (index_lists){1, 1, &(int32_t){4}, NULL, NULL, 0});
    write_file("m.mask.bin", "\1\0\0\1", 4);
    ASSERT_OK(moert_source_open(&path, 1, 16, &source));
    const sequence s = drawn(open_data(source, &(moert_split){{1.0}}), (moert_draw){0}, 3);
    assert_memory_equal(s.input, ((const int32_t[]){5, 6, 7}), 3 * sizeof *s.input);
    assert_memory_equal(s.target, ((const int32_t[]){-1, -1, 8}), 3 * sizeof *s.target);
}

TESTS(make_test_directory, remove_test_directory)
