/*
 * Dequantizes MX and NV formats to bf16 on GPUs, before a GEMM on tensor cores. Unlike
 * moert_portable_dequantize it handles only whole blocks, runs at memory speed, and also decodes
 * rows past the last end.
 */
#pragma once

#include "moert/quantize.h"

/* Whether moert_decode can run the operation. equal_groups: all groups have the same number of
 * rows. */
bool moert_decode_suits(const moert_quantize *op, bool equal_groups);
moert_status moert_decode(const moert_quantize *op);
