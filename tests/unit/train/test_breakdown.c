// run: check=1,2 all=3,1san,2san
/* The table of a profiled run: its rows add up, whichever commands overlap, and agree with the
 * report in JSON. */
#include <jansson.h>

#include "base/memory.h"
#include "base/phase.h"
#include "support/files.h"
#include "support/mpi.h"
#include "train/breakdown.h"

enum { FLOATS = 1 << 20 };

/* Profiles some commands, during which this rank waits in an exchange if `waiting`. */
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
    if (waiting)
        moert_phase_wait_end();
    ASSERT_OK(moert_profile_end(test_device));
}

/* Writes the report's table to `table`. Returns the report's JSON object on rank 0, which the
 * caller releases, and NULL on other ranks. */
static json_t *report(const moert_breakdown *breakdown, const char *table) {
    const char *path = in_directory("profile.json");
    FILE *console = fopen(table, "w");
    ASSERT_ON_ALL(console != NULL);
    ASSERT_OK_ON_ALL(moert_breakdown_report(test_device, test_comm, breakdown, console, path));
    fclose(console);
    return test_rank == 0 ? json_load_file(path, 0, NULL) : NULL;
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

/* The sum of `key` over the rows. *found: the row with this name, or NULL. */
static double sum_of(const json_t *root, const char *key, const char *name, json_t **found) {
    double sum = 0.0;
    size_t i;
    json_t *row;
    *found = NULL;
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        sum += number(row, key);
        if (strcmp(json_string_value(json_object_get(row, "name")), name) == 0)
            *found = row;
    }
    return sum;
}

/* Checks on rank 0 that fractions and times add up, and that the table contains every operation and
 * row. */
static bool is_sound(const json_t *root, const char *table, double steps) {
    json_t *row, *any;
    size_t i;
    char *text = read_file(table, NULL);
    const double ms = number(root, "ms_per_step");
    bool sound =
        ms > 0.0 && number(root, "steps") == steps && number(root, "ranks") == (double)test_ranks;
    sound = sound && fabs(sum_of(root, "share", "combine", &row) - 1.0) < 1e-4;
    sound = sound && fabs(sum_of(root, "ms_per_step", "host", &any) - ms) < 1e-4 * ms;
    sound = sound && any != NULL && row != NULL && number(row, "calls") * steps == 40.0;
    sound = sound && number(row, "share") > 0.0 && number(root, "gemm_share") == 0.0;
    sound = sound && fabs(number(row, "gbps") / number(row, "copy_share") -
                          number(root, "copy_roof_gbps")) < 1e-3 * number(root, "copy_roof_gbps");
    sound = sound && json_is_null(json_object_get(row, "gflops"));
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        sound = sound && number(row, "ms_per_step") >= 0.0;
        sound = sound && strstr(text, json_string_value(json_object_get(row, "name"))) != NULL;
    }
    return sound;
}

TEST(test_rows_add_up_to_the_step_even_if_waits_overlap_kernels) {
    moert_breakdown breakdown;
    const char *table = in_directory("table");
    ASSERT_OK_ON_ALL(moert_breakdown_start(test_device, test_comm, 0, 10, &breakdown));
    assert_int_equal(breakdown.from, MOERT_BREAKDOWN_SKIPS);
    assert_int_equal(breakdown.steps, 0);
    json_t *nothing = report(&breakdown, table); /* no step has been counted yet */
    assert_null(nothing);
    span(true);
    span(false);
    breakdown.steps = 4;
    json_t *root = report(&breakdown, table);
    ASSERT_ON_ALL(test_rank != 0 || (root != NULL && is_sound(root, table, 4.0)));
    json_decref(root);
}

TEST(test_the_first_steps_are_left_out_if_there_are_more) {
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
    ASSERT_FAILS_ON_ALL(moert_breakdown_report(test_device, test_comm, &breakdown, console,
                                               in_directory("none/profile.json")),
                        MOERT_ERROR_IO, "none/profile.json.tmp: cannot be created: No such file");
    fclose(console);
}

MPI_TESTS(open_context_and_directory, close_context_and_directory)
