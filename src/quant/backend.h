/*
 * The backends of the quantizers, casts and layouts: reference (loops on the host) and portable
 * (OpenCL), which also serves the nvidia backend. Each backend implements every entry of
 * MOERT_QUANT_TABLE as moert_<backend>_<entry>. src/quant/quantize.c and scales.c check the
 * arguments before they call an entry.
 */
#pragma once

#include "device/check.h"
#include "quant/fake_quantize.h"
#include "quant/fp8_operands.h"
#include "quant/quantize.h"
#include "quant/scales.h"

/* X(entry, argument): the operations, with the struct that each takes. */
#define MOERT_QUANT_TABLE(X)                                                                       \
    X(quantize_amax, moert_quantize)                                                               \
    X(quantize, moert_quantize)                                                                    \
    X(dequantize, moert_quantize)                                                                  \
    X(fake_quantize, moert_fake_quantize)                                                          \
    X(fp8_operands, moert_fp8_operands)                                                            \
    X(cast, moert_cast)                                                                            \
    X(swizzle, moert_scale_tiles)                                                                  \
    X(unswizzle, moert_scale_tiles)                                                                \
    X(block_ends, moert_block_ends)                                                                \
    X(fold_globals, moert_global_scales)                                                           \
    X(transpose, moert_transpose)                                                                  \
    X(interleave, moert_interleave)

typedef struct moert_quant_backend {
#define MOERT_QUANT_MEMBER(entry, argument) moert_status (*entry)(const argument *);
    MOERT_QUANT_TABLE(MOERT_QUANT_MEMBER)
#undef MOERT_QUANT_MEMBER
} moert_quant_backend;

extern const moert_quant_backend moert_quant_reference, moert_quant_portable;

/* The backend in use, which MOERT_BACKEND chooses. */
const moert_quant_backend *moert_quant_backend_get(void);

#define MOERT_QUANT_ENTRIES(entry, argument)                                                       \
    moert_status moert_reference_##entry(const argument *);                                        \
    moert_status moert_portable_##entry(const argument *);
MOERT_QUANT_TABLE(MOERT_QUANT_ENTRIES)
#undef MOERT_QUANT_ENTRIES
