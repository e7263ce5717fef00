/* Measures GEMMs, copies, engines and links. */
#include "bench/predict/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "bench/common/pattern.h"
#include "bench/common/report.h"
#include "bench/common/tokens.h"
#include "device/buffer.h"
#include "device/device.h"
#include "exchange/exchange.h"
#include "layer/operand.h"
#include "tools/common/rates.h"
#include "tools/tune/gemm.h"

enum { COPY_BYTES = 64 << 20, COPIES = 5, EXCHANGES = 9, FEW_TOKENS = 16, MANY_TOKENS = 1024 };

/* ---- GEMMs ---- */

static const size_t row_counts[] = {8, 32, 128, 512}; /* rows per group */
enum { ROW_COUNTS = MOERT_COUNT(row_counts) };

static moert_dtype type_of(const bench_work *w) {
    return strcmp(w->type, "bf16") == 0 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
}

typedef struct rated {
    const char *op;
    moert_tuned prepacked, plain;
} rated;

/* Adds rates of an operation to the machine. All ranks measure at the same time, as in a layer.
 * Collective. */
static moert_status add_rates(moert_context *context, const bench_work *w, const rated *of,
                              size_t n, size_t k, bench_machine *m) {
    moert_device *device = moert_context_device(context);
    moert_comm *world = moert_context_comm(context);
    const moert_dtype type = type_of(w);
    const size_t experts = moert_ceil_div(w->experts, w->ep);
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        bench_gemm_rate rate = {.n = n, .k = k, .rows = (double)row_counts[i]};
        snprintf(rate.op, sizeof rate.op, "%s", of->op);
        snprintf(rate.type, sizeof rate.type, "%s", w->type);
        moert_rate_gemm gemm = {of->prepacked, type, experts, row_counts[i], n, k};
        MOERT_TRY(moert_rates_gemm(device, world, &gemm, &rate.gflops));
        gemm.operation = of->plain;
        if (rate.gflops == 0.0) /* this device does not prepack weights */
            MOERT_TRY(moert_rates_gemm(device, world, &gemm, &rate.gflops));
        MOERT_TRY(bench_machine_add(m, &rate));
    }
    return MOERT_OK;
}

static moert_status run_fused(void *gemm) {
    return moert_gemm_run(gemm);
}

/* Times the GEMM of gate and up with the GLU as its epilogue, as in a layer. Uses prepacked weights
 * if the device supports them. */
static moert_status time_fused(moert_context *context, const moert_tune_gemm *p, double *seconds) {
    moert_device *device = moert_context_device(context);
    moert_gemm gemm = p->gemm;
    const size_t groups = gemm.groups.count, rows = gemm.groups.rows;
    moert_panels *panels = NULL;
    gemm.glu = (moert_glu){.gated = MOERT_GATED, .form = MOERT_GLU_SWIGLU, .type = p->key.type};
    const moert_panels_shape shape = {groups, gemm.n, gemm.k, moert_panels_use_of(&gemm),
                                      p->key.type};
    moert_status status =
        moert_buffer_create(device, rows * gemm.n / 2 * sizeof(float), &gemm.glu.h);
    if (status == MOERT_OK)
        status = moert_panels_create(device, &shape, &panels);
    if (status == MOERT_OK && panels != NULL)
        status = moert_panels_fill(panels, gemm.weight.buffer);
    gemm.panels = panels;
    gemm.y.type = moert_operand_between(device, p->key.type, groups, gemm.k, gemm.n / 2);
    MOERT_TRY_OR(done, moert_comm_agree(moert_context_comm(context), status));
    const moert_timed timed = {
        .device = device, .together = moert_context_comm(context), .run = run_fused, .what = &gemm};
    MOERT_TRY_OR(done, moert_rates_time(&timed, 1, seconds));
done:
    moert_panels_destroy(panels);
    moert_buffer_destroy(gemm.glu.h);
    return status;
}

static moert_status add_fused_rates(moert_context *context, const bench_work *w, bench_machine *m) {
    const size_t experts = moert_ceil_div(w->experts, w->ep), n = 2 * w->intermediate;
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        const moert_gemm_shape shape = {experts, row_counts[i], n, w->hidden, NULL};
        bench_gemm_rate rate = {.op = "glu", .n = n, .k = w->hidden, .rows = (double)row_counts[i]};
        moert_tune_gemm gemm;
        double seconds = 1.0;
        bool possible;
        snprintf(rate.type, sizeof rate.type, "%s", w->type);
        MOERT_TRY(moert_tune_gemm_create(moert_context_device(context), MOERT_TUNED_FORWARD,
                                         type_of(w), &shape, &gemm, &possible));
        moert_status status = time_fused(context, &gemm, &seconds);
        moert_tune_gemm_destroy(&gemm);
        MOERT_TRY(status);
        rate.gflops = 2e-9 * (double)(experts * row_counts[i] * n * w->hidden) / seconds;
        MOERT_TRY(bench_machine_add(m, &rate));
    }
    return MOERT_OK;
}

static moert_status measure_gemms(moert_context *context, const bench_work *w, bench_machine *m) {
    static const rated ops[] = {{"forward", MOERT_TUNED_PREPACKED_FORWARD, MOERT_TUNED_FORWARD},
                                {"dgrad", MOERT_TUNED_PREPACKED_DGRAD, MOERT_TUNED_DGRAD},
                                {"wgrad", MOERT_TUNED_WGRAD, MOERT_TUNED_WGRAD}};
    const size_t h = w->hidden, i = w->intermediate;
    for (size_t op = 0; op < MOERT_COUNT(ops); op++) {
        MOERT_TRY(add_rates(context, w, &ops[op], 2 * i, h, m));
        MOERT_TRY(add_rates(context, w, &ops[op], h, i, m));
    }
    MOERT_TRY(add_fused_rates(context, w, m));
    const moert_rate_gemm router = {MOERT_TUNED_FORWARD, MOERT_DTYPE_F32, 1,
                                    w->tokens,           w->experts,      h};
    return moert_rates_gemm(moert_context_device(context), moert_context_comm(context), &router,
                            &m->f32_gflops);
}

static moert_status run_dglu(void *glu) {
    return moert_glu_backward(glu);
}

/* *ns = time of a GLU's backward over T K rows, per element of dh. Collective. */
static moert_status measure_dglu(moert_context *context, const bench_work *w, double *ns) {
    moert_device *device = moert_context_device(context);
    moert_comm *world = moert_context_comm(context);
    const size_t rows = w->tokens * w->topk, n = rows * w->intermediate;
    moert_buffer *v = NULL, *dh = NULL;
    moert_status status = bench_upload(device, NULL, 2 * n * sizeof(float), &v);
    if (status == MOERT_OK)
        status = bench_upload(device, NULL, n * sizeof(float), &dh);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    const moert_dtype type = moert_operand_between(
        device, type_of(w), moert_ceil_div(w->experts, w->ep), w->hidden, w->intermediate);
    moert_glu glu = {.form = MOERT_GLU_SWIGLU,
                     .rows = rows,
                     .width = w->intermediate,
                     .from = type,
                     .type = type,
                     .v = v,
                     .dh = dh,
                     .dv = v};
    const moert_timed timed = {.device = device, .together = world, .run = run_dglu, .what = &glu};
    MOERT_TRY_OR(done, moert_rates_time(&timed, 1, ns));
    *ns *= 1e9 / (double)n;
done:
    MOERT_DESTROY(dh, v);
    return status;
}

/* ---- copies ---- */

static moert_status measure_host(double *gbps) {
    unsigned char *from = NULL, *to = NULL;
    moert_status status;
    *gbps = 0.0;
    MOERT_TRY_OR(done, moert_alloc(&from, COPY_BYTES, 1));
    MOERT_TRY_OR(done, moert_alloc(&to, COPY_BYTES, 1));
    memset(from, 1, COPY_BYTES);
    for (int i = 0; i < COPIES; i++) {
        const uint64_t start = moert_clock_ns();
        memcpy(to, from, COPY_BYTES);
        from[0] += to[COPY_BYTES - 1]; /* keeps the compiler from dropping the copy */
        *gbps = fmax(*gbps, 2.0 * COPY_BYTES / (double)(moert_clock_ns() - start));
    }
done:
    MOERT_FREE(to, from);
    return status;
}

/* ---- engines ---- */

/* An exchange with a balanced plan, ready to run. */
typedef struct test_exchange {
    moert_device *device;
    moert_comm *comm;
    moert_exchange *exchange;
    moert_window *window;
    moert_exchange_plan *plan;
    moert_buffer *index, *rows;
    int32_t *experts;
} test_exchange;

static void close_exchange(test_exchange *p) {
    moert_exchange_free_plan(p->plan);
    moert_window_destroy(p->window);
    moert_exchange_destroy(p->exchange);
    MOERT_DESTROY(p->index, p->rows);
    free(p->experts);
}

static moert_status open_exchange(const bench_work *w, size_t tokens, unsigned engine,
                                  test_exchange *p) {
    const size_t ranks = moert_comm_size(p->comm), slots = tokens * w->topk;
    const size_t mine = moert_comm_rank(p->comm) * slots;
    MOERT_TRY(MOERT_NEW_ARRAY(&p->experts, ranks * slots));
    MOERT_TRY(bench_route((bench_skew){BENCH_BALANCED, 0.0}, 1, ranks * tokens, w->topk, w->experts,
                          p->experts));
    MOERT_TRY(bench_upload(p->device, p->experts + mine, slots * sizeof(int32_t), &p->index));
    MOERT_TRY(bench_upload(p->device, NULL, tokens * w->hidden * sizeof(float), &p->rows));
    MOERT_TRY(moert_exchange_create(p->device, p->comm, engine, &p->exchange));
    MOERT_TRY(moert_window_create(p->exchange, w->hidden, &p->window));
    MOERT_TRY(moert_exchange_make_plan(
        p->exchange,
        &(moert_exchange_slots){
            .index = p->index, .tokens = tokens, .topk = w->topk, .experts = w->experts},
        MOERT_OK, &p->plan));
    return moert_window_reserve(p->window, p->plan->plan);
}

/* *seconds = half the time of a dispatch plus a combine, the median of several runs; *bytes = the
 * bytes that this rank receives in a dispatch or in a combine. */
static moert_status time_exchange(test_exchange *p, size_t width, double *seconds, double *bytes) {
    double took[EXCHANGES];
    const moert_transfer forth = {.plan = p->plan, .window = p->window, .source = p->rows};
    moert_transfer back = {.plan = p->plan, .window = p->window, .target = p->rows};
    *bytes = (double)(p->plan->plan->rows * width * sizeof(float));
    for (int i = 0; i < EXCHANGES; i++) {
        MOERT_TRY(moert_comm_barrier(p->comm));
        const uint64_t start = moert_clock_ns();
        MOERT_TRY(moert_exchange_dispatch(p->exchange, &forth, MOERT_OK));
        MOERT_TRY(moert_exchange_combine(p->exchange, &back, MOERT_OK));
        MOERT_TRY(moert_device_finish(p->device));
        took[i] = 0.5e-9 * (double)(moert_clock_ns() - start);
    }
    *seconds = moert_rates_median(took, EXCHANGES);
    return MOERT_OK;
}

/* *line = the line through two measured times: of an exchange of few rows, and of an exchange of
 * many rows. Collective over `comm`. */
static moert_status measure_engine(moert_device *device, moert_comm *comm, const bench_work *w,
                                   unsigned engine, bench_line *line) {
    static const size_t tokens[2] = {FEW_TOKENS, MANY_TOKENS};
    double seconds[2], bytes[2];
    for (int i = 0; i < 2; i++) {
        test_exchange p = {.device = device, .comm = comm};
        moert_status status = open_exchange(w, tokens[i], engine, &p);
        if (status == MOERT_OK)
            status = time_exchange(&p, w->hidden, &seconds[i], &bytes[i]);
        close_exchange(&p);
        MOERT_TRY(status);
    }
    const double slope = fmax((seconds[1] - seconds[0]) / (bytes[1] - bytes[0]), 1e-13);
    line->gbps = 1e-9 / slope;
    line->us = 1e6 * fmax(seconds[0] - slope * bytes[0], 0.0);
    return MOERT_OK;
}

/* Measures the staged engine on each rank alone, and the automatic engine (windows if there are
 * several ranks) among the ranks of each node. */
static moert_status measure_engines(moert_context *context, const bench_work *w, bench_machine *m) {
    moert_comm *world = moert_context_comm(context), *alone, *node;
    moert_device *device = moert_context_device(context);
    MOERT_TRY(moert_comm_split(world, moert_comm_rank(world), &alone));
    moert_status status = measure_engine(device, alone, w, MOERT_EXCHANGE_STAGED, &m->stage);
    moert_comm_destroy(alone);
    MOERT_TRY(moert_comm_agree(world, status));
    MOERT_TRY(moert_comm_split(world, moert_comm_node(world, moert_comm_rank(world)), &node));
    status = measure_engine(device, node, w, MOERT_EXCHANGE_AUTO, &m->window);
    moert_comm_destroy(node);
    return moert_comm_agree(world, status);
}

/* ---- means over the ranks ---- */

static moert_status average(moert_comm *world, double *figure) {
    moert_of_ranks of;
    MOERT_TRY(moert_rates_over_ranks(world, *figure / (double)moert_comm_size(world), &of));
    *figure = of.sum;
    return MOERT_OK;
}

static moert_status average_figures(moert_comm *world, bench_machine *m) {
#define AVERAGE_NUMBER(field, standard, help) MOERT_TRY(average(world, &m->field));
    BENCH_MACHINE_NUMBERS(AVERAGE_NUMBER)
#undef AVERAGE_NUMBER
#define AVERAGE_LINE(field, help)                                                                  \
    MOERT_TRY(average(world, &m->field.us));                                                       \
    MOERT_TRY(average(world, &m->field.gbps));
    BENCH_MACHINE_LINES(AVERAGE_LINE)
#undef AVERAGE_LINE
    for (size_t i = 0; i < m->gemms; i++)
        MOERT_TRY(average(world, &m->gemm[i].gflops));
    return MOERT_OK;
}

static void describe(moert_context *context, double shared_cores, bench_machine *m) {
    moert_comm *world = moert_context_comm(context);
    const moert_device_info *device = moert_device_describe(moert_context_device(context));
    const time_t now = time(NULL);
    char date[16];
    strftime(date, sizeof date, "%F", gmtime(&now));
    snprintf(m->name, sizeof m->name, "%zu nodes of %zu ranks, %.80s", moert_comm_node_count(world),
             moert_comm_node_size(world), device->name);
    snprintf(m->source, sizeof m->source, "bench_model --calibrate, %s, moert %s", date,
             bench_report_commit());
    m->ranks_per_node = (double)moert_comm_node_size(world);
    m->memory_gib = (double)device->global_bytes / (double)(1 << 30);
    m->shared_cores = shared_cores;
    m->tile_rows = m->crowd = 1.0;
    m->crowd_nodes = 3.0;
}

moert_status bench_calibrate(moert_context *context, const bench_work *work, double shared_cores,
                             bench_machine *machine) {
    moert_comm *world = moert_context_comm(context);
    moert_device *device = moert_context_device(context);
    bench_machine m = {.gemms = 0};
    moert_rates rates = {0};
    describe(context, shared_cores, &m);
    moert_status status = moert_rates_measure(device, &rates);
    m.launch_us = rates.launch_us;
    m.copy_gbps = rates.copy_gbps;
    if (status == MOERT_OK)
        status = measure_host(&m.host_gbps);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, measure_gemms(context, work, &m));
    MOERT_TRY_OR(done, measure_dglu(context, work, &m.dglu_ns));
    MOERT_TRY_OR(done, measure_engines(context, work, &m));
    MOERT_TRY_OR(done, bench_calibrate_links(world, &m));
    MOERT_TRY_OR(done, average_figures(world, &m));
    *machine = m;
    return MOERT_OK;
done:
    bench_machine_free(&m);
    return status;
}
