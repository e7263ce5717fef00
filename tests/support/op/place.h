/*
 * The addresses of elements and scales of an op's operands, computed one at a time. A second
 * implementation of the layouts that moert/ops.h describes.
 */
#pragma once

#include "support/op/cases.h"

/* A quantized or plain matrix of an op: groups of lines by columns. */
typedef struct ops_operand {
    moert_operand as;
    moert_op_buffer payload, scale, global;
    bool weight, result;
    size_t groups, lines, columns;
    size_t room;                  /* AXIS_COLUMN: the capacity of the scales, in row blocks */
    size_t ends[OPS_MOST_GROUPS]; /* the end of each group's lines */
} ops_operand;

/* Describes operand x, weight, y, d or column of an op; ends[G] are on the host. */
ops_operand ops_find(const moert_op *op, const uint32_t *ends, moert_op_buffer payload);

static inline size_t ops_first(const ops_operand *o, size_t g) {
    return g > 0 ? o->ends[g - 1] : 0;
}

/* The address of an element and of its scale. */
typedef struct ops_place {
    size_t byte, scale; /* scale: the index of the scale, which has 1 or 4 bytes */
    unsigned shift;     /* of an element of 4 bits within its byte */
} ops_place;

/* The address of element (line, j) of group g; `line` counts from the group's first. */
ops_place ops_locate(const ops_operand *o, size_t g, size_t line, size_t j);
