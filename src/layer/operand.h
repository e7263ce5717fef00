/*
 * Rows as the dense layers multiply them: float32, or bf16 codes, which are made once for all
 * products that read them. What is only multiplied comes as codes from the operation that computes
 * it; of what others read too codes are made in scratch.
 */
#pragma once

#include "layer/mesh.h"

/* Type of the operands: `dense` is F32 or BF16. */
moert_dtype moert_operand_type(moert_precision dense);
/* The floats that take the place of n operands. */
size_t moert_operand_floats(moert_dtype type, size_t n);

/* Type of v and dh, between products by `groups` weights [2I,H] and [H,I]: that of the operands, if
 * both products round to it (moert_gemm_rounds). A device of NULL rounds nothing. */
moert_dtype moert_operand_between(const moert_device *device, moert_dtype type, size_t groups,
                                  size_t hidden, size_t intermediate);

/* *factor = values[n] as operands: themselves, or codes in a scratch buffer. */
moert_status moert_operand_take(moert_mesh *mesh, moert_dtype type, size_t n,
                                const moert_buffer *values, moert_scratch which,
                                moert_buffer **factor);

/* *factor = where an operation puts n operands itself: `plain`, or codes to a scratch buffer. */
moert_status moert_operand_buffer(moert_mesh *mesh, moert_dtype type, size_t n, moert_scratch which,
                                  moert_buffer *plain, moert_buffer **factor);
