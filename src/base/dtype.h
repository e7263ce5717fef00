/*
 * Exact conversions of single values, slow and easy to check. These conversions define the dtypes
 * of moert/formats.h. Rounding is to nearest even, the sign of zero is kept, and the bits of a
 * 4-bit value are in the low half of a byte.
 */
#pragma once

#include "moert/formats.h"

uint32_t moert_dtype_encode(moert_dtype type, float x);
/* Decodes exactly; every NaN gives the quiet NaN without sign. Ignores bits of the argument above
 * the dtype's width. */
float moert_dtype_decode(moert_dtype type, uint32_t bits);

size_t moert_dtype_bits(moert_dtype type);
float moert_dtype_largest(moert_dtype type); /* finite */

/* These functions encode x as E2M1, with rounding BRIDGE, or STOCHASTIC with 8 given random bits.
 * NaN gives 6. */
uint32_t moert_dtype_encode_bridge(float x);
uint32_t moert_dtype_encode_stochastic(float x, uint8_t random);

/* The power of two that the E8M0 byte b stands for; NaN for b = 255. */
float moert_e8m0_decode(uint8_t b);
/* The byte of the smallest power of two that is not below t >= 0, at most 2^127. NaN gives 255. */
uint8_t moert_e8m0_ceil(float t);
/* The byte of 2^(floor(log2(amax)) - exponent), limited to 2^-127 to 2^127. NaN gives 255. */
uint8_t moert_e8m0_floor(float amax, int exponent);
/* 1 / decode(b), exactly. */
float moert_e8m0_inverse(uint8_t b);

/* moert_float_bits returns the bits of a float32; moert_float_from_bits returns the float32 with
 * these bits. moert_float_quiet replaces every NaN by the quiet NaN without sign. */
uint32_t moert_float_bits(float x);
float moert_float_from_bits(uint32_t bits);
float moert_float_quiet(float x);

/* Sorts in ascending order. */
void moert_sort_numbers(double *values, size_t count);
