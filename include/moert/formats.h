/*
 * Number formats: elements, block-scaled formats, and how a matrix is quantized to them.
 *
 * A block-scaled matrix is a payload of small elements and one scale for every block of
 * consecutive elements along an axis; value = element * scale, for NVFP4 times a float32 global
 * scale. Scales here always multiply on the way back ("decode scales").
 *
 * Two elements of 4 bits share a byte: the one with the even index along the blocks' axis is in
 * the low half; a half without element is zero.
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
 * X(NAME, text, bits, mantissa bits, bias, code above the largest finite value, code of NaN,
 * special values): element types, sign first. FP8 and FP4 saturate at their largest value,
 * infinities too; F16 and BF16 overflow to infinity. NaN becomes the one code given here, which
 * for E2M1, without NaN, is 6. Special values: INFINITY = IEEE infinities and NaNs, NAN = the
 * code of all ones only, NONE.
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
 * X(NAME, text, element, elements of a block, scale): block-scaled formats. Scale E8M0 = powers of
 * two, byte b is 2^(b-127) and 255 NaN (OCP Microscaling 1.0); E4M3 = NVIDIA's NVFP4, with a
 * float32 global scale; F32 = DeepSeek-V3's files (`weight_scale_inv`).
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
 *   COLUMN   block x 1: consecutive rows of one group, counted from the group's first; scale [P,N],
 *            P = sum over the groups of ceil(rows/block)
 *   TILE     block x block, rows as in COLUMN; scale [M, ceil(N/block)], each tile's scale repeated
 *            in its rows, except FP8_BLOCK: scale [P, ceil(N/block)]
 * A block at an edge holds what there is. The payload is q[M,N], for elements of 4 bits
 * q[M, ceil(N/2)]; but in COLUMN these pair up rows, and every group fills its last block with
 * zeros: q[P*block/2, N].
 */
typedef enum moert_axis { MOERT_AXIS_ROW, MOERT_AXIS_COLUMN, MOERT_AXIS_TILE } moert_axis;

/* How an E8M0 scale is rounded: RCEIL up (cuDNN, TransformerEngine, cuBLAS: nothing saturates),
 * FLOOR down (OCP 6.3). */
typedef enum moert_scale_rounding { MOERT_SCALE_RCEIL, MOERT_SCALE_FLOOR } moert_scale_rounding;

/*
 * How NVFP4 scales are made from a block's amax b and the tensor's A. They differ in rounding and
 * in blocks that are tiny beside the tensor: TE (TransformerEngine) lets the scale become subnormal
 * or 0, TORCHAO holds it at 2^-6, BRIDGE sets the whole block to zero.
 */
typedef enum moert_nvfp4_rule {
    MOERT_NVFP4_TE,
    MOERT_NVFP4_TORCHAO,
    MOERT_NVFP4_BRIDGE
} moert_nvfp4_rule;

/*
 * How an E2M1 element is rounded: to nearest even; by BRIDGE, which rounds to half steps first and
 * then mostly down; STOCHASTIC by 8 random bits per element, drawn by (seed, row, column). AUTO is
 * nearest even, but BRIDGE under that rule of NVFP4.
 */
typedef enum moert_rounding {
    MOERT_ROUNDING_AUTO,
    MOERT_ROUNDING_NEAREST,
    MOERT_ROUNDING_BRIDGE,
    MOERT_ROUNDING_STOCHASTIC
} moert_rounding;

/* How a matrix is quantized. */
typedef struct moert_quantizer {
    size_t size; /* sizeof(moert_quantizer) */
    moert_format format;
    moert_axis axis;
    moert_scale_rounding scale_rounding; /* of E8M0 */
    moert_nvfp4_rule nvfp4_rule;
    moert_rounding rounding; /* of E2M1 */
    uint64_t seed;           /* of STOCHASTIC */
    bool transposed;         /* COLUMN: q and scale are stored as their transposes */
    bool hadamard;           /* NVFP4, COLUMN: each whole block is rotated first: signs, then the
                                Hadamard matrix of order 16, divided by 4 */
    bool group_scales;       /* NVFP4: a global scale for each group instead of one */
} moert_quantizer;

/* MXFP8 E4M3 along rows, RCEIL. */
#define MOERT_QUANTIZER_INIT                                                                       \
    {                                                                                              \
        sizeof(moert_quantizer), MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_ROW, MOERT_SCALE_RCEIL,       \
            MOERT_NVFP4_TE, MOERT_ROUNDING_AUTO, 0, false, false, false                            \
    }

/*
 * Recipes of training: how the operands of the experts' three GEMMs are rounded. Products
 * accumulate in float32; weights, gradients and the optimizer stay float32.
 *   BF16   to nearest even; where products can round their results, on tensor cores, so are the two
 *          of them that the GLU's backward reads, unless experts have biases
 *   MXFP8  MXFP8_E4M3, RCEIL, in blocks along the dimension that is summed over
 *   NVFP4  likewise, TE; global scales of an expert's weight, and of an activation over all ranks
 * In BF16 and MXFP8 operands and sums below 2^-126 may count as 0.
 */
typedef enum moert_precision {
    MOERT_PRECISION_F32,
    MOERT_PRECISION_BF16,
    MOERT_PRECISION_MXFP8,
    MOERT_PRECISION_NVFP4
} moert_precision;

/*
 * How rows of x and dy travel from their token's rank to the owners of its experts.
 *   F32    as they are, 4H bytes
 *   MXFP8  E4M3 with a scale for every 32 columns, RCEIL: H + ceil(H/32) bytes, rounded up to 4
 *   BF16   to nearest even: 2H bytes, H even; with precision BF16 the same bits as F32 (biases of
 *          the second projection excepted, whose gradients take dy as it arrives), and less work
 * A row is rounded once, on its token's rank, and the experts' three GEMMs all start from the
 * rounded row; router and shared expert see x and dy as they are.
 */
typedef enum moert_dispatch {
    MOERT_DISPATCH_F32,
    MOERT_DISPATCH_MXFP8,
    MOERT_DISPATCH_BF16
} moert_dispatch;

/*
 * How the experts' results, and in backward the gradients of their inputs, travel back. Each row is
 * rounded once, by the rank that has made it; a token's K rows are summed in float32.
 *   F32    as they are, 4H bytes
 *   BF16   to nearest even: 2H bytes, H even
 */
typedef enum moert_combine { MOERT_COMBINE_F32, MOERT_COMBINE_BF16 } moert_combine;

/* "mxfp4", "e5m2"; NULL past the last one. */
MOERT_API const char *moert_format_name(moert_format format);
MOERT_API const char *moert_dtype_name(moert_dtype number);
/* Type of the elements, elements of a block, bits of an element, bytes of a scale. */
MOERT_API moert_dtype moert_format_element(moert_format format);
MOERT_API size_t moert_format_block(moert_format format);
MOERT_API size_t moert_format_element_bits(moert_format format);
MOERT_API size_t moert_format_scale_bytes(moert_format format);

#ifdef __cplusplus
}
#endif
#endif
