// run: check=1 all=1san env=MOERT_FORM=gpu
/* Decoding of MX and NV formats to bf16 before a GEMM. Every payload value and scale is decoded as
 * the reference dequantizes it. */
#include "base/rng.h"
#include "quant/backend.h"
#include "quant/decode.h"
#include "support/quant/quantized.h"

enum { FORMATS = MOERT_FORMAT_NVFP4 + 1, GROUPS = 3 }; /* all formats except FP8_BLOCK */

/* the shapes: one block; more data than one work-group decodes, with a partial last work-group;
 * many columns */
static const struct shape {
    size_t rows, columns; /* rows and columns of each group */
} shapes[] = {{32, 32}, {64, 1056}, {96, 2048}};
enum { SHAPES = MOERT_COUNT(shapes) };

static moert_buffer *random_bytes(size_t count, uint64_t stream) {
    unsigned char *bytes = test_alloc(count);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(256.0 * moert_rng_uniform(9, stream, i));
    return upload(bytes, count);
}

static void check(moert_format format, moert_axis axis, const struct shape *s) {
    const size_t rows = GROUPS * s->rows, bytes = rows * s->columns * sizeof(uint16_t);
    const uint32_t ends[GROUPS] = {(uint32_t)s->rows, (uint32_t)(2 * s->rows), (uint32_t)rows};
    moert_quantize op = quantize_op(&HOW(.format = format, .axis = axis), rows, s->columns);
    op.blocks = rows / moert_format_block(format);
    const moert_quantized_shape z = moert_quantized_shape_of(&op.how, rows, s->columns, op.blocks);
    op.groups = (moert_groups){upload(ends, sizeof ends), GROUPS, rows};
    op.x_type = MOERT_DTYPE_BF16;
    op.q = random_bytes(z.q_lines * z.q_bytes, 1);
    op.scale = random_bytes(z.scale_lines * z.scales, 2);
    op.x = unset_bytes(bytes);
    assert_true(moert_decode_suits(&op, true));
    ASSERT_OK(moert_decode(&op));
    const void *got = download(op.x, bytes);
    op.x = unset_bytes(bytes);
    ASSERT_OK(moert_reference_dequantize(&op));
    assert_memory_equal(got, download(op.x, bytes), bytes);
}

TEST(test_every_payload_value_and_scale_becomes_its_bf16_value) {
    for (size_t i = 0; i < SHAPES * FORMATS * 3; i++)
        check((moert_format)(i / 3 % FORMATS), (moert_axis)(i % 3), &shapes[i / 3 / FORMATS]);
}

TEST(test_partial_blocks_are_left_to_the_quantizers) {
    moert_quantize op = {.how = MOERT_QUANTIZER_INIT, .x_type = MOERT_DTYPE_BF16, .columns = 40};
    op.x = test_buffer(1);
    op.groups = (moert_groups){NULL, 2, 64};
    assert_false(moert_decode_suits(&op, true));
    op.how.axis = MOERT_AXIS_COLUMN;
    assert_true(moert_decode_suits(&op, true));
    assert_false(moert_decode_suits(&op, false));
    op.groups.rows = 80;
    assert_false(moert_decode_suits(&op, true));
    op.groups.rows = 64;
    op.columns = 36;
    assert_false(moert_decode_suits(&op, true));
}

TESTS(open_test_device, close_test_device)
