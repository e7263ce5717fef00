/* Internal functions of the quantizers (moert/quantize.h). */
#pragma once

#include "moert/quantize.h"

/* The number of block-scaled formats. */
#define MOERT_FORMAT_ONE(...) +1
#define MOERT_FORMATS         (0 MOERT_FORMAT_TABLE(MOERT_FORMAT_ONE))

/* The quantizer with AUTO rounding resolved. With a norm, the fields that norm makes irrelevant
 * have their defaults. */
moert_quantizer moert_quantizer_settled(const moert_quantizer *how, bool norm);

/* The shapes of payload and scales of an operation. With row_bytes, q_bytes and scales give the
 * stride of rows. */
moert_quantized_shape moert_quantized_layout(const moert_quantize *op);

enum { MOERT_SPEC_BYTES = 512 }; /* the most bytes of a program's name and options */

/* Writes to `spec` the program `family` (a name with options) for a block-scaled format. */
void moert_format_program(const char *family, moert_format format, char spec[MOERT_SPEC_BYTES]);
