/*
 * Single numbers of the small formats, exactly: the meaning of moert/formats.h in code that is
 * easier to believe than to run. Rounding is to nearest even, the sign of zero is kept, and codes
 * of 4 bits are in the low half of a byte.
 */
#pragma once

#include "moert/formats.h"

uint32_t moert_dtype_encode(moert_dtype type, float x);
/* Exact; NaN is always the quiet NaN without sign. Bits above the type's are ignored. */
float moert_dtype_decode(moert_dtype type, uint32_t code);

size_t moert_dtype_bits(moert_dtype type);
float moert_dtype_largest(moert_dtype type); /* finite */

/* E2M1 by other roundings: BRIDGE, and STOCHASTIC with the 8 random bits given. NaN is 6. */
uint32_t moert_dtype_encode_bridge(float x);
uint32_t moert_dtype_encode_stochastic(float x, uint8_t random);

/* The power of two of byte b; 255 is NaN. */
float moert_e8m0_decode(uint8_t b);
/* The smallest power of two that is not below t >= 0, at most 2^127 (NaN: 255). */
uint8_t moert_e8m0_ceil(float t);
/* floor(log2(amax)) - exponent, held within 2^-127 and 2^127 (NaN: 255). */
uint8_t moert_e8m0_floor(float amax, int exponent);
/* 1 / decode(b), exactly. */
float moert_e8m0_inverse(uint8_t b);

/* The bits of a float32 and back; moert_float_quiet makes every NaN the one without sign. */
uint32_t moert_float_bits(float x);
float moert_float_from_bits(uint32_t bits);
float moert_float_quiet(float x);

/* In ascending order. */
void moert_sort_numbers(double *values, size_t count);
