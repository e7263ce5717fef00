/* Ships floats by one all-to-all of host memory. */
#include "layer/ship.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* One direction of an exchange: floats[R] to or from each rank. The values are ordered by rank. */
typedef struct cargo {
    moert_parcels *parcels;
    size_t *floats, *next; /* [R] */
} cargo;

void moert_parcels_free(moert_parcels *parcels) {
    MOERT_FREE(parcels->list, parcels->values);
}

moert_status moert_parcels_add(moert_parcels *parcels, size_t peer, size_t count,
                               moert_elements device) {
    MOERT_TRY(MOERT_GROW(&parcels->list, &parcels->room, parcels->count + 1));
    parcels->list[parcels->count++] = (moert_parcel){peer, count, device, NULL};
    return MOERT_OK;
}

/* next[R] = where the floats of each rank begin; returns the total number of floats. */
static size_t start(cargo *c, size_t ranks) {
    size_t sum = 0;
    for (size_t r = 0; r < ranks; r++) {
        c->next[r] = sum;
        sum += c->floats[r];
    }
    return sum;
}

static moert_status allocate(cargo *c, size_t ranks) {
    MOERT_TRY(MOERT_NEW_ARRAY(&c->floats, ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&c->next, ranks));
    for (size_t i = 0; i < c->parcels->count; i++)
        c->floats[c->parcels->list[i].peer] += c->parcels->list[i].count;
    return MOERT_GROW(&c->parcels->values, &c->parcels->values_room, start(c, ranks));
}

/* Copies the parcels to `values`, sorted by rank, or back from `values`. */
static moert_status copy(cargo *c, size_t ranks, bool back) {
    start(c, ranks);
    for (size_t i = 0; i < c->parcels->count; i++) {
        const moert_parcel *p = &c->parcels->list[i];
        float *values = c->parcels->values + c->next[p->peer];
        c->next[p->peer] += p->count;
        if (p->count == 0)
            continue;
        if (p->device.buffer == NULL)
            memcpy(back ? p->host : values, back ? values : p->host, p->count * sizeof *values);
        else
            MOERT_TRY(back ? moert_elements_write(&p->device, 0, p->count, values)
                           : moert_elements_read(&p->device, 0, p->count, values));
    }
    return MOERT_OK;
}

static moert_status prepare(cargo *out, cargo *in, size_t ranks) {
    MOERT_TRY(allocate(in, ranks));
    MOERT_TRY(allocate(out, ranks));
    return copy(out, ranks, false);
}

moert_status moert_ship(moert_comm *comm, moert_parcels *out, moert_parcels *in,
                        moert_status status) {
    const size_t ranks = moert_comm_size(comm);
    cargo sent = {.parcels = out}, received = {.parcels = in};
    MOERT_TRY_OR(done, moert_comm_agree(comm, status == MOERT_OK ? prepare(&sent, &received, ranks)
                                                                 : status));
    MOERT_TRY_OR(done, moert_comm_alltoallv(comm, out->values, sent.floats, in->values,
                                            received.floats, sizeof *out->values));
    status = moert_comm_agree(comm, copy(&received, ranks, true));
done:
    MOERT_FREE(sent.floats, sent.next, received.floats, received.next);
    return status;
}
