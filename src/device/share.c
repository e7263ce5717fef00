/* Reserves compute units, and later lets these units help with shared work (see share.h). */
#include "device/share.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "device/internal.h"
#include "device/queue.h"

enum { COUNTS_BYTES = 2 * sizeof(uint32_t) };

void moert_device_reserve_units(moert_device *device, unsigned units) {
    const unsigned all = device->info.compute_units;
    device->spared_units = units < all ? units : all - 1;
    for (; device->shared_count > 0; device->shared_count--) {
        moert_shared_work *shared = &device->shared[device->shared_count - 1];
        moert_event_free(shared->ready);
        free(shared->work);
    }
}

unsigned moert_device_units(const moert_device *device) {
    return device->info.compute_units - device->spared_units;
}

moert_status moert_device_share(moert_device *device, moert_work run, const void *work,
                                size_t bytes) {
    moert_shared_work *shared = &device->shared[device->shared_count];
    moert_status status;
    if (device->spared_units == 0 || device->shared_count == MOERT_MOST_SHARED_WORKS)
        return run(work, moert_device_units(device), NULL);
    /* `ready` completes after the clear and all commands enqueued before it, which compute the
     * work's inputs */
    MOERT_TRY(moert_buffer_reserve(device, COUNTS_BYTES, &shared->counts));
    MOERT_TRY(moert_buffer_clear(shared->counts, 0, COUNTS_BYTES));
    MOERT_TRY(moert_alloc(&shared->work, 1, bytes));
    MOERT_TRY_OR(release, moert_event_record(device, &shared->ready));
    memcpy(shared->work, work, bytes);
    shared->run = run;
    shared->phase = moert_phase_get();
    device->shared_count++;
    return run(work, moert_device_units(device), shared->counts);
release:
    free(shared->work);
    return status;
}

moert_status moert_device_run_shared(moert_device *device) {
    const moert_phase phase = moert_phase_get();
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < device->shared_count && status == MOERT_OK; i++) {
        const moert_shared_work *shared = &device->shared[i];
        moert_phase_set(shared->phase);
        status = moert_event_follow(shared->ready);
        if (status == MOERT_OK)
            status = shared->run(shared->work, device->spared_units, shared->counts);
    }
    moert_phase_set(phase);
    return status;
}

void moert_shared_work_release(moert_device *device) {
    moert_device_reserve_units(device, 0);
    for (size_t i = 0; i < MOERT_MOST_SHARED_WORKS; i++)
        moert_buffer_destroy(device->shared[i].counts);
}
