/* Functions that several backends use: dots, workspaces, and tests of a GEMM. */
#include "base/config.h"
#include "base/memory.h"
#include "gemm/backend.h"

moert_dot moert_gemm_dot(const moert_gemm *gemm, const moert_device *device) {
    return gemm->prepacked != NULL ? gemm->prepacked->dot : moert_dot_of(device, gemm->type);
}

moert_dot moert_dot_of(const moert_device *device, moert_dtype type) {
    const moert_device_info *info = moert_device_describe(device);
    if (type != MOERT_DTYPE_BF16)
        return MOERT_DOT_SCALAR;
    if (moert_device_sums_in_tiles(info))
        return MOERT_DOT_TILE;
    return info->has_bf16_dot && moert_config_get()->bf16 == MOERT_BF16_AUTO ? MOERT_DOT_PAIR
                                                                             : MOERT_DOT_SCALAR;
}

enum { VIEW_ALIGNMENT_BYTES = 512 }; /* of moert_buffer_view */

moert_status moert_workspace_add(moert_device *device, size_t count, size_t bytes,
                                 moert_workspace *work, moert_buffer **buffer) {
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total))
        return MOERT_FAIL(ERROR_MEMORY, "workspace of %zu x %zu bytes", count, bytes);
    if (work->from == MOERT_WORKSPACE_ALLOCATED) {
        work->bytes += total;
        return moert_buffer_create(device, total, buffer);
    }
    const size_t start = work->bytes;
    work->bytes = moert_round_up(start + total, VIEW_ALIGNMENT_BYTES);
    *buffer = NULL;
    return work->from == MOERT_WORKSPACE_ARENA
               ? moert_buffer_view(work->arena, start, total, buffer)
               : MOERT_OK;
}

bool moert_epilogue_is_empty(const moert_epilogue *e) {
    return e->alpha == NULL && e->beta == NULL && !e->add && e->bias_scale == NULL &&
           e->row_weight == NULL && e->prob == NULL && e->amax == NULL;
}

bool moert_gemm_is_plain(const moert_gemm *gemm) {
    return moert_epilogue_is_empty(&gemm->more->epilogue) &&
           gemm->more->epilogue.bias_type == MOERT_DTYPE_F32 && gemm->result == MOERT_DTYPE_F32 &&
           gemm->more->x_gather == NULL && gemm->more->y_gather == NULL && !gemm->more->discrete &&
           gemm->gated != MOERT_GATED_BACKWARD;
}

const char *moert_gemm_name(const moert_gemm *gemm) {
    static const char *const names[] = {[MOERT_GEMM_FORWARD] = "gemm_forward",
                                        [MOERT_GEMM_DGRAD] = "gemm_dgrad",
                                        [MOERT_GEMM_WGRAD] = "gemm_wgrad",
                                        [MOERT_GEMM_BIAS_GRAD] = "gemm_bias_grad"};
    return gemm->gated == MOERT_GATED            ? "glu"
           : gemm->gated == MOERT_GATED_BACKWARD ? "dglu"
                                                 : names[gemm->kind];
}
