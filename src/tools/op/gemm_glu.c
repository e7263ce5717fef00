/* The operations grouped-gemm-glu, -dglu and -quant of moert-op. Tensors have the names of
 * cuDNN. */

#include "args/activations.h"
#include "base/memory.h"
#include "tools/op/gemm.h"

static unsigned format, c_format, d_format, act, glu_order, scales, b_major;
static size_t interleave;
static double limit;
static bool with_column;

/* Words of --act: the GLUs of Mixtral and of gpt-oss, then Mixtral's GLU with each activation. */
enum { SWIGLU, GEGLU, FIRST_ACTIVATION };
#define ACTIVATION_WORD(name, value, slope) "|" #name

/* Words of --scales. */
static const moert_scale_layout row_layouts[] = {MOERT_SCALES_TILED_WHOLE, MOERT_SCALES_TILED,
                                                 MOERT_SCALES_LINEAR};
static const moert_scale_layout weight_layouts[] = {MOERT_SCALES_TILED, MOERT_SCALES_TILED,
                                                    MOERT_SCALES_LINEAR};

/* ---- options ---- */

/* clang-format off */
#define INPUT_OPTIONS                                                                             \
    {"format", MOERT_OPTION_CHOICE, &format, "mxfp8", MOERT_GEMM_FORMAT_WORDS,                     \
     "of a and b, both in blocks along the summed dimension; fp8-block: square blocks of b"},      \
    {"scales", MOERT_OPTION_CHOICE, &scales, "tiled", "tiled|tiled-groups|linear",                 \
     "sfa, sfb, sfd in 128x4 tiles of all rows together, in tiles of each group (cuDNN's "         \
     "discrete_col_sfd), or as matrices"},                                                         \
    {"b-major", MOERT_OPTION_CHOICE, &b_major, "k", "k|n",                                         \
     "k: b as shown below; n: with its last two dimensions exchanged"}
#define D_OPTIONS                                                                                  \
    {"d-format", MOERT_OPTION_CHOICE, &d_format, "f32", MOERT_GEMM_FORMAT_WORDS,                   \
     "of d; a format with scales also gives sfd_row, d_col and sfd_col"},                          \
    {"column", MOERT_OPTION_FLAG, &with_column, "1", NULL,                                         \
     "also write d_col and sfd_col, d quantized in blocks along columns"}
#define GLU_OPTIONS                                                                                \
    {"act", MOERT_OPTION_CHOICE, &act, "swiglu",                                                   \
     "swiglu|geglu" MOERT_ACTIVATION_TABLE(ACTIVATION_WORD),                                       \
     "swiglu is silu; geglu has the alpha and the offset of gpt-oss"},                             \
    {"limit", MOERT_OPTION_FLOAT, &limit, "0", "0..",                                              \
     "bound of gate and up; 0 = none for swiglu, 7 for geglu"},                                    \
    {"glu-order", MOERT_OPTION_CHOICE, &glu_order, "gate-first", "gate-first|linear-first",        \
     "order of gate and up"},                                                                      \
    {"interleave", MOERT_OPTION_UINT, &interleave, "32", NULL,                                     \
     "columns in each run of gate or of up: 1, 8, 32; 0 = halves"}
/* clang-format on */

static const moert_option glu_options[] = {
    INPUT_OPTIONS,
    GLU_OPTIONS,
    {"c-format", MOERT_OPTION_CHOICE, &c_format, "f32", MOERT_FILE_OP_DTYPE_WORDS, "of c"},
    D_OPTIONS,
};
static const moert_option dglu_options[] = {INPUT_OPTIONS, GLU_OPTIONS, D_OPTIONS};
static const moert_option gemm_quant_options[] = {INPUT_OPTIONS, D_OPTIONS};

/* ---- tensors ---- */

#define T MOERT_GEMM_TENSOR
/* clang-format off */
#define INPUTS(a)                                                                                  \
    T("padded_offsets", ends), T("a", a), T("sfa", a##_scale), T("b", weight),                     \
    T("sfb", weight_scale), T("alpha", alpha), T("norm_const", norm)
#define RESULTS(d)                                                                                 \
    T("d", d), T("sfd_row", d##_scale), T("d_col", column), T("sfd_col", column_scale)
/* clang-format on */
static const moert_gemm_tensor glu_tensors[] = {INPUTS(x), T("bias", bias), T("prob", prob),
                                                T("c", c), RESULTS(d),      T("amax", amax)};
static const moert_gemm_tensor dglu_tensors[] = {
    INPUTS(y),  T("c", c),         T("beta", beta),   T("prob", prob),
    RESULTS(d), T("dprob", dprob), T("dbias", dbias), T("amax", amax)};
/* With a bias, prob multiplies only the bias; otherwise it multiplies the GEMM's result. */
static const moert_gemm_tensor quant_tensors[] = {INPUTS(x), T("bias", bias), T("prob", prob),
                                                  RESULTS(y), T("amax", amax)};
static const moert_gemm_tensor quant_bias_tensors[] = {
    INPUTS(x), T("bias", bias), T("prob", bias_scale), RESULTS(y), T("amax", amax)};

/* ---- operations ---- */

/* Sets the operands of an op, which are `rows` (x or y), the weight, and the result `d`. */
static moert_status describe(moert_op_options *o, moert_operand *rows, moert_axis weight_axis,
                             moert_operand *d) {
    /* natural: the reduction index is K of weight [N,K] */
    const bool natural = weight_axis == MOERT_AXIS_ROW;
    *rows = moert_gemm_operand(format, MOERT_AXIS_ROW, false, row_layouts[scales]);
    o->weight =
        moert_gemm_weight(format, weight_axis, natural == (b_major == 1), weight_layouts[scales]);
    *d = moert_gemm_operand(d_format, MOERT_AXIS_ROW, false, row_layouts[scales]);
    if (with_column && moert_gemm_quantized(d))
        o->column = moert_gemm_column(d_format, row_layouts[scales]);
    o->glu = act == GEGLU ? (moert_glu_form)MOERT_GLU_GPT_OSS : (moert_glu_form)MOERT_GLU_SWIGLU;
    if (act >= FIRST_ACTIVATION)
        o->glu.activation = (int)act - FIRST_ACTIVATION;
    o->glu.interleaved = false;
    if (limit > 0.0)
        o->glu.limit = (float)limit;
    o->interleave = interleave;
    o->linear_first = glu_order == 1;
    const bool square = moert_gemm_quantized(&o->weight) && o->weight.how.axis == MOERT_AXIS_TILE;
    MOERT_TRY(MOERT_FILE_OP_CHECK(
        {!with_column && !moert_gemm_quantized(d), "no-column", "goes with a quantized d"},
        {square && o->weight.how.transposed, "b-major",
         natural ? "n does not go with square blocks of b"
                 : "k does not go with square blocks of b here; n does"}));
    return moert_gemm_check_scales(o, scales != 0, row_layouts[scales]);
}

static moert_status glu(moert_file_op_job *job) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = MOERT_OP_GLU;
    MOERT_TRY(describe(&o, &o.x, MOERT_AXIS_ROW, &o.d));
    o.c = moert_gemm_operand(c_format, MOERT_AXIS_ROW, false, MOERT_SCALES_LINEAR);
    o.save_c = true;
    return moert_gemm_job_run(job, &o, glu_tensors, MOERT_COUNT(glu_tensors));
}

static moert_status dglu(moert_file_op_job *job) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = MOERT_OP_DGLU;
    MOERT_TRY(describe(&o, &o.y, MOERT_AXIS_COLUMN, &o.d));
    return moert_gemm_job_run(job, &o, dglu_tensors, MOERT_COUNT(dglu_tensors));
}

static moert_status gemm_quant(moert_file_op_job *job) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    const bool bias = moert_tensors_find(job->input, "bias") != NULL;
    o.kind = MOERT_OP_GEMM_FORWARD;
    MOERT_TRY(describe(&o, &o.x, MOERT_AXIS_ROW, &o.y));
    return moert_gemm_job_run(job, &o, bias ? quant_bias_tensors : quant_tensors,
                              MOERT_COUNT(quant_tensors));
}

MOERT_FILE_OP(
    glu, "grouped-gemm-glu",
    "a[M,K], sfa, b[G,N,K], sfb, padded_offsets[G] (ends of the groups), optional alpha[G], "
    "bias[G,N], prob[M], norm_const[1] -> c[M,N] = alpha a b^T + bias, d[M,N/2] = prob GLU(c), "
    "amax[G] of d, and with a quantized d sfd_row, d_col[M,N/2], sfd_col. a, b: elements of "
    "4 bits in pairs along the sum; sfa, sfb: bytes, f32 for fp8-block");

MOERT_FILE_OP(
    dglu, "grouped-gemm-dglu",
    "a[M,N] (gradient), sfa, b[G,I,N], sfb, padded_offsets[G], c[M,2I] (of the forward), optional "
    "alpha[G], beta[G], prob[M], norm_const[1] -> d[M,2I] = gradient of c, dprob[M], dbias[G,2I], "
    "amax[G,2] of gate and up, and with a quantized d sfd_row, d_col[M,2I], sfd_col");

MOERT_FILE_OP(
    gemm_quant, "grouped-gemm-quant",
    "a[M,K], sfa, b[G,N,K], sfb, padded_offsets[G], optional alpha[G], prob[M], bias[G,N], "
    "norm_const[1] -> d[M,N] = prob alpha a b^T or, with a bias, alpha a b^T + prob bias, amax[G], "
    "and with a quantized d sfd_row, d_col[M,N], sfd_col");
