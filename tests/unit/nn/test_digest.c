// run: check=1,1gpu all=1san
/* Digests of rows against their formula on the host. A digest depends on every bit of a row, and on
 * nothing outside the row. */
#include "base/rng.h"
#include "nn/nn.h"
#include "support/test.h"

enum { MOST_WORDS = 12000 };

typedef struct digest_case {
    size_t rows, bytes, stride, at;
} digest_case;

static const digest_case cases[] = {{1, 4, 1, 0},       {5, 1, 1, 3},      {7, 66, 17, 0},
                                    {3, 4096, 1024, 8}, {9, 516, 144, 16}, {2, 6000, 1503, 5},
                                    {40, 64, 16, 4},    {0, 8, 2, 0}};

static uint32_t words[MOST_WORDS];

static void fill(void) {
    for (size_t i = 0; i < MOST_WORDS; i += 4)
        memcpy(words + i, moert_rng_block(7, 0, i).word, 4 * sizeof *words);
    words[5] = 0x7F800001; /* a NaN that signals keeps its bits */
}

/* The factor of a word. Factors are odd, so each bit of a word changes both sums of the digest. */
static uint32_t factor(uint32_t place) {
    uint32_t x = (place + 1) * UINT32_C(0x9E3779B1);
    x ^= x >> 15;
    x *= UINT32_C(0x85EBCA77);
    return (x ^ (x >> 13)) | 1;
}

/* The digest of `count` words of 32 bits or, with `halves`, of 16 bits. Of the last word, only the
 * bits that are set in `mask` are used. */
static uint64_t digest_of(const void *from, size_t count, bool halves, uint32_t mask) {
    uint32_t sum[2] = {0, 0};
    for (size_t i = 0; i < count; i++) {
        uint32_t word = halves ? ((const uint16_t *)from)[i] : ((const uint32_t *)from)[i];
        word &= i + 1 < count ? UINT32_MAX : mask;
        const uint32_t m = factor((uint32_t)i);
        sum[0] += word * m;
        sum[1] += (word << 16 | word >> 16) * (m << 11 | m >> 21 | 1);
    }
    return sum[0] | (uint64_t)sum[1] << 32;
}

static uint64_t reference(const digest_case *c, size_t row) {
    const size_t rest = c->bytes % 4;
    return digest_of(words + c->at + row * c->stride, moert_ceil_div(c->bytes, 4), false,
                     rest > 0 ? (UINT32_C(1) << 8 * rest) - 1 : UINT32_MAX);
}

TEST(test_digests_follow_their_formula) {
    fill();
    const moert_buffer *x = upload(words, sizeof words);
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const digest_case *c = &cases[i];
        uint64_t digest[64] = {1};
        digest[c->rows + 1] = 2;
        moert_buffer *result = upload(digest, (c->rows + 2) * sizeof *digest);
        ASSERT_OK(moert_digest_rows(
            &(moert_digest){c->rows, c->bytes, x, c->stride, c->at, result, .first = 1}));
        download_into(result, digest, (c->rows + 2) * sizeof *digest);
        for (size_t r = 0; r < c->rows; r++)
            assert_true(digest[1 + r] == reference(c, r));
        assert_true(digest[0] == 1 && digest[c->rows + 1] == 2);
    }
}

/* Rows of a table, in a stream that begins at element `at` of a buffer. */
TEST(test_digests_of_a_table_follow_their_formula) {
    static const moert_digest_row table[] = {{5000, 1}, {5001, 4096}, {9097, 17}, {9128, 64}};
    static const size_t places[] = {0, 5, 128};
    const size_t rows = MOERT_COUNT(table);
    fill();
    const moert_buffer *x = upload(words, sizeof words), *list = upload(table, sizeof table);
    for (size_t i = 0; i < 2 * MOERT_COUNT(places); i++) {
        const bool halves = i % 2 == 1;
        const size_t at = places[i / 2], start = at - table[0].begin; /* modulo 2^64 */
        uint64_t digest[5] = {0};
        moert_buffer *result = upload(digest, sizeof digest);
        ASSERT_OK(moert_digest_spans(&(moert_span_digest){
            .x = {(moert_buffer *)x, halves ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32, start},
            .table = list,
            .first_row = 1,
            .rows = rows - 1,
            .sizes = 1,
            .digest = result,
            .first = 2}));
        download_into(result, digest, sizeof digest);
        assert_true(digest[0] == 0 && digest[1] == 0);
        for (size_t r = 1; r < rows; r++) {
            const size_t from = start + table[r].begin;
            const void *of = halves ? (const void *)((const uint16_t *)(const void *)words + from)
                                    : (const void *)(words + from);
            assert_true(digest[1 + r] == digest_of(of, table[r].elements, halves, UINT32_MAX));
        }
    }
}

TEST(test_a_hash_depends_on_all_floats_and_not_on_their_place) {
    static const size_t counts[] = {1, 1024, 1023, 5000, 4096};
    moert_buffer *scratch = NULL;
    for (size_t i = 0; i < MOERT_COUNT(counts); i++) {
        uint64_t hash[4] = {0, 0, 0, 1};
        fill();
        memcpy(words + 6000, words, counts[i] * sizeof *words);
        moert_buffer *x = upload(words, sizeof words);
        ASSERT_OK(moert_digest_floats(x, 0, counts[i], &scratch, &hash[0]));
        ASSERT_OK(moert_digest_floats(x, 6000, counts[i], &scratch, &hash[1]));
        words[6000 + counts[i] - 1] ^= 1;
        ASSERT_OK(moert_buffer_write(x, 0, words, sizeof words));
        ASSERT_OK(moert_digest_floats(x, 6000, counts[i], &scratch, &hash[2]));
        ASSERT_OK(moert_digest_floats(x, 0, counts[i], &scratch, &hash[3]));
        assert_true(hash[0] == hash[1] && hash[2] != hash[0] && hash[3] != hash[0]);
    }
    moert_buffer_destroy(scratch);
}

TESTS(open_test_device, close_test_device)
