/* Computes a few tokens of a layer in float64. Each rank computes the contributions of its experts;
 * then the ranks add them up. */
#include "bench/layer/layer_check.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "bench/common/tokens.h"

/* A token is sampled only if its smallest chosen logit exceeds the largest other logit by this. */
#define MARGIN 1e-4

/* A sampled token of any rank. */
typedef struct sample {
    uint64_t token; /* global */
    size_t chosen[64];
    double weight[64];
} sample;

/* The contributions of a rank's experts to a sample. */
typedef struct parts {
    double *y, *dx; /* [H] */
    double *dot;    /* [K] for each slot: dot product of dy and the expert's output */
} parts;

typedef struct check {
    const bench_layer_case *c;
    /* samples: number of samples of all ranks; stride: doubles in a sample's parts */
    size_t ranks, samples, stride;
    float *router;           /* [E,H] */
    double *logits;          /* [E] */
    sample *sampled;         /* [samples] */
    float *w1, *w2;          /* weights of one expert */
    double *g, *u, *h, *out; /* [I], [I], [I], [H] */
    /* [samples,stride] parts of this rank's experts, then their sums over the ranks;
     * [ranks,samples,stride] parts of each rank's experts */
    double *mine, *all;
} check;

/* ---- matrix-vector products ---- */

/* to[rows] = m[rows,columns] x, or to[columns] += m^T x. */
typedef struct matvec {
    double *to;
    const float *m;
    const double *x;
    size_t rows, columns;
} matvec;

static void multiply_rows(void *context, size_t first, size_t end) {
    const matvec *p = context;
    for (size_t r = first; r < end; r++) {
        double sum = 0.0;
        for (size_t i = 0; i < p->columns; i++)
            sum += (double)p->m[r * p->columns + i] * p->x[i];
        p->to[r] = sum;
    }
}

static void add_columns(void *context, size_t first, size_t end) {
    const matvec *p = context;
    for (size_t r = 0; r < p->rows; r++)
        for (size_t i = first; i < end; i++)
            p->to[i] += (double)p->m[r * p->columns + i] * p->x[r];
}

enum { WORTH = 1 << 18 }; /* fewest multiplications for which a thread is started */

static void multiply(double *to, const float *m, const double *x, size_t rows, size_t columns) {
    matvec p = {to, m, x, rows, columns};
    moert_parallel(rows, WORTH / columns, multiply_rows, &p);
}

static void add_transposed(double *to, const float *m, const double *x, size_t rows,
                           size_t columns) {
    matvec p = {to, m, x, rows, columns};
    moert_parallel(columns, WORTH / rows, add_columns, &p);
}

/* ---- routing ---- */

/* Copies the caller's choice of experts for a token. */
static void take_choice(const bench_layer_case *c, sample *s) {
    for (size_t slot = 0; slot < c->topk; slot++) {
        const int32_t chosen = c->index[s->token * c->topk + slot];
        s->chosen[slot] = chosen >= 0 ? (size_t)chosen : SIZE_MAX;
        s->weight[slot] = 1.0 / (double)c->topk;
    }
}

/* Routes a token; false if rounding could change the choice. */
static bool route(check *k, sample *s) {
    const bench_layer_case *c = k->c;
    if (c->index != NULL) {
        take_choice(c, s);
        return true;
    }
    const size_t others = c->experts - c->topk;      /* number of experts not chosen */
    double sum = 0.0, *x = k->out, *sorted = k->out; /* max(E,H) doubles */
    for (size_t i = 0; i < c->hidden; i++)
        x[i] = (double)bench_number(c->seed, s->token, i);
    multiply(k->logits, k->router, x, c->experts, c->hidden);
    memcpy(sorted, k->logits, c->experts * sizeof *sorted);
    moert_sort_numbers(sorted, c->experts);
    if (others > 0 && sorted[others] - sorted[others - 1] < MARGIN)
        return false;
    for (size_t slot = 0; slot < c->topk; slot++) {
        size_t best = 0;
        for (size_t e = 1; e < c->experts; e++)
            best = k->logits[e] > k->logits[best] ? e : best;
        s->chosen[slot] = best;
        s->weight[slot] = exp(k->logits[best] - sorted[c->experts - 1]);
        sum += s->weight[slot];
        k->logits[best] = -HUGE_VAL;
    }
    for (size_t slot = 0; slot < c->topk; slot++)
        s->weight[slot] /= sum;
    return true;
}

/* Divides each rank's tokens into BENCH_SAMPLES parts and samples the last token of each part. If
 * rounding could change this token's experts, samples an earlier token. */
static moert_status take_samples(check *k) {
    const bench_layer_case *c = k->c;
    for (size_t i = 0; i < k->samples; i++) {
        sample *s = &k->sampled[i];
        const size_t rank = i / BENCH_SAMPLES, part = i % BENCH_SAMPLES;
        size_t end = c->tokens * (part + 1) / BENCH_SAMPLES;
        do {
            if (end == 0)
                return MOERT_FAIL(ERROR_NUMERIC,
                                  "cannot check the layer: for every token, the last chosen expert "
                                  "and the next one have nearly equal scores");
            s->token = rank * c->tokens + --end;
        } while (!route(k, s));
    }
    return MOERT_OK;
}

/* ---- experts ---- */

/* Adds a slot's contributions to the sample's y and dx. The contribution to y is w2 (silu(g) u)
 * with g, u = w1 x. */
static void add_slot(check *k, const sample *s, size_t slot, parts p) {
    const size_t hidden = k->c->hidden, width = k->c->intermediate;
    const double weight = s->weight[slot];
    double *x = k->out;
    for (size_t i = 0; i < hidden; i++)
        x[i] = (double)bench_number(k->c->seed, s->token, i);
    multiply(k->g, k->w1, x, width, hidden);
    multiply(k->u, k->w1 + width * hidden, x, width, hidden);
    for (size_t i = 0; i < width; i++)
        k->h[i] = k->g[i] / (1.0 + exp(-k->g[i])) * k->u[i];
    multiply(k->out, k->w2, k->h, hidden, width);
    p.dot[slot] = 0.0;
    for (size_t i = 0; i < hidden; i++) {
        const double dy = (double)bench_number(k->c->seed + 1, s->token, i);
        p.y[i] += weight * k->out[i];
        p.dot[slot] += dy * k->out[i];
        k->out[i] = weight * dy;
    }
    for (size_t i = 0; i < width; i++)
        k->h[i] = 0.0;
    add_transposed(k->h, k->w2, k->out, hidden, width);
    for (size_t i = 0; i < width; i++) {
        const double sigmoid = 1.0 / (1.0 + exp(-k->g[i])), dh = k->h[i];
        k->h[i] = dh * k->u[i] * sigmoid * (1.0 + k->g[i] * (1.0 - sigmoid));
        k->u[i] = dh * k->g[i] * sigmoid;
    }
    add_transposed(p.dx, k->w1, k->h, width, hidden);
    add_transposed(p.dx, k->w1 + width * hidden, k->u, width, hidden);
}

static parts parts_of(const check *k, double *of, size_t i) {
    double *at = of + i * k->stride;
    return (parts){at, at + k->c->hidden, at + 2 * k->c->hidden};
}

static moert_status add_experts(check *k) {
    const bench_layer_case *c = k->c;
    const size_t weight = c->intermediate * c->hidden;
    for (size_t local = 0; local < moert_layer_local_experts(c->layer); local++) {
        bool read = false;
        for (size_t i = 0; i < k->samples * c->topk; i++) {
            const sample *s = &k->sampled[i / c->topk];
            if (s->chosen[i % c->topk] != moert_layer_expert(c->layer, local))
                continue;
            if (!read) {
                MOERT_TRY(moert_buffer_read(moert_layer_weight(c->layer, MOERT_LAYER_W1),
                                            2 * local * weight * sizeof(float), k->w1,
                                            2 * weight * sizeof(float)));
                MOERT_TRY(moert_buffer_read(moert_layer_weight(c->layer, MOERT_LAYER_W2),
                                            local * weight * sizeof(float), k->w2,
                                            weight * sizeof(float)));
            }
            read = true;
            add_slot(k, s, i % c->topk, parts_of(k, k->mine, i / c->topk));
        }
    }
    return MOERT_OK;
}

/* ---- sums and differences ---- */

/* Adds the router's contribution to dx: the gradients of the chosen logits, times the router's
 * rows. The weights are a softmax over the chosen logits. */
static void add_router(check *k, const sample *s, parts p) {
    const bench_layer_case *c = k->c;
    double mean = 0.0;
    for (size_t slot = 0; slot < c->topk; slot++)
        mean += s->weight[slot] * p.dot[slot];
    for (size_t slot = 0; slot < c->topk; slot++) {
        const double gradient = s->weight[slot] * (p.dot[slot] - mean);
        for (size_t i = 0; i < c->hidden; i++)
            p.dx[i] += gradient * (double)k->router[s->chosen[slot] * c->hidden + i];
    }
}

static double difference(const float *seen, const double *wanted, size_t count) {
    double largest = 0.0, off = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)seen[i] - wanted[i]);
        off = d > off || isnan(d) ? d : off;
        largest = fmax(largest, fabs(wanted[i]));
    }
    return off / largest;
}

/* Sums into `mine` the parts of the ranks that own the first set of experts. */
static moert_status add_up(check *k) {
    const size_t doubles = k->samples * k->stride;
    MOERT_TRY(moert_comm_allgather(k->c->comm, k->mine, doubles * sizeof *k->mine, k->all));
    for (size_t i = 0; i < doubles; i++) {
        k->mine[i] = 0.0;
        for (size_t r = 0; r < k->c->ep; r++)
            k->mine[i] += k->all[r * doubles + i];
    }
    return MOERT_OK;
}

static void compare(check *k, const float *y, const float *dx, double worst[2]) {
    const size_t first = moert_comm_rank(k->c->comm) * BENCH_SAMPLES, hidden = k->c->hidden;
    worst[0] = worst[1] = 0.0;
    for (size_t i = first; i < first + BENCH_SAMPLES; i++) {
        const size_t row = k->sampled[i].token % k->c->tokens * hidden;
        const parts p = parts_of(k, k->mine, i);
        if (k->c->index == NULL)
            add_router(k, &k->sampled[i], p);
        const double off[2] = {difference(y + row, p.y, hidden),
                               difference(dx + row, p.dx, hidden)};
        for (int j = 0; j < 2; j++)
            worst[j] = off[j] > worst[j] || isnan(off[j]) ? off[j] : worst[j];
    }
}

static moert_status agree_on_worst(check *k, double worst[2]) {
    MOERT_TRY(moert_comm_allgather(k->c->comm, worst, 2 * sizeof *worst, k->all));
    for (size_t i = 0; i < 2 * k->ranks; i++)
        if (!(k->all[i] <= worst[i % 2]))
            worst[i % 2] = k->all[i];
    return MOERT_OK;
}

static moert_status prepare(check *k) {
    const bench_layer_case *c = k->c;
    const size_t weight = c->intermediate * c->hidden;
    MOERT_TRY(MOERT_NEW_ARRAY(&k->router, c->experts * c->hidden));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->logits, c->experts));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->sampled, k->samples));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->w1, 2 * weight));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->w2, weight));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->g, c->intermediate));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->u, c->intermediate));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->h, c->intermediate));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->out, moert_max(c->hidden, c->experts)));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->mine, k->samples * k->stride));
    MOERT_TRY(MOERT_NEW_ARRAY(&k->all, k->ranks * k->samples * k->stride));
    if (c->index == NULL)
        MOERT_TRY(moert_buffer_read(moert_layer_weight(c->layer, MOERT_LAYER_ROUTER), 0, k->router,
                                    c->experts * c->hidden * sizeof(float)));
    MOERT_TRY(take_samples(k));
    return add_experts(k);
}

moert_status bench_layer_check(const bench_layer_case *c, const float *y, const float *dx,
                               double worst[2]) {
    const size_t ranks = moert_comm_size(c->comm);
    check k = {.c = c,
               .ranks = ranks,
               .samples = ranks * BENCH_SAMPLES,
               .stride = 2 * c->hidden + c->topk};
    moert_status status;
    MOERT_TRY_OR(release, moert_comm_agree(c->comm, prepare(&k)));
    MOERT_TRY_OR(release, add_up(&k));
    compare(&k, y, dx, worst);
    status = agree_on_worst(&k, worst);
release:
    MOERT_FREE(k.router, k.logits, k.sampled, k.w1, k.w2, k.g, k.u, k.h, k.out, k.mine, k.all);
    return status;
}
