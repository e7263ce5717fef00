/* Quantizers in plain arithmetic (quantize_oracle.h). */
#include "support/quant/quantize_oracle.h"

#include <float.h>

#include "support/suite.h"

enum { MOST = 128 * 128, ROTATED = 16 };

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
    const double magnitude = fmin(fabs(x), 2 * g->largest);
    int binade;
    double step = step_at(g, magnitude, &binade);
    const double rounded = fmin(nearbyint(magnitude / step) * step, g->largest);
    step = step_at(g, rounded, &binade);
    return ((unsigned)(binade - g->least) << g->mantissa) + (unsigned)(rounded / step) +
           ((signbit(x) ? 1u : 0u) << g->sign_bit);
}

/* Rounds a magnitude to a multiple of 0.5, and then to an E2M1 value, mostly down. */
static double bridge(double x) {
    static const double of_half_steps[] = {0, 0.5, 1, 1.5, 2, 2, 3, 3, 4, 4, 4, 6, 6};
    return copysign(of_half_steps[(int)nearbyint(fmin(2 * fabs(x), 12))], x);
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

/* How a block becomes payload: x * factor / first / second, rounded, and 0 if `zero`. */
typedef struct block_scale {
    uint32_t bits; /* the bits of the stored scale */
    bool zero;
    float factor, first, second;
} block_scale;
static const block_scale unscaled = {0, false, 1.0f, 1.0f, 1.0f};

/* Computes the scale of an MX block. With a norm, the largest E5M2 value is 128 and the reciprocal
 * of the smallest scale is infinite, as in cuDNN. */
static block_scale mx_scale(const moert_quantizer *how, float amax, const float *norm) {
    const moert_dtype type = moert_format_element(how->format);
    const float largest =
        norm != NULL && type == MOERT_DTYPE_E5M2 ? 128.0f : (float)grid_of(type)->largest;
    const bool floors = how->scale_rounding == MOERT_SCALE_FLOOR && norm == NULL;
    const float factor = norm != NULL ? *norm : 1.0f;
    const float t = floors ? amax : fminf(amax * (1.0f / largest) * factor, FLT_MAX);
    int exponent;
    const double m = frexp((double)t, &exponent); /* t = m * 2^exponent with m in [1/2, 1) */
    if (floors)
        exponent -= 1 + ilogb((double)largest);
    else if (m == 0.5)
        exponent--;
    exponent = t == 0.0f || exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
    const float inverse = exponent == -127 && norm != NULL ? INFINITY : (float)power(-exponent);
    block_scale s = unscaled;
    s.bits = (uint32_t)(exponent + 127);
    s.factor = fminf(inverse * factor, FLT_MAX);
    return s;
}

/* Computes the scale of a block as in DeepSeek-V3's files. */
static block_scale fp8_scale(float amax) {
    block_scale s = unscaled;
    s.first = amax / 448.0f;
    s.zero = s.first == 0.0f;
    memcpy(&s.bits, &s.first, sizeof s.bits);
    return s;
}

/* The global scale of a tensor or group, by the formulas of each library. */
static float global_scale(moert_nvfp4_rule rule, float amax) {
    if (rule == MOERT_NVFP4_TE && amax == 0.0f)
        return 1.0f;
    return (rule == MOERT_NVFP4_BRIDGE ? fmaxf(amax, 1e-8f) : amax) / 2688.0f;
}

static block_scale nvfp4_scale(moert_nvfp4_rule rule, float amax, float tensor_amax,
                               const float *norm) {
    const float sixth = (float)(1.0 / 6.0), global = global_scale(rule, tensor_amax);
    const float encode = tensor_amax == 0.0f ? 1.0f : fminf(2688.0f / tensor_amax, FLT_MAX);
    const bool torchao = rule == MOERT_NVFP4_TORCHAO && norm == NULL,
               divides = rule == MOERT_NVFP4_BRIDGE && norm == NULL;
    const float wanted = norm != NULL ? amax * sixth * *norm
                         : divides    ? amax / global / 6.0f
                         : torchao    ? fmaxf(global > 0.0f ? amax / 6.0f / global : 0.0f, 0x1p-6f)
                                      : amax * (encode * sixth);
    block_scale s = unscaled;
    s.bits = oracle_code(MOERT_DTYPE_E4M3, (double)wanted);
    const float decode = (float)oracle_value(MOERT_DTYPE_E4M3, s.bits);
    if (divides) {
        s.zero = amax / global < 6 * 0x1p-9f;
        s.bits = s.zero ? 0 : s.bits;
        s.first = global;
        s.second = decode;
        return s;
    }
    s.zero = torchao ? global == 0.0f : s.bits == 0;
    s.factor = fminf(norm != NULL ? *norm * (1.0f / decode)
                     : torchao    ? 1.0f / global / decode
                                  : 1.0f / (decode * (1.0f / encode)),
                     FLT_MAX);
    return s;
}

/* ---- matrices ---- */

/* A quantized matrix to check, and one of its blocks: rows x columns from (row, column) on, in
 * group g. `line` is the number of rows of blocks before this block. */
typedef struct view {
    const char *what;
    const moert_quantizer *how;
    const float *norm; /* NULL: no norm */
    const matrix *m;
    const quantized *z;
    moert_dtype element;
    size_t size; /* elements of a block, in each direction that has blocks */
    float *amax; /* amax of the tensor, or of each group */
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
static void each_block(const view *v, size_t every, void (*visit)(const view *, const block *)) {
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
                visit(v, &b);
            }
}

static void take_amax(const view *v, const block *b) {
    float *amax = v->amax + (v->how->group_scales ? b->g : 0);
    *amax = fmaxf(*amax, amax_of(b->x, b->rows * b->columns));
}

/* Returns the payload bits of element (r, c) of a block. Of the two 4-bit elements of a byte, the
 * first one is in the low half, as in gpt-oss's files. */
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

/* Returns the bits of the scale of row r of a block. */
static uint32_t scale_at(const view *v, const block *b, size_t r) {
    const size_t bytes = moert_format_scale_bytes(v->how->format);
    size_t line = b->row + r, at = b->column / v->size;
    if (v->how->axis == MOERT_AXIS_COLUMN) {
        line = v->how->transposed ? b->column : b->line;
        at = v->how->transposed ? b->line : b->column;
    } else if (v->how->axis == MOERT_AXIS_TILE && v->how->format == MOERT_FORMAT_FP8_BLOCK) {
        line = b->line;
    }
    uint32_t bits = 0;
    memcpy(&bits, v->z->scale + (line * v->z->shape.scales + at) * bytes, bytes);
    return bits;
}

/* Returns the dequantized value of an element of the block. */
static float back_of(const view *v, const block *b, uint32_t scale, unsigned code) {
    const double element = oracle_value(v->element, code);
    float factor;
    switch (v->how->format) {
    case MOERT_FORMAT_FP8_BLOCK:
        memcpy(&factor, &scale, sizeof factor);
        return (float)element * factor;
    case MOERT_FORMAT_NVFP4:
        return (float)element * (float)oracle_value(MOERT_DTYPE_E4M3, scale) *
               v->z->global[v->how->group_scales ? b->g : 0];
    default:
        return (float)(element * power((int)scale - 127));
    }
}

static void check_block(const view *v, const block *b) {
    const float tensor_amax = v->amax[v->how->group_scales ? b->g : 0];
    const float amax = amax_of(b->x, b->rows * b->columns);
    const block_scale s = v->how->format == MOERT_FORMAT_FP8_BLOCK ? fp8_scale(amax)
                          : v->how->format == MOERT_FORMAT_NVFP4
                              ? nvfp4_scale(v->how->nvfp4_rule, amax, tensor_amax, v->norm)
                              : mx_scale(v->how, amax, v->norm);
    const bool bridges =
        v->how->rounding == MOERT_ROUNDING_BRIDGE ||
        (v->how->rounding == MOERT_ROUNDING_AUTO && v->norm == NULL &&
         v->how->format == MOERT_FORMAT_NVFP4 && v->how->nvfp4_rule == MOERT_NVFP4_BRIDGE);
    for (size_t i = 0; i < b->rows * b->columns; i++) {
        const size_t r = i / b->columns, c = i % b->columns;
        const double x = (double)(b->x[i] * s.factor / s.first / s.second);
        const unsigned code = s.zero ? 0 : oracle_code(v->element, bridges ? bridge(x) : x);
        const uint32_t got = code_at(v, b, r, c), got_scale = scale_at(v, b, r);
        const float back = v->z->back[(b->row + r) * v->m->columns + b->column + c];
        const float want = back_of(v, b, s.bits, code);
        if (got_scale != s.bits || got != code || memcmp(&back, &want, sizeof want) != 0)
            fail_msg("%s: element (%zu, %zu) = %a has scale %02x, bits %02x and is dequantized to "
                     "%a, not %02x, %02x, %a",
                     v->what, b->row + r, b->column + c, (double)b->x[i], got_scale, got,
                     (double)back, s.bits, code, (double)want);
    }
}

/* Checks that the quantizer has not written rows past the last group. A payload with blocks along
 * columns has no rows past the last group. */
static void check_untouched(const view *v) {
    if (v->m->groups == 0 || v->how->axis == MOERT_AXIS_COLUMN)
        return;
    const size_t used = v->m->ends[v->m->groups - 1];
    for (size_t i = used * v->z->shape.q_bytes; i < v->z->q_bytes; i++)
        assert_int_equal(v->z->q[i], QUANTIZED_UNSET);
    for (size_t i = used * v->z->shape.scales * moert_format_scale_bytes(v->how->format);
         i < v->z->scale_bytes; i++)
        assert_int_equal(v->z->scale[i], QUANTIZED_UNSET);
}

void oracle_check_quantized(const char *what, const moert_quantizer *how, const float *norm,
                            const matrix *m, const quantized *z, size_t most) {
    const size_t size = moert_format_block(how->format);
    const size_t blocks =
        m->rows * m->columns / (how->axis == MOERT_AXIS_TILE ? size * size : size);
    const view v = {.what = what,
                    .how = how,
                    .norm = norm,
                    .m = m,
                    .z = z,
                    .element = moert_format_element(how->format),
                    .size = size,
                    .amax = test_alloc(z->globals * sizeof(float))};
    if (how->format == MOERT_FORMAT_NVFP4 && norm == NULL) {
        each_block(&v, 1, take_amax);
        assert_same_bits(what, z->amax, v.amax, z->globals);
        for (size_t g = 0; g < z->globals; g++) {
            const float want = global_scale(how->nvfp4_rule, v.amax[g]);
            assert_same_bits(what, &z->global[g], &want, 1);
        }
    }
    each_block(&v, blocks / most + 1, check_block);
    check_untouched(&v);
}
