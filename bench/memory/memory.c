/* The operands of bench_memory. */
#include "bench/memory/memory.h"

#include <stdlib.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "device/buffer.h"

/* each input starts this many elements later in the pattern than the previous input */
enum { APART = 333331 };

double bench_value(const bench_memory *b, size_t input, size_t index) {
    return (double)b->pattern[(index + input * APART) % BENCH_PATTERN];
}

size_t bench_index(double chosen, size_t count) {
    return (size_t)(chosen * (double)count);
}

moert_status bench_read_as(const moert_buffer *buffer, moert_dtype type, size_t index, double *x) {
    const size_t bytes = moert_dtype_bits(type) / 8;
    uint32_t bits = 0;
    MOERT_TRY(moert_buffer_read(buffer, index * bytes, &bits, bytes));
    *x = (double)moert_dtype_decode(type, bits);
    return MOERT_OK;
}

moert_status bench_read(const moert_buffer *buffer, size_t index, double *x) {
    return bench_read_as(buffer, MOERT_DTYPE_F32, index, x);
}

/* Each token chooses K experts that are E / K apart; the first of them varies from token to
 * token. */
static moert_status make_index(bench_memory *b) {
    const bench_sizes *s = &b->of;
    int32_t *index;
    MOERT_TRY(MOERT_NEW_ARRAY(&index, s->tokens * s->topk));
    for (size_t t = 0; t < s->tokens; t++)
        for (size_t k = 0; k < s->topk; k++)
            index[t * s->topk + k] = (int32_t)((t * 7 + k * (s->experts / s->topk)) % s->experts);
    moert_status status =
        bench_upload(b->device, index, s->tokens * s->topk * sizeof *index, &b->index);
    free(index);
    return status;
}

static moert_status make_tokens(bench_memory *b, size_t seed) {
    const bench_sizes *s = &b->of;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->tokens, s->tokens));
    for (size_t t = 0; t < s->tokens; t++)
        b->tokens[t] = (int32_t)(moert_rng_uniform(seed, 1, t) * (double)s->vocabulary);
    return bench_upload(b->device, b->tokens, s->tokens * sizeof *b->tokens, &b->token);
}

/* Replaces the plan by a plan whose slots are on the host, for the checks. */
static moert_status read_slots(bench_memory *b) {
    const bench_sizes *s = &b->of;
    const size_t slots = s->tokens * s->topk;
    moert_plan *made = b->plan->plan;
    int32_t *index;
    MOERT_TRY(moert_alloc(&index, slots, sizeof *index));
    moert_status status = moert_buffer_read(b->index, 0, index, slots * sizeof *index);
    if (status == MOERT_OK)
        status = moert_plan_create(&(moert_plan_shape){s->experts, 1, 0, s->tokens, s->topk}, index,
                                   made->counts, &b->plan->plan);
    if (status == MOERT_OK)
        moert_plan_destroy(made);
    free(index);
    return status;
}

static moert_status make_exchange(bench_memory *b, moert_comm *comm) {
    const bench_sizes *s = &b->of;
    const uint32_t rows = (uint32_t)(s->tokens * s->topk);
    MOERT_TRY(make_index(b));
    MOERT_TRY(moert_exchange_create(b->device, comm, MOERT_EXCHANGE_LOCAL, &b->exchange));
    MOERT_TRY(moert_exchange_make_plan(
        b->exchange,
        &(moert_exchange_slots){
            .index = b->index, .tokens = s->tokens, .topk = s->topk, .experts = s->experts},
        MOERT_OK, &b->plan));
    MOERT_TRY(read_slots(b));
    MOERT_TRY(moert_window_create(b->exchange, s->hidden, &b->window));
    MOERT_TRY(
        bench_upload(b->device, b->plan->plan->slot_row, rows * sizeof(uint32_t), &b->gather));
    return bench_upload(b->device, &rows, sizeof rows, &b->ends);
}

moert_status bench_memory_prepare(bench_memory *b, moert_comm *comm, size_t seed) {
    const bench_sizes *s = &b->of;
    const size_t rows = s->tokens * s->topk, widest = moert_max(s->hidden, 2 * s->intermediate);
    const size_t logits = moert_max(s->vocabulary, s->large_vocabulary) * s->predicted;
    const size_t floats = moert_max(rows * widest, moert_max(s->vocabulary * s->hidden, logits));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->pattern, BENCH_PATTERN));
    for (size_t i = 0; i < BENCH_PATTERN; i++)
        b->pattern[i] = (float)(2.0 * moert_rng_uniform(seed, 0, i) - 1.0);
    for (size_t i = 0; i < BENCH_INPUTS; i++) {
        MOERT_TRY(moert_buffer_create(b->device, floats * sizeof(float), &b->in[i]));
        MOERT_TRY(bench_pattern_fill(b->in[i], b->pattern, sizeof(float), i * APART));
    }
    for (size_t i = 0; i < BENCH_RESULTS; i++)
        MOERT_TRY(moert_buffer_create(b->device, floats * sizeof(float), &b->out[i]));
    MOERT_TRY(make_tokens(b, seed));
    MOERT_TRY(make_exchange(b, comm));
    const moert_rope_scheme scheme = {.width = BENCH_HEAD, .theta = 1e4};
    return moert_rope_table_create(b->device, &scheme, s->tokens, &b->rope);
}

void bench_memory_release(bench_memory *b) {
    moert_window_destroy(b->window);
    moert_exchange_free_plan(b->plan);
    moert_exchange_destroy(b->exchange);
    MOERT_DESTROY(b->token, b->index, b->gather, b->ends, b->rope);
    moert_buffers_destroy(b->in, BENCH_INPUTS);
    moert_buffers_destroy(b->out, BENCH_RESULTS);
    MOERT_FREE(b->tokens, b->pattern);
}
