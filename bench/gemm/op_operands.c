/* Makes the operands of bench_op from patterns, and checks results against float64. */
#include "bench/gemm/op_operands.h"

#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "moert/quantize.h"
#include "tests/support/op/place.h"

/* ---- data ---- */

size_t op_operand_bytes(const op_form *form) {
    return moert_ceil_div(moert_dtype_bits(form->operand), 8);
}

static size_t scale_bytes_of(const op_form *form) {
    return form->quantized ? 1 : sizeof(float);
}

/* Returns scale i of the pattern; *bits gets the stored bits of the scale. */
static float make_scale(const op_operands *o, size_t i, uint32_t *bits) {
    const bool nvfp4 = o->form->quantized && o->form->format == MOERT_FORMAT_NVFP4;
    const double uniform = moert_rng_uniform(o->seed, 4, i);
    const float scale = o->form->blocks || nvfp4 ? (float)(0.5 + uniform) : 1.0f;
    *bits = nvfp4                ? moert_dtype_encode(MOERT_DTYPE_E4M3, scale)
            : o->form->quantized ? 125 + (uint32_t)(4.0 * uniform)
                                 : moert_float_bits(scale);
    return nvfp4                ? moert_dtype_decode(MOERT_DTYPE_E4M3, *bits)
           : o->form->quantized ? moert_e8m0_decode((uint8_t)*bits)
                                : scale;
}

moert_status op_operands_make(op_operands *o) {
    const moert_dtype type = o->form->operand;
    const size_t bytes = op_operand_bytes(o->form), scale_bytes = scale_bytes_of(o->form);
    MOERT_TRY(MOERT_NEW_ARRAY(&o->ends, o->of.experts));
    bench_divide_rows(o->of.rows, o->of.experts, o->ragged, o->form->blocks ? 16 : 1, o->seed,
                      o->ends);
    MOERT_TRY(moert_alloc(&o->payload, BENCH_PATTERN, bytes));
    MOERT_TRY(moert_alloc(&o->scales, BENCH_PATTERN, scale_bytes));
    MOERT_TRY(MOERT_NEW_ARRAY(&o->values, BENCH_PATTERN));
    MOERT_TRY(MOERT_NEW_ARRAY(&o->scale_of, BENCH_PATTERN));
    for (size_t i = 0; i < BENCH_PATTERN; i++) {
        const double uniform = moert_rng_uniform(o->seed, 0, i);
        const uint32_t bits = type == MOERT_DTYPE_E2M1 /* a byte of two random elements */
                                  ? (uint32_t)(256.0 * uniform)
                                  : moert_dtype_encode(type, (float)(2.0 * uniform - 1.0));
        uint32_t scale;
        o->values[i] = moert_dtype_decode(type, bits);
        o->scale_of[i] = make_scale(o, i, &scale);
        memcpy(o->payload + i * bytes, &bits, bytes);
        memcpy(o->scales + i * scale_bytes, &scale, scale_bytes);
    }
    return MOERT_OK;
}

void op_operands_release(op_operands *o) {
    MOERT_FREE(o->ends, o->payload, o->scales, o->values, o->scale_of);
}

moert_status op_buffers_make(const op_operands *o, const moert_op *op, moert_op_buffers *buffers) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_op_matrix *m = moert_op_matrix_of(i);
        const bool scale = m != NULL && i == m->scale;
        const bool wide = !scale && op->needs[i].type == MOERT_DTYPE_F32;
        const size_t bytes = moert_op_buffer_bytes(op, moert_op_buffer_name(i));
        moert_buffer **buffer = moert_op_buffer_at(buffers, i);
        if (bytes == 0)
            continue;
        MOERT_TRY(moert_buffer_create(o->device, bytes, buffer));
        MOERT_TRY(bench_pattern_fill(*buffer,
                                     wide    ? (const void *)o->values
                                     : scale ? o->scales
                                             : o->payload,
                                     wide    ? sizeof(float)
                                     : scale ? scale_bytes_of(o->form)
                                             : op_operand_bytes(o->form),
                                     0));
    }
    return moert_buffer_write(buffers->ends, 0, o->ends, o->of.experts * sizeof *o->ends);
}

void op_buffers_release(moert_op_buffers *buffers) {
#define DESTROY(name) moert_buffer_destroy(buffers->name);
    MOERT_OP_BUFFER_TABLE(DESTROY)
#undef DESTROY
}

/* ---- checks ---- */

/* An executed op, and the descriptions of its operands from ops_find(). */
typedef struct executed {
    const op_operands *data;
    const moert_op_options *options;
    ops_operand first, second;
} executed;

/* Returns the element of the pattern that a plain buffer has at (line, column) of group g. */
static double plain_value(const executed *of, moert_op_buffer which, size_t g, size_t line,
                          size_t column) {
    const op_operands *o = of->data;
    const char *shape = moert_op_shape(of->options, which);
    const size_t rank = strlen(shape), start = g > 0 ? o->ends[g - 1] : 0;
    const size_t first = shape[0] == 'M' ? start : rank == 3 ? g * o->of.n : g;
    const size_t width = rank > 1 ? moert_op_columns(of->options, which) : 1;
    return (double)o->values[((first + line) * width + column) % BENCH_PATTERN];
}

static double value(const void *context, moert_op_buffer which, size_t g, size_t line,
                    size_t column) {
    const executed *of = context;
    const op_operands *o = of->data;
    const ops_operand *operand = which == of->first.payload ? &of->first : &of->second;
    if (which != operand->payload)
        return plain_value(of, which, g, line, column);
    const ops_place at = ops_locate(operand, g, line, column); /* plain operands have scales of 1 */
    const size_t byte = at.byte % BENCH_PATTERN;
    const float element =
        o->form->operand == MOERT_DTYPE_E2M1
            ? moert_dtype_decode(MOERT_DTYPE_E2M1, o->payload[byte] >> at.shift & 0xF)
            : o->values[byte];
    return (double)element * (double)o->scale_of[at.scale % BENCH_PATTERN];
}

moert_status op_count_wrong(const op_operands *o, const moert_op *op,
                            const moert_op_buffers *buffers, size_t *wrong) {
    const moert_op_roles is = moert_op_roles_of(op->options.kind);
    const executed of = {o, &op->options, ops_find(op, o->ends, is.first),
                         ops_find(op, o->ends, is.second)};
    const bool plain_fp8 = op_operand_bytes(o->form) == 1 && !o->form->quantized;
    const bench_check check = {op->options, o->ends, value, &of, plain_fp8 ? 1e-4 : 1e-5, o->seed};
    return bench_count_wrong(&check, *moert_op_buffer_at(buffers, is.result), NULL, wrong);
}
