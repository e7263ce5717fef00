/* moert-op grouped-gemm, with the names of moert/ops.h, and grouped-gemm-wgrad, with cuDNN's. */
#include <string.h>

#include "base/memory.h"
#include "tools/op/gemm.h"

static unsigned operation, format, out_format, axes[3], permute, scales;
static bool transposed[3], accumulate;
static size_t topk;

enum { X, WEIGHT, Y }; /* indices into `axes` and `transposed` */

/* ---- grouped-gemm ---- */

#define AXIS_WORDS "sum|row|column|2d"

static const moert_option gemm_options[] = {
    {"op", MOERT_OPTION_CHOICE, &operation, "fprop", "fprop|dgrad|wgrad",
     "y = x weight^T, x = y weight, weight = y^T x"},
    {"format", MOERT_OPTION_CHOICE, &format, "f32", MOERT_GEMM_FORMAT_WORDS,
     "of the two operands; for weights fp8-block means fp8-128x128"},
    {"out-format", MOERT_OPTION_CHOICE, &out_format, "f32", MOERT_GEMM_FORMAT_WORDS,
     "of the result; a format with scales also gives <name>_scale, column and column_scale"},
    {"scales", MOERT_OPTION_CHOICE, &scales, "linear", "linear|tiled|tiled-whole",
     "scales as matrices, in 128x4 tiles of each group, or in tiles of all rows together"},
    {"x-axis", MOERT_OPTION_CHOICE, &axes[X], "sum", AXIS_WORDS,
     "blocks of x: along the summed dimension, or as --axis of quantize"},
    {"weight-axis", MOERT_OPTION_CHOICE, &axes[WEIGHT], "sum", AXIS_WORDS, "blocks of weight"},
    {"y-axis", MOERT_OPTION_CHOICE, &axes[Y], "sum", AXIS_WORDS, "blocks of y"},
    {"x-transposed", MOERT_OPTION_FLAG, &transposed[X], "0", NULL, "x is stored [K,M]"},
    {"weight-transposed", MOERT_OPTION_FLAG, &transposed[WEIGHT], "0", NULL,
     "weight is stored [G,K,N]"},
    {"y-transposed", MOERT_OPTION_FLAG, &transposed[Y], "0", NULL, "y is stored [N,M]"},
    {"permute", MOERT_OPTION_CHOICE, &permute, "none", "none|x|y",
     "matrix in the order of slots; its rows are gathered or scattered by the tensor gather"},
    {"topk", MOERT_OPTION_UINT, &topk, "1", "1..", "slots of a token"},
    {"accumulate", MOERT_OPTION_FLAG, &accumulate, "0", NULL,
     "add to the result's old value, which the file holds"},
};

/* clang-format off */
#define INPUT_ROWS(text, operand, shape)                                                          \
    MOERT_GEMM_OPERAND(text, INPUT, operand, shape),                                              \
    MOERT_GEMM_SCALES(text "_scale", SCALE, operand),                                              \
    MOERT_GEMM_GLOBALS(text "_global", operand)
#define RESULT_ROWS(text, operand, shape)                                                          \
    MOERT_GEMM_OPERAND(text, RESULT, operand, shape),                                              \
    MOERT_GEMM_SCALES(text "_scale", RESULT_SCALE, operand),                                       \
    MOERT_GEMM_OPERAND("column", RESULT, column, shape),                                           \
    MOERT_GEMM_SCALES("column_scale", RESULT_SCALE, column)
#define COMMON_ROWS                                                                                \
    MOERT_GEMM_GROUPS("ends"),                                                                     \
    MOERT_GEMM_VALUES("alpha", F32, alpha, "G"),                                                   \
    MOERT_GEMM_VALUES("beta", F32, beta, "G"),                                                     \
    MOERT_GEMM_VALUES("norm", F32, norm, "1"),                                                     \
    {"gather", MOERT_GEMM_INDEX, MOERT_OP_BUFFER_gather, "M", 0, 0}
/* clang-format on */

static const moert_gemm_tensor fprop_tensors[] = {
    COMMON_ROWS,
    INPUT_ROWS("x", x, "MK"),
    INPUT_ROWS("weight", weight, "GNK"),
    MOERT_GEMM_BIAS,
    MOERT_GEMM_VALUES("bias_scale", F32, bias_scale, "M"),
    MOERT_GEMM_VALUES("row_weight", F32, row_weight, "M"),
    MOERT_GEMM_VALUES("prob", F32, prob, "M"),
    RESULT_ROWS("y", y, "MN"),
};
static const moert_gemm_tensor dgrad_tensors[] = {
    COMMON_ROWS,
    INPUT_ROWS("y", y, "MN"),
    INPUT_ROWS("weight", weight, "GNK"),
    MOERT_GEMM_VALUES("prob", F32, prob, "M"),
    RESULT_ROWS("x", x, "MK"),
};
static const moert_gemm_tensor wgrad_tensors[] = {
    COMMON_ROWS,
    INPUT_ROWS("y", y, "MN"),
    INPUT_ROWS("x", x, "MK"),
    MOERT_GEMM_OPERAND("weight", RESULT, weight, "GNK"),
};

/* The operations of --op: their tensors, the index of the result, and whether the summed dimension
 * of x, weight and y runs along columns. */
static const struct {
    moert_op_kind kind;
    const moert_gemm_tensor *tensors;
    size_t count;
    int result;
    bool column[3];
} operations[] = {
    {MOERT_OP_GEMM_FORWARD, fprop_tensors, MOERT_COUNT(fprop_tensors), Y, {false, false, false}},
    {MOERT_OP_GEMM_DGRAD, dgrad_tensors, MOERT_COUNT(dgrad_tensors), X, {false, true, false}},
    {MOERT_OP_GEMM_WGRAD, wgrad_tensors, MOERT_COUNT(wgrad_tensors), WEIGHT, {true, false, true}},
};

/* Refuses options of x, weight or y (index i) that do not apply to this operand. */
static moert_status check_operand(int i, const moert_operand *operand, bool result) {
    static const char *const axis_options[] = {"x-axis", "weight-axis", "y-axis"};
    static const char *const transposed_options[] = {"x-transposed", "weight-transposed",
                                                     "y-transposed"};
    const bool quantized = moert_gemm_quantized(operand), weight = i == WEIGHT;
    const moert_axis axis = operand->how.axis;
    const bool transposable = weight ? axis != MOERT_AXIS_TILE : axis == MOERT_AXIS_COLUMN;
    const bool gathered =
        permute != MOERT_OP_PERMUTE_NONE && i == (permute == MOERT_OP_PERMUTE_X ? X : Y);
    return MOERT_FILE_OP_CHECK(
        {result && transposed[i], transposed_options[i],
         "is of an operand; --op makes this one the result"},
        {result && weight && quantized, "out-format", "is plain with --op wgrad"},
        {result && accumulate && quantized, "accumulate", "goes with a plain result"},
        {axes[i] != 0 && !quantized, axis_options[i], "goes with a quantized format"},
        {axes[i] != 0 && axis != (moert_axis)(axes[i] - 1), axis_options[i],
         "does not go with this format, whose blocks are 2d"},
        {transposed[i] && quantized && !transposable, transposed_options[i],
         weight ? "does not go with square blocks"
                : "of a quantized format goes with blocks along columns"},
        {gathered && quantized && result, "permute", "does not scatter a quantized result"},
        {gathered && quantized && !result && axis == MOERT_AXIS_COLUMN, "permute",
         "does not gather rows of blocks along columns"});
}

static moert_status gemm(moert_file_op_job *job) {
    enum { MOST_TENSORS = MOERT_COUNT(fprop_tensors) };
    static const moert_scale_layout layouts[] = {MOERT_SCALES_LINEAR, MOERT_SCALES_TILED,
                                                 MOERT_SCALES_TILED_WHOLE};
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    moert_operand *const operands[] = {&o.x, &o.weight, &o.y};
    moert_gemm_tensor tensors[MOST_TENSORS];
    const size_t count = operations[operation].count;
    const int result = operations[operation].result;
    o.kind = operations[operation].kind;
    for (int i = X; i <= Y; i++) {
        const moert_axis axis = axes[i] > 0                       ? (moert_axis)(axes[i] - 1)
                                : operations[operation].column[i] ? MOERT_AXIS_COLUMN
                                                                  : MOERT_AXIS_ROW;
        /* scales of weights are tiled separately for each group */
        const moert_scale_layout layout = i == WEIGHT && layouts[scales] != MOERT_SCALES_LINEAR
                                              ? MOERT_SCALES_TILED
                                              : layouts[scales];
        *operands[i] = (i == WEIGHT ? moert_gemm_weight : moert_gemm_operand)(
            i == result ? out_format : format, axis, i != result && transposed[i], layout);
    }
    if (moert_gemm_quantized(operands[result]) && result != WEIGHT)
        o.column = moert_gemm_column(out_format, layouts[scales]);
    o.accumulate = accumulate;
    o.permute = (moert_op_permute)permute;
    o.topk = topk;
    for (int i = X; i <= Y; i++)
        MOERT_TRY(check_operand(i, operands[i], i == result));
    MOERT_TRY(MOERT_FILE_OP_CHECK({topk != 1 && permute == 0, "topk", "goes with --permute"}));
    MOERT_TRY(moert_gemm_check_scales(&o, scales != 0, layouts[scales]));
    memcpy(tensors, operations[operation].tensors, count * sizeof tensors[0]);
    for (size_t i = 0; i < count; i++) /* with --permute x, the rows of x are those of tokens */
        if (tensors[i].buffer == MOERT_OP_BUFFER_x && tensors[i].role == MOERT_GEMM_INPUT &&
            o.permute == MOERT_OP_PERMUTE_X)
            tensors[i].shape = "TK";
    return moert_gemm_job_run(job, &o, tensors, count);
}

/* ---- grouped-gemm-wgrad ---- */

static unsigned wgrad_format, wgrad_out, wgrad_scales;
static bool wgrad_accumulate;

static const moert_option wgrad_options[] = {
    {"format", MOERT_OPTION_CHOICE, &wgrad_format, "mxfp8", MOERT_GEMM_FORMAT_WORDS,
     "of a and b_t; a quantized format has blocks along the tokens"},
    {"scales", MOERT_OPTION_CHOICE, &wgrad_scales, "tiled", "tiled|linear",
     "sfa, sfb in 128x4 tiles of each group, or as matrices [H,blocks] and [I,blocks]"},
    {"out-format", MOERT_OPTION_CHOICE, &wgrad_out, "f32", MOERT_FILE_OP_DTYPE_WORDS, "of wgrad"},
    {"accumulate", MOERT_OPTION_FLAG, &wgrad_accumulate, "0", NULL,
     "add to the wgrad that the file holds"},
};

static const moert_gemm_tensor cudnn_wgrad_tensors[] = {
    MOERT_GEMM_GROUPS("offsets"),
    MOERT_GEMM_OPERAND("a", INPUT, y, "MN"),
    MOERT_GEMM_SCALES("sfa", SCALE, y),
    MOERT_GEMM_OPERAND("b_t", INPUT, x, "MK"),
    MOERT_GEMM_SCALES("sfb", SCALE, x),
    MOERT_GEMM_VALUES("global_scale_a", F32, alpha, "G"),
    MOERT_GEMM_VALUES("global_scale_b", F32, alpha, "G"),
    MOERT_GEMM_OPERAND("wgrad", RESULT, weight, "GNK"),
};

static moert_status wgrad(moert_file_op_job *job) {
    const moert_scale_layout layout = wgrad_scales == 0 ? MOERT_SCALES_TILED : MOERT_SCALES_LINEAR;
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = MOERT_OP_GEMM_WGRAD;
    o.x = moert_gemm_operand(wgrad_format, MOERT_AXIS_COLUMN, true, layout);
    o.y = o.x;
    o.weight = moert_gemm_operand(wgrad_out, MOERT_AXIS_ROW, false, MOERT_SCALES_LINEAR);
    o.accumulate = wgrad_accumulate;
    MOERT_TRY(MOERT_FILE_OP_CHECK(
        {o.x.how.axis != MOERT_AXIS_COLUMN, "format", "has blocks along the tokens, not 2d"}));
    MOERT_TRY(moert_gemm_check_scales(&o, wgrad_scales != 0, layout));
    const bool a = moert_tensors_find(job->input, "global_scale_a") != NULL;
    const bool b = moert_tensors_find(job->input, "global_scale_b") != NULL;
    if (a != b)
        return MOERT_FAIL(
            ERROR_MISMATCH,
            "the input holds no tensor 'global_scale_%c'; it must hold both global_scale_a and "
            "global_scale_b, or neither",
            a ? 'b' : 'a');
    return moert_gemm_job_run(job, &o, cudnn_wgrad_tensors, MOERT_COUNT(cudnn_wgrad_tensors));
}

MOERT_FILE_OP(
    gemm, "grouped-gemm",
    "ends[G], two of x[M,K], weight[G,N,K], y[M,N] with <name>_scale and, for nvfp4, "
    "<name>_global [1] or [G], optional alpha[G], beta[G] (with the old result), prob[M], "
    "norm[1] (multiplies a quantized result; nvfp4 needs it: 2688 / largest magnitude), for "
    "fprop bias[G,N], bias_scale[M], row_weight[M]; with --permute gather[M], and with "
    "--permute x x[M/topk,K] -> the third of x, weight, y");

MOERT_FILE_OP(
    wgrad, "grouped-gemm-wgrad",
    "a[H,T], sfa, b_t[I,T], sfb, offsets[G], global_scale_a[G] and global_scale_b[G] (both or "
    "neither) -> wgrad[G,H,I] = sums over the tokens of each group. Elements of 4 bits in pairs "
    "along T");
