// run: check=1 all=1san device=0
/* Errors, texts, memory, random numbers and options. */
#include <limits.h>
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/text.h"
#include "support/test.h"

/* ---- errors ---- */

static moert_status fail_deep(void) {
    return MOERT_FAIL(ERROR_IO, "file %s is %d bytes short", "x", 7);
}

static moert_status pass_on(void) {
    MOERT_TRY(fail_deep());
    return MOERT_OK;
}

static moert_status clean_up(int *cleaned) {
    moert_status status;
    MOERT_TRY_OR(done, fail_deep());
    return MOERT_OK;
done:
    (*cleaned)++;
    return status;
}

TEST(test_a_failure_keeps_its_message_on_the_way_up) {
    int cleaned = 0;
    assert_int_equal(pass_on(), MOERT_ERROR_IO);
    assert_string_equal(moert_last_error(), "file x is 7 bytes short");
    MOERT_FAIL(ERROR_USAGE, "another");
    assert_int_equal(clean_up(&cleaned), MOERT_ERROR_IO);
    assert_string_equal(moert_last_error(), "file x is 7 bytes short");
    assert_int_equal(cleaned, 1);
    MOERT_FAIL(ERROR_USAGE, "while reading: %s", moert_last_error());
    assert_string_equal(moert_last_error(), "while reading: file x is 7 bytes short");
    MOERT_FAIL(ERROR_USAGE, "%04000d", 0); /* is cut */
    assert_in_range(strlen(moert_last_error()), 500, 3998);
}

static void *fail_on_thread(void *argument) {
    const char *before = moert_last_error();
    *(bool *)argument = before[0] == '\0';
    MOERT_FAIL(ERROR_IO, "of the other thread");
    return NULL;
}

TEST(test_each_thread_has_its_own_last_error) {
    pthread_t thread;
    bool empty = false;
    MOERT_FAIL(ERROR_USAGE, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, fail_on_thread, &empty), 0);
    pthread_join(thread, NULL);
    assert_true(empty);
    assert_string_equal(moert_last_error(), "of this thread");
}

TEST(test_every_status_has_a_name_and_a_text_of_its_own) {
    assert_string_equal(moert_status_name(MOERT_OK), "MOERT_OK");
    assert_string_equal(moert_status_name(MOERT_ERROR_TIMEOUT), "MOERT_ERROR_TIMEOUT");
    for (int a = MOERT_OK; a <= MOERT_ERROR_INTERNAL; a++)
        for (int b = MOERT_OK; b <= MOERT_ERROR_INTERNAL; b++) {
            assert_int_equal(strcmp(moert_status_name(a), moert_status_name(b)) == 0, a == b);
            assert_int_equal(strcmp(moert_status_text(a), moert_status_text(b)) == 0, a == b);
        }
    const moert_status unknown = (moert_status)99;
    assert_string_equal(moert_status_name(unknown), "MOERT_ERROR_INTERNAL");
    assert_true(strlen(moert_status_text(unknown)) > 0);
}

/* ---- waits ---- */

TEST(test_a_long_wait_leaves_the_core_to_others) {
    const uint64_t begun = moert_clock_ns();
    const clock_t used = clock();
    while (moert_clock_ns() - begun < 100000000)
        moert_clock_pause(begun);
    assert_true(clock() - used < CLOCKS_PER_SEC / 20);
}

/* ---- texts ---- */

TEST(test_distance_counts_edits) {
    static const struct {
        const char *a, *b;
        size_t distance;
    } rows[] = {{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"steps", "step", 1}};
    const char *longest = titled("%0199d", 0);
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        assert_int_equal(moert_text_distance(rows[i].a, rows[i].b), rows[i].distance);
        assert_int_equal(moert_text_distance(rows[i].b, rows[i].a), rows[i].distance);
    }
    /* for texts longer than any name, the distance does not matter, but no buffer may overflow */
    moert_text_distance(longest, longest);
}

TEST(test_texts_have_any_length_and_a_tail) {
    char *text = owned(moert_text_format("%s-%03d%5000d", "layer", 7, 1), free);
    assert_memory_equal(text, "layer-007 ", 10);
    assert_int_equal(strlen(text), 5009);
    assert_true(moert_text_ends_with("topology.xml", ".xml"));
    assert_true(moert_text_ends_with(".xml", ".xml") && moert_text_ends_with("any", ""));
    assert_false(moert_text_ends_with("xml", ".xml"));
    assert_false(moert_text_ends_with("topology.xml.gz", ".xml"));
}

/* ---- memory ---- */

TEST(test_amounts_of_bytes_are_read_and_written) {
    static const struct {
        const char *text;
        size_t bytes;
    } rows[] = {{"1", 1},
                {"4096", 4096},
                {"2K", 2048},
                {"1.5 GiB", 3u << 29},
                {"3 MiB", 3u << 20},
                {"80G", (size_t)80 << 30},
                {"2T", (size_t)2 << 40}};
    static const char *const wrong[] = {"", "G", "0", "-5M", "1x", "1 GiBs", "nan", "1e20"};
    static const struct {
        double bytes;
        const char *text;
    } shown[] = {
        {0.0, "0 B"}, {1023.0, "1023 B"}, {1536.0, "1.5 KiB"}, {80.0 * (1u << 30), "80.0 GiB"}};
    char text[MOERT_TEXT_BYTES_SIZE];
    size_t bytes = 0;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        ASSERT_OK(moert_text_get_bytes(rows[i].text, "--memory", &bytes));
        assert_int_equal(bytes, rows[i].bytes);
    }
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_text_get_bytes(wrong[i], "--memory", &bytes), MOERT_ERROR_USAGE,
                     "--memory");
    assert_int_equal(bytes, rows[MOERT_COUNT(rows) - 1].bytes); /* still */
    for (size_t i = 0; i < MOERT_COUNT(shown); i++) {
        moert_text_put_bytes(shown[i].bytes, text);
        assert_string_equal(text, shown[i].text);
    }
}

TEST(test_memory_is_zeroed_and_never_null_and_its_size_is_checked) {
    uint64_t *values = NULL;
    char *memory = (char *)1;
    for (size_t count = 0; count <= 1000; count += 1000) {
        ASSERT_OK(MOERT_NEW_ARRAY(&values, count));
        assert_non_null(values);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(values[i], 0);
        free(values);
    }
    /* volatile, since the compiler warns of a constant size this large */
    volatile size_t most = SIZE_MAX;
    ASSERT_FAILS(moert_alloc(&memory, most / 2, 16), MOERT_ERROR_MEMORY, "16 bytes do not fit");
    ASSERT_FAILS(moert_alloc(&memory, most, 1), MOERT_ERROR_MEMORY, "18446744073709551615");
    assert_ptr_equal(memory, (char *)1);
    const moert_resident resident = moert_memory_resident();
    assert_true(resident.now > 0 && resident.peak >= resident.now);
    assert_true(moert_memory_available() > 0);
}

TEST(test_narrowing_is_checked) {
    int value = -5;
    ASSERT_OK(moert_to_int(0, "rows", &value));
    assert_int_equal(value, 0);
    ASSERT_OK(moert_to_int(INT_MAX, "rows", &value));
    assert_int_equal(value, INT_MAX);
    value = -5;
    ASSERT_FAILS(moert_to_int((size_t)INT_MAX + 1, "rows", &value), MOERT_ERROR_UNSUPPORTED,
                 "rows is 2147483648, above the limit 2147483647");
    assert_int_equal(value, -5);
    assert_int_equal(moert_round_up(0, 64), 0);
    assert_int_equal(moert_round_up(65, 64), 128);
    assert_int_equal(moert_ceil_div(65, 64), 2);
}

/* ---- random numbers ---- */

/* Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds). */
TEST(test_philox_gives_the_known_answers) {
    static const struct {
        uint64_t key, high, low;
        uint32_t word[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        /* key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344; each uint64_t holds
         * its low word first */
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_random random = moert_rng_block(rows[i].key, rows[i].high, rows[i].low);
        assert_memory_equal(random.word, rows[i].word, sizeof random.word);
    }
}

TEST(test_uniforms_fill_the_unit_interval_and_normals_have_their_moments) {
    enum { N = 100000, BINS = 10 };
    double sum = 0.0, powers[5] = {0.0};
    size_t bins[BINS] = {0};
    for (size_t i = 0; i < N; i++) {
        const double uniform = moert_rng_uniform(1, 2, i), normal = moert_rng_normal(3, 4, i);
        assert_true(uniform >= 0.0 && uniform < 1.0 && isfinite(normal));
        sum += uniform;
        bins[(size_t)(uniform * BINS)]++;
        for (int p = 1; p <= 4; p++)
            powers[p] += pow(normal, p) / N;
    }
    assert_within(sum / N, 0.5, 5.0 * sqrt(1.0 / 12.0 / N));
    for (size_t b = 0; b < BINS; b++)
        assert_within((double)bins[b], N / BINS, 5.0 * sqrt(N / BINS));
    assert_within(powers[1], 0.0, 5.0 / sqrt(N));
    assert_within(powers[2], 1.0, 5.0 * sqrt(2.0 / N));
    assert_within(powers[4], 3.0, 5.0 * sqrt(96.0 / N));
}

TEST(test_streams_differ_and_repeat_also_in_bulk) {
    const uint64_t a = moert_rng_stream("model.embed"), b = moert_rng_stream("model.norm");
    assert_true(moert_rng_stream("") == 0xcbf29ce484222325); /* FNV-1a */
    assert_true(moert_rng_stream("a") == 0xaf63dc4c8601ec8c);
    assert_true(moert_rng_normal(1, a, 5) == moert_rng_normal(1, a, 5));
    assert_true(moert_rng_normal(1, a, 5) != moert_rng_normal(1, b, 5));
    assert_true(moert_rng_normal(1, a, 5) != moert_rng_normal(2, a, 5));
    assert_true(moert_rng_normal(1, a, 5) != moert_rng_normal(1, a, 6));
    enum { N = 100000, FIRST = 12345 }; /* drawn in bulk */
    float *values = test_alloc(N * sizeof *values);
    moert_rng_normals(5, 6, FIRST, 0.02, values, N);
    for (size_t i = 0; i < N; i++)
        assert_true(values[i] == (float)(moert_rng_normal(5, 6, FIRST + i) * 0.02));
}

static void count_visits(void *context, size_t first, size_t end) {
    unsigned char *visits = context;
    for (size_t i = first; i < end; i++)
        visits[i]++;
}

TEST(test_parallel_loops_visit_every_index_once) {
    static const size_t counts[] = {0, 1, 2, 63, 64, 65, 1000};
    for (size_t i = 0; i < MOERT_COUNT(counts); i++)
        for (size_t least = 0; least < 3; least++) {
            unsigned char visits[1001] = {0};
            moert_parallel(counts[i], least, count_visits, visits);
            for (size_t j = 0; j <= 1000; j++)
                assert_int_equal(visits[j], j < counts[i]);
        }
}

/* ---- options of this and of older versions of the headers ---- */

/* The options have a size and three fields; an older version lacks the last field. */
TEST(test_older_options_get_defaults_and_other_sizes_are_refused) {
    enum { WHOLE = 4 * sizeof(size_t), OLDER = 3 * sizeof(size_t) };
    static const size_t sizes[] = {OLDER, WHOLE, 0, sizeof(size_t), WHOLE - 1, WHOLE + 8, SIZE_MAX};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++) {
        const size_t given[] = {sizes[i], 5, 6, 7}, want[] = {WHOLE, 5, 6, i == 0 ? 3 : 7};
        size_t taken[] = {WHOLE, 1, 2, 3};
        const moert_status status = moert_options_take(taken, WHOLE, given, "grown", "GROWN_INIT");
        if (i < 2) {
            ASSERT_OK(status);
            assert_memory_equal(taken, want, WHOLE);
        } else {
            ASSERT_FAILS(status, MOERT_ERROR_USAGE, titled("size is %zu", sizes[i]));
        }
    }
    ASSERT_FAILS(moert_options_take(NULL, WHOLE, NULL, "grown", "GROWN_INIT"), MOERT_ERROR_USAGE,
                 "grown is NULL; initialize it with GROWN_INIT");
}

TESTS(NULL, NULL)
