/* The rounding of GEMM operands in float64. */
#include "support/quant/rounding_oracle.h"

#include <float.h>

#include "base/memory.h"
#include "base/rng.h"
#include "support/quant/quantize_oracle.h"

enum { LARGEST_BLOCK = 128, ROTATED = 16 };

/* A block of consecutive rows of a group and consecutive columns. */
typedef struct block {
    size_t group, row, rows, column, columns;
    bool down;
} block;

static moert_format format_of(const rounding_oracle *how) {
    return (moert_format)((how->rounding & MOERT_ROUND_FORMAT) - 1);
}

/* NVFP4: a scale of 4 significant bits with the range of float32. Others: a power of two. */
static double scale_of(moert_format format, float amax) {
    const double largest =
        oracle_value(moert_format_element(format), oracle_code(moert_format_element(format), 1e9));
    const float t = fminf(amax, FLT_MAX) * (1.0f / (float)largest);
    int exponent;
    const double m = frexp((double)t, &exponent);
    if (isnan(amax))
        return NAN;
    if (format == MOERT_FORMAT_NVFP4)
        return t < 0x1p-126f ? 0.0 : ldexp(nearbyint(16.0 * m), exponent - 4);
    return t == 0.0f ? 0x1p-127 : fmax(0x1p-127, ldexp(1.0, m > 0.5 ? exponent : exponent - 1));
}

static double round_element(const rounding_oracle *how, const block *b, double x, size_t row,
                            size_t column) {
    const moert_dtype element = moert_format_element(format_of(how));
    if ((how->rounding & MOERT_ROUND_STOCHASTIC) == 0)
        return oracle_value(element, oracle_code(element, x));
    const size_t vectors = (how->columns + 15) / 16;
    const bool tiles = how->rounding & MOERT_ROUND_TILES;
    const uint32_t stream = how->draws[b->group][0] + how->stream + (b->down && !tiles),
                   drawn = (uint32_t)row + how->draws[b->group][1];
    const moert_random random =
        moert_rng_block(how->seed, stream, (uint64_t)drawn * vectors + column / 16);
    const double u = (random.word[column % 16 / 4] >> column % 4 * 8 & 0xFF) + 0.5;
    const double a = fmin(fabs(x), 6.0), step = a < 2 ? 0.5 : a < 4 ? 1 : 2;
    return copysign(floor((a + u / 256 * step) / step) * step, x);
}

/* Row r of the Hadamard matrix with changed signs, times the block's rows, divided by 4. */
static double rotated(const rounding_oracle *how, const double *x, const block *b, size_t r) {
    static const int negative = 0xD7E8;
    double sum = 0.0;
    for (size_t i = 0; i < ROTATED; i++) {
        const double v = x[(b->row + i) * how->stride + b->column];
        sum += (__builtin_popcount((unsigned)(r & i)) + (negative >> i)) % 2 != 0 ? -v : v;
    }
    return sum / 4.0;
}

static void round_block(const rounding_oracle *how, const double *x, const block *b, double *to) {
    static double values[LARGEST_BLOCK * LARGEST_BLOCK];
    const bool rotates =
        (how->rounding & MOERT_ROUND_HADAMARD) != 0 && b->down && b->rows == ROTATED;
    const size_t count = b->rows * b->columns;
    double amax = 0.0;
    for (size_t i = 0; i < count; i++) {
        const size_t r = i / b->columns;
        values[i] = rotates ? rotated(how, x, b, r)
                            : x[(b->row + r) * how->stride + b->column + i % b->columns];
        amax = isnan(amax) || isnan(values[i]) ? NAN : fmax(amax, fabs(values[i]));
    }
    const double scale = scale_of(format_of(how), (float)amax);
    for (size_t i = 0; i < count; i++) {
        const size_t row = b->row + i / b->columns, column = b->column + i % b->columns;
        const float inverse = (float)(1.0 / scale), scaled = (float)values[i] * inverse;
        const double element =
            isnan(scale) ? NAN : round_element(how, b, (double)scaled, row, column);
        to[row * how->columns + column] = scale == 0.0 ? 0.0 : element * scale;
    }
}

void oracle_round(const rounding_oracle *how, const double *x, bool down, double *to) {
    const size_t n = how->columns, size = moert_format_block(format_of(how));
    const bool tiles = how->rounding & MOERT_ROUND_TILES;
    const size_t height = down || tiles ? size : 1, width = down && !tiles ? 1 : size;
    for (size_t g = 0, start = 0; g < how->groups; start = how->ends[g++])
        for (size_t row = start; row < how->ends[g]; row += height)
            for (size_t c = 0; c < n; c += width)
                round_block(how, x,
                            &(block){g, row, moert_min(height, how->ends[g] - row), c,
                                     moert_min(width, n - c), down},
                            to);
}
