/* Tests each backend on a device. */
#include <stdio.h>

#include "gemm/backend.h"

/* *product = 2 * 3, computed by the backend. */
static moert_status multiply(const moert_backend *by, moert_device *device, float *product) {
    const float x = 2.0f, weight = 3.0f;
    const uint32_t end = 1;
    const void *values[] = {&x, &weight, product, &end};
    moert_buffer *buffers[4] = {NULL};
    moert_status status = MOERT_OK;
    *product = 0.0f;
    for (size_t i = 0; i < 4; i++) {
        MOERT_TRY_OR(destroy, moert_buffer_create(device, sizeof(float), &buffers[i]));
        MOERT_TRY_OR(destroy, moert_buffer_write(buffers[i], 0, values[i], sizeof(float)));
    }
    const moert_gemm gemm = {.groups = {buffers[3], 1, 1},
                             .n = 1,
                             .k = 1,
                             .x = {.buffer = buffers[0]},
                             .weight = {.buffer = buffers[1]},
                             .y = {.buffer = buffers[2]}};
    MOERT_TRY_OR(destroy, moert_gemm_run_by(by, &gemm));
    MOERT_TRY_OR(destroy, moert_buffer_read(buffers[2], 0, product, sizeof *product));
destroy:
    for (size_t i = 0; i < 4; i++)
        moert_buffer_destroy(buffers[i]);
    return status;
}

bool moert_backend_survey(moert_device *device, size_t index, moert_backend_report *report) {
    const moert_backend *backend = moert_backend_at(index);
    float product = 0.0f;
    if (backend == NULL)
        return false;
    const char *required = backend->supports(device, NULL);
    *report = (moert_backend_report){.name = backend->name,
                                     .automatic = backend == moert_backend_automatic(device)};
    if (required != NULL)
        snprintf(report->reason, sizeof report->reason, "it takes %s", required);
    else if (multiply(backend, device, &product) != MOERT_OK)
        snprintf(report->reason, sizeof report->reason, "%s", moert_last_error());
    else if (product != 6.0f)
        snprintf(report->reason, sizeof report->reason, "it computes 2 * 3 = %g", (double)product);
    return true;
}
