/* Descriptions of ops that tests share, and which of their operands is which. */
#pragma once

#include "op/op.h"

/* Sizes of an op and the split of its rows. */
enum { OPS_MOST_GROUPS = 36 };
typedef struct ops_shape {
    size_t n, k, rows, groups, padding; /* padding: numbers between plain rows */
    uint32_t ends[OPS_MOST_GROUPS];
} ops_shape;

/* Ends of 36 groups, all but the last of one row. */
#define OPS_SINGLE_ROWS                                                                            \
    {                                                                                              \
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, \
            26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 60                                             \
    }

/* Plain float32 without anything else. */
moert_op_options ops_sized(moert_op_kind kind, size_t groups, size_t rows, size_t n, size_t k);

/* A quantized operand; scales are linear where the format has no others, `layout` modulo 3. */
moert_operand ops_scaled(moert_format format, moert_axis axis, size_t layout);
/* In tiles of scales, with a global scale for each group where the format has one. */
moert_operand ops_scaled_by_groups(moert_format format);

/* A GEMM whose two operands are as `operand`, in blocks along the reduction index; its result is
 * float32. */
moert_op_options ops_product(moert_op_kind kind, moert_operand operand, size_t groups, size_t rows,
                             size_t n, size_t k);

/* All that a GLU or dGLU can have beside bias. */
void ops_add_everything(moert_op_options *options);

/* The one of x and y that is multiplied first, by the second: a weight or y. */
moert_operand *ops_first_operand(moert_op_options *options);
moert_operand *ops_second_operand(moert_op_options *options);

/* The result y, x, weight or d. */
moert_operand *ops_result(moert_op_options *options);
moert_op_buffer ops_result_buffer(moert_op_kind kind);

/* The usual groups: empty in front, between and behind; no size is a multiple; rows past the last
 * end. And a description of products over them. */
enum { OPS_GROUPS = 6, OPS_ROWS = 140 };
extern const uint32_t ops_usual_ends[OPS_GROUPS];
moert_op_options ops_usual(moert_op_kind kind);

/* Where the rows of group g begin. */
static inline size_t ops_group_start(const uint32_t *ends, size_t g) {
    return g > 0 ? ends[g - 1] : 0;
}

/* What the op computes, for the title of a comparison. */
const char *ops_title(const moert_op_options *options);

/* An op on the device of test.h, destroyed when the test ends. */
moert_op *ops_open(const moert_op_options *options);

/* The device refuses a description with a message that has `text` in it. */
void ops_check_refused(const moert_op_options *options, moert_status status, const char *text);

/* The same of a description `o` after a change that makes it wrong. */
#define OPS_REFUSED(description, status, text, change)                                             \
    do {                                                                                           \
        moert_op_options o = (description);                                                        \
        change;                                                                                    \
        ops_check_refused(&o, (status), (text));                                                   \
    } while (0)
