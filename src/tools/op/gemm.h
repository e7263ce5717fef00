/* Common code of the grouped GEMMs of moert-op. A table maps the file's tensors to buffers of an op
 * (moert/ops.h). The tensors' types and shapes follow from op/fields.h. The op's sizes and optional
 * features follow from the tensors that the file has. */
#pragma once

#include <stdint.h>

#include "op/op.h"
#include "tools/op/op.h"

/* A tensor of the file, and the op's buffer for it. If several float32 tensors name one buffer, the
 * buffer holds their product. */
typedef struct moert_gemm_tensor {
    const char *name;
    moert_op_buffer buffer;
} moert_gemm_tensor;
#define MOERT_GEMM_TENSOR(name, buffer)                                                            \
    { name, MOERT_OP_BUFFER_##buffer }

/* Words of --format: plain types, then formats. */
#define MOERT_GEMM_FORMAT_WORDS MOERT_FILE_OP_DTYPE_WORDS "|" MOERT_FILE_OP_FORMAT_WORDS

/*
 * The operand that word number `word` of --format describes. The operand's blocks lie along `axis`,
 * unless the word fixes the shape of the blocks. float32 scales are always linear. A weight in
 * fp8-block has square blocks. moert_gemm_column() returns the second version of a result, whose
 * fp8-blocks lie along columns.
 */
moert_operand moert_gemm_operand(unsigned word, moert_axis axis, bool transposed,
                                 moert_scale_layout scales);
moert_operand moert_gemm_weight(unsigned word, moert_axis axis, bool transposed,
                                moert_scale_layout scales);
moert_operand moert_gemm_column(unsigned word, moert_scale_layout scales);

/* moert_gemm_quantized: whether the operand is quantized. moert_gemm_tileable: whether it also has
 * one-byte scales, which tiles require. */
bool moert_gemm_quantized(const moert_operand *operand);
bool moert_gemm_tileable(const moert_operand *operand);

/* ERROR_USAGE if --scales was given but no operand has scales of that layout. */
moert_status moert_gemm_check_scales(const moert_op_options *options, bool given,
                                     moert_scale_layout layout);

/*
 * Loads the tensors, creates and executes the op, and names the results. `options` describes the
 * op, except for sizes and optional features, which follow from the tensors. Errors: those of the
 * file, ERROR_MISMATCH with tensor, value and limit; those of the op.
 */
moert_status moert_gemm_job_run(moert_file_op_job *file, moert_op_options *options,
                                const moert_gemm_tensor *tensors, size_t count);

/* ---- rows of the table; the op's kind and buffer give their role, shape and dtype ---- */

typedef enum moert_gemm_role {
    MOERT_GEMM_ENDS,   /* int32, cumulative */
    MOERT_GEMM_INPUT,  /* an operand that is multiplied: plain values or a payload */
    MOERT_GEMM_SCALE,  /* scales of an operand; ignored if the operand is plain */
    MOERT_GEMM_GLOBAL, /* optional: an operand's global scale, float32 [1] or [G] */
    /* values of any plain dtype; the tensor's dtype becomes the option's dtype */
    MOERT_GEMM_DTYPES,
    MOERT_GEMM_F32,   /* optional, float32 */
    MOERT_GEMM_INDEX, /* int32, required with a permutation, otherwise ignored */
    /* the result; with beta or accumulate, the file has the result's old values */
    MOERT_GEMM_RESULT,
    MOERT_GEMM_RESULT_SCALE,
    MOERT_GEMM_SUM, /* a float32 result that starts at 0 */
    MOERT_GEMM_MOST /* a float32 maximum that starts at -inf */
} moert_gemm_role;

/* If an operand is stored transposed, its last two dimensions are exchanged. One dimension counts
 * pairs of 4-bit elements. */
typedef struct moert_gemm_row {
    const char *name;
    moert_op_buffer buffer;
    moert_gemm_role role;
    const char *shape; /* letters of moert_op_size(), one for each dimension */
    size_t rank;
    bool used; /* the op reads or writes the tensor */
} moert_gemm_row;

moert_gemm_row moert_gemm_row_of(const moert_op_options *options, moert_gemm_tensor tensor);

/* ---- shapes: sizes are derived from the file's tensors, checked, and used for results ---- */

/* largest number of letters of a shape; largest number of tensors of an op (wgrad has two tensors
 * for one buffer) */
enum { MOERT_GEMM_LETTERS = 4, MOERT_GEMM_MOST_TENSORS = MOERT_OP_BUFFERS + 1 };
#define MOERT_GEMM_UNKNOWN SIZE_MAX

/* One run of an op. Sizes in the options are UNKNOWN until moert_gemm_learn() sets them. */
typedef struct moert_gemm_job {
    moert_file_op_job *file;
    moert_op_options *options;
    moert_gemm_row rows[MOERT_GEMM_MOST_TENSORS];
    size_t count;
    moert_op *op;
    moert_op_buffers buffers;
} moert_gemm_job;

/* The operand that the buffer of a table row belongs to. */
moert_operand *moert_gemm_operand_of(const moert_gemm_job *job, const moert_gemm_row *row);

/* Sets sizes that are still unknown from the shape of a tensor. Uses the dimensions that count
 * elements or, with `pairs`, the dimension that counts pairs of 4-bit elements. */
void moert_gemm_learn(moert_gemm_job *job, const moert_gemm_row *row, const moert_tensor *tensor,
                      bool pairs);

/* *tensor = the tensor of a table row, after checking its shape against the sizes and the groups'
 * ends. ERROR_MISMATCH. */
moert_status moert_gemm_check_shape(const moert_gemm_job *job, const moert_gemm_row *row,
                                    const moert_tensor **tensor);

/* check_type: checks that a tensor has a dtype that its table row allows. check_tensors: checks,
 * once all tensors are found, that they can be combined. ERROR_MISMATCH. */
moert_status moert_gemm_check_type(const moert_gemm_job *job, const moert_gemm_row *row,
                                   const moert_tensor *tensor);
moert_status moert_gemm_check_tensors(const moert_gemm_job *job);

/* Adds the buffer of a table row to the results that the job writes. */
moert_status moert_gemm_result(const moert_gemm_job *job, const moert_gemm_row *row);
