/* Made of patterns of a length that no row length divides. */
#include "bench/gemm/op_factors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/rng.h"
#include "moert/quantize.h"

enum { PATTERN = 16777213, CHECKS = 200, MOST_EXPERTS = 4096, BLOCK = 128 };

/* ---- data ---- */

static size_t start_of(const problem *p, size_t expert) {
    return expert > 0 ? p->ends[expert - 1] : 0;
}

size_t op_factor_bytes(const factors *f) {
    return moert_ceil_div(moert_number_bits(f->form->factor), 8);
}

static size_t scale_bytes_of(const factors *f) {
    return f->form->coded ? 1 : sizeof(float);
}

static size_t block_of(const factors *f) {
    return f->form->coded ? moert_format_block(f->form->format) : BLOCK;
}

static size_t blocks(size_t length) {
    return moert_ceil_div(length, BLOCK);
}

static double value_of(const factors *f, size_t index) {
    uint32_t code = 0;
    memcpy(&code, f->pattern + index % PATTERN * op_factor_bytes(f), op_factor_bytes(f));
    return moert_number_decode(f->form->factor, code);
}

static double scale_of(const factors *f, size_t index) {
    const unsigned char *at = f->scales + index % PATTERN * scale_bytes_of(f);
    float scale;
    if (f->form->coded)
        return f->form->format == MOERT_FORMAT_NVFP4
                   ? (double)moert_number_decode(MOERT_NUMBER_E4M3, *at)
                   : ldexp(1.0, *at - 127);
    memcpy(&scale, at, sizeof scale);
    return (double)scale;
}

/* Coded lines of `columns` of a group that begins with line `first` and, if its blocks lie down the
 * lines, block `slot`. */
typedef struct coded_lines {
    size_t columns, first, slot;
    bool down;
} coded_lines;

static double coded_value(const factors *f, coded_lines of, size_t line, size_t column) {
    const size_t first = of.first, slot = of.slot, columns = of.columns;
    const bool down = of.down;
    const size_t block = block_of(f), row = first + line;
    const size_t scale = down ? (slot + line / block) * columns + column
                              : row * moert_ceil_div(columns, block) + column / block;
    if (f->form->factor != MOERT_NUMBER_E2M1)
        return value_of(f, row * columns + column) * scale_of(f, scale);
    const size_t byte = down ? (slot * block + line) / 2 * columns + column
                             : row * moert_ceil_div(columns, 2) + column / 2;
    const unsigned shift = (down ? line : column) % 2 * 4;
    return (double)moert_number_decode(MOERT_NUMBER_E2M1,
                                       f->pattern[byte % PATTERN] >> shift & 0xF) *
           scale_of(f, scale);
}

/* An element of a row matrix, and of the weights; [lines, columns] with their scales. */
static double row_value(const factors *f, size_t line, size_t column, size_t columns) {
    return value_of(f, line * columns + column) *
           scale_of(f, line * blocks(columns) + column / BLOCK);
}
static double weight_value(const factors *f, const shape *s, size_t e, size_t line, size_t column) {
    const bool turned = f->form->turned;
    const size_t i = turned ? column : line, j = turned ? line : column;
    const size_t lines = turned ? s->k : s->n, columns = turned ? s->n : s->k;
    const size_t down = e * blocks(lines) + i / BLOCK;
    return value_of(f, (e * lines + i) * columns + j) *
           scale_of(f, down * blocks(columns) + j / BLOCK);
}

/* Blocks of the rows of the experts before e. */
static size_t first_slot(const problem *p, size_t e, size_t block) {
    size_t slot = 0;
    for (size_t i = 0; i < e; i++)
        slot += moert_ceil_div(p->ends[i] - start_of(p, i), block);
    return slot;
}

/* An element of a row matrix that is stored transposed; `row` is of expert e. */
static double turned_value(const factors *f, const problem *p, size_t e, size_t row,
                           size_t column) {
    const size_t block = first_slot(p, e, BLOCK) + (row - start_of(p, e)) / BLOCK;
    return value_of(f, column * p->of.rows + row) *
           scale_of(f, column * moert_row_blocks_most(p->of.rows, p->of.experts, BLOCK) + block);
}

moert_status op_factors_make(factors *f) {
    const size_t bytes = op_factor_bytes(f), scale_bytes = scale_bytes_of(f);
    const bool nvfp4 = f->form->coded && f->form->format == MOERT_FORMAT_NVFP4;
    MOERT_TRY(moert_alloc(&f->pattern, PATTERN, bytes));
    MOERT_TRY(moert_alloc(&f->scales, PATTERN, scale_bytes));
    for (size_t i = 0; i < PATTERN; i++) {
        const double uniform = moert_rng_uniform(f->seed, 4, i);
        const float scale = f->form->blocks || nvfp4 ? (float)(0.5 + uniform) : 1.0f;
        const uint32_t code =
            f->form->factor == MOERT_NUMBER_E2M1 /* any two */
                ? (uint32_t)(256.0 * moert_rng_uniform(f->seed, 0, i))
                : moert_number_encode(f->form->factor,
                                      (float)(2.0 * moert_rng_uniform(f->seed, 0, i) - 1.0));
        const uint32_t scale_code =
            nvfp4 ? moert_number_encode(MOERT_NUMBER_E4M3, scale) : 125 + (uint32_t)(4.0 * uniform);
        memcpy(f->pattern + i * bytes, &code, bytes);
        if (f->form->coded)
            f->scales[i] = (unsigned char)scale_code;
        else
            memcpy(f->scales + i * scale_bytes, &scale, scale_bytes);
    }
    return MOERT_OK;
}

void op_factors_release(factors *f) {
    free(f->pattern);
    free(f->scales);
    f->pattern = f->scales = NULL;
}

/* A buffer of so many numbers of a pattern. */
static moert_status make_buffer(const factors *f, size_t count, const void *pattern, size_t bytes,
                                moert_buffer **buffer) {
    MOERT_TRY(moert_buffer_create(f->device, count * bytes, buffer));
    for (size_t i = 0; i < count; i += PATTERN)
        MOERT_TRY(
            moert_buffer_write(*buffer, i * bytes, pattern, moert_min(PATTERN, count - i) * bytes));
    return MOERT_OK;
}

static void make_ends(const factors *f, problem *p) {
    const shape *s = &p->of;
    double part[MOST_EXPERTS], total = 0.0, so_far = 0.0;
    for (size_t e = 0; e < s->experts; e++) {
        part[e] = !p->ragged   ? 1.0
                  : e % 5 == 2 ? 0.0
                               : 0.25 + 1.5 * moert_rng_uniform(f->seed, 1, e);
        total += part[e];
    }
    for (size_t e = 0; e < s->experts; e++) {
        so_far += part[e];
        p->ends[e] = (uint32_t)(so_far / total * (double)s->rows + 1e-6);
        p->ends[e] -= p->ends[e] % p->multiple;
    }
    p->ends[s->experts - 1] = (uint32_t)s->rows;
}

void op_problem_release(problem *p) {
    moert_buffer *const all[] = {p->ends_buffer, p->x, p->weight, p->y, p->scales, p->result};
    for (size_t i = 0; i < MOERT_COUNT(all); i++)
        moert_buffer_destroy(all[i]);
    free(p->ends);
}

moert_status op_problem_make(const factors *f, problem *p) {
    const shape *s = &p->of;
    const size_t x = s->rows * s->k, weight = s->experts * s->n * s->k, y = s->rows * s->n;
    const size_t bytes = s->experts * sizeof *p->ends, factor = op_factor_bytes(f);
    const size_t width = moert_max(s->n, s->k), block = block_of(f);
    const size_t slots = moert_row_blocks_most(s->rows, s->experts, block);
    const size_t scales[] = {s->rows * moert_ceil_div(width, block), slots * width,
                             s->experts * (f->form->coded ? weight / s->experts / block + width
                                                          : blocks(s->n) * blocks(s->k))};
    /* two E2M1 in a byte, down the lines in whole blocks */
    const size_t rows = f->form->coded ? moert_max(s->rows, slots * block / 2) : s->rows;
    MOERT_TRY(MOERT_NEW_ARRAY(&p->ends, s->experts));
    make_ends(f, p);
    MOERT_TRY(moert_buffer_create(f->device, bytes, &p->ends_buffer));
    MOERT_TRY(moert_buffer_write(p->ends_buffer, 0, p->ends, bytes));
    MOERT_TRY(make_buffer(f, rows * s->k, f->pattern, factor, &p->x));
    MOERT_TRY(make_buffer(f, weight, f->pattern, factor, &p->weight));
    MOERT_TRY(make_buffer(f, rows * s->n, f->pattern, factor, &p->y));
    MOERT_TRY(make_buffer(f, moert_max(scales[0], moert_max(scales[1], scales[2])), f->scales,
                          scale_bytes_of(f), &p->scales));
    return moert_buffer_create(f->device, moert_max(weight, moert_max(x, y)) * sizeof(uint16_t),
                               &p->result);
}

/* ---- checks ---- */

/* An element of an op's result, which is of expert e. */
typedef struct element {
    moert_op_kind kind;
    size_t e, line, column;
} element;

/* Term i of its factors. */
static double term_of(const factors *f, const problem *p, const element *of, size_t i) {
    const moert_op_kind kind = of->kind;
    const size_t e = of->e, line = of->line, column = of->column;
    const shape *s = &p->of;
    const bool coded = f->form->coded;
    if (kind == MOERT_OP_GEMM_WGRAD) {
        const size_t first = start_of(p, e), n = line % s->n;
        const size_t slot = coded ? first_slot(p, e, block_of(f)) : 0;
        return coded ? coded_value(f, (coded_lines){s->n, first, slot, true}, i - first, n) *
                           coded_value(f, (coded_lines){s->k, first, slot, true}, i - first, column)
               : f->form->blocks ? turned_value(f, p, e, i, n) * turned_value(f, p, e, i, column)
                                 : row_value(f, i, n, s->n) * row_value(f, i, column, s->k);
    }
    const size_t slot = coded ? e * moert_ceil_div(s->n, block_of(f)) : 0;
    if (kind == MOERT_OP_GEMM_FORWARD)
        return coded ? coded_value(f, (coded_lines){.columns = s->k}, line, i) *
                           coded_value(f, (coded_lines){s->k, e * s->n, 0, false}, column, i)
                     : row_value(f, line, i, s->k) * weight_value(f, s, e, column, i);
    return coded ? coded_value(f, (coded_lines){.columns = s->n}, line, i) *
                       coded_value(f, (coded_lines){s->k, e * s->n, slot, true}, i, column)
                 : row_value(f, line, i, s->n) * weight_value(f, s, e, i, column);
}

/* What element (line, column) of the result of an op must be; *size: the sum of magnitudes. */
static double expected(const factors *f, const problem *p, moert_op_kind kind, size_t line,
                       size_t column, double *size) {
    const shape *s = &p->of;
    const bool forward = kind == MOERT_OP_GEMM_FORWARD, wgrad = kind == MOERT_OP_GEMM_WGRAD;
    size_t e = wgrad ? line / s->n : 0, first = 0, last = forward ? s->k : s->n;
    double sum = 0.0;
    while (!wgrad && p->ends[e] <= line)
        e++;
    if (wgrad) {
        first = start_of(p, e);
        last = p->ends[e];
    }
    const element of = {kind, e, line, column};
    *size = 0.0;
    for (size_t i = first; i < last; i++) {
        const double term = term_of(f, p, &of, i);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

moert_status op_problem_check(const factors *f, const problem *p, moert_op_kind kind,
                              size_t *wrong) {
    const shape *s = &p->of;
    const size_t lines = kind == MOERT_OP_GEMM_WGRAD ? s->experts * s->n : s->rows;
    const size_t columns = kind == MOERT_OP_GEMM_FORWARD ? s->n : s->k;
    const double slack = op_factor_bytes(f) == 1 && !f->form->coded ? 1e-4 : 1e-5;
    *wrong = 0;
    for (size_t i = 0; i < CHECKS; i++) {
        /* the last line and column are among them */
        const size_t line =
            lines - 1 - (size_t)(moert_rng_uniform(f->seed, 2, i) * (double)lines * !!i);
        const size_t column =
            columns - 1 - (size_t)(moert_rng_uniform(f->seed, 3, i) * (double)columns * !!i);
        uint16_t code;
        double size;
        MOERT_TRY(moert_buffer_read(p->result, (line * columns + column) * sizeof code, &code,
                                    sizeof code));
        const double want = expected(f, p, kind, line, column, &size);
        const double off = fabs(moert_number_decode(f->form->result, code) - want);
        *wrong += !(off <= fabs(want) / 256.0 + slack * size);
    }
    return MOERT_OK;
}
