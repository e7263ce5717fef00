/* Measures how fast the device multiplies bf16 values. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "device/buffer.h"
#include "device/device.h"
#include "gemm/gemm.h"

enum {
    CPU_SIDE = 1024, /* a GEMM of this size takes some ten milliseconds */
    GPU_SIDE = 8192, /* a GEMM of this size takes about two milliseconds on an H200 */
    TRIALS = 6,
};

typedef struct matrices {
    moert_buffer *ends, *values, *x, *y;
    moert_panels *weight;
} matrices;

/* Fills x and the weight, both [side,side], with normal random values, since GEMMs of zeros are
 * faster. */
static moert_status fill(moert_device *device, size_t side, matrices *m) {
    const moert_panels_shape shape = {1, side, side, MOERT_PANELS_FORWARD, MOERT_DTYPE_BF16};
    const size_t count = side * side;
    float *values;
    MOERT_TRY(moert_buffer_create(device, sizeof(uint32_t), &m->ends));
    MOERT_TRY(moert_buffer_write_ends(1, side, m->ends));
    MOERT_TRY(moert_buffer_create(device, count * sizeof(float), &m->values));
    MOERT_TRY(moert_buffer_create(device, count * sizeof(uint16_t), &m->x));
    MOERT_TRY(moert_buffer_create(device, count * sizeof(float), &m->y));
    MOERT_TRY(moert_alloc(&values, count, sizeof *values));
    moert_rng_normals(1, 0, 0, 1.0, values, count);
    const moert_status status = moert_buffer_write(m->values, 0, values, count * sizeof *values);
    free(values);
    MOERT_TRY(status);
    MOERT_TRY(moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                           count, m->values, m->x}));
    MOERT_TRY(moert_panels_create(device, &shape, &m->weight));
    return moert_panels_fill(m->weight, m->values);
}

moert_status moert_gemm_peak(moert_device *device, double *gflops) {
    const size_t side = moert_by_form(device, CPU_SIDE, GPU_SIDE);
    matrices m = {NULL};
    moert_status status;
    *gflops = 0.0;
    MOERT_TRY_OR(done, fill(device, side, &m));
    const moert_gemm gemm = {.groups = {m.ends, 1, side, .shared = true},
                             .n = side,
                             .k = side,
                             .x = {.buffer = m.x, .type = MOERT_DTYPE_BF16},
                             .weight = {.buffer = m.values},
                             .y = {.buffer = m.y},
                             .panels = m.weight};
    for (int trial = 0; trial < TRIALS; trial++) { /* the first trial compiles */
        const uint64_t start = moert_clock_ns();
        MOERT_TRY_OR(done, moert_gemm_run(&gemm));
        MOERT_TRY_OR(done, moert_device_finish(device));
        const double ns = (double)(moert_clock_ns() - start),
                     rate = 2.0 * (double)side * (double)side * (double)side / ns;
        *gflops = rate > *gflops ? rate : *gflops;
    }
done:
    moert_panels_destroy(m.weight);
    MOERT_DESTROY(m.ends, m.values, m.x, m.y);
    return status;
}
