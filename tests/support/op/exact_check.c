/* Compares results with float64, byte by byte (exact.h). */
#include <float.h>

#include "base/dtype.h"
#include "support/op/exact.h"
#include "support/quant/quantize_oracle.h"

/* A comparison. `ambiguous` counts bytes near a rounding boundary, for which several values are
 * right. */
typedef struct check {
    const char *title;
    const ops_bytes *got;
    const ops_exact *want;
    size_t bytes, ambiguous;
} check;

static void count(check *c, bool ambiguous) {
    c->bytes++;
    c->ambiguous += ambiguous;
}

/* Checks that the bytes of a buffer from `first` on, past the last row, are unchanged. */
static void check_unset(const check *c, moert_op_buffer which, size_t first, int unset) {
    for (size_t at = first; at < c->got->bytes[which]; at++)
        if (c->got->at[which][at] != unset)
            fail_msg("%s: byte %zu of %s past the last row is %02x", c->title, at,
                     moert_op_buffer_name(which), c->got->at[which][at]);
}

/* ---- plain results ---- */

static double rounded(moert_dtype type, double value) {
    return type == MOERT_DTYPE_F32 ? value : (double)round_to(type, value);
}

/* The expected rows of a plain buffer; bytes past them must be `unset`. */
typedef struct plain_rows {
    const double *values, *slacks;
    size_t width, rows;
    int unset;
} plain_rows;

static void check_plain(check *c, moert_op_buffer which, plain_rows want) {
    const double *values = want.values;
    const size_t width = want.width, rows = want.rows;
    const moert_dtype type = c->got->shape.needs[which].type;
    for (size_t i = 0; i < rows * width; i++) {
        const double got = ops_bytes_get(c->got, which, i), slack = want.slacks[i];
        const double low = rounded(type, values[i] - slack),
                     high = rounded(type, values[i] + slack);
        if (!(got >= low && got <= high))
            fail_msg("%s: %s(%zu, %zu) is %.9g, not %.9g within %.2g", c->title,
                     moert_op_buffer_name(which), i / width, i % width, got, values[i], slack);
    }
    check_unset(c, which, rows * width * moert_dtype_bits(type) / 8, want.unset);
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

/* The scale byte of a block whose largest magnitude is `amax`. */
static unsigned scale_of(const recipe *r, double amax) {
    int exponent;
    const double t = amax * (double)(float)(1.0 / r->largest) * r->norm;
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
        check_unset(c, which, o.ends[o.groups - 1] * (o.columns * bits / 8), OPS_UNSET);
}

/* ---- sums ---- */

static void check_sums(check *c, moert_op_buffer which, const double *sum, size_t n) {
    const moert_dtype type = c->got->shape.needs[which].type;
    for (size_t i = 0; i < n; i++) {
        const double got = ops_bytes_get(c->got, which, i), slack = 1e-5 * sum[n + i];
        if (!(got >= rounded(type, sum[i] - slack) && got <= rounded(type, sum[i] + slack)))
            fail_msg("%s: %s[%zu] is %.9g, not %.9g", c->title, moert_op_buffer_name(which), i, got,
                     sum[i]);
    }
}

static void check_amax(check *c, size_t each) {
    for (size_t i = 0; i < c->got->shape.options.groups * each; i++) {
        const double got = ops_bytes_get(c->got, MOERT_OP_BUFFER_amax, i), want = c->want->amax[i];
        if (!(fabs(got - want) <= 1e-5 * want))
            fail_msg("%s: amax[%zu] is %.9g, not %.9g", c->title, i, got, want);
    }
}

void ops_exact_check(const char *title, const ops_bytes *got, const ops_exact *want) {
    const moert_op *op = &got->shape;
    const moert_op_options *o = &op->options;
    const moert_op_buffer results[] = {ops_result_buffer(o->kind), MOERT_OP_BUFFER_column};
    check c = {title, got, want, 0, 0};
    const size_t rows =
        o->kind == MOERT_OP_GEMM_WGRAD ? want->lines : ops_bytes_ends(got)[o->groups - 1];
    for (size_t i = 0; i < 2; i++)
        if (got->bytes[results[i]] > 0 &&
            ops_find(op, ops_bytes_ends(got), results[i]).as.how.size != 0)
            check_quantized(&c, results[i]);
        else if (got->bytes[results[i]] > 0)
            check_plain(&c, results[i],
                        (plain_rows){want->result, want->slack, want->width, rows, OPS_UNSET});
    if (o->kind == MOERT_OP_GLU && o->save_c)
        check_plain(&c, MOERT_OP_BUFFER_c, (plain_rows){want->c, want->c_slack, o->n, rows, 0xFF});
    if (o->dprob)
        check_sums(&c, MOERT_OP_BUFFER_dprob, want->dprob, want->lines);
    if (o->dbias)
        check_sums(&c, MOERT_OP_BUFFER_dbias, want->dbias, o->groups * want->width);
    if (o->amax)
        check_amax(&c, o->kind == MOERT_OP_DGLU ? 2 : 1);
    if (c.ambiguous > c.bytes / 50)
        fail_msg("%s: %zu of %zu bytes are ambiguous", title, c.ambiguous, c.bytes);
}

ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance) {
    const ops_bytes plain = ops_bytes_fill(data);
    const ops_exact want = ops_exact_of(&plain, tolerance);
    ops_bytes_execute(backend, data);
    ops_exact_check(titled("%s, %s, %s", title, ops_title(&data->shape.options), backend), data,
                    &want);
    return want;
}
