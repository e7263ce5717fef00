/* The table of the backends, and whether each works on a device. */
#include "gemm/backend.h"

#include <stdio.h>

#define REFERENCE_ENTRY(entry, argument) .entry = moert_reference_##entry,
#define PORTABLE_ENTRY(entry, argument)  .entry = moert_portable_##entry,
#define NVIDIA_ENTRY(entry, argument)    .entry = moert_nvidia_##entry,
#define ENTRIES_reference                MOERT_OPS_TABLE(REFERENCE_ENTRY)
#define ENTRIES_portable                 MOERT_OPS_TABLE(PORTABLE_ENTRY)
#define ENTRIES_nvidia                                                                             \
    MOERT_PRODUCTS_TABLE(NVIDIA_ENTRY)                                                             \
    MOERT_OTHERS_TABLE(PORTABLE_ENTRY)

static const moert_backend backends[] = {
#define MOERT_BACKEND_ROW(NAME, word, pack)                                                        \
    [MOERT_BACKEND_##NAME] = {.name = #word, .packing = (pack), ENTRIES_##word},
    MOERT_BACKEND_TABLE(MOERT_BACKEND_ROW)
#undef MOERT_BACKEND_ROW
};

enum {
    FIRST_BACKEND = MOERT_BACKEND_AUTO + 1,
    BACKENDS = sizeof backends / sizeof backends[0],
};

const moert_backend *moert_backend_get(const moert_device *device) {
    return &backends[moert_backend_choice(device)];
}

const char *moert_backend_name(const moert_device *device) {
    return moert_backend_get(device)->name;
}

/* *product = 2 * 3 by the backend. */
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
    const moert_gemm gemm = {.groups = {.ends = buffers[3], .count = 1, .rows = 1},
                             .n = 1,
                             .k = 1,
                             .x = buffers[0],
                             .weight = buffers[1],
                             .y = buffers[2],
                             .ldx = 1,
                             .ldy = 1};
    MOERT_TRY_OR(destroy, by->gemm_forward(&gemm));
    MOERT_TRY_OR(destroy, moert_buffer_read(buffers[2], 0, product, sizeof *product));
destroy:
    for (size_t i = 0; i < 4; i++)
        moert_buffer_destroy(buffers[i]);
    return status;
}

bool moert_backend_survey(moert_device *device, size_t index, moert_backend_report *report) {
    if (index >= BACKENDS - FIRST_BACKEND)
        return false;
    float product = 0.0f;
    const unsigned number = FIRST_BACKEND + (unsigned)index;
    *report = (moert_backend_report){.name = backends[number].name,
                                     .automatic = number == moert_backend_automatic(device)};
    if (number == MOERT_BACKEND_NVIDIA && !moert_has_tensor_cores(device))
        snprintf(report->reason, sizeof report->reason, "it takes %s", MOERT_NVIDIA_TAKES);
    else if (multiply(&backends[number], device, &product) != MOERT_OK)
        snprintf(report->reason, sizeof report->reason, "%s", moert_last_error());
    else if (product != 6.0f)
        snprintf(report->reason, sizeof report->reason, "it takes 2 * 3 for %g", (double)product);
    return true;
}
