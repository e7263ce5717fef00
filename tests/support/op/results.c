/* Comparisons of an op's quantized results, byte by byte (bytes.h). */
#include "base/memory.h"
#include "support/op/bytes.h"
#include "support/quant/quantized.h"

/* Zeroes bytes that may hold padding, into which ops write zeros: the tile of an element's scale
 * and, for elements of 4 bits, the bytes of the element's pair or block. */
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

/* Checks that payload and scales are those of the reference quantizer without a global scale. */
static void compare_result(const char *title, const ops_bytes *got, const ops_bytes *want,
                           const ops_operand *o, const float *values) {
    const float *norm = got->shape.options.norm ? ops_floats(got, MOERT_OP_BUFFER_norm) : NULL;
    unsigned char *q = test_alloc(got->bytes[o->payload]),
                  *scale = test_alloc(got->bytes[o->scale]);
    memset(q, OPS_UNSET, got->bytes[o->payload]);
    memset(scale, OPS_UNSET, got->bytes[o->scale]);
    if (o->groups > 0 && o->ends[o->groups - 1] > 0) {
        moert_quantizer how = o->as.how;
        how.transposed = false;
        const matrix m = {values, o->ends[o->groups - 1], o->columns, ops_bytes_ends(want),
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
    static const moert_op_buffer others[] = {MOERT_OP_BUFFER_c, MOERT_OP_BUFFER_amax,
                                             MOERT_OP_BUFFER_dprob, MOERT_OP_BUFFER_dbias};
    static const moert_op_buffer results[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_y,
                                              MOERT_OP_BUFFER_weight, MOERT_OP_BUFFER_d,
                                              MOERT_OP_BUFFER_column};
    const float *values = ops_floats(want, ops_result_buffer(got->shape.options.kind));
    for (size_t i = 0; i < MOERT_COUNT(others); i++)
        assert_same_bytes(title, moert_op_buffer_name(others[i]), got->at[others[i]],
                          want->at[others[i]], got->bytes[others[i]]);
    for (size_t i = 0; i < MOERT_COUNT(results); i++) {
        const ops_operand o = ops_find(&got->shape, ops_bytes_ends(got), results[i]);
        if (got->bytes[results[i]] == 0 || !o.result)
            continue;
        if (o.as.how.size != 0)
            compare_result(title, got, want, &o, values);
        else
            assert_same_bytes(title, moert_op_buffer_name(o.payload), got->at[o.payload],
                              want->at[o.payload], got->bytes[o.payload]);
    }
}

void ops_bytes_check(const char *title, const moert_op_options *options, const uint32_t *ends) {
    for (size_t b = 0; b < BACKENDS; b++) {
        const size_t before = owned_count();
        ops_bytes got = ops_bytes_make(options, ends, OPS_EXACT), want = ops_bytes_decode(&got);
        ops_bytes_execute(backends[b], &want);
        ops_bytes_execute(backends[b], &got);
        ops_bytes_compare(titled("%s, %s, %s", title, ops_title(options), backends[b]), &got,
                          &want);
        release_since(before);
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
