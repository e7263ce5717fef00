/*
 * bench_fused: rates of grouped GEMM ops of bf16 factors with what training has behind them:
 * float32 results, old values, biases, factors, a GLU. Each result is checked.
 *
 * A sample is 50 ms of calls in a row behind 25 ms that do not count, since a GPU's clock depends
 * on how hot it is; the rate is the median of several. Rows are equally many for each expert.
 * Operands repeat a pattern of random numbers, of a length that no row length divides.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/rng.h"
#include "bench/common/rate.h"
#include "bench/common/report.h"
#include "moert/ops.h"
#include "tools/common/program.h"

enum { PATTERN = 1048573, CHECKS = 100 };

static size_t experts, rows, n, k, seed;

static const moert_option options[] = {
    {"experts", MOERT_OPTION_UINT, &experts, "32", "1..448", "E"},
    {"rows", MOERT_OPTION_UINT, &rows, "32768", "1..16777216", "rows of all experts"},
    {"n", MOERT_OPTION_UINT, &n, "4096", "16..1048576", "N, of a GLU gates and ups"},
    {"k", MOERT_OPTION_UINT, &k, "7168", "8..1048576", "K"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of the data"},
};

#define BF16 MOERT_NUMBER_BF16
#define F32  MOERT_NUMBER_F32
static const struct variant {
    const char *title;
    moert_op_kind kind;
    moert_number result;
    bool accumulate, bias, prob, amax, save_c, interleaved;
} variants[] = {
    {"forward", MOERT_OP_GEMM_FORWARD, BF16, .prob = false},
    {"forward, f32", MOERT_OP_GEMM_FORWARD, F32, .prob = false},
    {"forward, f32, bias", MOERT_OP_GEMM_FORWARD, F32, .bias = true},
    {"forward, prob, amax", MOERT_OP_GEMM_FORWARD, BF16, .prob = true, .amax = true},
    {"dgrad", MOERT_OP_GEMM_DGRAD, BF16, .prob = false},
    {"dgrad, f32", MOERT_OP_GEMM_DGRAD, F32, .prob = false},
    {"dgrad, f32, added", MOERT_OP_GEMM_DGRAD, F32, .accumulate = true},
    {"wgrad", MOERT_OP_GEMM_WGRAD, BF16, .prob = false},
    {"wgrad, f32", MOERT_OP_GEMM_WGRAD, F32, .prob = false},
    {"wgrad, f32, added", MOERT_OP_GEMM_WGRAD, F32, .accumulate = true},
    {"glu, prob", MOERT_OP_GLU, BF16, .prob = true},
    {"glu, prob, v kept", MOERT_OP_GLU, BF16, .prob = true, .save_c = true},
    {"glu, f32, prob, v kept", MOERT_OP_GLU, F32, .prob = true, .save_c = true},
    {"glu, interleaved", MOERT_OP_GLU, BF16, .interleaved = true},
};

typedef struct bench {
    moert_device *device;
    uint16_t *narrow; /* [PATTERN] */
    float *wide;      /* the same numbers */
    size_t wrong;
} bench;

/* ---- data ---- */

static moert_status make_pattern(bench *b) {
    MOERT_TRY(MOERT_NEW_ARRAY(&b->narrow, PATTERN));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->wide, PATTERN));
    for (size_t i = 0; i < PATTERN; i++) {
        b->narrow[i] =
            (uint16_t)moert_number_encode(BF16, (float)(2.0 * moert_rng_uniform(seed, 0, i) - 1.0));
        b->wide[i] = moert_number_decode(BF16, b->narrow[i]);
    }
    return MOERT_OK;
}

static double value(const bench *b, size_t i) {
    return (double)b->wide[i % PATTERN];
}

static moert_status fill(const bench *b, moert_buffer *buffer, moert_number type) {
    const void *pattern = type == F32 ? (const void *)b->wide : b->narrow;
    const size_t bytes = moert_number_bits(type) / 8, count = moert_buffer_bytes(buffer) / bytes;
    for (size_t i = 0; i < count; i += PATTERN)
        MOERT_TRY(
            moert_buffer_write(buffer, i * bytes, pattern, moert_min(PATTERN, count - i) * bytes));
    return MOERT_OK;
}

static moert_status fill_ends(moert_buffer *buffer) {
    for (size_t e = 0; e < experts; e++) {
        const uint32_t end = (uint32_t)((e + 1) * rows / experts);
        MOERT_TRY(moert_buffer_write(buffer, e * sizeof end, &end, sizeof end));
    }
    return MOERT_OK;
}

/* The buffer of a name, if the op has one, full of the pattern. */
static moert_status make_buffer(const bench *b, const moert_op *op, const char *name,
                                moert_number type, moert_buffer **buffer) {
    const size_t bytes = moert_op_buffer_bytes(op, name);
    if (bytes == 0)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_create(b->device, bytes, buffer));
    return fill(b, *buffer, type);
}

static moert_status make_buffers(const bench *b, const moert_op_options *o, const moert_op *op,
                                 moert_op_buffers *buffers) {
    const struct {
        const char *name;
        moert_number type;
        moert_buffer **at;
    } all[] = {{"ends", F32, &buffers->ends},
               {"x", o->x.type, &buffers->x},
               {"weight", o->weight.type, &buffers->weight},
               {"y", o->y.type, &buffers->y},
               {"c", o->c.type, &buffers->c},
               {"d", o->d.type, &buffers->d},
               {"bias", o->bias_type, &buffers->bias},
               {"prob", F32, &buffers->prob},
               {"amax", F32, &buffers->amax}};
    for (size_t i = 0; i < MOERT_COUNT(all); i++)
        MOERT_TRY(make_buffer(b, op, all[i].name, all[i].type, all[i].at));
    return fill_ends(buffers->ends);
}

static void free_buffers(moert_op_buffers *buffers) {
#define DESTROY(name) moert_buffer_destroy(buffers->name);
    MOERT_OP_BUFFER_TABLE(DESTROY)
#undef DESTROY
}

/* ---- checks ---- */

static size_t expert_of(size_t row) {
    size_t e = 0;
    while ((e + 1) * rows / experts <= row)
        e++;
    return e;
}

/* A sum of the product; *size: of its terms' magnitudes, added to. */
static double sum_of(const bench *b, moert_op_kind kind, size_t line, size_t column, double *size) {
    const bool wgrad = kind == MOERT_OP_GEMM_WGRAD, dgrad = kind == MOERT_OP_GEMM_DGRAD;
    const size_t e = wgrad ? line / n : expert_of(line);
    const size_t first = wgrad ? e * rows / experts : 0;
    const size_t last = wgrad ? (e + 1) * rows / experts : dgrad ? n : k;
    double sum = 0.0;
    for (size_t i = first; i < last; i++) {
        const double term = wgrad   ? value(b, i * n + line % n) * value(b, i * k + column)
                            : dgrad ? value(b, line * n + i) * value(b, (e * n + i) * k + column)
                                    : value(b, line * k + i) * value(b, (e * n + column) * k + i);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static double expected(const bench *b, const struct variant *v, size_t line, size_t column,
                       size_t columns, double *size) {
    const double prob = v->prob ? value(b, line) : 1.0;
    if (v->kind == MOERT_OP_GLU) {
        const size_t gate = v->interleaved ? 2 * column : column;
        const double g = sum_of(b, v->kind, line, gate, size);
        const double u = sum_of(b, v->kind, line, gate + (v->interleaved ? 1 : n / 2), size);
        *size *= (1.0 + fabs(g) + fabs(u));
        return prob * u * g / (1.0 + exp(-g));
    }
    const double sum = sum_of(b, v->kind, line, column, size);
    return prob * sum + (v->bias ? value(b, expert_of(line) * n + column) : 0.0) +
           (v->accumulate ? value(b, line * columns + column) : 0.0);
}

/* Counts the samples that are off by more than the rounding of the type and 1e-5 of the terms. */
static moert_status count_wrong(bench *b, const struct variant *v, const moert_buffer *result,
                                size_t *wrong) {
    const size_t bytes = moert_number_bits(v->result) / 8;
    const size_t columns = v->kind == MOERT_OP_GEMM_FORWARD ? n
                           : v->kind == MOERT_OP_GLU        ? n / 2
                                                            : k;
    const size_t lines = moert_buffer_bytes(result) / bytes / columns;
    *wrong = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        /* the last line and column are among them */
        const size_t line =
            lines - 1 - (size_t)(moert_rng_uniform(seed, 2, i) * (double)lines * !!i);
        const size_t column =
            columns - 1 - (size_t)(moert_rng_uniform(seed, 3, i) * (double)columns * !!i);
        union {
            uint16_t narrow;
            float wide;
        } got = {.wide = 0.0f};
        double size = 0.0;
        MOERT_TRY(moert_buffer_read(result, (line * columns + column) * bytes, &got, bytes));
        const double want = expected(b, v, line, column, columns, &size);
        const double is =
            (double)(v->result == F32 ? got.wide : moert_number_decode(BF16, got.narrow));
        *wrong += !(fabs(is - want) <= (v->result == F32 ? 0.0 : fabs(want) / 256.0) + 1e-5 * size);
    }
    b->wrong += *wrong;
    return MOERT_OK;
}

/* ---- rates ---- */

static moert_op_options describe(const struct variant *v) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = v->kind;
    o.groups = experts;
    o.rows = rows;
    o.n = n;
    o.k = k;
    o.x.type = v->kind == MOERT_OP_GEMM_DGRAD ? v->result : BF16;
    o.weight.type = v->kind == MOERT_OP_GEMM_WGRAD ? v->result : BF16;
    o.y.type = v->kind == MOERT_OP_GEMM_FORWARD ? v->result : BF16;
    o.c.type = o.d.type = v->result;
    o.accumulate = v->accumulate;
    o.bias = v->bias;
    o.bias_type = F32;
    o.prob = v->prob;
    o.amax = v->amax;
    o.save_c = v->save_c;
    o.glu.interleaved = v->interleaved;
    return o;
}

static moert_status run_variant(bench *b, const struct variant *v) {
    const moert_op_options o = describe(v);
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_op *op;
    moert_status status;
    double tflops = 0.0;
    size_t wrong = 0;
    MOERT_TRY(moert_op_create(b->device, &o, &op));
    MOERT_TRY_OR(destroy, make_buffers(b, &o, op, &buffers));
    MOERT_TRY_OR(destroy, moert_op_execute(op, &buffers));
    const moert_buffer *const results[] = {[MOERT_OP_GEMM_FORWARD] = buffers.y,
                                           [MOERT_OP_GEMM_DGRAD] = buffers.x,
                                           [MOERT_OP_GEMM_WGRAD] = buffers.weight,
                                           [MOERT_OP_GLU] = buffers.d};
    MOERT_TRY_OR(destroy, count_wrong(b, v, results[v->kind], &wrong));
    MOERT_TRY_OR(destroy, bench_rate_op(b->device, op, &buffers,
                                        2.0 * (double)rows * (double)n * (double)k, &tflops));
    printf("%-24s %-9s %8.1f %6zu\n", v->title, moert_op_backend_name(op), tflops, wrong);
    fflush(stdout);
destroy:
    free_buffers(&buffers);
    moert_op_destroy(op);
    return status;
}

static moert_status run(moert_context *context) {
    bench b = {.device = moert_context_device(context)};
    moert_status status;
    printf("# moert %s, %s, E %zu, rows %zu, N %zu, K %zu\n%-24s %-9s %8s %6s\n",
           bench_report_commit(), moert_device_name(b.device), experts, rows, n, k, "#product",
           "backend", "TFLOP/s", "wrong");
    MOERT_TRY_OR(release, make_pattern(&b));
    for (size_t i = 0; i < MOERT_COUNT(variants); i++)
        MOERT_TRY_OR(release, run_variant(&b, &variants[i]));
    if (b.wrong > 0)
        status = MOERT_FAIL(ERROR_NUMERIC, "%zu samples of the results are wrong", b.wrong);
release:
    free(b.narrow);
    free(b.wide);
    return moert_comm_agree(moert_context_comm(context), status); /* told once, without an abort */
}

int main(int argc, char **argv) {
    const moert_program program = {
        .synopsis = "bench_fused [OPTION...]",
        .about = "Times grouped GEMM ops of bf16 factors with what follows them in training and "
                 "checks each result. Exits with 1 when a result is wrong.",
        .options = options,
        .option_count = MOERT_COUNT(options),
        .run = run,
    };
    return moert_program_main(&program, argc, argv);
}
