/* What a rank's device does in a second, measured in about one. */
#pragma once

#include "comm/comm.h"
#include "device/device.h"
#include "gemm/tuning/tuning.h"
#include "moert/formats.h"

/* X(FIELD, what a table shows, unit) */
#define MOERT_RATE_TABLE(X)                                                                        \
    X(gemm_gflops, "GEMM", "GFLOP/s")   /* a grouped product */                                    \
    X(copy_gbps, "copy", "GB/s")        /* of device memory, read and written bytes */             \
    X(upload_gbps, "to device", "GB/s") /* of host memory */                                       \
    X(download_gbps, "to host", "GB/s")                                                            \
    X(launch_us, "launch", "us") /* of a small kernel, of many in a row */

typedef struct moert_rates {
#define MOERT_RATE_FIELD(field, title, unit) double field;
    MOERT_RATE_TABLE(MOERT_RATE_FIELD)
#undef MOERT_RATE_FIELD
} moert_rates;

/* The type whose products are fastest here: BF16 on NVIDIA's tensor cores, else F32. */
moert_dtype moert_rates_type(const moert_device *device);

/* Blocks; not collective. Errors: ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_rates_measure(moert_device *device, moert_rates *rates);

/* What is timed: `run` enqueues it once. With `together` all its ranks measure at once, from a
 * barrier to the slowest one, and get the same: then collective, and a failure of one rank is not
 * known to the others. */
typedef struct moert_timed {
    moert_device *device;
    moert_comm *together; /* or NULL */
    moert_status (*run)(void *what);
    void *what;
} moert_timed;
/* *seconds of a call: the median of samples of at least `calls` calls in a row. Blocks. */
moert_status moert_rates_time(const moert_timed *timed, size_t calls, double *seconds);

/*
 * *gflops of products of `experts` groups of `rows` rows, forward, dgrad or wgrad; 0 where the
 * device has none of that kind. `together` as above. Blocks.
 */
typedef struct moert_rate_gemm {
    moert_tuned operation;
    moert_dtype type;
    size_t experts, rows, n, k;
} moert_rate_gemm;
moert_status moert_rates_gemm(moert_device *device, moert_comm *together,
                              const moert_rate_gemm *product, double *gflops);
