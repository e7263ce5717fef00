/*
 * The addresses of elements and scales: a second implementation of the layouts that moert/ops.h
 * describes, for tests and for the checks of benchmarks.
 */
#pragma once

#include "op/op.h"

/* A quantized or plain matrix of an op, in groups of lines of `columns` elements. A line is a row
 * of x, y or d, or one of a weight's N rows, in whichever order they are stored. */
typedef struct ops_operand {
    moert_operand as;
    moert_op_buffer payload, scale, global;
    bool weight, result;
    size_t groups, lines, columns;
    /* for blocks along columns: the number of row blocks for which the scales have room */
    size_t room;
    const uint32_t
        *ends; /* ends[g]: the line that follows group g; NULL if all have `each` lines */
    size_t each;
} ops_operand;

/* Describes operand x, weight, y, d or column of an op. ends[G] are in host memory and must outlive
 * the description. */
ops_operand ops_find(const moert_op *op, const uint32_t *ends, moert_op_buffer payload);

static inline size_t ops_end(const ops_operand *o, size_t g) {
    return o->ends != NULL ? o->ends[g] : (g + 1) * o->each;
}
static inline size_t ops_first(const ops_operand *o, size_t g) {
    return g > 0 ? ops_end(o, g - 1) : 0;
}
static inline size_t ops_lines(const ops_operand *o, size_t g) {
    return ops_end(o, g) - ops_first(o, g);
}

/* The address of an element and of its scale. */
typedef struct ops_place {
    size_t byte, scale; /* scale: the index of the scale, which has 1 or 4 bytes */
    unsigned shift;     /* bit position within the byte, for elements of 4 bits */
} ops_place;

/* Returns the address of element (line, j) of group g; `line` counts from the group's first
 * line. */
ops_place ops_locate(const ops_operand *o, size_t g, size_t line, size_t j);
