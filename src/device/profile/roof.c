/* Measures what a device can do at best. Its launches have their own work-group sizes. */
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/profile/profile.h"

enum {
    ROUNDS = 20000,              /* of an accumulator: milliseconds */
    BLOCK = 4096,                /* vectors of a work-group of a copy */
    GPU_ITEMS = 256,             /* of a work-group */
    GROUPS_PER_UNIT = 4,         /* work-groups of the multiply-adds per compute unit */
    CPU_COPY_BYTES = 96 << 20,   /* of each of two buffers: more than a core's caches hold */
    GPU_COPY_BYTES = 256 << 20,  /* likewise */
    ENOUGH_NS = 4 * 1000 * 1000, /* that a measurement takes at least ... */
    TRIALS = 16,                 /* ... and how many there are, since others may use the machine */
    SPEC_BYTES = 128,
};

/* A kernel with its arguments set, and how it is launched. */
typedef struct probe {
    moert_device *device;
    const moert_kernel *kernel;
    size_t groups, items;
} probe;

static size_t items_of(const moert_device *device) {
    return device->info.is_cpu ? 1 : GPU_ITEMS;
}

static size_t lanes_of(const moert_device *device) {
    return device->info.is_cpu ? 16 : 4;
}

static moert_status find(moert_device *device, int chains, const char *name, size_t groups,
                         probe *found) {
    char spec[SPEC_BYTES];
    moert_kernel *kernel;
    const size_t items = items_of(device);
    snprintf(spec, sizeof spec,
             "lib/roof -DCHAINS=%d -DROUNDS=%d -DBLOCK=%d -DLANES=%zu -DITEMS=%zu", chains, ROUNDS,
             BLOCK, lanes_of(device), items);
    MOERT_TRY(moert_program_kernel(device, spec, name, &kernel));
    *found = (probe){device, kernel, groups, items};
    return MOERT_OK;
}

/* *ns = the time of `count` launches. */
static moert_status time_launches(const probe *p, size_t count, uint64_t *ns) {
    const size_t global = p->groups * p->items;
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < count; i++)
        MOERT_CL(p->device, clEnqueueNDRangeKernel(p->device->queue, p->kernel->handle, 1, NULL,
                                                   &global, &p->items, 0, NULL, NULL));
    MOERT_CL(p->device, clFinish(p->device->queue));
    *ns = moert_clock_ns() - start;
    return MOERT_OK;
}

/* *ns = the least time of a launch, from several runs of enough launches to tell. */
static moert_status time_best(const probe *p, double *ns) {
    size_t count = 1;
    uint64_t taken;
    MOERT_TRY(time_launches(p, 1, &taken)); /* makes the memory and wakes the device */
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

static moert_status set_buffer(const probe *p, cl_uint index, const moert_buffer *buffer) {
    MOERT_CL(p->device,
             clSetKernelArg(p->kernel->handle, index, sizeof buffer->memory, &buffer->memory));
    return MOERT_OK;
}

/* Multiply-adds with so many accumulators, if they are more than *gflops. */
static moert_status measure_chains(moert_device *device, int chains, const moert_buffer *result,
                                   double *gflops) {
    const float scale = 0.9999f, add = 0.5f;
    const size_t groups = GROUPS_PER_UNIT * moert_max(device->info.compute_units, 1);
    probe fma;
    double ns;
    MOERT_TRY(find(device, chains, "roof_fma", groups, &fma));
    MOERT_TRY(set_buffer(&fma, 0, result));
    MOERT_CL(device, clSetKernelArg(fma.kernel->handle, 1, sizeof scale, &scale));
    MOERT_CL(device, clSetKernelArg(fma.kernel->handle, 2, sizeof add, &add));
    MOERT_TRY(time_best(&fma, &ns));
    const double flops =
        2.0 * chains * ROUNDS * (double)(groups * items_of(device) * lanes_of(device));
    *gflops = flops / ns > *gflops ? flops / ns : *gflops;
    return MOERT_OK;
}

static moert_status measure_copy(moert_device *device, double *gbps) {
    const size_t block_bytes = BLOCK * lanes_of(device) * sizeof(float);
    const size_t wanted = device->info.is_cpu ? CPU_COPY_BYTES : GPU_COPY_BYTES;
    const size_t most = moert_min(device->info.largest_bytes, device->info.global_bytes / 8);
    const size_t groups = moert_max(moert_min(wanted, most) / block_bytes, 1);
    moert_buffer *source = NULL, *target = NULL;
    moert_status status;
    probe copy;
    double ns;
    MOERT_TRY_OR(done, moert_buffer_create(device, groups * block_bytes, &source));
    MOERT_TRY_OR(done, moert_buffer_create(device, groups * block_bytes, &target));
    MOERT_TRY_OR(done, moert_buffer_clear(source, 0, groups * block_bytes)); /* untouched pages */
    MOERT_TRY_OR(done, find(device, 1, "roof_copy", groups, &copy));
    MOERT_TRY_OR(done, set_buffer(&copy, 0, source));
    MOERT_TRY_OR(done, set_buffer(&copy, 1, target));
    MOERT_TRY_OR(done, time_best(&copy, &ns));
    *gbps = 2.0 * (double)(groups * block_bytes) / ns;
done:
    MOERT_DESTROY(target, source);
    return status;
}

moert_status moert_roof_measure(moert_device *device, moert_roof *roof) {
    static const int chains[] = {6, 12};
    moert_roof made = {0.0, 0.0};
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
