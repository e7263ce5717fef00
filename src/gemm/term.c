/* What a step of a GEMM's chains takes. */
#include "base/config.h"
#include "gemm/backend.h"

moert_term moert_gemm_term(const moert_gemm *gemm, const moert_device *device) {
    return gemm->packed != NULL ? gemm->packed->term : moert_term_of(device, gemm->type);
}

moert_term moert_term_of(const moert_device *device, moert_number type) {
    const moert_device_info *info = moert_device_describe(device);
    if (type != MOERT_NUMBER_BF16)
        return MOERT_TERM_NUMBER;
    if (moert_device_sums_in_tiles(info))
        return MOERT_TERM_TILE;
    return info->has_bf16_dot && moert_config_get()->bf16 == MOERT_BF16_AUTO ? MOERT_TERM_PAIR
                                                                             : MOERT_TERM_NUMBER;
}
