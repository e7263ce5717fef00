/* Measures rates of a device: GEMMs, copies, kernel launches. */
#include "tools/common/rates.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "base/phase.h"
#include "device/device.h"
#include "device/profile/profile.h"
#include "tools/tune/gemm.h"

enum { SAMPLES = 5, LAUNCHES = 200, CPU_BYTES = 32 << 20, GPU_BYTES = 128 << 20 };
#define SAMPLE_S 0.02

moert_status moert_rates_over_ranks(moert_comm *comm, double mine, moert_of_ranks *of) {
    const size_t ranks = moert_comm_size(comm);
    double *all;
    MOERT_TRY(MOERT_NEW_ARRAY(&all, ranks));
    const moert_status status = moert_comm_allgather(comm, &mine, sizeof mine, all);
    *of = (moert_of_ranks){0.0, all[0]};
    for (size_t r = 0; r < ranks; r++) {
        of->sum += all[r];
        of->largest = fmax(of->largest, all[r]);
    }
    free(all);
    return status;
}

double moert_rates_median(double *samples, size_t count) {
    moert_sort_numbers(samples, count);
    return 0.5 * (samples[(count - 1) / 2] + samples[count / 2]);
}

moert_status moert_rates_sample(const moert_timed *t, size_t calls, double *seconds) {
    moert_of_ranks of;
    if (t->together != NULL)
        MOERT_TRY(moert_comm_barrier(t->together));
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < calls; i++)
        MOERT_TRY(t->run(t->what));
    MOERT_TRY(moert_device_finish(t->device));
    *seconds = (double)(moert_clock_ns() - start) * 1e-9 / (double)calls;
    if (t->together == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_rates_over_ranks(t->together, *seconds, &of));
    *seconds = of.largest;
    return MOERT_OK;
}

moert_status moert_rates_time(const moert_timed *t, size_t calls, double *median) {
    const size_t count = t->samples > 0 ? t->samples : SAMPLES;
    const double sample_s = t->sample_s > 0.0 ? t->sample_s : SAMPLE_S;
    double seconds = 0.0, *samples;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&samples, count));
    MOERT_TRY_OR(done, moert_rates_sample(t, 1, &seconds)); /* compiles */
    MOERT_TRY_OR(done, moert_rates_sample(t, 1, &seconds));
    calls = moert_max(calls, (size_t)fmin(sample_s / seconds, 1e4));
    for (size_t i = 0; i < count; i++)
        MOERT_TRY_OR(done, moert_rates_sample(t, calls, &samples[i]));
    *median = moert_rates_median(samples, count);
done:
    free(samples);
    return status;
}

/* ---- GEMMs ---- */

moert_dtype moert_rates_type(const moert_device *device) {
    return moert_device_describe(device)->nvidia >= 80 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
}

static moert_status run_gemm(void *gemm) {
    return moert_gemm_run(gemm);
}

moert_status moert_rates_gemm(moert_device *device, moert_comm *together, const moert_rate_gemm *p,
                              double *gflops) {
    const moert_gemm_shape shape = {p->experts, p->rows, p->n, p->k, NULL};
    const double flops = 2.0 * (double)(p->experts * p->rows) * (double)p->n * (double)p->k;
    moert_tune_gemm gemm;
    bool possible;
    double seconds;
    moert_phase_set(MOERT_PHASE_GEMM_RATE);
    *gflops = 0.0;
    MOERT_TRY(moert_tune_gemm_create(device, p->operation, p->type, &shape, &gemm, &possible));
    const moert_timed t = {
        .device = device, .together = together, .run = run_gemm, .what = &gemm.gemm};
    moert_status status = possible ? moert_rates_time(&t, 1, &seconds) : MOERT_OK;
    if (status == MOERT_OK && possible)
        *gflops = 1e-9 * flops / seconds;
    moert_tune_gemm_destroy(&gemm);
    return status;
}

/* ---- copies and kernel launches ---- */

typedef struct copies {
    moert_buffer *buffer;
    void *host;
    size_t bytes;
} copies;

static moert_status upload(void *what) {
    const copies *c = what;
    return moert_buffer_write(c->buffer, 0, c->host, c->bytes);
}

static moert_status download(void *what) {
    const copies *c = what;
    return moert_buffer_read(c->buffer, 0, c->host, c->bytes);
}

static moert_status clear_little(void *what) {
    return moert_buffer_clear(((const copies *)what)->buffer, 0, sizeof(float));
}

static moert_status measure_copies(moert_device *device, moert_rates *rates) {
    const bool gpu = moert_device_describe(device)->is_gpu;
    copies c = {.bytes = gpu ? GPU_BYTES : CPU_BYTES};
    moert_timed t = {.device = device, .run = upload, .what = &c};
    moert_status status;
    double seconds;
    moert_phase_set(MOERT_PHASE_COPY_RATES);
    MOERT_TRY_OR(done, moert_alloc(&c.host, c.bytes, 1));
    MOERT_TRY_OR(done, moert_buffer_create(device, c.bytes, &c.buffer));
    MOERT_TRY_OR(done, moert_rates_time(&t, 1, &seconds));
    rates->upload_gbps = (double)c.bytes / seconds * 1e-9;
    t.run = download;
    MOERT_TRY_OR(done, moert_rates_time(&t, 1, &seconds));
    rates->download_gbps = (double)c.bytes / seconds * 1e-9;
    t.run = clear_little;
    MOERT_TRY_OR(done, moert_rates_time(&t, LAUNCHES, &seconds));
    rates->launch_us = seconds * 1e6;
done:
    moert_buffer_destroy(c.buffer);
    free(c.host);
    return status;
}

moert_status moert_rates_measure(moert_device *device, moert_rates *rates) {
    moert_roof roof;
    moert_rates made = {0};
    const bool gpu = moert_device_describe(device)->is_gpu;
    const size_t side = gpu ? 4096 : 512, rows = gpu ? 1024 : 128; /* about 1 ms of work */
    const moert_rate_gemm gemm = {
        MOERT_TUNED_FORWARD, moert_rates_type(device), 4, rows, side, side};
    MOERT_TRY(moert_rates_gemm(device, NULL, &gemm, &made.gemm_gflops));
    MOERT_TRY(measure_copies(device, &made));
    moert_phase_set(MOERT_PHASE_COPY_RATES);
    MOERT_TRY(moert_roof_measure(device, &roof));
    made.copy_gbps = roof.gbps;
    *rates = made;
    return MOERT_OK;
}
