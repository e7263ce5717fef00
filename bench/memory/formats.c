/*
 * The quantizers of bench_memory (memory.h). The quantizers read in[0] as [T K, H] and write the
 * payload to out[0] and the scales to out[1]; the dequantizers write out[2]. The checks recompute
 * the product of an element and its scale from the values of the element's block.
 */
#include <math.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "bench/memory/memory.h"
#include "moert/quantize.h"
#include "quant/fake_quantize.h"

/* NVFP4's global scale. With this global scale, E4M3 can represent the scales of blocks with values
 * in [-1, 1). */
#define GLOBAL 0x1p-6f

static moert_quantize quantize_of(const bench_memory *b) {
    moert_quantize op = MOERT_QUANTIZE_INIT;
    op.how.format = b->of.how.format;
    op.how.axis = b->of.how.axis;
    op.groups.rows = b->of.tokens * b->of.topk;
    op.columns = b->of.hidden;
    op.x = b->in[0];
    op.q = b->out[0];
    op.scale = b->out[1];
    op.global = b->out[3];
    return op;
}

static double quantize_bytes(const bench_sizes *s) {
    const bench_how *how = &s->how;
    const moert_quantizer quantizer = {
        .size = sizeof quantizer, .format = how->format, .axis = how->axis};
    const size_t rows = s->tokens * s->topk;
    const moert_quantized_shape shape = moert_quantized_shape_of(
        &quantizer, rows, s->hidden, moert_ceil_div(rows, moert_format_block(how->format)));
    return (double)(rows * s->hidden * moert_dtype_bits(how->type) / 8 +
                    shape.q_lines * shape.q_bytes +
                    shape.scale_lines * shape.scales * moert_format_scale_bytes(how->format));
}

static moert_status quantize_begin(const bench_memory *b) {
    const float global = GLOBAL;
    return moert_buffer_write(b->out[3], 0, &global, sizeof global);
}

static moert_status quantize_run(const bench_memory *b) {
    const moert_quantize op = quantize_of(b);
    return moert_quantize_run(&op);
}

static moert_status dequantize_begin(const bench_memory *b) {
    MOERT_TRY(quantize_begin(b));
    return quantize_run(b);
}

static moert_status dequantize_run(const bench_memory *b) {
    moert_quantize op = quantize_of(b);
    op.x = b->out[2];
    op.x_type = b->of.how.type;
    return moert_dequantize_run(&op);
}

/* Fake quantization of float32 rows or (`bf16_rows`) bf16 rows, which the preparation casts, to
 * out[2] and, with axis TILE, also to out[4]: along rows, down columns (COLUMN), or both (TILE). */
static moert_fake_quantize fake_of(const bench_memory *b) {
    const moert_axis axis = b->of.how.axis;
    const bool bf16 = b->of.how.bf16_rows;
    return (moert_fake_quantize){
        .how = {.size = sizeof(moert_quantizer), .format = b->of.how.format},
        .groups.rows = b->of.tokens * b->of.topk,
        .columns = b->of.hidden,
        .x = bf16 ? b->out[0] : b->in[0],
        .x_type = bf16 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32,
        .along = axis != MOERT_AXIS_COLUMN ? b->out[2] : NULL,
        .down = axis == MOERT_AXIS_COLUMN ? b->out[2]
                : axis == MOERT_AXIS_TILE ? b->out[4]
                                          : NULL};
}

static double elements_of(const bench_sizes *s) {
    return (double)(s->tokens * s->topk * s->hidden);
}

static double fake_bytes(const bench_sizes *s) {
    const double results = s->how.axis == MOERT_AXIS_TILE ? 2.0 : 1.0;
    return elements_of(s) * ((s->how.bf16_rows ? 2.0 : 4.0) + results * 2.0);
}

static moert_status fake_begin(const bench_memory *b) {
    MOERT_TRY(quantize_begin(b));
    return !b->of.how.bf16_rows
               ? MOERT_OK
               : moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                              b->of.tokens * b->of.topk * b->of.hidden, b->in[0],
                                              b->out[0]});
}

static moert_status fake_run(const bench_memory *b) {
    const moert_fake_quantize op = fake_of(b);
    return moert_fake_quantize_run(&op);
}

/* ---- checks ---- */

static float rounded(moert_dtype type, float x) {
    return moert_dtype_decode(type, moert_dtype_encode(type, x));
}

/* Element `at` of the rows: rounded to bf16 if the kernel reads bf16 rows. */
static float element_of(const bench_memory *b, size_t at) {
    const float x = (float)bench_value(b, 0, at);
    return b->of.how.bf16_rows ? rounded(MOERT_DTYPE_BF16, x) : x;
}

/* The largest magnitude of the block that contains an element. */
static float block_amax(const bench_memory *b, size_t row, size_t column) {
    const bench_how *how = &b->of.how;
    const size_t block = moert_format_block(how->format);
    const size_t height = how->axis == MOERT_AXIS_ROW ? 1 : block;
    const size_t width = how->axis == MOERT_AXIS_COLUMN ? 1 : block;
    const size_t top = row - row % height, left = column - column % width;
    double amax = 0.0;
    for (size_t r = top; r < moert_min(top + height, b->of.tokens * b->of.topk); r++)
        for (size_t c = left; c < moert_min(left + width, b->of.hidden); c++)
            amax = fmax(amax, fabs((double)element_of(b, r * b->of.hidden + c)));
    return (float)amax;
}

/* The expected value of element `at` after quantization. */
static double quantized(const bench_memory *b, size_t at) {
    const moert_format format = b->of.how.format;
    const moert_dtype element = moert_format_element(format);
    const float x = element_of(b, at), largest = moert_dtype_largest(element);
    const float amax = block_amax(b, at / b->of.hidden, at % b->of.hidden);
    int exponent;
    if (format == MOERT_FORMAT_FP8_BLOCK)
        return (double)(amax / largest) * (double)rounded(element, x / (amax / largest));
    if (format == MOERT_FORMAT_NVFP4) {
        const float scale = rounded(MOERT_DTYPE_E4M3, amax * (1.0f / GLOBAL * (1.0f / largest)));
        return (double)(scale * GLOBAL) * (double)rounded(element, x * (1.0f / (scale * GLOBAL)));
    }
    /* the scale is the smallest power of two with which the block's largest magnitude is in
     * range */
    const double fraction = frexp((double)amax / (double)largest, &exponent);
    const double scale = ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
    return scale * (double)rounded(element, (float)((double)x / scale));
}

static moert_status read_scale(const bench_memory *b, moert_format format, size_t index,
                               double *scale) {
    uint8_t bits;
    if (format == MOERT_FORMAT_FP8_BLOCK)
        return bench_read(b->out[1], index, scale);
    MOERT_TRY(moert_buffer_read(b->out[1], index, &bits, 1));
    *scale = format == MOERT_FORMAT_NVFP4
                 ? (double)(moert_dtype_decode(MOERT_DTYPE_E4M3, bits) * GLOBAL)
                 : ldexp(1.0, bits - 127);
    return MOERT_OK;
}

static moert_status quantize_check(const bench_memory *b, double chosen, bench_pair *r) {
    const bench_how *how = &b->of.how;
    const size_t width = b->of.hidden, block = moert_format_block(how->format);
    const size_t at = bench_index(chosen, b->of.tokens * b->of.topk * width);
    const size_t row = at / width, column = at % width;
    const bool pairs = moert_format_element_bits(how->format) == 4;
    const bool along = how->axis == MOERT_AXIS_COLUMN;
    const size_t byte = !pairs ? at : along ? row / 2 * width + column : at / 2;
    const size_t line = how->axis == MOERT_AXIS_ROW ? row : row / block;
    uint8_t bits;
    double scale = 0.0;
    MOERT_TRY(moert_buffer_read(b->out[0], byte, &bits, 1));
    MOERT_TRY(read_scale(b, how->format,
                         along ? line * width + column
                               : line * moert_ceil_div(width, block) + column / block,
                         &scale));
    if (pairs)
        bits = bits >> ((along ? row : column) % 2 * 4) & 0xF;
    r->got = scale * (double)moert_dtype_decode(moert_format_element(how->format), bits);
    r->want = quantized(b, at);
    return MOERT_OK;
}

static moert_status dequantize_check(const bench_memory *b, double chosen, bench_pair *r) {
    const moert_dtype type = b->of.how.type;
    const size_t at = bench_index(chosen, b->of.tokens * b->of.topk * b->of.hidden);
    r->want = quantized(b, at);
    if (type != MOERT_DTYPE_F32)
        r->want = (double)rounded(type, (float)r->want);
    return bench_read_as(b->out[2], type, at, &r->got);
}

/* Checks the result along rows or, with axis TILE, the one down columns. */
static moert_status fake_check(const bench_memory *b, double chosen, bench_pair *r) {
    const size_t at = bench_index(chosen, b->of.tokens * b->of.topk * b->of.hidden);
    bench_memory of = *b;
    const bool both = b->of.how.axis == MOERT_AXIS_TILE;
    of.of.how.axis = both ? MOERT_AXIS_COLUMN : b->of.how.axis;
    r->want = (double)rounded(MOERT_DTYPE_BF16, (float)quantized(&of, at));
    return bench_read_as(b->out[both ? 4 : 2], MOERT_DTYPE_BF16, at, &r->got);
}

static const bench_kernel quantize = {quantize_bytes, quantize_begin, quantize_run, quantize_check};
static const bench_kernel dequantize = {quantize_bytes, dequantize_begin, dequantize_run,
                                        dequantize_check};

static const bench_kernel fake = {fake_bytes, fake_begin, fake_run, fake_check};

#define CASE(name, kernel, form, along, ...)                                                       \
    {                                                                                              \
        name, &(kernel), {                                                                         \
            .format = MOERT_FORMAT_##form, .axis = MOERT_AXIS_##along, __VA_ARGS__                 \
        }                                                                                          \
    }
static const bench_case cases[] = {
    CASE("quantize MXFP8", quantize, MXFP8_E4M3, ROW),
    CASE("quantize MXFP8 columns", quantize, MXFP8_E4M3, COLUMN),
    CASE("quantize NVFP4", quantize, NVFP4, ROW),
    CASE("quantize NVFP4 columns", quantize, NVFP4, COLUMN),
    CASE("quantize FP8 blocks", quantize, FP8_BLOCK, ROW),
    CASE("quantize FP8 columns", quantize, FP8_BLOCK, COLUMN),
    CASE("quantize FP8 tiles", quantize, FP8_BLOCK, TILE),
    CASE("dequantize MXFP8", dequantize, MXFP8_E4M3, ROW),
    CASE("dequantize MXFP8 columns", dequantize, MXFP8_E4M3, COLUMN),
    CASE("dequantize MXFP8 to bf16", dequantize, MXFP8_E4M3, ROW, .type = MOERT_DTYPE_BF16),
    CASE("dequantize NVFP4", dequantize, NVFP4, ROW),
    CASE("dequantize NVFP4 columns", dequantize, NVFP4, COLUMN),
    CASE("dequantize FP8 blocks", dequantize, FP8_BLOCK, ROW),
    CASE("dequantize FP8 tiles", dequantize, FP8_BLOCK, TILE),
    CASE("fake-quantize MXFP8", fake, MXFP8_E4M3, ROW),
    CASE("fake-quantize MXFP8 both", fake, MXFP8_E4M3, TILE),
    CASE("fake-quantize MXFP8 bf16", fake, MXFP8_E4M3, ROW, .bf16_rows = true),
    CASE("fake-quantize MXFP8 bf16 columns", fake, MXFP8_E4M3, COLUMN, .bf16_rows = true),
    CASE("fake-quantize NVFP4 both", fake, NVFP4, TILE),
    CASE("fake-quantize NVFP4 bf16", fake, NVFP4, ROW, .bf16_rows = true),
    CASE("fake-quantize NVFP4 bf16 columns", fake, NVFP4, COLUMN, .bf16_rows = true),
};
const bench_cases bench_format_cases = {cases, MOERT_COUNT(cases)};
