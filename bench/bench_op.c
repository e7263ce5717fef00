/*
 * bench_op: rates of the grouped GEMM ops with 16-bit, FP8, MX and NV operands, on the backend that
 * moert chooses for the device. --epilogues runs bf16 operands with the epilogues of training
 * instead: float32 results, accumulation, biases, probabilities, a GLU. Each result is checked.
 * bench/rivals/torch_grouped_mm.py measures the same 16-bit shapes in PyTorch.
 *
 * A sample is 50 ms of consecutive calls, after 25 ms of calls that are not timed, because a GPU's
 * clock depends on its temperature. The rate is the median of several samples. Operands repeat a
 * pattern of random numbers, whose length is not a multiple of any row length.
 */
#include <stdio.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "bench/common/rate.h"
#include "bench/common/report.h"
#include "bench/gemm/op_operands.h"

/* The sizes of a layer's experts with 8192 tokens per rank. DeepSeek-V3 runs on 8 ranks, the others
 * on one. */
static const struct {
    const char *name;
    size_t experts, rows, hidden, intermediate;
} models[] = {{"Mixtral 8x7B", 8, 16384, 4096, 14336},
              {"Qwen3-30B-A3B", 128, 65536, 2048, 768},
              {"DeepSeek-V3", 32, 32768, 7168, 2048},
              {"OLMoE-1B-7B", 64, 65536, 2048, 1024}};

#define PLAIN(name, operand, result)                                                               \
    { name, MOERT_DTYPE_##operand, MOERT_DTYPE_##result, false, false, false, 0 }
#define BLOCKS(name, transposed)                                                                   \
    { name, MOERT_DTYPE_E4M3, MOERT_DTYPE_BF16, true, transposed, false, MOERT_FORMAT_FP8_BLOCK }
#define QUANTIZED(name, operand, format)                                                           \
    { name, MOERT_DTYPE_##operand, MOERT_DTYPE_BF16, false, false, true, MOERT_FORMAT_##format }
static const op_form forms[] = {
    PLAIN("bf16", BF16, BF16),       PLAIN("f16", F16, F16),
    PLAIN("e4m3", E4M3, BF16),       BLOCKS("fp8-block", false),
    BLOCKS("fp8-turned", true),      QUANTIZED("mxfp8", E4M3, MXFP8_E4M3),
    QUANTIZED("mxfp4", E2M1, MXFP4), QUANTIZED("nvfp4", E2M1, NVFP4)};
enum { FORMS = MOERT_COUNT(forms) };

#define ON(field) (1u << MOERT_OP_FIELD_##field)
static const op_variant plain[] = {{"gemm_forward", MOERT_OP_GEMM_FORWARD, .f32 = false},
                                   {"gemm_dgrad", MOERT_OP_GEMM_DGRAD, .f32 = false},
                                   {"gemm_wgrad", MOERT_OP_GEMM_WGRAD, .f32 = false}};
static const op_variant with_epilogues[] = {
    {"forward", MOERT_OP_GEMM_FORWARD, .f32 = false},
    {"forward, f32", MOERT_OP_GEMM_FORWARD, .f32 = true},
    {"forward, f32, bias", MOERT_OP_GEMM_FORWARD, .f32 = true, ON(bias)},
    {"forward, prob, amax", MOERT_OP_GEMM_FORWARD, .fields = ON(prob) | ON(amax)},
    {"dgrad", MOERT_OP_GEMM_DGRAD, .f32 = false},
    {"dgrad, f32", MOERT_OP_GEMM_DGRAD, .f32 = true},
    {"dgrad, f32, added", MOERT_OP_GEMM_DGRAD, .f32 = true, ON(accumulate)},
    {"wgrad", MOERT_OP_GEMM_WGRAD, .f32 = false},
    {"wgrad, f32", MOERT_OP_GEMM_WGRAD, .f32 = true},
    {"wgrad, f32, added", MOERT_OP_GEMM_WGRAD, .f32 = true, ON(accumulate)},
    {"glu, prob", MOERT_OP_GLU, .fields = ON(prob)},
    {"glu, prob, v kept", MOERT_OP_GLU, .fields = ON(prob) | ON(save_c)},
    {"glu, f32, prob, v kept", MOERT_OP_GLU, .f32 = true, ON(prob) | ON(save_c)},
    {"glu, interleaved", MOERT_OP_GLU, .interleaved = true},
};

static op_shape chosen; /* experts 0: run the shapes of all models */
static unsigned groups, dtype;
static size_t seed;
static bool epilogues;
static const char *json_path;
static bench_rows measured;

static const moert_option options[] = {
    {"experts", MOERT_OPTION_UINT, &chosen.experts, "0", "0..4096",
     "E; 0 = the layers of Mixtral 8x7B, Qwen3-30B-A3B, DeepSeek-V3 and OLMoE"},
    {"rows", MOERT_OPTION_UINT, &chosen.rows, "16384", "1..16777216", "rows of all experts"},
    {"n", MOERT_OPTION_UINT, &chosen.n, "4096", "8..1048576", "N"},
    {"k", MOERT_OPTION_UINT, &chosen.k, "4096", "8..1048576", "K"},
    {"groups", MOERT_OPTION_CHOICE, &groups, "all", "all|balanced|ragged",
     "rows of the experts: equal, or 0.25 to 1.75 times the average and none for every fifth"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "bf16",
     "bf16|f16|e4m3|fp8-block|fp8-turned|mxfp8|mxfp4|nvfp4|all",
     "of the operands; results are bf16, with f16 operands f16; e4m3 has no wgrad; fp8-turned: "
     "dgrad with transposed weights; all = one after the other"},
    {"epilogues", MOERT_OPTION_FLAG, &epilogues, NULL, NULL,
     "bf16 with each epilogue, also a GLU of N gate and up columns; without --experts the gate and "
     "up GEMM of DeepSeek-V3"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of data and ragged groups"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

#define COLUMNS                                                                                    \
    " dtype -10s, E 4z, rows 8z, N 6z, K 6z, groups -8s, backend -8s, ends *o,"                    \
    " tflops 8.1f TFLOP/s, wrong 6z"

static moert_status report(const op_operands *data, const moert_op *op, const char *title,
                           double tflops, size_t wrong) {
    const op_shape *s = &data->of;
    json_t *ends = json_array();
    for (size_t e = 0; e < s->experts; e++)
        json_array_append_new(ends, json_integer(data->ends[e]));
    return bench_rows_add(&measured, title, data->form->name, s->experts, s->rows, s->n, s->k,
                          data->ragged ? "ragged" : "balanced", moert_op_backend_name(op), ends,
                          tflops, wrong);
}

/* Sets the quantizers of an op. The blocks of rows and of weights lie along the reduction index,
 * except the square weight blocks of fp8-block (as in DeepSeek-V3). */
static void describe_quantized(const op_form *form, moert_op_options *o) {
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, forward = o->kind == MOERT_OP_GEMM_FORWARD;
    moert_quantizer rows = MOERT_QUANTIZER_INIT, weights = MOERT_QUANTIZER_INIT;
    rows.format = weights.format = form->format;
    rows.axis = wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    rows.transposed = wgrad && form->blocks;
    weights.axis = form->blocks ? MOERT_AXIS_TILE : forward ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN;
    weights.transposed = form->transposed;
    o->row_multiple = form->blocks ? 16 : 0;
    const moert_op_roles is = moert_op_roles_of(o->kind);
    moert_op_operand(o, is.first)->how = rows;
    moert_op_operand(o, is.second)->how = wgrad ? rows : weights;
}

static moert_op_options describe(const op_operands *data, const op_variant *v) {
    const op_form *form = data->form;
    const moert_dtype result = v->f32 ? MOERT_DTYPE_F32 : form->result;
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = v->kind;
    if (!form->quantized && op_operand_bytes(form) == 1) {
        o.backend = "nvidia"; /* MOERT_BACKEND=auto does not choose the nvidia backend for FP8 */
        o.fallback = true;
    }
    o.groups = data->of.experts;
    o.rows = data->of.rows;
    o.n = data->of.n;
    o.k = data->of.k;
    o.x.type = o.weight.type = o.y.type = form->operand;
    moert_op_operand(&o, moert_op_roles_of(v->kind).result)->type = o.c.type = result;
    for (size_t i = 0; i < MOERT_OP_FIELDS; i++)
        *moert_op_flag(&o, &moert_op_fields[i]) = (v->fields >> i & 1) != 0;
    o.glu.interleaved = v->interleaved;
    if (form->blocks || form->quantized)
        describe_quantized(form, &o);
    return o;
}

/* An op and its operands. */
typedef struct executable {
    moert_op *op;
    const moert_op_buffers *buffers;
} executable;

static moert_status execute(void *what) {
    const executable *e = what;
    return moert_op_execute(e->op, e->buffers);
}

static moert_status run_variant(const op_operands *data, const op_variant *v) {
    const op_shape *s = &data->of;
    const moert_op_options o = describe(data, v);
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_op *op;
    moert_status status;
    double tflops = 0.0;
    size_t wrong = 0;
    MOERT_TRY(moert_op_create(data->device, &o, &op));
    MOERT_TRY_OR(release, op_buffers_make(data, op, &buffers));
    MOERT_TRY_OR(release, moert_op_execute(op, &buffers));
    MOERT_TRY_OR(release, op_count_wrong(data, op, &buffers, &wrong));
    MOERT_TRY_OR(release, bench_rate(data->device, execute, &(executable){op, &buffers},
                                     2.0 * (double)s->rows * (double)s->n * (double)s->k, &tflops));
    status = report(data, op, v->title, tflops, wrong);
release:
    op_buffers_release(&buffers);
    moert_op_destroy(op);
    return status;
}

/* A wgrad of plain FP8 is left out: it needs transposed operands. */
static bool is_supported(const op_form *form, const op_variant *v) {
    if (form->transposed)
        return v->kind == MOERT_OP_GEMM_DGRAD;
    return v->kind != MOERT_OP_GEMM_WGRAD || form->quantized || form->blocks ||
           op_operand_bytes(form) > 1;
}

static moert_status run_form(moert_device *device, const op_form *form, op_shape of, bool ragged) {
    op_operands data = {device, form, of, ragged, seed, NULL, NULL, NULL, NULL, NULL};
    const op_variant *variants = epilogues ? with_epilogues : plain;
    const size_t count = epilogues ? MOERT_COUNT(with_epilogues) : MOERT_COUNT(plain);
    moert_status status = op_operands_make(&data);
    for (size_t i = 0; i < count && status == MOERT_OK; i++)
        if (is_supported(form, &variants[i]))
            status = run_variant(&data, &variants[i]);
    op_operands_release(&data);
    return status;
}

static moert_status run_shape(moert_device *device, op_shape of) {
    for (unsigned ragged = 0; ragged < 2; ragged++)
        for (size_t i = 0; i < FORMS; i++)
            if ((groups == 0 || groups == ragged + 1) && (dtype == FORMS || dtype == i))
                MOERT_TRY(run_form(device, &forms[i], of, ragged != 0));
    return MOERT_OK;
}

static moert_status run_shapes(moert_device *device) {
    if (chosen.experts > 0)
        return run_shape(device, chosen);
    for (size_t i = 0; i < MOERT_COUNT(models); i++)
        for (int down = 0; down < 2; down++) {
            const size_t hidden = models[i].hidden, width = models[i].intermediate;
            printf("# %s, %s\n", models[i].name, down ? "down" : "gate and up");
            MOERT_TRY(
                run_shape(device, (op_shape){models[i].experts, models[i].rows,
                                             down ? hidden : 2 * width, down ? width : hidden}));
        }
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    moert_device *device = moert_context_device(context);
    if (epilogues) {
        dtype = 0;
        if (chosen.experts == 0)
            chosen = (op_shape){32, 32768, 4096, 7168};
    }
    measured = bench_rows_begin(context, epilogues ? "op -24s," COLUMNS : "op -13s," COLUMNS, "%s",
                                moert_device_name(device));
    return bench_rows_end(&measured, json_path, "samples of the results", run_shapes(device));
}

MOERT_PROGRAM_MAIN(
    "bench_op [OPTION...]",
    "Times grouped GEMM ops with 16-bit, FP8, MX and NV operands on a GPU, or bf16 ones with the "
    "epilogues of training, and checks each result.\nExits with 1 if a result is wrong.",
    NULL)
