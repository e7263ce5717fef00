// run: check=1,1gpu all=1san
/* The quantizer of FP8 operands: payload times scale has the bits of fake quantization, both ways,
 * for groups of any size, gaps between rows, float32 and bf16 rows, and tiles of weights. The
 * kernels have the bytes of the reference; they exist in GPU form only. */
#include "base/dtype.h"
#include "device/device.h"
#include "quant/backend.h"
#include "support/quant/quantized.h"
#include "support/suite.h"

enum { GROUPS = 6, ROWS = 470, UNUSED = 3, BLOCK = MOERT_FP8_BLOCK };
/* one row, none, a block and a half, a whole block, 16 rows more, a few rows */
static const uint32_t ends[GROUPS] = {1, 1, 193, 321, 465, ROWS - UNUSED};
static const uint32_t padded[GROUPS] = {16, 16, 208, 336, 480, 496};

/* The bf16 values of fake quantization, along rows or in tiles, or down columns. */
static const uint16_t *fake(const moert_fp8_operands *op, bool down) {
    const size_t bytes = op->groups.rows * op->columns * sizeof(uint16_t);
    moert_buffer *values = unset_bytes(bytes);
    const moert_fake_quantize fake = {
        .how = HOW(.format = MOERT_FORMAT_FP8_BLOCK,
                   .axis = op->tiles ? MOERT_AXIS_TILE : MOERT_AXIS_ROW),
        .groups = {op->groups.ends, op->groups.count, op->groups.rows},
        .columns = op->columns,
        .x = op->x,
        .x_type = op->x_type,
        .x_stride = op->x_stride,
        .along = down ? NULL : values,
        .down = down ? values : NULL};
    ASSERT_OK(moert_reference_fake_quantize(&fake));
    return download(values, bytes);
}

/* The results of one run, copied to the host. */
typedef struct results {
    const unsigned char *along, *down;
    const float *along_scale, *down_scale;
    const uint32_t *ends;
} results;

/* The sizes of the results. */
typedef struct sizes {
    size_t along, along_scales, down, down_scales;
} sizes;

static sizes sizes_of(const moert_fp8_operands *op) {
    const moert_groups *g = &op->groups;
    const size_t n = op->columns, tiles = g->rows / BLOCK * (n / BLOCK);
    return op->tiles ? (sizes){g->rows * n, tiles, g->rows * n, tiles}
                     : (sizes){g->rows * n, g->rows * n / BLOCK,
                               n * moert_fp8_padded_rows(g->rows, g->count),
                               n * moert_row_blocks_most(g->rows, g->count, BLOCK)};
}

/* `which`: 1 along, 2 down, 3 both. */
static results run(const char *backend, moert_fp8_operands op, int which) {
    const sizes z = sizes_of(&op);
    op.along = (moert_fp8_operand){which & 1 ? unset_bytes(z.along) : NULL,
                                   unset_bytes(z.along_scales * sizeof(float))};
    op.down = (moert_fp8_operand){which & 2 ? unset_bytes(z.down) : NULL,
                                  unset_bytes(z.down_scales * sizeof(float))};
    op.padded_ends = unset_bytes(GROUPS * sizeof(uint32_t));
    set_variable("MOERT_BACKEND", backend);
    ASSERT_OK(moert_fp8_operands_run(&op));
    set_variable("MOERT_BACKEND", NULL);
    return (results){which & 1 ? download(op.along.q, z.along) : NULL,
                     which & 2 ? download(op.down.q, z.down) : NULL,
                     download(op.along.scale, z.along_scales * sizeof(float)),
                     download(op.down.scale, z.down_scales * sizeof(float)),
                     download(op.padded_ends, GROUPS * sizeof(uint32_t))};
}

static void assert_value(unsigned char code, float scale, uint16_t want) {
    const float value = moert_float_quiet(moert_dtype_decode(MOERT_DTYPE_E4M3, code) * scale);
    assert_int_equal(moert_dtype_encode(MOERT_DTYPE_BF16, value), want);
}

/* Compares rows with fake quantization; the padding of `down` is 0, except in blocks with a NaN. */
static void check_rows(const moert_fp8_operands *op, const results *got) {
    const size_t n = op->columns, line = moert_fp8_padded_rows(ROWS, GROUPS);
    const uint16_t *along = fake(op, false), *down = fake(op, true);
    size_t slot = 0;
    for (size_t g = 0, start = 0; g < GROUPS; start = ends[g++]) {
        const size_t first = g > 0 ? padded[g - 1] : 0;
        for (size_t i = 0; i < (padded[g] - first) * n; i++) {
            const size_t r = i / n, c = i % n, row = start + r;
            const unsigned char code = got->down[c * line + first + r];
            const float scale = got->down_scale[(slot + r / BLOCK) * n + c];
            if (row < ends[g]) {
                assert_value(got->along[row * n + c], got->along_scale[(row * n + c) / BLOCK],
                             along[row * n + c]);
                assert_value(code, scale, down[row * n + c]);
            } else {
                assert_int_equal(code, isnan(scale) ? 0x7F : 0);
            }
        }
        slot += moert_ceil_div(ends[g] - start, BLOCK);
    }
    assert_memory_equal(got->ends, padded, sizeof padded);
}

/* Compares tiles with fake quantization. */
static void check_tiles(const moert_fp8_operands *op, const results *got) {
    const size_t n = op->columns, height = op->groups.rows / op->groups.count, across = n / BLOCK;
    const uint16_t *want = fake(op, false);
    for (size_t i = 0; i < op->groups.rows * n; i++) {
        const size_t row = i / n, c = i % n, g = row / height, r = row % height;
        const size_t turned = (g * across + c / BLOCK) * (height / BLOCK) + r / BLOCK;
        assert_value(got->along[i], got->along_scale[row / BLOCK * across + c / BLOCK], want[i]);
        assert_value(got->down[(g * n + c) * height + r], got->down_scale[turned], want[i]);
    }
}

/* The kernels of the device, in every combination of results, have the bytes of the reference. */
static void check_kernels(const moert_fp8_operands *op, const results *want) {
    const sizes z = sizes_of(op);
    if (moert_by_form(test_device, 1, 0) == 1) /* CPU form */
        return;
    for (int which = op->tiles ? 3 : 1; which <= 3; which++) {
        const results got = run("portable", *op, which);
        if (which & 1) {
            assert_same_bytes("along", "payload", got.along, want->along, z.along);
            assert_same_bytes("along", "scales", got.along_scale, want->along_scale,
                              z.along_scales * sizeof(float));
        }
        if (which & 2) {
            assert_same_bytes("down", "payload", got.down, want->down, z.down);
            assert_same_bytes("down", "scales", got.down_scale, want->down_scale,
                              z.down_scales * sizeof(float));
        }
        if (which & 2 && !op->tiles)
            assert_memory_equal(got.ends, padded, sizeof padded);
    }
}

TEST(test_rows_have_the_values_of_fake_quantization) {
    static const size_t columns[] = {128, 1280};
    for (size_t i = 0; i < 2 * MOERT_COUNT(columns); i++) {
        const moert_dtype type = i % 2 == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16;
        const size_t n = columns[i / 2], stride = n + i / 2 * 12;
        const float *x = hostile_rows(ROWS, stride, type, 448.0f);
        const moert_fp8_operands op = {.groups = {upload(ends, sizeof ends), GROUPS, ROWS},
                                       .columns = n,
                                       .x = upload_as(x, ROWS * stride, type),
                                       .x_type = type,
                                       .x_stride = stride};
        const results want = run("reference", op, 3);
        check_rows(&op, &want);
        check_kernels(&op, &want);
    }
}

TEST(test_tiles_have_the_values_of_fake_quantization) {
    enum { WEIGHTS = 3, HEIGHT = 256, WIDTH = 384 };
    const float *x = hostile_rows(WEIGHTS * HEIGHT, WIDTH, MOERT_DTYPE_F32, 448.0f);
    const uint32_t weights[WEIGHTS] = {HEIGHT, 2 * HEIGHT, 3 * HEIGHT};
    const moert_fp8_operands op = {
        .groups = {upload(weights, sizeof weights), WEIGHTS, WEIGHTS * HEIGHT},
        .columns = WIDTH,
        .tiles = true,
        .x = upload_floats(x, WEIGHTS * HEIGHT * WIDTH),
        .x_stride = WIDTH};
    const results want = run("reference", op, 3);
    check_tiles(&op, &want);
    check_kernels(&op, &want);
}

TEST(test_other_shapes_are_refused) {
    moert_buffer *x = unset_bytes(256 * 256 * sizeof(float));
    const moert_fp8_operands good = {
        .groups = {NULL, 1, 128}, .columns = 128, .x = x, .along = {x, x}};
    moert_fp8_operands columns = good, stride = good, type = good, tiles = good;
    columns.columns = 64;
    stride.x_stride = 130;
    type.x_type = MOERT_DTYPE_F16;
    tiles.tiles = true;
    tiles.groups.count = 2;
    ASSERT_FAILS(moert_fp8_operands_run(&columns), MOERT_ERROR_UNSUPPORTED, "multiples of 128");
    ASSERT_FAILS(moert_fp8_operands_run(&stride), MOERT_ERROR_UNSUPPORTED, "130");
    ASSERT_FAILS(moert_fp8_operands_run(&type), MOERT_ERROR_UNSUPPORTED, "f32 or bf16");
    ASSERT_FAILS(moert_fp8_operands_run(&tiles), MOERT_ERROR_UNSUPPORTED, "2 weights");
    if (moert_by_form(test_device, 1, 0) == 1)
        ASSERT_FAILS(moert_fp8_operands_run(&good), MOERT_ERROR_UNSUPPORTED, "GPU form");
    moert_fp8_operands missing = good;
    missing.down.q = x;
    missing.down.scale = x;
    ASSERT_FAILS(moert_fp8_operands_run(&missing), MOERT_ERROR_USAGE, "padded_ends");
}

TESTS(open_test_device, close_test_device)
