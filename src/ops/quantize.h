/* What the library keeps to itself of the quantisers of moert/quantize.h. */
#ifndef MOERT_OPS_QUANTIZE_H
#define MOERT_OPS_QUANTIZE_H

#include "moert/quantize.h"

/* The quantiser with AUTO rounding decided; beside a norm, without what norm takes the place of. */
moert_quantizer moert_quantizer_settled(const moert_quantizer *how, bool norm);

/* The shape of an operation; with row_bytes, q_bytes and scales are the distances of rows. */
moert_quantized_shape moert_quantized_layout(const moert_quantize *op);

#endif
