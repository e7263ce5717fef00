/* What an op's quantised results must be, byte by byte. */
#include "base/memory.h"
#include "base/number.h"
#include "moert/quantize.h"
#include "support/op/quantized.h"

/* Payload and linear scales, not transposed, by the reference quantiser without a global scale. */
typedef struct coded {
    unsigned char *q, *scale;
} coded;

static coded quantize_result(const ops_operand *o, const ops_bytes *want, const float *values,
                             const float *norm) {
    const float one = 1.0f;
    const uint32_t *ends = (const uint32_t *)(const void *)want->at[MOERT_OP_BUFFER_ends];
    const size_t block = moert_format_block(o->as.how.format), rows = o->ends[o->groups - 1];
    moert_quantize op = {.size = sizeof(moert_quantize),
                         .how = o->as.how,
                         .groups = {.count = o->groups, .rows = rows},
                         .columns = o->columns,
                         .blocks = moert_row_blocks(ends, o->groups, block)};
    op.how.transposed = false;
    const moert_quantized_shape s = moert_quantized_shape_of(&op.how, rows, o->columns, op.blocks);
    const size_t q_bytes = s.q_lines * s.q_bytes;
    const size_t scale_bytes =
        s.scale_lines * s.scales * moert_format_scale_bytes(o->as.how.format);
    unsigned char *unset = test_alloc(moert_max(q_bytes, scale_bytes));
    moert_buffer *group_ends = upload(ends, o->groups * sizeof *ends);
    op.groups.ends = group_ends;
    op.x = upload(values, rows * o->columns * sizeof *values);
    op.q = upload(unset, q_bytes);
    op.scale = upload(unset, scale_bytes);
    op.global = upload(&one, sizeof one);
    op.norm = norm != NULL ? upload(norm, sizeof *norm) : NULL;
    set_variable("MOERT_BACKEND", "reference");
    ASSERT_OK(moert_quantize_run(&op));
    set_variable("MOERT_BACKEND", NULL);
    const coded z = {download(op.q, q_bytes), download(op.scale, scale_bytes)};
    return z;
}

/* Zeros where an element's byte has more in it, or the tile of its scale. */
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

static void expect(const ops_operand *o, const coded *z, unsigned char *q, unsigned char *scale) {
    const bool halves = moert_format_element_bits(o->as.how.format) == 4;
    const size_t scale_bytes = moert_format_scale_bytes(o->as.how.format);
    ops_operand linear = *o;
    linear.as.how.transposed = false;
    linear.as.scales = MOERT_SCALES_LINEAR;
    for (int fill = 0; fill < 2; fill++)
        for (size_t g = 0; g < o->groups; g++)
            for (size_t line = 0; line < o->ends[g] - ops_first(o, g); line++)
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

static void compare(const char *title, const char *name, const unsigned char *got,
                    const unsigned char *want, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("%s: byte %zu of %zu of %s is %02x, not %02x", title, i, bytes, name, got[i],
                     want[i]);
}

static void compare_result(const char *title, const ops_bytes *got, const ops_bytes *want,
                           const ops_operand *o, moert_op_buffer result) {
    const float *norm = got->shape.options.norm ? ops_floats(got, MOERT_OP_BUFFER_norm) : NULL;
    unsigned char *q = test_alloc(got->bytes[o->payload]),
                  *scale = test_alloc(got->bytes[o->scale]);
    memset(q, OPS_UNSET, got->bytes[o->payload]);
    memset(scale, OPS_UNSET, got->bytes[o->scale]);
    if (o->groups > 0 && o->ends[o->groups - 1] > 0) {
        coded z = quantize_result(o, want, ops_floats(want, result), norm);
        expect(o, &z, q, scale);
    }
    compare(title, moert_op_buffer_name(o->payload), got->at[o->payload], q,
            got->bytes[o->payload]);
    compare(title, moert_op_buffer_name(o->scale), got->at[o->scale], scale, got->bytes[o->scale]);
}

void ops_bytes_compare(const char *title, const ops_bytes *got, const ops_bytes *want) {
    static const moert_op_buffer others[] = {MOERT_OP_BUFFER_c, MOERT_OP_BUFFER_amax,
                                             MOERT_OP_BUFFER_dprob, MOERT_OP_BUFFER_dbias};
    static const moert_op_buffer results[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_y,
                                              MOERT_OP_BUFFER_weight, MOERT_OP_BUFFER_d,
                                              MOERT_OP_BUFFER_column};
    const moert_op *op = &got->shape;
    const uint32_t *ends = (const uint32_t *)(const void *)got->at[MOERT_OP_BUFFER_ends];
    const moert_op_buffer floats = moert_op_has_glu(op) ? MOERT_OP_BUFFER_d
                                   : op->x.output       ? MOERT_OP_BUFFER_x
                                                        : MOERT_OP_BUFFER_y;
    for (size_t i = 0; i < MOERT_COUNT(others); i++)
        compare(title, moert_op_buffer_name(others[i]), got->at[others[i]], want->at[others[i]],
                got->bytes[others[i]]);
    for (size_t i = 0; i < MOERT_COUNT(results); i++) {
        const ops_operand o = ops_find(op, ends, results[i]);
        if (got->bytes[results[i]] == 0 || !o.result)
            continue;
        if (o.as.how.size != 0)
            compare_result(title, got, want, &o, floats);
        else
            compare(title, moert_op_buffer_name(o.payload), got->at[o.payload], want->at[o.payload],
                    got->bytes[o.payload]);
    }
}

void ops_bytes_check_by(const char *title, const moert_op_options *options, const uint32_t *ends,
                        const char *plain, const char *backend) {
    ops_bytes got = ops_bytes_make(options, ends), want = ops_bytes_fill(&got);
    ops_bytes_execute(plain, &want);
    ops_bytes_execute(backend, &got);
    ops_bytes_compare(title, &got, &want);
}

void ops_bytes_check(const char *title, const moert_op_options *options, const uint32_t *ends) {
    static const char *const backends[] = {"reference", "portable"};
    for (size_t b = 0; b < 2; b++) {
        char what[160];
        snprintf(what, sizeof what, "%s, %s, %s", moert_op_kind_name(options->kind), title,
                 backends[b]);
        ops_bytes_check_by(what, options, ends, backends[b], backends[b]);
    }
}
