/* The norms of bench_memory; see memory.h. */
#include <math.h>

#include "base/memory.h"
#include "bench/memory/memory.h"

#define EPSILON 1e-6

/* ---- RMSNorm of [T,H] or its heads: x = in[0], weight = in[2], dy = in[1] ---- */

static size_t norm_width(const bench_sizes *s) {
    return s->how.heads ? BENCH_HEAD : s->hidden;
}

static size_t norm_rows(const bench_sizes *s) {
    return s->tokens * s->hidden / norm_width(s);
}

BENCH_FLOATS(norm, 2 * s->tokens * s->hidden + norm_rows(s) + norm_width(s))

static moert_status norm_run(const bench_memory *b) {
    return moert_norm_run(&(moert_norm){.rows = norm_rows(&b->of),
                                        .width = norm_width(&b->of),
                                        .epsilon = (float)EPSILON,
                                        .x = b->in[0],
                                        .weight = b->in[2],
                                        .y = b->out[0],
                                        .rstd = b->out[1]});
}

static double norm_scale(const bench_memory *b, size_t row) {
    const size_t width = norm_width(&b->of);
    double squares = 0.0;
    for (size_t c = 0; c < width; c++)
        squares += bench_value(b, 0, row * width + c) * bench_value(b, 0, row * width + c);
    return 1.0 / sqrt(squares / (double)width + EPSILON);
}

static moert_status norm_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t width = norm_width(&b->of), at = bench_index(chosen, b->of.tokens * b->of.hidden);
    r->want = bench_value(b, 0, at) * norm_scale(b, at / width) * bench_value(b, 2, at % width);
    return bench_read(b->out[0], at, &r->got);
}

BENCH_FLOATS(norm_backward,
             (s->how.added ? 4 : 3) * s->tokens * s->hidden + norm_rows(s) + 2 * norm_width(s))

/* Computes rstd. If the kernel adds to the gradient, also sets the gradient's old value. */
static moert_status norm_backward_begin(const bench_memory *b) {
    MOERT_TRY(norm_run(b));
    return !b->of.how.added
               ? MOERT_OK
               : moert_buffer_copy(b->in[0], 0, b->out[0], 0, moert_buffer_bytes(b->in[0]));
}

static moert_status norm_backward_run(const bench_memory *b) {
    return moert_norm_backward(&(moert_norm_gradient){.sequences = 1,
                                                      .rows = norm_rows(&b->of),
                                                      .width = norm_width(&b->of),
                                                      .x = b->in[0],
                                                      .weight = b->in[2],
                                                      .rstd = b->out[1],
                                                      .dy = b->in[1],
                                                      .dx = b->out[0],
                                                      .accumulate = b->of.how.added,
                                                      .partial = b->out[2],
                                                      .scratch = b->scratch});
}

static moert_status norm_backward_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t width = norm_width(&b->of), at = bench_index(chosen, b->of.tokens * b->of.hidden);
    const size_t first = at - at % width;
    const double scale = norm_scale(b, at / width);
    double products = 0.0;
    for (size_t c = 0; c < width; c++)
        products +=
            bench_value(b, 1, first + c) * bench_value(b, 2, c) * bench_value(b, 0, first + c);
    r->want = bench_value(b, 1, at) * bench_value(b, 2, at % width) * scale -
              bench_value(b, 0, at) * scale * scale * scale * products / (double)width +
              (b->of.how.added ? bench_value(b, 0, at) : 0.0);
    return bench_read(b->out[0], at, &r->got);
}

static const bench_kernel norm = {norm_bytes, NULL, norm_run, norm_check};
static const bench_kernel backward = {norm_backward_bytes, norm_backward_begin, norm_backward_run,
                                      norm_backward_check};

static const bench_case cases[] = {
    {"RMSNorm", &norm, {0}},
    {"RMSNorm backward", &backward, {0}},
    {"RMSNorm backward, added", &backward, {.added = true}},
    {"RMSNorm, heads", &norm, {.heads = true}},
    {"RMSNorm backward, heads", &backward, {.heads = true}},
};
const bench_cases bench_norm_cases = {cases, MOERT_COUNT(cases)};
