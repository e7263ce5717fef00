/*
 * Dtypes, block-scaled formats, and the options by which a matrix is quantized.
 *
 * A block-scaled matrix is a payload of small elements, and one scale for every block of
 * consecutive elements along an axis: value = element * scale. NVFP4 also has a float32 global
 * scale: value = element * scale * global. Scales multiply when dequantizing ("decode scales").
 *
 * Two elements of 4 bits share a byte. The element with the even index along the blocks' axis is in
 * the low half of the byte. A half of a byte without an element is zero.
 */
#ifndef MOERT_FORMATS_H
#define MOERT_FORMATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * X(NAME, text, bits, mantissa bits, exponent bias, bits of an overflow, bits of NaN, special
 * values): the dtypes, whose sign is the highest bit. F16, BF16 and F32 overflow to infinity. In
 * the other dtypes, overflows and infinities saturate at the largest value. A conversion turns NaN
 * into the given bits. E2M1 has no NaN: a conversion turns NaN into 6.0. Special values: INFINITY =
 * IEEE infinities and NaNs; NAN = only NaN, as the given bits with either sign; NONE = neither.
 */
/* clang-format off */
#define MOERT_DTYPE_TABLE(X)                                                                      \
    X(F32,  "f32",  32, 23, 127, 0x7F800000u, 0x7FC00000u, INFINITY)                               \
    X(F16,  "f16",  16, 10, 15,  0x7C00u,     0x7E00u,     INFINITY)                               \
    X(BF16, "bf16", 16, 7,  127, 0x7F80u,     0x7FC0u,     INFINITY)                               \
    X(E4M3, "e4m3", 8,  3,  7,   0x7Eu,       0x7Fu,       NAN)                                    \
    X(E5M2, "e5m2", 8,  2,  15,  0x7Bu,       0x7Fu,       INFINITY)                               \
    X(E2M1, "e2m1", 4,  1,  1,   0x7u,        0x7u,        NONE)
/* clang-format on */

typedef enum moert_dtype {
#define MOERT_DTYPE_ENUM(name, ...) MOERT_DTYPE_##name,
    MOERT_DTYPE_TABLE(MOERT_DTYPE_ENUM)
#undef MOERT_DTYPE_ENUM
} moert_dtype;

/*
 * X(NAME, text, element, elements of a block, scale): the block-scaled formats. Scales: E8M0 =
 * powers of two, byte b is 2^(b-127) and 255 is NaN (OCP Microscaling 1.0); E4M3 = NVIDIA's NVFP4,
 * with a float32 global scale; F32 = float32 scales, as in DeepSeek-V3's files
 * (`weight_scale_inv`).
 */
/* clang-format off */
#define MOERT_FORMAT_TABLE(X)                                                                      \
    X(MXFP8_E4M3, "mxfp8-e4m3", E4M3, 32,  E8M0)                                                   \
    X(MXFP8_E5M2, "mxfp8-e5m2", E5M2, 32,  E8M0)                                                   \
    X(MXFP4,      "mxfp4",      E2M1, 32,  E8M0)                                                   \
    X(NVFP4,      "nvfp4",      E2M1, 16,  E4M3)                                                   \
    X(FP8_BLOCK,  "fp8-block",  E4M3, 128, F32)
/* clang-format on */

typedef enum moert_format {
#define MOERT_FORMAT_ENUM(name, text, element, block, scale) MOERT_FORMAT_##name,
    MOERT_FORMAT_TABLE(MOERT_FORMAT_ENUM)
#undef MOERT_FORMAT_ENUM
} moert_format;

/*
 * Blocks of a matrix [M,N] whose rows form groups (experts):
 *   ROW      1 x block: along a row; scale [M, ceil(N/block)]
 *   COLUMN   block x 1: consecutive rows of one group, counted from the group's first row; scale
 *            [P,N], P = sum over the groups of ceil(rows/block)
 *   TILE     block x block, rows as in COLUMN; scale [M, ceil(N/block)], where each row repeats its
 *            tile's scales; FP8_BLOCK has scale [P, ceil(N/block)] instead
 * A block at an edge has fewer elements. The payload is q[M,N], or for elements of 4 bits q[M,
 * ceil(N/2)]. With COLUMN, a byte holds elements of 4 bits of two rows, and zeros fill every
 * group's last block: q[P*block/2, N].
 */
typedef enum moert_axis { MOERT_AXIS_ROW, MOERT_AXIS_COLUMN, MOERT_AXIS_TILE } moert_axis;

/* Rounding of an E8M0 scale: RCEIL up (cuDNN, TransformerEngine, cuBLAS: no element saturates),
 * FLOOR down (OCP 6.3). */
typedef enum moert_scale_rounding { MOERT_SCALE_RCEIL, MOERT_SCALE_FLOOR } moert_scale_rounding;

/*
 * The rule that computes NVFP4 scales from a block's amax b and the tensor's amax A;
 * moert/quantize.h has the formulas. The rules differ in rounding, and in blocks whose amax is tiny
 * in comparison with the tensor's. For such a block, TE (TransformerEngine) lets the scale become
 * subnormal or 0, TORCHAO raises the scale to 2^-6, and BRIDGE sets the whole block to zero.
 */
typedef enum moert_nvfp4_rule {
    MOERT_NVFP4_TE,
    MOERT_NVFP4_TORCHAO,
    MOERT_NVFP4_BRIDGE
} moert_nvfp4_rule;

/*
 * Rounding of an E2M1 element: NEAREST to nearest even; BRIDGE first to a multiple of 0.5, and then
 * down to an E2M1 value, but from 5.5 up to 6; STOCHASTIC by 8 random bits per element, drawn by
 * (seed, row, column). AUTO is BRIDGE if nvfp4_rule is BRIDGE for NVFP4, and otherwise NEAREST.
 */
typedef enum moert_rounding {
    MOERT_ROUNDING_AUTO,
    MOERT_ROUNDING_NEAREST,
    MOERT_ROUNDING_BRIDGE,
    MOERT_ROUNDING_STOCHASTIC
} moert_rounding;

typedef struct moert_quantizer {
    size_t size; /* sizeof(moert_quantizer) */
    moert_format format;
    moert_axis axis;
    moert_scale_rounding scale_rounding; /* of E8M0 scales */
    moert_nvfp4_rule nvfp4_rule;
    moert_rounding rounding; /* of E2M1 elements */
    uint64_t seed;           /* of STOCHASTIC rounding */
    bool transposed;         /* COLUMN: q and scale are stored transposed */
    bool hadamard;           /* NVFP4, COLUMN: first rotate each whole block: change signs, then
                                multiply by the Hadamard matrix of order 16, divided by 4 */
    bool group_scales;       /* NVFP4: one global scale per group; otherwise one for all groups */
} moert_quantizer;

/* MXFP8 E4M3 along rows, RCEIL. */
#define MOERT_QUANTIZER_INIT MOERT_INIT(moert_quantizer, quantizer_, )

/*
 * The format in which dispatch sends rows of x and dy from their token's rank to the owners of its
 * experts.
 *   F32    unchanged, 4H bytes
 *   MXFP8  E4M3 with a scale for every 32 columns, RCEIL: H + ceil(H/32) bytes, rounded up to 4
 *   BF16   to nearest even: 2H bytes, H even. With precision BF16 this gives the same bits as F32
 *          with less work, except the bias gradients of the second projection, which sum the
 *          received dy
 * The token's rank rounds a row once, and the experts' three GEMMs all start from the rounded row.
 * Router and shared expert read the unrounded x and dy.
 */
typedef enum moert_dispatch {
    MOERT_DISPATCH_F32,
    MOERT_DISPATCH_MXFP8,
    MOERT_DISPATCH_BF16
} moert_dispatch;

/*
 * The format in which combine sends the experts' results and, in backward, the gradients of their
 * inputs. The rank that computed a row rounds it once; a token's K rows are summed in float32.
 *   F32    unchanged, 4H bytes
 *   BF16   to nearest even: 2H bytes, H even
 */
typedef enum moert_combine { MOERT_COMBINE_F32, MOERT_COMBINE_BF16 } moert_combine;

/* Names such as "mxfp4" and "e5m2"; NULL past the last format or dtype. */
MOERT_API const char *moert_format_name(moert_format format);
MOERT_API const char *moert_dtype_name(moert_dtype type);
/* These calls return a format's element dtype, elements per block, bits per element and bytes per
 * scale. */
MOERT_API moert_dtype moert_format_element(moert_format format);
MOERT_API size_t moert_format_block(moert_format format);
MOERT_API size_t moert_format_element_bits(moert_format format);
MOERT_API size_t moert_format_scale_bytes(moert_format format);

#ifdef __cplusplus
}
#endif
#endif
