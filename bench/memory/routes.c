/* The kernels of bench_memory on the rows of tokens and experts; see memory.h. */
#include <math.h>

#include "args/op.h"
#include "base/memory.h"
#include "bench/memory/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "gemm/gemm.h"
#include "router/router.h"

static size_t rows_of(const bench_memory *b) {
    return b->of.tokens * b->of.topk;
}

/* ---- GLU of [T K, 2I]: v = in[0], dh = in[1] ---- */

static moert_glu glu_of(const bench_memory *b) {
    return (moert_glu){.form = MOERT_GLU_SWIGLU,
                       .rows = rows_of(b),
                       .width = b->of.intermediate,
                       .v = b->in[0],
                       .h = b->out[0],
                       .dh = b->in[1],
                       .dv = b->out[0]};
}

/* Returns the gate and the up from which element `at` of h is computed. */
static void take_pair(const bench_memory *b, size_t at, double *gate, double *up) {
    const size_t width = b->of.intermediate, index = at / width * 2 * width + at % width;
    *gate = bench_value(b, 0, index);
    *up = bench_value(b, 0, index + width);
}

BENCH_FLOATS(glu, 3 * s->tokens * s->topk * s->intermediate)

static moert_status glu_run(const bench_memory *b) {
    const moert_glu glu = glu_of(b);
    return moert_glu_forward(&glu);
}

static moert_status glu_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t at = bench_index(chosen, rows_of(b) * b->of.intermediate);
    double gate, up;
    take_pair(b, at, &gate, &up);
    r->want = gate / (1.0 + exp(-gate)) * up;
    return bench_read(b->out[0], at, &r->got);
}

BENCH_FLOATS(dglu, 5 * s->tokens * s->topk * s->intermediate)

static moert_status dglu_run(const bench_memory *b) {
    const moert_glu glu = glu_of(b);
    return moert_glu_backward(&glu);
}

/* Checks an element of the gate's gradient. */
static moert_status dglu_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t width = b->of.intermediate, at = bench_index(chosen, rows_of(b) * width);
    double gate, up;
    take_pair(b, at, &gate, &up);
    const double s = 1.0 / (1.0 + exp(-gate));
    r->want = bench_value(b, 1, at) * up * s * (1.0 + gate * (1.0 - s));
    return bench_read(b->out[0], at / width * 2 * width + at % width, &r->got);
}

/* ---- dispatch of rows of in[0] to the experts, one copy per slot, and combine with weights from
 * in[2] ---- */

BENCH_FLOATS(exchange, s->tokens * s->hidden * (1 + s->topk))

static moert_status dispatch_run(const bench_memory *b) {
    const moert_transfer forth = {.plan = b->plan, .window = b->window, .source = b->in[0]};
    return moert_exchange_dispatch(b->exchange, &forth, MOERT_OK);
}

static moert_status dispatch_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t h = b->of.hidden, at = bench_index(chosen, rows_of(b) * h), slot = at / h;
    r->want = bench_value(b, 0, slot / b->of.topk * h + at % h);
    return bench_read(moert_window_rows(b->window),
                      b->plan->plan->slot_row[slot] * moert_window_stride(b->window) + at % h,
                      &r->got);
}

static moert_status combine_run(const bench_memory *b) {
    moert_transfer back = {
        .plan = b->plan, .window = b->window, .weight = b->in[2], .target = b->out[0]};
    return moert_exchange_combine(b->exchange, &back, MOERT_OK);
}

static moert_status combine_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t h = b->of.hidden, k = b->of.topk, at = bench_index(chosen, b->of.tokens * h);
    double weight = 0.0;
    for (size_t i = 0; i < k; i++)
        weight += bench_value(b, 2, at / h * k + i);
    r->want = weight * bench_value(b, 0, at);
    return bench_read(b->out[0], at, &r->got);
}

/* ---- an op's permuted input rows ---- */

BENCH_FLOATS(permute, 2 * s->tokens * s->topk * s->hidden)

static moert_status permute_run(const bench_memory *b) {
    const size_t rows = rows_of(b), width = b->of.hidden;
    const size_t split = moert_by_form(b->device, moert_ceil_div(16384, width), 1);
    const moert_grid grid = {moert_ceil_div(rows, split), 1, 1};
    return MOERT_RUN(b->device, MOERT_PROGRAM(b->device, "op/rows", width), "op_load_rows", grid,
                     MOERT_ARG(b->ends), MOERT_ARG(b->in[0]), MOERT_ARG(b->gather),
                     MOERT_ARG(b->out[0]),
                     MOERT_ARGS(moert_rows_args, .groups = 1u, .rows = (unsigned)rows,
                                .type = (int)MOERT_DTYPE_F32, .stride = width, .divisor = 1u,
                                .width = (int)width, .split = (unsigned)split));
}

static moert_status permute_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t h = b->of.hidden, at = bench_index(chosen, rows_of(b) * h);
    r->want = bench_value(b, 0, b->plan->plan->slot_row[at / h] * h + at % h);
    return bench_read(b->out[0], at, &r->got);
}

/* ---- router: logits in[0], of T tokens or (large, so that bandwidth matters) T K tokens ---- */

static size_t routed(const bench_sizes *s) {
    return s->tokens * (s->how.large ? s->topk : 1);
}

static moert_router_options router_of(const bench_memory *b) {
    moert_router_options options = MOERT_ROUTER_OPTIONS_INIT;
    options.experts = b->of.experts;
    options.topk = b->of.topk;
    return options;
}

static moert_routing routing_of(const bench_memory *b) {
    return (moert_routing){
        .scores = b->out[0], .index = b->out[2], .weight = b->out[1], .lse = b->out[3]};
}

BENCH_FLOATS(router, routed(s) * (2 * s->experts + 2 * s->topk + 1))

static moert_status router_run(const bench_memory *b) {
    const moert_router_options options = router_of(b);
    const moert_routing routing = routing_of(b);
    return moert_router_forward(b->device, &options, routed(&b->of), b->in[0], NULL, &routing);
}

/* The kernel reads the scores and writes the gradients. Without a z-loss, the kernel does not read
 * the logits. */
BENCH_FLOATS(router_backward, routed(s) * (2 * s->experts + 3 * s->topk + 1))

static moert_status router_backward_run(const bench_memory *b) {
    const moert_router_options options = router_of(b);
    const moert_routing routing = routing_of(b);
    return moert_router_backward(b->device, &options,
                                 &(moert_router_gradient){.tokens = routed(&b->of),
                                                          .logits = b->in[0],
                                                          .routing = &routing,
                                                          .dweight = b->in[1],
                                                          .dlogits = b->out[4]});
}

/* Returns the weight and the expert of a token's choice number `rank` by counting, for each logit,
 * the larger logits. Equal logits have equal weights. */
static double routed_weight(const bench_memory *b, size_t token, size_t rank, size_t *expert) {
    const size_t e = b->of.experts;
    double sum = 0.0, own = 0.0;
    for (size_t i = 0; i < e; i++) {
        const double logit = bench_value(b, 0, token * e + i);
        size_t above = 0;
        for (size_t j = 0; j < e; j++)
            above += bench_value(b, 0, token * e + j) > logit;
        sum += above < b->of.topk ? exp(logit) : 0.0;
        if (above == rank)
            own = exp(logit), *expert = i;
    }
    return own / sum;
}

static moert_status router_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t k = b->of.topk, slot = bench_index(chosen, routed(&b->of) * k);
    size_t expert;
    r->want = routed_weight(b, slot / k, slot % k, &expert);
    return bench_read(b->out[1], slot, &r->got);
}

static moert_status router_backward_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t k = b->of.topk, slot = bench_index(chosen, routed(&b->of) * k), token = slot / k;
    size_t expert = 0, other;
    double mean = 0.0;
    for (size_t i = 0; i < k; i++)
        mean += routed_weight(b, token, i, &other) * bench_value(b, 1, token * k + i);
    r->want = routed_weight(b, token, slot % k, &expert) * (bench_value(b, 1, slot) - mean);
    return bench_read(b->out[4], token * b->of.experts + expert, &r->got);
}

static const bench_kernel router = {router_bytes, NULL, router_run, router_check};
static const bench_kernel router_backward = {router_backward_bytes, router_run, router_backward_run,
                                             router_backward_check};

static const bench_case cases[] = {
    {"GLU", &(bench_kernel){glu_bytes, NULL, glu_run, glu_check}, {0}},
    {"GLU backward", &(bench_kernel){dglu_bytes, NULL, dglu_run, dglu_check}, {0}},
    {"dispatch", &(bench_kernel){exchange_bytes, NULL, dispatch_run, dispatch_check}, {0}},
    {"combine", &(bench_kernel){exchange_bytes, dispatch_run, combine_run, combine_check}, {0}},
    {"op permutation", &(bench_kernel){permute_bytes, NULL, permute_run, permute_check}, {0}},
    {"router", &router, {0}},
    {"router, more tokens", &router, {.large = true}},
    {"router backward, more", &router_backward, {.large = true}},
};
const bench_cases bench_route_cases = {cases, MOERT_COUNT(cases)};
