/* Adds up the predicted times of the parts of a layer, and of a training step. */
#include "bench/predict/predict.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exchange/exchange.h"

enum {
    PLAN_CALLS = 2,        /* number of small collectives that make a plan */
    EXCHANGE_CALLS = 2,    /* number of agreements around a dispatch or a combine */
    FORWARD_LAUNCHES = 12, /* approximate number of kernels of a forward pass */
    BACKWARD_LAUNCHES = 20,
    /* passes over T rows of H float32 in a layer outside of GEMMs: norms, RoPE, additions */
    ROW_PASSES = 40,
    LOGIT_PASSES = 4, /* passes over T rows of V float32: the loss and its gradient */
    /* bytes per parameter: gradient, weight and two moments, read and written */
    OPTIMIZER_BYTES = 28,
};
#define KERNEL_FRACTION 0.8 /* fraction of the copy rate that memory-bound kernels reach */
/* A token's row is sent only once to each rank if this saves at least this fraction of the rows. */
#define LEAST_SAVED 0.25

const char *bench_part_name(bench_part part) {
    static const char *const names[] = {
#define NAME(part, text) text,
        BENCH_PART_TABLE(NAME)
#undef NAME
    };
    return names[part];
}

size_t bench_nodes(const bench_machine *machine, size_t ranks) {
    return moert_ceil_div(ranks, (size_t)machine->ranks_per_node);
}

/* The quantities that all times are computed from. */
typedef struct setting {
    const bench_machine *m;
    const bench_work *w;
    bench_spread spread;
    double nodes;      /* nodes of a group of ranks that share the experts */
    double rows;       /* rows that the busiest rank receives */
    double local;      /* experts of a rank */
    double slowdown;   /* ranks per core */
    double chunks;     /* chunks of an exchange */
    double between;    /* GB/s of a rank between nodes while all nodes send to all nodes */
    double message_us; /* time of a small collective */
} setting;

static double copy_seconds(const setting *s, double bytes) {
    return s->slowdown * bytes / (KERNEL_FRACTION * s->m->copy_gbps * 1e9);
}

/* Returns the number of ranks per core if ranks share cores, otherwise 1. */
static double slowdown_of(const bench_machine *m, size_t ranks) {
    return m->shared_cores > 0.0 ? fmax(1.0, ceil((double)ranks / m->shared_cores)) : 1.0;
}

static double crowded_gbps(const bench_machine *m, double nodes) {
    const double at = fmin(fmax((nodes - 2.0) / fmax(m->crowd_nodes - 2.0, 1.0), 0.0), 1.0);
    return m->between.gbps * (1.0 + at * (m->crowd - 1.0));
}

/* Returns the number of chunks of an exchange. By default, only staged exchanges are split, and
 * only if the rows are operands of the GEMM without a conversion. */
static size_t chunks_of(const bench_work *w) {
    const size_t rows = w->tokens * w->topk / w->ep;
    const double bytes = (double)(rows * w->hidden) * w->row_bytes;
    const bool plain =
        w->row_bytes == (strcmp(w->type, "f32") == 0 ? 4.0 : 2.0) && w->result_bytes == 4.0;
    if (w->chunks > 0 || w->engine != BENCH_STAGED || !plain)
        return moert_max(1, w->chunks);
    return moert_max(1, moert_exchange_good_chunks((size_t)bytes, w->experts / w->ep));
}

static moert_status make_setting(const bench_machine *m, const bench_work *w, setting *s) {
    const size_t nodes = bench_nodes(m, w->ep);
    const double ranks = (double)w->ranks;
    if (w->micro_batches == 0)
        return MOERT_FAIL(ERROR_USAGE, "a step needs at least one micro-batch, not 0");
    if (w->ranks == 0 || w->ep == 0 || w->ranks % w->ep != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu ranks cannot form groups of %zu for expert parallelism",
                          w->ranks, w->ep);
    if (w->engine == BENCH_WINDOW && nodes > 1)
        return MOERT_FAIL(ERROR_USAGE,
                          "the window engine works within one node, not across %zu nodes", nodes);
    if (w->engine == BENCH_NODE && m->linked)
        return MOERT_FAIL(ERROR_USAGE, "the node engine works on CPU devices only");
    MOERT_TRY(bench_spread_of(&(bench_sharing){w->skew, w->tokens * w->ep, w->topk, w->experts,
                                               w->ep, nodes, w->balanced, w->clones},
                              &s->spread));
    s->m = m;
    s->w = w;
    s->nodes = (double)nodes;
    s->rows =
        (double)(w->tokens * (w->skew.kind == BENCH_ONE ? 1 : w->topk)) * s->spread.largest_rank;
    s->local = (double)moert_ceil_div(w->experts, w->ep);
    s->slowdown = slowdown_of(m, w->ranks);
    s->chunks = (double)chunks_of(w);
    s->between = crowded_gbps(m, s->nodes);
    s->message_us =
        ceil(log2(ranks)) * (bench_nodes(m, w->ranks) > 1 ? m->between.us : m->inside.us);
    return MOERT_OK;
}

/* ---- exchange ---- */

/* The seconds of one dispatch or combine, except its small messages, and the bytes that it
 * sends. */
typedef struct exchange_cost {
    double inside, between;
    double memory; /* seconds of copies or sums after the rows have arrived */
    double fixed;  /* seconds of `inside` and `between` that each chunk repeats */
    double bytes_inside, bytes_between;
} exchange_cost;

/* Returns the seconds of a staged exchange's messages. Copies through host memory and transfers
 * over the links follow each other, or overlap if the machine is `pipelined`. */
static double staged_seconds(const setting *s, double copied, double inside, double between) {
    const double copies = s->slowdown * copied / (s->m->stage.gbps * 1e9);
    const double links = inside / (s->m->inside.gbps * 1e9) + between / (s->between * 1e9);
    return s->m->pipelined ? fmax(copies, links) : copies + links;
}

/* The cost of an exchange through windows inside each node; `crossing` bytes travel in messages
 * between nodes. */
static exchange_cost cost_windows(const setting *s, double rows_bytes, double crossing) {
    const double window = s->slowdown * rows_bytes / (s->m->window.gbps * 1e9);
    exchange_cost p = {.inside = window + s->m->window.us * 1e-6, .fixed = s->m->window.us * 1e-6};
    p.bytes_inside = rows_bytes;
    p.bytes_between = crossing;
    if (s->nodes > 1.0) {
        const double fixed = (s->m->stage.us + (s->nodes - 1.0) * s->m->between.us) * 1e-6;
        p.between = staged_seconds(s, crossing, 0.0, crossing) + fixed;
        p.fixed += fixed;
    }
    return p;
}

/* Whether the epilogue of the experts' last forward GEMM sends the results. */
static bool pushes(const setting *s) {
    return strcmp(s->w->type, "bf16") == 0 && s->w->result_bytes == 2.0;
}

/* The cost of an exchange over the links of a node. A device stores the rows of its local experts
 * at the same time as it sends other rows. */
static exchange_cost cost_links(const setting *s, bool backward, bool dispatch, double width) {
    const double away = ((double)s->w->ep - 1.0) / (double)s->w->ep;
    const double uneven = s->spread.largest_rank;
    const double once = (double)s->w->tokens * s->spread.pairs_rank * uneven;
    const bool saves = dispatch && once <= (1.0 - LEAST_SAVED) * s->rows;
    const double sent = away * (saves ? once : s->rows), own = (1.0 - away) * s->rows;
    const double link = sent * width / (s->m->window.gbps * 1e9);
    exchange_cost p = {.inside = fmax(link, copy_seconds(s, 2.0 * own * width)),
                       .bytes_inside = sent * width};
    p.inside += s->m->window.us * 1e-6;
    p.fixed = s->m->window.us * 1e-6;
    if (dispatch)
        p.memory = copy_seconds(s, 2.0 * (s->rows - sent - own) * width);
    else if (!backward && pushes(s))
        p.memory = copy_seconds(s, s->rows * width);
    return p;
}

/* The cost of a staged exchange: all rows go through host memory and messages, also rows for ranks
 * of the same node. */
static exchange_cost cost_staged(const setting *s, double rows_bytes) {
    const double ranks = (double)s->w->ep, here = ranks / s->nodes;
    const double between = rows_bytes * (ranks - here) / ranks;
    const double inside = rows_bytes * (here - 1.0) / ranks;
    exchange_cost p = {.bytes_inside = inside, .bytes_between = between};
    const double messages =
        ((here - 1.0) * s->m->inside.us + (ranks - here) * s->m->between.us) * 1e-6;
    p.fixed = s->m->stage.us * 1e-6 + messages;
    p.between = staged_seconds(s, rows_bytes, inside, between) + p.fixed;
    if (s->nodes == 1.0) {
        p.inside = p.between;
        p.between = 0.0;
    }
    return p;
}

/* The cost of a dispatch or combine whose rows have `bytes` bytes per element. In a dispatch of the
 * node engine, a token's row travels once to each other node that has experts of the token. */
static exchange_cost cost_of(const setting *s, bool backward, bool dispatch, double bytes) {
    const double width = bytes * (double)s->w->hidden, rows = s->rows * width;
    const double away = (s->nodes - 1.0) / s->nodes;
    if (s->w->engine == BENCH_STAGED)
        return cost_staged(s, rows);
    if (s->m->linked)
        return cost_links(s, backward, dispatch, width);
    const double pairs = (double)s->w->tokens * s->spread.pairs_node * width;
    return cost_windows(s, rows, (dispatch ? pairs : rows) * away);
}

/* ---- compute ---- */

/* *seconds = the time of the experts' GEMMs for one chunk's rows, forward or backward; *last = the
 * part of *seconds that a combine over links can overlap. */
static moert_status expert_gemms(const setting *s, bool backward, double rows, double *seconds,
                                 double *last) {
    const double h = (double)s->w->hidden, i = (double)s->w->intermediate, l = s->local;
    const char *const first[] = {backward ? "dgrad" : "glu", "wgrad"};
    const char *const second[] = {backward ? "dgrad" : "forward", "wgrad"};
    double sum = 0.0, in, out;
    for (int op = 0; op < (backward ? 2 : 1); op++) {
        const bench_predict_gemm a = {first[op], s->w->type, l, rows, 2.0 * i, h};
        const bench_predict_gemm b = {second[op], s->w->type, l, rows, h, i};
        MOERT_TRY(bench_machine_gemm(s->m, &a, &in));
        MOERT_TRY(bench_machine_gemm(s->m, &b, &out));
        sum += in + out;
        *last = s->slowdown * (backward ? in + out : out);
    }
    *seconds = s->slowdown * sum;
    return MOERT_OK;
}

/* Seconds of the GLU's gradient, of reading and writing the tokens' rows, and of the router. */
static double memory(const setting *s, bool backward) {
    const double tokens = (double)s->w->tokens, h = (double)s->w->hidden;
    const double times = backward ? 2.0 : 1.0;
    const double glu = backward ? 1e-9 * s->m->dglu_ns * s->rows * (double)s->w->intermediate : 0.0;
    const double router = times * 2e-9 * tokens * h * (double)s->w->experts / s->m->f32_gflops;
    return copy_seconds(s, times * 4.0 * tokens * h) + s->slowdown * (glu + router);
}

/* ---- sums of gradients ---- */

/* Seconds of a reduce-scatter and an all-gather through host memory, among `count` of the ranks. */
static double sum_seconds(const bench_machine *m, size_t ranks, size_t count, double bytes) {
    const double others = (double)count - 1.0, slowdown = slowdown_of(m, ranks);
    const bench_line link = bench_nodes(m, ranks) > 1 ? m->between : m->inside;
    if (count < 2)
        return 0.0;
    return 2.0 * others / (double)count * bytes / (link.gbps * 1e9) +
           slowdown * 4.0 * bytes / (m->host_gbps * 1e9) + 2.0 * others * link.us * 1e-6;
}

static double sums(const setting *s) {
    const double h = (double)s->w->hidden, i = (double)s->w->intermediate;
    const size_t ranks = s->w->ranks;
    return sum_seconds(s->m, ranks, ranks, 4.0 * h * (double)s->w->experts) +
           sum_seconds(s->m, ranks, ranks / s->w->ep, 12.0 * h * i * s->local);
}

/* Seconds in which a rank's clones pass their partial gradients to the next slot of their chains,
 * through host memory on both ranks. */
static double handover(const setting *s) {
    const bench_line link = s->nodes > 1.0 ? s->m->between : s->m->inside;
    const double bytes =
        12.0 * (double)s->w->hidden * (double)s->w->intermediate * s->spread.clones;
    return bytes / (link.gbps * 1e9) + s->slowdown * 2.0 * bytes / (s->m->host_gbps * 1e9) +
           2.0 * s->spread.clones * link.us * 1e-6;
}

/* ---- a pass ---- */

/* Seconds of the exchange that overlap with compute. Chunks overlap with `work` seconds of compute.
 * An exchange over links overlaps with the last GEMM, which takes `last` seconds. */
static double hidden_seconds(const setting *s, bool backward, const exchange_cost *c,
                             double exchange, double work, double last) {
    const bool links = s->w->engine == BENCH_WINDOW && s->m->linked && s->w->ep > 1;
    if (links)
        return backward || pushes(s) ? fmin(last, c->inside) : 0.0;
    return fmin(work, exchange * (s->chunks - 1.0) / s->chunks) / s->slowdown;
}

/* Adds the parts and the time of a forward or backward pass. */
static moert_status add_pass(const setting *s, bool backward, bench_prediction *p) {
    const double chunks = s->chunks;
    const exchange_cost d = cost_of(s, backward, true, s->w->row_bytes);
    const exchange_cost c = cost_of(s, backward, false, s->w->result_bytes);
    double gemm = 0.0, last = 0.0;
    MOERT_TRY(expert_gemms(s, backward, s->rows / chunks, &gemm, &last));
    gemm *= chunks;
    last *= chunks;
    const double bytes = memory(s, backward) + d.memory + c.memory;
    const double calls = (double)(PLAN_CALLS + 2 * EXCHANGE_CALLS) * s->message_us * 1e-6;
    const double launches = s->slowdown * s->m->launch_us * 1e-6 *
                            (double)(backward ? BACKWARD_LAUNCHES : FORWARD_LAUNCHES);
    const double latency = calls + chunks * launches + (chunks - 1.0) * (d.fixed + c.fixed);
    const double exchange = d.inside + d.between + c.inside + c.between, work = gemm + bytes;
    const double hidden = hidden_seconds(s, backward, &c, exchange, work, last);
    p->part[BENCH_GEMMS] += gemm;
    p->part[BENCH_MEMORY] += bytes;
    p->part[BENCH_INSIDE] += d.inside + c.inside;
    p->part[BENCH_BETWEEN] += d.between + c.between;
    p->part[BENCH_LATENCY] += latency;
    p->seconds += work + exchange - hidden + latency;
    p->hidden += hidden;
    if (!backward) {
        p->bytes_inside = d.bytes_inside + c.bytes_inside;
        p->bytes_between = d.bytes_between + c.bytes_between;
    }
    return MOERT_OK;
}

moert_status bench_predict(const bench_machine *machine, const bench_work *work,
                           bench_prediction *prediction) {
    setting s;
    bench_prediction p = {.seconds = 0.0};
    MOERT_TRY(make_setting(machine, work, &s));
    MOERT_TRY(add_pass(&s, false, &p));
    if (work->backward) {
        MOERT_TRY(add_pass(&s, true, &p));
        p.part[BENCH_SUMS] = sums(&s) / (double)work->micro_batches + handover(&s);
        p.seconds += p.part[BENCH_SUMS];
    }
    for (int i = 1; i < BENCH_PARTS; i++)
        if (p.part[i] > p.part[p.bound])
            p.bound = (bench_part)i;
    *prediction = p;
    return MOERT_OK;
}

/* ---- a training step ---- */

/* Adds forward, dgrad and wgrad of a dense weight [n,k]. */
static moert_status add_gemm(const bench_machine *m, const bench_work *w, double n, double k,
                             double *seconds) {
    static const char *const ops[] = {"forward", "dgrad", "wgrad"};
    double one;
    for (int i = 0; i < 3; i++) {
        const bench_predict_gemm gemm = {ops[i], w->type, 1.0, (double)w->tokens, n, k};
        MOERT_TRY(bench_machine_gemm(m, &gemm, &one));
        *seconds += one;
    }
    return MOERT_OK;
}

/* Causal attention: returns seconds for 2 T length heads D FLOPs forward, and 2.5 times as many
 * backward. */
static double attention(const bench_machine *m, const bench_work *w, const bench_stack *s) {
    const double flops = 2.0 * (double)(w->tokens * s->length) * (double)(s->heads * s->head);
    return 1e-9 * flops * (1.0 / m->attention_gflops + 2.5 / m->attention_backward_gflops);
}

static moert_status dense_seconds(const bench_machine *m, const bench_work *w, const bench_stack *s,
                                  double *seconds) {
    const double h = (double)w->hidden, q = (double)(s->heads * s->head);
    const double kv = (double)(s->kv_heads * s->head), v = (double)s->vocabulary;
    const double copy = KERNEL_FRACTION * m->copy_gbps * 1e9, row = 4.0 * (double)w->tokens;
    double layer = 0.0;
    MOERT_TRY(add_gemm(m, w, q + 2.0 * kv, h, &layer));
    MOERT_TRY(add_gemm(m, w, h, q, &layer));
    layer += attention(m, w, s) + ROW_PASSES * row * h / copy;
    *seconds = (double)s->layers * layer + LOGIT_PASSES * row * v / copy;
    return add_gemm(m, w, v, h, seconds);
}

moert_status bench_predict_step(const bench_machine *m, const bench_work *work,
                                const bench_stack *s, bench_step *step) {
    const double h = (double)work->hidden, batches = (double)work->micro_batches;
    const double experts = (double)moert_ceil_div(work->experts, work->ep);
    const double dense_parameters =
        (double)s->layers * (2.0 * h * (double)((s->heads + s->kv_heads) * s->head)) +
        2.0 * h * (double)s->vocabulary;
    const double parameters =
        dense_parameters + (double)s->layers * experts * 3.0 * h * (double)work->intermediate;
    bench_work pass = *work;
    bench_prediction layer;
    double dense = 0.0;
    pass.backward = true;
    MOERT_TRY(bench_predict(m, &pass, &layer));
    MOERT_TRY(dense_seconds(m, work, s, &dense));
    *step = (bench_step){
        .layers = batches * (double)s->layers * layer.seconds,
        .dense = batches * dense,
        .optimizer = OPTIMIZER_BYTES * parameters / (m->copy_gbps * 1e9),
        .sums = sum_seconds(m, work->ranks, work->ranks, 4.0 * dense_parameters),
    };
    step->seconds = step->layers + step->dense + step->optimizer + step->sums;
    return MOERT_OK;
}
