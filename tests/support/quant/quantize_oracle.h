/*
 * Quantized matrices in plain float64, from the values alone: numbers of 8 and 4 bits as points of
 * a grid, blocks found by their coordinates. For MXFP8 with rounded-up scales and for NVFP4 as
 * TransformerEngine has it; shares no code with the library.
 */
#pragma once

#include "support/quant/quantized.h"

/* The code of a number: nearest even, saturated. */
unsigned oracle_code(moert_dtype type, double x);

/* The number of a code that is finite. */
double oracle_value(moert_dtype type, unsigned code);

/*
 * amax, global scale, scales, payload and what came back of `z` are what they must be, byte for
 * byte, in at most `most` blocks spread over the matrix; nothing past the groups was written. By
 * norm unless NULL.
 */
void oracle_check_quantized(const char *what, const moert_quantizer *how, const float *norm,
                            const matrix *m, const quantized *z, size_t most);
