/* Problems of bench_gemm: data, calls, and the check against float64. */
#include "bench/gemm/gemm.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "bench/common/pattern.h"

enum { SAMPLES = 200, ALIGNMENT = 4096, PERIOD = 5, WITHOUT_ROWS = 1 };
enum { STREAM_ROWS, STREAM_X, STREAM_Y, STREAM_WEIGHT, STREAM_SAMPLES };

const char *bench_op_name(bench_op op) {
#define BENCH_OP_TEXT(name, text) text,
    static const char *const names[] = {BENCH_OP_TABLE(BENCH_OP_TEXT)};
#undef BENCH_OP_TEXT
    return names[op];
}

/* The relative number of rows of expert e. */
static double weight_of(const bench_problem *p, uint64_t seed, size_t e) {
    if (!p->ragged)
        return 1.0;
    return e % PERIOD == WITHOUT_ROWS ? 0.0 : 0.25 + 1.5 * moert_rng_uniform(seed, STREAM_ROWS, e);
}

static moert_status divide_rows(bench_problem *p, uint64_t seed) {
    const size_t experts = p->shape.experts;
    double all = 0.0, before = 0.0;
    MOERT_TRY(MOERT_NEW_ARRAY(&p->ends, experts));
    p->rows = experts * p->shape.rows;
    for (size_t e = 0; e < experts; e++)
        all += weight_of(p, seed, e);
    for (size_t e = 0; e < experts; e++) {
        before += weight_of(p, seed, e);
        p->ends[e] = (uint32_t)lround((double)p->rows * before / all);
    }
    return MOERT_OK;
}

static moert_status fill(uint64_t seed, uint64_t stream, size_t count, float **values) {
    const size_t bytes = moert_round_up(count * sizeof(float), ALIGNMENT);
    *values = aligned_alloc(ALIGNMENT, bytes);
    if (*values == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for %zu bytes", bytes);
    for (size_t i = 0; i < count; i += 4) {
        const moert_random random = moert_rng_block(seed, stream, i / 4);
        for (size_t j = 0; j < 4 && i + j < count; j++)
            (*values)[i + j] = (float)((int32_t)random.word[j] >> 8) * 0x1p-23f;
    }
    return MOERT_OK;
}

/* Uploads values as float32 or rounded to bf16. */
static moert_status upload(moert_device *device, moert_dtype type, const float *values,
                           size_t count, moert_buffer **buffer) {
    if (type == MOERT_DTYPE_F32)
        return bench_upload(device, values, count * sizeof(float), buffer);
    uint16_t *rounded_values;
    MOERT_TRY(MOERT_NEW_ARRAY(&rounded_values, count));
    for (size_t i = 0; i < count; i++)
        rounded_values[i] = (uint16_t)moert_dtype_encode(type, values[i]);
    const moert_status status =
        bench_upload(device, rounded_values, count * sizeof *rounded_values, buffer);
    free(rounded_values);
    return status;
}

moert_status bench_problem_create(moert_device *device, const bench_shape *shape, moert_dtype type,
                                  bool ragged, uint64_t seed, bench_problem **problem) {
    moert_status status;
    bench_problem *p;
    MOERT_TRY(MOERT_NEW(&p));
    *p = (bench_problem){.shape = *shape, .type = type, .ragged = ragged};
    MOERT_TRY_OR(fail, divide_rows(p, seed));
    const size_t xs = p->rows * shape->k, ys = p->rows * shape->n;
    const size_t weights = shape->experts * shape->n * shape->k;
    MOERT_TRY_OR(fail, fill(seed, STREAM_X, xs, &p->x));
    MOERT_TRY_OR(fail, fill(seed, STREAM_Y, ys, &p->y));
    MOERT_TRY_OR(fail, fill(seed, STREAM_WEIGHT, weights, &p->weight));
    MOERT_TRY_OR(fail, bench_upload(device, p->ends, shape->experts * 4, &p->ends_buffer));
    MOERT_TRY_OR(fail, upload(device, type, p->x, xs, &p->x_buffer));
    MOERT_TRY_OR(fail, upload(device, type, p->y, ys, &p->y_buffer));
    MOERT_TRY_OR(fail, upload(device, MOERT_DTYPE_F32, p->weight, weights, &p->weight_buffer));
    *problem = p;
    return MOERT_OK;
fail:
    bench_problem_destroy(p);
    return status;
}

void bench_problem_destroy(bench_problem *p) {
    if (p == NULL)
        return;
    MOERT_DESTROY(p->ends_buffer, p->x_buffer, p->y_buffer, p->weight_buffer);
    MOERT_FREE(p->ends, p->x, p->y, p->weight, p);
}

double bench_problem_flops(const bench_problem *p) {
    return 2.0 * (double)p->rows * (double)p->shape.n * (double)p->shape.k;
}

size_t bench_result_count(const bench_problem *p, bench_op op) {
    const bench_shape *s = &p->shape;
    switch (op) {
    case BENCH_GLU:
        return p->rows * (s->n / 2);
    case BENCH_DGRAD:
        return p->rows * s->k;
    case BENCH_WGRAD:
        return s->experts * s->n * s->k;
    default:
        return p->rows * s->n;
    }
}

moert_status bench_run_create(const bench_problem *p, bench_op op, bool prepacked, bench_run *run) {
    static const moert_gemm_kind kinds[] = {[BENCH_FPROP] = MOERT_GEMM_FORWARD,
                                            [BENCH_GLU] = MOERT_GEMM_FORWARD,
                                            [BENCH_DGRAD] = MOERT_GEMM_DGRAD,
                                            [BENCH_WGRAD] = MOERT_GEMM_WGRAD};
    moert_device *device = moert_buffer_device(p->x_buffer);
    const size_t bytes = bench_result_count(p, op) * sizeof(float);
    moert_status status;
    *run = (bench_run){.problem = p, .op = op};
    MOERT_TRY_OR(fail, bench_upload(device, NULL, bytes, &run->result));
    if (op == BENCH_GLU)
        MOERT_TRY_OR(
            fail, moert_buffer_create(device, p->rows * p->shape.n * sizeof(float), &run->between));
    run->gemm =
        (moert_gemm){.groups = {p->ends_buffer, p->shape.experts, p->rows},
                     .n = p->shape.n,
                     .k = p->shape.k,
                     .x = {.buffer = op == BENCH_DGRAD ? run->result : p->x_buffer},
                     .weight = {.buffer = op == BENCH_WGRAD ? run->result : p->weight_buffer},
                     .y = {.buffer = op == BENCH_FPROP ? run->result
                                     : op == BENCH_GLU ? run->between
                                                       : p->y_buffer},
                     .glu = {.gated = op == BENCH_GLU ? MOERT_GATED : MOERT_UNGATED,
                             .form = MOERT_GLU_SWIGLU,
                             .h = run->result}};
    moert_gemm_set(&run->gemm, kinds[op], p->type);
    const moert_prepacked_shape shape = {p->shape.experts, p->shape.n, p->shape.k,
                                         moert_prepacked_use_of(&run->gemm), p->type};
    if (prepacked && op != BENCH_WGRAD)
        MOERT_TRY_OR(fail, moert_prepacked_create(device, &shape, &run->prepacked));
    if (run->prepacked != NULL)
        MOERT_TRY_OR(fail, moert_prepacked_fill(run->prepacked, p->weight_buffer));
    run->gemm.prepacked = run->prepacked;
    return MOERT_OK;
fail:
    bench_run_destroy(run);
    return status;
}

void bench_run_destroy(bench_run *run) {
    MOERT_DESTROY(run->result, run->between);
    moert_prepacked_destroy(run->prepacked);
    *run = (bench_run){0};
}

/* A float64 sum, and the sum of its summands' magnitudes. */
typedef struct sum {
    double value, magnitude;
} sum;

static double rounded(const bench_problem *p, float value) {
    return p->type == MOERT_DTYPE_F32
               ? (double)value
               : (double)moert_dtype_decode(p->type, moert_dtype_encode(p->type, value));
}

/* sum_i a[i * a_step] b[i * b_step], i < count. */
static sum dot(const bench_problem *p, const float *a, size_t a_step, const float *b, size_t b_step,
               size_t count) {
    sum s = {0.0, 0.0};
    for (size_t i = 0; i < count; i++) {
        const double term = rounded(p, a[i * a_step]) * rounded(p, b[i * b_step]);
        s.value += term;
        s.magnitude += fabs(term);
    }
    return s;
}

static sum gated(sum gate, sum up) {
    const double sigmoid = 1.0 / (1.0 + exp(-gate.value)), silu = gate.value * sigmoid;
    const double slope = sigmoid + silu * (1.0 - sigmoid);
    return (sum){silu * up.value, fabs(slope * up.value) * gate.magnitude +
                                      fabs(silu) * up.magnitude + fabs(silu * up.value)};
}

/* The expected value of the result's element with the indices m, n, k, as far as the result has
 * these dimensions. *at = its offset in the result. */
static sum element(const bench_problem *p, bench_op op, size_t m, size_t n, size_t k, size_t *at) {
    const size_t N = p->shape.n, K = p->shape.k, half = N / 2;
    size_t e = 0;
    while (p->ends[e] <= m)
        e++;
    const size_t first = e > 0 ? p->ends[e - 1] : 0;
    const float *x = p->x + m * K, *y = p->y + m * N, *w = p->weight + e * N * K;
    switch (op) {
    case BENCH_GLU:
        *at = m * half + n % half;
        return gated(dot(p, x, 1, w + n % half * K, 1, K),
                     dot(p, x, 1, w + (half + n % half) * K, 1, K));
    case BENCH_DGRAD:
        *at = m * K + k;
        return dot(p, y, 1, w + k, K, N);
    case BENCH_WGRAD:
        *at = (e * N + n) * K + k;
        return dot(p, p->y + first * N + n, N, p->x + first * K + k, K, p->ends[e] - first);
    default:
        *at = m * N + n;
        return dot(p, x, 1, w + n * K, 1, K);
    }
}

moert_status bench_count_wrong(const bench_problem *p, bench_op op, const moert_buffer *buffer,
                               const float *memory, size_t *wrong) {
    const size_t limits[] = {p->rows, p->shape.n, p->shape.k};
    size_t index[3], at, count = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        for (uint64_t d = 0; d < 3; d++)
            index[d] = (size_t)(moert_rng_uniform(STREAM_SAMPLES, d, i) * (double)limits[d]);
        const sum expected = element(p, op, index[0], index[1], index[2], &at);
        float got;
        if (buffer != NULL)
            MOERT_TRY(moert_buffer_read(buffer, at * sizeof got, &got, sizeof got));
        else
            got = memory[at];
        count += !(fabs((double)got - expected.value) <= 1e-5 * expected.magnitude);
    }
    *wrong = count;
    return MOERT_OK;
}
