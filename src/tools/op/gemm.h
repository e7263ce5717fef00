/*
 * Common code of the grouped GEMMs of moert-op. A table maps tensors of the file to buffers of an
 * op (moert/ops.h). Their types and shapes follow from op/fields.h; sizes and optional features of
 * the op, from the tensors that the file holds.
 */
#pragma once

#include <stdint.h>

#include "op/op.h"
#include "tools/op/op.h"

/* A tensor of the file, and the buffer of the op that holds it. Several float32 tensors may name
 * one buffer; it then holds their product. */
typedef struct moert_gemm_tensor {
    const char *name;
    moert_op_buffer buffer;
} moert_gemm_tensor;
#define MOERT_GEMM_TENSOR(name, buffer)                                                            \
    { name, MOERT_OP_BUFFER_##buffer }

/* Words of --format: plain types, then formats. */
#define MOERT_GEMM_FORMAT_WORDS MOERT_FILE_OP_DTYPE_WORDS "|" MOERT_FILE_OP_FORMAT_WORDS

/* The operand that word number `word` of --format describes. Its blocks lie along `axis` unless the
 * word fixes their shape. Blocks of an fp8-block weight are square; those of moert_gemm_column(),
 * the second version of a result, lie along columns. float32 scales are always linear. */
moert_operand moert_gemm_operand(unsigned word, moert_axis axis, bool transposed,
                                 moert_scale_layout scales);
moert_operand moert_gemm_weight(unsigned word, moert_axis axis, bool transposed,
                                moert_scale_layout scales);
moert_operand moert_gemm_column(unsigned word, moert_scale_layout scales);

/* Whether the operand is quantized; whether it is quantized with one-byte scales, which tiles
 * need. */
bool moert_gemm_quantized(const moert_operand *operand);
bool moert_gemm_tileable(const moert_operand *operand);

/* ERROR_USAGE if --scales was given but no operand has scales of that layout. */
moert_status moert_gemm_check_scales(const moert_op_options *options, bool given,
                                     moert_scale_layout layout);

/*
 * Loads the tensors, creates the op, executes it and names the results. `options` describes the op
 * except its sizes and switches, which follow from the tensors. Errors: those of the file,
 * ERROR_MISMATCH with tensor, value and limit; those of the op.
 */
moert_status moert_gemm_job_run(moert_file_op_job *file, moert_op_options *options,
                                const moert_gemm_tensor *tensors, size_t count);

/* ---- rows of the table with what follows from the buffer and the kind of op ---- */

typedef enum moert_gemm_role {
    MOERT_GEMM_ENDS,   /* int32, cumulative */
    MOERT_GEMM_INPUT,  /* an operand that is multiplied: plain, or payload */
    MOERT_GEMM_SCALE,  /* scales of a quantized operand; ignored if it is plain */
    MOERT_GEMM_GLOBAL, /* optional: an operand's global scale, float32 [1] or [G] */
    MOERT_GEMM_DTYPES, /* values of any plain dtype; the tensor's dtype sets the option's */
    MOERT_GEMM_F32,    /* optional, float32 */
    MOERT_GEMM_INDEX,  /* int32: needed with a permutation, else ignored */
    MOERT_GEMM_RESULT, /* the result; with beta or accumulate the file holds its old value */
    MOERT_GEMM_RESULT_SCALE,
    MOERT_GEMM_SUM, /* a float32 result that starts at 0 */
    MOERT_GEMM_MOST /* a float32 maximum that starts at -inf */
} moert_gemm_role;

/* If an operand is stored transposed, its last two dimensions are exchanged. 4-bit elements are
 * counted in pairs along one dimension. */
typedef struct moert_gemm_row {
    const char *name;
    moert_op_buffer buffer;
    moert_gemm_role role;
    const char *shape; /* letters of moert_op_size(), one for each dimension */
    size_t rank;
    bool used; /* the op reads or writes the tensor */
} moert_gemm_row;

moert_gemm_row moert_gemm_row_of(const moert_op_options *options, moert_gemm_tensor tensor);

/* ---- shapes: learnt from the file, checked against each other, made for the results ---- */

/* most letters of a shape, most tensors of an op: wgrad has two for one buffer */
enum { MOERT_GEMM_LETTERS = 4, MOERT_GEMM_MOST_TENSORS = MOERT_OP_BUFFERS + 1 };
#define MOERT_GEMM_UNKNOWN SIZE_MAX

/* One run; sizes in the options are UNKNOWN until moert_gemm_learn() sets them. */
typedef struct moert_gemm_job {
    moert_file_op_job *file;
    moert_op_options *options;
    moert_gemm_row rows[MOERT_GEMM_MOST_TENSORS];
    size_t count;
    moert_op *op;
    moert_op_buffers buffers;
} moert_gemm_job;

/* The operand that a row's buffer belongs to. */
moert_operand *moert_gemm_operand_of(const moert_gemm_job *job, const moert_gemm_row *row);

/* Sets the sizes that are still unknown from the shape of a tensor: from its dimensions that count
 * elements or, with `pairs`, from the one that counts pairs of elements. */
void moert_gemm_learn(moert_gemm_job *job, const moert_gemm_row *row, const moert_tensor *tensor,
                      bool pairs);

/* *tensor = the tensor of a row, checked against the sizes and the groups' ends. ERROR_MISMATCH. */
moert_status moert_gemm_check_shape(const moert_gemm_job *job, const moert_gemm_row *row,
                                    const moert_tensor **tensor);

/* check_type: whether a tensor has a type that its row allows. check_tensors: after all are found,
 * whether they can be combined. ERROR_MISMATCH. */
moert_status moert_gemm_check_type(const moert_gemm_job *job, const moert_gemm_row *row,
                                   const moert_tensor *tensor);
moert_status moert_gemm_check_tensors(const moert_gemm_job *job);

/* Adds the buffer of a table row to the results that the job writes. */
moert_status moert_gemm_result(const moert_gemm_job *job, const moert_gemm_row *row);
