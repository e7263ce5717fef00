/* Adds up a training step. */
#include "bench/predict/step.h"

enum {
    ROW_PASSES =
        40, /* of T rows of H float32 in a layer outside of its products: norms, positions, adds */
    LOGIT_PASSES = 4,     /* of T rows of V: the loss and its gradient */
    OPTIMIZER_BYTES = 28, /* of a number: gradient, weight and two moments, read and written */
};
#define KERNEL_SHARE 0.8 /* of the copy rate; the optimizer reaches all of it */

/* Forward, dgrad and wgrad of a weight [n,k] that all rows meet. */
static moert_status add_product(const bench_machine *m, const bench_work *w, double n, double k,
                                double *seconds) {
    static const char *const ops[] = {"forward", "dgrad", "wgrad"};
    double one;
    for (int i = 0; i < 3; i++) {
        const bench_product product = {ops[i], w->type, 1.0, (double)w->tokens, n, k};
        MOERT_TRY(bench_machine_product(m, &product, &one));
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
    const double experts = (double)((work->experts + work->ep - 1) / work->ep);
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
        .sums = bench_sum_seconds(m, work->ranks, work->ranks, 4.0 * dense_numbers),
    };
    step->seconds = step->layers + step->dense + step->optimizer + step->sums;
    return MOERT_OK;
}
