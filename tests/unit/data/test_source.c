// run: check=1 all=1san device=0
/* Token sources: Megatron datasets, their documents, and files that change while they are read. */
#include <sys/stat.h>
#include <unistd.h>

#include "data/source.h"
#include "support/data.h"

static void assert_document(const moert_source *source, size_t document, const int32_t *expected,
                            size_t count) {
    int32_t tokens[16];
    assert_int_equal(moert_source_length(source, document), count);
    ASSERT_OK(moert_source_read(source, moert_source_start(source, document), count, tokens));
    assert_memory_equal(tokens, expected, count * sizeof *tokens);
}

TEST(test_documents_join_their_sequences) {
    const uint16_t tokens[] = {1, 2, 3, 4, 5, 60000};
    const char *path = write_dataset(
        "joined", tokens, sizeof tokens,
        (index_lists){8, 4, (const int32_t[]){2, 0, 3, 1}, NULL, (const int64_t[]){0, 2, 2, 4}, 4});
    const char *names[] = {path, in_directory("joined.bin"), in_directory("joined")};
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        const moert_source *source = open_source(names[i]);
        assert_int_equal(source->documents, 3);
        assert_int_equal(source->tokens, 6);
        assert_document(source, 0, (const int32_t[]){1, 2}, 2);
        assert_document(source, 1, NULL, 0);
        assert_document(source, 2, (const int32_t[]){3, 4, 5, 60000}, 4);
        assert_int_equal(moert_source_start(source, 3), 6);
    }
}

TEST(test_sequences_may_lie_in_any_order) {
    const int64_t tokens[] = {1, 2, 3, 4, 5};
    const moert_source *source = open_source(
        write_dataset("moved", tokens, sizeof tokens,
                      (index_lists){5, 3, (const int32_t[]){2, 0, 3}, (const int64_t[]){24, 0, 0},
                                    (const int64_t[]){0, 2, 3}, 3}));
    assert_document(source, 0, (const int32_t[]){4, 5}, 2);
    assert_document(source, 1, (const int32_t[]){1, 2, 3}, 3);
    int32_t all[5];
    ASSERT_OK(moert_source_read(source, 0, 5, all));
    assert_memory_equal(all, ((const int32_t[]){4, 5, 1, 2, 3}), sizeof all);
}

TEST(test_tokens_outside_the_vocabulary_are_named_where_they_are_used) {
    const int32_t tokens[] = {1, 7, -1};
    int32_t read[3];
    moert_source *source = open_source(write_dataset(
        "signed", tokens, sizeof tokens, (index_lists){4, 1, &(int32_t){3}, NULL, NULL, 0}));
    ASSERT_OK(moert_source_read(source, 0, 2, read));
    ASSERT_FAILS(moert_source_read(source, 0, 3, read), MOERT_ERROR_MISMATCH,
                 "signed.bin, position 2: token -1");
    ASSERT_FAILS(moert_source_limit(source, 7), MOERT_ERROR_MISMATCH, "position 1: token 7");
    ASSERT_OK(moert_source_read(source, 0, 1, read));
    ASSERT_FAILS(moert_source_read(source, 1, 1, read), MOERT_ERROR_MISMATCH,
                 "not below the vocabulary of 7");
}

TEST(test_a_mask_says_which_tokens_count) {
    const uint16_t tokens[] = {1, 2, 3, 4, 5};
    unsigned char counts[4];
    const char *path = write_dataset(
        "masked", tokens, sizeof tokens,
        (index_lists){8, 2, (const int32_t[]){3, 2}, (const int64_t[]){4, 0}, NULL, 0});
    moert_source *source;
    write_file("masked.mask.bin", "\1\0\0\1\1", 5);
    source = open_source(path);
    assert_true(source->masked);
    ASSERT_OK(moert_source_read_mask(source, 1, 4, counts));
    assert_memory_equal(counts, "\1\1\1\0", 4); /* tokens 4, 5, 1 and 2 */
    write_file("masked.mask.bin", "\1\0\0\1\2", 5);
    ASSERT_FAILS(moert_source_read_mask(open_source(path), 0, 3, counts), MOERT_ERROR_FORMAT,
                 "masked.mask.bin: the mask has the value 2");
    write_file("masked.mask.bin", "\1\0\0\1", 4);
    source = NULL;
    ASSERT_FAILS(moert_source_open(&path, 1, 16, &source), MOERT_ERROR_FORMAT, "has 5 tokens");
    assert_null(source);
}

TEST(test_bad_indexes_get_one_message) {
    static const int32_t lengths[] = {2, 1}, negative[] = {2, -1};
    const struct {
        const char *message;
        index_lists of;
    } cases[] = {
        {"token type 6", {6, 2, lengths, NULL, NULL, 0}},
        {"list of documents is empty", {1, 2, lengths, NULL, (const int64_t[]){0}, 0}},
        {"sequence 1 has a negative length, -1 tokens", {1, 2, negative, NULL, NULL, 0}},
        {"sequence 1 has 1 tokens from byte 3 on",
         {1, 2, lengths, (const int64_t[]){0, 3}, NULL, 0}},
        {"from byte -1 on", {1, 2, lengths, (const int64_t[]){-1, 0}, NULL, 0}},
        {"begin at sequence 1,", {1, 2, lengths, NULL, (const int64_t[]){1, 1, 2}, 3}},
        {"end before sequence 1,", {1, 2, lengths, NULL, (const int64_t[]){0, 1, 1}, 3}},
        {"document 2 begins at sequence 1; expected 2 to 2",
         {1, 2, lengths, NULL, (const int64_t[]){0, 2, 1, 2}, 4}},
        {"document 1 begins at sequence 3", {1, 2, lengths, NULL, (const int64_t[]){0, 3, 2}, 3}},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const char *path = write_dataset("bad", "abc", 3, cases[i].of);
        moert_source *source = NULL;
        ASSERT_FAILS(moert_source_open(&path, 1, 16, &source), MOERT_ERROR_FORMAT,
                     cases[i].message);
        assert_null(source);
    }
}

TEST(test_a_damaged_header_is_refused) {
    size_t bytes;
    moert_source *source = NULL;
    const char *path =
        write_dataset("head", "abc", 3, (index_lists){1, 1, &(int32_t){3}, NULL, NULL, 0});
    char *image = read_file(path, &bytes);
    const struct {
        size_t byte, bytes;
        const char *message;
    } cases[] = {{0, bytes, "MMIDIDX"},
                 {9, bytes, "version 0"},
                 {18, bytes, "is the file complete?"},
                 {40, bytes - 1, "61 bytes are no index of 1 sequences and 1 documents"},
                 {40, 33, "33 bytes are too few"}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const char before = image[cases[i].byte];
        image[cases[i].byte] ^= 1;
        path = write_file("head.idx", image, cases[i].bytes);
        image[cases[i].byte] = before;
        ASSERT_FAILS(moert_source_open(&path, 1, 16, &source), MOERT_ERROR_FORMAT,
                     cases[i].message);
    }
    assert_null(source);
}

TEST(test_paths_name_datasets_raw_files_or_text) {
    write_file("lone.bin", "abcd", 4);
    write_file("text.idx", "abcd", 4);
    assert_int_equal(open_source(in_directory("lone.bin"))->kind, MOERT_SOURCE_RAW);
    assert_int_equal(open_source(in_directory("text.idx"))->kind, MOERT_SOURCE_TEXT);
    const char *both[] = {write_text("some", "text"), in_directory("lone.bin")};
    moert_source *source = NULL;
    ASSERT_FAILS(moert_source_open(both, 2, 16, &source), MOERT_ERROR_USAGE,
                 "lone.bin holds tokens");
    assert_null(source);
}

TEST(test_a_file_that_changes_is_an_error) {
    int32_t tokens[4];
    const char *path = write_text("changing", "abcdef");
    const moert_source *source = open_source(path);
    ASSERT_OK(moert_source_read(source, 0, 4, tokens));
    assert_int_equal(truncate(path, 5), 0);
    ASSERT_FAILS(moert_source_read(source, 0, 4, tokens), MOERT_ERROR_IO,
                 "had 6 bytes when it was opened and has 5 now");
    assert_int_equal(truncate(path, 6), 0);
    ASSERT_FAILS(moert_source_read(source, 0, 4, tokens), MOERT_ERROR_IO, "was written to since");
    assert_int_equal(unlink(path), 0);
    ASSERT_FAILS(moert_source_read(source, 0, 4, tokens), MOERT_ERROR_IO, "No such file");
}

TESTS(make_test_directory, remove_test_directory)
