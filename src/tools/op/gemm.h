/*
 * Common code of the grouped GEMMs of moert-op. A table maps tensors of the file to buffers of an
 * op (moert/ops.h). Sizes and optional features of the op follow from the tensors that the file
 * holds.
 */
#pragma once

#include <stdint.h>

#include "op/op.h"
#include "tools/op/op.h"

typedef enum moert_gemm_role {
    MOERT_GEMM_ENDS,   /* int32, cumulative */
    MOERT_GEMM_INPUT,  /* an operand that is multiplied: plain, or payload */
    MOERT_GEMM_SCALE,  /* scales of a quantized operand; ignored if it is plain */
    MOERT_GEMM_GLOBAL, /* optional: an operand's global scale, float32 [1] or [G] */
    MOERT_GEMM_DTYPES, /* values of any plain dtype; the member at `offset` gets the dtype */
    MOERT_GEMM_F32,    /* optional, float32; tensors of the same buffer are multiplied */
    MOERT_GEMM_INDEX,  /* int32: needed with a permutation, else ignored */
    MOERT_GEMM_RESULT, /* an operand; with beta or accumulate the file holds its old value */
    MOERT_GEMM_RESULT_SCALE,
    MOERT_GEMM_SUM, /* a float32 result that starts at 0 */
    MOERT_GEMM_MOST /* a float32 maximum that starts at -inf */
} moert_gemm_role;

/*
 * Letters of a shape: M rows, N, K, G groups, T = ceil(M/topk), H = N/2, W = 2K, digits. If an
 * operand is stored transposed, its last two dimensions are exchanged. 4-bit elements are counted
 * in pairs along one dimension.
 */
typedef struct moert_gemm_tensor {
    const char *name; /* the tensor's name in the file */
    moert_gemm_role role;
    moert_op_buffer buffer;
    const char *shape;
    size_t offset;  /* offset of the operand, or of the moert_dtype, in moert_op_options */
    size_t enables; /* offset of the bool that the tensor's presence sets; 0 = always needed */
} moert_gemm_tensor;

#define MOERT_GEMM_OFFSET(member) offsetof(moert_op_options, member)
/* Rows of the table: an operand, and its scales. */
#define MOERT_GEMM_OPERAND(name, role, operand, shape)                                             \
    { name, MOERT_GEMM_##role, MOERT_OP_BUFFER_##operand, shape, MOERT_GEMM_OFFSET(operand), 0 }
#define MOERT_GEMM_SCALES(name, role, operand)                                                     \
    {                                                                                              \
        name, MOERT_GEMM_##role, MOERT_OP_BUFFER_##operand##_scale, "",                            \
            MOERT_GEMM_OFFSET(operand), 0                                                          \
    }
/* A row of float32 values with a switch and a buffer of the same name. */
#define MOERT_GEMM_VALUES(name, role, switched, shape)                                             \
    { name, MOERT_GEMM_##role, MOERT_OP_BUFFER_##switched, shape, 0, MOERT_GEMM_OFFSET(switched) }

#define MOERT_GEMM_GLOBALS(name, operand)                                                          \
    {                                                                                              \
        name, MOERT_GEMM_GLOBAL, MOERT_OP_BUFFER_##operand##_global, "G",                          \
            MOERT_GEMM_OFFSET(operand), 0                                                          \
    }
#define MOERT_GEMM_GROUPS(name)                                                                    \
    { name, MOERT_GEMM_ENDS, MOERT_OP_BUFFER_ends, "G", 0, 0 }
#define MOERT_GEMM_BIAS                                                                            \
    {                                                                                              \
        "bias", MOERT_GEMM_DTYPES, MOERT_OP_BUFFER_bias, "GN", MOERT_GEMM_OFFSET(bias_type),       \
            MOERT_GEMM_OFFSET(bias)                                                                \
    }

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

/* ---- shapes: learnt from the file, checked against each other, made for the results ---- */

enum { MOERT_GEMM_LETTERS = 4 }; /* most letters of a shape */
#define MOERT_GEMM_UNKNOWN SIZE_MAX

/* One run; sizes in the options are UNKNOWN until moert_gemm_learn() sets them. */
typedef struct moert_gemm_job {
    moert_file_op_job *file;
    moert_op_options *options;
    const moert_gemm_tensor *tensors;
    size_t count;
    moert_op *op;
    moert_op_buffers buffers;
} moert_gemm_job;

/* Find a member of the options by its offset, and the operand of a table row. */
void *moert_gemm_at(const moert_gemm_job *job, size_t offset);
moert_operand *moert_gemm_operand_of(const moert_gemm_job *job, const moert_gemm_tensor *row);

/* Sets the sizes that are still unknown from the shape of a tensor: from its dimensions that count
 * elements or, with `pairs`, from the one that counts pairs of elements. */
void moert_gemm_learn(moert_gemm_job *job, const moert_gemm_tensor *row, const moert_tensor *tensor,
                      bool pairs);

/* *tensor = the tensor of a row, checked against the sizes and the groups' ends. ERROR_MISMATCH. */
moert_status moert_gemm_check_shape(const moert_gemm_job *job, const moert_gemm_tensor *row,
                                    const moert_tensor **tensor);

/* Checks that a tensor has a type that its row allows; then, once all are known, that the tensors
 * go together. ERROR_MISMATCH. */
moert_status moert_gemm_check_type(const moert_gemm_job *job, const moert_gemm_tensor *row,
                                   const moert_tensor *tensor);
moert_status moert_gemm_check_tensors(const moert_gemm_job *job);

/* Adds the buffer of a table row to the results that the job writes. */
moert_status moert_gemm_result(const moert_gemm_job *job, const moert_gemm_tensor *row,
                               const moert_buffer *buffer);
