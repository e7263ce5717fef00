/*
 * exp, log, pow, cos and sin in float64 without the C library, whose results differ in the last
 * bits between libraries and between CPUs. The host uses them for all values that it computes for
 * the device: rotary tables, bias corrections, learning rates, random normals. So training has the
 * same digits on every system. These functions use only +, -, *, / and fma, which IEEE 754 rounds,
 * and exact functions (ldexp, frexp, rint).
 *
 * Errors are a few units in the last place of a float64, 10^8 times below the rounding to float32
 * that follows. Unlike the C library, these functions do not set errno or floating-point
 * exceptions.
 */
#pragma once

double moert_exp(double x);
/* -infinity for 0, NaN for x < 0. */
double moert_log(double x);
/* x^y for x >= 0; the relative error of x^y is about the absolute error of y log x. */
double moert_pow(double x, double y);
/* moert_cos and moert_sin are accurate for |x| up to 2^30, since up to there the reduction by
 * multiples of pi / 2 is exact. */
double moert_cos(double x);
double moert_sin(double x);
