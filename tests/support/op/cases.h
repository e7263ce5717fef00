/* Descriptions of ops that several tests use, and access to their operands and results. */
#pragma once

#include "op/op.h"

/* Sizes of an op and the split of its rows. */
enum { OPS_MOST_GROUPS = 128 };
typedef struct ops_shape {
    size_t n, k, rows, groups, padding; /* padding: elements between plain rows */
    uint32_t ends[OPS_MOST_GROUPS];
} ops_shape;

/* Ends of 36 groups; each group except the last has one row. */
#define OPS_SINGLE_ROWS                                                                            \
    {                                                                                              \
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, \
            26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 60                                             \
    }

/* Ends of 36 groups of 1 to 206 rows (moe_grouped_matmul of the cuDNN frontend). */
#define OPS_36_EXPERTS                                                                             \
    {                                                                                              \
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 127, 255, 383, 483, 515,    \
            643, 718, 924, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800, 1900, 2000              \
    }

/* An op on plain float32 operands without options. */
moert_op_options ops_sized(moert_op_kind kind, size_t groups, size_t rows, size_t n, size_t k);

/* A quantized operand with scale layout `layout` modulo 3, or linear if the format has no other. */
moert_operand ops_scaled(moert_format format, moert_axis axis, size_t layout);
/* A quantized operand with tiled scales, and a global scale per group if the format has global
 * scales. */
moert_operand ops_scaled_by_groups(moert_format format);

/* A GEMM whose operands both have the format of `operand`, in blocks along the reduction index; the
 * result is float32. */
moert_op_options ops_gemm(moert_op_kind kind, moert_operand operand, size_t groups, size_t rows,
                          size_t n, size_t k);

/* Sizes of the GLU cases. The groups are empty or have one or many rows; some rows lie past the
 * last end. */
enum { OPS_GLU_GROUPS = 5, OPS_GLU_ROWS = 44, OPS_GLU_CASES = 48 };
extern const uint32_t ops_glu_ends[OPS_GLU_GROUPS];

/* Returns GLU or dGLU case i of OPS_GLU_CASES, over ops_glu_ends. The cases cover every form, order
 * and layout of gate and up; dtypes and options vary with i. */
moert_op_options ops_glu_case(moert_op_kind kind, size_t i);

/* Fields of an op, as bits. ops_switch_on() sets the fields that the op's kind has. */
enum {
#define OPS_BIT(field, ...) OPS_##field = 1 << MOERT_OP_FIELD_##field,
    MOERT_OP_FIELD_TABLE(OPS_BIT)
#undef OPS_BIT
};
void ops_switch_on(moert_op_options *options, unsigned switches);

/* Switches on all options of a GLU or dGLU except bias. */
void ops_add_everything(moert_op_options *options);

/* Return the two operands of the GEMM, and its result. */
static inline moert_operand *ops_first_operand(moert_op_options *o) {
    return moert_op_operand(o, moert_op_roles_of(o->kind).first);
}
static inline moert_operand *ops_second_operand(moert_op_options *o) {
    return moert_op_operand(o, moert_op_roles_of(o->kind).second);
}
static inline moert_op_buffer ops_result_buffer(moert_op_kind kind) {
    return moert_op_roles_of(kind).result;
}
static inline moert_operand *ops_result(moert_op_options *o) {
    return moert_op_operand(o, ops_result_buffer(o->kind));
}

/* The default groups of tests, and an op over them. The first, a middle and the last group are
 * empty. No size is a multiple of a tile. Some rows lie past the last end. */
enum { OPS_GROUPS = 6, OPS_ROWS = 140 };
extern const uint32_t ops_usual_ends[OPS_GROUPS];
moert_op_options ops_usual(moert_op_kind kind);

/* The first row of group g. */
static inline size_t ops_group_start(const uint32_t *ends, size_t g) {
    return g > 0 ? ends[g - 1] : 0;
}

/* Describes the op for the title of a comparison. */
const char *ops_title(const moert_op_options *options);

/* Creates an op on the test device. The op is destroyed when the test ends. */
moert_op *ops_open(const moert_op_options *options);
/* Also compiles the op; `backend` must support the op. */
moert_op *ops_open_on(const char *backend, moert_op_options options);

/* Checks that `backend` refuses a description with a message that contains `text`, and that the
 * option `fallback` selects the portable backend. */
void ops_check_fallback(const char *backend, moert_op_options options, const char *text);

/* Checks that moert_op_create() refuses a description with a message that contains `text`. */
void ops_check_refused(const moert_op_options *options, moert_status status, const char *text);
