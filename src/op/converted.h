/* What the files of ops with quantised operands share: how one operand is converted. */
#ifndef MOERT_OP_CONVERTED_H
#define MOERT_OP_CONVERTED_H

#include "op/op.h"
#include "quant/backend.h"

/* The workspace of one quantised operand; NULL what it does not need. */
typedef struct moert_conversion {
    const moert_op_quantized *as;
    bool ahead;               /* by the inner op */
    moert_number type;        /* of the values in the inner op */
    moert_buffer *stored;     /* flipped: values as the payload lies */
    moert_buffer *ends;       /* of equal groups */
    moert_buffer *block_ends; /* tiled, COLUMN */
    moert_buffer *scale;      /* tiled: linear ... */
    moert_buffer **scales;    /* ... of discrete weights that are not dequantised: [G] */
    moert_buffer *turned;     /* tiled, transposed: the transpose of `scale` */
} moert_conversion;

/* Tiled scales to linear ones or back. */
moert_status moert_conversion_move_scales(const moert_quant_backend *by,
                                          const moert_op_buffers *buffers,
                                          const moert_conversion *c, moert_buffer *linear,
                                          moert_buffer *tiled, bool to_tiles);
/* The `values` of a factor, without the global scale. */
moert_status moert_conversion_load(const moert_quant_backend *by, const moert_op_buffers *buffers,
                                   const moert_conversion *c, moert_buffer *payload,
                                   moert_buffer *scale, moert_buffer *values);
/* Payload and scales of a result. */
moert_status moert_conversion_store(const moert_quant_backend *by, const moert_op_buffers *buffers,
                                    const moert_conversion *c, moert_buffer *payload,
                                    moert_buffer *scale, moert_buffer *values);

#endif
