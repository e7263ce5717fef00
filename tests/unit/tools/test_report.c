// run: check=1 all=1san device=0
/* Reports on made-up records: the sentences of a report, and the record in a report's page.
 * tests/e2e/page.sh tests pages in a browser. */
#include <jansson.h>

#include "support/test.h"
#include "tools/report/page.h"

/* ---- records ---- */

enum { STEPS = 20 };
#define NOTHING                                                                                    \
    .heldout_loss = NAN, .test_loss = NAN, .lr = NAN, .grad_norm = NAN, .expert_load = NAN,        \
    .mfu = NAN, .skipped = NAN

/* Makes the record of a run of `ranks` ranks on nodes of four ranks, with `layers` layers of evenly
 * loaded experts. Each step takes 100 ms. */
static moert_run_record make_record(size_t ranks, size_t layers, size_t experts) {
    static const char *const hosts[] = {"node1", "</script><!--\xE2\x80\xA8&", "a<\x01\xFF"};
    moert_run_record record = {.steps = STEPS, .ranks = ranks, .profiled_steps = STEPS - 2};
    record.step = test_alloc(STEPS * sizeof *record.step);
    for (size_t i = 0; i < STEPS; i++)
        record.step[i] = (moert_run_step){
            .step = (double)i, .loss = 5.0 - 0.1 * (double)i, .tokens_per_s = 1000.0, NOTHING};
    record.rank = test_alloc(ranks * sizeof *record.rank);
    for (size_t r = 0; r < ranks; r++) {
        record.rank[r] = (moert_run_rank){.host = hosts[r / 4 < 3 ? r / 4 : 2],
                                          .node = r / 4,
                                          .step_ms = 100.0,
                                          .ms = {60.0, 20.0, 5.0, 5.0, 0.0, 10.0}};
    }
    record.exchange = owned(json_pack("{ss}", "engine", "window"), json_decref);
    record.group = ranks;
    record.waited_ms = test_alloc(ranks * ranks * sizeof(double));
    record.dispatched_bytes = test_alloc(ranks * ranks * sizeof(double));
    record.combined_bytes = test_alloc(ranks * ranks * sizeof(double));
    for (size_t i = 0; i < ranks * ranks; i++)
        record.dispatched_bytes[i] = record.combined_bytes[i] = 1e6;
    record.layers = layers;
    record.experts = experts;
    record.expert_rows = test_alloc(layers * experts * sizeof(double));
    for (size_t i = 0; i < layers * experts; i++)
        record.expert_rows[i] = 100.0;
    return record;
}

/* Makes every other rank wait `ms` for rank `late`. */
static void make_late(moert_run_record *record, size_t late, double ms) {
    for (size_t r = 0; r < record->ranks; r++)
        if (r != late)
            record->waited_ms[r * record->ranks + late] = ms;
}

/* Checks that the report has this sentence. `text` begins with ! if the sentence is a warning,
 * otherwise with =, as on the console. */
static void assert_says(const moert_run_record *record, const char *text) {
    moert_verdict verdict;
    moert_verdict_make(record, &verdict);
    for (size_t i = 0; i < verdict.count; i++)
        if (strcmp(verdict.line[i].text, text + 2) == 0 && verdict.line[i].warns == (*text == '!'))
            return;
    for (size_t i = 0; i < verdict.count; i++)
        print_message("# %s\n", verdict.line[i].text);
    fail_msg("the verdict does not say: %s", text);
}

/* ---- sentences ---- */

TEST(test_a_slow_rank_is_named_with_its_host) {
    moert_run_record record = make_record(4, 2, 8);
    make_late(&record, 3, 41.0);
    make_late(&record, 1, 5.0);
    assert_says(&record, "! Rank 3 on node1 is slow: the others wait 41 % of the step for it.");
}

TEST(test_a_rank_with_more_rows_has_too_much_to_do) {
    moert_run_record record = make_record(4, 2, 8);
    make_late(&record, 2, 30.0);
    for (size_t r = 0; r < 4; r++)
        record.dispatched_bytes[r * 4 + 2] = 3e6;
    assert_says(&record, "! Rank 2 on node1 has too much to do, 2.0 times its share of the rows: "
                         "the others wait 30 % of the step for it.");
}

TEST(test_ranks_that_wait_in_turn_and_ranks_that_keep_pace) {
    moert_run_record record = make_record(2, 2, 8);
    assert_says(&record, "= The ranks keep pace: none is waited for more than 0 % of the step.");
    make_late(&record, 0, 15.0);
    make_late(&record, 1, 20.0);
    record.rank[0].ms[MOERT_TIME_WAITING] = 20.0;
    record.rank[1].ms[MOERT_TIME_WAITING] = 15.0;
    assert_says(&record,
                "! The ranks wait for each other, none much more than the others: 18 % of a step.");
}

TEST(test_a_hot_expert_is_named_with_its_owner) {
    moert_run_record record = make_record(4, 3, 8);
    assert_says(
        &record,
        "= The experts are loaded evenly: none has more than 1.0 times its share of the rows.");
    record.expert_rows[1 * 8 + 5] = 430.0;
    assert_says(&record,
                "! Layer 1: expert 5 (of rank 2) takes 38 % of the rows, 3.0 times its share.");
    record.expert_rows[2 * 8 + 0] = 300.0;
    record.group = 2;
    assert_says(&record, "! Layer 1: expert 5 (of rank 1 of each group) takes 38 % of the rows, "
                         "3.0 times its share; 2 layers have such hot experts.");
}

TEST(test_numbers_of_any_size_are_printed) {
    moert_run_record record = make_record(2, 1, 8);
    moert_verdict verdict;
    for (size_t i = 0; i < STEPS; i++)
        record.step[i].tokens_per_s = 1e300;
    for (size_t r = 0; r < 2; r++) {
        record.rank[r].step_ms = 1e-3;
        for (size_t i = 0; i < MOERT_TIMES; i++)
            record.rank[r].ms[i] = 1e300;
    }
    moert_verdict_make(&record, &verdict);
    assert_string_equal(verdict.headline, "1000000000000000 tokens/s on 2 ranks of 1 host");
    assert_says(&record, "= Of a mean step of 0.00 ms, GEMMs 100 %, other kernels 100 % and "
                         "dispatch and combine 100 %.");
}

TEST(test_speed_parts_and_loss_are_reported) {
    moert_run_record record = make_record(8, 1, 8);
    moert_verdict verdict;
    record.step[0].tokens_per_s = 10.0; /* the first step is slow, since it compiles kernels */
    record.step[4].skipped = 1.0;
    record.step[9].heldout_loss = 4.25;
    moert_verdict_make(&record, &verdict);
    assert_string_equal(verdict.headline, "1000 tokens/s on 8 ranks of 2 hosts");
    assert_null(strstr(verdict.line[0].text, "uneven"));
    assert_says(&record,
                "= Of a mean step of 100.0 ms, GEMMs 60 %, other kernels 20 % and host 10 %.");
    assert_says(&record, "= The loss went from 5.0000 to 3.1000 in 20 steps; held out 4.2500.");
    record.step[15].tokens_per_s = 100.0;
    assert_says(
        &record,
        "! The steps are uneven: on average a step takes 1.9 times as long as the median step.");
    assert_says(&record, "! 1 step was skipped: its gradients were not finite.");
}

TEST(test_the_step_is_named_at_which_held_out_and_training_loss_part) {
    static const struct {
        double heldout[4]; /* held-out losses of steps 4, 9, 14 and 19 */
        double fall;       /* fall of the training loss per step */
        double parts;
    } rows[] = {
        {{4.0, 3.0, 3.5, 4.0}, 0.1, 9.0},   {{4.0, 3.0, 3.0, 3.0}, 0.1, 9.0},
        {{3.0, 4.0, 4.0, 4.0}, 0.1, 4.0},   {{3.0, 4.0, 5.0, 2.9}, 0.1, NAN}, /* falls at last */
        {{4.0, 3.0, 2.5, 4.0}, 0.1, NAN},   {{4.0, 3.0, NAN, 4.0}, 0.1, NAN}, /* a loss is NaN */
        {{4.0, 3.0, 3.5, 4.0}, 0.0, NAN},   {{NAN, NAN, NAN, NAN}, 0.1, NAN},
        {{4.0, 3.0, 3.5, 4.0}, 0.005, NAN}, {{4.0, 3.0, 3.5, 4.0}, 0.012, 9.0},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_run_record record = make_record(1, 1, 4);
        moert_verdict verdict;
        for (size_t k = 0; k < STEPS; k++)
            record.step[k].loss = 5.0 - rows[i].fall * (double)k;
        for (size_t k = 0; k < 4; k++)
            record.step[4 + 5 * k].heldout_loss = rows[i].heldout[k];
        moert_verdict_make(&record, &verdict);
        if (!(verdict.parts == rows[i].parts || (isnan(verdict.parts) && isnan(rows[i].parts))))
            fail_msg("row %zu: they part at %g, not %g", i, verdict.parts, rows[i].parts);
    }
    moert_run_record record = make_record(1, 1, 4);
    for (size_t k = 0; k < 4; k++)
        record.step[4 + 5 * k].heldout_loss = rows[0].heldout[k];
    record.step[12].loss = NAN; /* does not count */
    assert_says(&record,
                "! Held-out and training loss part at step 9: held out has not fallen below "
                "3.0000 since, training fell from 3.8000 to 3.3000.");
}

/* ---- pages ---- */

/* Returns the record in the page of a run. First checks that no text of the record can end the HTML
 * element that holds the record. */
static json_t *record_of(const moert_run_record *record, const moert_verdict *comparison) {
    static const char before[] = "<script type=\"application/json\" id=\"record\">";
    moert_verdict verdict;
    char *page = NULL;
    moert_verdict_make(record, &verdict);
    ASSERT_OK(moert_report_page("a & b", record, &verdict, comparison, NULL, &page));
    owned(page, free);
    char *text = strstr(page, before);
    assert_non_null(text);
    text += strlen(before);
    const size_t length = strcspn(text, "<");
    assert_int_equal(strncmp(text + length, "</script>\n<script>\n", 19), 0);
    assert_non_null(strstr(text + length, "</html>"));
    for (size_t i = 0; i < length; i++)
        assert_true(text[i] >= ' ' && text[i] < 0x7F && strchr("<>&", text[i]) == NULL);
    json_t *object = owned(json_loadb(text, length, 0, NULL), json_decref);
    assert_true(json_is_object(object));
    return object;
}

static const moert_verdict alone = {.count = 0};

static void assert_json(const json_t *value, const char *expected) {
    char *text =
        owned(json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6)), free);
    assert_string_equal(text != NULL ? text : "(none)", expected);
}

static json_t *at(const json_t *object, const char *key) {
    return json_object_get(object, key);
}

TEST(test_pages_of_any_size_hold_the_record) {
    static const size_t sizes[][3] = {{1, 1, 1}, {1, 2, 8}, {2, 2, 8}, {13, 3, 17}, {64, 48, 128}};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++) {
        moert_run_record record = make_record(sizes[i][0], sizes[i][1], sizes[i][2]);
        const json_t *root = record_of(&record, &alone), *profile = at(root, "profile");
        assert_json(at(root, "name"), "\"a & b\"");
        assert_json(at(root, "late"), "null");
        assert_json(at(root, "parts"), "null");
        assert_json(at(root, "run"), "null");
        assert_json(at(profile, "steps"), "18");
        assert_int_equal(json_array_size(at(profile, "ranks")), sizes[i][0]);
        assert_json(json_array_get(at(profile, "ranks"), 0),
                    "{\"host\":\"node1\",\"node\":0,\"step_ms\":100.0,"
                    "\"ms\":[60.0,20.0,5.0,5.0,0.0,10.0]}");
        assert_json(at(profile, "exchange"), "{\"engine\":\"window\"}");
        assert_int_equal(json_array_size(at(root, "times")), MOERT_TIMES);
    }
}

TEST(test_text_from_outside_stays_text) {
    moert_run_record record = make_record(9, 1, 8);
    record.run =
        owned(json_pack("{s{ss}}", "</script>", "<&", "\xE2\x80\xA9</script>"), json_decref);
    const json_t *root = record_of(&record, &alone), *ranks = at(at(root, "profile"), "ranks");
    assert_json(at(root, "run"), "{\"</script>\":{\"<&\":\"\xE2\x80\xA9</script>\"}}");
    assert_json(at(json_array_get(ranks, 4), "host"), "\"</script><!--\xE2\x80\xA8&\"");
    assert_json(at(json_array_get(ranks, 8), "host"), "\"a<%01%FF\""); /* no UTF-8 */
}

TEST(test_the_late_rank_and_the_sentences_are_in_the_record) {
    moert_run_record record = make_record(4, 2, 8);
    make_late(&record, 3, 41.0);
    const json_t *root = record_of(&record, &alone);
    assert_json(at(root, "late"), "3");
    assert_json(at(root, "headline"), "\"1000 tokens/s on 4 ranks of 1 host\"");
    assert_json(json_array_get(at(root, "verdict"), 0),
                "{\"text\":\"Rank 3 on node1 is slow: the others wait 41 % of the step for it.\","
                "\"warns\":true}");
    assert_json(at(root, "comparison"), "[]");
}

TEST(test_columns_of_steps_have_null_for_missing_numbers) {
    moert_run_record record = make_record(2, 1, 8);
    record.steps = 4;
    record.step[0].loss = record.step[3].loss = NAN;
    record.step[2].skipped = 1.0;
    record.step[1].mfu = 0.25;
    assert_json(at(record_of(&record, &alone), "steps"),
                "{\"step\":[0.0,1.0,2.0,3.0],\"loss\":[null,4.9,4.8,null],"
                "\"tokens_per_s\":[1000.0,1000.0,1000.0,1000.0],\"mfu\":[null,0.25,null,null],"
                "\"skipped\":[null,null,1.0,null]}");
    record.step[1].loss = record.step[2].loss = NAN;
    assert_null(at(at(record_of(&record, &alone), "steps"), "loss"));
}

TEST(test_numbers_of_the_last_step_are_in_the_record) {
    moert_run_record record = make_record(1, 2, 8);
    assert_json(at(record_of(&record, &alone), "last"), "null");
    record.last_step =
        owned(json_pack("{sf si}", "grad_norm/layer_0", 0.5, "dead_experts", 3), json_decref);
    assert_json(at(record_of(&record, &alone), "last"),
                "{\"grad_norm/layer_0\":0.5,\"dead_experts\":3}");
}

/* ---- two runs ---- */

TEST(test_two_runs_are_compared_where_their_steps_are_the_same) {
    moert_run_record a = make_record(1, 1, 4), b = make_record(1, 1, 4);
    moert_verdict found;
    moert_comparison_make(&a, &b, "other", &found);
    assert_int_equal(found.count, 2);
    assert_string_equal(found.line[0].text,
                        "The losses of the 20 steps that are also in other, 0 to 19, "
                        "are the same in every digit.");
    assert_string_equal(found.line[1].text,
                        "Tokens per second: 1000, in other 1000 (1.00 times as many).");
    for (size_t i = 0; i < STEPS; i++) { /* b lacks steps 0 to 4 */
        b.step[i].step += 5.0;
        b.step[i].loss -= 0.5;
        b.step[i].tokens_per_s = 500.0;
        a.step[i].mfu = 0.5;
        b.step[i].mfu = 0.25;
    }
    a.step[8].loss = 3.5;
    a.step[6].loss = b.step[1].loss = NAN;
    for (size_t i = 5; i < STEPS; i++) /* the losses are equal except at step 8 */
        b.step[i - 5].loss = i == 8 ? 4.25 : a.step[i].loss;
    moert_comparison_make(&a, &b, "other", &found);
    assert_int_equal(found.count, 4);
    assert_string_equal(found.line[0].text,
                        "The losses differ from step 8 on: 3.5, in other 4.25. 15 "
                        "steps, 5 to 19, are in both runs.");
    assert_string_equal(found.line[1].text,
                        "The loss of step 19 is 3.1000, in other 3.1000 (+0.0000).");
    assert_string_equal(found.line[2].text,
                        "Tokens per second: 1000, in other 500 (2.00 times as many).");
    assert_string_equal(found.line[3].text,
                        "Part of the devices' peak (MFU): 50.0 %, in other 25.0 %.");
    assert_json(json_array_get(at(record_of(&a, &found), "comparison"), 3),
                "{\"text\":\"Part of the devices' peak (MFU): 50.0 %, in other 25.0 %.\","
                "\"warns\":false}");
    for (size_t i = 0; i < STEPS; i++)
        b.step[i].step += 100.0;
    moert_comparison_make(&a, &b, "other", &found);
    assert_string_equal(found.line[0].text, "No step is both in this run and in other.");
}

TESTS(NULL, NULL)
