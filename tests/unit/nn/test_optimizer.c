// run: check=1,1gpu all=1san
/* Optimizers against float64 over several steps. */
#include "base/dtype.h"
#include "base/rng.h"
#include "device/device.h"
#include "device/elements.h"
#include "nn/optimizer.h"
#include "support/quant/quantized.h"
#include "support/test.h"

enum { STEPS = 5 };

static const moert_update settings = {.rate = 1e-2f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .epsilon = 1e-8f,
                                      .momentum = 0.9f,
                                      .decay = 0.1f,
                                      .scale = 0.5f};

/* Takes one step of one parameter in float64. */
static void reference_step(const moert_update *update, double gradient, double *p, double *m,
                           double *v) {
    double g = gradient * update->scale, rate = update->rate, t = (double)update->step;
    double beta1 = update->beta1, beta2 = update->beta2;
    if (update->optimizer == MOERT_OPTIMIZER_SGD) {
        *m = update->momentum * *m + g + update->decay * *p;
        *p -= rate * *m;
        return;
    }
    *p *= 1.0 - rate * update->decay;
    *m = beta1 * *m + (1.0 - beta1) * g;
    *v = beta2 * *v + (1.0 - beta2) * g * g;
    *p -= rate / (1.0 - pow(beta1, t)) * *m /
          (sqrt(*v) / sqrt(1.0 - pow(beta2, t)) + update->epsilon);
}

/* Defines a test that runs `check` for each optimizer. */
#define EACH(name, check)                                                                          \
    TEST(name) {                                                                                   \
        for (unsigned o = 0; o < MOERT_OPTIMIZERS; o++)                                            \
            check((moert_optimizer_kind)o);                                                        \
    }

/* p, m and v on the device; SGD has no v. */
typedef struct weights {
    moert_buffer *p, *m, *v;
} weights;

/* The settings of step `step`; the first step is 1. */
static moert_update step_of(moert_optimizer_kind optimizer, uint64_t step) {
    moert_update update = settings;
    update.optimizer = optimizer;
    update.step = step;
    return update;
}

/* Takes a step of n floats. The moments have dtype `type` and begin at element `state_at` of their
 * buffers. */
static void take_step(const moert_update *update, size_t n, weights of, moert_buffer *gradient,
                      moert_dtype type, size_t state_at) {
    const moert_elements g = {gradient, MOERT_DTYPE_F32, update->at},
                         moments[] = {{of.m, type, state_at}, {of.v, type, state_at}};
    ASSERT_OK(moert_update_weights(update, n, of.p, &g, moments));
}

/* The range of `count` of n parameters, from parameter `at` on. The moments of the range begin at
 * element state_at of buffers that end where the range ends. */
typedef struct range {
    size_t n, at, count, state_at;
} range;

/* Computes p[n], m and v after STEPS steps with gradient[STEPS,n], in new arrays. `rounded` may be
 * NULL. */
static void run(moert_optimizer_kind optimizer, range of, const float *parameter,
                const float *gradient, moert_buffer *rounded, float **result) {
    const size_t moments = of.state_at + of.count;
    const float *zero = test_alloc(moments * sizeof *zero);
    const weights on = {upload_floats(parameter, of.n), upload_floats(zero, moments),
                        upload_floats(zero, moments)};
    for (size_t s = 0; s < STEPS; s++) {
        moert_update update = step_of(optimizer, s + 1);
        update.at = of.at;
        update.rounded = rounded;
        take_step(&update, of.count, on, upload_floats(gradient + s * of.n, of.n), MOERT_DTYPE_F32,
                  of.state_at);
    }
    result[0] = download_floats(on.p, of.n);
    result[1] = download_floats(on.m, moments);
    result[2] = download_floats(on.v, moments);
}

/* If there are several parameters, the last is padding: its value and gradient are zero. It must
 * stay zero. */
static void compare_steps(moert_optimizer_kind optimizer) {
    const size_t lengths[] = {0, 1, 15, 17, 4097};
    for (size_t l = 0; l < MOERT_COUNT(lengths); l++) {
        const size_t n = lengths[l];
        float *parameter = random_floats(n, 1.0f, 500 + l), *got[3];
        float *gradient = random_floats(STEPS * n, 0.1f, 600 + l);
        double *want[3];
        for (size_t k = 0; k < 3; k++)
            want[k] = test_alloc(n * sizeof *want[k]);
        for (size_t s = 0; s < STEPS && n > 1; s++)
            parameter[n - 1] = gradient[s * n + n - 1] = 0.0f;
        for (size_t i = 0; i < n; i++) {
            want[0][i] = (double)parameter[i];
            for (size_t s = 0; s < STEPS; s++) {
                const moert_update update = step_of(optimizer, s + 1);
                reference_step(&update, (double)gradient[s * n + i], &want[0][i], &want[1][i],
                               &want[2][i]);
            }
        }
        run(optimizer, (range){n, 0, n, 0}, parameter, gradient, NULL, got);
        assert_close("state", got[0], want[0], n, 1e-6, 1e-6);
        /* SGD's momentum is a sum; AdamW's is a mean, about a tenth as large */
        assert_close("state", got[1], want[1], n, optimizer == MOERT_OPTIMIZER_SGD ? 1e-7 : 1e-8,
                     1e-6);
        assert_close("state", got[2], want[2], n, 1e-10, 1e-6);
        for (size_t k = 0; k < 3 && n > 1; k++)
            assert_true(got[k][n - 1] == 0.0f);
    }
}

EACH(test_steps_match_float64, compare_steps)

TEST(test_there_is_no_step_0) {
    const moert_elements all[] = {{unset_floats(1), MOERT_DTYPE_F32, 0},
                                  {unset_floats(1), MOERT_DTYPE_F32, 0}};
    ASSERT_FAILS(moert_update_weights(&settings, 1, all[0].buffer, all, all), MOERT_ERROR_USAGE,
                 "steps count from 1");
}

static void compare_ranges(moert_optimizer_kind optimizer) {
    enum { N = 9001 };
    const range ranges[] = {{N, 0, 4096, 0},  {N, 4096, N - 4096, 0}, {N, 4096, 4096, 128},
                            {N, 21, 1003, 7}, {N, N - 1, 1, 3},       {N, 8, 64, 4}};
    float *parameter = random_floats(N, 1.0f, 710), *gradient = random_floats(STEPS * N, 1.0f, 9);
    float *whole[3], *got[3];
    run(optimizer, (range){N, 0, N, 0}, parameter, gradient, NULL, whole);
    for (size_t i = 0; i < MOERT_COUNT(ranges); i++) {
        const size_t at = ranges[i].at, end = at + ranges[i].count, state_at = ranges[i].state_at;
        const float *zero = test_alloc(state_at * sizeof *zero);
        run(optimizer, ranges[i], parameter, gradient, NULL, got);
        assert_same_bits("before", got[0], parameter, at);
        assert_same_bits("range", got[0] + at, whole[0] + at, end - at);
        assert_same_bits("behind", got[0] + end, parameter + end, N - end);
        for (size_t k = 1; k < 3; k++) {
            assert_same_bits("moment before", got[k], zero, state_at);
            assert_same_bits("moment", got[k] + state_at, whole[k] + at, end - at);
        }
    }
}

EACH(test_a_range_has_the_bits_of_the_whole, compare_ranges)

static void compare_rounded(moert_optimizer_kind optimizer) {
    const size_t lengths[] = {1, 15, 33, 4096, 4097, 9000};
    for (size_t l = 0; l < MOERT_COUNT(lengths); l++) {
        const size_t n = lengths[l];
        float *parameter = random_floats(n, 1.0f, 800 + l), *got[3], *want[3];
        float *gradient = random_floats(STEPS * n, 1.0f, 900);
        gradient[n / 2] = NAN;
        moert_buffer *rounded = unset_bf16(n);
        run(optimizer, (range){n, 0, n, 0}, parameter, gradient, NULL, want);
        run(optimizer, (range){n, 0, n, 0}, parameter, gradient, rounded, got);
        assert_bf16("rounded parameter", rounded, got[0], n);
        for (size_t k = 0; k < 3; k++)
            assert_same_bits("state", got[k], want[k], n);
    }
}

EACH(test_rounded_parameters_are_the_cast_ones, compare_rounded)

/* ---- bf16 moments ---- */

static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

/* The random bits for element `place` of the part that has this key. */
static uint32_t random_bits(uint64_t key, uint64_t step, uint64_t place) {
    const moert_random of_step = moert_rng_block(step, 0, 0);
    const uint32_t low = (uint32_t)key ^ of_step.word[0],
                   high = (uint32_t)(key >> 32) ^ of_step.word[1];
    return mix(mix((uint32_t)place ^ low) + ((uint32_t)(place >> 32) ^ high));
}

static uint16_t round_up_or_down(float x, uint32_t random) {
    return (uint16_t)((moert_float_bits(x) + random) >> 16);
}

/* Takes a step of n elements with bf16 moments. The elements begin at place `first` of consecutive
 * parts of `part` elements each. Compares the results with a step on float32 moments of the same
 * values. */
static void check_bf16_step(moert_optimizer_kind optimizer, uint64_t step, size_t n, size_t part,
                            size_t first) {
    /* number of keys before the key of the first part */
    const size_t parts = (first + n - 1) / part + 1, skipped = 3;
    float *parameter = random_floats(n, 1.0f, 40 + step), *gradient = random_floats(n, 0.1f, 41);
    float *moments[2] = {random_floats(n, 0.1f, 42), random_floats(n, 0.1f, 43)};
    uint64_t *key = test_alloc((skipped + parts) * sizeof *key);
    for (size_t p = 0; p < skipped + parts; p++)
        key[p] = moert_rng_stream("layer") * (p + 1);
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < n; i++)
            moments[k][i] = round_to(MOERT_DTYPE_BF16, fabs((double)moments[k][i]));
    const weights whole = {upload_floats(parameter, n), upload_floats(moments[0], n),
                           upload_floats(moments[1], n)};
    const weights small = {upload_floats(parameter, n), upload_as(moments[0], n, MOERT_DTYPE_BF16),
                           upload_as(moments[1], n, MOERT_DTYPE_BF16)};
    moert_buffer *g = upload_floats(gradient, n);
    moert_update update = step_of(optimizer, step);
    take_step(&update, n, whole, g, MOERT_DTYPE_F32, 0);
    update.part = part;
    update.first = first;
    update.keys = upload(key, (skipped + parts) * sizeof *key);
    update.keys_at = skipped;
    take_step(&update, n, small, g, MOERT_DTYPE_BF16, 0);
    assert_same_bits_in("parameter", small.p, download_floats(whole.p, n), n);
    const float *want[] = {download_floats(whole.m, n), download_floats(whole.v, n)};
    const uint16_t *m = download(small.m, n * sizeof *m), *v = download(small.v, n * sizeof *v);
    for (size_t i = 0; i < n; i++) {
        const size_t place = first + i;
        const uint32_t random = random_bits(key[skipped + place / part], step, place % part);
        assert_int_equal(m[i], round_up_or_down(want[0][i], random & 0xFFFF));
        assert_int_equal(v[i], optimizer == MOERT_OPTIMIZER_SGD
                                   ? moert_float_bits(want[1][i]) >> 16 /* not touched */
                                   : round_up_or_down(want[1][i], random >> 16));
    }
}

static void compare_bf16(moert_optimizer_kind optimizer) {
    const struct {
        size_t n, part, first;
    } ranges[] = {{1, 1, 0},      {33, 33, 0},     {9000, 9000, 0}, {9000, 16384, 4096},
                  {4096, 512, 0}, {1003, 100, 42}, {5000, 7, 3},    {8192, 4096, 4096}};
    for (size_t i = 0; i < MOERT_COUNT(ranges); i++)
        for (uint64_t step = 1; step < 4; step++)
            check_bf16_step(optimizer, step, ranges[i].n, ranges[i].part, ranges[i].first);
}

EACH(test_bf16_moments_are_float32_ones_rounded_at_random, compare_bf16)

/* The mean over many elements with equal moments follows the float32 moment, although each step
 * changes the moment by less than half a unit in the last place of bf16. */
TEST(test_the_mean_of_bf16_moments_is_right) {
    enum { N = 65536, LATER = 64 };
    float *values = test_alloc(N * sizeof *values), *small = test_alloc(N * sizeof *small);
    for (size_t i = 0; i < N; i++)
        values[i] = 1.0f;
    const uint64_t key = moert_rng_stream("weight");
    const weights of = {upload_floats(small, N), upload(small, N * sizeof(uint16_t)),
                        upload(small, N * sizeof(uint16_t))};
    moert_buffer *g = upload_floats(values, N);
    double m = 0.0, v = 0.0, sum[2] = {0.0, 0.0};
    for (uint64_t step = 1; step <= LATER; step++) {
        moert_update update = step_of(MOERT_OPTIMIZER_ADAMW, step);
        update.beta1 = update.beta2 = 0.999;
        update.part = N;
        update.keys = upload(&key, sizeof key);
        take_step(&update, N, of, g, MOERT_DTYPE_BF16, 0);
        m += 0.001 * (0.5 - m);
        v += 0.001 * (0.25 - v);
    }
    for (size_t k = 0; k < 2; k++) {
        download_as(k == 0 ? of.m : of.v, values, N, MOERT_DTYPE_BF16);
        for (size_t i = 0; i < N; i++)
            sum[k] += (double)values[i];
    }
    assert_true(fabs(sum[0] / N / m - 1.0) < 2e-4);
    assert_true(fabs(sum[1] / N / v - 1.0) < 2e-4);
}

/* ---- weights of FP8 GEMMs ---- */

enum { WEIGHTS = 2, HEIGHT = 256, WIDTH = 384, ALL = WEIGHTS * HEIGHT * WIDTH };
enum { TILES_BYTES = ALL / (MOERT_FP8_BLOCK * MOERT_FP8_BLOCK) * sizeof(float) };

static moert_fp8_operands tiles_of(const moert_buffer *x) {
    return (moert_fp8_operands){.groups = {NULL, WEIGHTS, WEIGHTS * HEIGHT},
                                .columns = WIDTH,
                                .tiles = true,
                                .x = x,
                                .along = {unset_bytes(ALL), unset_bytes(TILES_BYTES)},
                                .down = {unset_bytes(ALL), unset_bytes(TILES_BYTES)}};
}

static void assert_same(const char *what, const moert_buffer *got, const moert_buffer *want,
                        size_t bytes) {
    assert_same_bytes(what, "bytes", download(got, bytes), download(want, bytes), bytes);
}

/* Two steps that also write FP8 operands have the bytes of plain steps and a quantizer. The parts
 * of a weight are its halves. */
static void compare_fp8_steps(moert_optimizer_kind optimizer, moert_dtype moments,
                              moert_dtype gradients) {
    static const uint64_t keys[] = {11, 12, 13, 14, 15};
    const size_t state = 4, bytes = (ALL + state) * (moert_dtype_bits(moments) / 8);
    const float *parameter = random_floats(ALL, 1.0f, 70), *zero = test_alloc(bytes);
    weights on[2];
    for (size_t i = 0; i < 2; i++)
        on[i] = (weights){upload_floats(parameter, ALL), upload(zero, bytes), upload(zero, bytes)};
    moert_fp8_operands want = tiles_of(on[0].p), got = tiles_of(on[1].p);
    for (uint64_t step = 1; step <= 2; step++) {
        const moert_buffer *g = upload_as(random_floats(ALL, 1.0f, step), ALL, gradients);
        moert_update update = step_of(optimizer, step);
        update.part = HEIGHT / 2 * WIDTH;
        update.keys = upload(keys, sizeof keys);
        update.keys_at = 1;
        for (size_t i = 0; i < 2; i++) {
            const moert_elements gradient = {(moert_buffer *)g, gradients, 0},
                                 all[] = {{on[i].m, moments, state}, {on[i].v, moments, state}};
            update.fp8 = i == 1 ? &got : NULL;
            ASSERT_OK(moert_update_weights(&update, ALL, on[i].p, &gradient, all));
        }
    }
    ASSERT_OK(moert_fp8_operands_run(&want));
    assert_same("parameter", on[1].p, on[0].p, ALL * sizeof(float));
    assert_same("first moment", on[1].m, on[0].m, bytes);
    assert_same("second moment", on[1].v, on[0].v, bytes);
    assert_same("along", got.along.q, want.along.q, ALL);
    assert_same("scales along", got.along.scale, want.along.scale, TILES_BYTES);
    assert_same("down", got.down.q, want.down.q, ALL);
    assert_same("scales down", got.down.scale, want.down.scale, TILES_BYTES);
}

static void compare_fp8(moert_optimizer_kind optimizer) {
    const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16};
    for (size_t i = 0; i < 4 && moert_by_form(test_device, 0, 1) == 1; i++)
        compare_fp8_steps(optimizer, types[i % 2], types[i / 2]);
}

EACH(test_fp8_operands_are_those_of_the_new_parameters, compare_fp8)

TEST(test_other_shapes_of_fp8_operands_are_refused) {
    const moert_elements all[] = {{unset_floats(ALL), MOERT_DTYPE_F32, 0},
                                  {unset_floats(ALL), MOERT_DTYPE_F32, 0}};
    const moert_fp8_operands fp8 = tiles_of(all[0].buffer);
    moert_update update = step_of(MOERT_OPTIMIZER_ADAMW, 1);
    update.fp8 = &fp8;
    ASSERT_FAILS(moert_update_weights(&update, ALL - 4, all[0].buffer, all, all),
                 MOERT_ERROR_UNSUPPORTED, "512 x 384 weights");
}

TESTS(open_test_device, close_test_device)
