/*
 * Where the elements and scales of an op's operands lie, one at a time, written down once more from
 * moert/ops.h.
 */
#pragma once

#include "support/op/cases.h"

/* A quantized or plain matrix of an op: groups of lines by columns. */
typedef struct ops_operand {
    moert_operand as;
    moert_op_buffer payload, scale, global;
    bool weight, result;
    size_t groups, lines, columns;
    size_t room;                  /* row blocks that COLUMN scales have room for */
    size_t ends[OPS_MOST_GROUPS]; /* of the groups' lines */
} ops_operand;

/* Operand x, weight, y, d or column of an op whose ends are on the host. */
ops_operand ops_find(const moert_op *op, const uint32_t *ends, moert_op_buffer payload);

static inline size_t ops_first(const ops_operand *o, size_t g) {
    return g > 0 ? o->ends[g - 1] : 0;
}

/* Where an element and its scale lie. */
typedef struct ops_place {
    size_t byte, scale; /* scale: number of the scale, of 1 or 4 bytes */
    unsigned shift;
} ops_place;

/* Of element (line, j) of group g, `line` counted from the group's first. */
ops_place ops_locate(const ops_operand *o, size_t g, size_t line, size_t j);
