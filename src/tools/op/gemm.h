/*
 * What the grouped GEMMs of moert-op share: a table says which tensor of the file is which buffer
 * of an op (moert/ops.h); the shapes, and what the op is asked for, follow from the tensors there.
 */
#pragma once

#include <stdint.h>

#include "op/op.h"
#include "tools/op/op.h"

typedef enum moert_gemm_role {
    MOERT_GEMM_ENDS,   /* int32, cumulative */
    MOERT_GEMM_INPUT,  /* an operand that is multiplied: plain, or payload */
    MOERT_GEMM_SCALE,  /* of a factor that is quantized, else not looked for */
    MOERT_GEMM_GLOBAL, /* optional: its global scale, float32 [1] or [G] */
    MOERT_GEMM_DTYPES, /* of any plain type, which `place` takes */
    MOERT_GEMM_F32,    /* optional; those for one buffer come together and are multiplied */
    MOERT_GEMM_INDEX,  /* int32: needed with a permutation, else not looked for */
    MOERT_GEMM_RESULT, /* an operand; with beta or accumulate its old value is in the file */
    MOERT_GEMM_RESULT_SCALE,
    MOERT_GEMM_SUM, /* a result in float32 that begins with 0 */
    MOERT_GEMM_MOST /* that begins with -inf */
} moert_gemm_role;

/*
 * Letters of a shape: M rows, N, K, G groups, T = ceil(M/topk), H = N/2, W = 2K, digits. Of a
 * factor that is stored transposed the last two change places; two elements of 4 bits count as one.
 */
typedef struct moert_gemm_tensor {
    const char *name; /* in the file */
    moert_gemm_role role;
    moert_op_buffer buffer;
    const char *shape;
    size_t place; /* offset in moert_op_options: of the operand, or of the moert_dtype */
    size_t wish;  /* offset of the bool that asks for it; 0 = none, so that it must be there */
} moert_gemm_tensor;

#define MOERT_GEMM_PLACE(member) offsetof(moert_op_options, member)
/* A row of the table: an operand and its scales. */
#define MOERT_GEMM_OPERAND(name, role, operand, shape)                                             \
    { name, MOERT_GEMM_##role, MOERT_OP_BUFFER_##operand, shape, MOERT_GEMM_PLACE(operand), 0 }
#define MOERT_GEMM_SCALES(name, role, operand)                                                     \
    { name, MOERT_GEMM_##role, MOERT_OP_BUFFER_##operand##_scale, "", MOERT_GEMM_PLACE(operand), 0 }
/* A row: float32 numbers that a switch of the same name asks for. */
#define MOERT_GEMM_VALUES(name, role, switched, shape)                                             \
    { name, MOERT_GEMM_##role, MOERT_OP_BUFFER_##switched, shape, 0, MOERT_GEMM_PLACE(switched) }

#define MOERT_GEMM_GLOBALS(name, operand)                                                          \
    {                                                                                              \
        name, MOERT_GEMM_GLOBAL, MOERT_OP_BUFFER_##operand##_global, "G",                          \
            MOERT_GEMM_PLACE(operand), 0                                                           \
    }
#define MOERT_GEMM_GROUPS(name)                                                                    \
    { name, MOERT_GEMM_ENDS, MOERT_OP_BUFFER_ends, "G", 0, 0 }
#define MOERT_GEMM_BIAS                                                                            \
    {                                                                                              \
        "bias", MOERT_GEMM_DTYPES, MOERT_OP_BUFFER_bias, "GN", MOERT_GEMM_PLACE(bias_type),        \
            MOERT_GEMM_PLACE(bias)                                                                 \
    }

/* Words of --format: plain types, then formats. */
#define MOERT_GEMM_FORMAT_WORDS MOERT_FILE_OP_DTYPE_WORDS "|" MOERT_FILE_OP_FORMAT_WORDS

/* An operand by the index of its word, with blocks along `axis` unless the word says how they lie;
 * those of a weight of fp8-block are square, those of the second version of a result along columns.
 * Scales of float32 are linear always. */
moert_operand moert_gemm_operand(unsigned word, moert_axis axis, bool transposed,
                                 moert_scale_layout scales);
moert_operand moert_gemm_weight(unsigned word, moert_axis axis, bool transposed,
                                moert_scale_layout scales);
moert_operand moert_gemm_column(unsigned word, moert_scale_layout scales);

/* Whether it is quantized, and to scales of one byte, which tiles are made of. */
bool moert_gemm_quantized(const moert_operand *operand);
bool moert_gemm_tileable(const moert_operand *operand);

/* ERROR_USAGE if --scales was given and counts for nothing. */
moert_status moert_gemm_check_scales(const moert_op_options *options, bool given,
                                     moert_scale_layout layout);

/*
 * Loads the tensors, makes the op that `options` describes but for sizes and switches, executes it
 * and names the results. Errors: those of the file, ERROR_MISMATCH with tensor, value and limit;
 * those of the op.
 */
moert_status moert_gemm_job_run(moert_file_op_job *file, moert_op_options *options,
                                const moert_gemm_tensor *tensors, size_t count);

/* ---- shapes: read from the file, held against each other, and those of the results ---- */

enum { MOERT_GEMM_LETTERS = 4 }; /* most of a shape */
#define MOERT_GEMM_UNKNOWN SIZE_MAX

/* One run; sizes in the options are UNKNOWN before they are learnt. */
typedef struct moert_gemm_job {
    moert_file_op_job *file;
    moert_op_options *options;
    const moert_gemm_tensor *tensors;
    size_t count;
    moert_op *op;
    moert_op_buffers buffers;
} moert_gemm_job;

/* A member of the options by its offset; the operand of a row. */
void *moert_gemm_at(const moert_gemm_job *job, size_t offset);
moert_operand *moert_gemm_operand_of(const moert_gemm_job *job, const moert_gemm_tensor *row);

/* Learns sizes from the shape of a tensor: those that it shows as they are, or those that it shows
 * in pairs of elements. The first tensor decides. */
void moert_gemm_learn(moert_gemm_job *job, const moert_gemm_tensor *row, const moert_tensor *tensor,
                      bool pairs);

/* The tensor of a row, checked against the sizes and the groups' ends. ERROR_MISMATCH. */
moert_status moert_gemm_check_shape(const moert_gemm_job *job, const moert_gemm_tensor *row,
                                    const moert_tensor **tensor);

/* Whether a tensor has a type that its row allows, and, once all are known, whether they go
 * together. ERROR_MISMATCH. */
moert_status moert_gemm_check_type(const moert_gemm_job *job, const moert_gemm_tensor *row,
                                   const moert_tensor *tensor);
moert_status moert_gemm_check_tensors(const moert_gemm_job *job);

/* Names the buffer of a row as a result. */
moert_status moert_gemm_result(const moert_gemm_job *job, const moert_gemm_tensor *row,
                               const moert_buffer *buffer);
