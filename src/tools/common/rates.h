/* Rates of a rank's device, measured in about one second. */
#pragma once

#include "comm/comm.h"
#include "gemm/tuning/tuning.h"
#include "moert/device.h"
#include "moert/formats.h"

/* X(FIELD, column title, unit) */
#define MOERT_RATE_TABLE(X)                                                                        \
    X(gemm_gflops, "GEMM", "GFLOP/s")   /* a grouped GEMM of moert_rates_type() */                 \
    X(copy_gbps, "copy", "GB/s")        /* copies in device memory, bytes read plus written */     \
    X(upload_gbps, "to device", "GB/s") /* copies from host memory */                              \
    X(download_gbps, "to host", "GB/s")                                                            \
    X(launch_us, "launch", "us") /* launch of a small kernel, the mean of many in a row */

typedef struct moert_rates {
#define MOERT_RATE_FIELD(field, title, unit) double field;
    MOERT_RATE_TABLE(MOERT_RATE_FIELD)
#undef MOERT_RATE_FIELD
} moert_rates;

/* The dtype with the fastest GEMM: BF16 on NVIDIA GPUs with tensor cores (sm_80 and later), else
 * F32. */
moert_dtype moert_rates_type(const moert_device *device);

/* Measures all rates of a device. Blocks; not collective. Errors: ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_rates_measure(moert_device *device, moert_rates *rates);

/* The sum and the largest of the ranks' values. */
typedef struct moert_of_ranks {
    double sum, largest;
} moert_of_ranks;
/* Finds the sum and the largest of the ranks' values `mine`. Collective. */
moert_status moert_rates_over_ranks(moert_comm *comm, double mine, moert_of_ranks *of);

/* Work whose time is measured. If the communicator `together` is set, all its ranks measure at
 * once: a sample begins at a barrier and takes the time of the slowest rank. The measuring function
 * is then collective, but returns only this rank's status. */
typedef struct moert_timed {
    moert_device *device;
    moert_comm *together;            /* or NULL */
    moert_status (*run)(void *what); /* enqueues the work once */
    void *what;                      /* argument of run() */
    size_t samples;                  /* number of samples that moert_rates_time takes; 0 = 5 */
    double sample_s;                 /* minimum duration of a sample in seconds; 0 = 0.02 */
} moert_timed;
/* Takes one sample: *seconds = the mean time of one of `calls` calls in a row. Blocks. */
moert_status moert_rates_sample(const moert_timed *timed, size_t calls, double *seconds);
/* Sorts the samples and returns their median. */
double moert_rates_median(double *samples, size_t count);
/* *seconds = the time of one call: the median of several samples, each of at least `calls` calls in
 * a row. Blocks. */
moert_status moert_rates_time(const moert_timed *timed, size_t calls, double *seconds);

/*
 * Measures the *gflops of a grouped GEMM of `experts` groups of `rows` rows; 0 if the device does
 * not have this operation. `together` is as in moert_timed. Blocks.
 */
typedef struct moert_rate_gemm {
    moert_tuned operation;
    moert_dtype type;
    size_t experts, rows, n, k;
} moert_rate_gemm;
moert_status moert_rates_gemm(moert_device *device, moert_comm *together,
                              const moert_rate_gemm *gemm, double *gflops);
