/* Functions that several backends use: dots, workspaces, and tests of a GEMM. */
#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"
#include "gemm/backend.h"

moert_dot moert_gemm_dot(const moert_gemm *gemm, const moert_device *device) {
    return gemm->panels != NULL ? gemm->panels->dot : moert_dot_of(device, moert_gemm_type(gemm));
}

/* The dot of bf16 GEMMs; `pays`: pairs are faster where the CPU has an instruction for them. */
static moert_dot dot_of(const moert_device_info *info, bool pays) {
    if (moert_device_sums_in_tiles(info))
        return MOERT_DOT_TILE;
    return info->has_bf16_dot && pays && moert_config_get()->bf16 == MOERT_BF16_AUTO
               ? MOERT_DOT_PAIR
               : MOERT_DOT_SCALAR;
}

moert_dot moert_dot_of(const moert_device *device, moert_dtype type) {
    const moert_device_info *info = moert_device_describe(device);
    return type == MOERT_DTYPE_BF16 ? dot_of(info, info->bf16_dot_pays) : MOERT_DOT_SCALAR;
}

moert_dot moert_dot_of_few_rows(const moert_device *device, moert_dtype type) {
    return type == MOERT_DTYPE_BF16 ? dot_of(moert_device_describe(device), true)
                                    : MOERT_DOT_SCALAR;
}

enum { VIEW_ALIGNMENT_BYTES = 512 }; /* of moert_buffer_view */

moert_status moert_workspace_add(moert_device *device, size_t count, size_t bytes,
                                 moert_workspace *work, moert_buffer **buffer) {
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total))
        return MOERT_FAIL(ERROR_MEMORY, "a workspace of %zu x %zu bytes exceeds the address space",
                          count, bytes);
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

bool moert_gemm_has_epilogue(const moert_gemm *gemm) {
    const moert_gemm_more *m = gemm->more;
    return gemm->epilogue.alpha != NULL || gemm->epilogue.addend == MOERT_ADDEND_LAST ||
           m->beta != NULL || m->bias_scale != NULL || m->row_weight != NULL || m->prob != NULL ||
           m->amax != NULL || m->bias_type != MOERT_DTYPE_F32;
}

bool moert_gemm_is_plain(const moert_gemm *gemm) {
    return !moert_gemm_has_epilogue(gemm) && moert_gemm_output(gemm)->type == MOERT_DTYPE_F32 &&
           gemm->x.gather == NULL && gemm->y.gather == NULL && !gemm->more->discrete &&
           gemm->glu.gated != MOERT_GATED_BACKWARD;
}

const char *moert_gemm_name(const moert_gemm *gemm) {
    static const char *const names[] = {[MOERT_GEMM_FORWARD] = "gemm_forward",
                                        [MOERT_GEMM_DGRAD] = "gemm_dgrad",
                                        [MOERT_GEMM_WGRAD] = "gemm_wgrad",
                                        [MOERT_GEMM_BIAS_GRAD] = "gemm_bias_grad"};
    return gemm->glu.gated == MOERT_GATED            ? "glu"
           : gemm->glu.gated == MOERT_GATED_BACKWARD ? "dglu"
                                                     : names[gemm->kind];
}
