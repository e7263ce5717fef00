/* Shapes of the tensors of a grouped GEMM: read from the file, held against each other, and those
 * of the results. */
#pragma once

#include <stdint.h>

#include "tools/op/gemm.h"

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
