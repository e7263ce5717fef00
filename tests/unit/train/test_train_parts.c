// run: check=1 all=1san device=0
/* Learning-rate schedules, metrics files, the pruning of checkpoints, ranges of steps, batches that
 * grow, the loader, and verdicts on which rank computed wrongly. */
#include <unistd.h>

#include "io/durable.h"
#include "support/data.h"
#include "train/batch_ramp.h"
#include "train/checkpoint.h"
#include "train/cross_check.h"
#include "train/loader.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include "train/step_ranges.h"

static const char run[] = "it's a run.jsonl";

/* The learning rate at a step of a schedule whose peak is 2 and whose floor is 0.2. */
static double rate_at(unsigned kind, uint64_t warmup, uint64_t decay, uint64_t step,
                      uint64_t steps) {
    return moert_schedule_rate(
        &(moert_schedule){
            .kind = kind, .rate = 2.0, .floor_fraction = 0.1, .warmup = warmup, .decay = decay},
        step, steps);
}

TEST(test_rates_warm_up_and_then_stay_or_fall_to_the_floor) {
    enum { CONSTANT = MOERT_SCHEDULE_CONSTANT, COSINE = MOERT_SCHEDULE_COSINE };
    enum { LINEAR = MOERT_SCHEDULE_LINEAR };
    static const struct {
        unsigned kind;
        uint64_t warmup, decay, step, steps;
        double rate;
    } rows[] = {
        {CONSTANT, 4, 0, 0, 100, 0.5},    {CONSTANT, 4, 0, 3, 100, 2.0},
        {CONSTANT, 4, 0, 99, 100, 2.0},   {COSINE, 10, 0, 4, 110, 1.0},
        {COSINE, 10, 0, 10, 110, 2.0},    {COSINE, 10, 0, 60, 110, 1.1},
        {COSINE, 10, 0, 110, 110, 0.2},   {COSINE, 10, 0, 5000, 110, 0.2},
        {COSINE, 0, 0, 0, 1, 2.0},        {COSINE, 200, 0, 109, 110, 1.1}, /* warmup > steps */
        {LINEAR, 10, 20, 4, 110, 1.0},    {LINEAR, 10, 20, 90, 110, 2.0},
        {LINEAR, 10, 20, 100, 110, 1.1},  {LINEAR, 10, 20, 110, 110, 0.2},
        {LINEAR, 10, 0, 60, 110, 1.1},    {LINEAR, 10, 105, 60, 110, 1.1},
        {LINEAR, 10, 1000, 60, 110, 1.1},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        assert_within(
            rate_at(rows[i].kind, rows[i].warmup, rows[i].decay, rows[i].step, rows[i].steps),
            rows[i].rate, 1e-6 * rows[i].rate);
    for (uint64_t step = 11; step < 112; step++)
        assert_true(rate_at(COSINE, 10, 0, step, 110) <= rate_at(COSINE, 10, 0, step - 1, 110));
}

static void write_run(uint64_t start, uint64_t end) {
    const moert_metrics_options options = {.path = in_directory(run), .start = start, .total = end};
    moert_metrics *metrics = NULL;
    ASSERT_OK(moert_metrics_open(&options, &metrics));
    for (uint64_t step = start; step < end; step++) {
        const moert_metrics_row row = {.step = step,
                                       .loss = step == 1 ? (double)NAN : 5.0 - 0.1 * (double)step,
                                       .aux_loss = 2.0,
                                       .grad_norm = step == 1 ? (double)INFINITY : 1.0 / 3.0,
                                       .lr = 1e-3,
                                       .tokens_per_s = 1000.0,
                                       .expert_load = 1.5,
                                       .save_held_s = step == 1 ? 0.25 : 0.0,
                                       .save_s = step == 1 ? 0.5 : 0.0,
                                       .has_heldout = step % 2 == 0,
                                       .heldout_loss = 5.5,
                                       .skipped = step == 1};
        ASSERT_OK(moert_metrics_write(metrics, &row));
    }
    ASSERT_OK(moert_metrics_close(metrics));
}

TEST(test_lines_are_json_with_null_for_values_that_are_not_finite) {
    write_run(0, 2);
    char *text = read_file(in_directory(run), NULL);
    assert_string_equal(
        text, "{\"step\": 0, \"loss\": 5, \"aux_loss\": 2, \"grad_norm\": 0.33333333333333331, "
              "\"lr\": 0.001, \"tokens_per_s\": 1000, \"expert_load\": 1.5, "
              "\"heldout_loss\": 5.5}\n"
              "{\"step\": 1, \"loss\": null, \"aux_loss\": 2, \"grad_norm\": null, "
              "\"lr\": 0.001, \"tokens_per_s\": 1000, \"expert_load\": 1.5, \"save_held_s\": 0.25, "
              "\"save_s\": 0.5, \"skipped\": true}\n");
}

TEST(test_resuming_drops_the_lines_it_will_write_again) {
    write_run(0, 10);
    /* simulates a line that a crash has cut short */
    write_text(run, titled("%s{\"step\": 3, \"loss\"", read_file(in_directory(run), NULL)));
    static const uint64_t resumed[][2] = {{6, 8}, {8, 12}, {0, 3}};
    for (size_t i = 0; i < MOERT_COUNT(resumed); i++) {
        write_run(resumed[i][0], resumed[i][1]);
        const char *line = read_file(in_directory(run), NULL);
        for (uint64_t step = 0; step < resumed[i][1]; step++, line = strchr(line, '\n') + 1) {
            unsigned long long found;
            assert_true(sscanf(line, "{\"step\": %llu,", &found) == 1 && found == step);
        }
        assert_string_equal(line, "");
    }
    unlink(in_directory(run));
    write_run(5, 6); /* resuming works if the metrics file is absent */
    unlink(in_directory(run));
}

TEST(test_metrics_of_a_live_run_are_refused_and_stay) {
    const char *path = in_directory(run);
    for (uint64_t start = 0; start < 2; start++) { /* the second run copies lines to a new file */
        const moert_metrics_options first = {.path = path, .start = start, .total = 4};
        moert_metrics *metrics = NULL, *other = NULL;
        ASSERT_OK(moert_metrics_open(&first, &metrics));
        ASSERT_OK(moert_metrics_write(metrics, &(moert_metrics_row){.step = start}));
        const char *before = read_file(path, NULL);
        for (uint64_t step = 0; step < 2; step++) {
            const moert_metrics_options second = {.path = path, .start = step, .total = 4};
            assert_int_equal(moert_metrics_open(&second, &other), MOERT_ERROR_USAGE);
            assert_non_null(strstr(moert_last_error(), "another job writes its metrics there"));
            assert_string_equal(read_file(path, NULL), before);
        }
        ASSERT_OK(moert_metrics_close(metrics));
    }
    unlink(path);
}

TEST(test_console_lines_come_every_n_steps) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *console = open_memstream(&text, &bytes);
    const moert_metrics_options options = {.total = 10, .console = console, .every = 4};
    moert_metrics *metrics = NULL;
    ASSERT_OK(moert_metrics_open(&options, &metrics));
    for (uint64_t step = 0; step < 10; step++)
        ASSERT_OK(moert_metrics_write(metrics, &(moert_metrics_row){.step = step, .loss = 2.5}));
    ASSERT_OK(moert_metrics_close(metrics));
    ASSERT_OK(moert_metrics_close(NULL));
    fclose(console);
    const char *line = owned(text, free);
    for (size_t lines = 0; lines < 4; lines++, line = strchr(line, '\n') + 1)
        /* the lines are for steps 0, 4 and 8 and the last step */
        assert_memory_equal(line, "step ", 5);
    assert_string_equal(line, "");
}

TEST(test_pruning_keeps_the_checkpoints_of_this_run) {
    static const struct {
        const char *name;
        /* whether the entry remains after the first and after the second pruning */
        bool first, second;
    } rows[] = {{"step-00000003", true, true},
                {"step-00000001", false, false},
                {"step-00000005", true, true},
                {"step-00000010", true, true},
                {"step-00000030", false, false},
                {"step-00000002", true, false},
                {"step-00000004", true, false},
                {"step-00000007.tmp", false, false},
                {"notes", true, true}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        ASSERT_OK(moert_make_directories(in_directory(rows[i].name)));
    for (int second = 0; second <= 1; second++) {
        ASSERT_OK(moert_checkpoint_prune(test_directory, 10,
                                         second ? (moert_keep){2, 0, 3} : (moert_keep){3, 2, 3}));
        for (size_t i = 0; i < MOERT_COUNT(rows); i++)
            assert_int_equal(access(in_directory(rows[i].name), F_OK) == 0,
                             second ? rows[i].second : rows[i].first);
    }
    uint64_t *steps;
    size_t count;
    ASSERT_OK(moert_checkpoint_list(test_directory, &steps, &count));
    owned(steps, free);
    assert_true(count == 3 && steps[0] == 10 && steps[1] == 5 && steps[2] == 3);
}

/* ---- steps that options name ---- */

TEST(test_ranges_are_read_and_counted) {
    moert_step_ranges r;
    ASSERT_OK(moert_step_ranges_read("3:5,5:6,100:1000000000000", &r));
    assert_int_equal(r.count, 3);
    static const struct {
        uint64_t step, below;
        bool has;
    } rows[] = {{0, 0, false}, {3, 0, true},   {4, 1, true},   {5, 2, true},
                {6, 3, false}, {99, 3, false}, {100, 3, true}, {150, 53, true}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        assert_int_equal(moert_step_ranges_below(&r, rows[i].step), rows[i].below);
        assert_int_equal(moert_step_ranges_have(&r, rows[i].step), rows[i].has);
    }
    assert_int_equal(moert_step_ranges_below(&r, UINT64_MAX), 999999999903);
    const moert_step_ranges none = {0};
    assert_true(!moert_step_ranges_have(&none, 0) && moert_step_ranges_below(&none, 9) == 0);
}

TEST(test_bad_ranges_are_refused) {
    static const char *const bad[] = {
        "",      "3",       ":3",      "3:",   "3:3",  "4:3",  "3:4,",
        "3:4:5", "3:5,4:6", "5:6,1:2", "-1:2", " 1:2", "1:2 ", "1:1000000000000000000000"};
    for (size_t i = 0; i < MOERT_COUNT(bad); i++) {
        moert_step_ranges r = {.count = 7};
        ASSERT_FAILS(moert_step_ranges_read(bad[i], &r), MOERT_ERROR_USAGE, "expected A:B");
        assert_int_equal(r.count, 7);
    }
    char text[8 * (MOERT_STEP_RANGES_MOST + 1)] = "";
    moert_step_ranges r;
    for (int i = 0; i < MOERT_STEP_RANGES_MOST; i++)
        sprintf(text + strlen(text), "%s%d:%d", i > 0 ? "," : "", 2 * i, 2 * i + 1);
    ASSERT_OK(moert_step_ranges_read(text, &r));
    strcat(text, ",900:901");
    ASSERT_FAILS(moert_step_ranges_read(text, &r), MOERT_ERROR_USAGE, "more than 64 ranges");
}

TEST(test_a_step_or_several_are_read) {
    static const char *const bad[] = {"", "x", "3:0", "3:", ":2", "3:2:1", "-3", "3,4"};
    moert_step_range r, s;
    ASSERT_OK(moert_step_range_read("17", &r));
    ASSERT_OK(moert_step_range_read("0:5", &s));
    assert_true(r.first == 17 && r.end == 18 && s.first == 0 && s.end == 5);
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        ASSERT_FAILS(moert_step_range_read(bad[i], &r), MOERT_ERROR_USAGE, "STEP or STEP:COUNT");
}

/* ---- batches that grow ---- */

TEST(test_a_batch_grows_after_every_few_steps) {
    static const moert_batch_plan plans[] = {{.largest = 7},  {6, 2, 2, 3},    {6, 2, 3, 1},
                                             {6, 6, 1, 4},    {9, 1, 100, 20}, {64, 1, 1, 1},
                                             {1000, 10, 7, 2}};
    for (size_t i = 0; i < MOERT_COUNT(plans); i++) {
        const moert_batch_plan *p = &plans[i];
        size_t batch = moert_batch_has_ramp(p) ? p->start : p->largest;
        uint64_t sum = 0;
        for (uint64_t step = 0; step < 400; step++) {
            if (moert_batch_has_ramp(p) && step > 0 && step % p->steps == 0)
                batch = batch + p->increment < p->largest ? batch + p->increment : p->largest;
            assert_int_equal(moert_batch_at(p, step), batch);
            assert_true(moert_batch_before(p, step) == sum);
            sum += batch;
        }
    }
    const moert_batch_plan slow = {1000000, 1, 1, 999999999999999};
    assert_int_equal(moert_batch_at(&slow, 999999999999998), 1);
    assert_int_equal(moert_batch_at(&slow, 999999999999999), 2);
    assert_true(moert_batch_before(&slow, 1000000000000001) == 1000000000000003);
}

TEST(test_ramps_are_read_and_checked) {
    static const char *const bad[] = {"",
                                      "2",
                                      "2:2",
                                      "2:2:",
                                      ":2:3",
                                      "2:2:0",
                                      "0:2:3",
                                      "2:0:3",
                                      "2:2:3:4",
                                      "2,2,3",
                                      "-2:2:3",
                                      " 2:2:3",
                                      "2:2:1000000000000000"};
    char text[MOERT_BATCH_RAMP_TEXT_BYTES];
    moert_batch_plan plan = {.largest = 6};
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        ASSERT_FAILS(moert_batch_ramp_read(bad[i], &plan), MOERT_ERROR_USAGE,
                     "expected START:INCREMENT:STEPS");
    ASSERT_OK(moert_batch_ramp_check(&plan, 4)); /* the plan has no ramp */
    moert_batch_ramp_text(&plan, text);
    assert_string_equal(text, "");
    ASSERT_OK(moert_batch_ramp_read("02:4:30", &plan));
    assert_true(plan.largest == 6 && plan.start == 2 && plan.increment == 4 && plan.steps == 30);
    moert_batch_ramp_text(&plan, text);
    assert_string_equal(text, "2:4:30");
    ASSERT_OK(moert_batch_ramp_check(&plan, 2));
    ASSERT_FAILS(moert_batch_ramp_check(&plan, 4), MOERT_ERROR_USAGE, "multiples of");
    plan.start = 8;
    ASSERT_FAILS(moert_batch_ramp_check(&plan, 2), MOERT_ERROR_USAGE, "starts with 8 sequences");
}

/* ---- the loader: the sequences of every step, in any order of steps ---- */

enum { LENGTH = 4, BATCH = 6, PIECES = 2, STEPS = 5 };

/* A loader of a rank's sequences of each step. */
static moert_loader *open_ramp(const moert_data *data, moert_batch_plan batch, size_t rank,
                               size_t ranks) {
    moert_loader *loader;
    ASSERT_OK(moert_loader_create(
        &(moert_loader_options){data, 3, STEPS, batch, PIECES, LENGTH, rank, ranks}, &loader));
    return owned(loader, moert_loader_destroy);
}

static moert_loader *open_part(const moert_data *data, size_t rank, size_t ranks) {
    return open_ramp(data, (moert_batch_plan){.largest = BATCH}, rank, ranks);
}

static const char sentence[] = "The quick brown fox jumps over it.";

static void check_step(moert_loader *loader, const moert_data *data, uint64_t step, size_t first,
                       size_t count) {
    moert_loaded loaded;
    ASSERT_OK(moert_loader_take(loader, step, &loaded));
    assert_int_equal(loaded.sequences, count);
    assert_int_equal(loaded.targets, PIECES * count * LENGTH);
    for (size_t i = 0; i < PIECES * count; i++) {
        int32_t input[LENGTH], target[LENGTH];
        const moert_draw draw = {3, step, i / count * (BATCH / PIECES) + first + i % count, 0};
        ASSERT_OK(moert_data_sequence(data, draw, LENGTH, input, target, NULL));
        assert_memory_equal(loaded.input + i * LENGTH, input, sizeof input);
        assert_memory_equal(loaded.target + i * LENGTH, target, sizeof target);
    }
}

TEST(test_every_step_has_the_sequences_of_the_rank) {
    /* some steps in order, then some out of order */
    static const uint64_t steps[] = {0, 1, 2, 4, 1, 1, 2};
    const char *path = write_text("text", sentence);
    const moert_data *data = open_text(&path, 1, 0.0);
    moert_loader *first = open_part(data, 0, 2), *second = open_part(data, 1, 2);
    for (size_t i = 0; i < MOERT_COUNT(steps); i++) {
        check_step(first, data, steps[i], 0, 1);
        check_step(second, data, steps[i], 1, 2);
    }
}

TEST(test_a_growing_batch_leaves_no_sequence_out) {
    static const moert_batch_plan ramp = {16, 10, 2, 1}; /* 10, 12, 14, 16 and 16 sequences */
    enum { RANKS = 5, MOST = 16 };
    const char *path = write_text("epochs", sentence);
    moert_data *data = open_text(&path, 1, 0.0);
    ASSERT_OK(moert_data_order_epochs(data, 3, LENGTH));
    moert_loader *loaders[RANKS];
    for (size_t r = 0; r < RANKS; r++)
        loaders[r] = open_ramp(data, ramp, r, RANKS);
    for (size_t step = 0, number = 0; step < STEPS; step++) {
        const size_t piece = (step < 3 ? 10 + 2 * step : MOST) / PIECES;
        moert_loaded loaded[RANKS];
        for (size_t r = 0; r < RANKS; r++)
            ASSERT_OK(moert_loader_take(loaders[r], step, &loaded[r]));
        for (size_t m = 0; m < PIECES; m++) {
            size_t found = 0;
            for (size_t r = 0; r < RANKS; r++)
                for (size_t i = 0; i < loaded[r].sequences; i++, found++, number++) {
                    int32_t input[LENGTH], target[LENGTH], positions[LENGTH];
                    ASSERT_OK(moert_data_sequence(data, (moert_draw){.before = number}, LENGTH,
                                                  input, target, positions));
                    assert_memory_equal(loaded[r].input + (m * loaded[r].sequences + i) * LENGTH,
                                        input, sizeof input);
                }
            assert_int_equal(found, piece);
        }
    }
}

TEST(test_a_failure_of_the_thread_is_the_next_step_s) {
    moert_loaded loaded;
    const char *path = write_text("short", sentence);
    moert_loader *loader = open_part(open_text(&path, 1, 0.0), 0, 1);
    assert_int_equal(truncate(path, 20), 0);
    ASSERT_FAILS(moert_loader_take(loader, 0, &loaded), MOERT_ERROR_IO, "has 20 now");
    path = write_text("later", sentence);
    loader = open_part(open_text(&path, 1, 0.0), 0, 1);
    ASSERT_OK(moert_loader_take(loader, 0, &loaded));
    assert_int_equal(unlink(path), 0); /* the loader may already have read step 1 */
    moert_status status = MOERT_OK;
    for (uint64_t step = 1; step < STEPS && status == MOERT_OK; step++)
        status = moert_loader_take(loader, step, &loaded);
    assert_int_equal(status, MOERT_ERROR_IO);
    assert_non_null(strstr(moert_last_error(), "later: No such file"));
}

/* The values are hashes of the same work, computed by the rank itself, by a rank that repeats the
 * work, and by a second rank that repeats the work. */
TEST(test_a_verdict_names_the_rank_that_stands_alone) {
    static const struct {
        size_t ranks[3];
        uint64_t values[3];
        bool third;
        size_t wrong_count, wrong, right_count;
    } rows[] = {{{4, 5, 6}, {1, 2, 2}, true, 1, 4, 2},
                {{4, 5, 6}, {1, 2, 1}, true, 1, 5, 2},
                {{4, 5, 6}, {1, 2, 3}, true, 3, 4, 0},
                {{4, 5, 0}, {1, 2, 0}, false, 2, 4, 0},
                {{4, 4, 0}, {1, 2, 0}, false, 1, 4, 0}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_check_verdict v;
        moert_check_judge(rows[i].ranks, rows[i].values, rows[i].third, &v);
        assert_int_equal(v.wrong_count, rows[i].wrong_count);
        assert_int_equal(v.wrong[0], rows[i].wrong);
        assert_int_equal(v.right_count, rows[i].right_count);
    }
}

TESTS(make_test_directory, remove_test_directory)
