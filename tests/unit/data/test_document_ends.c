// run: check=1 device=0
/*
 * Where documents end inside a sequence: in Megatron datasets at the ends in their index, whatever
 * the tokens; in raw token files behind the model's end token; in any data behind a token that the
 * user names.
 */
#include "support/data.h"

enum { TOKENS = 9, LENGTH = TOKENS - 1, END = 2 };

/* Two documents. The first document is a chat of two turns, each of which ends with END. */
static const uint16_t tokens[TOKENS] = {5, 2, 6, 7, 2, 8, 9, 2, 4};
static const int32_t lengths[] = {5, 4};

typedef enum kind { INDEXED, RAW, ARRAY } kind;

/* Opens `tokens` as data of a kind; the caller owns the data. */
static moert_data *open_kind(kind which, bool epochs) {
    static int32_t all[TOKENS];
    const moert_split none_held = {{1.0, 0.0, 0.0}};
    moert_source *source;
    moert_data *data;
    for (size_t i = 0; i < TOKENS; i++)
        all[i] = tokens[i];
    if (which == ARRAY) {
        const moert_replay replay = {"array", 1, 1, TOKENS, all, NULL};
        ASSERT_OK(moert_data_from_array(&replay, &data));
        return data;
    }
    const char *path =
        which == RAW ? write_file("raw.bin", tokens, sizeof tokens)
                     : write_dataset("chats", tokens, sizeof tokens,
                                     (index_lists){.code = 8, .sequences = 2, .lengths = lengths});
    ASSERT_OK(moert_source_open(&path, 1, 16, &source));
    ASSERT_OK(moert_data_from_source(source, &none_held, &data));
    if (epochs)
        ASSERT_OK(moert_data_order_epochs(data, 1, LENGTH));
    return data;
}

/* Returns the positions of a sequence as text such as "0 1 2 | 0 1". A bar follows a token without
 * a target. */
static const char *division(const moert_data *data) {
    int32_t input[LENGTH], target[LENGTH], positions[LENGTH];
    const char *text = "";
    ASSERT_OK(moert_data_sequence(data, (moert_draw){.seed = 1}, LENGTH, input, target, positions));
    for (size_t i = 0; i < LENGTH; i++) {
        text = titled("%s%d%s", text, (int)positions[i], target[i] < 0 ? "|" : " ");
        assert_true(target[i] < 0 || target[i] == tokens[i + 1]);
        assert_int_equal(input[i], tokens[i]);
    }
    return text;
}

TEST(test_only_what_does_not_know_its_documents_is_divided_by_the_model_s_end_token) {
    static const char *const at_documents = "0 1 2 3 4|0 1 2 ", *const whole = "0 1 2 3 4 5 6 7 ",
                             *const behind_ends = "0 1|0 1 2|0 1 2|";
    static const struct {
        kind kind;
        int32_t end;
        bool in_streams;
        const char *division;
    } rows[] = {
        {INDEXED, -1, false, at_documents}, {INDEXED, END, true, at_documents},
        {INDEXED, END, false, behind_ends}, {RAW, -1, false, whole},
        {RAW, END, true, behind_ends},      {RAW, END, false, behind_ends},
        {ARRAY, END, true, whole},          {ARRAY, END, false, behind_ends},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_data *data = owned(open_kind(rows[i].kind, false), moert_data_destroy);
        moert_data_end_documents(data, rows[i].end, rows[i].in_streams);
        assert_string_equal(division(data), rows[i].division);
        assert_int_equal(moert_data_describe(data).divided, rows[i].division != whole);
    }
}

TEST(test_an_epoch_keeps_the_turns_of_a_chat_together) {
    int32_t input[LENGTH], target[LENGTH], positions[LENGTH];
    moert_data *data = owned(open_kind(INDEXED, true), moert_data_destroy);
    moert_data_end_documents(data, END, true);
    for (size_t row = 0, found = 0; row < moert_data_describe(data).rows; row++) {
        ASSERT_OK(moert_data_sequence(data, (moert_draw){1, row, 0, row}, LENGTH, input, target,
                                      positions));
        for (size_t i = 0; i + 4 < LENGTH; i++)
            if (input[i] == 5) { /* the chat begins */
                for (int32_t k = 0; k < 5; k++)
                    assert_true(positions[i + (size_t)k] == k &&
                                target[i + (size_t)k] == (k < 4 ? tokens[k + 1] : -1));
                found++;
            }
        assert_true(found > 0 || row == 0);
    }
}

TEST(test_each_source_of_a_blend_is_divided_by_its_own_kind) {
    moert_data *parts[] = {open_kind(INDEXED, false), open_kind(RAW, false)}, *blend;
    static const uint64_t weights[] = {1, 1};
    int32_t input[LENGTH], target[LENGTH], positions[LENGTH];
    size_t ends = 0;
    ASSERT_OK(moert_data_from_blend(parts, weights, 2, &blend));
    owned(blend, moert_data_destroy);
    moert_data_end_documents(blend, END, true);
    assert_true(moert_data_describe(blend).divided);
    assert_int_equal(moert_data_describe(blend).end, END);
    for (size_t s = 0; s < 2; s++) {
        ASSERT_OK(moert_data_sequence(blend, (moert_draw){.seed = 1, .index = s}, LENGTH, input,
                                      target, positions));
        for (size_t i = 0; i < LENGTH; i++)
            ends += target[i] < 0;
    }
    assert_int_equal(ends, 1 + 3); /* one document, three end tokens */
}

TESTS(make_test_directory, remove_test_directory)
