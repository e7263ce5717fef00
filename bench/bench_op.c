/*
 * bench_op: rates of the grouped GEMM ops of 16-bit and FP8 factors, by the backend that the device
 * gets, each result checked. bench/torch_grouped_mm.py runs the same 16-bit rows for PyTorch.
 *
 * A sample is 50 ms of calls in a row behind 25 ms that do not count, since a GPU's clock depends
 * on how hot it is; the rate is the median of several. Operands repeat a pattern of random numbers,
 * of a length that no row length divides.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/rng.h"
#include "moert/ops.h"
#include "moert/quantize.h"
#include "rate.h"
#include "report.h"
#include "tools/program.h"

enum { PATTERN = 16777213, CHECKS = 200, MOST_EXPERTS = 4096 };

typedef struct shape {
    size_t experts, rows, n, k; /* rows of all experts */
} shape;

/* What the experts of a layer do with 8192 tokens per rank, up and down; DeepSeek-V3 on 8 ranks. */
static const struct {
    const char *name;
    size_t experts, rows, hidden, intermediate;
} models[] = {{"Mixtral 8x7B", 8, 16384, 4096, 14336},
              {"Qwen3-30B-A3B", 128, 65536, 2048, 768},
              {"DeepSeek-V3", 32, 32768, 7168, 2048},
              {"OLMoE-1B-7B", 64, 65536, 2048, 1024}};

/* Factors and, beside them, the result. */
typedef struct form {
    const char *name;
    moert_number factor, result;
    bool blocks; /* rows in blocks of 1x128, in wgrad of 128x1, weights in blocks of 128x128 */
    bool turned; /* dgrad alone, its weights stored transposed */
} form;
static const form forms[] = {{"bf16", MOERT_NUMBER_BF16, MOERT_NUMBER_BF16, false, false},
                             {"f16", MOERT_NUMBER_F16, MOERT_NUMBER_F16, false, false},
                             {"e4m3", MOERT_NUMBER_E4M3, MOERT_NUMBER_BF16, false, false},
                             {"fp8-block", MOERT_NUMBER_E4M3, MOERT_NUMBER_BF16, true, false},
                             {"fp8-turned", MOERT_NUMBER_E4M3, MOERT_NUMBER_BF16, true, true}};
enum { FORMS = sizeof forms / sizeof forms[0], BLOCK = 128 };

static shape chosen; /* experts 0: those of the models */
static unsigned groups, dtype;
static size_t seed;
static const char *json_path;

static const moert_option options[] = {
    {"experts", MOERT_OPTION_UINT, &chosen.experts, "0", "0..4096",
     "E; 0 = the layers of Mixtral 8x7B, Qwen3-30B-A3B, DeepSeek-V3 and OLMoE"},
    {"rows", MOERT_OPTION_UINT, &chosen.rows, "16384", "1..16777216", "rows of all experts"},
    {"n", MOERT_OPTION_UINT, &chosen.n, "4096", "8..1048576", "N"},
    {"k", MOERT_OPTION_UINT, &chosen.k, "4096", "8..1048576", "K"},
    {"groups", MOERT_OPTION_CHOICE, &groups, "all", "all|balanced|ragged",
     "rows of the experts: equal, or 0.25 to 1.75 times the average and every fifth none"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "bf16", "bf16|f16|e4m3|fp8-block|fp8-turned|all",
     "of the factors; results of FP8 ones are bf16, e4m3 has no wgrad; fp8-turned: "
     "dgrad by transposed weights; all = in turns"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of data and ragged groups"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, NULL, "file for the rows, an array of objects"},
};

typedef struct bench {
    moert_device *device;
    const form *form;
    unsigned char *pattern; /* [PATTERN] factors */
    float *scales;          /* [PATTERN], all 1 without blocks */
    json_t *rows;
    size_t wrong;
} bench;

/* A shape with its operands: x[rows,k], weight[experts,n,k], y[rows,n], and a result of any op; all
 * scales are the same buffer. */
typedef struct problem {
    shape of;
    bool ragged;
    size_t multiple; /* of a ragged expert's rows */
    uint32_t *ends;
    moert_buffer *ends_buffer, *x, *weight, *y, *scales, *result;
} problem;

/* ---- data ---- */

static size_t start_of(const problem *p, size_t expert) {
    return expert > 0 ? p->ends[expert - 1] : 0;
}

static size_t bytes_of(const bench *b) {
    return moert_number_bits(b->form->factor) / 8;
}

static size_t blocks(size_t length) {
    return moert_ceil_div(length, BLOCK);
}

static double value_of(const bench *b, size_t index) {
    uint32_t code = 0;
    memcpy(&code, b->pattern + index % PATTERN * bytes_of(b), bytes_of(b));
    return moert_number_decode(b->form->factor, code);
}

/* An element of a row matrix, and of the weights; [lines, columns] with their scales. */
static double row_value(const bench *b, size_t line, size_t column, size_t columns) {
    return value_of(b, line * columns + column) *
           (double)b->scales[(line * blocks(columns) + column / BLOCK) % PATTERN];
}
static double weight_value(const bench *b, const shape *s, size_t e, size_t line, size_t column) {
    const bool turned = b->form->turned;
    const size_t i = turned ? column : line, j = turned ? line : column;
    const size_t lines = turned ? s->k : s->n, columns = turned ? s->n : s->k;
    const size_t down = e * blocks(lines) + i / BLOCK;
    return value_of(b, (e * lines + i) * columns + j) *
           (double)b->scales[(down * blocks(columns) + j / BLOCK) % PATTERN];
}

/* An element of a row matrix that is stored transposed; `row` is of expert e. */
static double turned_value(const bench *b, const problem *p, size_t e, size_t row, size_t column) {
    size_t block = (row - start_of(p, e)) / BLOCK;
    for (size_t i = 0; i < e; i++)
        block += blocks(p->ends[i] - start_of(p, i));
    return value_of(b, column * p->of.rows + row) *
           (double)b
               ->scales[(column * moert_row_blocks_most(p->of.rows, p->of.experts, BLOCK) + block) %
                        PATTERN];
}

static moert_status make_pattern(bench *b) {
    const size_t bytes = bytes_of(b);
    MOERT_TRY(moert_alloc(&b->pattern, PATTERN, bytes));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->scales, PATTERN));
    for (size_t i = 0; i < PATTERN; i++) {
        const uint32_t code = moert_number_encode(
            b->form->factor, (float)(2.0 * moert_rng_uniform(seed, 0, i) - 1.0));
        memcpy(b->pattern + i * bytes, &code, bytes);
        b->scales[i] = b->form->blocks ? (float)(0.5 + moert_rng_uniform(seed, 4, i)) : 1.0f;
    }
    return MOERT_OK;
}

/* A buffer of so many numbers of a pattern. */
static moert_status make_buffer(const bench *b, size_t count, const void *pattern, size_t bytes,
                                moert_buffer **buffer) {
    MOERT_TRY(moert_buffer_create(b->device, count * bytes, buffer));
    for (size_t i = 0; i < count; i += PATTERN)
        MOERT_TRY(
            moert_buffer_write(*buffer, i * bytes, pattern, moert_min(PATTERN, count - i) * bytes));
    return MOERT_OK;
}

static void make_ends(problem *p) {
    const shape *s = &p->of;
    double part[MOST_EXPERTS], total = 0.0, so_far = 0.0;
    for (size_t e = 0; e < s->experts; e++) {
        part[e] = !p->ragged ? 1.0 : e % 5 == 2 ? 0.0 : 0.25 + 1.5 * moert_rng_uniform(seed, 1, e);
        total += part[e];
    }
    for (size_t e = 0; e < s->experts; e++) {
        so_far += part[e];
        p->ends[e] = (uint32_t)(so_far / total * (double)s->rows + 1e-6);
        p->ends[e] -= p->ends[e] % p->multiple;
    }
    p->ends[s->experts - 1] = (uint32_t)s->rows;
}

static void release(problem *p) {
    moert_buffer *const all[] = {p->ends_buffer, p->x, p->weight, p->y, p->scales, p->result};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        moert_buffer_destroy(all[i]);
    free(p->ends);
}

static moert_status prepare(const bench *b, problem *p) {
    const shape *s = &p->of;
    const size_t x = s->rows * s->k, weight = s->experts * s->n * s->k, y = s->rows * s->n;
    const size_t bytes = s->experts * sizeof *p->ends, factor = bytes_of(b);
    const size_t scales[] = {
        s->rows * moert_max(blocks(s->n), blocks(s->k)), s->experts * blocks(s->n) * blocks(s->k),
        moert_row_blocks_most(s->rows, s->experts, BLOCK) * moert_max(s->n, s->k)};
    MOERT_TRY(MOERT_NEW_ARRAY(&p->ends, s->experts));
    make_ends(p);
    MOERT_TRY(moert_buffer_create(b->device, bytes, &p->ends_buffer));
    MOERT_TRY(moert_buffer_write(p->ends_buffer, 0, p->ends, bytes));
    MOERT_TRY(make_buffer(b, x, b->pattern, factor, &p->x));
    MOERT_TRY(make_buffer(b, weight, b->pattern, factor, &p->weight));
    MOERT_TRY(make_buffer(b, y, b->pattern, factor, &p->y));
    MOERT_TRY(make_buffer(b, moert_max(scales[0], moert_max(scales[1], scales[2])), b->scales,
                          sizeof(float), &p->scales));
    return moert_buffer_create(b->device, moert_max(weight, moert_max(x, y)) * sizeof(uint16_t),
                               &p->result);
}

/* ---- checks ---- */

/* What element (line, column) of the result of an op must be; *size: the sum of magnitudes. */
static double expected(const bench *b, const problem *p, moert_op_kind kind, size_t line,
                       size_t column, double *size) {
    const shape *s = &p->of;
    const bool forward = kind == MOERT_OP_GEMM_FORWARD, wgrad = kind == MOERT_OP_GEMM_WGRAD;
    const bool turned = wgrad && b->form->blocks;
    size_t e = wgrad ? line / s->n : 0, first = 0, last = forward ? s->k : s->n;
    double sum = 0.0;
    while (!wgrad && p->ends[e] <= line)
        e++;
    if (wgrad) {
        first = start_of(p, e);
        last = p->ends[e];
    }
    *size = 0.0;
    for (size_t i = first; i < last; i++) {
        const double a = forward  ? row_value(b, line, i, s->k)
                         : turned ? turned_value(b, p, e, i, line % s->n)
                         : wgrad  ? row_value(b, i, line % s->n, s->n)
                                  : row_value(b, line, i, s->n);
        const double c = forward  ? weight_value(b, s, e, column, i)
                         : turned ? turned_value(b, p, e, i, column)
                         : wgrad  ? row_value(b, i, column, s->k)
                                  : weight_value(b, s, e, i, column);
        sum += a * c;
        *size += fabs(a * c);
    }
    return sum;
}

/* Counts the samples that are off by more than the rounding to 16 bits and 1e-5 of the terms, of
 * FP8 ones, which the tensor cores add up less exactly, 1e-4. */
static moert_status count_wrong(const bench *b, const problem *p, moert_op_kind kind,
                                size_t *wrong) {
    const shape *s = &p->of;
    const size_t lines = kind == MOERT_OP_GEMM_WGRAD ? s->experts * s->n : s->rows;
    const size_t columns = kind == MOERT_OP_GEMM_FORWARD ? s->n : s->k;
    const double slack = bytes_of(b) == 1 ? 1e-4 : 1e-5;
    *wrong = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        /* the last line and column are among them */
        const size_t line =
            lines - 1 - (size_t)(moert_rng_uniform(seed, 2, i) * (double)lines * !!i);
        const size_t column =
            columns - 1 - (size_t)(moert_rng_uniform(seed, 3, i) * (double)columns * !!i);
        uint16_t code;
        double size;
        MOERT_TRY(moert_buffer_read(p->result, (line * columns + column) * sizeof code, &code,
                                    sizeof code));
        const double want = expected(b, p, kind, line, column, &size);
        const double off = fabs(moert_number_decode(b->form->result, code) - want);
        *wrong += !(off <= fabs(want) / 256.0 + slack * size);
    }
    return MOERT_OK;
}

/* ---- rates ---- */

/* An op and its operands, to be timed. */
typedef struct timed {
    moert_op *op;
    const moert_op_buffers *buffers;
} timed;

static moert_status execute(void *what) {
    const timed *t = what;
    return moert_op_execute(t->op, t->buffers);
}

static moert_status report(bench *b, const problem *p, const moert_op *op, const char *kind,
                           double tflops, size_t wrong) {
    const shape *s = &p->of;
    const char *const split = p->ragged ? "ragged" : "balanced";
    json_t *ends = json_array();
    for (size_t e = 0; e < s->experts; e++)
        json_array_append_new(ends, json_integer(p->ends[e]));
    json_t *row =
        json_pack("{ss ss ss sI sI sI sI ss so sf sI}", "op", kind, "dtype", b->form->name,
                  "backend", moert_op_backend_name(op), "E", (json_int_t)s->experts, "rows",
                  (json_int_t)s->rows, "N", (json_int_t)s->n, "K", (json_int_t)s->k, "groups",
                  split, "ends", ends, "tflops", tflops, "wrong", (json_int_t)wrong);
    if (row == NULL || json_array_append_new(b->rows, row) != 0)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the rows");
    printf("%-13s %-10s %4zu %8zu %6zu %6zu %-8s %-8s %8.1f %6zu\n", kind, b->form->name,
           s->experts, s->rows, s->n, s->k, split, moert_op_backend_name(op), tflops, wrong);
    fflush(stdout);
    b->wrong += wrong;
    return MOERT_OK;
}

/* DeepSeek's: rows in blocks along what is summed over, weights in tiles. */
static void describe_blocks(const problem *p, bool turned, moert_op_options *o,
                            moert_op_buffers *buffers) {
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    moert_quantizer rows = MOERT_QUANTIZER_INIT, tiles = MOERT_QUANTIZER_INIT;
    rows.format = tiles.format = MOERT_FORMAT_FP8_BLOCK;
    rows.axis = wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    rows.transposed = wgrad;
    o->row_multiple = p->multiple;
    tiles.axis = MOERT_AXIS_TILE;
    if (o->kind != MOERT_OP_GEMM_DGRAD) {
        o->x.how = rows;
        buffers->x_scale = p->scales;
    }
    if (o->kind != MOERT_OP_GEMM_FORWARD) {
        o->y.how = rows;
        buffers->y_scale = p->scales;
    }
    if (!wgrad) {
        o->weight.how = tiles;
        o->weight.how.transposed = turned;
        buffers->weight_scale = p->scales;
    }
}

static moert_status run_op(bench *b, const problem *p, moert_op_kind kind) {
    const shape *s = &p->of;
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_op *op;
    moert_status status;
    double tflops = 0.0;
    size_t wrong = 0;
    o.kind = kind;
    if (b->form->blocks || moert_number_bits(b->form->factor) == 8) {
        o.backend = "nvidia"; /* which auto does not take for FP8 */
        o.fallback = true;
    }
    o.groups = s->experts;
    o.rows = s->rows;
    o.n = s->n;
    o.k = s->k;
    o.x.type = o.weight.type = o.y.type = b->form->factor;
    moert_operand *const results[] = {&o.y, &o.x, &o.weight};
    results[kind]->type = b->form->result;
    if (b->form->blocks)
        describe_blocks(p, b->form->turned, &o, &buffers);
    buffers.ends = p->ends_buffer;
    buffers.x = kind == MOERT_OP_GEMM_DGRAD ? p->result : p->x;
    buffers.weight = kind == MOERT_OP_GEMM_WGRAD ? p->result : p->weight;
    buffers.y = kind == MOERT_OP_GEMM_FORWARD ? p->result : p->y;
    MOERT_TRY(moert_op_create(b->device, &o, &op));
    MOERT_TRY_OR(destroy, moert_op_execute(op, &buffers));
    MOERT_TRY_OR(destroy, count_wrong(b, p, kind, &wrong));
    timed t = {op, &buffers};
    MOERT_TRY_OR(destroy, bench_rate(b->device, execute, &t,
                                     2.0 * (double)s->rows * (double)s->n * (double)s->k, &tflops));
    status = report(b, p, op, moert_op_kind_name(kind), tflops, wrong);
destroy:
    moert_op_destroy(op);
    return status;
}

static moert_status run_form(bench *b, shape of, bool ragged) {
    problem p = {.of = of, .ragged = ragged, .multiple = b->form->blocks ? 16 : 1};
    const unsigned last = /* a wgrad wants its FP8 factors transposed */
        bytes_of(b) == 1 && (b->form->turned || !b->form->blocks) ? MOERT_OP_GEMM_DGRAD
                                                                  : MOERT_OP_GEMM_WGRAD;
    moert_status status = make_pattern(b);
    if (status == MOERT_OK)
        status = prepare(b, &p);
    for (unsigned kind = b->form->turned ? MOERT_OP_GEMM_DGRAD : 0;
         kind <= last && status == MOERT_OK; kind++)
        status = run_op(b, &p, (moert_op_kind)kind);
    release(&p);
    free(b->pattern);
    free(b->scales);
    b->pattern = NULL;
    b->scales = NULL;
    return status;
}

static moert_status run_shape(bench *b, shape of) {
    for (unsigned ragged = 0; ragged < 2; ragged++)
        for (size_t i = 0; i < FORMS; i++) {
            if ((groups != 0 && groups != ragged + 1) || (dtype < FORMS && dtype != i))
                continue;
            b->form = &forms[i];
            MOERT_TRY(run_form(b, of, ragged != 0));
        }
    return MOERT_OK;
}

static moert_status run_shapes(bench *b) {
    if (chosen.experts > 0)
        return run_shape(b, chosen);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int down = 0; down < 2; down++) {
            const size_t hidden = models[i].hidden, width = models[i].intermediate;
            printf("# %s, %s\n", models[i].name, down ? "down" : "gate and up");
            MOERT_TRY(run_shape(b, (shape){models[i].experts, models[i].rows,
                                           down ? hidden : 2 * width, down ? width : hidden}));
        }
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    bench b = {.device = moert_context_device(context), .rows = json_array()};
    moert_status status;
    printf("# moert %s, %s\n%-13s %-10s %4s %8s %6s %6s %-8s %-8s %8s %6s\n", bench_report_commit(),
           moert_device_name(b.device), "#op", "dtype", "E", "rows", "N", "K", "groups", "backend",
           "TFLOP/s", "wrong");
    MOERT_TRY_OR(release, run_shapes(&b));
    if (json_path != NULL)
        MOERT_TRY_OR(release, bench_report_write(b.rows, json_path));
    if (b.wrong > 0)
        status = MOERT_FAIL(ERROR_NUMERIC, "%zu samples of the results are wrong", b.wrong);
release:
    json_decref(b.rows);
    return moert_comm_agree(moert_context_comm(context), status); /* told once, without an abort */
}

int main(int argc, char **argv) {
    const moert_program program = {
        .synopsis = "bench_op [OPTION...]",
        .about = "Times grouped GEMM ops of 16-bit and FP8 factors on a GPU and checks each "
                 "result. Exits "
                 "with 1 when a result is wrong.",
        .options = options,
        .option_count = sizeof options / sizeof options[0],
        .run = run,
    };
    return moert_program_main(&program, argc, argv);
}
