// run: check=1,1gpu all=1san
/* Fake quantization: both backends give the bf16 values of quantizing and dequantizing, along rows
 * and down columns, for every format, for groups of any size, gaps between rows, float32 and bf16
 * rows. Values of NVFP4 and FP8_BLOCK, whose scales differ from those of quantizing, come from
 * plain arithmetic, as do rotated and stochastically rounded ones. */
#include "base/dtype.h"
#include "quant/backend.h"
#include "support/quant/quantized.h"
#include "support/quant/rounding_oracle.h"
#include "support/suite.h"

enum { GROUPS = 5, ROWS = 170, UNUSED = 3 }; /* UNUSED rows follow the last group */
static const uint32_t ends[GROUPS] = {1, 1, 34, 163, ROWS - UNUSED};
static const uint32_t draws[GROUPS][2] = {{8, 3}, {16, 0}, {2, 100}, {40, UINT32_MAX - 60}, {0, 5}};
enum { STREAM = 2 };
static const uint64_t SEED = 0x123456789ull;

typedef struct form {
    moert_format format;
    moert_dtype type;
    size_t columns, stride;
    moert_axis axis; /* ROW, or TILE */
    moert_rounding rounding;
    bool hadamard;
} form;

/* Rounds the rows in plain arithmetic to bf16 values. */
static const uint16_t *round_plainly(const form *f, const float *x, bool down) {
    const size_t n = ROWS * f->columns;
    const rounding_oracle how = {
        .rounding = MOERT_ROUND_TO(f->format) |
                    (f->axis == MOERT_AXIS_TILE ? MOERT_ROUND_TILES : 0u) |
                    (f->rounding == MOERT_ROUNDING_STOCHASTIC ? MOERT_ROUND_STOCHASTIC : 0u) |
                    (f->hadamard ? MOERT_ROUND_HADAMARD : 0u),
        .seed = SEED,
        .stream = STREAM,
        .draws = draws,
        .ends = ends,
        .groups = GROUPS,
        .rows = ROWS,
        .columns = f->columns,
        .stride = f->stride};
    double *exact = test_alloc(ROWS * f->stride * sizeof *exact),
           *values = test_alloc(n * sizeof *values);
    uint16_t *to = test_alloc(n * sizeof *to);
    for (size_t i = 0; i < ROWS * f->stride; i++)
        exact[i] = (double)x[i];
    oracle_round(&how, exact, down, values);
    memset(to, QUANTIZED_UNSET, n * sizeof *to);
    for (size_t i = 0; i < ends[GROUPS - 1] * f->columns; i++)
        to[i] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, (float)values[i]);
    return to;
}

/* Quantizes and dequantizes the rows with the reference backend. */
static const void *quantize_back(const form *f, const moert_fake_quantize *op, const float *x,
                                 bool down) {
    float *dense = test_alloc(ROWS * f->columns * sizeof *dense);
    for (size_t i = 0; i < ROWS * f->columns; i++)
        dense[i] = x[i / f->columns * f->stride + i % f->columns];
    moert_quantize q = quantize_op(&op->how, ROWS, f->columns);
    if (down && f->axis != MOERT_AXIS_TILE)
        q.how.axis = MOERT_AXIS_COLUMN;
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

static const void *expected(const form *f, const moert_fake_quantize *op, const float *x,
                            bool down) {
    const bool plain = f->format == MOERT_FORMAT_NVFP4 || f->format == MOERT_FORMAT_FP8_BLOCK;
    return plain ? round_plainly(f, x, down) : quantize_back(f, op, x, down);
}

static moert_fake_quantize op_of(const form *f, const float *x) {
    uint32_t words[3 * GROUPS] = {0};
    memcpy(words + GROUPS, draws, sizeof draws);
    return (moert_fake_quantize){.how = HOW(.format = f->format, .axis = f->axis,
                                            .rounding = f->rounding, .hadamard = f->hadamard,
                                            .seed = SEED),
                                 .groups = {upload(ends, sizeof ends), GROUPS, ROWS},
                                 .draws = upload(words, sizeof words),
                                 .draws_at = GROUPS,
                                 .stream = STREAM,
                                 .columns = f->columns,
                                 .x = upload_as(x, ROWS * f->stride, f->type),
                                 .x_type = f->type,
                                 .x_stride = f->stride};
}

static void check(const form *f, const float *x) {
    const size_t bytes = ROWS * f->columns * sizeof(uint16_t);
    moert_fake_quantize op = op_of(f, x);
    const void *want_along = expected(f, &op, x, false), *want_down = expected(f, &op, x, true);
    for (size_t b = 0; b < BACKENDS; b++)
        for (int results = 1; results < 4; results++) {
            if (f->axis == MOERT_AXIS_TILE && results == 2)
                continue;
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

static const size_t columns[] = {128, 1, 52, 1100};

static form form_of(moert_format format, size_t i) {
    const bool bf16 = (i + format) % 2;
    return (form){.format = format,
                  .type = bf16 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32,
                  .columns = columns[i],
                  .stride = columns[i] + (i % 2 == 0 ? 12 : bf16)};
}

TEST(test_values_are_those_of_quantizing_and_dequantizing) {
    for (moert_format format = 0; format <= MOERT_FORMAT_FP8_BLOCK; format++)
        for (size_t i = 0; i < MOERT_COUNT(columns); i++) {
            const form f = form_of(format, i);
            check(&f, hostile_rows(ROWS, f.stride, f.type, 6.0f));
        }
}

TEST(test_tiles_have_one_scale) {
    static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                           MOERT_FORMAT_FP8_BLOCK};
    for (size_t i = 0; i < MOERT_COUNT(formats); i++) {
        form f = form_of(formats[i], 2 + i % 2);
        f.axis = MOERT_AXIS_TILE;
        check(&f, hostile_rows(ROWS, f.stride, f.type, 6.0f));
    }
}

TEST(test_stochastic_rounding_draws_by_stream_row_and_column) {
    for (size_t i = 0; i < MOERT_COUNT(columns); i++) {
        form f = form_of(MOERT_FORMAT_NVFP4, i);
        f.rounding = MOERT_ROUNDING_STOCHASTIC;
        check(&f, hostile_rows(ROWS, f.stride, f.type, 6.0f));
    }
}

/* Without `draws`, group g draws from stream STREAM + 2 g, by rows counted from its first row. */
TEST(test_groups_without_draws_count_streams_and_rows) {
    form f = form_of(MOERT_FORMAT_NVFP4, 2);
    f.rounding = MOERT_ROUNDING_STOCHASTIC;
    const size_t bytes = ROWS * f.columns * sizeof(uint16_t);
    uint32_t words[3 * GROUPS];
    moert_fake_quantize op = op_of(&f, hostile_rows(ROWS, f.stride, f.type, 6.0f));
    memcpy(words, ends, sizeof ends);
    for (uint32_t g = 0; g < GROUPS; g++) {
        words[GROUPS + 2 * g] = 2 * g;
        words[GROUPS + 2 * g + 1] = g > 0 ? 0u - ends[g - 1] : 0u;
    }
    op.draws = upload(words, sizeof words);
    op.along = unset_bytes(bytes);
    op.down = unset_bytes(bytes);
    ASSERT_OK(moert_fake_quantize_run(&op));
    const void *along = download(op.along, bytes), *down = download(op.down, bytes);
    op.draws = NULL;
    for (size_t b = 0; b < BACKENDS; b++) {
        set_variable("MOERT_BACKEND", backends[b]);
        ASSERT_OK(moert_buffer_clear(op.along, 0, bytes));
        ASSERT_OK(moert_buffer_clear(op.down, 0, bytes));
        ASSERT_OK(moert_fake_quantize_run(&op));
        const size_t used = ends[GROUPS - 1] * f.columns * sizeof(uint16_t);
        assert_same_bytes(backends[b], "along", download(op.along, bytes), along, used);
        assert_same_bytes(backends[b], "down", download(op.down, bytes), down, used);
    }
    set_variable("MOERT_BACKEND", NULL);
}

/* Rows are small integers, so that the sums of a rotation are exact. */
TEST(test_only_whole_blocks_of_rows_are_rotated) {
    for (size_t i = 0; i < 2 * MOERT_COUNT(columns); i++) {
        form f = form_of(MOERT_FORMAT_NVFP4, i / 2);
        f.hadamard = true;
        f.rounding = i % 2 == 0 ? MOERT_ROUNDING_STOCHASTIC : MOERT_ROUNDING_NEAREST;
        float *x = random_floats(ROWS * f.stride, 6.0f, 4);
        for (size_t k = 0; k < ROWS * f.stride; k++)
            x[k] = nearbyintf(x[k]);
        check(&f, x);
    }
}

/* Rounds more than 10^6 values in blocks whose scale is 1. The mean of the errors is within five of
 * its standard deviations of 0. */
TEST(test_stochastic_rounding_is_unbiased) {
    enum { M = 1100, N = 1024 };
    float *x = random_floats(M * N, 6.0f, 9), *values = test_alloc(M * N * sizeof *values);
    static const uint32_t none[2];
    moert_buffer *along = unset_bytes(M * N * sizeof(uint16_t));
    for (size_t i = 0; i < M * N; i++)
        x[i] = i % 16 == 0 ? 6.0f : fmodf(x[i], 6.0f);
    const moert_fake_quantize op = {
        .how = HOW(.format = MOERT_FORMAT_NVFP4, .rounding = MOERT_ROUNDING_STOCHASTIC),
        .groups = {NULL, 1, M},
        .draws = upload(none, sizeof none),
        .columns = N,
        .x = upload_floats(x, M * N),
        .along = along};
    ASSERT_OK(moert_fake_quantize_run(&op));
    download_as(along, values, M * N, MOERT_DTYPE_BF16);
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < M * N; i++) {
        const double error = fabs((double)values[i]) - fabs((double)x[i]);
        sum += error;
        squares += error * error;
    }
    print_message("# mean error: %.2f standard deviations\n", sum / sqrt(squares));
    assert_true(squares > 0.0 && fabs(sum) < 5.0 * sqrt(squares));
}

TESTS(open_test_device, close_test_device)
