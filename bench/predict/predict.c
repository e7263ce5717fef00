/* Adds up what a layer and a training step take. */
#include "bench/predict/predict.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exchange/exchange.h"

enum {
    PLAN_CALLS = 2,        /* small collectives of a plan */
    EXCHANGE_CALLS = 2,    /* agreements around a dispatch or a combine */
    FORWARD_LAUNCHES = 12, /* kernels of a forward pass, about */
    BACKWARD_LAUNCHES = 20,
    ROW_PASSES =
        40, /* of T rows of H float32 in a layer outside of its products: norms, positions, adds */
    LOGIT_PASSES = 4,     /* of T rows of V: the loss and its gradient */
    OPTIMIZER_BYTES = 28, /* of a number: gradient, weight and two moments, read and written */
};
#define KERNEL_SHARE 0.8  /* of the copy rate that memory-bound kernels reach */
#define LEAST_SAVED  0.25 /* of the rows to other ranks, for one to go once to each */

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

/* What is known before any time: the spread of the tokens, nodes, slowdown by shared cores. */
typedef struct setting {
    const bench_machine *m;
    const bench_work *w;
    bench_spread spread;
    double nodes;      /* that share the experts */
    double rows;       /* of the rank that receives most */
    double local;      /* experts of a rank */
    double share;      /* ranks that take turns on a core */
    double chunks;     /* in which rows travel */
    double between;    /* GB/s of a rank when all nodes send to all */
    double message_us; /* of a small collective */
} setting;

static double copy_seconds(const setting *s, double bytes) {
    return s->share * bytes / (KERNEL_SHARE * s->m->copy_gbps * 1e9);
}

/* Ranks that take turns on a core. */
static double share_of(const bench_machine *m, size_t ranks) {
    return m->shared_cores > 0.0 ? fmax(1.0, ceil((double)ranks / m->shared_cores)) : 1.0;
}

static double crowded_gbps(const bench_machine *m, double nodes) {
    const double at = fmin(fmax((nodes - 2.0) / fmax(m->crowd_nodes - 2.0, 1.0), 0.0), 1.0);
    return m->between.gbps * (1.0 + at * (m->crowd - 1.0));
}

/* Waves are for messages of rows that are operands as they come. */
static size_t waves_of(const bench_work *w) {
    const size_t rows = w->tokens * w->topk / w->ep;
    const double bytes = (double)(rows * w->hidden) * w->row_bytes;
    const bool plain =
        w->row_bytes == (strcmp(w->type, "f32") == 0 ? 4.0 : 2.0) && w->result_bytes == 4.0;
    if (w->chunks > 0 || w->engine != BENCH_STAGED || !plain)
        return moert_max(1, w->chunks);
    return moert_max(1, moert_exchange_good_chunks((size_t)bytes, w->experts / w->ep));
}

static moert_status look(const bench_machine *m, const bench_work *w, setting *s) {
    const size_t nodes = bench_nodes(m, w->ep);
    const double ranks = (double)w->ranks;
    if (w->ranks == 0 || w->ep == 0 || w->ranks % w->ep != 0 || w->micro_batches == 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu ranks in groups of %zu", w->ranks, w->ep);
    if (w->engine == BENCH_WINDOW && nodes > 1)
        return MOERT_FAIL(ERROR_USAGE, "windows serve one node, not %zu", nodes);
    if (w->engine == BENCH_NODE && m->linked)
        return MOERT_FAIL(ERROR_USAGE, "the node exchange is for CPU devices");
    MOERT_TRY(bench_spread_of(
        &(bench_sharing){w->skew, w->tokens * w->ep, w->topk, w->experts, w->ep, nodes},
        &s->spread));
    s->m = m;
    s->w = w;
    s->nodes = (double)nodes;
    s->rows = (double)(w->tokens * (w->skew == BENCH_ONE ? 1 : w->topk)) * s->spread.largest_rank;
    s->local = (double)moert_ceil_div(w->experts, w->ep);
    s->share = share_of(m, w->ranks);
    s->chunks = (double)waves_of(w);
    s->between = crowded_gbps(m, s->nodes);
    s->message_us =
        ceil(log2(ranks)) * (bench_nodes(m, w->ranks) > 1 ? m->between.us : m->inside.us);
    return MOERT_OK;
}

/* ---- exchange ---- */

/* Seconds of one dispatch or combine, apart from its small messages. */
typedef struct passage {
    double inside, between;
    double memory; /* once rows have come */
    double fixed;  /* of these, what every chunk pays anew */
    double bytes_inside, bytes_between;
} passage;

/* Messages of a staged exchange: copies through host memory, then the links, or both at once. */
static double staged_seconds(const setting *s, double copied, double inside, double between) {
    const double copies = s->share * copied / (s->m->stage.gbps * 1e9);
    const double links = inside / (s->m->inside.gbps * 1e9) + between / (s->between * 1e9);
    return s->m->pipelined ? fmax(copies, links) : copies + links;
}

/* By windows inside of each node; `crossing` bytes go through messages. */
static passage pass_windows(const setting *s, double rows_bytes, double crossing) {
    const double window = s->share * rows_bytes / (s->m->window.gbps * 1e9);
    passage p = {.inside = window + s->m->window.us * 1e-6, .fixed = s->m->window.us * 1e-6};
    p.bytes_inside = rows_bytes;
    p.bytes_between = crossing;
    if (s->nodes > 1.0) {
        const double fixed = (s->m->stage.us + (s->nodes - 1.0) * s->m->between.us) * 1e-6;
        p.between = staged_seconds(s, crossing, 0.0, crossing) + fixed;
        p.fixed += fixed;
    }
    return p;
}

/* Whether results are sent as their product makes them. */
static bool pushes(const setting *s) {
    return strcmp(s->w->type, "bf16") == 0 && s->w->result_bytes == 2.0;
}

/* Over the links of a node, beside which a device stores its own rows. */
static passage pass_links(const setting *s, bool backward, bool dispatch, double width) {
    const double away = ((double)s->w->ep - 1.0) / (double)s->w->ep;
    const double uneven = s->spread.largest_rank;
    const double once = (double)s->w->tokens * s->spread.pairs_rank * uneven;
    const bool saves = dispatch && once <= (1.0 - LEAST_SAVED) * s->rows;
    const double sent = away * (saves ? once : s->rows), own = (1.0 - away) * s->rows;
    const double link = sent * width / (s->m->window.gbps * 1e9);
    passage p = {.inside = fmax(link, copy_seconds(s, 2.0 * own * width)),
                 .bytes_inside = sent * width};
    p.inside += s->m->window.us * 1e-6;
    p.fixed = s->m->window.us * 1e-6;
    if (dispatch)
        p.memory = copy_seconds(s, 2.0 * (s->rows - sent - own) * width);
    else if (!backward && pushes(s))
        p.memory = copy_seconds(s, s->rows * width);
    return p;
}

/* All rows through host memory; to ranks of the node by messages as well. */
static passage pass_staged(const setting *s, double rows_bytes) {
    const double ranks = (double)s->w->ep, here = ranks / s->nodes;
    const double between = rows_bytes * (ranks - here) / ranks;
    const double inside = rows_bytes * (here - 1.0) / ranks;
    passage p = {.bytes_inside = inside, .bytes_between = between};
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

/* Rows of `bytes` a number; of a dispatch by nodes a token's row crosses once for each. */
static passage pass(const setting *s, bool backward, bool dispatch, double bytes) {
    const double width = bytes * (double)s->w->hidden, rows = s->rows * width;
    const double away = (s->nodes - 1.0) / s->nodes;
    if (s->w->engine == BENCH_STAGED)
        return pass_staged(s, rows);
    if (s->m->linked)
        return pass_links(s, backward, dispatch, width);
    const double pairs = (double)s->w->tokens * s->spread.pairs_node * width;
    return pass_windows(s, rows, (dispatch ? pairs : rows) * away);
}

/* ---- compute ---- */

/* The experts' products of one chunk's rows, forward or backward; `last`: of these, those beside
 * which a combine can run over links. */
static moert_status products(const setting *s, bool backward, double rows, double *seconds,
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
        *last = s->share * (backward ? in + out : out);
    }
    *seconds = s->share * sum;
    return MOERT_OK;
}

/* The GLU's gradient, results of the tokens, router: what moves bytes, or has few rows. */
static double memory(const setting *s, bool backward) {
    const double tokens = (double)s->w->tokens, h = (double)s->w->hidden;
    const double times = backward ? 2.0 : 1.0;
    const double glu = backward ? 1e-9 * s->m->dglu_ns * s->rows * (double)s->w->intermediate : 0.0;
    const double router = times * 2e-9 * tokens * h * (double)s->w->experts / s->m->f32_gflops;
    return copy_seconds(s, times * 4.0 * tokens * h) + s->share * (glu + router);
}

/* ---- sums of gradients ---- */

/* Of a reduce-scatter and an all-gather among `count` of the ranks, through host memory. */
static double sum_seconds(const bench_machine *m, size_t ranks, size_t count, double bytes) {
    const double others = (double)count - 1.0, share = share_of(m, ranks);
    const bench_line link = bench_nodes(m, ranks) > 1 ? m->between : m->inside;
    if (count < 2)
        return 0.0;
    return 2.0 * others / (double)count * bytes / (link.gbps * 1e9) +
           share * 4.0 * bytes / (m->host_gbps * 1e9) + 2.0 * others * link.us * 1e-6;
}

static double sums(const setting *s) {
    const double h = (double)s->w->hidden, i = (double)s->w->intermediate;
    const size_t ranks = s->w->ranks;
    return sum_seconds(s->m, ranks, ranks, 4.0 * h * (double)s->w->experts) +
           sum_seconds(s->m, ranks, ranks / s->w->ep, 12.0 * h * i * s->local);
}

/* ---- a pass ---- */

/* What chunks hide of the exchange or, over links, the products beside which it runs. */
static double beside(const setting *s, bool backward, const passage *c, double exchange,
                     double work, double last) {
    const bool links = s->w->engine == BENCH_WINDOW && s->m->linked && s->w->ep > 1;
    if (links)
        return backward || pushes(s) ? fmin(last, c->inside) : 0.0;
    return fmin(work, exchange * (s->chunks - 1.0) / s->chunks) / s->share;
}

/* Forward or backward: adds its parts and its time. */
static moert_status add_pass(const setting *s, bool backward, bench_prediction *p) {
    const double chunks = s->chunks;
    const passage d = pass(s, backward, true, s->w->row_bytes);
    const passage c = pass(s, backward, false, s->w->result_bytes);
    double gemm = 0.0, last = 0.0;
    MOERT_TRY(products(s, backward, s->rows / chunks, &gemm, &last));
    gemm *= chunks;
    last *= chunks;
    const double bytes = memory(s, backward) + d.memory + c.memory;
    const double calls = (double)(PLAN_CALLS + 2 * EXCHANGE_CALLS) * s->message_us * 1e-6;
    const double launches = s->share * s->m->launch_us * 1e-6 *
                            (double)(backward ? BACKWARD_LAUNCHES : FORWARD_LAUNCHES);
    const double latency = calls + chunks * launches + (chunks - 1.0) * (d.fixed + c.fixed);
    const double exchange = d.inside + d.between + c.inside + c.between, work = gemm + bytes;
    const double hidden = beside(s, backward, &c, exchange, work, last);
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
    MOERT_TRY(look(machine, work, &s));
    MOERT_TRY(add_pass(&s, false, &p));
    if (work->backward) {
        MOERT_TRY(add_pass(&s, true, &p));
        p.part[BENCH_SUMS] = sums(&s) / (double)work->micro_batches;
        p.seconds += p.part[BENCH_SUMS];
    }
    for (int i = 1; i < BENCH_PARTS; i++)
        if (p.part[i] > p.part[p.bound])
            p.bound = (bench_part)i;
    *prediction = p;
    return MOERT_OK;
}

/* ---- a training step ---- */

/* Forward, dgrad and wgrad of a weight [n,k] that all rows meet. */
static moert_status add_product(const bench_machine *m, const bench_work *w, double n, double k,
                                double *seconds) {
    static const char *const ops[] = {"forward", "dgrad", "wgrad"};
    double one;
    for (int i = 0; i < 3; i++) {
        const bench_predict_gemm product = {ops[i], w->type, 1.0, (double)w->tokens, n, k};
        MOERT_TRY(bench_machine_gemm(m, &product, &one));
        *seconds += one;
    }
    return MOERT_OK;
}

/* Causal scores and sums: 2 T length numbers of all heads forward, 2.5 times that backward. */
static double attention(const bench_machine *m, const bench_work *w, const bench_stack *s) {
    const double flops = 2.0 * (double)(w->tokens * s->length) * (double)(s->heads * s->head);
    return 1e-9 * flops * (1.0 / m->attention_gflops + 2.5 / m->attention_backward_gflops);
}

static moert_status dense_seconds(const bench_machine *m, const bench_work *w, const bench_stack *s,
                                  double *seconds) {
    const double h = (double)w->hidden, q = (double)(s->heads * s->head);
    const double kv = (double)(s->kv_heads * s->head), v = (double)s->vocabulary;
    const double copy = KERNEL_SHARE * m->copy_gbps * 1e9, row = 4.0 * (double)w->tokens;
    double layer = 0.0;
    MOERT_TRY(add_product(m, w, q + 2.0 * kv, h, &layer));
    MOERT_TRY(add_product(m, w, h, q, &layer));
    layer += attention(m, w, s) + ROW_PASSES * row * h / copy;
    *seconds = (double)s->layers * layer + LOGIT_PASSES * row * v / copy;
    return add_product(m, w, v, h, seconds);
}

moert_status bench_predict_step(const bench_machine *m, const bench_work *work,
                                const bench_stack *s, bench_step *step) {
    const double h = (double)work->hidden, batches = (double)work->micro_batches;
    const double experts = (double)moert_ceil_div(work->experts, work->ep);
    const double dense_numbers =
        (double)s->layers * (2.0 * h * (double)((s->heads + s->kv_heads) * s->head)) +
        2.0 * h * (double)s->vocabulary;
    const double numbers =
        dense_numbers + (double)s->layers * experts * 3.0 * h * (double)work->intermediate;
    bench_work pass = *work;
    bench_prediction layer;
    double dense = 0.0;
    pass.backward = true;
    MOERT_TRY(bench_predict(m, &pass, &layer));
    MOERT_TRY(dense_seconds(m, work, s, &dense));
    *step = (bench_step){
        .layers = batches * (double)s->layers * layer.seconds,
        .dense = batches * dense,
        .optimizer = OPTIMIZER_BYTES * numbers / (m->copy_gbps * 1e9),
        .sums = sum_seconds(m, work->ranks, work->ranks, 4.0 * dense_numbers),
    };
    step->seconds = step->layers + step->dense + step->optimizer + step->sums;
    return MOERT_OK;
}
