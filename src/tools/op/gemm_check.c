/* Checks of a grouped GEMM: types of tensors, combinations of tensors, options. */
#include "base/memory.h"
#include "base/dtype.h"
#include "quant/quantize.h"
#include "tools/op/gemm.h"

/* ---- types ---- */

bool moert_gemm_quantized(const moert_operand *operand) {
    return operand->how.size > 0;
}

bool moert_gemm_tileable(const moert_operand *operand) {
    return moert_gemm_quantized(operand) && moert_format_scale_bytes(operand->how.format) == 1;
}

/* Stores the dtype of a tensor that may have any plain dtype. A bias must have more than 8 bits per
 * element. */
static moert_status find_type(const moert_gemm_job *job, const moert_gemm_row *row,
                              const moert_tensor *tensor) {
    const bool bias = row->buffer == MOERT_OP_BUFFER_bias;
    const moert_dtype last = bias ? MOERT_DTYPE_BF16 : MOERT_DTYPE_E5M2;
    for (moert_dtype type = 0; type <= last; type++)
        if (moert_file_type_of(type) == tensor->type) {
            *(bias ? &job->options->bias_type : &moert_gemm_operand_of(job, row)->type) = type;
            return MOERT_OK;
        }
    return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor '%s' is %s, not F32, F16%s", tensor->file,
                      row->name, moert_file_type_text(tensor->type),
                      bias ? " or BF16" : ", BF16, F8_E4M3 or F8_E5M2");
}

/* The dtype that a tensor must have in the file. The result E2M1 means any one-byte dtype. */
static moert_dtype expected_type(const moert_gemm_job *job, const moert_gemm_row *row) {
    if (row->role == MOERT_GEMM_SCALE)
        return moert_gemm_tileable(moert_gemm_operand_of(job, row)) ? MOERT_DTYPE_E2M1
                                                                    : MOERT_DTYPE_F32;
    if (row->role != MOERT_GEMM_INPUT && row->role != MOERT_GEMM_RESULT)
        return MOERT_DTYPE_F32;
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    return moert_gemm_quantized(operand) ? moert_format_element(operand->how.format)
                                         : operand->type;
}

moert_status moert_gemm_check_type(const moert_gemm_job *job, const moert_gemm_row *row,
                                   const moert_tensor *tensor) {
    if (row->role == MOERT_GEMM_DTYPES)
        return find_type(job, row, tensor);
    const moert_dtype type = expected_type(job, row);
    if (row->role == MOERT_GEMM_INDEX || row->role == MOERT_GEMM_ENDS ||
        moert_file_type_holds(tensor->type, type) ||
        (type == MOERT_DTYPE_E2M1 && moert_file_type_bytes(tensor->type) == 1))
        return MOERT_OK;
    const bool payload =
        row->role == MOERT_GEMM_INPUT && moert_gemm_quantized(moert_gemm_operand_of(job, row));
    return MOERT_FAIL(
        ERROR_MISMATCH, "%s: tensor '%s' is %s, not %s%s%s", tensor->file, row->name,
        moert_file_type_text(tensor->type), moert_file_type_text(moert_file_type_of(type)),
        moert_dtype_bits(type) == 8 ? " or U8" : "",
        payload ? ", a payload as moert-op quantize writes it; for plain values use --format f32, "
                  "f16 or bf16"
                : "");
}

/* ---- tensors ---- */

moert_status moert_gemm_check_tensors(const moert_gemm_job *job) {
    const moert_op_options *o = job->options;
    const moert_operand *result = moert_op_operand(o, moert_op_roles_of(o->kind).result);
    const bool quantized = moert_gemm_quantized(result);
    const bool nvfp4 = quantized && result->how.format == MOERT_FORMAT_NVFP4;
    const bool glu = o->kind == MOERT_OP_GLU || o->kind == MOERT_OP_DGLU;
    const struct {
        moert_op_buffer buffer; /* the op's buffer for the tensor that the message names */
        bool broken;
        const char *text;
    } rules[] = {
        {MOERT_OP_BUFFER_norm, nvfp4 && !o->norm,
         "is needed, a factor of nvfp4 results: 2688 / their largest magnitude, beyond which they "
         "saturate"},
        {MOERT_OP_BUFFER_norm, o->norm && !moert_gemm_tileable(result),
         "goes with a quantized result that has scales of one byte"},
        {MOERT_OP_BUFFER_beta, o->beta && quantized && !glu, "goes with a plain result"},
        {MOERT_OP_BUFFER_beta, o->beta && o->accumulate, "does not go with --accumulate"},
        {MOERT_OP_BUFFER_row_weight, o->row_weight && quantized, "goes with a plain result"},
        {MOERT_OP_BUFFER_row_weight, o->row_weight && o->permute != MOERT_OP_PERMUTE_Y,
         "goes with --permute y"},
        {MOERT_OP_BUFFER_bias_scale, o->bias_scale && !o->bias, "goes with a tensor 'bias'"},
        {MOERT_OP_BUFFER_prob, o->prob && !glu && (o->beta || o->accumulate),
         "does not go with a tensor 'beta', nor with --accumulate"},
        {MOERT_OP_BUFFER_prob, o->prob && !glu && o->bias,
         "does not go with a tensor 'bias', whose factor is 'bias_scale'"},
        {MOERT_OP_BUFFER_x_global, o->x.global && o->x.how.format != MOERT_FORMAT_NVFP4,
         "goes with --format nvfp4"},
        {MOERT_OP_BUFFER_y_global, o->y.global && o->y.how.format != MOERT_FORMAT_NVFP4,
         "goes with --format nvfp4"},
        {MOERT_OP_BUFFER_weight_global,
         o->weight.global && o->weight.how.format != MOERT_FORMAT_NVFP4,
         "goes with --format nvfp4"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rules); i++)
        for (size_t t = 0; rules[i].broken && t < job->count; t++)
            if (job->rows[t].buffer == rules[i].buffer)
                return MOERT_FAIL(ERROR_MISMATCH, "tensor '%s' %s", job->rows[t].name,
                                  rules[i].text);
    return MOERT_OK;
}

/* ---- options ---- */

moert_status moert_gemm_check_scales(const moert_op_options *o, bool given,
                                     moert_scale_layout layout) {
    bool quantized = false, tileable = false;
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++) {
        const moert_operand *operand = moert_op_operand(o, moert_op_matrices[i].payload);
        quantized = quantized || moert_gemm_quantized(operand);
        tileable = tileable || moert_gemm_tileable(operand);
    }
    return MOERT_FILE_OP_CHECK(
        {given && !quantized, "scales", "goes with quantized operands; all are plain"},
        {given && layout != MOERT_SCALES_LINEAR && !tileable, "scales",
         "in tiles have one byte; those of fp8-block are linear always"});
}
