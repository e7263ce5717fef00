/* Makes rows and looks at what has become of them. */
#include "payload.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "moert/plan.h"
#include "tokens.h"

const char *bench_dtype_name(bench_dtype dtype) {
    static const char *const names[] = {"f32", "bf16", "mxfp8"};
    return names[dtype];
}

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

/* Column `column` of a token, of F32 or BF16. */
static float number(const bench_payload *p, uint64_t token, size_t column) {
    const float x = bench_number(p->seed, token, column);
    return p->dtype == BENCH_F32 ? x : moert_number_of_bits(moert_number_bits_of(x) & 0xFFFF0000);
}

/* Float `place` of a token's row: a number, two codes, or any bits. */
static uint32_t bits(const bench_payload *p, uint64_t token, size_t place) {
    if (p->dtype == BENCH_F32)
        return moert_number_bits_of(number(p, token, place));
    if (p->dtype == BENCH_BF16)
        return moert_number_bits_of(number(p, token, 2 * place)) >> 16 |
               moert_number_bits_of(number(p, token, 2 * place + 1));
    return bench_word(p->seed, token, place);
}

void bench_payload_fill(const bench_payload *p, uint64_t first, size_t tokens, float *rows) {
    const size_t width = bench_payload_width(p);
    for (size_t i = 0; i < tokens * width; i++) {
        const uint32_t word = bits(p, first + i / width, i % width);
        memcpy(&rows[i], &word, sizeof word);
    }
}

size_t bench_payload_wrong_rows(const bench_payload *p, const uint64_t *token_of, size_t count,
                                const float *rows, size_t stride) {
    const size_t width = bench_payload_width(p);
    size_t wrong = 0;
    for (size_t i = 0; i < count * width; i++) {
        const uint32_t word = bits(p, token_of[i / width], i % width);
        wrong += memcmp(&rows[i / width * stride + i % width], &word, sizeof word) != 0;
    }
    return wrong;
}

size_t bench_payload_wrong_sums(const bench_payload *p, uint64_t first, size_t tokens, size_t topk,
                                const float *weight, const uint32_t *slot_rank, const float *sums) {
    size_t wrong = 0;
    for (size_t t = 0; t < tokens; t++)
        for (size_t c = 0; c < p->hidden; c++) {
            const float x = number(p, first + t, c);
            const float seen = sums[t * p->hidden + c];
            float sum = 0.0f, magnitude = 0.0f;
            for (size_t s = t * topk; s < (t + 1) * topk; s++)
                if (slot_rank[s] != MOERT_PLAN_DROPPED) {
                    sum = fmaf(weight[s], x, sum);
                    magnitude += fabsf(weight[s] * x);
                }
            wrong += p->slack > 0.0f ? !(fabsf(seen - sum) <= p->slack * magnitude)
                                     : memcmp(&seen, &sum, sizeof sum) != 0;
        }
    return wrong;
}
