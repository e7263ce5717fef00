/* Op objects: create, choose a backend, execute, compile, record. */
#include "moert/ops.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "device/buffer.h"
#include "device/record.h"
#include "op/op.h"

/* ---- backends ---- */

/* NULL if the backend supports the op, otherwise the reason why not. */
static const char *refusal(moert_op *op, const moert_backend *backend) {
    op->backend = backend;
    return moert_op_plan(op);
}

/* Chooses the last backend of the table that supports the op. A backend with coarse FP8 sums is
 * used for FP8 operands only if the caller names it. */
static void choose_automatic(moert_op *op) {
    size_t i = 0;
    const char *taken;
    while (moert_backend_at(i + 1) != NULL)
        i++;
    for (;; i--) {
        const moert_backend *backend = moert_backend_at(i);
        taken = backend->coarse_fp8 && moert_op_has_fp8_operands(op)
                    ? "FP8 operands when it is named"
                    : refusal(op, backend);
        if (taken == NULL)
            return;
        MOERT_DEBUG("%s: the %s backend is not used, since it takes only %s",
                    moert_op_kind_name(op->options.kind), backend->name, taken);
    }
}

static const moert_backend *named(const char *name) {
    size_t i = 0;
    while (moert_backend_at(i) != NULL && strcmp(moert_backend_at(i)->name, name) != 0)
        i++;
    return moert_backend_at(i);
}

static moert_status choose_backend(moert_op *op) {
    const char *const kind = moert_op_kind_name(op->options.kind), *name = op->options.backend;
    if (name == NULL || strcmp(name, "auto") == 0)
        name = moert_config_choice("MOERT_BACKEND", moert_config_get()->backend);
    const bool automatic = strcmp(name, "auto") == 0;
    const moert_backend *wanted = automatic ? NULL : named(name);
    const char *const taken = wanted != NULL ? refusal(op, wanted) : NULL;
    if (wanted != NULL && taken == NULL)
        return MOERT_OK;
    if (automatic || op->options.fallback) {
        choose_automatic(op);
        if (!automatic)
            MOERT_WARN("%s: backend is '%s', which %s%s; using %s instead", kind, name,
                       taken != NULL ? "takes only " : "does not exist", taken != NULL ? taken : "",
                       op->backend->name);
        return MOERT_OK;
    }
    if (taken != NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: backend is '%s', which takes only %s", kind, name,
                          taken);
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "%s: backend is '%s'; expected auto, nvidia, portable or reference", kind,
                      name);
}

/* ---- workspace ---- */

static void release_workspace(moert_op *op) {
    op->backend->release(&op->work);
    moert_op_free_conversions(op);
}

static moert_status make_workspace(moert_op *op, moert_workspace_from from,
                                   const moert_buffer *arena) {
    op->work = (moert_workspace){.from = from, .arena = arena};
    MOERT_TRY(moert_op_make_conversions(op));
    moert_gemm_more more;
    const moert_gemm gemm = moert_op_lower(op, NULL, &more);
    return op->backend->reserve(op->device, &gemm, &op->work);
}

/* Moves the workspace to a buffer of the caller. */
static moert_status bind_workspace(moert_op *op, const moert_buffer *workspace) {
    const void *const memory = moert_buffer_memory(workspace);
    if (!op->options.caller_workspace || (op->bound != NULL && op->bound == memory))
        return MOERT_OK;
    release_workspace(op);
    op->bound = NULL;
    MOERT_TRY(make_workspace(op, MOERT_WORKSPACE_ARENA, workspace));
    op->bound = memory;
    return MOERT_OK;
}

/* ---- create, execute, destroy ---- */

/* Makes an op: describes it, chooses the backend and, unless `counts`, allocates the workspace. */
static moert_status make(moert_device *device, const moert_op_options *options, bool counts,
                         moert_op **op) {
    moert_op *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    MOERT_TRY_OR(release, moert_op_describe(options, made));
    MOERT_TRY_OR(release, choose_backend(made));
    made->options.backend = made->backend->name;
    counts = counts || made->options.caller_workspace;
    MOERT_TRY_OR(
        release,
        make_workspace(made, counts ? MOERT_WORKSPACE_COUNTED : MOERT_WORKSPACE_ALLOCATED, NULL));
    made->needs[MOERT_OP_BUFFER_workspace] =
        (moert_op_need){made->options.caller_workspace && made->work.bytes > 0, MOERT_OP_BYTE, 1,
                        made->work.bytes, made->work.bytes};
    *op = made;
    return MOERT_OK;
release:
    moert_op_destroy(made);
    return status;
}

moert_status moert_op_create(moert_device *device, const moert_op_options *options, moert_op **op) {
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(op);
    MOERT_TRY(make(device, options, false, op));
    return MOERT_OK;
}

moert_status moert_op_check(moert_device *device, const moert_op_options *options,
                            const char **backend, size_t *workspace_bytes) {
    moert_op *op;
    MOERT_REQUIRE(device);
    MOERT_TRY(make(device, options, true, &op));
    if (backend != NULL)
        *backend = op->backend->name;
    if (workspace_bytes != NULL)
        *workspace_bytes = op->work.bytes;
    moert_op_destroy(op);
    return MOERT_OK;
}

void moert_op_destroy(moert_op *op) {
    if (op == NULL)
        return;
    if (op->backend != NULL)
        release_workspace(op);
    free(op);
}

moert_status moert_op_execute(moert_op *op, const moert_op_buffers *given) {
    moert_op_buffers taken, *buffers = &taken;
    MOERT_REQUIRE(op);
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_op_buffers, MOERT_OP_BUFFERS_INIT, &taken, given));
    MOERT_TRY(moert_op_check_buffers(op, buffers));
    if (op->options.groups == 0 ||
        (op->options.rows == 0 && op->options.kind != MOERT_OP_GEMM_WGRAD))
        return MOERT_OK;
    MOERT_TRY(bind_workspace(op, buffers->workspace));
    MOERT_TRY(moert_op_load_operands(op, buffers));
    moert_gemm_more more;
    const moert_gemm gemm = moert_op_lower(op, buffers, &more);
    MOERT_TRY(op->backend->run(&gemm));
    return moert_op_store_results(op, buffers);
}

moert_status moert_op_once(moert_device *device, const moert_op_options *options,
                           const moert_op_buffers *buffers) {
    moert_op *op;
    MOERT_TRY(moert_op_create(device, options, &op));
    const moert_status status = moert_op_execute(op, buffers);
    moert_op_destroy(op);
    MOERT_TRY(status);
    return MOERT_OK;
}

const char *moert_op_backend_name(const moert_op *op) {
    return op != NULL ? op->backend->name : NULL;
}

size_t moert_op_workspace_bytes(const moert_op *op) {
    return op != NULL ? op->work.bytes : 0;
}

/* ---- warm-up ---- */

/* Creates a buffer of zeros if it is needed. */
static moert_status make_buffer(moert_device *device, const moert_op_need *need,
                                moert_buffer **buffer) {
    if (!need->needed)
        return MOERT_OK;
    const size_t bytes = moert_op_need_bytes(need);
    MOERT_TRY(moert_buffer_create(device, bytes, buffer));
    return moert_buffer_clear(*buffer, 0, bytes);
}

/* Executes an op with one group and no rows, to compile its kernels. */
static moert_status execute_small(moert_op *small) {
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_buffer *discrete[2] = {NULL, NULL};
    moert_status status = MOERT_OK;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        MOERT_TRY_OR(destroy,
                     make_buffer(small->device, &small->needs[i], moert_op_buffer_at(&buffers, i)));
    MOERT_TRY_OR(destroy, make_buffer(small->device, &small->weights, &discrete[0]));
    MOERT_TRY_OR(destroy, make_buffer(small->device, &small->weight_scales, &discrete[1]));
    buffers.weights = small->weights.needed ? &discrete[0] : NULL;
    buffers.weight_scales = small->weight_scales.needed ? &discrete[1] : NULL;
    MOERT_TRY_OR(destroy, moert_op_execute(small, &buffers));
    MOERT_TRY_OR(destroy, moert_device_finish(small->device));
destroy:
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        moert_buffer_destroy(*moert_op_buffer_at(&buffers, i));
    MOERT_DESTROY(discrete[0], discrete[1]);
    return status;
}

moert_status moert_op_compile(moert_op *op) {
    MOERT_REQUIRE(op);
    enum { SMALL = 128 }; /* some kernels need multiples of 16, or of four blocks of 32 */
    moert_op_options options = op->options;
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++)
        moert_op_operand(&options, moert_op_matrices[i].payload)->stride = 0;
    options.caller_workspace = false;
    options.rows = SMALL;
    options.groups = options.topk = 1;
    options.n = SMALL + options.n % SMALL;
    options.k = SMALL + options.k % SMALL;
    options.interleave = op->run < op->glu_width ? op->run : 0;
    moert_op *small;
    MOERT_TRY(moert_op_create(op->device, &options, &small));
    const moert_status status = execute_small(small);
    moert_op_destroy(small);
    MOERT_TRY(status);
    return MOERT_OK;
}

/* ---- recordings ---- */

struct moert_op_recording {
    moert_recording *launches;
};

moert_status moert_op_record(moert_op *op, const moert_op_buffers *buffers,
                             moert_op_recording **recording) {
    moert_op_recording *made;
    moert_status status;
    MOERT_REQUIRE(op);
    MOERT_REQUIRE(recording);
    if (op->options.caller_workspace)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: caller_workspace is true; recording needs false",
                          moert_op_kind_name(op->options.kind));
    if (!op->backend->records)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: backend is '%s'; recording needs portable",
                          moert_op_kind_name(op->options.kind), op->backend->name);
    moert_op_buffers taken;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_op_buffers, MOERT_OP_BUFFERS_INIT, &taken, buffers));
    MOERT_TRY(moert_op_check_buffers(op, &taken));
    MOERT_TRY(moert_op_compile(op));
    MOERT_TRY(MOERT_NEW(&made));
    MOERT_TRY_OR(release, moert_recording_start(op->device, &made->launches));
    MOERT_TRY_OR(release, moert_op_execute(op, buffers));
    MOERT_TRY_OR(release, moert_recording_stop(made->launches));
    *recording = made;
    return MOERT_OK;
release:
    moert_op_recording_destroy(made);
    return status;
}

moert_status moert_op_replay(moert_op_recording *recording) {
    MOERT_REQUIRE(recording);
    return moert_recording_play(recording->launches);
}

void moert_op_recording_destroy(moert_op_recording *recording) {
    if (recording == NULL)
        return;
    moert_recording_destroy(recording->launches);
    free(recording);
}
