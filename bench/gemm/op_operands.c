/* Makes the operands of bench_op from patterns, and checks results against float64. */
#include "bench/gemm/op_operands.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "moert/quantize.h"

enum { CHECKS = 200, MOST_EXPERTS = 4096, BLOCK = 128 };

/* ---- data ---- */

static size_t start_of(const op_operands *o, size_t expert) {
    return expert > 0 ? o->ends[expert - 1] : 0;
}

size_t op_operand_bytes(const op_form *form) {
    return moert_ceil_div(moert_dtype_bits(form->operand), 8);
}

static size_t scale_bytes_of(const op_form *form) {
    return form->quantized ? 1 : sizeof(float);
}

static moert_status make_ends(op_operands *o) {
    const size_t experts = o->of.experts, multiple = o->form->blocks ? 16 : 1;
    double weight[MOST_EXPERTS], total = 0.0, so_far = 0.0;
    MOERT_TRY(MOERT_NEW_ARRAY(&o->ends, experts));
    for (size_t e = 0; e < experts; e++) {
        weight[e] = !o->ragged   ? 1.0
                    : e % 5 == 2 ? 0.0
                                 : 0.25 + 1.5 * moert_rng_uniform(o->seed, 1, e);
        total += weight[e];
    }
    for (size_t e = 0; e < experts; e++) {
        so_far += weight[e];
        o->ends[e] = (uint32_t)(so_far / total * (double)o->of.rows + 1e-6);
        o->ends[e] -= o->ends[e] % multiple;
    }
    o->ends[experts - 1] = (uint32_t)o->of.rows;
    return MOERT_OK;
}

/* Scale i of the pattern; *bits = as it is stored. */
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
    MOERT_TRY(make_ends(o));
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

moert_status op_buffers_make(const op_operands *o, const moert_op_options *options,
                             const moert_op *op, moert_op_buffers *buffers) {
    enum { SCALE = -1 };
    const struct {
        const char *name;
        moert_buffer **at;
        int type;
    } all[] = {{"ends", &buffers->ends, MOERT_DTYPE_F32},
               {"x", &buffers->x, (int)options->x.type},
               {"weight", &buffers->weight, (int)options->weight.type},
               {"y", &buffers->y, (int)options->y.type},
               {"c", &buffers->c, (int)options->c.type},
               {"d", &buffers->d, (int)options->d.type},
               {"bias", &buffers->bias, (int)options->bias_type},
               {"prob", &buffers->prob, MOERT_DTYPE_F32},
               {"amax", &buffers->amax, MOERT_DTYPE_F32},
               {"x_scale", &buffers->x_scale, SCALE},
               {"y_scale", &buffers->y_scale, SCALE},
               {"weight_scale", &buffers->weight_scale, SCALE}};
    for (size_t i = 0; i < MOERT_COUNT(all); i++) {
        const bool wide = all[i].type == MOERT_DTYPE_F32, scale = all[i].type == SCALE;
        const size_t bytes = moert_op_buffer_bytes(op, all[i].name);
        if (bytes == 0)
            continue;
        MOERT_TRY(moert_buffer_create(o->device, bytes, all[i].at));
        MOERT_TRY(bench_pattern_fill(*all[i].at,
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

static double value_at(const op_operands *o, size_t index) {
    return (double)o->values[index % BENCH_PATTERN];
}

static double scale_at(const op_operands *o, size_t index) {
    return (double)o->scale_of[index % BENCH_PATTERN];
}

static size_t block_of(const op_form *form) {
    return form->quantized ? moert_format_block(form->format) : BLOCK;
}

static size_t blocks(size_t length) {
    return moert_ceil_div(length, BLOCK);
}

/* The quantized lines of a group. Its first line is `first`; if blocks run along columns (`down`),
 * its first block is `slot`. */
typedef struct quantized_lines {
    size_t columns, first, slot;
    bool down;
} quantized_lines;

static double quantized_value(const op_operands *o, quantized_lines of, size_t line,
                              size_t column) {
    const size_t first = of.first, slot = of.slot, columns = of.columns;
    const bool down = of.down;
    const size_t block = block_of(o->form), row = first + line;
    const size_t scale = down ? (slot + line / block) * columns + column
                              : row * moert_ceil_div(columns, block) + column / block;
    if (o->form->operand != MOERT_DTYPE_E2M1)
        return value_at(o, row * columns + column) * scale_at(o, scale);
    const size_t byte = down ? (slot * block + line) / 2 * columns + column
                             : row * moert_ceil_div(columns, 2) + column / 2;
    const unsigned shift = (down ? line : column) % 2 * 4;
    return (double)moert_dtype_decode(MOERT_DTYPE_E2M1,
                                      o->payload[byte % BENCH_PATTERN] >> shift & 0xF) *
           scale_at(o, scale);
}

/* An element of a row matrix, and of the weights, each times its scale. */
static double row_value(const op_operands *o, size_t line, size_t column, size_t columns) {
    return value_at(o, line * columns + column) *
           scale_at(o, line * blocks(columns) + column / BLOCK);
}
static double weight_value(const op_operands *o, size_t e, size_t line, size_t column) {
    const bool transposed = o->form->transposed;
    const size_t i = transposed ? column : line, j = transposed ? line : column;
    const size_t lines = transposed ? o->of.k : o->of.n, columns = transposed ? o->of.n : o->of.k;
    const size_t down = e * blocks(lines) + i / BLOCK;
    return value_at(o, (e * lines + i) * columns + j) *
           scale_at(o, down * blocks(columns) + j / BLOCK);
}

/* Number of row blocks of the experts before e. */
static size_t first_slot(const op_operands *o, size_t e, size_t block) {
    size_t slot = 0;
    for (size_t i = 0; i < e; i++)
        slot += moert_ceil_div(o->ends[i] - start_of(o, i), block);
    return slot;
}

/* An element of a row matrix that is stored transposed; `row` belongs to expert e. */
static double transposed_value(const op_operands *o, size_t e, size_t row, size_t column) {
    const size_t block = first_slot(o, e, BLOCK) + (row - start_of(o, e)) / BLOCK;
    return value_at(o, column * o->of.rows + row) *
           scale_at(o, column * moert_row_blocks_most(o->of.rows, o->of.experts, BLOCK) + block);
}

/* An element of an op's result, which belongs to expert e. */
typedef struct element {
    moert_op_kind kind;
    size_t e, line, column;
} element;

/* The product at reduction index i in the element's sum. */
static double product_of(const op_operands *o, const element *of, size_t i) {
    const op_form *form = o->form;
    const size_t e = of->e, line = of->line, column = of->column, n = o->of.n, k = o->of.k;
    if (of->kind == MOERT_OP_GEMM_WGRAD) {
        const size_t first = start_of(o, e), row = line % n;
        const size_t slot = form->quantized ? first_slot(o, e, block_of(form)) : 0;
        return form->quantized
                   ? quantized_value(o, (quantized_lines){n, first, slot, true}, i - first, row) *
                         quantized_value(o, (quantized_lines){k, first, slot, true}, i - first,
                                         column)
               : form->blocks ? transposed_value(o, e, i, row) * transposed_value(o, e, i, column)
                              : row_value(o, i, row, n) * row_value(o, i, column, k);
    }
    if (of->kind == MOERT_OP_GEMM_DGRAD) {
        const size_t slot = form->quantized ? e * moert_ceil_div(n, block_of(form)) : 0;
        return form->quantized
                   ? quantized_value(o, (quantized_lines){.columns = n}, line, i) *
                         quantized_value(o, (quantized_lines){k, e * n, slot, true}, i, column)
                   : row_value(o, line, i, n) * weight_value(o, e, i, column);
    }
    return form->quantized
               ? quantized_value(o, (quantized_lines){.columns = k}, line, i) *
                     quantized_value(o, (quantized_lines){k, e * n, 0, false}, column, i)
               : row_value(o, line, i, k) * weight_value(o, e, column, i);
}

/* Returns the element's sum, and adds the magnitudes of its summands to *size. */
static double sum_of(const op_operands *o, element of, double *size) {
    const bool wgrad = of.kind == MOERT_OP_GEMM_WGRAD, dgrad = of.kind == MOERT_OP_GEMM_DGRAD;
    const size_t last = wgrad ? o->ends[of.e] : dgrad ? o->of.n : o->of.k;
    double sum = 0.0;
    for (size_t i = wgrad ? start_of(o, of.e) : 0; i < last; i++) {
        const double product = product_of(o, &of, i);
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

/* The expected value of element (line, column) of a result [...,columns]. *size = scale of its
 * error. */
static double expected(const op_operands *o, const op_variant *v, size_t line, size_t column,
                       size_t columns, double *size) {
    const size_t n = o->of.n;
    element of = {v->kind, 0, line, column};
    if (v->kind == MOERT_OP_GEMM_WGRAD)
        of.e = line / n;
    else
        while (o->ends[of.e] <= line)
            of.e++;
    const double prob = v->prob ? value_at(o, line) : 1.0;
    *size = 0.0;
    if (v->kind == MOERT_OP_GLU) {
        of.column = v->interleaved ? 2 * column : column;
        const double gate = sum_of(o, of, size);
        of.column += v->interleaved ? 1 : n / 2;
        const double up = sum_of(o, of, size);
        *size *= (1.0 + fabs(gate) + fabs(up));
        return prob * up * gate / (1.0 + exp(-gate));
    }
    return prob * sum_of(o, of, size) + (v->bias ? value_at(o, of.e * n + column) : 0.0) +
           (v->accumulate ? value_at(o, line * columns + column) : 0.0);
}

moert_status op_count_wrong(const op_operands *o, const op_variant *v,
                            const moert_op_buffers *buffers, size_t *wrong) {
    const struct result {
        const moert_buffer *buffer;
        size_t lines, columns;
    } results[] = {[MOERT_OP_GEMM_FORWARD] = {buffers->y, o->of.rows, o->of.n},
                   [MOERT_OP_GEMM_DGRAD] = {buffers->x, o->of.rows, o->of.k},
                   [MOERT_OP_GEMM_WGRAD] = {buffers->weight, o->of.experts * o->of.n, o->of.k},
                   [MOERT_OP_GLU] = {buffers->d, o->of.rows, o->of.n / 2}};
    const struct result *result = &results[v->kind];
    const moert_dtype type = v->f32 ? MOERT_DTYPE_F32 : o->form->result;
    const size_t bytes = moert_dtype_bits(type) / 8;
    const double slack = op_operand_bytes(o->form) == 1 && !o->form->quantized ? 1e-4 : 1e-5;
    *wrong = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        const size_t line = bench_pick(o->seed, 2, i, result->lines);
        const size_t column = bench_pick(o->seed, 3, i, result->columns);
        uint32_t bits = 0;
        double size;
        MOERT_TRY(moert_buffer_read(result->buffer, (line * result->columns + column) * bytes,
                                    &bits, bytes));
        const double want = expected(o, v, line, column, result->columns, &size);
        const double off = fabs((double)moert_dtype_decode(type, bits) - want);
        *wrong += !(off <= (v->f32 ? 0.0 : fabs(want) / 256.0) + slack * size);
    }
    return MOERT_OK;
}
