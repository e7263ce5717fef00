/* Divides rows among experts, and checks results in float64. */
#include "bench/gemm/check.h"

#include <math.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/common/pattern.h"

enum { CHECKS = 200, PERIOD = 5, WITHOUT_ROWS = 2, WEIGHTS = 1, LINES, COLUMNS };

static double weight_of(bool ragged, size_t seed, size_t e) {
    if (!ragged)
        return 1.0;
    return e % PERIOD == WITHOUT_ROWS ? 0.0 : 0.25 + 1.5 * moert_rng_uniform(seed, WEIGHTS, e);
}

void bench_divide_rows(size_t rows, size_t experts, bool ragged, size_t multiple, size_t seed,
                       uint32_t *ends) {
    double total = 0.0, before = 0.0;
    for (size_t e = 0; e < experts; e++)
        total += weight_of(ragged, seed, e);
    for (size_t e = 0; e < experts; e++) {
        before += weight_of(ragged, seed, e);
        ends[e] = (uint32_t)(before / total * (double)rows + 1e-6);
        ends[e] -= ends[e] % (uint32_t)multiple;
    }
    ends[experts - 1] = (uint32_t)rows;
}

/* An element of the result: (line, column) within group g, and the element's index among all
 * groups. */
typedef struct element {
    size_t g, line, column, at;
} element;

static element draw(const bench_check *c, size_t i) {
    const moert_op_options *o = &c->op;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const size_t columns = moert_op_columns(o, moert_op_roles_of(o->kind).result);
    const size_t line = bench_pick(c->seed, LINES, i, wgrad ? o->groups * o->n : o->rows);
    element e = {wgrad ? line / o->n : 0, line, bench_pick(c->seed, COLUMNS, i, columns), 0};
    e.at = line * columns + e.column;
    while (!wgrad && c->ends[e.g] <= line)
        e.g++;
    e.line -= wgrad ? e.g * o->n : e.g > 0 ? c->ends[e.g - 1] : 0;
    return e;
}

/* A float64 sum, and the sum of its summands' magnitudes. */
typedef struct sum {
    double value, magnitude;
} sum;

static sum dot(const bench_check *c, element e, size_t column) {
    const moert_op_options *o = &c->op;
    const moert_op_roles is = moert_op_roles_of(o->kind);
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, dgrad = o->kind == MOERT_OP_GEMM_DGRAD;
    const size_t rows = c->ends[e.g] - (e.g > 0 ? c->ends[e.g - 1] : 0);
    const size_t terms = wgrad ? rows : dgrad ? o->n : o->k;
    sum s = {0.0, 0.0};
    for (size_t i = 0; i < terms; i++) {
        /* wgrad: y[i,line] x[i,column]; dgrad: y[line,i] weight[i,column]; else
         * x[line,i] weight[column,i] */
        const double a = wgrad ? c->value(c->of, is.second, e.g, i, e.line)
                               : c->value(c->of, is.first, e.g, e.line, i);
        const double b = wgrad   ? c->value(c->of, is.first, e.g, i, column)
                         : dgrad ? c->value(c->of, is.second, e.g, i, column)
                                 : c->value(c->of, is.second, e.g, column, i);
        s.value += a * b;
        s.magnitude += fabs(a * b);
    }
    return s;
}

static sum gated(sum gate, sum up) {
    const double sigmoid = 1.0 / (1.0 + exp(-gate.value)), silu = gate.value * sigmoid;
    const double slope = sigmoid + silu * (1.0 - sigmoid);
    return (sum){silu * up.value, fabs(slope * up.value) * gate.magnitude +
                                      fabs(silu) * up.magnitude + fabs(silu * up.value)};
}

static sum expect(const bench_check *c, element e) {
    const moert_op_options *o = &c->op;
    const moert_op_buffer result = moert_op_roles_of(o->kind).result;
    const size_t gate = o->glu.interleaved ? 2 * e.column : e.column;
    const size_t up = gate + (o->glu.interleaved ? 1 : o->n / 2);
    sum s = o->kind == MOERT_OP_GLU ? gated(dot(c, e, gate), dot(c, e, up)) : dot(c, e, e.column);
    if (o->prob)
        s.value *= c->value(c->of, MOERT_OP_BUFFER_prob, e.g, e.line, 0);
    if (o->bias)
        s.value += c->value(c->of, MOERT_OP_BUFFER_bias, e.g, 0, e.column);
    if (o->accumulate)
        s.value += c->value(c->of, result, e.g, e.line, e.column);
    return s;
}

moert_status bench_count_wrong(const bench_check *c, const moert_buffer *buffer,
                               const float *memory, size_t *wrong) {
    const moert_op_options *o = &c->op;
    const moert_dtype type = moert_op_operand(o, moert_op_roles_of(o->kind).result)->type;
    const size_t bytes = moert_dtype_bits(type) / 8;
    const double rounding = type == MOERT_DTYPE_F32 ? 0.0 : 1.0 / 256.0;
    *wrong = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        const element e = draw(c, i);
        const sum want = expect(c, e);
        uint32_t bits = memory != NULL ? moert_float_bits(memory[e.at]) : 0;
        if (buffer != NULL)
            MOERT_TRY(moert_buffer_read(buffer, e.at * bytes, &bits, bytes));
        const double off = fabs((double)moert_dtype_decode(type, bits) - want.value);
        *wrong += !(off <= rounding * fabs(want.value) + c->slack * want.magnitude);
    }
    return MOERT_OK;
}
