/*
 * Dequantizes MX and NV formats to bf16 on GPUs, before a GEMM on tensor cores. Unlike
 * moert_portable_dequantize, moert_decode handles only whole blocks, runs at memory speed, and also
 * decodes rows past the last end.
 */
#pragma once

#include "moert/quantize.h"

/* The formats that kernels for tensor cores decode to bf16, by their numbers. */
#define MOERT_DECODED_FORMATS (MOERT_FORMAT_NVFP4 + 1)

/* Whether moert_decode can run the operation. equal_groups: all groups have the same number of
 * rows. */
bool moert_decode_suits(const moert_quantize *op, bool equal_groups);
moert_status moert_decode(const moert_quantize *op);
