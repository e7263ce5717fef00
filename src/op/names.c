/* Names of ops, messages that refuse a field, and checks of the buffers. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

/* ---- the buffers of an execute ---- */

size_t moert_op_need_bytes(const moert_op_need *need) {
    size_t bytes;
    if (need->lines == 0 || need->width == 0)
        return 0;
    if (__builtin_mul_overflow(need->lines - 1, need->stride, &bytes) ||
        __builtin_add_overflow(bytes, need->width, &bytes) ||
        __builtin_mul_overflow(bytes, moert_dtype_bits(need->type) / 8, &bytes))
        return SIZE_MAX;
    return bytes;
}

size_t moert_op_buffer_bytes(const moert_op *op, const char *buffer) {
    const moert_op_need *need = NULL;
    if (op == NULL || buffer == NULL)
        return 0;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (strcmp(moert_op_buffer_name(i), buffer) == 0)
            need = &op->needs[i];
    if (strcmp(buffer, "weights") == 0)
        need = &op->weights;
    if (strcmp(buffer, "weight_scales") == 0)
        need = &op->weight_scales;
    return need != NULL && need->needed ? moert_op_need_bytes(need) : 0;
}

static moert_status check_one(const moert_op *op, const char *name, const moert_buffer *buffer,
                              const moert_op_need *need) {
    const char *const kind = moert_op_kind_name(op->options.kind);
    if (buffer == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s: buffer %s is NULL; expected %zu x %zu elements of %zu bits", kind,
                          name, need->lines, need->width, moert_dtype_bits(need->type));
    if (moert_buffer_device(buffer) != op->device)
        return MOERT_FAIL(ERROR_USAGE, "%s: buffer %s is on another device; expected %s", kind,
                          name, moert_device_name(op->device));
    if (moert_op_need_bytes(need) > moert_buffer_bytes(buffer))
        return MOERT_FAIL(ERROR_USAGE,
                          "%s: buffer %s has %zu bytes, too few for %zu lines of %zu elements of "
                          "%zu bits at stride %zu",
                          kind, name, moert_buffer_bytes(buffer), need->lines, need->width,
                          moert_dtype_bits(need->type), need->stride);
    return MOERT_OK;
}

/* Checks a list of one buffer per group. */
static moert_status check_discrete(const moert_op *op, const char *name, moert_buffer *const *list,
                                   const moert_op_need *need) {
    const moert_op_options *o = &op->options;
    const char *const kind = moert_op_kind_name(o->kind);
    if (!need->needed && list != NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: %s is given; expected NULL, since %s", kind, name,
                          o->weight.discrete ? "weight is plain" : "weight.discrete is false");
    if (!need->needed)
        return MOERT_OK;
    if (list == NULL && o->groups > 0)
        return MOERT_FAIL(
            ERROR_USAGE,
            "%s: %s is NULL; expected an array with a buffer per group (groups is %zu)", kind, name,
            o->groups);
    for (size_t g = 0; g < o->groups; g++) {
        char one[40];
        snprintf(one, sizeof one, "%s[%zu]", name, g);
        MOERT_TRY(check_one(op, one, list[g], need));
    }
    return MOERT_OK;
}

moert_status moert_op_check_buffers(const moert_op *op, const moert_op_buffers *buffers) {
    const char *const kind = moert_op_kind_name(op->options.kind);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_buffer *buffer = *moert_op_buffer_at(buffers, i);
        const moert_op_need *need = &op->needs[i];
        if (!need->needed && buffer != NULL)
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: buffer %s is given, but the description does not include it",
                              kind, moert_op_buffer_name(i));
        if (need->needed && (buffer != NULL || (need->lines > 0 && need->width > 0)))
            MOERT_TRY(check_one(op, moert_op_buffer_name(i), buffer, need));
    }
    MOERT_TRY(check_discrete(op, "weights", buffers->weights, &op->weights));
    return check_discrete(op, "weight_scales", buffers->weight_scales, &op->weight_scales);
}
