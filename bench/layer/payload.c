/* Makes the rows of bench_exchange, and checks rows and sums. */
#include "bench/layer/payload.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "bench/common/tokens.h"
#include "moert/plan.h"

size_t bench_payload_width(const bench_payload *p) {
    switch (p->dtype) {
    case BENCH_F32:
        return p->hidden;
    case BENCH_BF16:
        return p->hidden / 2;
    default:
        return moert_ceil_div(p->hidden + moert_ceil_div(p->hidden, 32), sizeof(float));
    }
}

bool bench_payload_sums(const bench_payload *p) {
    return p->dtype != BENCH_MXFP8;
}

/* The value in a column of a token's row, F32 or BF16. */
static float element(const bench_payload *p, uint64_t token, size_t column) {
    const float x = bench_number(p->seed, token, column);
    return p->dtype == BENCH_F32 ? x : moert_float_from_bits(moert_float_bits(x) & 0xFFFF0000);
}

/* The bits of float `index` of a token's row: an F32 element, two BF16 elements, or random bits. */
static uint32_t bits(const bench_payload *p, uint64_t token, size_t index) {
    if (p->dtype == BENCH_F32)
        return moert_float_bits(element(p, token, index));
    if (p->dtype == BENCH_BF16)
        return moert_float_bits(element(p, token, 2 * index)) >> 16 |
               moert_float_bits(element(p, token, 2 * index + 1));
    return bench_word(p->seed, token, index);
}

enum { LEAST_ROWS = 16 }; /* of a thread */

/* Arguments of the parallel loops, which make rows, check rows, or check sums. */
typedef struct part {
    const bench_payload *payload;
    float *made;
    const uint64_t *token_of;
    const float *rows;
    size_t stride;
    uint64_t first; /* global token of the first row or sum */
    size_t topk;
    const float *weight;
    const uint32_t *slot_rank;
    atomic_size_t wrong;
} part;

static void fill(void *context, size_t begin, size_t end) {
    const part *p = context;
    const size_t width = bench_payload_width(p->payload);
    for (size_t i = begin * width; i < end * width; i++) {
        const uint32_t word = bits(p->payload, p->first + i / width, i % width);
        memcpy(&p->made[i], &word, sizeof word);
    }
}

void bench_payload_fill(const bench_payload *p, uint64_t first, size_t tokens, float *rows) {
    part f = {.payload = p, .made = rows, .first = first};
    moert_parallel(tokens, LEAST_ROWS, fill, &f);
}

static void check_rows(void *context, size_t begin, size_t end) {
    part *s = context;
    const size_t width = bench_payload_width(s->payload);
    size_t wrong = 0;
    for (size_t r = begin; r < end; r++)
        for (size_t i = 0; i < width; i++) {
            const uint32_t word = bits(s->payload, s->token_of[r], i);
            wrong += memcmp(&s->rows[r * s->stride + i], &word, sizeof word) != 0;
        }
    atomic_fetch_add(&s->wrong, wrong);
}

size_t bench_payload_wrong_rows(const bench_payload *p, const uint64_t *token_of, size_t count,
                                const float *rows, size_t stride) {
    part s = {.payload = p, .token_of = token_of, .rows = rows, .stride = stride};
    moert_parallel(count, LEAST_ROWS, check_rows, &s);
    return atomic_load(&s.wrong);
}

/* Whether sum_seen differs from the expected sum: x times the sum of the weights of a token's
 * slots. */
static bool is_wrong(const part *s, size_t token, float x, float sum_seen) {
    const bench_payload *p = s->payload;
    float sum = 0.0f, magnitude = 0.0f;
    for (size_t i = token * s->topk; i < (token + 1) * s->topk; i++)
        if (s->slot_rank[i] != MOERT_PLAN_DROPPED) {
            sum = fmaf(s->weight[i], x, sum);
            magnitude += fabsf(s->weight[i] * x);
        }
    return p->slack > 0.0f ? !(fabsf(sum_seen - sum) <= p->slack * magnitude)
                           : memcmp(&sum_seen, &sum, sizeof sum) != 0;
}

static void check_sums(void *context, size_t begin, size_t end) {
    part *s = context;
    const size_t hidden = s->payload->hidden;
    size_t wrong = 0;
    for (size_t t = begin; t < end; t++)
        for (size_t c = 0; c < hidden; c++)
            wrong += is_wrong(s, t, element(s->payload, s->first + t, c), s->rows[t * hidden + c]);
    atomic_fetch_add(&s->wrong, wrong);
}

size_t bench_payload_wrong_sums(const bench_payload *p, uint64_t first, const moert_plan *plan,
                                const float *weight, const float *sums) {
    part s = {.payload = p,
              .rows = sums,
              .first = first,
              .topk = plan->topk,
              .weight = weight,
              .slot_rank = plan->slot_rank};
    moert_parallel(plan->tokens, LEAST_ROWS, check_sums, &s);
    return atomic_load(&s.wrong);
}
