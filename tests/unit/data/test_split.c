// run: check=1 all=1san device=0
/* The division of a source into training, held-out and test data. */
#include "data/split.h"

#include "support/data.h"

enum { LENGTH = 4, LINES = 400, WIDTH = 10 };

TEST(test_weights_are_read) {
    static const char *const wrong[] = {"",      "1",      "1,2",  "1,2,3,4", "0,1,1",   "-1,1,1",
                                        "a,b,c", "1,2,3x", "1,,3", "1,2,",    "inf,1,1", "1, 2,3"};
    moert_split split;
    ASSERT_OK(moert_split_read("969,30,1", &split));
    assert_true(split.part[MOERT_TRAINING] == 0.969 && split.part[MOERT_HELD_OUT] == 0.03 &&
                split.part[MOERT_TEST] == 0.001);
    ASSERT_OK(moert_split_read("2,0,0", &split));
    assert_true(split.part[MOERT_TRAINING] == 1.0 && split.part[MOERT_TEST] == 0.0);
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_split_read(wrong[i], &split), MOERT_ERROR_USAGE, "969,30,1");
    ASSERT_FAILS(moert_split_hold_out(1.0, &split), MOERT_ERROR_USAGE, "fraction 1");
    ASSERT_FAILS(moert_split_hold_out(-0.1, &split), MOERT_ERROR_USAGE, "fraction -0.1");
}

/* Every token has one use, the uses have their shares, and no sequence leaves its use. */
TEST(test_every_token_has_one_use) {
    enum { TOKENS = 100003 };
    unsigned char *use_of = test_alloc(TOKENS);
    const moert_split split = {{0.9, 0.07, 0.03}};
    moert_stretches all;
    size_t sizes[MOERT_USES] = {0};
    ASSERT_OK(moert_split_divide(&split, TOKENS, LENGTH, &all));
    assert_int_equal(all.count, 16);
    memset(use_of, 255, TOKENS);
    for (size_t i = 0; i <= all.count; i++) {
        const moert_range range = moert_split_training(&all, i, TOKENS);
        memset(use_of + range.begin, MOERT_TRAINING, range.end - range.begin);
    }
    for (moert_use use = MOERT_TRAINING; use < MOERT_USES; use++)
        for (size_t n = 0; n < moert_split_starts(&all, use, LENGTH); n++)
            for (size_t k = 0; k <= LENGTH; k++) {
                unsigned char *of = &use_of[moert_split_start(&all, use, LENGTH, n) + k];
                assert_true(*of == 255 || *of == use);
                *of = (unsigned char)use;
            }
    for (size_t i = 0; i < TOKENS; i++) {
        assert_true(use_of[i] < MOERT_USES);
        sizes[use_of[i]]++;
    }
    for (size_t use = 0; use < MOERT_USES; use++)
        assert_true(fabs((double)sizes[use] / TOKENS - split.part[use]) < 2e-3);
}

TEST(test_too_few_tokens_are_refused) {
    const moert_split split = {{0.98, 0.01, 0.01}};
    moert_stretches all;
    ASSERT_OK(moert_split_divide(&split, 3 * (LENGTH + 1), LENGTH, &all));
    assert_int_equal(all.part[MOERT_TEST], LENGTH + 1);
    ASSERT_FAILS(moert_split_divide(&split, 3 * (LENGTH + 1) - 1, LENGTH, &all),
                 MOERT_ERROR_MISMATCH, "14 tokens of data are too few");
}

/* Files of `WIDTH` letters each; in epochs, held-out and test sequences end at them. */
TEST(test_kept_sequences_respect_documents_in_epochs) {
    const moert_split split = {{0.6, 0.2, 0.2}};
    const char *paths[LINES];
    int32_t input[LENGTH], target[LENGTH], at[LENGTH];
    moert_source *source;
    size_t cuts = 0;
    for (size_t i = 0; i < LINES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%04zu", i);
        paths[i] = write_text(name, "abcdefghij");
    }
    ASSERT_OK(moert_source_open_text(paths, LINES, &source));
    moert_data *data = open_data(source, &split);
    for (int epochs = 0; epochs < 2; epochs++) {
        if (epochs)
            ASSERT_OK(moert_data_order_epochs(data, 1, LENGTH));
        for (size_t n = 0; n < 50; n++) {
            ASSERT_OK(moert_data_kept_sequence(data, n % 2 ? MOERT_TEST : MOERT_HELD_OUT, n, 50,
                                               LENGTH, input, target, at));
            for (size_t i = 0; i < LENGTH; i++) {
                const bool is_new = i == 0 || (epochs && input[i] == 'a');
                assert_int_equal(at[i], is_new ? 0 : at[i - 1] + 1);
                const bool ends = epochs && (input[i] == 'j' || input[i] == 0);
                assert_true((target[i] == -1) == ends);
                cuts += ends;
            }
        }
    }
    assert_true(cuts > 10);
}

TESTS(make_test_directory, remove_test_directory)
