/*
 * bench_op: rates of the grouped GEMM ops of 16-bit, FP8, MX and NV factors, by the backend that
 * the device gets, each result checked. bench/rivals/torch_grouped_mm.py runs the same 16-bit rows
 * for PyTorch.
 *
 * A sample is 50 ms of calls in a row behind 25 ms that do not count, since a GPU's clock depends
 * on how hot it is; the rate is the median of several. Operands repeat a pattern of random numbers,
 * of a length that no row length divides.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "bench/common/rate.h"
#include "bench/common/report.h"
#include "bench/gemm/op_factors.h"
#include "moert/ops.h"
#include "tools/common/program.h"

/* What the experts of a layer do with 8192 tokens per rank, up and down; DeepSeek-V3 on 8 ranks. */
static const struct {
    const char *name;
    size_t experts, rows, hidden, intermediate;
} models[] = {{"Mixtral 8x7B", 8, 16384, 4096, 14336},
              {"Qwen3-30B-A3B", 128, 65536, 2048, 768},
              {"DeepSeek-V3", 32, 32768, 7168, 2048},
              {"OLMoE-1B-7B", 64, 65536, 2048, 1024}};

#define PLAIN(name, factor, result)                                                                \
    { name, MOERT_NUMBER_##factor, MOERT_NUMBER_##result, false, false, false, 0 }
#define BLOCKS(name, turned)                                                                       \
    { name, MOERT_NUMBER_E4M3, MOERT_NUMBER_BF16, true, turned, false, MOERT_FORMAT_FP8_BLOCK }
#define CODED(name, factor, format)                                                                \
    { name, MOERT_NUMBER_##factor, MOERT_NUMBER_BF16, false, false, true, MOERT_FORMAT_##format }
static const op_form forms[] = {PLAIN("bf16", BF16, BF16),   PLAIN("f16", F16, F16),
                                PLAIN("e4m3", E4M3, BF16),   BLOCKS("fp8-block", false),
                                BLOCKS("fp8-turned", true),  CODED("mxfp8", E4M3, MXFP8_E4M3),
                                CODED("mxfp4", E2M1, MXFP4), CODED("nvfp4", E2M1, NVFP4)};
enum { FORMS = MOERT_COUNT(forms) };

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
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "bf16",
     "bf16|f16|e4m3|fp8-block|fp8-turned|mxfp8|mxfp4|nvfp4|all",
     "of the factors; results of others than f16 are bf16, e4m3 has no wgrad; fp8-turned: "
     "dgrad by transposed weights; all = in turns"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of data and ragged groups"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, NULL, "file for the rows, an array of objects"},
};

typedef struct bench {
    factors factors;
    json_t *rows;
    size_t wrong;
} bench;

/* ---- rates ---- */

static moert_status report(bench *b, const problem *p, const moert_op *op, const char *kind,
                           double tflops, size_t wrong) {
    const shape *s = &p->of;
    const char *const split = p->ragged ? "ragged" : "balanced";
    json_t *ends = json_array();
    for (size_t e = 0; e < s->experts; e++)
        json_array_append_new(ends, json_integer(p->ends[e]));
    json_t *row =
        json_pack("{ss ss ss sI sI sI sI ss so sf sI}", "op", kind, "dtype", b->factors.form->name,
                  "backend", moert_op_backend_name(op), "E", (json_int_t)s->experts, "rows",
                  (json_int_t)s->rows, "N", (json_int_t)s->n, "K", (json_int_t)s->k, "groups",
                  split, "ends", ends, "tflops", tflops, "wrong", (json_int_t)wrong);
    if (row == NULL || json_array_append_new(b->rows, row) != 0)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the rows");
    printf("%-13s %-10s %4zu %8zu %6zu %6zu %-8s %-8s %8.1f %6zu\n", kind, b->factors.form->name,
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

/* Blocks along what is summed over. */
static void describe_coded(const bench *b, const problem *p, moert_op_options *o,
                           moert_op_buffers *buffers) {
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, forward = o->kind == MOERT_OP_GEMM_FORWARD;
    moert_quantizer rows = MOERT_QUANTIZER_INIT;
    rows.format = b->factors.form->format;
    rows.axis = wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    if (o->kind != MOERT_OP_GEMM_DGRAD) {
        o->x.how = rows;
        buffers->x_scale = p->scales;
    }
    if (!forward) {
        o->y.how = rows;
        buffers->y_scale = p->scales;
    }
    if (!wgrad) {
        o->weight.how = rows;
        o->weight.how.axis = forward ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN;
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
    if (!b->factors.form->coded && op_factor_bytes(&b->factors) == 1) {
        o.backend = "nvidia"; /* which auto does not take for FP8 */
        o.fallback = true;
    }
    o.groups = s->experts;
    o.rows = s->rows;
    o.n = s->n;
    o.k = s->k;
    o.x.type = o.weight.type = o.y.type = b->factors.form->factor;
    moert_operand *const results[] = {&o.y, &o.x, &o.weight};
    results[kind]->type = b->factors.form->result;
    if (b->factors.form->blocks)
        describe_blocks(p, b->factors.form->turned, &o, &buffers);
    if (b->factors.form->coded)
        describe_coded(b, p, &o, &buffers);
    buffers.ends = p->ends_buffer;
    buffers.x = kind == MOERT_OP_GEMM_DGRAD ? p->result : p->x;
    buffers.weight = kind == MOERT_OP_GEMM_WGRAD ? p->result : p->weight;
    buffers.y = kind == MOERT_OP_GEMM_FORWARD ? p->result : p->y;
    MOERT_TRY(moert_op_create(b->factors.device, &o, &op));
    MOERT_TRY_OR(destroy, moert_op_execute(op, &buffers));
    MOERT_TRY_OR(destroy, op_problem_check(&b->factors, p, kind, &wrong));
    MOERT_TRY_OR(destroy,
                 bench_rate_op(b->factors.device, op, &buffers,
                               2.0 * (double)s->rows * (double)s->n * (double)s->k, &tflops));
    status = report(b, p, op, moert_op_kind_name(kind), tflops, wrong);
destroy:
    moert_op_destroy(op);
    return status;
}

static moert_status run_form(bench *b, shape of, bool ragged) {
    problem p = {.of = of, .ragged = ragged, .multiple = b->factors.form->blocks ? 16 : 1};
    const unsigned last = /* a wgrad wants its FP8 factors transposed */
        op_factor_bytes(&b->factors) == 1 && !b->factors.form->coded &&
                (b->factors.form->turned || !b->factors.form->blocks)
            ? MOERT_OP_GEMM_DGRAD
            : MOERT_OP_GEMM_WGRAD;
    moert_status status = op_factors_make(&b->factors);
    if (status == MOERT_OK)
        status = op_problem_make(&b->factors, &p);
    for (unsigned kind = b->factors.form->turned ? MOERT_OP_GEMM_DGRAD : 0;
         kind <= last && status == MOERT_OK; kind++)
        status = run_op(b, &p, (moert_op_kind)kind);
    op_problem_release(&p);
    op_factors_release(&b->factors);
    return status;
}

static moert_status run_shape(bench *b, shape of) {
    for (unsigned ragged = 0; ragged < 2; ragged++)
        for (size_t i = 0; i < FORMS; i++) {
            if ((groups != 0 && groups != ragged + 1) || (dtype < FORMS && dtype != i))
                continue;
            b->factors.form = &forms[i];
            MOERT_TRY(run_form(b, of, ragged != 0));
        }
    return MOERT_OK;
}

static moert_status run_shapes(bench *b) {
    if (chosen.experts > 0)
        return run_shape(b, chosen);
    for (size_t i = 0; i < MOERT_COUNT(models); i++)
        for (int down = 0; down < 2; down++) {
            const size_t hidden = models[i].hidden, width = models[i].intermediate;
            printf("# %s, %s\n", models[i].name, down ? "down" : "gate and up");
            MOERT_TRY(run_shape(b, (shape){models[i].experts, models[i].rows,
                                           down ? hidden : 2 * width, down ? width : hidden}));
        }
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    bench b = {.factors = {.device = moert_context_device(context), .seed = seed},
               .rows = json_array()};
    moert_status status;
    printf("# moert %s, %s\n%-13s %-10s %4s %8s %6s %6s %-8s %-8s %8s %6s\n", bench_report_commit(),
           moert_device_name(b.factors.device), "#op", "dtype", "E", "rows", "N", "K", "groups",
           "backend", "TFLOP/s", "wrong");
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
        .about =
            "Times grouped GEMM ops of 16-bit, FP8, MX and NV factors on a GPU and checks each "
            "result. Exits "
            "with 1 when a result is wrong.",
        .options = options,
        .option_count = MOERT_COUNT(options),
        .run = run,
    };
    return moert_program_main(&program, argc, argv);
}
