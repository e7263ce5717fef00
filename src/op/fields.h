/*
 * The description of an op (moert/ops.h) as tables: the roles of its operands, the matrices, and
 * the fields that only some kinds have. The checks of a description, moert-op, the benchmarks, the
 * tests and the fuzzer read these tables. A new field is a member of moert_op_options, a buffer in
 * MOERT_OP_BUFFER_TABLE if it has values, and a row of MOERT_OP_FIELD_TABLE.
 */
#pragma once

#include "gemm/gemm.h"
#include "moert/ops.h"

typedef enum moert_op_buffer {
#define MOERT_OP_BUFFER_ENUM(name) MOERT_OP_BUFFER_##name,
    MOERT_OP_BUFFER_TABLE(MOERT_OP_BUFFER_ENUM)
#undef MOERT_OP_BUFFER_ENUM
        MOERT_OP_BUFFERS,
    MOERT_OP_BUFFER_none = MOERT_OP_BUFFERS
} moert_op_buffer;

/* The name of a buffer, and its field in `buffers`. */
const char *moert_op_buffer_name(moert_op_buffer which);
moert_buffer **moert_op_buffer_at(const moert_op_buffers *buffers, moert_op_buffer which);

/* The shape of a buffer, one letter for each dimension; "" if it depends on blocks. If x is
 * gathered, its rows are tokens. */
const char *moert_op_shape(const moert_op_options *options, moert_op_buffer which);
/* The size that a letter stands for: G, M, N and K of the options; T tokens, ceil(M/topk); V
 * columns of gate and up; D columns of d; A values of amax for a group; or 1. */
size_t moert_op_size(const moert_op_options *options, char letter);
size_t moert_op_columns(const moert_op_options *options, moert_op_buffer which);

/* ---- roles ---- */

/* X(KIND, GEMM, first, second, result): the GEMM of an op, its operands, and the matrix that the op
 * writes. */
#define MOERT_OP_ROLE_TABLE(X)                                                                     \
    X(GEMM_FORWARD, FORWARD, x, weight, y)                                                         \
    X(GEMM_DGRAD, DGRAD, y, weight, x)                                                             \
    X(GEMM_WGRAD, WGRAD, x, y, weight)                                                             \
    X(GLU, FORWARD, x, weight, d)                                                                  \
    X(DGLU, DGRAD, y, weight, d)

typedef struct moert_op_roles {
    moert_gemm_kind gemm;
    moert_op_buffer first, second, result;
} moert_op_roles;
moert_op_roles moert_op_roles_of(moert_op_kind kind);
bool moert_op_has_role(moert_op_kind kind, moert_op_buffer which);

/* ---- matrices ---- */

/* X(operand, shape, scale, global): the matrices, with the buffers of a quantized one. `column` has
 * the shape of the result. */
#define MOERT_OP_OPERAND_TABLE(X)                                                                  \
    X(x, "MK", x_scale, x_global)                                                                  \
    X(weight, "GNK", weight_scale, weight_global)                                                  \
    X(y, "MN", y_scale, y_global)                                                                  \
    X(c, "MV", none, none)                                                                         \
    X(d, "MD", d_scale, none)                                                                      \
    X(column, "", column_scale, none)

typedef struct moert_op_matrix {
    const char *name, *shape;
    size_t at; /* offset of the operand in the options */
    moert_op_buffer payload, scale, global;
} moert_op_matrix;

enum {
#define MOERT_OP_MATRIX_ENUM(operand, ...) MOERT_OP_MATRIX_##operand,
    MOERT_OP_OPERAND_TABLE(MOERT_OP_MATRIX_ENUM)
#undef MOERT_OP_MATRIX_ENUM
        MOERT_OP_MATRICES
};
extern const moert_op_matrix moert_op_matrices[MOERT_OP_MATRICES];

/* The matrix that a buffer of values, scales or a global scale belongs to; NULL if none. */
const moert_op_matrix *moert_op_matrix_of(moert_op_buffer which);
moert_operand *moert_op_operand(const moert_op_options *options, moert_op_buffer which);

/* ---- fields ---- */

/* Bit masks of the kinds of ops that have a field, and the text for messages: the field's legal
 * value in other kinds. */
#define MOERT_OP_IS(kind)   (1u << MOERT_OP_##kind)
#define MOERT_OP_IN_ALL     ~0u, ""
#define MOERT_OP_IN_GEMMS   ~(MOERT_OP_IS(GLU) | MOERT_OP_IS(DGLU)), "false, except in a GEMM"
#define MOERT_OP_IN_FORWARD MOERT_OP_IS(GEMM_FORWARD), "false, except in gemm_forward"
#define MOERT_OP_IN_GLU     MOERT_OP_IS(GLU), "false, except in glu"
#define MOERT_OP_IN_DGLU    MOERT_OP_IS(DGLU), "false, except in dglu"
#define MOERT_OP_IN_GLUS    MOERT_OP_IS(GLU) | MOERT_OP_IS(DGLU), "false, except in glu and dglu"
#define MOERT_OP_NOT_GLU    ~MOERT_OP_IS(GLU), "false, except in a GEMM and dglu"
#define MOERT_OP_NOT_WGRAD  ~MOERT_OP_IS(GEMM_WGRAD), "false in gemm_wgrad"
#define MOERT_OP_IN_FORWARD_GLU                                                                    \
    MOERT_OP_IS(GEMM_FORWARD) | MOERT_OP_IS(GLU), "false, except in gemm_forward and glu"

/* What the op does with the buffer of a field. */
typedef enum moert_op_use {
    MOERT_OP_READ,
    MOERT_OP_ADD_TO,
    MOERT_OP_RAISE /* sets the maximum of the old and the new value */
} moert_op_use;

/* The dtype of a buffer's values: float32, or the options' bias_type. */
typedef enum moert_op_type { MOERT_OP_F32, MOERT_OP_BIAS } moert_op_type;

/* X(field, KINDS, buffer, USE, TYPE, shape): the fields that are true or false, and the buffers
 * that they add. */
#define MOERT_OP_FIELD_TABLE(X)                                                                    \
    X(alpha, IN_ALL, alpha, READ, F32, "G")                                                        \
    X(beta, NOT_GLU, beta, READ, F32, "G")                                                         \
    X(accumulate, IN_GEMMS, none, READ, F32, "")                                                   \
    X(bias, IN_FORWARD_GLU, bias, READ, BIAS, "GN")                                                \
    X(bias_scale, IN_FORWARD, bias_scale, READ, F32, "M")                                          \
    X(row_weight, IN_FORWARD, row_weight, READ, F32, "M")                                          \
    X(prob, NOT_WGRAD, prob, READ, F32, "M")                                                       \
    X(amax, NOT_WGRAD, amax, RAISE, F32, "GA")                                                     \
    X(save_c, IN_GLU, none, READ, F32, "")                                                         \
    X(dprob, IN_DGLU, dprob, ADD_TO, F32, "M")                                                     \
    X(dbias, IN_DGLU, dbias, ADD_TO, BIAS, "GV")                                                   \
    X(linear_first, IN_GLUS, none, READ, F32, "")                                                  \
    X(norm, IN_ALL, norm, READ, F32, "1")

enum {
#define MOERT_OP_FIELD_ENUM(field, ...) MOERT_OP_FIELD_##field,
    MOERT_OP_FIELD_TABLE(MOERT_OP_FIELD_ENUM)
#undef MOERT_OP_FIELD_ENUM
        MOERT_OP_FIELDS
};

typedef struct moert_op_field {
    const char *name;
    size_t at; /* offset of the bool in the options */
    unsigned kinds;
    const char *legal; /* the field's legal value in ops of other kinds, for messages */
    moert_op_buffer buffer;
    moert_op_use use;
    moert_op_type type;
    const char *shape;
} moert_op_field;

extern const moert_op_field moert_op_fields[MOERT_OP_FIELDS];

/* The field that adds a buffer; NULL if none. */
const moert_op_field *moert_op_field_of(moert_op_buffer which);
static inline bool *moert_op_flag(const moert_op_options *options, const moert_op_field *field) {
    return (bool *)((char *)options + field->at);
}
static inline bool moert_op_has_field(moert_op_kind kind, const moert_op_field *field) {
    return (field->kinds >> kind & 1) != 0;
}
