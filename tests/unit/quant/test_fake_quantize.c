// run: check=1,1gpu all=1san
/* Fake quantization: both backends give the bf16 values of quantizing and dequantizing, along rows
 * and down columns, for every format, for groups of any size, gaps between rows, float32 and bf16
 * rows. NVFP4's values come from plain arithmetic, since its scales need no global scale. */
#include <float.h>

#include "base/dtype.h"
#include "quant/backend.h"
#include "support/quant/quantize_oracle.h"
#include "support/quant/quantized.h"
#include "support/suite.h"

enum { GROUPS = 5, ROWS = 170, UNUSED = 3 }; /* UNUSED rows follow the last group */
static const uint32_t ends[GROUPS] = {1, 1, 34, 163, ROWS - UNUSED};

typedef struct form {
    moert_format format;
    moert_dtype type;
    size_t columns, stride;
} form;

/* Normal values of all sizes, whole rows of tiny ones; zeros, NaN, infinities, and tiny, large and
 * equal values in places. */
static float *hostile_rows(const form *f) {
    static const float special[] = {0.0f,   NAN,    INFINITY,  -INFINITY,
                                    1e-38f, -3e38f, 0x1p-140f, 6.0f};
    float *x = random_floats(ROWS * f->stride, 2.0f, 3);
    for (size_t i = 0; i < ROWS * f->stride; i++) {
        const size_t row = i / f->stride, column = i % f->stride;
        x[i] *= ldexpf(1.0f, (int)(row % 7) * 5 - 15);
        if (row % 17 == 5)
            x[i] *= 0x1p-125f;
        if (row % 11 == 3 && column % 37 == 5)
            x[i] = special[(row + column) % MOERT_COUNT(special)];
        if (row % 13 == 7 || column / 16 == 2)
            x[i] = 0.0f;
        if (f->type == MOERT_DTYPE_BF16)
            x[i] = moert_dtype_decode(MOERT_DTYPE_BF16, moert_dtype_encode(MOERT_DTYPE_BF16, x[i]));
    }
    return x;
}

/* NVFP4: a scale with 4 significant bits and the range of float32, in plain arithmetic. */
static double scale_of(float amax) {
    int exponent;
    const float t = fminf(amax, FLT_MAX) * (1.0f / 6.0f);
    const double m = frexp((double)t, &exponent);
    return isnan(amax) ? NAN : t < 0x1p-126f ? 0.0 : ldexp(nearbyint(16.0 * m), exponent - 4);
}

/* Rounds `count` values that lie `apart` elements apart to NVFP4's values in bf16. */
static void round_block(const float *x, size_t count, size_t apart, uint16_t *to, size_t to_apart) {
    float amax = 0.0f;
    for (size_t i = 0; i < count; i++)
        amax = isnan(amax) || isnan(x[i * apart]) ? NAN : fmaxf(amax, fabsf(x[i * apart]));
    const double scale = scale_of(amax);
    for (size_t i = 0; i < count; i++) {
        const float inverse = (float)(1.0 / scale), scaled = x[i * apart] * inverse;
        const double element =
            isnan(scale)
                ? NAN
                : oracle_value(MOERT_DTYPE_E2M1, oracle_code(MOERT_DTYPE_E2M1, (double)scaled));
        to[i * to_apart] = (uint16_t)moert_dtype_encode(
            MOERT_DTYPE_BF16, scale == 0.0 ? 0.0f : (float)(element * scale));
    }
}

static const uint16_t *round_nvfp4(const form *f, const float *x, moert_axis axis) {
    const size_t n = f->columns;
    uint16_t *to = test_alloc(ROWS * n * sizeof *to);
    memset(to, QUANTIZED_UNSET, ROWS * n * sizeof *to);
    for (size_t g = 0, start = 0; g < GROUPS; start = ends[g++])
        for (size_t row = start; row < ends[g]; row += axis == MOERT_AXIS_ROW ? 1 : 16)
            for (size_t c = 0; c < n; c += axis == MOERT_AXIS_ROW ? 16 : 1) {
                const size_t left = axis == MOERT_AXIS_ROW ? n - c : ends[g] - row;
                const bool along = axis == MOERT_AXIS_ROW;
                round_block(x + row * f->stride + c, left < 16 ? left : 16, along ? 1 : f->stride,
                            to + row * n + c, along ? 1 : n);
            }
    return to;
}

/* Quantizes and dequantizes the rows along an axis, with the reference backend. */
static const void *plain(const form *f, const moert_fake_quantize *op, const float *x,
                         moert_axis axis) {
    float *dense = test_alloc(ROWS * f->columns * sizeof *dense);
    if (f->format == MOERT_FORMAT_NVFP4)
        return round_nvfp4(f, x, axis);
    for (size_t i = 0; i < ROWS * f->columns; i++)
        dense[i] = x[i / f->columns * f->stride + i % f->columns];
    moert_quantize q = quantize_op(&op->how, ROWS, f->columns);
    q.how.axis = axis;
    q.groups = op->groups;
    q.blocks = moert_row_blocks(ends, GROUPS, moert_format_block(f->format));
    const moert_quantized_shape z = moert_quantized_shape_of(&q.how, ROWS, f->columns, q.blocks);
    q.x = upload_floats(dense, ROWS * f->columns);
    q.q = unset_bytes(z.q_lines * z.q_bytes);
    q.scale = unset_bytes(z.scale_lines * z.scales * moert_format_scale_bytes(f->format));
    ASSERT_OK(moert_reference_quantize(&q));
    q.x = unset_bytes(ROWS * f->columns * sizeof(uint16_t));
    q.x_type = MOERT_DTYPE_BF16;
    ASSERT_OK(moert_reference_dequantize(&q));
    return download(q.x, ROWS * f->columns * sizeof(uint16_t));
}

static void check(const form *f) {
    const size_t bytes = ROWS * f->columns * sizeof(uint16_t);
    float *x = hostile_rows(f);
    moert_fake_quantize op = {.how = HOW(.format = f->format),
                              .groups = {upload(ends, sizeof ends), GROUPS, ROWS},
                              .columns = f->columns,
                              .x = upload_as(x, ROWS * f->stride, f->type),
                              .x_type = f->type,
                              .x_stride = f->stride};
    const void *want_along = plain(f, &op, x, MOERT_AXIS_ROW),
               *want_down = plain(f, &op, x, MOERT_AXIS_COLUMN);
    for (size_t b = 0; b < BACKENDS; b++)
        for (int results = 1; results < 4; results++) {
            set_variable("MOERT_BACKEND", backends[b]);
            op.along = results & 1 ? unset_bytes(bytes) : NULL;
            op.down = results & 2 ? unset_bytes(bytes) : NULL;
            ASSERT_OK(moert_fake_quantize_run(&op));
            if (op.along != NULL)
                assert_same_bytes(backends[b], "along", download(op.along, bytes), want_along,
                                  bytes);
            if (op.down != NULL)
                assert_same_bytes(backends[b], "down", download(op.down, bytes), want_down, bytes);
        }
    set_variable("MOERT_BACKEND", NULL);
}

TEST(test_values_are_those_of_quantizing_and_dequantizing) {
    static const size_t columns[] = {128, 1, 52, 1100};
    for (moert_format format = 0; format <= MOERT_FORMAT_FP8_BLOCK; format++)
        for (size_t i = 0; i < MOERT_COUNT(columns); i++) {
            const bool bf16 = (i + format) % 2;
            check(&(form){.format = format,
                          .type = bf16 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32,
                          .columns = columns[i],
                          .stride = columns[i] + (i % 2 == 0 ? 12 : bf16)});
        }
}

TESTS(open_test_device, close_test_device)
