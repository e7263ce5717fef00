/* The operations grouped-gemm, with tensor names of moert/ops.h, and grouped-gemm-wgrad, with
 * tensor names of cuDNN. */
#include "base/memory.h"
#include "tools/op/gemm.h"

static unsigned operation, format, out_format, axes[3], permute, scales;
static bool transposed[3], accumulate;
static size_t topk;

/* indices into `axes` and `transposed` */
enum { X = MOERT_OP_MATRIX_x, WEIGHT = MOERT_OP_MATRIX_weight, Y = MOERT_OP_MATRIX_y };

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

/* Appends tensors that have the names of their buffers. */
static size_t add(moert_gemm_tensor *tensors, size_t count, moert_op_buffer buffer) {
    if (buffer == MOERT_OP_BUFFER_none)
        return count;
    tensors[count] = (moert_gemm_tensor){moert_op_buffer_name(buffer), buffer};
    return count + 1;
}

static size_t add_matrix(moert_gemm_tensor *tensors, size_t count, moert_op_buffer payload,
                         bool result) {
    const moert_op_matrix *m = moert_op_matrix_of(payload);
    count = add(tensors, count, payload);
    count = add(tensors, count, m->scale);
    return result ? count : add(tensors, count, m->global);
}

/* Lists all tensors of a GEMM, except sums and maxima. */
static size_t list_tensors(moert_op_kind kind, moert_gemm_tensor *tensors) {
    const moert_op_roles is = moert_op_roles_of(kind);
    size_t count = add(tensors, 0, MOERT_OP_BUFFER_ends);
    count = add(tensors, count, MOERT_OP_BUFFER_gather);
    const bool wgrad = kind == MOERT_OP_GEMM_WGRAD; /* y^T x */
    count = add_matrix(tensors, count, wgrad ? is.second : is.first, false);
    count = add_matrix(tensors, count, wgrad ? is.first : is.second, false);
    for (size_t i = 0; i < MOERT_OP_FIELDS; i++)
        if (moert_op_has_field(kind, &moert_op_fields[i]) &&
            moert_op_fields[i].use == MOERT_OP_READ)
            count = add(tensors, count, moert_op_fields[i].buffer);
    count = add_matrix(tensors, count, is.result, true);
    return add_matrix(tensors, count, MOERT_OP_BUFFER_column, true);
}

/* Fails if an option of x, weight or y (index i) does not apply to this operand. */
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
    static const moert_scale_layout layouts[] = {MOERT_SCALES_LINEAR, MOERT_SCALES_TILED,
                                                 MOERT_SCALES_TILED_WHOLE};
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    moert_operand *const operands[] = {&o.x, &o.weight, &o.y};
    moert_gemm_tensor tensors[MOERT_GEMM_MOST_TENSORS];
    o.kind = (moert_op_kind)operation;
    const moert_operand *result = moert_op_operand(&o, moert_op_roles_of(o.kind).result);
    for (int i = X; i <= Y; i++) {
        /* whether the reduction index runs along the operand's columns, not along its rows */
        const bool column = o.kind == (i == WEIGHT ? MOERT_OP_GEMM_DGRAD : MOERT_OP_GEMM_WGRAD);
        const bool written = operands[i] == result;
        const moert_axis axis = axes[i] > 0          ? (moert_axis)(axes[i] - 1)
                                : column && !written ? MOERT_AXIS_COLUMN
                                                     : MOERT_AXIS_ROW;
        /* scales of weights are tiled for each group separately */
        const moert_scale_layout layout = i == WEIGHT && layouts[scales] != MOERT_SCALES_LINEAR
                                              ? MOERT_SCALES_TILED
                                              : layouts[scales];
        *operands[i] = (i == WEIGHT ? moert_gemm_weight : moert_gemm_operand)(
            written ? out_format : format, axis, !written && transposed[i], layout);
    }
    if (moert_gemm_quantized(result) && result != &o.weight)
        o.column = moert_gemm_column(out_format, layouts[scales]);
    o.accumulate = accumulate;
    o.permute = (moert_op_permute)permute;
    o.topk = topk;
    for (int i = X; i <= Y; i++)
        MOERT_TRY(check_operand(i, operands[i], operands[i] == result));
    MOERT_TRY(MOERT_FILE_OP_CHECK({topk != 1 && permute == 0, "topk", "goes with --permute"}));
    MOERT_TRY(moert_gemm_check_scales(&o, scales != 0, layouts[scales]));
    return moert_gemm_job_run(job, &o, tensors, list_tensors(o.kind, tensors));
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
    MOERT_GEMM_TENSOR("offsets", ends),         MOERT_GEMM_TENSOR("a", y),
    MOERT_GEMM_TENSOR("sfa", y_scale),          MOERT_GEMM_TENSOR("b_t", x),
    MOERT_GEMM_TENSOR("sfb", x_scale),          MOERT_GEMM_TENSOR("global_scale_a", alpha),
    MOERT_GEMM_TENSOR("global_scale_b", alpha), MOERT_GEMM_TENSOR("wgrad", weight),
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
