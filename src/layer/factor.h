/*
 * Rows as the dense layers multiply them: float32, or bf16 codes, which are made once for all
 * products that read them. What is only multiplied is kept as codes alone; what others read too
 * stays float32, and its codes are made in scratch.
 */
#ifndef MOERT_LAYER_FACTOR_H
#define MOERT_LAYER_FACTOR_H

#include "layer/mesh.h"

/* Type of the factors: `dense` is F32 or BF16. */
moert_number moert_factor_type(moert_precision dense);
/* The floats that take the place of n factors. */
size_t moert_factor_floats(moert_number type, size_t n);

/* *factor = values[n] as factors: themselves, or codes in a scratch buffer. */
moert_status moert_factor_take(moert_mesh *mesh, moert_number type, size_t n,
                               const moert_buffer *values, moert_scratch which,
                               moert_buffer **factor);

/*
 * kept[n], factors of what an operation computes: it writes to *values, which is `kept` or a
 * scratch buffer, and moert_factor_keep makes codes of that.
 */
moert_status moert_factor_begin(moert_mesh *mesh, moert_number type, size_t n, moert_scratch which,
                                moert_buffer *kept, moert_buffer **values);
moert_status moert_factor_keep(moert_number type, size_t n, const moert_buffer *values,
                               moert_buffer *kept);

#endif
