// run: check=1 all=1san device=0
/* Reports on made-up records: their sentences, and their pages, which must be well-formed XML. */
#include <jansson.h>

#include "support/test.h"
#include "tools/report/page.h"

/* ---- records ---- */

enum { STEPS = 20 };

/* `ranks` ranks on nodes of four, whose steps take 100 ms each; `layers` layers with evenly loaded
 * experts. */
static moert_run_record make_record(size_t ranks, size_t layers, size_t experts) {
    moert_run_record record = {.steps = STEPS, .ranks = ranks, .profiled_steps = STEPS - 2};
    record.step = test_alloc(STEPS * sizeof *record.step);
    for (size_t i = 0; i < STEPS; i++)
        record.step[i] =
            (moert_run_step){(double)i, 5.0 - 0.1 * (double)i, NAN, 1000.0, false, 0.0};
    record.rank = test_alloc(ranks * sizeof *record.rank);
    for (size_t r = 0; r < ranks; r++) {
        record.rank[r] =
            (moert_run_rank){.host = r < 4 ? "node1" : "a<b>&\"\x7F\x01\xFF\xED\xA0\x80",
                             .node = r / 4,
                             .step_ms = 100.0,
                             .ms = {60.0, 20.0, 5.0, 5.0, 0.0, 10.0}};
    }
    record.engine = owned(strdup("window"), free);
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

/* `text` begins with ! if it warns, else with =, as on the console. */
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
    record.step[4].skipped = true;
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

/* ---- pages ---- */

/* Checks that every closing tag matches the last open tag, that attributes are quoted, and that
 * nothing follows the root element. */
static void assert_well_formed(const char *page) {
    const char *open[64];
    size_t depth = 0, roots = 0;
    for (const char *at = strchr(page + 1, '<'); at != NULL; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>'), *name = at + (at[1] == '/' ? 2 : 1);
        const size_t length = strcspn(name, " />");
        assert_non_null(end);
        if (at[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_int_equal(strcspn(open[depth], " >"), length);
            assert_int_equal(strncmp(open[depth], name, length), 0);
        } else if (end[-1] != '/') {
            roots += depth == 0 ? 1 : 0;
            assert_true(depth < 64);
            open[depth++] = name;
        }
        size_t quotes = 0;
        for (const char *c = at; c < end; c++)
            quotes += *c == '"' ? 1 : 0;
        assert_int_equal(quotes % 2, 0);
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
    for (const unsigned char *c = (const unsigned char *)page; *c != '\0'; c++)
        assert_true(*c >= ' ' || *c == '\n');
}

static char *compared_page(const moert_run_record *record, const moert_comparison *comparison) {
    moert_verdict verdict;
    char *page = NULL;
    moert_verdict_make(record, &verdict);
    ASSERT_OK(moert_report_page("a & b", record, &verdict, comparison, NULL, &page));
    owned(page, free);
    assert_well_formed(page);
    assert_non_null(strstr(page, "<title>a &#38; b: 1000 tokens/s"));
    return page;
}

static char *page_of(const moert_run_record *record) {
    return compared_page(record, NULL);
}

static void assert_page_has(const moert_run_record *record, const char *text) {
    char *page = page_of(record);
    if (strstr(page, text) == NULL)
        fail_msg("the page has no %s", text);
}

TEST(test_pages_of_any_size_are_well_formed) {
    static const size_t sizes[][3] = {{1, 1, 1}, {1, 2, 8}, {2, 2, 8}, {13, 3, 17}, {64, 48, 128}};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++) {
        moert_run_record record = make_record(sizes[i][0], sizes[i][1], sizes[i][2]);
        assert_page_has(&record, "Load of the experts");
    }
}

TEST(test_text_from_outside_is_escaped) {
    moert_run_record record = make_record(8, 1, 8);
    assert_page_has(&record, "a&#60;b&#62;&#38;&#34;\x7F????"
                             "?</small>");
}

TEST(test_the_late_rank_and_hot_experts_are_marked) {
    moert_run_record record = make_record(4, 2, 8);
    make_late(&record, 3, 41.0);
    record.expert_rows[8 + 5] = 430.0;
    assert_page_has(&record, "class=\"who late\">\xE2\x96\xB6 3");
    assert_page_has(&record,
                    "hot\">\n<title>layer 1, expert 5: 430 rows a step, 38.1 %, 3.04 times");
    char *page = page_of(&record);
    const char *hot = strstr(page, "class=\"cell deep hot\"");
    assert_true(hot != NULL && strstr(hot + 1, "class=\"cell deep hot\"") == NULL);
}

TEST(test_steps_without_a_loss_break_the_curve) {
    moert_run_record record = make_record(2, 1, 8);
    assert_page_has(&record, "M0.0 0.0L1.0");
    record.step[0].loss = record.step[3].loss = NAN;
    assert_page_has(&record, "class=\"line\" d=\"M1.0");
    for (size_t i = 0; i < STEPS; i++)
        record.step[i].loss = NAN;
    assert_page_has(&record, "class=\"line\" d=\"\"");
}

/* ---- watched runs, and two runs ---- */

TEST(test_the_page_of_a_watched_run_has_its_layers) {
    moert_run_record record = make_record(1, 2, 8);
    assert_null(strstr(page_of(&record), "router entropy"));
    for (size_t i = 0; i < STEPS; i++)
        record.step[i].mfu = 0.25;
    record.last_step = owned(json_loads("{\"grad_norm/layer_0\": 0.5, \"grad_norm/layer_1\": 0.125,"
                                        "\"activation_rms/layer_0\": 3.5,"
                                        "\"activation_rms/layer_1\": 4.5,"
                                        "\"router_entropy/layer_1\": 1.75, \"dead_experts\": 3}",
                                        0, NULL),
                             json_decref);
    assert_page_has(&record, "Experts without a row: 3.");
    assert_page_has(&record, "<th scope=\"row\">0</th>\n<td>0.5</td>\n<td>3.5</td>"
                             "\n<td>\xE2\x80\x93</td>"); /* layer 0 is dense */
    assert_page_has(&record, "\n<td>0.125</td>\n<td>4.5</td>\n<td>1.75</td>");
    assert_page_has(&record, "Part of the devices' peak");
}

TEST(test_two_runs_are_compared_where_their_steps_are_the_same) {
    moert_run_record a = make_record(1, 1, 4), b = make_record(1, 1, 4);
    moert_comparison found;
    moert_comparison_make(&a, &b, "other", &found);
    assert_int_equal(found.count, 2);
    assert_string_equal(found.line[0],
                        "The losses of the 20 steps that are also in other, 0 to 19, "
                        "are the same in every digit.");
    assert_string_equal(found.line[1],
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
    for (size_t i = 5; i < STEPS; i++) /* the same digits but for step 8 */
        b.step[i - 5].loss = i == 8 ? 4.25 : a.step[i].loss;
    moert_comparison_make(&a, &b, "other", &found);
    assert_int_equal(found.count, 4);
    assert_string_equal(found.line[0], "The losses differ from step 8 on: 3.5, in other 4.25. 15 "
                                       "steps, 5 to 19, are in both runs.");
    assert_string_equal(found.line[1], "The loss of step 19 is 3.1000, in other 3.1000 (+0.0000).");
    assert_string_equal(found.line[2],
                        "Tokens per second: 1000, in other 500 (2.00 times as many).");
    assert_string_equal(found.line[3], "Part of the devices' peak (MFU): 50.0 %, in other 25.0 %.");
    assert_non_null(strstr(compared_page(&a, &found), "\n<p>The losses differ from step 8 on"));
    for (size_t i = 0; i < STEPS; i++)
        b.step[i].step += 100.0;
    moert_comparison_make(&a, &b, "other", &found);
    assert_string_equal(found.line[0], "No step is both in this run and in other.");
}

TESTS(NULL, NULL)
