// run: check=1,2 all=3,1san,2san
/* The table of a profiled run: its rows add up, whichever commands overlap, and agree with the
 * report in JSON. */
#include <jansson.h>
#include <unistd.h>

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

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

TEST(test_rows_add_up_to_the_step_even_if_waits_overlap_kernels) {
    const char *path = in_directory("profile.json");
    char *table = NULL;
    size_t bytes, i;
    FILE *console = open_memstream(&table, &bytes);
    moert_breakdown b;
    ASSERT_OK_ON_ALL(moert_breakdown_start(test_device, test_comm, 0, 10, &b));
    assert_int_equal(b.from, MOERT_BREAKDOWN_SKIPS);
    assert_int_equal(b.steps, 0);
    ASSERT_OK_ON_ALL(moert_breakdown_report(test_device, test_comm, &b, console, path));
    ASSERT_ON_ALL(access(path, F_OK) != 0); /* no step has been counted yet */
    span(true);
    span(false);
    b.steps = 4;
    ASSERT_OK_ON_ALL(moert_breakdown_report(test_device, test_comm, &b, console, path));
    fclose(console);
    owned(table, free);
    if (test_rank != 0)
        return;
    /* fractions and times add up, and the table has every row */
    json_t *root = owned(json_load_file(path, 0, NULL), json_decref), *row, *combine = NULL;
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
    }
    assert_within(shares, 1.0, 1e-4);
    assert_within(times, ms, 1e-4 * ms);
    assert_true(number(combine, "calls") * 4.0 == 40.0 && number(combine, "share") > 0.0);
    assert_within(number(combine, "gbps") / number(combine, "copy_share"), roof, 1e-3 * roof);
    assert_true(json_is_null(json_object_get(combine, "gflops")));
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
