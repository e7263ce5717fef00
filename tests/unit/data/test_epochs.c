// run: check=1 all=1san device=0
/* Epochs use every token of every document once, in an order that depends on the seed alone. */
#include "base/memory.h"
#include "base/rng.h"
#include "support/data.h"

enum { DOCUMENTS = 300, LENGTH = 16, BATCH = 6, MOST = DOCUMENTS * 40 };

/* Documents of 0 to 39 tokens; token i of the dataset is i. Returns the number of tokens. */
static size_t write_documents(const char *name) {
    static int32_t tokens[MOST];
    int32_t lengths[DOCUMENTS];
    int64_t firsts[DOCUMENTS + 1];
    size_t count = 0;
    for (size_t d = 0; d < DOCUMENTS; d++) {
        lengths[d] = (int32_t)(moert_rng_uniform(1, 2, d) * 40.0);
        count += (size_t)lengths[d];
    }
    for (size_t d = 0; d <= DOCUMENTS; d++)
        firsts[d] = (int64_t)d;
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)i;
    write_index(name, &(index_lists){4, 4, DOCUMENTS, DOCUMENTS + 1, lengths, NULL, firsts});
    write_file(titled("%s.bin", name), tokens, count * sizeof *tokens);
    return count;
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
    ASSERT_OK(moert_data_sequence(data, (moert_draw){0, n / BATCH, n % BATCH, BATCH}, LENGTH,
                                  r.input, r.target, r.positions));
    return r;
}

typedef struct uses {
    unsigned input[MOST], target[MOST]; /* how often a token was one */
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
    for (size_t d = 0; d < DOCUMENTS; d++) /* all but a document's first token are targets */
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
    for (size_t n = 0; n < rows; n++) { /* one object in order, the other one in reverse */
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
