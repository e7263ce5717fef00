// run: check=1,1gpu all=1san
/* Fake quantization: both backends give the bf16 values of quantizing and dequantizing, along rows
 * and down columns, for every format and rule, for groups of any size, gaps between rows, float32
 * and bf16 rows. Global scales are the smallest sufficient powers of two. */
#include <float.h>

#include "base/dtype.h"
#include "quant/backend.h"
#include "support/quant/quantized.h"
#include "support/suite.h"

enum { GROUPS = 5, ROWS = 170, UNUSED = 3 }; /* UNUSED rows follow the last group */
static const uint32_t ends[GROUPS] = {1, 1, 34, 163, ROWS - UNUSED};

typedef struct form {
    moert_format format;
    moert_nvfp4_rule rule;
    bool by_group;
    moert_dtype type;
    size_t columns, stride;
} form;

/* Normal values of all sizes; zeros, NaN, infinities, and tiny, large and equal values in places. */
static float *hostile_rows(const form *f) {
    static const float special[] = {0.0f,   NAN,    INFINITY,  -INFINITY,
                                    1e-38f, -3e38f, 0x1p-140f, 6.0f};
    float *x = random_floats(ROWS * f->stride, 2.0f, 3);
    for (size_t i = 0; i < ROWS * f->stride; i++) {
        const size_t row = i / f->stride, column = i % f->stride;
        x[i] *= ldexpf(1.0f, (int)(row % 7) * 5 - 15);
        if (row % 11 == 3 && column % 37 == 5)
            x[i] = special[(row + column) % MOERT_COUNT(special)];
        if (row % 13 == 7 || column / 16 == 2)
            x[i] = 0.0f;
        if (f->type == MOERT_DTYPE_BF16)
            x[i] = moert_dtype_decode(MOERT_DTYPE_BF16, moert_dtype_encode(MOERT_DTYPE_BF16, x[i]));
    }
    return x;
}

/* Quantizes and dequantizes the rows along an axis, with the reference backend. */
static const void *plain(const form *f, const moert_fake_quantize *op, const float *x,
                         moert_axis axis) {
    float *dense = test_alloc(ROWS * f->columns * sizeof *dense);
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
    q.global = (moert_buffer *)op->global;
    ASSERT_OK(moert_reference_quantize(&q));
    q.x = unset_bytes(ROWS * f->columns * sizeof(uint16_t));
    q.x_type = MOERT_DTYPE_BF16;
    ASSERT_OK(moert_reference_dequantize(&q));
    return download(q.x, ROWS * f->columns * sizeof(uint16_t));
}

static void check(const form *f) {
    const size_t bytes = ROWS * f->columns * sizeof(uint16_t);
    float *x = hostile_rows(f);
    /* the first one serves all rows, unless there is one for each group */
    float globals[GROUPS] = {0.0f, 0x1p-7f, 0x1p3f, 0x1p-7f, 0x1p-5f};
    globals[0] = f->by_group ? NAN : 0x1p-3f;
    moert_fake_quantize op = {
        .how = HOW(.format = f->format, .nvfp4_rule = f->rule, .group_scales = f->by_group,
                   .rounding = MOERT_ROUNDING_NEAREST),
        .groups = {upload(ends, sizeof ends), GROUPS, ROWS},
        .columns = f->columns,
        .x = upload_as(x, ROWS * f->stride, f->type),
        .x_type = f->type,
        .x_stride = f->stride,
        .global = f->format == MOERT_FORMAT_NVFP4 ? upload(globals, sizeof globals) : NULL};
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
                          .by_group = bf16 && format == MOERT_FORMAT_NVFP4,
                          .columns = columns[i],
                          .stride = columns[i] + (i % 2 == 0 ? 12 : bf16)});
        }
    check(&(form){MOERT_FORMAT_NVFP4, MOERT_NVFP4_TORCHAO, true, MOERT_DTYPE_F32, 64, 64});
}

/* The global scale of an amax, by comparison of doubles. */
static float smallest_power(float amax) {
    double power = 0x1p-126;
    if (isnan(amax) || amax == 0.0f)
        return isnan(amax) ? NAN : 1.0f;
    while (power * 2688.0 < fmin((double)amax, (double)FLT_MAX))
        power *= 2;
    return (float)power;
}

TEST(test_global_scales_are_the_smallest_sufficient_powers_of_two) {
    float amax[600] = {0.0f, NAN, INFINITY, FLT_MAX, 0x1p-149f, 2688.0f, 2689.0f, 2687.0f};
    const size_t n = MOERT_COUNT(amax);
    for (size_t i = 8; i < n; i++)
        amax[i] = i % 2 ? ldexpf(random_floats(n, 1.0f, 4)[i], (int)i / 2 - 150)
                        : nextafterf(ldexpf(2688.0f, (int)i / 2 - 160), i % 4 ? 0.0f : INFINITY);
    for (size_t i = 8; i < n; i++)
        amax[i] = fabsf(amax[i]);
    for (size_t b = 0; b < BACKENDS; b++) {
        const moert_power_globals op = {n, upload_floats(amax, n), unset_floats(n)};
        set_variable("MOERT_BACKEND", backends[b]);
        ASSERT_OK(moert_power_globals_run(&op));
        const float *got = download_floats(op.to, n);
        for (size_t i = 0; i < n; i++) {
            const float want = smallest_power(amax[i]);
            assert_true(isnan(want) ? isnan(got[i]) : got[i] == want);
        }
    }
    set_variable("MOERT_BACKEND", NULL);
}

TEST(test_maxima_of_groups_and_of_all_rows) {
    enum { COLUMNS = 60, STRIDE = 68 };
    float *x = random_floats(ROWS * STRIDE, 2.0f, 5), want[GROUPS] = {0}, all = 0.0f;
    for (size_t row = 0, g = 0; row < ends[GROUPS - 1]; row++) {
        while (row >= ends[g])
            g++;
        for (size_t c = 0; c < COLUMNS; c++) {
            want[g] = fmaxf(want[g], fabsf(x[row * STRIDE + c]));
            all = fmaxf(all, fabsf(x[row * STRIDE + c]));
        }
    }
    for (size_t i = 0; i < 2 * BACKENDS; i++) {
        const bool by_group = i % 2;
        const size_t n = by_group ? GROUPS : 1;
        const moert_fake_quantize op = {
            .how = HOW(.format = MOERT_FORMAT_NVFP4, .group_scales = by_group),
            .groups = {upload(ends, sizeof ends), GROUPS, ROWS},
            .columns = COLUMNS,
            .x = upload_floats(x, ROWS * STRIDE),
            .x_stride = STRIDE,
            .amax = unset_floats(n)};
        set_variable("MOERT_BACKEND", backends[i / 2]);
        ASSERT_OK(moert_fake_quantize_amax(&op));
        assert_same_bytes(backends[i / 2], "amax", download_floats(op.amax, n),
                          by_group ? want : &all, n * sizeof(float));
    }
    set_variable("MOERT_BACKEND", NULL);
}

TESTS(open_test_device, close_test_device)
