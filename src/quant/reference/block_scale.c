/* The scale of a block. Every product and quotient is rounded to float32. */
#include "quant/reference/block_scale.h"

#include <float.h>
#include <math.h>

#include "base/dtype.h"
#include "quant/quantize.h"

static const float range = 2688.0f; /* 6 * 448, the largest NVFP4 value with a global scale of 1 */

float moert_nvfp4_global(moert_nvfp4_rule rule, float tensor_amax) {
    if (rule == MOERT_NVFP4_BRIDGE)
        return moert_float_quiet((tensor_amax < 1e-8f ? 1e-8f : tensor_amax) / range);
    if (rule == MOERT_NVFP4_TE && (tensor_amax == 0.0f || range / tensor_amax == 0.0f))
        return 1.0f;
    return moert_float_quiet(tensor_amax / range);
}

static float at_most_finite(float x) {
    return x > FLT_MAX ? FLT_MAX : x;
}

/* The encoding scale S of the rule TE (moert/quantize.h). */
static float te_encode_scale(const float *tensor_amax, float global) {
    const float divisor = tensor_amax != NULL ? *tensor_amax : global;
    const float scale = (tensor_amax != NULL ? range : 1.0f) / divisor;
    return divisor == 0.0f || scale == 0.0f ? 1.0f : at_most_finite(scale);
}

static moert_block_scale te_scale(float amax, float encode) {
    const uint32_t code = moert_dtype_encode(MOERT_DTYPE_E4M3, amax * (encode * (1.0f / 6.0f)));
    const float decoded = moert_dtype_decode(MOERT_DTYPE_E4M3, code);
    return (moert_block_scale){.code = code,
                               .zero = decoded == 0.0f,
                               .factor = at_most_finite(1.0f / (decoded * (1.0f / encode)))};
}

static moert_block_scale torchao_scale(float amax, float global) {
    const float least = 0x1p-6f, t = global == 0.0f ? 0.0f : amax / 6.0f / global;
    const uint32_t code = moert_dtype_encode(MOERT_DTYPE_E4M3, t < least ? least : t);
    const float decoded = moert_dtype_decode(MOERT_DTYPE_E4M3, code);
    return (moert_block_scale){
        .code = code, .zero = global == 0.0f, .factor = at_most_finite(1.0f / global / decoded)};
}

static moert_block_scale bridge_scale(float amax, float global) {
    const float t = amax / global;
    if (t < 6.0f * 0x1p-9f)
        return (moert_block_scale){.zero = true};
    const uint32_t code = moert_dtype_encode(MOERT_DTYPE_E4M3, t / 6.0f);
    return (moert_block_scale){.code = code,
                               .divides = true,
                               .first = global,
                               .second = moert_dtype_decode(MOERT_DTYPE_E4M3, code)};
}

static moert_block_scale f32_scale(float amax) {
    const float value = moert_float_quiet(at_most_finite(amax) / 448.0f);
    return (moert_block_scale){
        .value = value, .zero = value == 0.0f, .divides = true, .first = value, .second = 1.0f};
}

static moert_block_scale e8m0_scale(moert_scale_rounding rounding, float amax, float largest) {
    const uint8_t code = rounding == MOERT_SCALE_FLOOR ? moert_e8m0_floor(amax, ilogbf(largest))
                                                       : moert_e8m0_ceil(amax * (1.0f / largest));
    return (moert_block_scale){.code = code, .factor = moert_e8m0_inverse(code)};
}

/* Follows cuDNN's epilogues: the inverse of the scale 2^-127 is infinity, and 128 counts as the
 * largest E5M2 value. */
moert_block_scale moert_block_scale_normed(moert_format format, float amax, float norm) {
    const moert_dtype element = moert_format_element(format);
    const bool nvfp4 = format == MOERT_FORMAT_NVFP4;
    const float largest = element == MOERT_DTYPE_E5M2 ? 128.0f : moert_dtype_largest(element);
    const float n = norm > 0.0f ? norm : NAN, t = amax * (1.0f / largest) * n;
    const uint32_t code = nvfp4 ? moert_dtype_encode(MOERT_DTYPE_E4M3, t) : moert_e8m0_ceil(t);
    const float inverse = code == 0 ? INFINITY
                          : nvfp4   ? 1.0f / moert_dtype_decode(MOERT_DTYPE_E4M3, code)
                                    : moert_e8m0_inverse((uint8_t)code);
    return (moert_block_scale){
        .code = code, .zero = nvfp4 && code == 0, .factor = at_most_finite(n * inverse)};
}

moert_block_scale moert_block_scale_of(const moert_quantizer *how, float amax,
                                       const float *tensor_amax, float global) {
    const moert_dtype element = moert_format_element(how->format);
    if (how->format == MOERT_FORMAT_FP8_BLOCK)
        return f32_scale(amax);
    if (how->format != MOERT_FORMAT_NVFP4)
        return e8m0_scale(how->scale_rounding, amax, moert_dtype_largest(element));
    switch (how->nvfp4_rule) {
    case MOERT_NVFP4_TE:
        return te_scale(amax, te_encode_scale(tensor_amax, global));
    case MOERT_NVFP4_TORCHAO:
        return torchao_scale(amax, global);
    default:
        return bridge_scale(amax, global);
    }
}

void moert_block_rotate(float v[MOERT_ROTATED]) {
    static const float signs[] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
    for (size_t i = 0; i < MOERT_ROTATED; i++)
        v[i] *= signs[i];
    for (size_t distance = 1; distance < MOERT_ROTATED; distance *= 2)
        for (size_t i = 0; i < MOERT_ROTATED; i++)
            if ((i & distance) == 0) {
                const float a = v[i], b = v[i + distance];
                v[i] = a + b;
                v[i + distance] = a - b;
            }
    for (size_t i = 0; i < MOERT_ROTATED; i++)
        v[i] *= 0.25f;
}

float moert_row_value(const void *x, moert_dtype type, size_t at) {
    return type == MOERT_DTYPE_F32
               ? ((const float *)x)[at]
               : moert_dtype_decode(MOERT_DTYPE_BF16, ((const uint16_t *)x)[at]);
}

void moert_raise_amax(float *amax, float x) {
    if (!isnan(*amax) && (isnan(x) || fabsf(x) > *amax))
        *amax = moert_float_quiet(fabsf(x));
}
