/*
 * Operands of the dense layers' GEMMs: float32, or bf16 values, to which rows are rounded once for
 * all GEMMs that read them. If only GEMMs read the rows, the operation that computes them writes
 * bf16. If other operations read the rows in float32, moert_operand_take makes a rounded copy in
 * scratch.
 */
#pragma once

#include "layer/mesh.h"

/* The operands' dtype; `dense` is F32 or BF16. */
moert_dtype moert_operand_type(moert_precision dense);
/* The size of n operand values in floats, rounded up. */
size_t moert_operand_floats(moert_dtype type, size_t n);
/* The scratch of moert_operand_take for n operand values: none if they are float32. */
static inline size_t moert_operand_copy_floats(moert_dtype type, size_t n) {
    return type == MOERT_DTYPE_F32 ? 0 : moert_operand_floats(type, n);
}

/* The dtype of v and dh, the results between the GEMMs of `groups` weights [2I,H] and [H,I]: that
 * of the operands if both GEMMs can round to it (moert_gemm_rounds), else float32. With device ==
 * NULL: float32. */
moert_dtype moert_operand_between(const moert_device *device, moert_dtype type, size_t groups,
                                  size_t hidden, size_t intermediate);

/* *operand = float32 values[n] as an operand: `values`, or bf16 in the scratch buffer `which`. */
moert_status moert_operand_take(moert_mesh *mesh, moert_dtype type, size_t n,
                                const moert_buffer *values, moert_scratch which,
                                moert_buffer **operand);

/* *operand = the buffer to which an operation writes n operand values: `plain` if they are float32,
 * else the scratch buffer `which`. */
moert_status moert_operand_buffer(moert_mesh *mesh, moert_dtype type, size_t n, moert_scratch which,
                                  moert_buffer *plain, moert_buffer **operand);
