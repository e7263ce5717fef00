#include "bench/attention/problem.h"

#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "device/buffer.h"

enum { CHECKS = 24 };

/* ---- data ---- */

static size_t tokens_of(const bench_attention *b) {
    return b->a.sequences * b->a.length;
}

static double value_of(const bench_attention *b, int operand, size_t index) {
    return b->pattern[operand][index % BENCH_PATTERN];
}

static moert_status make_operand(moert_device *device, bench_attention *b, int operand,
                                 size_t count, const moert_buffer **buffer) {
    moert_buffer *made;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->pattern[operand], BENCH_PATTERN));
    /* these values give the attention scores a standard deviation of 4/3 */
    for (size_t i = 0; i < BENCH_PATTERN; i++)
        b->pattern[operand][i] =
            (float)(4.0 * moert_rng_uniform(b->seed, (uint64_t)operand, i) - 2.0);
    MOERT_TRY(moert_buffer_create(device, count * sizeof(float), &made));
    *buffer = made;
    return bench_pattern_fill(made, b->pattern[operand], sizeof(float), 0);
}

/* Divides each sequence into documents of `tokens` tokens; the last document of a sequence may be
 * shorter. */
static moert_status make_documents(moert_device *device, const bench_attention_shape *s,
                                   moert_documents **documents) {
    int32_t *positions;
    moert_status status;
    MOERT_TRY(moert_documents_create(device, documents));
    MOERT_TRY(MOERT_NEW_ARRAY(&positions, s->a.sequences * s->a.length));
    for (size_t t = 0; t < s->a.sequences * s->a.length; t++)
        positions[t] = (int32_t)(t % s->a.length % s->documents);
    status = moert_documents_set(*documents, s->a.sequences, s->a.length, positions);
    free(positions);
    return status;
}

moert_status bench_attention_create(moert_device *device, const bench_attention_shape *shape,
                                    size_t seed, bench_attention *b) {
    *b = (bench_attention){.a = shape->a, .documents = shape->documents, .seed = seed};
    moert_attention *a = &b->a;
    a->value_size = a->value_size > 0 ? a->value_size : a->head_size;
    a->window = a->window > 0 ? a->window : a->length;
    a->scale = 1.0f / sqrtf((float)a->head_size);
    a->scratch = &b->scratch;
    const size_t rows = tokens_of(b) * a->heads, narrow = tokens_of(b) * a->kv_heads,
                 d = a->head_size, e = a->value_size;
    const struct {
        moert_buffer **buffer;
        size_t floats;
    } results[] = {
        {&a->out, rows * e},  {&a->lse, rows},      {&a->dq, rows * d},
        {&a->dk, narrow * d}, {&a->dv, narrow * e}, {&a->dsinks, a->sequences * a->heads},
    };
    MOERT_TRY(make_operand(device, b, BENCH_Q, rows * d, &a->q));
    MOERT_TRY(make_operand(device, b, BENCH_K, narrow * d, &a->k));
    MOERT_TRY(make_operand(device, b, BENCH_V, narrow * e, &a->v));
    MOERT_TRY(make_operand(device, b, BENCH_DOUT, rows * e, &a->dout));
    if (shape->sinks)
        MOERT_TRY(make_operand(device, b, BENCH_SINKS, a->heads, &a->sinks));
    for (size_t i = 0; i < MOERT_COUNT(results) - !shape->sinks; i++)
        MOERT_TRY(
            moert_buffer_create(device, results[i].floats * sizeof(float), results[i].buffer));
    if (shape->documents > 0)
        MOERT_TRY(make_documents(device, shape, &a->documents));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->out, rows * e));
    return MOERT_NEW_ARRAY(&b->lse, rows);
}

void bench_attention_destroy(bench_attention *b) {
    moert_attention *a = &b->a;
    MOERT_DESTROY((moert_buffer *)a->q, (moert_buffer *)a->k, (moert_buffer *)a->v,
                  (moert_buffer *)a->sinks, (moert_buffer *)a->dout, a->out, a->lse, a->dq, a->dk,
                  a->dv, a->dsinks, b->scratch);
    moert_documents_destroy(a->documents);
    for (int i = 0; i < BENCH_ATTENTION_OPERANDS; i++)
        free(b->pattern[i]);
    MOERT_FREE(b->out, b->lse);
}

/* Fills the buffer of one operand of the attention with the operand's pattern. */
static moert_status set_operand(const bench_attention *b, int operand, const moert_buffer *buffer) {
    uint16_t *bf16;
    if (b->a.operands == MOERT_DTYPE_F32)
        return bench_pattern_fill((moert_buffer *)buffer, b->pattern[operand], sizeof(float), 0);
    MOERT_TRY(MOERT_NEW_ARRAY(&bf16, BENCH_PATTERN));
    for (size_t i = 0; i < BENCH_PATTERN; i++)
        bf16[i] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, b->pattern[operand][i]);
    const moert_status status = bench_pattern_fill((moert_buffer *)buffer, bf16, sizeof *bf16, 0);
    free(bf16);
    return status;
}

moert_status bench_attention_set(bench_attention *b, moert_dtype type) {
    b->a.type = type;
    b->a.operands = moert_attention_operands(moert_buffer_device(b->a.q), &b->a);
    MOERT_TRY(set_operand(b, BENCH_Q, b->a.q));
    MOERT_TRY(set_operand(b, BENCH_K, b->a.k));
    MOERT_TRY(set_operand(b, BENCH_V, b->a.v));
    return set_operand(b, BENCH_DOUT, b->a.dout);
}

double bench_attention_flops(const bench_attention *b, bool backward) {
    const moert_attention *s = &b->a;
    const double pairs = b->documents > 0
                             ? moert_documents_pairs(s->documents, s->window)
                             : (double)s->sequences * moert_attention_pairs(s->length, s->window);
    const size_t widths = (backward ? 3 : 1) * s->head_size + (backward ? 2 : 1) * s->value_size;
    return 2.0 * pairs * (double)(s->heads * widths);
}

/* ---- checks ---- */

/* The elements to check: a position of a sequence, used as a query and as a key; a head and its kv
 * head; a column of a query or key, and a column of a value. */
typedef struct spot {
    size_t sequence, position, head, kv_head, column, value_column;
} spot;

/* A sum, and the sum of the squares of its summands; the root of the second bounds the rounding
 * error of the first. */
typedef struct sum {
    double value, squares;
} sum;

static void add(sum *s, double term) {
    s->value += term;
    s->squares += term * term;
}

/* The keys [first, i] that query i sees, and the queries [j, end) that see key j. */
static size_t first_key(const bench_attention *b, size_t i) {
    const size_t start = b->documents > 0 ? i - i % b->documents : 0;
    return i + 1 > start + b->a.window ? i + 1 - b->a.window : start;
}
static size_t end_query(const bench_attention *b, size_t j) {
    const size_t own = b->documents;
    const size_t end = own > 0 ? moert_min(j - j % own + own, b->a.length) : b->a.length;
    return moert_min(end, j + b->a.window);
}

static size_t q_row(const bench_attention *b, const spot *at, size_t head, size_t i) {
    return ((at->sequence * b->a.length + i) * b->a.heads + head);
}
static size_t kv_row(const bench_attention *b, const spot *at, size_t j) {
    return ((at->sequence * b->a.length + j) * b->a.kv_heads + at->kv_head);
}

static double dot(const bench_attention *b, int wide, size_t row, int narrow, size_t other,
                  size_t d) {
    double total = 0.0;
    for (size_t c = 0; c < d; c++)
        total += value_of(b, wide, row * d + c) * value_of(b, narrow, other * d + c);
    return total;
}

static double score(const bench_attention *b, const spot *at, size_t head, size_t i, size_t j) {
    return (double)b->a.scale *
           dot(b, BENCH_Q, q_row(b, at, head, i), BENCH_K, kv_row(b, at, j), b->a.head_size);
}

/* Computes the expected out and lse of the spot's query. */
static void expect_forward(const bench_attention *b, const spot *at, sum *out, double *lse) {
    const size_t first = first_key(b, at->position);
    double total = b->a.sinks != NULL ? exp(value_of(b, BENCH_SINKS, at->head)) : 0.0;
    for (size_t j = first; j <= at->position; j++)
        total += exp(score(b, at, at->head, at->position, j));
    *lse = log(total);
    for (size_t j = first; j <= at->position; j++)
        add(out, exp(score(b, at, at->head, at->position, j)) / total *
                     value_of(b, BENCH_V, kv_row(b, at, j) * b->a.value_size + at->value_column));
}

static double delta_of(const bench_attention *b, size_t row) {
    double delta = 0.0;
    for (size_t c = 0; c < b->a.value_size; c++)
        delta += value_of(b, BENCH_DOUT, row * b->a.value_size + c) *
                 (double)b->out[row * b->a.value_size + c];
    return delta;
}

/* Sets *p to the probability of query i and key j, and returns ds, the gradient of their score.
 * *p and ds follow from the device's out and lse, which are checked against expect_forward(). */
static double gradient(const bench_attention *b, const spot *at, size_t head, size_t i, size_t j,
                       double *p) {
    const size_t row = q_row(b, at, head, i);
    *p = exp(score(b, at, head, i, j) - (double)b->lse[row]);
    return *p *
           (dot(b, BENCH_DOUT, row, BENCH_V, kv_row(b, at, j), b->a.value_size) - delta_of(b, row));
}

/* Computes the expected dq of the spot's position as a query, and dk and dv of the same position as
 * a key. */
static void expect_backward(const bench_attention *b, const spot *at, sum *dq, sum *dk, sum *dv) {
    const size_t d = b->a.head_size, e = b->a.value_size, group = b->a.heads / b->a.kv_heads;
    double p;
    for (size_t j = first_key(b, at->position); j <= at->position; j++)
        add(dq, (double)b->a.scale * gradient(b, at, at->head, at->position, j, &p) *
                    value_of(b, BENCH_K, kv_row(b, at, j) * d + at->column));
    for (size_t head = at->kv_head * group; head < (at->kv_head + 1) * group; head++)
        for (size_t i = at->position; i < end_query(b, at->position); i++) {
            const double ds = gradient(b, at, head, i, at->position, &p);
            const size_t row = q_row(b, at, head, i);
            add(dk, (double)b->a.scale * ds * value_of(b, BENCH_Q, row * d + at->column));
            add(dv, p * value_of(b, BENCH_DOUT, row * e + at->value_column));
        }
}

/* Computes the expected dsink of the spot's head and sequence. */
static void expect_sinks(const bench_attention *b, const spot *at, sum *dsink) {
    for (size_t i = 0; i < b->a.length; i++) {
        const size_t row = q_row(b, at, at->head, i);
        add(dsink,
            -exp(value_of(b, BENCH_SINKS, at->head) - (double)b->lse[row]) * delta_of(b, row));
    }
}

/* Raises *worst to the element's error divided by the root of want.squares, if that is larger. */
static moert_status judge(const moert_buffer *result, size_t element, sum want, double *worst) {
    float got;
    MOERT_TRY(moert_buffer_read(result, element * sizeof got, &got, sizeof got));
    const double off = fabs((double)got - want.value) / fmax(sqrt(want.squares), 1e-30);
    if (!(off <= *worst))
        *worst = off;
    return MOERT_OK;
}

static moert_status check_spot(const bench_attention *b, const spot *at, double worst[2]) {
    const moert_attention *a = &b->a;
    const size_t d = a->head_size, e = a->value_size, row = q_row(b, at, at->head, at->position),
                 key = kv_row(b, at, at->position);
    sum out = {0}, dq = {0}, dk = {0}, dv = {0}, dsink = {0};
    double lse;
    expect_forward(b, at, &out, &lse);
    worst[0] = fmax(worst[0], fabs((double)b->lse[row] - lse));
    MOERT_TRY(judge(a->out, row * e + at->value_column, out, &worst[0]));
    expect_backward(b, at, &dq, &dk, &dv);
    MOERT_TRY(judge(a->dq, row * d + at->column, dq, &worst[1]));
    MOERT_TRY(judge(a->dk, key * d + at->column, dk, &worst[1]));
    MOERT_TRY(judge(a->dv, key * e + at->value_column, dv, &worst[1]));
    if (a->sinks == NULL)
        return MOERT_OK;
    expect_sinks(b, at, &dsink);
    return judge(a->dsinks, at->sequence * a->heads + at->head, dsink, &worst[1]);
}

moert_status bench_attention_check(bench_attention *b, double worst[2]) {
    const moert_attention *a = &b->a;
    const size_t rows = tokens_of(b) * a->heads;
    MOERT_TRY(moert_buffer_read(a->out, 0, b->out, rows * a->value_size * sizeof(float)));
    MOERT_TRY(moert_buffer_read(a->lse, 0, b->lse, rows * sizeof(float)));
    for (size_t i = 0; i < CHECKS; i++) {
        spot at = {
            bench_pick(b->seed, 10, i, a->sequences), bench_pick(b->seed, 11, i, a->length),
            bench_pick(b->seed, 12, i, a->heads),     0,
            bench_pick(b->seed, 13, i, a->head_size), bench_pick(b->seed, 14, i, a->value_size)};
        at.kv_head = at.head * a->kv_heads / a->heads;
        MOERT_TRY(check_spot(b, &at, worst));
    }
    return MOERT_OK;
}
