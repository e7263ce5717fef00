/*
 * Ships floats from rank to rank: weights and states of experts that move (train/move.h), and the
 * work that ranks repeat for each other (model/audit.h, train/cross_check.h).
 */
#pragma once

#include "comm/comm.h"
#include "device/elements.h"

typedef struct moert_parcel {
    size_t peer;           /* the rank that receives or sends the parcel; may be this rank */
    size_t count;          /* number of floats */
    moert_elements device; /* location of the elements; bf16 elements travel as float32 */
    float *host;           /* host memory of the elements, if device.buffer is NULL */
} moert_parcel;

typedef struct moert_parcels {
    moert_parcel *list;
    size_t count, room;
    float *values; /* host memory for all parcels; moert_ship keeps it for the next exchange */
    size_t values_room;
} moert_parcels;

void moert_parcels_free(moert_parcels *parcels);
/* Appends a parcel of device memory. */
moert_status moert_parcels_add(moert_parcels *parcels, size_t peer, size_t count,
                               moert_elements device);

/*
 * Sends `out` and receives `in`. Sender and receiver must list the parcels between these two ranks
 * with the same counts in the same order. All of `out` is read before any of `in` is written.
 * `status` is this rank's status so far. Collective; all ranks return the same status. Errors:
 * ERROR_MEMORY, ERROR_DEVICE, ERROR_COMM.
 */
moert_status moert_ship(moert_comm *comm, moert_parcels *out, moert_parcels *in,
                        moert_status status);
