/* The tables of fields.h as arrays, and functions that read them. */
#include "op/fields.h"

#include <string.h>

#include "base/memory.h"

/* ---- buffers ---- */

static const size_t buffer_offsets[] = {
#define BUFFER_OFFSET(name) [MOERT_OP_BUFFER_##name] = offsetof(moert_op_buffers, name),
    MOERT_OP_BUFFER_TABLE(BUFFER_OFFSET)
#undef BUFFER_OFFSET
};
static const char *const buffer_names[] = {
#define BUFFER_NAME(name) [MOERT_OP_BUFFER_##name] = #name,
    MOERT_OP_BUFFER_TABLE(BUFFER_NAME)
#undef BUFFER_NAME
};

const char *moert_op_buffer_name(moert_op_buffer which) {
    return buffer_names[which];
}

moert_buffer **moert_op_buffer_at(const moert_op_buffers *buffers, moert_op_buffer which) {
    return (moert_buffer **)((char *)buffers + buffer_offsets[which]);
}

/* ---- kinds, matrices, fields ---- */

moert_op_roles moert_op_roles_of(moert_op_kind kind) {
#define ROLES(name, gemm, a, b, c)                                                                 \
    {MOERT_GEMM_##gemm, MOERT_OP_BUFFER_##a, MOERT_OP_BUFFER_##b, MOERT_OP_BUFFER_##c},
    static const moert_op_roles roles[] = {MOERT_OP_ROLE_TABLE(ROLES)};
#undef ROLES
    return roles[kind];
}

bool moert_op_has_role(moert_op_kind kind, moert_op_buffer which) {
    const moert_op_roles is = moert_op_roles_of(kind);
    return which == is.first || which == is.second || which == is.result;
}

/* clang-format off */
#define MATRIX(name, shape, scale, global)                                                         \
    {#name, shape, offsetof(moert_op_options, name), MOERT_OP_BUFFER_##name,                       \
     MOERT_OP_BUFFER_##scale, MOERT_OP_BUFFER_##global},
#define FIELD(name, kinds, buffer, use, type, shape)                                               \
    {#name, offsetof(moert_op_options, name), MOERT_OP_##kinds, MOERT_OP_BUFFER_##buffer,          \
     MOERT_OP_##use, MOERT_OP_##type, shape},
const moert_op_matrix moert_op_matrices[] = {MOERT_OP_OPERAND_TABLE(MATRIX)};
const moert_op_field moert_op_fields[] = {MOERT_OP_FIELD_TABLE(FIELD)};
/* clang-format on */

const moert_op_matrix *moert_op_matrix_of(moert_op_buffer which) {
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++) {
        const moert_op_matrix *m = &moert_op_matrices[i];
        if (which != MOERT_OP_BUFFER_none &&
            (which == m->payload || which == m->scale || which == m->global))
            return m;
    }
    return NULL;
}

moert_operand *moert_op_operand(const moert_op_options *options, moert_op_buffer which) {
    return (moert_operand *)(void *)((char *)options + moert_op_matrix_of(which)->at);
}

const moert_op_field *moert_op_field_of(moert_op_buffer which) {
    for (size_t i = 0; i < MOERT_OP_FIELDS; i++)
        if (which != MOERT_OP_BUFFER_none && moert_op_fields[i].buffer == which)
            return &moert_op_fields[i];
    return NULL;
}

/* ---- sizes ---- */

size_t moert_op_size(const moert_op_options *o, char letter) {
    const bool dglu = o->kind == MOERT_OP_DGLU;
    return letter == 'G'   ? o->groups
           : letter == 'M' ? o->rows
           : letter == 'N' ? o->n
           : letter == 'K' ? o->k
           : letter == 'T' ? moert_ceil_div(o->rows, o->topk)
           : letter == 'V' ? (dglu ? 2 * o->k : o->n)
           : letter == 'D' ? (dglu ? 2 * o->k : o->n / 2)
           : letter == 'A' ? (dglu ? 2 : 1)
                           : 1;
}

const char *moert_op_shape(const moert_op_options *o, moert_op_buffer which) {
    const moert_op_field *field = moert_op_field_of(which);
    const moert_op_matrix *m = moert_op_matrix_of(which);
    const moert_op_roles is = moert_op_roles_of(o->kind);
    const bool tokens = o->permute == MOERT_OP_PERMUTE_X && is.result != MOERT_OP_BUFFER_x;
    if (field != NULL)
        return field->shape;
    if (m == NULL)
        return which == MOERT_OP_BUFFER_ends ? "G" : which == MOERT_OP_BUFFER_gather ? "M" : "";
    return which == m->scale                      ? ""
           : which == m->global                   ? "G"
           : which == MOERT_OP_BUFFER_column      ? moert_op_matrix_of(is.result)->shape
           : which == MOERT_OP_BUFFER_x && tokens ? "TK"
                                                  : m->shape;
}

size_t moert_op_columns(const moert_op_options *o, moert_op_buffer which) {
    const char *shape = moert_op_shape(o, which);
    return moert_op_size(o, shape[strlen(shape) - 1]);
}
