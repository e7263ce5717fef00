// run: check=1 all=1gpu,1san
/* Attention over documents and over sequences: each document or sequence gets the same bits as in a
 * call of its own. */
#include "support/attention/attention.h"

enum { MOST_ROWS = 4, LENGTH = 150, MOST = 12 };

/* Lengths of the documents of each sequence, each list up to shape.length; the rest is padding. */
typedef struct documents_case {
    attention_shape shape;
    size_t lengths[MOST_ROWS][MOST];
} documents_case;

static const documents_case cases[] = {
    {{2, LENGTH, 2, 1, 20, 0, 0, false}, {{LENGTH}, {0}}},
    {{2, LENGTH, 2, 1, 20, 0, 0, false}, {{1, 1, 31, 32, 33, 3, 49}, {64, 63, 1}}},
    {{2, LENGTH, 4, 2, 64, 0, 0, true}, {{65, 17, 15, 1, 16}, {5, 100}}},
    {{2, LENGTH, 4, 2, 128, 0, 40, true}, {{65, 17, 15, 1, 16}, {5, 140}}},
    {{2, LENGTH, 2, 2, 24, 16, 9, false}, {{40, 110}, {8, 9, 10, 1, 2, 3, 17}}},
    {{2, LENGTH, 3, 1, 8, 40, 33, true}, {{33, 34, 70}, {32, 65, 13, 40}}},
    {{2, LENGTH, 2, 2, 192, 128, 0, false}, {{70, 7}, {149, 1}}},
    {{2, LENGTH, 1, 1, 8, 0, 1, true}, {{50, 50, 50}, {1, 1, 1}}},
    {{2, LENGTH, 1, 1, 300, 0, 0, false}, {{3, 90}, {66, 70}}},
    /* the same document at several offsets, with padding around it */
    {{3, 137, 2, 1, 8, 12, 40, true}, {{70}, {1, 70}, {2, 70}}},
    {{4, 137, 2, 1, 8, 12, 40, true}, {{16, 70}, {32, 70}, {48, 70}, {64, 70}}},
    /* whole sequences, with and without a moert_documents */
    {{2, 0, 3, 1, 8, 0, 0, true}, {{0}}},
    {{3, 45, 4, 2, 20, 0, 0, false}, {{0}}},
    {{3, 70, 2, 1, 64, 0, 0, false}, {{0}}},
    {{3, 33, 2, 2, 128, 0, 0, false}, {{0}}},
    {{3, 70, 4, 2, 24, 16, 9, true}, {{0}}},
    {{3, 150, 4, 2, 64, 0, 0, false}, {{0}}},
    {{3, 333, 4, 1, 128, 0, 0, false}, {{0}}},
    {{3, 333, 4, 1, 64, 0, 100, true}, {{0}}},
    {{3, 333, 2, 2, 192, 128, 0, false}, {{0}}},
};

/* Calls `check` for each document; padding counts as documents of its own. */
static void each_document(const documents_case *c,
                          void (*check)(size_t token, size_t length, void *context),
                          void *context) {
    const size_t length = c->shape.length;
    for (size_t row = 0; row < c->shape.sequences; row++) {
        size_t at = 0;
        for (size_t i = 0; i < MOST && c->lengths[row][i] > 0; at += c->lengths[row][i++])
            check(row * length + at, c->lengths[row][i], context);
        if (at < length)
            check(row * length + at, length - at, context);
    }
}

static void number(size_t token, size_t length, void *positions) {
    for (size_t i = 0; i < length; i++)
        ((int32_t *)positions)[token + i] = (int32_t)i;
}

typedef struct packed {
    attention_oracle oracle;
    moert_dtype type;
    attention_results got;
    double *dsinks; /* [sequences,heads] sums over runs of single documents */
} packed;

/* Compares a document of the packed rows with a run of that document alone. */
static void compare(size_t token, size_t length, void *context) {
    packed *p = context;
    attention_oracle alone = p->oracle;
    alone.shape.sequences = 1;
    alone.shape.length = length;
    alone.q += token * attention_width(&alone.shape, ATTENTION_DQ);
    alone.k += token * attention_width(&alone.shape, ATTENTION_DK);
    alone.v += token * attention_width(&alone.shape, ATTENTION_DV);
    alone.dout += token * attention_width(&alone.shape, ATTENTION_OUT);
    attention_results want = attention_on_device(&alone, p->type, NULL);
    for (size_t r = 0; r < ATTENTION_DSINKS; r++) {
        const size_t width = want.count[r] / length;
        assert_same_bits(
            titled("%s of %zu tokens at %zu", attention_result_names[r], length, token),
            p->got.value[r] + token * width, want.value[r], want.count[r]);
    }
    for (size_t h = 0; h < want.count[ATTENTION_DSINKS]; h++)
        p->dsinks[token / p->oracle.shape.length * want.count[ATTENTION_DSINKS] + h] +=
            (double)want.value[ATTENTION_DSINKS][h];
}

TEST(test_documents_and_sequences_have_the_same_bits_as_alone) {
    for (size_t i = 0; i < 2 * 2 * MOERT_COUNT(cases); i++) {
        const documents_case *c = &cases[i / 4];
        const bool documents = i / 2 % 2;
        const size_t tokens = c->shape.sequences * c->shape.length, owned = owned_count();
        int32_t *positions = test_alloc(tokens * sizeof *positions);
        packed p = {.oracle = attention_oracle_create(c->shape),
                    .type = i % 2 == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16,
                    .dsinks = test_alloc(c->shape.sequences * c->shape.heads * sizeof(double))};
        if (!documents && c->lengths[0][0] > 0)
            continue;
        each_document(c, number, positions);
        p.got = attention_on_device(&p.oracle, p.type, documents ? positions : NULL);
        each_document(c, compare, &p);
        const float *dsinks = p.got.value[ATTENTION_DSINKS];
        const size_t sinks = p.got.count[ATTENTION_DSINKS];
        if (documents && tokens > 0)
            assert_near("dsinks", dsinks, p.dsinks, sinks, 1e-5);
        else
            assert_same_bits("dsinks", dsinks, to_floats(p.dsinks, sinks), sinks);
        release_since(owned);
    }
}

/* After a second batch has replaced the documents, results follow the second batch. */
TEST(test_documents_can_be_replaced) {
    moert_documents *documents = attention_documents();
    const int32_t first[] = {0, 1, 2, 0, 1, 2, 3, 4}, second[] = {0, 0, 1, 2, 3, 4};
    const moert_buffer *blocks;
    size_t count;
    assert_int_equal(moert_documents_tokens(documents), 0);
    ASSERT_OK(moert_documents_set(documents, 1, 8, first));
    ASSERT_OK(moert_documents_blocks(documents, 16, &blocks, &count));
    assert_int_equal(count, 2);
    assert_true(moert_documents_pairs(documents, 8) == 6.0 + 15.0);
    assert_true(moert_documents_pairs(documents, 2) == 5.0 + 9.0);
    ASSERT_OK(moert_documents_set(documents, 2, 3, (const int32_t[]){0, 1, 2, 0, 0, 1}));
    ASSERT_OK(moert_documents_blocks(documents, 16, &blocks, &count));
    assert_int_equal(count, 3);
    assert_int_equal(moert_documents_tokens(documents), 6);
    ASSERT_OK(moert_documents_set(documents, 1, 6, second));
    int32_t got[6];
    ASSERT_OK(moert_buffer_read(moert_documents_positions(documents), 0, got, sizeof got));
    assert_memory_equal(got, second, sizeof got);
    ASSERT_OK(moert_documents_set(documents, 0, 6, NULL));
    ASSERT_OK(moert_documents_blocks(documents, 64, &blocks, &count));
    assert_int_equal(count, 0);
}

TEST(test_documents_refuse_positions_that_do_not_count) {
    moert_documents *documents = attention_documents();
    ASSERT_OK(moert_documents_set(documents, 1, 3, (const int32_t[]){0, 1, 2}));
    static const struct {
        int32_t positions[6];
        const char *message;
    } wrong[] = {
        {{1, 2, 3, 0, 1, 2}, "sequence 0: token 0 has position 1 in its document, not 0 or 0"},
        {{0, 1, 2, 3, 4, 5}, "sequence 1: token 0 has position 3"},
        {{0, 1, 3, 0, 1, 2}, "sequence 0: token 2 has position 3 in its document, not 0 or 2"},
        {{0, 1, 2, 0, -1, 0}, "sequence 1: token 1 has position -1"},
        {{0, 1, 1, 0, 1, 2}, "token 2 has position 1"},
    };
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_documents_set(documents, 2, 3, wrong[i].positions), MOERT_ERROR_USAGE,
                     wrong[i].message);
    assert_int_equal(moert_documents_tokens(documents), 3); /* as before */
    moert_attention a = attention_of_one_token();
    a.length = 4;
    a.documents = documents;
    ASSERT_FAILS(moert_attention_forward(&a), MOERT_ERROR_USAGE,
                 "the documents have 3 tokens, but the batch has 4 tokens");
    ASSERT_FAILS(moert_attention_backward(&a), MOERT_ERROR_USAGE, "3 tokens, but the batch has 4");
}

TESTS(open_test_device, close_test_device)
