/*
 * MX and NV formats to bf16 on GPUs, ahead of products on tensor cores: what
 * moert_portable_dequantize does, in whole blocks only, at the rate of memory. Rows past the last
 * end are decoded too.
 */
#pragma once

#include "moert/quantize.h"

/* Whether moert_decode can do it; equal_groups: not by the ends, all groups have as many rows. */
bool moert_decode_suits(const moert_quantize *op, bool equal_groups);
moert_status moert_decode(const moert_quantize *op);
