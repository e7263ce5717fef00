// run: np=1 gpu=1 sanitize=1
/* AdamW against float64 over several steps. */
#include "moert/quantize.h"
#include "nn/nn.h"
#include "support/test.h"

enum { STEPS = 5 };

static const moert_adamw settings = {
    .rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .decay = 0.1f, .scale = 0.5f};

/* Takes one step of one parameter in float64. */
static void reference_step(const moert_adamw *adamw, double gradient, double *p, double *m,
                           double *v) {
    double g = gradient * (double)adamw->scale, rate = adamw->rate, t = (double)adamw->step;
    double beta1 = adamw->beta1, beta2 = adamw->beta2;
    *p *= 1.0 - rate * (double)adamw->decay;
    *m = beta1 * *m + (1.0 - beta1) * g;
    *v = beta2 * *v + (1.0 - beta2) * g * g;
    *p -= rate / (1.0 - pow(beta1, t)) * *m /
          (sqrt(*v) / sqrt(1.0 - pow(beta2, t)) + (double)adamw->epsilon);
}

/* p, m and v on the device. m and v have state_count values, initially 0. */
typedef struct adam {
    moert_buffer *p, *m, *v;
} adam;

static adam upload_state(const float *parameter, size_t n, size_t state_count) {
    float *zero = test_alloc(state_count * sizeof *zero);
    return (adam){upload_floats(parameter, n), upload_floats(zero, state_count),
                  upload_floats(zero, state_count)};
}

static void download_state(adam s, size_t n, size_t state_count, float **result) {
    result[0] = download_floats(s.p, n);
    result[1] = download_floats(s.m, state_count);
    result[2] = download_floats(s.v, state_count);
}

/* Computes p, m and v after STEPS steps with gradient[STEPS,n], in new arrays. */
static void run(size_t n, const float *parameter, const float *gradient, float **result) {
    const adam of = upload_state(parameter, n, n);
    for (size_t s = 0; s < STEPS; s++) {
        moert_buffer *g = upload_floats(gradient + s * n, n);
        moert_adamw adamw = settings;
        adamw.step = s + 1;
        ASSERT_OK(moert_adamw_step(&adamw, n, of.p, g, of.m, of.v));
    }
    download_state(of, n, n, result);
}

TEST(test_steps_match_float64) {
    const size_t lengths[] = {0, 1, 15, 17, 4097};
    for (size_t l = 0; l < MOERT_COUNT(lengths); l++) {
        size_t n = lengths[l];
        float *parameter = random_floats(n, 1.0f, 500 + l), *got[3];
        float *gradient = random_floats(STEPS * n, 0.1f, 600 + l);
        double *want[3];
        for (size_t k = 0; k < 3; k++)
            want[k] = test_alloc(n * sizeof *want[k]);
        for (size_t i = 0; i < n; i++) {
            want[0][i] = (double)parameter[i];
            for (size_t s = 0; s < STEPS; s++) {
                moert_adamw adamw = settings;
                adamw.step = s + 1;
                reference_step(&adamw, (double)gradient[s * n + i], &want[0][i], &want[1][i],
                               &want[2][i]);
            }
        }
        run(n, parameter, gradient, got);
        assert_close("state", got[0], want[0], n, 1e-6, 1e-6);
        assert_close("state", got[1], want[1], n, 1e-8, 1e-6);
        assert_close("state", got[2], want[2], n, 1e-10, 1e-6);
    }
}

TEST(test_bits_do_not_depend_on_the_position) {
    enum { N = 1003, SHIFT = 21, LONG = N + SHIFT };
    float *parameter = random_floats(LONG, 1.0f, 700),
          *gradient = random_floats(STEPS * LONG, 1, 8);
    float *part = test_alloc(STEPS * N * sizeof *part), *whole[3], *shifted[3];
    for (size_t s = 0; s < STEPS; s++)
        memcpy(part + s * N, gradient + s * LONG + SHIFT, N * sizeof *part);
    run(LONG, parameter, gradient, whole);
    run(N, parameter + SHIFT, part, shifted);
    for (size_t k = 0; k < 3; k++)
        assert_same_bits("whole", whole[k] + SHIFT, shifted[k], N);
}

/* A range of the parameters. Its moments begin at state_at in buffers that are smaller than the
 * parameters. */
typedef struct range {
    size_t at, count, state_at;
} range;

static void check_range(size_t n, const range *of, const float *parameter, const float *gradient,
                        float *const *whole) {
    const size_t at = of->at, count = of->count, state_at = of->state_at;
    float *zero = test_alloc(state_at * sizeof *zero), *got[3];
    moert_buffer *g = upload_floats(gradient, n);
    const adam mine = upload_state(parameter, n, state_at + count);
    for (size_t s = 0; s < STEPS; s++) {
        moert_adamw adamw = settings;
        adamw.step = s + 1;
        adamw.at = at;
        adamw.state_at = state_at;
        ASSERT_OK(moert_buffer_write(g, 0, gradient + s * n, n * sizeof *gradient));
        ASSERT_OK(moert_adamw_step(&adamw, count, mine.p, g, mine.m, mine.v));
    }
    download_state(mine, n, state_at + count, got);
    assert_same_bits("before", got[0], parameter, at);
    assert_same_bits("range", got[0] + at, whole[0] + at, count);
    assert_same_bits("behind", got[0] + at + count, parameter + at + count, n - at - count);
    for (size_t i = 1; i < 3; i++) {
        assert_same_bits("moment before", got[i], zero, state_at);
        assert_same_bits("moment", got[i] + state_at, whole[i] + at, count);
    }
}

TEST(test_a_range_has_the_bits_of_the_whole) {
    enum { N = 9001 };
    const range ranges[] = {{0, 4096, 0},  {4096, N - 4096, 0}, {4096, 4096, 128},
                            {21, 1003, 7}, {N - 1, 1, 3},       {8, 64, 4}};
    float *parameter = random_floats(N, 1.0f, 710), *gradient = random_floats(STEPS * N, 1.0f, 9);
    float *whole[3];
    run(N, parameter, gradient, whole);
    for (size_t i = 0; i < MOERT_COUNT(ranges); i++)
        check_range(N, &ranges[i], parameter, gradient, whole);
}

TEST(test_zero_padding_stays_zero) {
    enum { N = 33 };
    const float zero[STEPS * N] = {0};
    float *got[3];
    run(N, zero, zero, got);
    for (size_t k = 0; k < 3; k++)
        assert_same_bits("state", got[k], zero, N);
}

TEST(test_rounded_parameters_are_the_cast_ones) {
    const size_t lengths[] = {1, 15, 33, 4096, 4097, 9000};
    for (size_t l = 0; l < MOERT_COUNT(lengths); l++) {
        const size_t n = lengths[l];
        float *parameter = random_floats(n, 1.0f, 800 + l), *gradient = random_floats(n, 1.0f, 900);
        float *got[2][3];
        gradient[n / 2] = NAN;
        moert_buffer *g = upload_floats(gradient, n);
        moert_buffer *rounded = unset_bf16(n), *cast = unset_bf16(n);
        for (size_t with = 0; with < 2; with++) {
            const adam of = upload_state(parameter, n, n);
            moert_adamw adamw = settings;
            adamw.step = 1;
            adamw.rounded = with > 0 ? rounded : NULL;
            ASSERT_OK(moert_adamw_step(&adamw, n, of.p, g, of.m, of.v));
            if (with > 0)
                ASSERT_OK(moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32,
                                                       MOERT_DTYPE_BF16, n, of.p, cast}));
            download_state(of, n, n, got[with]);
        }
        uint16_t *want = download(cast, n * sizeof *want);
        uint16_t *values = download(rounded, n * sizeof *values);
        assert_memory_equal(values, want, n * sizeof *values);
        for (size_t k = 0; k < 3; k++)
            assert_same_bits("state", got[1][k], got[0][k], n);
    }
}

TEST(test_step_zero_is_refused) {
    const float one = 1.0f;
    moert_buffer *buffer = upload(&one, sizeof one);
    assert_int_equal(moert_adamw_step(&settings, 1, buffer, buffer, buffer, buffer),
                     MOERT_ERROR_USAGE);
}

TESTS(open_test_device, close_test_device)
