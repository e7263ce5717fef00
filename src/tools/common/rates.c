/* Measures a device: GEMMs, copies, launches. */
#include "tools/common/rates.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "base/phase.h"
#include "device/profile/profile.h"
#include "tools/tune/gemm.h"

enum { SAMPLES = 5, LAUNCHES = 200, CPU_BYTES = 32 << 20, GPU_BYTES = 128 << 20 };
#define SAMPLE_S 0.02

/* Replaces *seconds by the maximum over all ranks. */
static moert_status slowest(moert_comm *comm, double *seconds) {
    double *all;
    MOERT_TRY(MOERT_NEW_ARRAY(&all, moert_comm_size(comm)));
    moert_status status = moert_comm_allgather(comm, seconds, sizeof *seconds, all);
    for (size_t r = 0; r < moert_comm_size(comm) && status == MOERT_OK; r++)
        *seconds = fmax(*seconds, all[r]);
    free(all);
    return status;
}

/* *seconds = mean time of a call. */
static moert_status time_calls(const moert_timed *t, size_t calls, double *seconds) {
    if (t->together != NULL)
        MOERT_TRY(moert_comm_barrier(t->together));
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < calls; i++)
        MOERT_TRY(t->run(t->what));
    MOERT_TRY(moert_device_finish(t->device));
    *seconds = (double)(moert_clock_ns() - start) * 1e-9 / (double)calls;
    return t->together != NULL ? slowest(t->together, seconds) : MOERT_OK;
}

moert_status moert_rates_time(const moert_timed *t, size_t calls, double *median) {
    double seconds = 0.0, samples[SAMPLES];
    MOERT_TRY(time_calls(t, 1, &seconds)); /* compiles */
    MOERT_TRY(time_calls(t, 1, &seconds));
    calls = moert_max(calls, (size_t)fmin(SAMPLE_S / seconds, 1e4));
    for (int i = 0; i < SAMPLES; i++)
        MOERT_TRY(time_calls(t, calls, &samples[i]));
    moert_sort_numbers(samples, SAMPLES);
    *median = samples[SAMPLES / 2];
    return MOERT_OK;
}

/* ---- GEMMs ---- */

moert_dtype moert_rates_type(const moert_device *device) {
    return moert_device_describe(device)->nvidia >= 80 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
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
    const moert_trial trial = moert_tune_gemm_trial(&gemm);
    const moert_timed t = {device, together, trial.run, trial.what};
    moert_status status = possible ? moert_rates_time(&t, 1, &seconds) : MOERT_OK;
    if (status == MOERT_OK && possible)
        *gflops = 1e-9 * flops / seconds;
    moert_tune_gemm_destroy(&gemm);
    return status;
}

/* ---- copies and launches ---- */

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
    moert_status status;
    double seconds;
    moert_phase_set(MOERT_PHASE_COPY_RATES);
    MOERT_TRY_OR(done, moert_alloc(&c.host, c.bytes, 1));
    MOERT_TRY_OR(done, moert_buffer_create(device, c.bytes, &c.buffer));
    MOERT_TRY_OR(done, moert_rates_time(&(moert_timed){device, NULL, upload, &c}, 1, &seconds));
    rates->upload_gbps = (double)c.bytes / seconds * 1e-9;
    MOERT_TRY_OR(done, moert_rates_time(&(moert_timed){device, NULL, download, &c}, 1, &seconds));
    rates->download_gbps = (double)c.bytes / seconds * 1e-9;
    MOERT_TRY_OR(
        done, moert_rates_time(&(moert_timed){device, NULL, clear_little, &c}, LAUNCHES, &seconds));
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
