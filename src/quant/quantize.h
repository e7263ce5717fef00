/* What the library keeps to itself of the quantizers of moert/quantize.h. */
#pragma once

#include "moert/quantize.h"

/* The quantizer with AUTO rounding decided; beside a norm, without what norm takes the place of. */
moert_quantizer moert_quantizer_settled(const moert_quantizer *how, bool norm);

/* The shape of an operation; with row_bytes, q_bytes and scales are the distances of rows. */
moert_quantized_shape moert_quantized_layout(const moert_quantize *op);

enum { MOERT_SPEC_BYTES = 512 }; /* of a program's name and options */

/* The program of a family (with options) for a block-scaled format. */
void moert_format_program(const char *family, moert_format format, char spec[MOERT_SPEC_BYTES]);
