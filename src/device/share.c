/* Work that spared compute units take part in once they are free. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "device/internal.h"
#include "device/staging.h"

void moert_device_spare(moert_device *device, unsigned units) {
    const unsigned all = device->info.compute_units;
    device->spared_units = units < all ? units : all - 1;
    for (; device->shares > 0; device->shares--) {
        moert_shared_work *share = &device->share[device->shares - 1];
        moert_event_free(share->ready);
        free(share->work);
    }
}

unsigned moert_device_units(const moert_device *device) {
    return device->info.compute_units - device->spared_units;
}

moert_status moert_device_share(moert_device *device, moert_work run, const void *work,
                                size_t bytes) {
    moert_shared_work *share = &device->share[device->shares];
    moert_status status;
    if (device->spared_units == 0 || device->shares == MOERT_MOST_SHARES)
        return run(work, moert_device_units(device), NULL);
    /* a copy of the work, zero counts, and a mark behind them and all that the work needs */
    MOERT_TRY(moert_buffer_reserve(device, MOERT_COUNTS_BYTES, &share->counts));
    MOERT_TRY(moert_buffer_clear(share->counts, 0, MOERT_COUNTS_BYTES));
    MOERT_TRY(moert_alloc(&share->work, 1, bytes));
    MOERT_TRY_OR(release, moert_event_record(device, &share->ready));
    memcpy(share->work, work, bytes);
    share->run = run;
    share->phase = moert_phase_get();
    device->shares++;
    return run(work, moert_device_units(device), share->counts);
release:
    free(share->work);
    return status;
}

moert_status moert_device_join_in(moert_device *device) {
    const moert_phase phase = moert_phase_get();
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < device->shares && status == MOERT_OK; i++) {
        const moert_shared_work *share = &device->share[i];
        moert_phase_set(share->phase);
        status = moert_event_follow(share->ready);
        if (status == MOERT_OK)
            status = share->run(share->work, device->spared_units, share->counts);
    }
    moert_phase_set(phase);
    return status;
}

void moert_shares_release(moert_device *device) {
    moert_device_spare(device, 0);
    for (size_t i = 0; i < MOERT_MOST_SHARES; i++)
        moert_buffer_destroy(device->share[i].counts);
}
