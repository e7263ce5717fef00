/* The table of the backends, and the choice of a backend for a device. */
#include "gemm/backend.h"
#include "base/memory.h"

static const moert_backend *const backends[] = {
#define MOERT_BACKEND_ROW(NAME, name) [MOERT_BACKEND_##NAME] = &moert_backend_##name,
    MOERT_BACKEND_TABLE(MOERT_BACKEND_ROW)
#undef MOERT_BACKEND_ROW
};

enum {
    FIRST_BACKEND = MOERT_BACKEND_AUTO + 1,
    BACKENDS = MOERT_COUNT(backends),
};

const moert_backend *moert_backend_at(size_t index) {
    return index < BACKENDS - FIRST_BACKEND ? backends[FIRST_BACKEND + index] : NULL;
}

const moert_backend *moert_backend_automatic(const moert_device *device) {
    size_t i = BACKENDS - 1;
    while (i > FIRST_BACKEND && backends[i]->supports(device, NULL) != NULL)
        i--;
    return backends[i];
}

const moert_backend *moert_backend_get(const moert_device *device) {
    const unsigned choice = moert_config_get()->backend;
    return choice == MOERT_BACKEND_AUTO ? moert_backend_automatic(device) : backends[choice];
}

const char *moert_backend_name(const moert_device *device) {
    return moert_backend_get(device)->name;
}

const char *moert_gemm_bf16_order(const moert_device *device) {
    if (moert_backend_get(device) == &moert_backend_nvidia)
        return "by tensor cores";
    return moert_dot_of(device, MOERT_DTYPE_BF16) == MOERT_DOT_TILE ? "in tiles" : "value by value";
}

moert_status moert_backend_check(const moert_device *device) {
    const moert_backend *backend = moert_backend_get(device);
    const char *required = backend->supports(device, NULL);
    if (required != NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "MOERT_BACKEND is %s, which takes %s, but the device is %s",
                          backend->name, required, moert_device_name(device));
    return MOERT_OK;
}
