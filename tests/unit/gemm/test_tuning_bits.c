// run: check=1 all=1,1san
/* No choice of tuning changes a bit of a GEMM, whether the choice was given, measured, or made when
 * the weight was prepacked. */
#include <unistd.h>

#include "device/device.h"
#include "device/source.h"
#include "gemm/tuning/search.h"
#include "support/files.h"
#include "support/gemm/gemm.h"
#include "support/suite.h"

static bool equal(moert_choices a, moert_choices b) {
    return memcmp(&a, &b, sizeof a) == 0; /* all fields are unsigned, so there is no padding */
}

/* ---- bits ---- */

/* Computes all problems with each of the given choices of tuning, with prepacked and native
 * weights. Compares the results with those of gemm_ways[first], a reference. */
static void check_bits(size_t first, const moert_choices *choices, size_t count) {
    for (size_t i = 0; i < gemm_problem_count; i++)
        for (operation op = 0; op < BIAS_GRAD; op++) {
            const ops_bytes want = run_new(&gemm_problems[i], op, &gemm_ways[first]);
            for (size_t c = 0; c < count; c++)
                for (size_t w = first + 1; w <= first + (op <= DGRAD ? 2 : 1); w++) {
                    way by = gemm_ways[w];
                    char text[128];
                    moert_choices_print(&choices[c], text, sizeof text);
                    by.name = text;
                    by.choices = &choices[c];
                    check_run(&gemm_problems[i], op, &by, &want);
                }
        }
}

static void check_all_bits(const moert_choices *choices, size_t count) {
    check_bits(REFERENCE_F32, choices, count);
    check_bits(REFERENCE_BF16, choices, count);
    check_bits(REFERENCE_TILES, choices, count);
}

TEST_WITH(test_no_tile_changes_a_bit, forget_tuning, NULL) {
    static const moert_choices tiles[] = {{1, 32, 1, 1, 1, 16},           {3, 48, 7, 5, 3, 32},
                                          {64, 4096, 65536, 16, 4, 4096}, {8, 128, 100, 8, 2, 48},
                                          {2, 32, 33, 6, 4, 16},          {3, 48, 7, 7, 3, 16}};
    /* each tile compiles kernels, so the tier check tests few tiles */
    const bool few = suite_skips(true);
    check_bits(REFERENCE_F32, tiles, few ? 2 : MOERT_COUNT(tiles));
    check_bits(REFERENCE_BF16, tiles, few ? 1 : 3);
}

TEST_WITH(test_no_partition_changes_a_bit, forget_tuning, NULL) {
    static const moert_choices partitions[] = {{1, 16, 1, 8, 2, 16},
                                               {64, 4096, 65536, 8, 2, 16},
                                               {1, 4096, 3, 8, 2, 4096},
                                               {7, 112, 129, 8, 2, 80}};
    check_all_bits(partitions, suite_skips(true) ? 2 : MOERT_COUNT(partitions));
}

/* Runs the tiles of all built-in rows on this device, whichever device a row is for. */
TEST_WITH(test_no_tile_of_a_built_in_row_changes_a_bit, forget_tuning, NULL) {
    enum { MOST = 64 };
    moert_choices tiles[MOST];
    char reason[160], *text, *end;
    size_t count = 0;
    ASSERT_OK(moert_kernel_source("gemm/tuning.txt", &text));
    for (char *line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        moert_tuning_row row;
        bool empty, known = false;
        *end = '\0';
        if (!moert_tuning_parse(line, &row, &empty, reason))
            fail_msg("%s: %s", line, reason);
        moert_choices c = standard_choices;
        c.lines = row.choices.lines;
        c.width = row.choices.width;
        for (size_t i = 0; i < count; i++)
            known |= equal(tiles[i], c);
        if (!empty && c.lines != 0 && c.width != 0 && !known && count < MOST)
            tiles[count++] = c;
    }
    free(text);
    assert_in_range(count, 1, MOST);
    if (suite_skips(true))
        count = 1;
    check_bits(REFERENCE_F32, tiles, count);
    check_bits(REFERENCE_BF16, tiles, count);
}

TEST_WITH(test_every_choice_fits_into_little_local_memory, forget_tuning, NULL) {
    static const moert_choices partitions[] = {
        {64, 16, 128, 16, 4, 16}, {64, 4096, 65536, 16, 4, 16}, {1, 4096, 1, 16, 4, 16}};
    moert_device_info *info = (moert_device_info *)moert_device_describe(test_device);
    const moert_device_info whole = *info;
    info->local_bytes = 16384; /* OpenCL requires more local memory than this */
    info->compute_units = 1;   /* with one compute unit, few work-groups fill the device */
    check_all_bits(partitions, MOERT_COUNT(partitions));
    *info = whole;
}

TEST(test_choices_out_of_bounds_are_refused) {
    const problem *p = &gemm_problems[0];
    const way by = gemm_ways[PORTABLE_F32];
    const ops_bytes data = make_data(p, FORWARD, &by, OPS_WIDE);
    moert_gemm gemm = upload_gemm(p, &data);
    const moert_panels_shape shape = {p->groups, p->n, p->k, MOERT_PANELS_FORWARD, MOERT_DTYPE_F32};
    moert_panels *panels = NULL;
    const moert_choices bad[] = {{65, 1024, 512, 8, 2, 16}, {4, 1000, 512, 8, 2, 16},
                                 {4, 1024, 0, 8, 2, 16},    {4, 1024, 512, 17, 2, 16},
                                 {4, 1024, 512, 8, 5, 16},  {4, 1024, 512, 8, 2, 8}};
    for (size_t i = 0; i < MOERT_COUNT(bad); i++) {
        gemm.more = &(moert_gemm_more){.choices = &bad[i]};
        ASSERT_FAILS(run_as(MOERT_GEMM_FORWARD, &gemm), MOERT_ERROR_USAGE,
                     "no GEMM kernel can use these tuning choices");
        ASSERT_FAILS(moert_panels_create_with(test_device, &shape, &bad[i], &panels),
                     MOERT_ERROR_USAGE, "no GEMM kernel can use these tuning choices");
        assert_null(panels);
    }
}

/* The choices may change after a weight was prepacked. A tile is one or more panels wide. */
TEST_WITH(test_a_prepacked_weight_keeps_its_panels, forget_tuning, NULL) {
    static const moert_choices pairs[][2] = {
        /* the width of the given tile is not a multiple of the panel's width */
        {{4, 1024, 512, 8, 2, 4096}, {4, 1024, 512, 5, 3, 16}},
        {{4, 1024, 512, 8, 2, 16}, {4, 32, 512, 6, 4, 16}},
        {{4, 1024, 512, 6, 1, 4096}, {1, 1024, 3, 5, 3, 32}},
        {{4, 1024, 512, 6, 4, 16}, {4, 1024, 512, 8, 2, 64}}};
    const size_t count = suite_skips(true) ? 2 : MOERT_COUNT(pairs);
    for (size_t i = 0; i < gemm_problem_count; i++)
        for (operation op = FORWARD; op <= DGRAD; op++) {
            const ops_bytes want = run_new(&gemm_problems[i], op, &gemm_ways[REFERENCE_F32]);
            for (size_t c = 0; c < count; c++) {
                way by = gemm_ways[PREPACKED_F32];
                by.panels = &pairs[c][0];
                by.choices = &pairs[c][1];
                check_run(&gemm_problems[i], op, &by, &want);
            }
        }
}

/* ---- measuring ---- */

/* How often the last search has run and prepared a GEMM. */
static struct { size_t runs, prepared; } trials;

static moert_status count_run(void *context, const moert_choices *choices) {
    (void)context;
    trials.runs++;
    /* a depth of 2048 appears to be much faster than any other */
    usleep(choices->depth == 2048 ? 100 : 10000);
    return MOERT_OK;
}

static moert_status count_prepare(void *context, const moert_choices *choices) {
    (void)context, (void)choices;
    trials.prepared++;
    return MOERT_OK;
}

static moert_tune_result search(moert_tune_axis axis, bool prefetches, bool prepares,
                                uint64_t budget_ns) {
    const moert_trial trial = {test_device, NULL, prepares ? count_prepare : NULL, count_run,
                               prefetches};
    moert_tune_result found;
    memset(&trials, 0, sizeof trials);
    ASSERT_OK(moert_tune_search(&trial, &standard_choices, axis, budget_ns, &found));
    return found;
}

TEST_WITH(test_a_search_finds_a_much_faster_choice, forget_tuning, NULL) {
    const moert_tune_result found = search(MOERT_TUNE_DEPTH, false, true, 400000000);
    assert_int_equal(found.candidates[found.chosen].choices.depth, 2048);
    assert_true(found.chosen_ns > 0.0 && found.chosen_ns < found.first_ns);
    assert_true(equal(found.candidates[0].choices, standard_choices));
    assert_in_range(trials.prepared, found.count, trials.runs);
}

TEST_WITH(test_a_search_tries_prefetch_only_where_a_gemm_prefetches, forget_tuning, NULL) {
    for (int prefetches = 0; prefetches < 2; prefetches++) {
        const moert_tune_result found = search(MOERT_TUNE_PREFETCH, prefetches, false, 1);
        size_t count = 0;
        for (size_t i = 0; i < found.count; i++)
            count += found.candidates[i].choices.prefetch != standard_choices.prefetch;
        assert_int_equal(count, prefetches ? 2 : 0);
    }
}

TEST_WITH(test_without_time_a_search_keeps_the_first_choice, forget_tuning, NULL) {
    assert_int_equal(search(MOERT_TUNE_PANELS, false, false, 1).chosen, 0);
    assert_in_range(trials.runs, 1, 64 * 9);
}

TESTS(open_device_and_directory, close_device_and_directory)
