/* Op objects: creates them on a backend, checks the buffers of each execute, warms up. */
#include "moert/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "ops/op.h"

static const moert_op_backend *const backends[] = {&moert_op_backend_portable,
                                                   &moert_op_backend_reference};
enum { BACKENDS = sizeof backends / sizeof backends[0] };

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

moert_buffer **moert_op_buffer_at(moert_op_buffers *buffers, moert_op_buffer which) {
    return (moert_buffer **)((char *)buffers + buffer_offsets[which]);
}

/* ---- buffers ---- */

/* Elements from the first to the last one of a need; SIZE_MAX if there is no such number. */
static size_t elements_of(const moert_op_need *need) {
    size_t elements = 0;
    if (need->lines > 0 && need->width > 0 &&
        (__builtin_mul_overflow(need->lines - 1, need->stride, &elements) ||
         __builtin_add_overflow(elements, need->width, &elements)))
        return SIZE_MAX;
    return elements;
}

/* The same in bytes. */
static size_t bytes_of(const moert_op_need *need) {
    size_t bytes;
    if (__builtin_mul_overflow(elements_of(need), moert_number_bits(need->type) / 8, &bytes))
        return SIZE_MAX;
    return bytes;
}

static moert_op_need weight_of_group(const moert_op_options *o) {
    return (moert_op_need){true, o->weight.type, o->n, o->k, o->k};
}

static moert_status check_one(const moert_op *op, const char *name, const moert_buffer *buffer,
                              const moert_op_need *need) {
    const char *const kind = moert_op_kind_name(op->options.kind);
    if (buffer == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: buffer %s is NULL; %zu x %zu elements of %zu bits",
                          kind, name, need->lines, need->width, moert_number_bits(need->type));
    if (moert_buffer_device(buffer) != op->device)
        return MOERT_FAIL(ERROR_USAGE, "%s: buffer %s is of another device; %s", kind, name,
                          moert_device_name(op->device));
    if (bytes_of(need) > moert_buffer_bytes(buffer))
        return MOERT_FAIL(
            ERROR_USAGE,
            "%s: buffer %s has %zu bytes; %zu lines of %zu elements of %zu bits at stride %zu",
            kind, name, moert_buffer_bytes(buffer), need->lines, need->width,
            moert_number_bits(need->type), need->stride);
    return MOERT_OK;
}

static moert_status check_discrete(const moert_op *op, const moert_op_buffers *buffers) {
    const moert_op_options *o = &op->options;
    const char *const kind = moert_op_kind_name(o->kind);
    const moert_op_need need = weight_of_group(o);
    if (!o->weight.discrete && buffers->weights != NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: weights is given; NULL, as weight.discrete is false",
                          kind);
    if (!o->weight.discrete)
        return MOERT_OK;
    if (buffers->weights == NULL && o->groups > 0)
        return MOERT_FAIL(ERROR_USAGE, "%s: weights is NULL; %zu buffers", kind, o->groups);
    for (size_t g = 0; g < o->groups; g++) {
        char name[40];
        snprintf(name, sizeof name, "weights[%zu]", g);
        MOERT_TRY(check_one(op, name, buffers->weights[g], &need));
    }
    return MOERT_OK;
}

moert_status moert_op_check_buffers(const moert_op *op, const moert_op_buffers *buffers) {
    moert_op_buffers copy = *buffers;
    const char *const kind = moert_op_kind_name(op->options.kind);
    if (buffers->size != sizeof *buffers)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s: size of the buffers is %zu; %zu, by MOERT_OP_BUFFERS_INIT", kind,
                          buffers->size, sizeof *buffers);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_buffer *buffer = *moert_op_buffer_at(&copy, i);
        const moert_op_need *need = &op->needs[i];
        if (!need->needed && buffer != NULL)
            return MOERT_FAIL(ERROR_USAGE, "%s: buffer %s is given; NULL, as it is not described",
                              kind, buffer_names[i]);
        if (need->needed && (buffer != NULL || (need->lines > 0 && need->width > 0)))
            MOERT_TRY(check_one(op, buffer_names[i], buffer, need));
    }
    return check_discrete(op, buffers);
}

/* ---- backends ---- */

static const moert_op_backend *named(const char *name) {
    for (size_t i = 0; i < BACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static moert_status choose_backend(const moert_op_options *options,
                                   const moert_op_backend **chosen) {
    const char *name = options->backend;
    if (name == NULL || strcmp(name, "auto") == 0)
        name = moert_config_choice("MOERT_BACKEND", moert_config_get()->backend);
    *chosen = strcmp(name, "auto") == 0 ? backends[0] : named(name);
    if (*chosen == NULL && options->fallback) {
        *chosen = backends[0];
        MOERT_WARN("%s: there is no backend '%s'; taking %s", moert_op_kind_name(options->kind),
                   name, (*chosen)->name);
    }
    if (*chosen == NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: backend is '%s'; auto, portable or reference",
                          moert_op_kind_name(options->kind), name);
    return MOERT_OK;
}

moert_status moert_op_create(moert_device *device, const moert_op_options *options, moert_op **op) {
    moert_op *made;
    MOERT_TRY(MOERT_NEW(&made));
    moert_status status;
    made->device = device;
    MOERT_TRY_OR(release, moert_op_describe(options, made));
    MOERT_TRY_OR(release, choose_backend(options, &made->backend));
    made->options.backend = made->backend->name;
    MOERT_TRY_OR(release, made->backend->create(made));
    *op = made;
    return MOERT_OK;
release:
    free(made);
    return status;
}

void moert_op_destroy(moert_op *op) {
    if (op == NULL)
        return;
    op->backend->destroy(op);
    free(op);
}

moert_status moert_op_execute(moert_op *op, const moert_op_buffers *buffers) {
    MOERT_TRY(moert_op_check_buffers(op, buffers));
    if (op->options.groups == 0 ||
        (op->options.rows == 0 && op->options.kind != MOERT_OP_GEMM_WGRAD))
        return MOERT_OK;
    MOERT_TRY(op->backend->execute(op, buffers));
    return MOERT_OK;
}

moert_status moert_op_once(moert_device *device, const moert_op_options *options,
                           const moert_op_buffers *buffers) {
    moert_op *op;
    MOERT_TRY(moert_op_create(device, options, &op));
    const moert_status status = moert_op_execute(op, buffers);
    moert_op_destroy(op);
    if (status != MOERT_OK)
        return moert_error_pass(status, __func__, __LINE__);
    return MOERT_OK;
}

const char *moert_op_backend_name(const moert_op *op) {
    return op->backend->name;
}

size_t moert_op_workspace_bytes(const moert_op *op) {
    return op->workspace_bytes;
}

size_t moert_op_buffer_bytes(const moert_op *op, const char *buffer) {
    if (strcmp(buffer, "weights") == 0 && op->options.weight.discrete) {
        const moert_op_need need = weight_of_group(&op->options);
        return bytes_of(&need);
    }
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (strcmp(buffer, buffer_names[i]) == 0 && op->needs[i].needed)
            return bytes_of(&op->needs[i]);
    return 0;
}

/* ---- warm-up ---- */

static void destroy_buffers(moert_op_buffers *buffers, moert_buffer *weight) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        moert_buffer_destroy(*moert_op_buffer_at(buffers, i));
    moert_buffer_destroy(weight);
}

/* A buffer of zeros for a need. */
static moert_status make_buffer(moert_device *device, const moert_op_need *need,
                                moert_buffer **buffer) {
    const size_t bytes = need->lines * need->stride * sizeof(float);
    MOERT_TRY(moert_buffer_create(device, bytes, buffer));
    return moert_buffer_clear(*buffer, 0, bytes);
}

/* One group without rows through a small op of the same kernels. */
static moert_status execute_small(moert_op *small) {
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    const moert_op_options *o = &small->options;
    const moert_op_need weight_need = weight_of_group(o);
    moert_buffer *weight = NULL;
    moert_status status = MOERT_OK;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (small->needs[i].needed)
            MOERT_TRY_OR(destroy, make_buffer(small->device, &small->needs[i],
                                              moert_op_buffer_at(&buffers, i)));
    if (o->weight.discrete) {
        MOERT_TRY_OR(destroy, make_buffer(small->device, &weight_need, &weight));
        buffers.weights = &weight;
    }
    MOERT_TRY_OR(destroy, moert_op_execute(small, &buffers));
    MOERT_TRY_OR(destroy, moert_device_finish(small->device));
destroy:
    destroy_buffers(&buffers, weight);
    return status;
}

moert_status moert_op_compile(moert_op *op) {
    enum { SMALL = 64 };
    moert_op_options options = op->options;
    moert_operand *const operands[] = {&options.x, &options.weight, &options.y, &options.c,
                                       &options.d};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        operands[i]->stride = 0;
    options.groups = options.rows = options.topk = 1;
    options.n = options.k = SMALL;
    options.interleave = op->run < op->glu_width ? op->run : 0;
    moert_op *small;
    MOERT_TRY(moert_op_create(op->device, &options, &small));
    const moert_status status = execute_small(small);
    moert_op_destroy(small);
    if (status != MOERT_OK)
        return moert_error_pass(status, __func__, __LINE__);
    return MOERT_OK;
}
