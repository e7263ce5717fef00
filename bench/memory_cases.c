/*
 * The kernels of bench_memory. `bytes` counts each operand once, float32 unless said: what a kernel
 * reads twice, or out of a cache, does not make its rate better. Everything is computed once more
 * in float64, for single elements.
 */
#include <math.h>

#include "base/memory.h"
#include "base/number.h"
#include "memory.h"
#include "memory_cases.h"
#include "moert/quantize.h"

enum { HEAD = 128 }; /* rotated heads */
#define EPSILON 1e-6

static double value(const bench_memory *b, size_t input, size_t index) {
    return bench_memory_value(b, input, index);
}

moert_status bench_read(const moert_buffer *buffer, size_t index, double *x) {
    float got;
    MOERT_TRY(moert_buffer_read(buffer, index * sizeof got, &got, sizeof got));
    *x = (double)got;
    return MOERT_OK;
}

size_t bench_pick(double chosen, size_t count) {
    return (size_t)(chosen * (double)count);
}

static double token_floats(const bench_sizes *s) {
    return 4.0 * (double)(s->tokens * s->hidden);
}

/* out[0] = in[0], for kernels that work in place; the others are 0. */
static moert_status copy_input(const bench_memory *b) {
    for (size_t i = 1; i < BENCH_RESULTS; i++)
        MOERT_TRY(moert_buffer_clear(b->out[i], 0, moert_buffer_bytes(b->out[i])));
    return moert_buffer_copy(b->in[0], 0, b->out[0], 0, moert_buffer_bytes(b->in[0]));
}

/* ---- RMSNorm of [T,H]: x = in[0], weight = in[2], dy = in[1] ---- */

static double norm_bytes(const bench_sizes *s) {
    return 2.0 * token_floats(s) + 4.0 * (double)(s->tokens + s->hidden);
}

static moert_status norm_run(const bench_memory *b) {
    return moert_norm_forward(b->of.tokens, b->of.hidden, (float)EPSILON, b->in[0], b->in[2],
                              b->out[0], b->out[1]);
}

static double norm_scale(const bench_memory *b, size_t row) {
    double squares = 0.0;
    for (size_t c = 0; c < b->of.hidden; c++)
        squares += value(b, 0, row * b->of.hidden + c) * value(b, 0, row * b->of.hidden + c);
    return 1.0 / sqrt(squares / (double)b->of.hidden + EPSILON);
}

static moert_status norm_check(const bench_memory *b, double chosen, double *got, double *want) {
    const size_t at = bench_pick(chosen, b->of.tokens * b->of.hidden);
    *want = value(b, 0, at) * norm_scale(b, at / b->of.hidden) * value(b, 2, at % b->of.hidden);
    return bench_read(b->out[0], at, got);
}

static double norm_backward_bytes(const bench_sizes *s) {
    return 3.0 * token_floats(s) + 4.0 * (double)(s->tokens + 2 * s->hidden);
}

static moert_status norm_backward_run(const bench_memory *b) {
    return moert_norm_backward(&(moert_norm_gradient){.sequences = 1,
                                                      .rows = b->of.tokens,
                                                      .width = b->of.hidden,
                                                      .x = b->in[0],
                                                      .weight = b->in[2],
                                                      .rstd = b->out[1],
                                                      .dy = b->in[1],
                                                      .dx = b->out[0],
                                                      .partial = b->out[2]});
}

static moert_status norm_backward_check(const bench_memory *b, double chosen, double *got,
                                        double *want) {
    const size_t h = b->of.hidden, at = bench_pick(chosen, b->of.tokens * h), first = at - at % h;
    const double scale = norm_scale(b, at / h);
    double products = 0.0;
    for (size_t c = 0; c < h; c++)
        products += value(b, 1, first + c) * value(b, 2, c) * value(b, 0, first + c);
    *want = value(b, 1, at) * value(b, 2, at % h) * scale -
            value(b, 0, at) * scale * scale * scale * products / (double)h;
    return bench_read(b->out[0], at, got);
}

/* ---- in place, from in[0] ---- */

static double in_place_bytes(const bench_sizes *s) {
    return 2.0 * token_floats(s);
}

static moert_status rope_run(const bench_memory *b) {
    return moert_rope(b->of.tokens, b->of.tokens, b->of.hidden / HEAD, HEAD, b->rope, false,
                      b->out[0]);
}

static moert_status rope_check(const bench_memory *b, double chosen, double *got, double *want) {
    const size_t at = bench_pick(chosen, b->of.tokens * b->of.hidden), i = at % HEAD,
                 pair = HEAD / 2;
    const size_t line = at / b->of.hidden * HEAD, other = i < pair ? at + pair : at - pair;
    double cosine = 0.0, sine = 0.0;
    MOERT_TRY(bench_read(b->rope, line + i % pair, &cosine));
    MOERT_TRY(bench_read(b->rope, line + pair + i % pair, &sine));
    *want = value(b, 0, at) * cosine + value(b, 0, other) * (i < pair ? -sine : sine);
    return bench_read(b->out[0], at, got);
}

static double add_bytes(const bench_sizes *s) {
    return 3.0 * token_floats(s);
}

static moert_status add_run(const bench_memory *b) {
    return moert_add(b->of.tokens * b->of.hidden, b->in[1], b->out[0]);
}

static moert_status add_check(const bench_memory *b, double chosen, double *got, double *want) {
    const size_t at = bench_pick(chosen, b->of.tokens * b->of.hidden);
    *want = value(b, 0, at) + value(b, 1, at);
    return bench_read(b->out[0], at, got);
}

static const moert_adamw adamw = {1e-3, 0.9, 0.95, 1e-8, 0.1, 0.5, 1};

static double adamw_bytes(const bench_sizes *s) {
    return 7.0 * token_floats(s);
}

static moert_status adamw_run(const bench_memory *b) {
    return moert_adamw_step(&adamw, b->of.tokens * b->of.hidden, b->out[0], b->in[1], b->out[1],
                            b->out[2]);
}

/* In the first step the moments are the gradient and its square. */
static moert_status adamw_check(const bench_memory *b, double chosen, double *got, double *want) {
    const size_t at = bench_pick(chosen, b->of.tokens * b->of.hidden);
    const double g = value(b, 1, at) * adamw.scale;
    *want = value(b, 0, at) * (1.0 - adamw.rate * adamw.decay) -
            adamw.rate * g / (fabs(g) + adamw.epsilon);
    return bench_read(b->out[0], at, got);
}

#define FACTOR 0.125 /* of the loss's gradient */

static double loss_bytes(const bench_sizes *s) {
    return 8.0 * (double)(s->predicted * (s->vocabulary + 1));
}

static moert_status loss_run(const bench_memory *b) {
    return moert_cross_entropy(b->of.predicted, b->of.vocabulary, b->token, (float)FACTOR,
                               b->out[0], b->out[1]);
}

static moert_status loss_check(const bench_memory *b, double chosen, double *got, double *want) {
    const size_t v = b->of.vocabulary, t = bench_pick(chosen, b->of.predicted);
    const size_t at = t * v + (size_t)b->tokens[t]; /* the target, where all terms show */
    double sum = 0.0;
    for (size_t c = 0; c < v; c++)
        sum += exp(value(b, 0, t * v + c));
    *want = FACTOR * (exp(value(b, 0, at)) / sum - 1.0);
    return bench_read(b->out[0], at, got);
}

/* ---- casts, embedding ---- */

static double cast_bytes(const bench_sizes *s) {
    return 1.5 * token_floats(s);
}

static moert_status cast_run(const bench_memory *b) {
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_NUMBER_F32,
                                        .to = MOERT_NUMBER_BF16,
                                        .n = b->of.tokens * b->of.hidden,
                                        .source = b->in[0],
                                        .target = b->out[0]});
}

static moert_status cast_check(const bench_memory *b, double chosen, double *got, double *want) {
    const size_t at = bench_pick(chosen, b->of.tokens * b->of.hidden);
    uint16_t code;
    MOERT_TRY(moert_buffer_read(b->out[0], at * sizeof code, &code, sizeof code));
    *got = (double)moert_number_decode(MOERT_NUMBER_BF16, code);
    *want = (double)moert_number_decode(
        MOERT_NUMBER_BF16, moert_number_encode(MOERT_NUMBER_BF16, (float)value(b, 0, at)));
    return MOERT_OK;
}

static moert_status embedding_run(const bench_memory *b) {
    return moert_embedding_forward(b->of.tokens, b->of.hidden, b->in[0], b->token, b->out[0]);
}

static moert_status embedding_check(const bench_memory *b, double chosen, double *got,
                                    double *want) {
    const size_t h = b->of.hidden, at = bench_pick(chosen, b->of.tokens * h);
    *want = value(b, 0, (size_t)b->tokens[at / h] * h + at % h);
    return bench_read(b->out[0], at, got);
}

/* ---- all ---- */

const bench_case bench_cases[] = {
    {"RMSNorm", norm_bytes, NULL, norm_run, norm_check},
    {"RMSNorm backward", norm_backward_bytes, norm_run, norm_backward_run, norm_backward_check},
    {"rotary positions", in_place_bytes, copy_input, rope_run, rope_check},
    {"add", add_bytes, copy_input, add_run, add_check},
    {"AdamW", adamw_bytes, copy_input, adamw_run, adamw_check},
    {"cast to bf16", cast_bytes, NULL, cast_run, cast_check},
    {"cross-entropy", loss_bytes, copy_input, loss_run, loss_check},
    {"embedding", in_place_bytes, NULL, embedding_run, embedding_check},
    {"GLU", bench_glu_bytes, NULL, bench_glu_run, bench_glu_check},
    {"GLU backward", bench_dglu_bytes, NULL, bench_dglu_run, bench_dglu_check},
    {"dispatch", bench_exchange_bytes, NULL, bench_dispatch_run, bench_dispatch_check},
    {"combine", bench_exchange_bytes, bench_dispatch_run, bench_combine_run, bench_combine_check},
    {"op permutation", bench_permute_bytes, NULL, bench_permute_run, bench_permute_check},
    {"router", bench_router_bytes, NULL, bench_router_run, bench_router_check},
    {"quantize MXFP8", bench_quantize_bytes, NULL, bench_quantize_run, bench_quantize_check},
    {"dequantize MXFP8", bench_quantize_bytes, bench_quantize_run, bench_dequantize_run,
     bench_dequantize_check},
};
const size_t bench_case_count = sizeof bench_cases / sizeof bench_cases[0];
