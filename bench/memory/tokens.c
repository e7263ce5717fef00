/* The elementwise kernels, loss, casts and embedding of bench_memory; see memory.h. */
#include <math.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "bench/memory/memory.h"
#include "device/elements.h"
#include "moert/quantize.h"
#include "nn/optimizer.h"

/* Copies in[0] to out[0] for kernels that work in place, and clears the other results. */
static moert_status copy_input(const bench_memory *b) {
    for (size_t i = 1; i < BENCH_RESULTS; i++)
        MOERT_TRY(moert_buffer_clear(b->out[i], 0, moert_buffer_bytes(b->out[i])));
    return moert_buffer_copy(b->in[0], 0, b->out[0], 0, moert_buffer_bytes(b->in[0]));
}

/* ---- kernels that work in place, on a copy of in[0] ---- */

BENCH_FLOATS(in_place, 2 * s->tokens * s->hidden)

static moert_status rope_run(const bench_memory *b) {
    const moert_rotation rotation = {
        .table = b->rope, .heads = b->of.hidden / BENCH_HEAD, .length = b->of.tokens};
    return moert_rope(&rotation, b->of.tokens, BENCH_HEAD, false, b->out[0]);
}

static moert_status rope_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t at = bench_index(chosen, b->of.tokens * b->of.hidden), i = at % BENCH_HEAD,
                 pair = BENCH_HEAD / 2;
    const size_t line = at / b->of.hidden * BENCH_HEAD, other = i < pair ? at + pair : at - pair;
    double cosine = 0.0, sine = 0.0;
    MOERT_TRY(bench_read(b->rope, line + i % pair, &cosine));
    MOERT_TRY(bench_read(b->rope, line + pair + i % pair, &sine));
    r->want = bench_value(b, 0, at) * cosine + bench_value(b, 0, other) * (i < pair ? -sine : sine);
    return bench_read(b->out[0], at, &r->got);
}

BENCH_FLOATS(add, 3 * s->tokens * s->hidden)

static moert_status add_run(const bench_memory *b) {
    return moert_add(b->of.tokens * b->of.hidden, b->in[1], b->out[0]);
}

static moert_status add_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t at = bench_index(chosen, b->of.tokens * b->of.hidden);
    r->want = bench_value(b, 0, at) + bench_value(b, 1, at);
    return bench_read(b->out[0], at, &r->got);
}

static const moert_update adamw = {.rate = 1e-3,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .epsilon = 1e-8,
                                   .decay = 0.1,
                                   .scale = 0.5,
                                   .step = 1};

BENCH_FLOATS(adamw, 7 * s->tokens * s->hidden)

static moert_status adamw_run(const bench_memory *b) {
    const moert_elements gradient = {b->in[1], MOERT_DTYPE_F32, 0},
                         moments[] = {{b->out[1], MOERT_DTYPE_F32, 0},
                                      {b->out[2], MOERT_DTYPE_F32, 0}};
    return moert_update_weights(&adamw, b->of.tokens * b->of.hidden, b->out[0], &gradient, moments);
}

/* In the first step, the bias-corrected moments are the gradient and its square. */
static moert_status adamw_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t at = bench_index(chosen, b->of.tokens * b->of.hidden);
    const double g = bench_value(b, 1, at) * adamw.scale;
    r->want = bench_value(b, 0, at) * (1.0 - adamw.rate * adamw.decay) -
              adamw.rate * g / (fabs(g) + adamw.epsilon);
    return bench_read(b->out[0], at, &r->got);
}

#define FACTOR 0.125 /* factor of the loss's gradient */

static size_t loss_width(const bench_sizes *s) {
    return s->how.large ? s->large_vocabulary : s->vocabulary;
}

BENCH_FLOATS(loss, 2 * s->predicted * (loss_width(s) + 1))

static moert_status loss_run(const bench_memory *b) {
    return moert_cross_entropy(&(moert_prediction){.tokens = b->of.predicted,
                                                   .vocabulary = loss_width(&b->of),
                                                   .target = b->token,
                                                   .factor = (float)FACTOR,
                                                   .logits = b->out[0],
                                                   .loss = b->out[1]});
}

static moert_status loss_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t v = loss_width(&b->of), t = bench_index(chosen, b->of.predicted);
    const size_t at =
        /* checks the target's logit, to whose gradient all partial sums contribute */
        t * v + (size_t)b->tokens[t];
    double sum = 0.0;
    for (size_t c = 0; c < v; c++)
        sum += exp(bench_value(b, 0, t * v + c));
    r->want = FACTOR * (exp(bench_value(b, 0, at)) / sum - 1.0);
    return bench_read(b->out[0], at, &r->got);
}

/* ---- casts, embedding ---- */

BENCH_FLOATS(cast, s->tokens * s->hidden * (32 + moert_dtype_bits(s->how.type)) / 32)

static moert_status cast_run(const bench_memory *b) {
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_DTYPE_F32,
                                        .to = b->of.how.type,
                                        .n = b->of.tokens * b->of.hidden,
                                        .source = b->in[0],
                                        .target = b->out[0]});
}

static moert_status cast_back_run(const bench_memory *b) {
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = b->of.how.type,
                                        .to = MOERT_DTYPE_F32,
                                        .n = b->of.tokens * b->of.hidden,
                                        .source = b->out[0],
                                        .target = b->out[1]});
}

static moert_status check_cast(const bench_memory *b, const moert_buffer *result, moert_dtype type,
                               double chosen, bench_pair *r) {
    const size_t at = bench_index(chosen, b->of.tokens * b->of.hidden);
    const moert_dtype kept = b->of.how.type;
    r->want =
        (double)moert_dtype_decode(kept, moert_dtype_encode(kept, (float)bench_value(b, 0, at)));
    return bench_read_as(result, type, at, &r->got);
}

static moert_status cast_check(const bench_memory *b, double chosen, bench_pair *r) {
    return check_cast(b, b->out[0], b->of.how.type, chosen, r);
}

static moert_status cast_back_check(const bench_memory *b, double chosen, bench_pair *r) {
    return check_cast(b, b->out[1], MOERT_DTYPE_F32, chosen, r);
}

static moert_status embedding_run(const bench_memory *b) {
    return moert_embedding_forward(b->of.tokens, b->of.hidden, b->in[0], b->token, b->out[0]);
}

static moert_status embedding_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t h = b->of.hidden, at = bench_index(chosen, b->of.tokens * h);
    r->want = bench_value(b, 0, (size_t)b->tokens[at / h] * h + at % h);
    return bench_read(b->out[0], at, &r->got);
}

/* Computes the gradient of the embedding's V rows from one sequence of T tokens with dx = in[1]. */
BENCH_FLOATS(embedding_backward, (s->tokens + s->vocabulary) * s->hidden)

static moert_status embedding_backward_run(const bench_memory *b) {
    return moert_embedding_backward(&(moert_embedding_part){
        1, b->of.tokens, b->of.hidden, 0, b->of.vocabulary, b->token, b->in[1], b->out[0], 0});
}

static moert_status embedding_backward_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t h = b->of.hidden, at = bench_index(chosen, b->of.tokens * h), column = at % h;
    const int32_t row = b->tokens[at / h];
    r->want = 0.0;
    for (size_t t = 0; t < b->of.tokens; t++)
        r->want += b->tokens[t] == row ? bench_value(b, 1, t * h + column) : 0.0;
    return bench_read(b->out[0], (size_t)row * h + column, &r->got);
}

static const bench_kernel cast = {cast_bytes, NULL, cast_run, cast_check};
static const bench_kernel cast_back = {cast_bytes, cast_run, cast_back_run, cast_back_check};
static const bench_kernel loss = {loss_bytes, copy_input, loss_run, loss_check};
static const bench_kernel embedding_backward = {embedding_backward_bytes, NULL,
                                                embedding_backward_run, embedding_backward_check};

static const bench_case cases[] = {
    {"rotary positions", &(bench_kernel){in_place_bytes, copy_input, rope_run, rope_check}, {0}},
    {"add", &(bench_kernel){add_bytes, copy_input, add_run, add_check}, {0}},
    {"AdamW", &(bench_kernel){adamw_bytes, copy_input, adamw_run, adamw_check}, {0}},
    {"cast to bf16", &cast, {.type = MOERT_DTYPE_BF16}},
    {"cast to e4m3", &cast, {.type = MOERT_DTYPE_E4M3}},
    {"bf16 to f32", &cast_back, {.type = MOERT_DTYPE_BF16}},
    {"e4m3 to f32", &cast_back, {.type = MOERT_DTYPE_E4M3}},
    {"cross-entropy", &loss, {0}},
    {"cross-entropy, long rows", &loss, {.large = true}},
    {"embedding", &(bench_kernel){in_place_bytes, NULL, embedding_run, embedding_check}, {0}},
    {"embedding backward", &embedding_backward, {0}},
};
const bench_cases bench_token_cases = {cases, MOERT_COUNT(cases)};
