/* The names of ops and of their buffers, and refusals that give them. */
#include <stdarg.h>
#include <stdio.h>

#include "op/op.h"

moert_status moert_op_refuse(moert_status code, const moert_op *op, const char *field,
                             const char *legal, const char *format, ...) {
    char value[80];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    return moert_error_record(code, __func__, __LINE__, "%s: %s is %s; %s",
                              moert_op_kind_name(op->options.kind), field, value, legal);
}

moert_status moert_op_check_rules(const moert_op *op, const char *name, const moert_op_rule *rules,
                                  size_t count) {
    for (size_t i = 0; i < count; i++) {
        const moert_op_rule *r = &rules[i];
        char field[48];
        snprintf(field, sizeof field, "%s%s%s", name != NULL ? name : "", name != NULL ? "." : "",
                 r->field);
        if (r->broken && r->text != NULL)
            return moert_op_refuse(r->code, op, field, r->legal, "%s", r->text);
        if (r->broken)
            return moert_op_refuse(r->code, op, field, r->legal, "%zu", r->value);
    }
    return MOERT_OK;
}

static const char *const names[] = {
#define KIND_NAME(name, text) [MOERT_OP_##name] = (text),
    MOERT_OP_KIND_TABLE(KIND_NAME)
#undef KIND_NAME
};

const char *moert_op_kind_name(moert_op_kind kind) {
    return (unsigned)kind < MOERT_OP_KINDS ? names[kind] : NULL;
}

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
