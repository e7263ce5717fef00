/*
 * bench_memory: bandwidth of the memory-bound kernels, relative to the device's copy bandwidth;
 * each result is checked on samples.
 *
 * GB/s are the bytes that a kernel must move (bench/memory/memory.h; every operand once) divided by
 * the time of a call in a run of calls. Samples of a kernel alternate with samples of a copy
 * between two buffers, so that the kernel and the copy run at the same clocks. `share` is the
 * kernel's median rate divided by the copy's median rate.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "tools/common/rates.h"
#include "bench/common/report.h"
#include "bench/memory/memory.h"
#include "context/context.h"
#include "device/buffer.h"

enum { SAMPLES = 5, CHECKS = 64, COPY_BYTES = 256 << 20 };
#define SAMPLE_S 0.01

static bool small;
static size_t seed;
static const char *json_path;
static moert_option_list only;
static bench_sizes sizes;

static const moert_option options[] = {
    {"small", MOERT_OPTION_FLAG, &small, NULL, NULL,
     "small sizes for a test; the rates are meaningless"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of the data"},
    {"kernel", MOERT_OPTION_LIST, &only, NULL, "NAME...",
     "run only kernels whose name contains one of these words"},
    {"tokens", MOERT_OPTION_UINT, &sizes.tokens, "16384", "1..", "T"},
    {"hidden", MOERT_OPTION_UINT, &sizes.hidden, "2048", "128..", "H, a multiple of 128"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

static const char columns[] = "kernel -24s, bytes *f, - 10.1f MB, gbps 9.1f GB/s,"
                              " copy_gbps 9.1f copy, share 6.2f, wrong 6z";

typedef struct bench {
    bench_memory memory;
    const bench_case *at;
    moert_buffer *from, *to; /* of the copy */
    moert_buffer *scratch;
    bench_rows rows;
} bench;

/* ---- rates ---- */

static moert_status run_copy(void *context) {
    const bench *b = context;
    return moert_buffer_copy(b->from, 0, b->to, 0, moert_buffer_bytes(b->from));
}

static moert_status run_kernel(void *context) {
    const bench *b = context;
    return b->at->kernel->run(&b->memory);
}

static moert_status take_sample(bench *b, moert_status (*call)(void *), double bytes,
                                double *gbps) {
    const moert_timed timed = {.device = b->memory.device, .run = call, .what = b};
    double seconds;
    MOERT_TRY(moert_rates_sample(&timed, 1, &seconds));
    MOERT_TRY(moert_rates_sample(&timed, (size_t)(SAMPLE_S / seconds) + 1, &seconds));
    *gbps = bytes / seconds / 1e9;
    return MOERT_OK;
}

static moert_status count_wrong(const bench *b, size_t *wrong) {
    *wrong = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        bench_pair r = {0.0, 0.0};
        MOERT_TRY(b->at->kernel->check(&b->memory, moert_rng_uniform(seed, 2, i), &r));
        *wrong += !(fabs(r.got - r.want) <= 2e-5 * fabs(r.want) + 1e-6);
    }
    return MOERT_OK;
}

static moert_status run_case(bench *b, const bench_case *at) {
    const bench_kernel *kernel = at->kernel;
    const double copied = 2.0 * (double)moert_buffer_bytes(b->from);
    double rates[SAMPLES], copies[SAMPLES];
    size_t wrong;
    b->at = at;
    b->memory.of.how = at->how;
    const double bytes = kernel->bytes(&b->memory.of);
    if (kernel->begin != NULL)
        MOERT_TRY(kernel->begin(&b->memory));
    MOERT_TRY(kernel->run(&b->memory));
    MOERT_TRY(count_wrong(b, &wrong));
    for (size_t i = 0; i < SAMPLES; i++) {
        MOERT_TRY(take_sample(b, run_copy, copied, &copies[i]));
        MOERT_TRY(take_sample(b, run_kernel, bytes, &rates[i]));
    }
    const double gbps = moert_rates_median(rates, SAMPLES),
                 copy = moert_rates_median(copies, SAMPLES);
    return bench_rows_add(&b->rows, at->name, bytes, bytes / 1e6, gbps, copy, gbps / copy, wrong);
}

static bool is_wanted(const bench_case *of) {
    bool wanted = only.count == 0;
    for (size_t i = 0; i < only.count; i++)
        wanted |= strstr(of->name, only.words[i]) != NULL;
    return wanted;
}

static moert_status prepare(bench *b, moert_comm *comm) {
    const size_t copied = small ? COPY_BYTES / 256 : COPY_BYTES;
    MOERT_TRY(bench_memory_prepare(&b->memory, comm, seed));
    MOERT_TRY(bench_upload(b->memory.device, NULL, copied, &b->from));
    return moert_buffer_create(b->memory.device, copied, &b->to);
}

static moert_status run(moert_context *context) {
    static const bench_cases *const lists[] = {&bench_norm_cases, &bench_token_cases,
                                               &bench_route_cases, &bench_format_cases};
    static const bench_sizes test_sizes = {48, 256, 48, 4, 16, 16, 1000, 1500, {0}};
    sizes = (bench_sizes){sizes.tokens, sizes.hidden, 768, 8, 128, 2048, 32768, 151936, {0}};
    bench b = {
        .memory = {.device = moert_context_device(context), .of = small ? test_sizes : sizes}};
    b.memory.scratch = &b.scratch;
    const bench_sizes *s = &b.memory.of;
    moert_status status;
    b.rows = bench_rows_begin(
        context, columns,
        "%s\n# T %zu, H %zu, I %zu, K %zu, E %zu; cross-entropy: %zu tokens of V %zu, %zu",
        moert_device_name(b.memory.device), s->tokens, s->hidden, s->intermediate, s->topk,
        s->experts, s->predicted, s->vocabulary, s->large_vocabulary);
    MOERT_TRY_OR(release, prepare(&b, moert_context_comm(context)));
    for (size_t l = 0; l < MOERT_COUNT(lists); l++)
        for (size_t i = 0; i < lists[l]->count; i++)
            if (is_wanted(&lists[l]->at[i]))
                MOERT_TRY_OR(release, run_case(&b, &lists[l]->at[i]));
release:
    MOERT_DESTROY(b.from, b.to, b.scratch);
    bench_memory_release(&b.memory);
    free(only.words);
    return bench_rows_end(&b.rows, json_path, "samples of the results", status);
}

MOERT_PROGRAM_MAIN(
    "bench_memory [OPTION...]",
    "Times the memory-bound kernels, alternating with a copy, and checks each result. Exits "
    "with 1 if a result is wrong.",
    NULL)
