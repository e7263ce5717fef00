// run: check=1 all=1san device=0
/* Which sequences a training draws: blends of sources, the division into uses, and epochs. */
#include "base/rng.h"
#include "data/blend.h"
#include "data/split.h"
#include "support/data.h"

/* ---- blends: proportions that are exact to one sequence at every step ---- */

/* Draws sequences from sources with these weights. After each draw, checks the number of sequences
 * that each source has given so far. */
static void check_blend(const char *weights, size_t sequences) {
    uint64_t weight[64], sum = 0, used[64] = {0};
    size_t count = 0;
    moert_blend *blend;
    char *rest, *words = owned(strdup(weights), free);
    for (char *w = strtok_r(words, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        ASSERT_OK(moert_blend_weight(atof(w), w, &weight[count]));
        sum += weight[count++];
    }
    ASSERT_OK(moert_blend_create(weight, count, &blend));
    for (size_t n = 0; n < sequences; n++) {
        const moert_blend_turn turn = moert_blend_at(blend, n);
        assert_true(turn.source < count && turn.number == used[turn.source]);
        used[turn.source]++;
        for (size_t i = 0; i < count; i++) {
            const double share = (double)(n + 1) * (double)weight[i] / (double)sum;
            assert_true(fabs((double)used[i] - share) < 1.0);
            if (n % 97 == 0 && n < 10000)
                assert_true(moert_blend_count(blend, i, n + 1) == used[i]);
        }
    }
    moert_blend_destroy(blend);
}

TEST(test_proportions_are_exact_to_one_sequence) {
    check_blend("1", 10);
    check_blend("0.7 0.3", 1000);
    check_blend("0.5 0.25 0.125 0.125", 1000);
    check_blend("0.9 0.05 0.03 0.01 0.01", 3000);
    check_blend("3 1 7 2.5", 3000);
    check_blend("0.000001 0.999999", 2100000);
    const char *many = "";
    for (size_t i = 0; i < 64; i++)
        many = titled("%s %zu.%zu", many, i % 7 + 1, i * 37 % 10);
    check_blend(many, 10000);
}

TEST(test_wrong_weights_are_refused) {
    static const char *const wrong[] = {"0",         "-1",      "0.1234567", "nan",
                                        "0.0000001", "1000001", "inf"};
    uint64_t weight;
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_blend_weight(atof(wrong[i]), wrong[i], &weight), MOERT_ERROR_USAGE,
                     wrong[i]);
}

/* ---- the division into training, held-out and test data ---- */

enum { SHORT = 4, LINES = 400 };

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

/* Every token is training, held-out or test data, in the given proportions. No sequence mixes
 * them. */
TEST(test_every_token_has_one_use) {
    enum { TOKENS = 100003 };
    unsigned char *use_of = test_alloc(TOKENS);
    const moert_split split = {{0.9, 0.07, 0.03}};
    moert_stretches all;
    size_t sizes[MOERT_USES] = {0};
    ASSERT_OK(moert_split_divide(&split, TOKENS, SHORT, &all));
    assert_int_equal(all.count, 16);
    memset(use_of, 255, TOKENS);
    for (size_t i = 0; i <= all.count; i++) {
        const moert_range range = moert_split_training(&all, i, TOKENS);
        memset(use_of + range.begin, MOERT_TRAINING, range.end - range.begin);
    }
    for (moert_use use = MOERT_TRAINING; use < MOERT_USES; use++)
        for (size_t n = 0; n < moert_split_starts(&all, use, SHORT); n++)
            for (size_t k = 0; k <= SHORT; k++) {
                unsigned char *of = &use_of[moert_split_start(&all, use, SHORT, n) + k];
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
    ASSERT_OK(moert_split_divide(&split, 3 * (SHORT + 1), SHORT, &all));
    assert_int_equal(all.part[MOERT_TEST], SHORT + 1);
    ASSERT_FAILS(moert_split_divide(&split, 3 * (SHORT + 1) - 1, SHORT, &all), MOERT_ERROR_MISMATCH,
                 "14 tokens of data are too few");
}

/* Each file has ten letters and is a document. In epochs, held-out and test sequences end at the
 * ends of documents. */
TEST(test_kept_sequences_respect_documents_in_epochs) {
    const moert_split split = {{0.6, 0.2, 0.2}};
    const char *paths[LINES];
    int32_t input[SHORT], target[SHORT], at[SHORT];
    moert_source *source;
    size_t cuts = 0;
    for (size_t i = 0; i < LINES; i++)
        paths[i] = titled("%s", write_text(titled("%04zu", i), "abcdefghij"));
    ASSERT_OK(moert_source_open_text(paths, LINES, &source));
    moert_data *data = open_data(source, &split);
    for (int epochs = 0; epochs < 2; epochs++) {
        if (epochs)
            ASSERT_OK(moert_data_order_epochs(data, 1, SHORT));
        for (size_t n = 0; n < 50; n++) {
            const moert_kept_draw draw = {n % 2 ? MOERT_TEST : MOERT_HELD_OUT, n, 50};
            ASSERT_OK(moert_data_kept_sequence(data, draw, SHORT, input, target, at));
            for (size_t i = 0; i < SHORT; i++) {
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

/* ---- epochs use every token of every document once, in an order that the seed determines ---- */

enum { DOCUMENTS = 300, LENGTH = 16, BATCH = 6, MOST = DOCUMENTS * 40 };

/* Writes documents of 0 to 39 tokens; token i of the dataset has the value i. Returns the number of
 * tokens. */
static size_t write_documents(const char *name) {
    static int32_t tokens[MOST];
    int32_t lengths[DOCUMENTS], count = 0;
    for (size_t d = 0; d < DOCUMENTS; d++) {
        lengths[d] = (int32_t)(moert_rng_uniform(1, 2, d) * 40.0);
        for (int32_t end = count + lengths[d]; count < end; count++)
            tokens[count] = count;
    }
    write_dataset(name, tokens, (size_t)count * sizeof *tokens,
                  (index_lists){4, DOCUMENTS, lengths, NULL, NULL, 0});
    return (size_t)count;
}

static moert_data *open_documents(const char *name, double held_out, uint64_t seed) {
    const char *path = in_directory(name);
    moert_source *source;
    moert_split split;
    ASSERT_OK(moert_source_open(&path, 1, 16, &source));
    ASSERT_OK(moert_split_hold_out(held_out, &split));
    moert_data *data = open_data(source, &split);
    ASSERT_OK(moert_data_order_epochs(data, seed, LENGTH));
    return data;
}

/* Sequence n of a training. */
typedef struct row {
    int32_t input[LENGTH], target[LENGTH], positions[LENGTH];
} row;

static row row_of(const moert_data *data, size_t n) {
    row r;
    ASSERT_OK(moert_data_sequence(data, (moert_draw){0, n / BATCH, n % BATCH, n - n % BATCH},
                                  LENGTH, r.input, r.target, r.positions));
    return r;
}

typedef struct uses {
    unsigned input[MOST], target[MOST]; /* how often each token was an input or a target */
    int32_t at[MOST];                   /* its last position */
    size_t padding;
} uses;

/* Counts the uses of each token in sequences [first, first + count) of a training. */
static void count_uses(const moert_data *data, size_t first, size_t count, uses *of) {
    memset(of, 0, sizeof *of);
    for (size_t n = first; n < first + count; n++) {
        const row r = row_of(data, n);
        for (size_t i = 0; i < LENGTH; i++) {
            const int32_t token = r.input[i], target = r.target[i], position = r.positions[i];
            if (token < 0) {
                assert_int_equal(target, -1);
                of->padding++;
                continue;
            }
            of->input[token]++;
            of->at[token] = position;
            assert_true(position == 0 ||
                        (position == r.positions[i - 1] + 1 && token == r.input[i - 1] + 1));
            assert_true(target == -1 || target == token + 1);
            if (target >= 0)
                of->target[target]++;
        }
    }
}

TEST(test_two_epochs_use_every_token_twice) {
    static uses of;
    const size_t tokens = write_documents("all");
    const moert_data *data = open_documents("all", 0.0, 5);
    const size_t rows = moert_data_describe(data).rows;
    assert_int_equal(rows, moert_ceil_div(tokens, LENGTH));
    for (size_t epochs = 1; epochs <= 2; epochs++) {
        count_uses(data, 0, epochs * rows, &of);
        for (size_t i = 0; i < tokens; i++)
            assert_int_equal(of.input[i], epochs);
        assert_int_equal(of.padding, epochs * (rows * LENGTH - tokens));
    }
    const moert_source *source = open_source(in_directory("all"));
    /* every token is a target, except the first token of each document */
    for (size_t d = 0; d < DOCUMENTS; d++)
        for (size_t i = 0; i < moert_source_length(source, d); i++)
            assert_int_equal(of.target[moert_source_start(source, d) + i], i > 0 ? 2 : 0);
}

TEST(test_held_out_tokens_are_in_no_epoch) {
    static uses of;
    const size_t tokens = write_documents("held");
    const moert_data *data = open_documents("held", 0.1, 5);
    size_t held = 0;
    count_uses(data, moert_data_describe(data).rows, moert_data_describe(data).rows, &of);
    for (size_t i = 0; i < tokens; i++) {
        assert_in_range(of.input[i], 0, 1);
        assert_true(of.target[i] <= of.input[i]);
        held += of.input[i] == 0;
    }
    assert_in_range(held, tokens / 11, tokens / 9);
}

TEST(test_masked_documents_that_fit_into_a_row_are_not_cut) {
    static uses of;
    static char mask[MOST];
    const size_t tokens = write_documents("whole");
    memset(mask, 1, tokens);
    write_file("whole.mask.bin", mask, tokens);
    const moert_data *data = open_documents("whole", 0.0, 5);
    const moert_source *source = open_source(in_directory("whole"));
    count_uses(data, 0, moert_data_describe(data).rows, &of);
    for (size_t i = 0; i < tokens; i++)
        assert_int_equal(of.input[i], 1);
    for (size_t d = 0; d < DOCUMENTS; d++) {
        const size_t length = moert_source_length(source, d), start = moert_source_start(source, d);
        for (size_t i = 0; i < length && length <= LENGTH; i++)
            assert_int_equal(of.at[start + i], i);
    }
    assert_true(of.padding > 0);
}

TEST(test_the_order_depends_on_the_seed_and_the_epoch_only) {
    write_documents("order");
    const moert_data *data = open_documents("order", 0.05, 5),
                     *again = open_documents("order", 0.05, 5),
                     *other = open_documents("order", 0.05, 6);
    const size_t rows = moert_data_describe(data).rows;
    size_t same_seed = 0, same_epoch = 0;
    for (size_t n = 0; n < rows; n++) { /* reads `data` in order and `again` in reverse */
        const row here = row_of(data, n);
        row_of(again, rows - 1 - n);
        assert_memory_equal(here.input, row_of(again, n).input, sizeof here.input);
        same_seed += memcmp(here.input, row_of(other, n).input, sizeof here.input) == 0;
        same_epoch += memcmp(here.input, row_of(data, n + rows).input, sizeof here.input) == 0;
    }
    assert_true(same_seed < rows / 20 && same_epoch < rows / 20);
}

TEST(test_a_permutation_has_every_number_once) {
    static const size_t counts[] = {1, 2, 3, 7, 64, 1000, 1025};
    for (size_t c = 0; c < MOERT_COUNT(counts); c++) {
        bool seen[1025] = {false};
        size_t in_place = 0;
        for (size_t i = 0; i < counts[c]; i++) {
            const size_t at = moert_rng_permute(7, 8, counts[c], i);
            assert_true(at < counts[c] && !seen[at]);
            seen[at] = true;
            in_place += at == i;
        }
        assert_true(in_place <= 10 || counts[c] <= 10);
    }
}

TESTS(make_test_directory, remove_test_directory)
