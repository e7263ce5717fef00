/*
 * bench_attention: rates of causal attention, forward and backward, each result checked against
 * float64. bench/rivals/torch_attention.py runs the same rows for PyTorch.
 *
 * A sample is 50 ms of calls in a row after 25 ms that do not count; the rate is the median of
 * several samples. The formulas have 2 GEMMs forward and 5 backward, each of
 * 2 * S * heads * D * L * (L + 1) / 2 FLOP; work that a form repeats does not count. Operands
 * repeat patterns of random numbers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention/attention.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "bench/common/rate.h"
#include "bench/common/report.h"

enum { CHECKS = 24, Q, K, V, DOUT, OPERANDS };

static moert_attention chosen;
static unsigned dtype;
static size_t seed;
static const char *json_path;

static const moert_option options[] = {
    {"sequences", MOERT_OPTION_UINT, &chosen.sequences, "16", "1..65536", "S"},
    {"length", MOERT_OPTION_UINT, &chosen.length, "1024", "1..1048576", "tokens of a sequence, L"},
    {"heads", MOERT_OPTION_UINT, &chosen.heads, "32", "1..1024", "of q"},
    {"kv-heads", MOERT_OPTION_UINT, &chosen.kv_heads, "4", "1..1024", "of k and v"},
    {"head-size", MOERT_OPTION_UINT, &chosen.head_size, "128", "1..512", "D"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "all", "all|f32|bf16", "of the GEMMs' operands"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of the operands"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, NULL, "file for the rows, an array of objects"},
};

typedef struct bench {
    moert_device *device;
    moert_attention a;
    moert_buffer *scratch;
    float *pattern[OPERANDS]; /* [BENCH_PATTERN] */
    float *out, *lse;         /* of the device */
    bench_rows rows;
} bench;

/* ---- data ---- */

static double value_of(const bench *b, int operand, size_t index) {
    return b->pattern[operand][index % BENCH_PATTERN];
}

static moert_status make_operand(bench *b, int operand, size_t count, const moert_buffer **buffer) {
    moert_buffer *made;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->pattern[operand], BENCH_PATTERN));
    for (size_t i = 0; i < BENCH_PATTERN; i++) /* scores get a standard deviation of 4/3 */
        b->pattern[operand][i] = (float)(4.0 * moert_rng_uniform(seed, (uint64_t)operand, i) - 2.0);
    MOERT_TRY(moert_buffer_create(b->device, count * sizeof(float), &made));
    *buffer = made;
    return bench_pattern_fill(made, b->pattern[operand], sizeof(float), 0);
}

static size_t tokens_of(const bench *b) {
    return b->a.sequences * b->a.length;
}

static moert_status prepare(bench *b) {
    moert_attention *a = &b->a;
    const size_t narrow = tokens_of(b) * a->kv_heads * a->head_size;
    const size_t wide = tokens_of(b) * a->heads * a->head_size, rows = tokens_of(b) * a->heads;
    MOERT_TRY(make_operand(b, Q, wide, &a->q));
    MOERT_TRY(make_operand(b, K, narrow, &a->k));
    MOERT_TRY(make_operand(b, V, narrow, &a->v));
    MOERT_TRY(make_operand(b, DOUT, wide, &a->dout));
    MOERT_TRY(moert_buffer_create(b->device, wide * sizeof(float), &a->out));
    MOERT_TRY(moert_buffer_create(b->device, wide * sizeof(float), &a->dq));
    MOERT_TRY(moert_buffer_create(b->device, narrow * sizeof(float), &a->dk));
    MOERT_TRY(moert_buffer_create(b->device, narrow * sizeof(float), &a->dv));
    MOERT_TRY(moert_buffer_create(b->device, rows * sizeof(float), &a->lse));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->out, wide));
    return MOERT_NEW_ARRAY(&b->lse, rows);
}

static void release(bench *b) {
    moert_attention *a = &b->a;
    MOERT_DESTROY((moert_buffer *)a->q, (moert_buffer *)a->k, (moert_buffer *)a->v,
                  (moert_buffer *)a->dout, a->out, a->lse, a->dq, a->dk, a->dv, b->scratch);
    for (int i = 0; i < OPERANDS; i++)
        free(b->pattern[i]);
    MOERT_FREE(b->out, b->lse);
}

/* ---- checks ---- */

/* An element to check: a position of a sequence, as query and as key; a head and its kv head; a
 * column. */
typedef struct spot {
    size_t sequence, position, head, kv_head, column;
} spot;

/* A sum, and the sum of the squares of its summands, which bounds its error. */
typedef struct sum {
    double value, squares;
} sum;

static void add(sum *s, double term) {
    s->value += term;
    s->squares += term * term;
}

static size_t q_row(const bench *b, const spot *at, size_t head, size_t i) {
    return ((at->sequence * b->a.length + i) * b->a.heads + head);
}
static size_t kv_row(const bench *b, const spot *at, size_t j) {
    return ((at->sequence * b->a.length + j) * b->a.kv_heads + at->kv_head);
}

static double dot(const bench *b, int wide, size_t row, int narrow, size_t other) {
    const size_t d = b->a.head_size;
    double total = 0.0;
    for (size_t c = 0; c < d; c++)
        total += value_of(b, wide, row * d + c) * value_of(b, narrow, other * d + c);
    return total;
}

static double score(const bench *b, const spot *at, size_t head, size_t i, size_t j) {
    return (double)b->a.scale * dot(b, Q, q_row(b, at, head, i), K, kv_row(b, at, j));
}

/* out and lse of the spot's query. */
static void expect_forward(const bench *b, const spot *at, sum *out, double *lse) {
    double total = 0.0;
    for (size_t j = 0; j <= at->position; j++)
        total += exp(score(b, at, at->head, at->position, j));
    *lse = log(total);
    for (size_t j = 0; j <= at->position; j++)
        add(out, exp(score(b, at, at->head, at->position, j)) / total *
                     value_of(b, V, kv_row(b, at, j) * b->a.head_size + at->column));
}

/* Sets *p and returns ds. Both use the device's out and lse, which expect_forward() checks. */
static double gradient(const bench *b, const spot *at, size_t head, size_t i, size_t j, double *p) {
    const size_t row = q_row(b, at, head, i), d = b->a.head_size;
    double delta = 0.0;
    for (size_t c = 0; c < d; c++)
        delta += value_of(b, DOUT, row * d + c) * (double)b->out[row * d + c];
    *p = exp(score(b, at, head, i, j) - (double)b->lse[row]);
    return *p * (dot(b, DOUT, row, V, kv_row(b, at, j)) - delta);
}

/* dq of the spot's position as a query; dk and dv of the same position as a key. */
static void expect_backward(const bench *b, const spot *at, sum *dq, sum *dk, sum *dv) {
    const size_t d = b->a.head_size, group = b->a.heads / b->a.kv_heads;
    double p;
    for (size_t j = 0; j <= at->position; j++)
        add(dq, (double)b->a.scale * gradient(b, at, at->head, at->position, j, &p) *
                    value_of(b, K, kv_row(b, at, j) * d + at->column));
    for (size_t head = at->kv_head * group; head < (at->kv_head + 1) * group; head++)
        for (size_t i = at->position; i < b->a.length; i++) {
            const double ds = gradient(b, at, head, i, at->position, &p);
            const size_t element = q_row(b, at, head, i) * d + at->column;
            add(dk, (double)b->a.scale * ds * value_of(b, Q, element));
            add(dv, p * value_of(b, DOUT, element));
        }
}

/* Raises *worst to the error over the root of the sum of squares. */
static moert_status judge(const moert_buffer *result, size_t element, sum want, double *worst) {
    float got;
    MOERT_TRY(moert_buffer_read(result, element * sizeof got, &got, sizeof got));
    const double off = fabs((double)got - want.value) / fmax(sqrt(want.squares), 1e-30);
    if (!(off <= *worst))
        *worst = off;
    return MOERT_OK;
}

/* Raises worst[0] to the largest error of sampled elements of the forward, worst[1] to that of the
 * backward. */
static moert_status check(bench *b, double worst[2]) {
    const moert_attention *a = &b->a;
    const size_t d = a->head_size;
    MOERT_TRY(moert_buffer_read(a->out, 0, b->out, tokens_of(b) * a->heads * d * sizeof(float)));
    MOERT_TRY(moert_buffer_read(a->lse, 0, b->lse, tokens_of(b) * a->heads * sizeof(float)));
    for (size_t i = 0; i < CHECKS; i++) {
        spot at = {bench_pick(seed, 10, i, a->sequences), bench_pick(seed, 11, i, a->length),
                   bench_pick(seed, 12, i, a->heads), 0, bench_pick(seed, 13, i, d)};
        at.kv_head = at.head * a->kv_heads / a->heads;
        const size_t row = q_row(b, &at, at.head, at.position);
        const size_t key = kv_row(b, &at, at.position);
        sum out = {0}, dq = {0}, dk = {0}, dv = {0};
        double lse;
        expect_forward(b, &at, &out, &lse);
        worst[0] = fmax(worst[0], fabs((double)b->lse[row] - lse));
        MOERT_TRY(judge(a->out, row * d + at.column, out, &worst[0]));
        expect_backward(b, &at, &dq, &dk, &dv);
        MOERT_TRY(judge(a->dq, row * d + at.column, dq, &worst[1]));
        MOERT_TRY(judge(a->dk, key * d + at.column, dk, &worst[1]));
        MOERT_TRY(judge(a->dv, key * d + at.column, dv, &worst[1]));
    }
    return MOERT_OK;
}

/* ---- rates ---- */

static moert_status forward(void *attention) {
    return moert_attention_forward(attention);
}

static moert_status backward(void *attention) {
    return moert_attention_backward(attention);
}

static moert_status report(bench *b, const char *op, double tflops, double worst) {
    const moert_attention *a = &b->a;
    const char *type = moert_dtype_name(a->type);
    const bool wrong = !(worst <= (a->type == MOERT_DTYPE_BF16 ? 0.03 : 1e-4));
    json_t *row =
        json_pack("{ss ss sI sI sI sI sI sf sf sb}", "op", op, "dtype", type, "S",
                  (json_int_t)a->sequences, "L", (json_int_t)a->length, "heads",
                  (json_int_t)a->heads, "kv_heads", (json_int_t)a->kv_heads, "D",
                  (json_int_t)a->head_size, "tflops", tflops, "error", worst, "wrong", wrong);
    printf("%-9s %-5s %5zu %6zu %5zu %8zu %4zu %8.1f %9.2e %s\n", op, type, a->sequences, a->length,
           a->heads, a->kv_heads, a->head_size, tflops, worst, wrong ? "wrong" : "right");
    fflush(stdout);
    return bench_rows_add(&b->rows, row, wrong);
}

static moert_status run_type(bench *b, moert_dtype type) {
    static const struct {
        const char *name;
        moert_status (*call)(void *);
        double gemms;
    } ops[] = {{"forward", forward, 2}, {"backward", backward, 5}};
    moert_attention *a = &b->a;
    double worst[2] = {0}, tflops;
    a->type = type;
    MOERT_TRY(moert_attention_forward(a));
    MOERT_TRY(moert_attention_backward(a));
    MOERT_TRY(check(b, worst));
    for (size_t i = 0; i < MOERT_COUNT(ops); i++) {
        const double flops = ops[i].gemms * (double)(a->sequences * a->heads * a->head_size) *
                             (double)a->length * ((double)a->length + 1.0);
        MOERT_TRY(bench_rate(b->device, ops[i].call, a, flops, &tflops));
        MOERT_TRY(report(b, ops[i].name, tflops, worst[i]));
    }
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    bench b = {.device = moert_context_device(context), .a = chosen, .rows = {json_array(), 0}};
    moert_status status;
    b.a.scale = 1.0f / sqrtf((float)chosen.head_size);
    b.a.scratch = &b.scratch;
    printf("# moert %s, %s\n%-9s %-5s %5s %6s %5s %8s %4s %8s %9s\n", bench_report_commit(),
           moert_device_name(b.device), "#op", "dtype", "S", "L", "heads", "kv_heads", "D",
           "TFLOP/s", "error");
    MOERT_TRY_OR(release, prepare(&b));
    for (unsigned i = 0; i < 2; i++)
        if (dtype == 0 || dtype == i + 1)
            MOERT_TRY_OR(release, run_type(&b, i == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16));
release:
    release(&b);
    return bench_rows_end(&b.rows, context, json_path, "results", status);
}

MOERT_PROGRAM_MAIN(
    "bench_attention [OPTION...]",
    "Times causal attention on a device and checks its results. Exits with 1 if a result "
    "is wrong.",
    NULL)
