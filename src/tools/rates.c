/* Measures a device: products, copies, launches. */
#include "tools/rates.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/profile.h"
#include "tools/tune_product.h"

enum { SAMPLES = 5, LAUNCHES = 200, CPU_BYTES = 32 << 20, GPU_BYTES = 128 << 20 };
#define SAMPLE_S 0.02

/* What is timed: enqueues something once. */
typedef moert_status enqueue(void *what);

static moert_status run_times(moert_device *device, enqueue *run, void *what, size_t calls,
                              double *seconds) {
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < calls; i++)
        MOERT_TRY(run(what));
    MOERT_TRY(moert_device_finish(device));
    *seconds = (double)(moert_clock_ns() - start) * 1e-9 / (double)calls;
    return MOERT_OK;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a call, the median of samples of at least `calls` calls. */
static moert_status time_median(moert_device *device, enqueue *run, void *what, size_t calls,
                                double *median) {
    double seconds = 0.0, samples[SAMPLES];
    MOERT_TRY(run_times(device, run, what, 1, &seconds)); /* compiles */
    MOERT_TRY(run_times(device, run, what, 1, &seconds));
    calls = moert_max(calls, (size_t)fmin(SAMPLE_S / seconds, 1e4));
    for (int i = 0; i < SAMPLES; i++)
        MOERT_TRY(run_times(device, run, what, calls, &samples[i]));
    qsort(samples, SAMPLES, sizeof *samples, by_size);
    *median = samples[SAMPLES / 2];
    return MOERT_OK;
}

/* ---- products ---- */

moert_number moert_rates_type(const moert_device *device) {
    return moert_device_describe(device)->nvidia >= 80 ? MOERT_NUMBER_BF16 : MOERT_NUMBER_F32;
}

moert_status moert_rates_gemm(moert_device *device, moert_tuned operation, moert_number type,
                              size_t experts, size_t rows, size_t n, size_t k, double *gflops) {
    const moert_gemm_shape shape = {experts, rows, n, k, NULL};
    moert_tune_product product;
    bool possible;
    double seconds;
    moert_phase_set("GEMM rate");
    *gflops = 0.0;
    MOERT_TRY(moert_tune_product_create(device, operation, type, &shape, &product, &possible));
    const moert_trial trial = moert_tune_product_trial(&product);
    moert_status status =
        possible ? time_median(device, trial.run, trial.what, 1, &seconds) : MOERT_OK;
    if (status == MOERT_OK && possible)
        *gflops = 2e-9 * (double)(experts * rows) * (double)n * (double)k / seconds;
    moert_tune_product_destroy(&product);
    return status;
}

/* Of a size that fills the device for a millisecond. */
static moert_status measure_gemm(moert_device *device, double *gflops) {
    const bool gpu = moert_device_describe(device)->is_gpu;
    const size_t side = gpu ? 4096 : 512, rows = gpu ? 1024 : 128;
    return moert_rates_gemm(device, MOERT_TUNED_FORWARD, moert_rates_type(device), 4, rows, side,
                            side, gflops);
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
    moert_phase_set("copy rates");
    MOERT_TRY_OR(done, moert_alloc(&c.host, c.bytes, 1));
    MOERT_TRY_OR(done, moert_buffer_create(device, c.bytes, &c.buffer));
    MOERT_TRY_OR(done, time_median(device, upload, &c, 1, &seconds));
    rates->upload_gbps = (double)c.bytes / seconds * 1e-9;
    MOERT_TRY_OR(done, time_median(device, download, &c, 1, &seconds));
    rates->download_gbps = (double)c.bytes / seconds * 1e-9;
    MOERT_TRY_OR(done, time_median(device, clear_little, &c, LAUNCHES, &seconds));
    rates->launch_us = seconds * 1e6;
done:
    moert_buffer_destroy(c.buffer);
    free(c.host);
    return status;
}

moert_status moert_rates_measure(moert_device *device, moert_rates *rates) {
    moert_roof roof;
    moert_rates made = {0};
    MOERT_TRY(measure_gemm(device, &made.gemm_gflops));
    MOERT_TRY(measure_copies(device, &made));
    moert_phase_set("copy rates");
    MOERT_TRY(moert_roof_measure(device, &roof));
    made.copy_gbps = roof.gbps;
    *rates = made;
    return MOERT_OK;
}
