/* Quantizers in plain arithmetic (quantize_oracle.h). */
#include "support/quant/quantize_oracle.h"

#include <float.h>

#include "support/suite.h"

enum { MOST = 32 * 32, ROTATED = 16 };

/* ---- numbers ---- */

/* Returns 2^exponent for any exponent of float32. ldexp() is slow and would take most of a test's
 * time. */
static double power(int exponent) {
    const uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The magnitudes of a dtype. Below 2^least, the step is 2^(least - mantissa). Each binade from
 * 2^least on has 2^mantissa steps. */
typedef struct grid {
    int mantissa, least, sign_bit;
    double largest;
} grid;

static const grid *grid_of(moert_dtype type) {
    static const grid e4m3 = {3, -6, 7, 448.0}, e5m2 = {2, -14, 7, 57344.0}, e2m1 = {1, 0, 3, 6.0};
    return type == MOERT_DTYPE_E4M3 ? &e4m3 : type == MOERT_DTYPE_E5M2 ? &e5m2 : &e2m1;
}

static double step_at(const grid *g, double magnitude, int *binade) {
    *binade = magnitude > 0.0 && ilogb(magnitude) > g->least ? ilogb(magnitude) : g->least;
    return power(*binade - g->mantissa);
}

unsigned oracle_code(moert_dtype type, double x) {
    const grid *g = grid_of(type);
    int binade;
    double step = step_at(g, fabs(x), &binade);
    const double rounded = fmin(nearbyint(fabs(x) / step) * step, g->largest);
    step = step_at(g, rounded, &binade);
    return ((unsigned)(binade - g->least) << g->mantissa) + (unsigned)(rounded / step) +
           ((signbit(x) ? 1u : 0u) << g->sign_bit);
}

double oracle_value(moert_dtype type, unsigned code) {
    const grid *g = grid_of(type);
    const unsigned magnitude = code & ((1u << g->sign_bit) - 1), steps = 1u << g->mantissa;
    const double value = magnitude < steps
                             ? (double)magnitude * power(g->least - g->mantissa)
                             : ldexp((double)(steps + magnitude % steps),
                                     g->least - g->mantissa + (int)(magnitude / steps) - 1);
    return code >> g->sign_bit & 1 ? -value : value;
}

/* ---- blocks ---- */

static float amax_of(const float *x, size_t n) {
    float amax = 0.0f;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* mx_block() and nvfp4_block() quantize a block of n values to code[n] and return its scale. With a
 * norm (not NULL), the largest E5M2 value is 128 and the reciprocal of the smallest scale is
 * infinite, as in cuDNN. */
static unsigned char mx_block(moert_dtype type, const float *x, size_t n, const float *norm,
                              unsigned char *code) {
    const bool ends_early = norm != NULL && type == MOERT_DTYPE_E5M2;
    const float t = amax_of(x, n) * (float)(1.0 / (ends_early ? 128.0 : grid_of(type)->largest)) *
                    (norm != NULL ? *norm : 1.0f);
    int exponent = -127;
    const double m = frexp((double)t, &exponent); /* t = m * 2^exponent with m in [1/2, 1) */
    if (m == 0.5)
        exponent--;
    if (t == 0.0f || exponent < -127)
        exponent = -127;
    const float inverse = exponent == -127 && norm != NULL ? INFINITY : (float)power(-exponent);
    const float factor = fminf(inverse * (norm != NULL ? *norm : 1.0f), FLT_MAX);
    for (size_t i = 0; i < n; i++)
        code[i] = (unsigned char)oracle_code(type, (double)(x[i] * factor));
    return (unsigned char)(exponent + 127);
}

/* Returns 2688 / amax as TransformerEngine computes it. */
static float encode_scale(float amax) {
    const float s = fminf(2688.0f / amax, FLT_MAX);
    return amax == 0.0f || s == 0.0f ? 1.0f : s;
}

static unsigned char nvfp4_block(const float *x, size_t n, float amax, const float *norm,
                                 unsigned char *code) {
    const float encode = encode_scale(amax), sixth = (float)(1.0 / 6.0);
    const float wanted =
        norm != NULL ? amax_of(x, n) * sixth * *norm : amax_of(x, n) * (encode * sixth);
    const unsigned scale = oracle_code(MOERT_DTYPE_E4M3, (double)wanted);
    const float decode = (float)oracle_value(MOERT_DTYPE_E4M3, scale);
    const float factor =
        fminf(norm != NULL ? *norm * (1.0f / decode) : 1.0f / (decode * (1.0f / encode)), FLT_MAX);
    for (size_t i = 0; i < n; i++)
        code[i] =
            scale == 0 ? 0 : (unsigned char)oracle_code(MOERT_DTYPE_E2M1, (double)(x[i] * factor));
    return (unsigned char)scale;
}

/* ---- matrices ---- */

/* A quantized matrix to check, and one of its blocks: rows x columns from (row, column) on, in
 * group g. `line` is the number of blocks of rows before it. */
typedef struct view {
    const char *what;
    const moert_quantizer *how;
    const float *norm; /* NULL: no norm */
    const matrix *m;
    const quantized *z;
    moert_dtype element;
    size_t size; /* elements of a block, in each direction that has blocks */
    const float *amax;
} view;

typedef struct block {
    size_t g, row, rows, column, columns, line;
    float x[MOST];
} block;

/* Computes H (signs * x) / 4 by the definition H[i,j] = (-1)^popcount(i & j). */
static void rotate(float *x) {
    static const double signs[ROTATED] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
    double y[ROTATED] = {0};
    for (unsigned i = 0; i < ROTATED; i++)
        for (unsigned j = 0; j < ROTATED; j++)
            y[i] += (__builtin_popcount(i & j) % 2 == 0 ? 1.0 : -1.0) * signs[j] * (double)x[j];
    for (unsigned i = 0; i < ROTATED; i++)
        x[i] = (float)(y[i] / 4.0);
}

static void load(const view *v, block *b) {
    for (size_t r = 0; r < b->rows; r++)
        memcpy(b->x + r * b->columns, v->m->x + (b->row + r) * v->m->columns + b->column,
               b->columns * sizeof(float));
    if (v->how->hadamard && b->rows == ROTATED)
        rotate(b->x);
}

/* Calls `visit` for one of `every` blocks, chosen at random. */
static void each_block(const view *v, size_t every, void (*visit)(const view *, block *, void *),
                       void *context) {
    const uint32_t whole = (uint32_t)v->m->rows, *ends = v->m->groups > 0 ? v->m->ends : &whole;
    const size_t groups = v->m->groups > 0 ? v->m->groups : 1;
    const size_t high = v->how->axis == MOERT_AXIS_ROW ? 1 : v->size;
    const size_t wide = v->how->axis == MOERT_AXIS_COLUMN ? 1 : v->size;
    block b = {.line = 0};
    size_t number = 0;
    for (b.g = 0; b.g < groups; b.g++)
        for (b.row = b.g > 0 ? ends[b.g - 1] : 0; b.row < ends[b.g]; b.row += high, b.line++)
            for (b.column = 0; b.column < v->m->columns; b.column += wide) {
                if (suite_bits(every, number++) % every != 0)
                    continue;
                b.rows = ends[b.g] - b.row < high ? ends[b.g] - b.row : high;
                b.columns = v->m->columns - b.column < wide ? v->m->columns - b.column : wide;
                load(v, &b);
                visit(v, &b, context);
            }
}

static void take_amax(const view *v, block *b, void *context) {
    float *amax = (float *)context + (v->how->group_scales ? b->g : 0);
    *amax = fmaxf(*amax, amax_of(b->x, b->rows * b->columns));
}

/* Returns the payload bits of element (r, c) of a block. */
static unsigned code_at(const view *v, const block *b, size_t r, size_t c) {
    const bool halves = v->element == MOERT_DTYPE_E2M1;
    const bool column = v->how->axis == MOERT_AXIS_COLUMN;
    size_t line = b->row + r, at = b->column + c;
    const size_t odd = halves ? (column ? r : at) % 2 : 0;
    if (halves && column)
        line = b->line * v->size / 2 + r / 2;
    else if (halves)
        at /= 2;
    if (v->how->transposed) {
        const size_t kept = line;
        line = at;
        at = kept;
    }
    const unsigned byte = v->z->q[line * v->z->shape.q_bytes + at];
    return halves ? byte >> 4 * odd & 0xF : byte;
}

static unsigned scale_at(const view *v, const block *b, size_t r) {
    size_t line = b->row + r, at = b->column / v->size;
    if (v->how->axis == MOERT_AXIS_COLUMN) {
        line = v->how->transposed ? b->column : b->line;
        at = v->how->transposed ? b->line : b->column;
    }
    return v->z->scale[line * v->z->shape.scales + at];
}

/* Returns the dequantized value of an element of the block. */
static float back_of(const view *v, const block *b, unsigned scale, unsigned code) {
    if (v->how->format != MOERT_FORMAT_NVFP4)
        return (float)(oracle_value(v->element, code) * power((int)scale - 127));
    const float element = (float)oracle_value(MOERT_DTYPE_E2M1, code);
    return element * (float)oracle_value(MOERT_DTYPE_E4M3, scale) *
           v->z->global[v->how->group_scales ? b->g : 0];
}

static void check_block(const view *v, block *b, void *context) {
    (void)context;
    unsigned char code[MOST];
    const size_t n = b->rows * b->columns;
    const float amax = v->amax[v->how->group_scales ? b->g : 0];
    const unsigned scale = v->how->format == MOERT_FORMAT_NVFP4
                               ? nvfp4_block(b->x, n, amax, v->norm, code)
                               : mx_block(v->element, b->x, n, v->norm, code);
    for (size_t i = 0; i < n; i++) {
        const size_t r = i / b->columns, c = i % b->columns;
        const unsigned got = code_at(v, b, r, c), got_scale = scale_at(v, b, r);
        const float back = v->z->back[(b->row + r) * v->m->columns + b->column + c];
        const float want = back_of(v, b, scale, code[i]);
        if (got_scale != scale || got != code[i] || memcmp(&back, &want, sizeof want) != 0)
            fail_msg("%s: element (%zu, %zu) = %a has scale %02x, bits %02x and is dequantized to "
                     "%a, not %02x, %02x, %a",
                     v->what, b->row + r, b->column + c, (double)b->x[i], got_scale, got,
                     (double)back, scale, code[i], (double)want);
    }
}

/* Checks that rows past the last group are unwritten. A payload with blocks along columns has no
 * rows past the last group. */
static void check_untouched(const view *v) {
    if (v->m->groups == 0 || v->how->axis == MOERT_AXIS_COLUMN)
        return;
    const size_t used = v->m->ends[v->m->groups - 1];
    for (size_t i = used * v->z->shape.q_bytes; i < v->z->q_bytes; i++)
        assert_int_equal(v->z->q[i], QUANTIZED_UNSET);
    for (size_t i = used * v->z->shape.scales; i < v->z->scale_bytes; i++)
        assert_int_equal(v->z->scale[i], QUANTIZED_UNSET);
}

void oracle_check_quantized(const char *what, const moert_quantizer *how, const float *norm,
                            const matrix *m, const quantized *z, size_t most) {
    const bool nvfp4 = how->format == MOERT_FORMAT_NVFP4;
    const size_t size = nvfp4 ? 16 : 32;
    const moert_dtype element = nvfp4 || how->format == MOERT_FORMAT_MXFP4 ? MOERT_DTYPE_E2M1
                                : how->format == MOERT_FORMAT_MXFP8_E5M2   ? MOERT_DTYPE_E5M2
                                                                           : MOERT_DTYPE_E4M3;
    const size_t blocks =
        m->rows * m->columns / (how->axis == MOERT_AXIS_TILE ? size * size : size);
    float *amax = test_alloc(z->globals * sizeof *amax);
    const view v = {what, how, norm, m, z, element, size, amax};
    if (nvfp4 && norm == NULL) {
        each_block(&v, 1, take_amax, amax);
        assert_same_bits(what, z->amax, amax, z->globals);
        for (size_t g = 0; g < z->globals; g++) {
            const float want = amax[g] == 0.0f ? 1.0f : amax[g] / 2688.0f;
            assert_same_bits(what, &z->global[g], &want, 1);
        }
    }
    each_block(&v, blocks / most + 1, check_block, NULL);
    check_untouched(&v);
}
