/*
 * Times the grouped GEMM in its three orientations on this process's device and checks sampled
 * elements against float64.
 *
 * FLOPs of each: 2 * rows * n * k, rows summed over the experts. `wrong` counts samples that are
 * off by more than 1e-5 of the sum of the terms' magnitudes. Times are from enqueue to finish, of
 * one call.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/memory.h"
#include "base/rng.h"
#include "ops/grouped.h"

enum { SAMPLES = 200, FORWARD = 0, DGRAD, WGRAD, OPERATIONS };

typedef struct settings {
    size_t experts, rows, n, k, repeat; /* rows per expert, on average */
    int skewed;
} settings;

typedef struct problem {
    const settings *set;
    uint32_t *ends;
    size_t rows;
    float *x, *weight, *y; /* inputs on the host */
    moert_gemm gemm;
    moert_buffer *ends_buffer, *x_buffer, *weight_buffer, *y_buffer; /* inputs */
    moert_buffer *x_out, *weight_out, *y_out;                        /* results */
} problem;

static moert_status fill(moert_device *device, size_t count, uint64_t stream, float **host,
                         moert_buffer **input, moert_buffer **output) {
    MOERT_TRY(MOERT_NEW_ARRAY(host, count));
    for (size_t i = 0; i < count; i++)
        (*host)[i] = 2.0f * (float)moert_rng_uniform(1, stream, i) - 1.0f;
    MOERT_TRY(moert_buffer_create(device, count * sizeof(float), input));
    MOERT_TRY(moert_buffer_create(device, count * sizeof(float), output));
    MOERT_TRY(moert_buffer_clear(*output, 0, count * sizeof(float)));
    return moert_buffer_write(*input, 0, *host, count * sizeof(float));
}

/* Skewed: 0.25 to 1.75 times the average, and every fifth expert without rows. */
static size_t rows_of(const settings *set, size_t e) {
    if (!set->skewed)
        return set->rows;
    return e % 5 == 4 ? 0 : (size_t)((double)set->rows * (0.25 + 1.5 * moert_rng_uniform(2, 0, e)));
}

static moert_status prepare(moert_device *device, const settings *set, problem *p) {
    *p = (problem){.set = set};
    MOERT_TRY(MOERT_NEW_ARRAY(&p->ends, set->experts));
    for (size_t e = 0; e < set->experts; e++)
        p->ends[e] = (uint32_t)(p->rows += rows_of(set, e));
    MOERT_TRY(moert_buffer_create(device, set->experts * 4, &p->ends_buffer));
    MOERT_TRY(moert_buffer_write(p->ends_buffer, 0, p->ends, set->experts * 4));
    MOERT_TRY(fill(device, p->rows * set->k, 1, &p->x, &p->x_buffer, &p->x_out));
    MOERT_TRY(fill(device, p->rows * set->n, 2, &p->y, &p->y_buffer, &p->y_out));
    MOERT_TRY(fill(device, set->experts * set->n * set->k, 3, &p->weight, &p->weight_buffer,
                   &p->weight_out));
    p->gemm = (moert_gemm){.groups = {p->ends_buffer, set->experts, p->rows},
                           .n = set->n,
                           .k = set->k,
                           .x = p->x_buffer,
                           .weight = p->weight_buffer,
                           .y = p->y_buffer};
    return MOERT_OK;
}

static void release(problem *p) {
    moert_buffer *buffers[] = {p->ends_buffer, p->x_buffer,   p->weight_buffer, p->y_buffer,
                               p->x_out,       p->weight_out, p->y_out};
    for (size_t i = 0; i < 7; i++)
        moert_buffer_destroy(buffers[i]);
    free(p->ends);
    free(p->x);
    free(p->weight);
    free(p->y);
}

/* One sampled element in float64: its place in the result, its value and the magnitude of its
 * terms. */
typedef struct sample {
    size_t at;
    double value, magnitude;
} sample;

static sample take_sample(const problem *p, int op, uint64_t number) {
    const size_t N = p->set->n, K = p->set->k;
    const size_t n = (size_t)(moert_rng_uniform(3, 1, number) * (double)N);
    const size_t k = (size_t)(moert_rng_uniform(3, 2, number) * (double)K);
    const size_t m = (size_t)(moert_rng_uniform(3, 3, number) * (double)p->rows);
    size_t e = 0, first, count;
    while (p->ends[e] <= m)
        e++;
    const float *w = p->weight + e * N * K;
    first = op == WGRAD && e > 0 ? p->ends[e - 1] : 0;
    count = op == FORWARD ? K : op == DGRAD ? N : p->ends[e] - first;
    sample s = {.at = op == FORWARD ? m * N + n : op == DGRAD ? m * K + k : (e * N + n) * K + k};
    for (size_t i = first; i < first + count; i++) {
        double term = op == FORWARD ? (double)p->x[m * K + i] * (double)w[n * K + i]
                      : op == DGRAD ? (double)p->y[m * N + i] * (double)w[i * K + k]
                                    : (double)p->y[i * N + n] * (double)p->x[i * K + k];
        s.value += term;
        s.magnitude += fabs(term);
    }
    return s;
}

static moert_status count_wrong(const problem *p, int op, const moert_buffer *result,
                                size_t *wrong) {
    *wrong = 0;
    for (uint64_t i = 0; i < SAMPLES && p->rows > 0; i++) {
        float got;
        sample s = take_sample(p, op, i);
        MOERT_TRY(moert_buffer_read(result, s.at * sizeof got, &got, sizeof got));
        *wrong += !(fabs((double)got - s.value) <= 1e-5 * s.magnitude);
    }
    return MOERT_OK;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static moert_status time_operation(moert_device *device, problem *p, int op) {
    static const char *const names[] = {"forward", "dgrad", "wgrad"};
    static moert_status (*const calls[])(const moert_gemm *) = {moert_gemm_forward,
                                                                moert_gemm_dgrad, moert_gemm_wgrad};
    const settings *set = p->set;
    moert_gemm gemm = p->gemm;
    moert_buffer **result = op == FORWARD ? &gemm.y : op == DGRAD ? &gemm.x : &gemm.weight;
    *result = op == FORWARD ? p->y_out : op == DGRAD ? p->x_out : p->weight_out;
    double *ms;
    size_t wrong;
    MOERT_TRY(calls[op](&gemm)); /* builds the kernel */
    MOERT_TRY(moert_device_finish(device));
    MOERT_TRY(count_wrong(p, op, *result, &wrong));
    MOERT_TRY(MOERT_NEW_ARRAY(&ms, set->repeat));
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < set->repeat; i++) {
        const uint64_t start = moert_clock_ns();
        MOERT_TRY_OR(free_times, calls[op](&gemm));
        MOERT_TRY_OR(free_times, moert_device_finish(device));
        ms[i] = (double)(moert_clock_ns() - start) * 1e-6;
    }
    qsort(ms, set->repeat, sizeof *ms, ascending);
    const double median = ms[set->repeat / 2], p99 = ms[(set->repeat - 1) * 99 / 100];
    const double flops = 2.0 * (double)p->rows * (double)set->n * (double)set->k;
    printf("%-8s %7zu %7zu %6zu %6zu %9.3f %9.3f %9.3f %9.1f %6zu\n", names[op], set->experts,
           p->rows, set->n, set->k, ms[0], median, p99, flops / median * 1e-6, wrong);
    fflush(stdout);
free_times:
    free(ms);
    return status;
}

static moert_status bench(moert_device *device, const settings *set) {
    problem p;
    moert_status status;
    MOERT_TRY_OR(release, prepare(device, set, &p));
    for (int op = 0; op < OPERATIONS; op++)
        MOERT_TRY_OR(release, time_operation(device, &p, op));
release:
    release(&p);
    return status;
}

static int parse(int count, char **words, settings *set) {
    static const struct option options[] = {
        {"experts", required_argument, 0, 'e'}, {"rows", required_argument, 0, 'm'},
        {"n", required_argument, 0, 'n'},       {"k", required_argument, 0, 'k'},
        {"repeat", required_argument, 0, 'r'},  {"skewed", no_argument, 0, 's'},
        {"help", no_argument, 0, 'h'},          {0, 0, 0, 0}};
    for (int key; (key = getopt_long(count, words, "", options, NULL)) != -1;) {
        const size_t value = optarg != NULL ? strtoull(optarg, NULL, 10) : 1;
        if (key == 's')
            set->skewed = 1;
        else if (key == 'h' || key == '?' || value == 0)
            return 0;
        else
            *(key == 'e'   ? &set->experts
              : key == 'm' ? &set->rows
              : key == 'n' ? &set->n
              : key == 'k' ? &set->k
                           : &set->repeat) = value;
    }
    return optind == count;
}

int main(int count, char **words) {
    settings set = {.repeat = 20};
    if (!parse(count, words, &set)) {
        fprintf(stderr,
                "bench_gemm [--experts E --rows M --n N --k K] [--skewed] [--repeat COUNT]\n"
                "  M rows per expert on average; without a shape a list of them is run\n");
        return 1;
    }
    static const size_t shapes[][4] = {{8, 32, 1408, 512},   {8, 128, 1408, 512},
                                       {8, 128, 512, 512},   {4, 128, 1408, 1024},
                                       {2, 512, 1408, 1024}, {1, 1024, 1024, 1024}};
    moert_device *device;
    moert_status status = moert_device_open(moert_config_get()->device, "", 0, &device);
    if (status == MOERT_OK) {
        printf("# moert %s, bench_gemm, %s, %u compute units, backend %s, float32, repeat %zu%s\n",
               MOERT_VERSION, moert_device_name(device),
               moert_device_describe(device)->compute_units, moert_backend_name(), set.repeat,
               set.skewed ? ", skewed" : "");
        printf("#%-7s %7s %7s %6s %6s %9s %9s %9s %9s %6s\n", "op", "experts", "rows", "n", "k",
               "min ms", "median ms", "p99 ms", "GFLOP/s", "wrong");
        const int listed = set.experts == 0;
        for (size_t i = 0; i < (listed ? 6 : 1) && status == MOERT_OK; i++) {
            if (listed)
                set = (settings){shapes[i][0], shapes[i][1], shapes[i][2],
                                 shapes[i][3], set.repeat,   set.skewed};
            status = bench(device, &set);
        }
        moert_device_close(device);
    }
    if (status != MOERT_OK)
        fprintf(stderr, "bench_gemm: %s\n", moert_last_error());
    return status != MOERT_OK;
}
