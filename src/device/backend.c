/* The choice of a backend. */
#include "device/backend.h"

bool moert_has_tensor_cores(const moert_device *device) {
    return device != NULL && moert_device_describe(device)->nvidia >= 80;
}

unsigned moert_backend_automatic(const moert_device *device) {
    return moert_has_tensor_cores(device) ? MOERT_BACKEND_NVIDIA : MOERT_BACKEND_PORTABLE;
}

unsigned moert_backend_choice(const moert_device *device) {
    const unsigned choice = moert_config_get()->backend;
    return choice == MOERT_BACKEND_AUTO ? moert_backend_automatic(device) : choice;
}

moert_status moert_backend_check(const moert_device *device) {
    if (moert_config_get()->backend == MOERT_BACKEND_NVIDIA && !moert_has_tensor_cores(device))
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "MOERT_BACKEND is nvidia, which takes " MOERT_NVIDIA_TAKES ", not %s",
                          moert_device_name(device));
    return MOERT_OK;
}
