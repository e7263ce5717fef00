/*
 * An oracle for quantized matrices that uses simple arithmetic: 8-bit and 4-bit values are points
 * of a grid, and blocks are located by their coordinates. The oracle covers every format, rule and
 * rounding of finite values, except stochastic rounding. A rotation must have exact sums. The
 * oracle shares no quantization code with the library.
 */
#pragma once

#include "support/quant/quantized.h"

/* Returns the bits of x in a dtype, rounded to nearest even and saturated. */
unsigned oracle_code(moert_dtype type, double x);

/* Returns the value of finite bits of a dtype. */
double oracle_value(moert_dtype type, unsigned code);

/*
 * Checks amax, global scale, scales, payload and dequantized values of `z`, byte for byte, in about
 * `most` random blocks, and that rows past the groups are unwritten. `norm` may be NULL.
 */
void oracle_check_quantized(const char *what, const moert_quantizer *how, const float *norm,
                            const matrix *m, const quantized *z, size_t most);
