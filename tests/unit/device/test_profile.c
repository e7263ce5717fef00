// run: check=1 all=1san
/* The profile: to which operation a device's commands are charged, when they count, and their
 * sums. */
#include <unistd.h>

#include "base/phase.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "device/record.h"
#include "gemm/gemm.h"
#include "support/attention/attention.h"
#include "support/opencl.h"
#include "support/test.h"

enum { N = 1000 };

static const moert_profile_row *row_of(moert_operation operation) {
    return &moert_profile_get(test_device)->row[operation];
}

static uint64_t calls_of(moert_operation operation) {
    return row_of(operation)->calls;
}

/* Sums the calls and the ns of all operations. */
static moert_profile_row total(void) {
    moert_profile_row sum = {.calls = 0};
    for (int i = 0; i < MOERT_OPERATIONS; i++) {
        sum.calls += calls_of((moert_operation)i);
        sum.ns += row_of((moert_operation)i)->ns;
    }
    return sum;
}

static bool is_within_wall_time(void) {
    return total().ns > 0 && total().ns <= moert_profile_get(test_device)->wall_ns;
}

static void begin_profile(void) {
    ASSERT_OK(moert_profile_enable(test_device));
    ASSERT_OK(moert_profile_begin(test_device));
}

/* Computes y[N] += x[N] `times` times. */
static void add(const moert_buffer *x, moert_buffer *y, size_t times) {
    const size_t n = N;
    for (size_t i = 0; i < times; i++)
        ASSERT_OK(MOERT_RUN(moert_buffer_device(y), "nn/elementwise", "add",
                            ((moert_grid){1, 1, 1}), MOERT_ARG(x), MOERT_ARG(y), MOERT_ARG(n)));
}

static moert_buffer *ones(void) {
    float values[N];
    for (size_t i = 0; i < N; i++)
        values[i] = 1.0f;
    return upload_floats(values, N);
}

TEST(test_names_decide_the_operation_and_phases_that_of_gemms) {
    static const struct {
        const char *program;
        moert_phase phase;
        moert_operation operation;
    } cases[] = {
        {"gemm/gemm", MOERT_PHASE_EXPERTS, MOERT_OPERATION_EXPERTS_FPROP},
        {"gemm/gemm -DX=1", MOERT_PHASE_EXPERTS_BACKWARD, MOERT_OPERATION_EXPERTS_DGRAD},
        {"gemm/other -DX=1", MOERT_PHASE_EXPERTS, MOERT_OPERATION_EXPERTS_FPROP},
        {"gemm/nvidia/wgmma -DX=1", MOERT_PHASE_EXPERTS, MOERT_OPERATION_EXPERTS_FPROP},
        {"gemm/nvidia/mma -DX=1", MOERT_PHASE_WGRAD, MOERT_OPERATION_EXPERTS_WGRAD},
        {"gemms/gemm", MOERT_PHASE_EXPERTS, MOERT_OPERATION_OTHER},
        {"gemm/gemm", MOERT_PHASE_WGRAD, MOERT_OPERATION_EXPERTS_WGRAD},
        {"gemm/gemm", MOERT_PHASE_ATTENTION_BACKWARD, MOERT_OPERATION_PROJECTIONS},
        {"gemm/gemm", MOERT_PHASE_OPTIMIZER, MOERT_OPERATION_OTHER},
        {"gemm/gemm", MOERT_PHASE_START, MOERT_OPERATION_OTHER},
        {"nn/norm -DCOLUMNS=64", MOERT_PHASE_ATTENTION, MOERT_OPERATION_NORM},
        {"nn/norm", MOERT_PHASE_DATA, MOERT_OPERATION_NORM},
        {"attention/nvidia/attention -DPASS=0", MOERT_PHASE_ATTENTION, MOERT_OPERATION_ATTENTION},
        {"exchange/exchange -DREMOTE=1", MOERT_PHASE_DISPATCH, MOERT_OPERATION_DISPATCH},
        {"exchange/exchange -DREMOTE=1", MOERT_PHASE_COMBINE, MOERT_OPERATION_COMBINE},
        {"exchange/exchange -DREMOTE=1", MOERT_PHASE_START, MOERT_OPERATION_OTHER},
        {MOERT_FAMILY_COPY, MOERT_PHASE_COMBINE, MOERT_OPERATION_COMBINE},
        {MOERT_FAMILY_COPY, MOERT_PHASE_LOSS, MOERT_OPERATION_COPIES},
        {"nn/nor", MOERT_PHASE_ATTENTION, MOERT_OPERATION_OTHER},
        {"nn/norms", MOERT_PHASE_ATTENTION, MOERT_OPERATION_OTHER},
        {"", MOERT_PHASE_ATTENTION, MOERT_OPERATION_OTHER},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        assert_int_equal(moert_operation_of(cases[i].program, cases[i].phase), cases[i].operation);
    assert_true(moert_operation_is_gemm(MOERT_OPERATION_HEAD));
    assert_false(moert_operation_is_gemm(MOERT_OPERATION_ATTENTION));
    assert_string_equal(moert_operation_text(MOERT_OPERATION_EXPERTS_WGRAD), "experts wgrad");
}

TEST_WITH(test_nothing_counts_outside_of_a_span, open_test_device, close_test_device) {
    moert_buffer *x = ones(), *y = ones();
    assert_null(moert_profile_get(test_device));
    ASSERT_FAILS(moert_profile_begin(test_device), MOERT_ERROR_USAGE, "not enabled");
    ASSERT_FAILS(moert_profile_end(test_device), MOERT_ERROR_USAGE, "not enabled");
    add(x, y, 1);
    ASSERT_OK(moert_profile_enable(test_device));
    ASSERT_OK(moert_profile_enable(test_device));
    ASSERT_FAILS(moert_profile_end(test_device), MOERT_ERROR_USAGE, "none had begun");
    add(x, y, 1);
    moert_profile_work(test_device, "nn/elementwise", 1.0, 1.0);
    assert_int_equal(total().calls, 0);
    assert_true(row_of(MOERT_OPERATION_ELEMENTWISE)->bytes == 0.0);
    ASSERT_OK(moert_profile_begin(test_device));
    ASSERT_FAILS(moert_profile_begin(test_device), MOERT_ERROR_USAGE, "the last one had not ended");
    add(x, y, 3);
    ASSERT_OK(moert_profile_end(test_device));
    add(x, y, 1);
    ASSERT_OK(moert_device_finish(test_device));
    assert_int_equal(total().calls, 3);
}

/* The last span has more commands than the profile's list of events holds. */
TEST_WITH(test_spans_add_up_within_their_wall_time, open_test_device, close_test_device) {
    static const size_t adds[] = {5, 5, 2500};
    moert_buffer *x = ones(), *y = ones();
    float values[N];
    size_t sum = 0;
    ASSERT_OK(moert_profile_enable(test_device));
    for (size_t spans = 1; spans <= MOERT_COUNT(adds); spans++) {
        ASSERT_OK(moert_profile_begin(test_device));
        moert_phase_set(MOERT_PHASE_ATTENTION);
        ASSERT_OK(moert_buffer_copy(x, 0, y, 0, sizeof values));
        ASSERT_OK(moert_buffer_clear(y, 0, 4));
        add(x, y, adds[spans - 1]);
        sum += adds[spans - 1];
        ASSERT_OK(MOERT_RUN(test_device, "nn/elementwise", "add", ((moert_grid){0, 1, 1}),
                            MOERT_ARG(x), MOERT_ARG(y), MOERT_ARG((size_t)N)));
        moert_phase_set(MOERT_PHASE_DISPATCH);
        ASSERT_OK(moert_buffer_read(y, 0, values, sizeof values));
        ASSERT_OK(moert_profile_end(test_device));
        assert_int_equal(calls_of(MOERT_OPERATION_ELEMENTWISE), sum);
        assert_int_equal(calls_of(MOERT_OPERATION_COPIES), 2 * spans);
        assert_int_equal(calls_of(MOERT_OPERATION_DISPATCH), spans);
        assert_int_equal(total().calls, sum + 3 * spans);
        assert_true(row_of(MOERT_OPERATION_COPIES)->bytes ==
                    (double)(spans * (2 * sizeof values + 4)));
        assert_true(is_within_wall_time());
    }
    assert_true(values[0] == 2500.0f && values[N - 1] == 2501.0f);
}

/* y[rows,n] = x[rows,k] weight[g,n,k]^T, for two groups. */
static moert_gemm make_gemm(size_t rows, size_t n, size_t k) {
    const uint32_t ends[] = {4, (uint32_t)rows};
    return (moert_gemm){.groups = {upload(ends, sizeof ends), 2, rows},
                        .n = n,
                        .k = k,
                        .x = {.buffer = unset_floats(rows * k)},
                        .weight = {.buffer = unset_floats(2 * n * k)},
                        .y = {.buffer = unset_floats(rows * n)}};
}

/* FLOPs and bytes are charged to the operation of the current phase, whichever kernels are
 * launched. */
TEST_WITH(test_a_gemm_reports_its_flops_and_bytes, open_test_device, close_test_device) {
    enum { ROWS = 10, WIDTH = 10, DEPTH = 100 };
    moert_gemm gemm = make_gemm(ROWS, WIDTH, DEPTH);
    static const struct {
        moert_phase phase;
        moert_operation operation;
        moert_gemm_kind kind;
    } cases[] = {
        {MOERT_PHASE_EXPERTS, MOERT_OPERATION_EXPERTS_FPROP, MOERT_GEMM_FORWARD},
        {MOERT_PHASE_EXPERTS_BACKWARD, MOERT_OPERATION_EXPERTS_DGRAD, MOERT_GEMM_DGRAD},
        {MOERT_PHASE_WGRAD, MOERT_OPERATION_EXPERTS_WGRAD, MOERT_GEMM_WGRAD},
        {MOERT_PHASE_DATA, MOERT_OPERATION_OTHER, MOERT_GEMM_FORWARD},
    };
    begin_profile();
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        moert_phase_set(cases[i].phase);
        gemm.kind = cases[i].kind;
        ASSERT_OK(moert_gemm_run(&gemm));
    }
    ASSERT_OK(moert_profile_end(test_device));
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const moert_profile_row *row = row_of(cases[i].operation);
        assert_true(row->calls > 0 && row->ns > 0);
        assert_true(row->flops == 2.0 * ROWS * WIDTH * DEPTH);
        assert_true(row->bytes == 4.0 * (ROWS * DEPTH + ROWS * WIDTH + 2 * WIDTH * DEPTH));
    }
}

/* There is one query, one key and one value of 4 elements each. The FLOPs are those of q . k and p
 * v. */
TEST_WITH(test_attention_reports_its_flops_and_bytes, open_test_device, close_test_device) {
    const moert_attention one = attention_of_one_token();
    begin_profile();
    ASSERT_OK(moert_attention_forward(&one));
    ASSERT_OK(moert_profile_end(test_device));
    const moert_profile_row *row = row_of(MOERT_OPERATION_ATTENTION);
    assert_true(row->flops == 2.0 * (4 + 4));
    assert_true(row->bytes == 4.0 * (3 * 4) + 4.0 * (4 + 1)); /* q, k, v; out, lse */
}

static void wait_for(unsigned us) {
    moert_phase_wait_begin();
    usleep(us);
    moert_phase_wait_end();
}

TEST_WITH(test_waits_count_once_for_the_phase_they_are_in, open_test_device, close_test_device) {
    enum { US = 2000 };
    ASSERT_OK(moert_profile_enable(test_device));
    wait_for(1);
    ASSERT_OK(moert_profile_begin(test_device));
    moert_phase_set(MOERT_PHASE_PLAN);
    wait_for(US);
    moert_phase_set(MOERT_PHASE_DISPATCH);
    moert_phase_wait_begin();
    wait_for(US);
    moert_phase_wait_end();
    moert_phase_set(MOERT_PHASE_REDUCE_GRADIENTS);
    wait_for(US);
    ASSERT_OK(moert_profile_end(test_device));
    wait_for(1);
    const moert_profile_row *exchange = row_of(MOERT_OPERATION_EXCHANGE_WAIT),
                            *other = row_of(MOERT_OPERATION_WAIT);
    assert_int_equal(exchange->calls, 2);
    assert_int_equal(other->calls, 1);
    assert_true(exchange->ns >= 2 * US * 1000 && other->ns >= US * 1000);
    assert_true(is_within_wall_time());
    assert_int_equal(moert_phase_waiting(), 0);
}

TEST_WITH(test_a_recording_counts_as_one_command_when_played, open_test_device, close_test_device) {
    moert_recording *recording;
    moert_buffer *x = ones(), *y = ones();
    begin_profile();
    if (moert_recording_start(test_device, &recording) != MOERT_OK)
        SKIP("the device's driver records no commands");
    add(x, y, 3);
    ASSERT_OK(moert_recording_stop(recording));
    ASSERT_OK(moert_recording_play(recording));
    ASSERT_OK(moert_recording_play(recording));
    ASSERT_OK(moert_profile_end(test_device));
    assert_int_equal(calls_of(MOERT_OPERATION_OTHER), 2);
    assert_int_equal(total().calls, 2);
    moert_recording_destroy(recording);
}

TEST_WITH(test_a_device_may_close_while_it_counts, open_test_device, close_test_device) {
    moert_buffer *x = ones(), *y = ones();
    begin_profile();
    add(x, y, 3);
    release_owned();
    close_test_device(state);
    wait_for(1); /* by now, the profile has been closed */
}

TEST(test_a_queue_of_the_caller_must_have_profiling_enabled) {
    static const cl_command_queue_properties properties[] = {CL_QUEUE_PROFILING_ENABLE, 0};
    for (size_t i = 0; i < MOERT_COUNT(properties); i++) {
        const cl_objects caller = make_objects(properties[i]);
        const size_t before = owned_count();
        ASSERT_OK(moert_device_adopt(caller.context, caller.id, caller.queue, &test_device));
        const moert_status status = moert_profile_enable(test_device);
        if (properties[i] == CL_QUEUE_PROFILING_ENABLE) {
            begin_profile();
            add(ones(), ones(), 1);
            ASSERT_OK(moert_profile_end(test_device));
            assert_int_equal(calls_of(MOERT_OPERATION_ELEMENTWISE), 1);
        } else {
            ASSERT_FAILS(status, MOERT_ERROR_UNSUPPORTED, "CL_QUEUE_PROFILING_ENABLE");
        }
        release_since(before);
        close_test_device(state);
    }
}

/* With one work-item per work-group, the kernels of both forms run on any device. */
TEST_WITH(test_the_kernels_of_the_roof_build_and_copy_in_both_forms, open_test_device,
          close_test_device) {
    enum { FLOATS = 3 * 64 * 16 }; /* more floats than two work-groups of either form copy */
    static const size_t lanes[] = {16, 4};
    float *values = random_floats(FLOATS, 1.0f, 1);
    for (size_t i = 0; i < MOERT_COUNT(lanes); i++) {
        const char *program =
            titled("lib/roof -DCHAINS=%d -DROUNDS=3 -DBLOCK=64 -DLANES=%zu -DITEMS=1",
                   lanes[i] == 16 ? 12 : 6, lanes[i]);
        const size_t copied = 2 * 64 * lanes[i];
        moert_buffer *source = upload_floats(values, FLOATS), *target = unset_floats(FLOATS);
        ASSERT_OK(MOERT_RUN(test_device, program, "roof_copy", ((moert_grid){2, 1, 1}),
                            MOERT_ARG(source), MOERT_ARG(target)));
        ASSERT_OK(MOERT_RUN(test_device, program, "roof_fma", ((moert_grid){2, 1, 1}),
                            MOERT_ARG(source), MOERT_ARG(0.5f), MOERT_ARG(0.25f)));
        const float *got = download_floats(target, FLOATS);
        assert_same_bits("copy", got, values, copied);
        assert_true(isnan(got[copied]));
        assert_same_bits_in("source", source, values, FLOATS);
    }
}

/* Other processes may slow down the roof kernels or the GEMM, so the limit is generous. */
TEST_WITH(test_no_gemm_is_much_faster_than_the_roof, open_test_device, close_test_device) {
    enum { SIZE = 512 };
    moert_roof roof = {0};
    ASSERT_OK(moert_roof_measure(test_device, &roof));
    assert_true(roof.gflops > 0.1 && roof.gflops < 1e7);
    assert_true(roof.gbps > 0.1 && roof.gbps < 1e6);
    const moert_gemm gemm = make_gemm(SIZE, SIZE, SIZE);
    begin_profile();
    moert_phase_set(MOERT_PHASE_EXPERTS);
    for (size_t i = 0; i < 3; i++)
        ASSERT_OK(moert_gemm_run(&gemm));
    ASSERT_OK(moert_profile_end(test_device));
    const moert_profile_row *row = row_of(MOERT_OPERATION_EXPERTS_FPROP);
    assert_true(row->flops / (double)row->ns < 2.0 * roof.gflops);
}

/* Each test opens its own device, since a device keeps its profile. */
TESTS(NULL, NULL)
