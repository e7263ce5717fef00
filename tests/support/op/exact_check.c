/* Compares results with float64, byte by byte (exact.h). */
#include <float.h>

#include "base/dtype.h"
#include "support/op/exact.h"
#include "support/quant/quantize_oracle.h"

/* A comparison. `ambiguous` counts bytes near a rounding boundary, for which several values are
 * right. */
typedef struct check {
    const char *title;
    const ops_bytes *before, *got;
    const ops_exact *want;
    size_t bytes, ambiguous;
} check;

static void count(check *c, bool ambiguous) {
    c->bytes++;
    c->ambiguous += ambiguous;
}

/* Checks that an element or, without `written`, a byte is that before the execute. */
static void check_unchanged(const check *c, moert_op_buffer which, const bool *written,
                            size_t first) {
    const size_t bytes =
        written != NULL ? moert_dtype_bits(c->got->shape.needs[which].type) / 8 : 1;
    for (size_t i = first; i < c->got->bytes[which] / bytes; i++)
        if ((written == NULL || !written[i]) &&
            memcmp(c->got->at[which] + i * bytes, c->before->at[which] + i * bytes, bytes) != 0)
            fail_msg("%s: element %zu of %s has changed", c->title, i, moert_op_buffer_name(which));
}

/* ---- plain results ---- */

/* Checks an element of a buffer. Sums without an error also have the sign of a zero, except in
 * GLUs. */
static void check_element(const check *c, moert_op_buffer which, size_t i, double want,
                          double slack) {
    const moert_dtype type = c->got->shape.needs[which].type;
    const double got = ops_bytes_get(c->got, which, i);
    const bool floats = type == MOERT_DTYPE_F32 && slack > 0.0;
    const double low = floats ? want - slack : (double)round_to(type, want - slack);
    const double high = floats ? want + slack : (double)round_to(type, want + slack);
    const bool sign =
        slack > 0.0 || moert_op_has_glu(&c->got->shape) || !signbit(got) == !signbit(low);
    if (isnan(want) ? !isnan(got) : !(got >= low && got <= high && sign))
        fail_msg("%s: %s[%zu] is %.9g, not %.9g within %.2g", c->title, moert_op_buffer_name(which),
                 i, got, want, slack);
}

/* Checks a plain matrix whose rows of the groups have these values, and that the op writes no other
 * element. */
static void check_plain(const check *c, moert_op_buffer which, const double *values,
                        const double *slacks, size_t width) {
    const moert_op *op = &c->got->shape;
    const moert_op_rows plain = {.divisor = 1};
    const moert_op_rows *rows = which == MOERT_OP_BUFFER_x   ? &op->x
                                : which == MOERT_OP_BUFFER_y ? &op->y
                                                             : &plain;
    const bool wgrad = op->options.kind == MOERT_OP_GEMM_WGRAD;
    const size_t stride = wgrad ? width : op->needs[which].stride;
    const size_t lines = wgrad ? c->want->lines : ops_bytes_ends(c->got)[op->options.groups - 1];
    bool *written = test_alloc(ops_bytes_count(c->got, which) * sizeof *written);
    for (size_t r = 0; r < lines; r++) {
        const size_t row = wgrad ? r : ops_row(c->got, rows, r);
        for (size_t j = 0; row != SIZE_MAX && j < width; j++) {
            check_element(c, which, row * stride + j, values[r * width + j], slacks[r * width + j]);
            written[row * stride + j] = true;
        }
    }
    check_unchanged(c, which, written, 0);
}

/* ---- quantized results ---- */

/* How a result is quantized. */
typedef struct recipe {
    moert_dtype element;
    unsigned sign; /* position of the sign bit */
    double largest, norm;
    bool fine;   /* scales are E4M3, not powers of two */
    bool normed; /* the op has a norm, so cuDNN's rules apply, even if the norm is 1 */
} recipe;

static recipe recipe_of(const check *c, const moert_quantizer *how) {
    const bool norm = c->got->shape.options.norm;
    recipe r = {.element = moert_format_element(how->format), .normed = norm};
    r.sign = r.element == MOERT_DTYPE_E2M1 ? 3 : 7;
    r.largest = r.element == MOERT_DTYPE_E4M3   ? 448.0
                : r.element == MOERT_DTYPE_E2M1 ? 6.0
                : norm                          ? 128.0 /* cuDNN's limit */
                                                : 57344.0;
    r.norm = norm ? (double)ops_floats(c->got, MOERT_OP_BUFFER_norm)[0] : 1.0;
    r.fine = how->format == MOERT_FORMAT_NVFP4;
    return r;
}

/* The scale byte of a block whose largest magnitude is `amax`. Both products are rounded to
 * float32, which can make them a power of two. */
static unsigned scale_of(const recipe *r, double amax) {
    int exponent;
    const double inverse = (double)(float)(1.0 / r->largest);
    const double t = (double)(float)((double)(float)(amax * inverse) * r->norm);
    if (r->fine)
        return oracle_code(MOERT_DTYPE_E4M3, t);
    if (!(t > 0x1p-127))
        return 0;
    const double m = frexp(t, &exponent); /* the scale is rounded up to a power of two */
    return (unsigned)(exponent - (m == 0.5) + 127);
}

/* Maps the bits of an element to an integer that has the order of the values. */
static int order(const recipe *r, unsigned code) {
    const int magnitude = (int)(code & ((1u << r->sign) - 1));
    return code >> r->sign & 1 ? -magnitude : magnitude;
}

/* The value that elements are multiplied by before they are rounded. */
static double inverse_of(const recipe *r, unsigned scale) {
    if (r->fine)
        return scale == 0 ? 0.0
                          : fmin(r->norm / oracle_value(MOERT_DTYPE_E4M3, scale), (double)FLT_MAX);
    if (scale == 0 && r->normed)
        return (double)FLT_MAX; /* in cuDNN, 1 / 2^-127 is infinite and becomes FLT_MAX */
    return r->norm * ldexp(1.0, 127 - (int)scale);
}

/* A block of lines x columns that begins at element (line, j) of group g. */
typedef struct block {
    size_t g, line, j, lines, columns;
} block;

static void check_block(check *c, const ops_operand *o, const recipe *r, const block *b) {
    const size_t width = c->want->width, row = ops_first(o, b->g) + b->line;
    const ops_place first = ops_locate(o, b->g, b->line, b->j);
    const unsigned scale = c->got->at[o->scale][first.scale];
    double low = 0.0, high = 0.0;
    for (size_t i = 0; i < b->lines * b->columns; i++) {
        const size_t at = (row + i / b->columns) * width + b->j + i % b->columns;
        const double v = fabs(c->want->result[at]);
        low = fmax(low, v - c->want->slack[at]);
        high = fmax(high, v + c->want->slack[at]);
    }
    const unsigned least = scale_of(r, low), most = scale_of(r, high);
    count(c, least != most);
    if (scale < least || scale > most)
        fail_msg("%s: the scale of %s(%zu, %zu) is %02x, not %02x to %02x", c->title,
                 moert_op_buffer_name(o->payload), row, b->j, scale, least, most);
    const double inverse = inverse_of(r, scale);
    for (size_t i = 0; i < b->lines * b->columns; i++) {
        const size_t line = b->line + i / b->columns, j = b->j + i % b->columns;
        const size_t at = (ops_first(o, b->g) + line) * width + j;
        const double v = c->want->result[at], slack = c->want->slack[at];
        const ops_place p = ops_locate(o, b->g, line, j);
        const unsigned byte = c->got->at[o->payload][p.byte];
        const unsigned code = r->element == MOERT_DTYPE_E2M1 ? byte >> p.shift & 0xF : byte;
        const int from = order(r, oracle_code(r->element, (v - slack) * inverse));
        const int to = order(r, oracle_code(r->element, (v + slack) * inverse));
        count(c, from != to);
        if (order(r, code) < from || order(r, code) > to)
            fail_msg("%s: %s(%zu, %zu) = %.9g with scale %02x is %02x, not of order %d to %d",
                     c->title, moert_op_buffer_name(o->payload), at / width, j, v, scale, code,
                     from, to);
    }
}

static void check_quantized(check *c, moert_op_buffer which) {
    const ops_operand o = ops_find(&c->got->shape, ops_bytes_ends(c->got), which);
    const recipe r = recipe_of(c, &o.as.how);
    const bool column = o.as.how.axis == MOERT_AXIS_COLUMN;
    const size_t size = moert_format_block(o.as.how.format);
    const size_t high = column ? size : 1, wide = column ? 1 : size;
    for (size_t g = 0; g < o.groups; g++) {
        const size_t lines = o.ends[g] - ops_first(&o, g);
        for (size_t line = 0; line < lines; line += high)
            for (size_t j = 0; j < o.columns; j += wide) {
                const block b = {g, line, j, lines - line < high ? lines - line : high,
                                 o.columns - j < wide ? o.columns - j : wide};
                check_block(c, &o, &r, &b);
            }
    }
    const size_t bits = moert_format_element_bits(o.as.how.format);
    if (!column)
        check_unchanged(c, which, NULL, o.ends[o.groups - 1] * (o.columns * bits / 8));
}

/* ---- sums ---- */

/* dprob and dbias are added to. */
static void check_sums(const check *c, moert_op_buffer which, const double *sum, size_t n) {
    for (size_t i = 0; i < ops_bytes_count(c->got, which); i++) {
        const double old = ops_bytes_get(c->before, which, i);
        if (sum[n + i] > 0.0)
            check_element(c, which, i, old + sum[i], OPS_GLU_ERROR * (fabs(old) + sum[n + i]));
        else
            assert_true(ops_bytes_get(c->got, which, i) == old);
    }
}

/* amax is raised. */
static void check_amax(const check *c) {
    const double relative = c->want->tolerance > 0.0           ? 1e-5
                            : moert_op_has_glu(&c->got->shape) ? OPS_GLU_ERROR
                                                               : 0.0;
    for (size_t i = 0; i < ops_bytes_count(c->got, MOERT_OP_BUFFER_amax); i++) {
        const double want =
            fmax(c->want->amax[i], ops_bytes_get(c->before, MOERT_OP_BUFFER_amax, i));
        check_element(c, MOERT_OP_BUFFER_amax, i, want, isinf(want) ? 0.0 : relative * want);
    }
}

/* The quantized result whose payload or scales a buffer holds, or NULL. */
static const moert_op_quantized *quantized_of(const moert_op *op, moert_op_buffer which) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (op->quantized[i].result &&
            (op->quantized[i].payload == which || op->quantized[i].scale == which))
            return &op->quantized[i];
    return NULL;
}

static void check_all(const char *title, const ops_bytes *before, const ops_bytes *got,
                      const ops_exact *want) {
    const moert_op_options *o = &got->shape.options;
    const moert_op_buffer result = ops_result_buffer(o->kind);
    check c = {title, before, got, want, 0, 0};
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_op_quantized *q = quantized_of(&got->shape, i);
        if (got->bytes[i] == 0 || (q != NULL && i == q->scale))
            continue; /* check_quantized() checks scales with their payload */
        if (q != NULL)
            check_quantized(&c, i);
        else if (i == result)
            check_plain(&c, i, want->result, want->slack, want->width);
        else if (i == MOERT_OP_BUFFER_c && o->kind == MOERT_OP_GLU)
            check_plain(&c, i, want->c, want->c_slack, o->n);
        else if (i == MOERT_OP_BUFFER_dprob)
            check_sums(&c, i, want->dprob, want->lines);
        else if (i == MOERT_OP_BUFFER_dbias)
            check_sums(&c, i, want->dbias, o->groups * want->width);
        else if (i == MOERT_OP_BUFFER_amax)
            check_amax(&c);
        else
            check_unchanged(&c, i, NULL, 0);
    }
    if (c.ambiguous > c.bytes / 50)
        fail_msg("%s: %zu of %zu bytes are ambiguous", title, c.ambiguous, c.bytes);
}

ops_exact ops_exact_run_op(const char *title, moert_op *op, ops_bytes *data, double tolerance) {
    const ops_bytes before = ops_bytes_copy(data), plain = ops_bytes_decode(data);
    const ops_exact want = ops_exact_of(&plain, tolerance);
    ops_bytes_execute_op(op, data);
    check_all(
        titled("%s, %s, %s", title, ops_title(&data->shape.options), moert_op_backend_name(op)),
        &before, data, &want);
    return want;
}

ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance) {
    moert_op_options options = data->shape.options;
    options.backend = backend;
    moert_op *op = ops_open(&options);
    assert_string_equal(moert_op_backend_name(op), backend);
    ASSERT_OK(moert_op_compile(op));
    return ops_exact_run_op(title, op, data, tolerance);
}

void ops_check_on(const char *backend, const char *title, const moert_op_options *options,
                  const uint32_t *ends, double tolerance) {
    const size_t before = owned_count();
    ops_bytes data = ops_bytes_make(options, ends, tolerance > 0.0 ? OPS_SPREAD : OPS_EXACT);
    ops_exact_run(title, backend, &data, tolerance);
    release_since(before);
}

void ops_check(const char *title, const moert_op_options *options, const uint32_t *ends,
               double tolerance) {
    for (size_t b = 0; b < BACKENDS; b++)
        ops_check_on(backends[b], title, options, ends, tolerance);
}
