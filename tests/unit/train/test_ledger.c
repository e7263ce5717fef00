// run: check=1,2 all=4,1san,2san
/* The table and the record of a profiled training: rows, bytes and times agree, and moert-report
 * names an expert that the test made hot. */
#include <jansson.h>
#include <unistd.h>

#include "base/phase.h"
#include "device/buffer.h"
#include "device/launch.h"
#include "support/data.h"
#include "support/model/model_run.h"
#include "tools/report/verdict.h"
#include "train/breakdown.h"
#include "train/trainer.h"

/* ---- the table: its rows add up, whichever commands overlap, and agree with the JSON ---- */

enum { FLOATS = 1 << 20 };

/* Profiles some commands. If `waiting`, this rank waits in an exchange meanwhile. */
static void span(bool waiting) {
    moert_buffer *x = test_buffer(FLOATS * sizeof(float));
    ASSERT_OK(moert_profile_begin(test_device));
    moert_phase_set(MOERT_PHASE_COMBINE);
    if (waiting)
        moert_phase_wait_begin();
    for (size_t i = 0; i < 20; i++) {
        ASSERT_OK(moert_buffer_clear(x, 0, FLOATS * sizeof(float)));
        ASSERT_OK(MOERT_RUN(test_device, "nn/elementwise", "add",
                            ((moert_grid){FLOATS / 4096, 1, 1}), MOERT_ARG(x), MOERT_ARG(x),
                            MOERT_ARG((size_t)FLOATS)));
    }
    ASSERT_OK(moert_device_finish(test_device));
    usleep(5000); /* time of the host without device commands, which is a row of the table */
    if (waiting)
        moert_phase_wait_end();
    ASSERT_OK(moert_profile_end(test_device));
}

/* Reports FLOPs that take 1 ms at the peak rate of float32, and FLOPs that take 1 ms at the peak
 * rate of bf16. */
static void report_flops(const moert_roof *roof) {
    moert_buffer *x = test_buffer(FLOATS * sizeof(float));
    ASSERT_OK(moert_profile_begin(test_device));
    moert_phase_set(MOERT_PHASE_ATTENTION);
    ASSERT_OK(MOERT_RUN(test_device, "nn/elementwise", "add", ((moert_grid){FLOATS / 4096, 1, 1}),
                        MOERT_ARG(x), MOERT_ARG(x), MOERT_ARG((size_t)FLOATS)));
    moert_profile_work(test_device, "nn/elementwise", 1e6 * roof->gflops, 0.0);
    moert_profile_bf16_work(test_device, "nn/elementwise", 1e6 * roof->bf16_gflops, 0.0);
    ASSERT_OK(moert_profile_end(test_device));
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

TEST(test_rows_add_up_to_the_step_even_if_waits_overlap_kernels) {
    const char *path = in_directory("profile.json");
    char *table = NULL;
    size_t bytes, i;
    FILE *console = open_memstream(&table, &bytes);
    moert_breakdown b;
    const size_t peak = moert_device_peak_bytes(test_device);
    ASSERT_OK_ON_ALL(moert_breakdown_start(test_device, test_comm, true, 0, 10, &b));
    assert_true(b.roof.bf16_gflops > 0.1 && b.roof.gflops > 0.1);
    assert_int_equal(moert_device_peak_bytes(test_device), peak);
    assert_int_equal(b.from, MOERT_BREAKDOWN_SKIPS);
    assert_int_equal(b.steps, 0);
    ASSERT_OK_ON_ALL(moert_breakdown_report(test_device, test_comm, &b, console, test_directory));
    /* there is no file, because no step has been profiled yet */
    ASSERT_ON_ALL(access(path, F_OK) != 0);
    span(true);
    span(false);
    report_flops(&b.roof);
    b.steps = 4;
    ASSERT_OK_ON_ALL(moert_breakdown_report(test_device, test_comm, &b, console, test_directory));
    fclose(console);
    owned(table, free);
    if (test_rank != 0)
        return;
    /* fractions and times add up, and the table has every row */
    json_t *root = owned(json_load_file(path, 0, NULL), json_decref), *row, *combine = NULL,
           *adds = NULL;
    const double ms = number(root, "ms_per_step"), roof = number(root, "copy_roof_gbps");
    double shares = 0.0, times = 0.0;
    assert_true(ms > 0.0 && number(root, "steps") == 4.0);
    assert_true(number(root, "ranks") == (double)test_ranks && number(root, "gemm_share") == 0.0);
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        assert_non_null(strstr(table, name));
        assert_true(number(row, "ms_per_step") >= 0.0);
        shares += number(row, "share");
        times += number(row, "ms_per_step");
        combine = strcmp(name, "combine") == 0 ? row : combine;
        adds = strcmp(name, "adds, rotations, biases") == 0 ? row : adds;
    }
    const double least_ms = 2.0 / 4.0; /* of 4 steps */
    assert_within(number(adds, "peak_share") * number(adds, "ms_per_step"), least_ms, 1e-3);
    assert_within(shares, 1.0, 1e-4);
    assert_within(times, ms, 1e-4 * ms);
    assert_true(number(combine, "calls") * 4.0 == 40.0 && number(combine, "share") > 0.0);
    assert_within(number(combine, "gbps") / number(combine, "copy_share"), roof, 1e-3 * roof);
    assert_true(json_is_null(json_object_get(combine, "gflops")));
}

TEST(test_the_first_steps_are_left_out_if_there_are_more) {
    /* each case: the run's first step, its end, and the first step that is profiled */
    static const uint64_t cases[][3] = {/* first step, end, first step that counts */
                                        {0, 1, 0}, {0, 2, 1}, {0, 3, 2},
                                        {0, 9, 2}, {5, 9, 7}, {9, 9, 9}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        assert_int_equal(moert_breakdown_from(cases[i][0], cases[i][1]), cases[i][2]);
}

TEST(test_a_missing_directory_fails_on_all_ranks) {
    const moert_breakdown breakdown = {.roof = {1.0, 1.0}, .steps = 1};
    ASSERT_OK_ON_ALL(moert_profile_enable(test_device));
    span(false);
    FILE *console = fopen("/dev/null", "w");
    ASSERT_FAILS_ON_ALL(
        moert_breakdown_report(test_device, test_comm, &breakdown, console, in_directory("none")),
        MOERT_ERROR_IO, "none/profile.json.tmp: cannot be created: No such file");
    fclose(console);
}

/* ---- the record ---- */

enum { HIDDEN = 64, LAYERS = 2, EXPERTS = 8, TOPK = 2, HOT_LAYER = 1, HOT_EXPERT = 5 };
enum { STEPS = 5, BATCH = 8, LENGTH = 16, TOKENS = BATCH * LENGTH };

/* Sets column 0 of `rows` rows of a tensor, beginning with row `first`. */
static void set_column(moert_model *model, const char *name, size_t first, size_t rows,
                       float value) {
    const moert_model_tensor *tensor = find_tensor(model, name);
    float *values = read_tensor(tensor, false);
    for (size_t row = first; row < first + rows; row++)
        values[row * HIDDEN] = value;
    write_tensor(tensor, values);
}

/* Makes an expert hot: every token has a large value in column 0, which raises only the hot
 * expert's score. The other columns determine the other experts that a token chooses. */
static void plant(moert_model *model) {
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 1));
    set_column(model, "model.embed_tokens.weight", 0, 256, 0.2f);
    set_column(model, "model.layers.0.block_sparse_moe.gate.weight", 0, EXPERTS, 0.0f);
    set_column(model, "model.layers.1.block_sparse_moe.gate.weight", 0, EXPERTS, 0.0f);
    set_column(model, "model.layers.1.block_sparse_moe.gate.weight", HOT_EXPERT, 1, 2.0f);
    moert_model_weights_changed(model);
}

/* Trains with all ranks, in EP groups of `ep` ranks. Only rank 0 uses the run directory. */
static void train(size_t ep) {
    /* the learning rate is 0, so that training does not change the weights */
    const moert_trainer_options options = {
        .steps = STEPS,
        .seed = 1,
        .optimizer = {.beta1 = 0.9, .beta2 = 0.9, .epsilon = 1e-8},
        .batch.largest = BATCH,
        .micro_batches = 2,
        .length = LENGTH,
        .max_skipped = 1,
        .keep.last = 1,
        .out = in_directory("run"),
        .metrics = in_directory("run/metrics.jsonl"),
        .profile = true};
    const char *const text = "LICENSE";
    const moert_model_config config = golden_config("mixtral-tiny");
    bool interrupted;
    moert_data *data = open_text(&text, 1, 0.0);
    moert_model *model = open_model(open_mesh(ep), &config);
    plant(model);
    /* stdout is replaced, so that the table does not appear in the test's output */
    FILE *console = stdout;
    stdout = fopen("/dev/null", "w");
    const moert_status status = moert_train(model, data, &options, &interrupted);
    fclose(stdout);
    stdout = console;
    ASSERT_OK_ON_ALL(status);
}

static void assert_relative(double got, double want, double tolerance) {
    assert_within(got, want, tolerance * fabs(want) + 1e-9);
}

static double sum_of(const double *values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* Checks the recorded bytes. x with its weights and dy go to the experts. Results and dx with the
 * gradients of the weights come back. No byte leaves an EP group. */
static void check_bytes(const moert_run_record *record, size_t hosts) {
    const double bytes = LAYERS * TOKENS * TOPK * (2.0 * HIDDEN + 1.0) * sizeof(float);
    const size_t ranks = record->ranks, group = record->group;
    assert_relative(sum_of(record->dispatched_bytes, ranks * ranks), bytes, 1e-4);
    assert_relative(sum_of(record->combined_bytes, ranks * ranks), bytes, 1e-4);
    for (size_t from = 0; from < ranks; from++)
        for (size_t to = 0; to < ranks; to++) {
            const double there = record->dispatched_bytes[from * ranks + to];
            assert_relative(record->combined_bytes[to * ranks + from], there, 1e-5);
            const bool together =
                hosts == 1 ? from / group == to / group : from % hosts == to % hosts;
            assert_true(together || there == 0.0);
        }
}

static void check_times(const moert_run_record *record) {
    const size_t ranks = record->ranks;
    assert_int_equal(record->profiled_steps, STEPS - 2);
    for (size_t r = 0; r < ranks; r++) {
        const moert_run_rank *rank = &record->rank[r];
        assert_true(rank->step_ms > 0.0 && strlen(rank->host) > 0);
        assert_relative(sum_of(rank->ms, MOERT_TIMES), rank->step_ms, 0.02);
        assert_true(record->waited_ms[r * ranks + r] == 0.0);
        assert_true(sum_of(record->waited_ms + r * ranks, ranks) <= 1.02 * rank->step_ms);
    }
}

/* Checks that a warning names the hot expert and, if there are several ranks, its rank. */
static void check_verdict(const moert_run_record *record) {
    moert_verdict verdict;
    const char *all = "", *of = "", *each = record->group < record->ranks ? " of each group" : "";
    if (record->group > 1)
        of = titled(" (of rank %zu%s)", HOT_EXPERT / (EXPERTS / record->group), each);
    moert_verdict_make(record, &verdict);
    for (size_t i = 0; i < verdict.count; i++)
        all = titled("%s%c %s\n", all, verdict.line[i].warns ? '!' : '=', verdict.line[i].text);
    if (strstr(all, titled("! Layer 1: expert 5%s takes 50 %% of the rows, 4.0 times", of)) == NULL)
        fail_msg("%s", all);
}

/* Rank 0 makes its own assertions last, so that no other rank waits for rank 0 if one fails. */
static void check(size_t ep, size_t hosts) {
    moert_run_record record;
    deal_ranks(hosts);
    train(ep);
    deal_ranks(1);
    if (test_rank != 0)
        return;
    ASSERT_OK(moert_run_record_read(in_directory("run"), &record));
    assert_int_equal(record.ranks, test_ranks);
    assert_int_equal(record.group, ep > 0 ? ep : test_ranks);
    assert_true(record.steps == STEPS && json_is_object(record.operations));
    /* every layer has K rows per token, and the hot expert has one row per token */
    assert_true(record.layers == LAYERS && record.experts == EXPERTS);
    for (size_t l = 0; l < LAYERS; l++)
        assert_relative(sum_of(record.expert_rows + l * EXPERTS, EXPERTS), TOKENS * TOPK, 1e-5);
    assert_true(record.expert_rows[HOT_LAYER * EXPERTS + HOT_EXPERT] == TOKENS);
    check_bytes(&record, hosts);
    check_times(&record);
    check_verdict(&record);
    moert_run_record_free(&record);
}

TEST(test_rows_bytes_and_times_fit_and_the_hot_expert_is_named) {
    check(0, 1);
}

TEST(test_replicas_count_once_and_bytes_stay_in_their_group) {
    check(test_ranks > 1 ? test_ranks / 2 : 1, 1);
}

TEST(test_ranks_dealt_to_two_hosts_have_their_bytes_in_their_rows) {
    if (test_ranks != 4)
        SKIP("only for 4 ranks");
    check(2, 2);
}

MPI_TESTS(open_context_and_directory, close_context_and_directory)
