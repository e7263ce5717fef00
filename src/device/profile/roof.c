/* Measures a device's peak rates. */
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"

enum {
    ROUNDS = 20000,              /* multiply-adds per accumulator, enough for a launch of
                                    milliseconds */
    BLOCK = 4096,                /* number of vectors that a work-group copies */
    GPU_ITEMS = 256,             /* work-items of a work-group */
    GROUPS_PER_UNIT = 4,         /* work-groups per compute unit in the kernel of multiply-adds */
    CPU_COPY_BYTES = 96 << 20,   /* bytes of each of two buffers on a CPU: larger than a core's
                                    caches */
    GPU_COPY_BYTES = 256 << 20,  /* bytes of each of two buffers on a GPU: larger than the GPU's
                                    caches */
    ENOUGH_NS = 4 * 1000 * 1000, /* a measurement has enough launches to take at least this time */
    TRIALS = 16,                 /* number of measurements; the shortest is used, since other
                                    programs may use the machine */
    SPEC_BYTES = 128,
};

/* A kernel and the parameters of its launches. */
typedef struct probe {
    moert_device *device;
    char spec[SPEC_BYTES];
    const char *kernel;
    size_t groups, count;
    const moert_argument *arguments; /* [count] */
} probe;

static size_t items_of(const moert_device *device) {
    return moert_device_describe(device)->is_cpu ? 1 : GPU_ITEMS;
}

static size_t lanes_of(const moert_device *device) {
    return moert_device_describe(device)->is_cpu ? 16 : 4;
}

/* *ns = the time of `count` launches. */
static moert_status time_launches(const probe *p, size_t count, uint64_t *ns) {
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(moert_launch(p->device, p->spec, p->kernel, (moert_grid){p->groups, 1, 1},
                               p->arguments, p->count));
    MOERT_TRY(moert_device_finish(p->device));
    *ns = moert_clock_ns() - start;
    return MOERT_OK;
}

/* *ns = the time of a launch in the fastest of TRIALS measurements. */
static moert_status time_best(probe *p, int chains, double *ns) {
    size_t count = 1;
    uint64_t taken;
    snprintf(p->spec, sizeof p->spec,
             "lib/roof -DCHAINS=%d -DROUNDS=%d -DBLOCK=%d -DLANES=%zu -DITEMS=%zu", chains, ROUNDS,
             BLOCK, lanes_of(p->device), items_of(p->device));
    MOERT_TRY(time_launches(p, 1, &taken)); /* compiles, and warms up the device */
    MOERT_TRY(time_launches(p, 1, &taken));
    for (; taken < ENOUGH_NS; count *= 2)
        MOERT_TRY(time_launches(p, 2 * count, &taken));
    *ns = (double)taken / (double)count;
    for (int trial = 1; trial < TRIALS; trial++) {
        MOERT_TRY(time_launches(p, count, &taken));
        if ((double)taken / (double)count < *ns)
            *ns = (double)taken / (double)count;
    }
    return MOERT_OK;
}

/* Measures multiply-adds with `chains` accumulators; raises *gflops if this rate is higher. */
static moert_status measure_chains(moert_device *device, int chains, const moert_buffer *result,
                                   double *gflops) {
    const size_t groups =
        GROUPS_PER_UNIT * moert_max(moert_device_describe(device)->compute_units, 1);
    const moert_argument arguments[] = {MOERT_ARG(result), MOERT_ARG(0.9999f), MOERT_ARG(0.5f)};
    probe fma = {device, "", "roof_fma", groups, MOERT_COUNT(arguments), arguments};
    double ns;
    MOERT_TRY(time_best(&fma, chains, &ns));
    const double flops =
        2.0 * chains * ROUNDS * (double)(groups * items_of(device) * lanes_of(device));
    *gflops = flops / ns > *gflops ? flops / ns : *gflops;
    return MOERT_OK;
}

static moert_status measure_copy(moert_device *device, double *gbps) {
    const size_t block_bytes = BLOCK * lanes_of(device) * sizeof(float);
    const size_t wanted = moert_device_describe(device)->is_cpu ? CPU_COPY_BYTES : GPU_COPY_BYTES;
    const size_t most = moert_min(moert_device_describe(device)->largest_bytes,
                                  moert_device_describe(device)->global_bytes / 8);
    const size_t groups = moert_max(moert_min(wanted, most) / block_bytes, 1);
    moert_buffer *source = NULL, *target = NULL;
    moert_status status;
    double ns;
    MOERT_TRY_OR(done, moert_buffer_create(device, groups * block_bytes, &source));
    MOERT_TRY_OR(done, moert_buffer_create(device, groups * block_bytes, &target));
    MOERT_TRY_OR(done, moert_buffer_clear(source, 0, groups * block_bytes)); /* allocates pages */
    const moert_argument arguments[] = {MOERT_ARG(source), MOERT_ARG(target)};
    probe copy = {device, "", "roof_copy", groups, MOERT_COUNT(arguments), arguments};
    MOERT_TRY_OR(done, time_best(&copy, 1, &ns));
    *gbps = 2.0 * (double)(groups * block_bytes) / ns;
done:
    MOERT_DESTROY(target, source);
    return status;
}

moert_status moert_roof_measure(moert_device *device, moert_roof *roof) {
    static const int chains[] = {6, 12};
    moert_roof made = {0};
    moert_buffer *result = NULL;
    moert_status status;
    MOERT_TRY(moert_buffer_create(device, sizeof(float), &result));
    for (size_t i = 0; i < MOERT_COUNT(chains); i++)
        MOERT_TRY_OR(done, measure_chains(device, chains[i], result, &made.gflops));
    MOERT_TRY_OR(done, measure_copy(device, &made.gbps));
    *roof = made;
done:
    moert_buffer_destroy(result);
    return status;
}
