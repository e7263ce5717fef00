/* Compares results with float64, with those of another op, and with the quantizer (exact.h,
 * bytes.h). */
#include "support/op/exact.h"
#include "support/quant/quantized.h"

/* Returns the quantized result to which a buffer belongs as payload or scales, or NULL. */
static const moert_op_quantized *quantized_of(const moert_op *op, moert_op_buffer which) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (op->quantized[i].result &&
            (op->quantized[i].payload == which || op->quantized[i].scale == which))
            return &op->quantized[i];
    return NULL;
}

/* Whether the op writes the buffer, or adds to it. */
static bool is_written(const moert_op *op, moert_op_buffer which) {
    const moert_op_kind kind = op->options.kind;
    const moert_op_field *field = moert_op_field_of(which);
    return field != NULL ? field->use != MOERT_OP_READ
                         : which == ops_result_buffer(kind) || quantized_of(op, which) != NULL ||
                               (which == MOERT_OP_BUFFER_c && kind == MOERT_OP_GLU);
}

/* ---- with float64 ---- */

/* A comparison of an executed plain op. */
typedef struct check {
    const char *title;
    const ops_bytes *before, *got;
    const ops_exact *want;
} check;

/* Checks an element of a buffer. If no error is allowed, zeros must also have the right sign,
 * except in GLUs. */
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

/* Checks that the rows of the groups in a plain matrix have these values, and that the op has
 * written no other element. */
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
    const size_t count = ops_bytes_count(c->got, which),
                 bytes = count > 0 ? c->got->bytes[which] / count : 0;
    bool *written = test_alloc(count * sizeof *written);
    for (size_t r = 0; r < lines; r++) {
        const size_t row = wgrad ? r : ops_row(c->got, rows, r);
        for (size_t j = 0; row != SIZE_MAX && j < width; j++) {
            check_element(c, which, row * stride + j, values[r * width + j], slacks[r * width + j]);
            written[row * stride + j] = true;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (!written[i] &&
            memcmp(c->got->at[which] + i * bytes, c->before->at[which] + i * bytes, bytes) != 0)
            fail_msg("%s: element %zu of %s has changed", c->title, i, moert_op_buffer_name(which));
}

/* Checks dprob or dbias, to whose old values the op adds. */
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

/* Checks that the op has changed no byte of its inputs. */
static void check_inputs(const char *title, const ops_bytes *before, const ops_bytes *got) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (!is_written(&got->shape, i))
            assert_same_bytes(title, moert_op_buffer_name(i), got->at[i], before->at[i],
                              got->bytes[i]);
}

void ops_check_results(const char *title, const ops_bytes *before, const ops_bytes *got,
                       const ops_exact *want) {
    const moert_op_options *o = &got->shape.options;
    const check c = {title, before, got, want};
    check_plain(&c, ops_result_buffer(o->kind), want->result, want->slack, want->width);
    if (o->kind == MOERT_OP_GLU && o->save_c)
        check_plain(&c, MOERT_OP_BUFFER_c, want->c, want->c_slack, o->n);
    if (o->dprob)
        check_sums(&c, MOERT_OP_BUFFER_dprob, want->dprob, want->lines);
    if (o->dbias)
        check_sums(&c, MOERT_OP_BUFFER_dbias, want->dbias, o->groups * want->width);
    if (o->amax)
        check_amax(&c);
    check_inputs(title, before, got);
}

/* ---- with another op ---- */

/* Zeroes bytes in which ops write zeros as padding: the tile of an element's scale and, for 4-bit
 * elements, the bytes of the element's pair or block. */
static void clear(const ops_operand *o, unsigned char *q, unsigned char *scale, size_t g,
                  size_t line, size_t j) {
    const size_t pairs = moert_format_block(o->as.how.format) / 2;
    const ops_place p = ops_locate(o, g, line, j);
    if (o->as.scales != MOERT_SCALES_LINEAR)
        memset(scale + p.scale / 512 * 512, 0, 512);
    if (moert_format_element_bits(o->as.how.format) == 8)
        return;
    if (o->as.how.axis != MOERT_AXIS_COLUMN)
        q[p.byte] = 0;
    for (size_t i = 0; o->as.how.axis == MOERT_AXIS_COLUMN && i < pairs; i++)
        q[ops_locate(o, g, line / (2 * pairs) * 2 * pairs + 2 * i, j).byte] = 0;
}

static void expect(const ops_operand *o, const quantized *z, unsigned char *q,
                   unsigned char *scale) {
    const bool halves = moert_format_element_bits(o->as.how.format) == 4;
    const size_t scale_bytes = moert_format_scale_bytes(o->as.how.format);
    ops_operand linear = *o;
    linear.as.how.transposed = false;
    linear.as.scales = MOERT_SCALES_LINEAR;
    for (int fill = 0; fill < 2; fill++)
        for (size_t g = 0; g < o->groups; g++)
            for (size_t line = 0; line < ops_lines(o, g); line++)
                for (size_t j = 0; j < o->columns; j++) {
                    const ops_place to = ops_locate(o, g, line, j),
                                    from = ops_locate(&linear, g, line, j);
                    if (fill == 0) {
                        clear(o, q, scale, g, line, j);
                        continue;
                    }
                    const unsigned code = z->q[from.byte] >> from.shift & (halves ? 0xF : 0xFF);
                    q[to.byte] = (unsigned char)(halves ? q[to.byte] | code << to.shift : code);
                    memcpy(scale + to.scale * scale_bytes, z->scale + from.scale * scale_bytes,
                           scale_bytes);
                }
}

/* Checks that payload and scales have the bytes of the reference quantizer without a global
 * scale. */
static void compare_result(const char *title, const ops_bytes *got, const ops_bytes *want,
                           const ops_operand *o, const float *values) {
    const float *norm = got->shape.options.norm ? ops_floats(got, MOERT_OP_BUFFER_norm) : NULL;
    unsigned char *q = test_alloc(got->bytes[o->payload]),
                  *scale = test_alloc(got->bytes[o->scale]);
    memset(q, OPS_UNSET, got->bytes[o->payload]);
    memset(scale, OPS_UNSET, got->bytes[o->scale]);
    if (o->groups > 0 && ops_end(o, o->groups - 1) > 0) {
        moert_quantizer how = o->as.how;
        how.transposed = false;
        const matrix m = {values, ops_end(o, o->groups - 1), o->columns, ops_bytes_ends(want),
                          o->groups};
        const quantized z = quantize_by(norm, "reference", &how, &m);
        set_variable("MOERT_BACKEND", NULL);
        expect(o, &z, q, scale);
    }
    assert_same_bytes(title, moert_op_buffer_name(o->payload), got->at[o->payload], q,
                      got->bytes[o->payload]);
    assert_same_bytes(title, moert_op_buffer_name(o->scale), got->at[o->scale], scale,
                      got->bytes[o->scale]);
}

void ops_bytes_compare(const char *title, const ops_bytes *got, const ops_bytes *want) {
    const float *values = ops_floats(want, ops_result_buffer(got->shape.options.kind));
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_op_quantized *q = quantized_of(&got->shape, i);
        const ops_operand o = q == NULL ? (ops_operand){.groups = 0}
                                        : ops_find(&got->shape, ops_bytes_ends(got), q->payload);
        if (q != NULL && i == q->payload)
            compare_result(title, got, want, &o, values);
        else if (q == NULL && is_written(&got->shape, i))
            assert_same_bytes(title, moert_op_buffer_name(i), got->at[i], want->at[i],
                              got->bytes[i]);
    }
}

void ops_assert_same(const char *title, const ops_bytes *got, const ops_bytes *want, bool weights) {
    const bool all = weights || want->shape.options.kind == MOERT_OP_GEMM_WGRAD;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        if (!all && (i == MOERT_OP_BUFFER_weight || i == MOERT_OP_BUFFER_weight_scale))
            continue;
        assert_int_equal(got->bytes[i], want->bytes[i]);
        assert_same_bytes(title, moert_op_buffer_name(i), got->at[i], want->at[i], got->bytes[i]);
    }
}

/* ---- runs ---- */

static bool has_quantized_result(const moert_op *op) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (op->quantized[i].result)
            return true;
    return false;
}

ops_exact ops_exact_run_op(const char *what, moert_op *op, ops_bytes *data, double tolerance) {
    const char *name = moert_op_backend_name(op),
               *title = titled("%s, %s, %s", what, ops_title(&data->shape.options), name);
    const ops_bytes before = ops_bytes_copy(data), plain = ops_bytes_decode(data);
    const ops_exact want = ops_exact_of(&plain, tolerance);
    ops_bytes_execute_op(op, data);
    if (has_quantized_result(&data->shape)) {
        ops_bytes values = ops_bytes_copy(&plain);
        ops_bytes_execute(strcmp(name, "nvidia") == 0 ? "portable" : name, &values);
        ops_check_results(title, &plain, &values, &want);
        ops_bytes_compare(title, data, &values);
        check_inputs(title, &before, data);
    } else {
        ops_check_results(title, &before, data, &want);
    }
    return want;
}

ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance) {
    return ops_exact_run_op(title, ops_open_on(backend, data->shape.options), data, tolerance);
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
