/* Repeats the updates of other ranks. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "train/cross_check.h"

/* An exchange of loads: this rank sends its own load to the rank that repeats its updates, and
 * receives a load from the rank whose updates it repeats. */
typedef struct exchange {
    moert_cross_check *check;
    size_t to, from, load;
    size_t *sends, *receives; /* [R] words for and from each rank */
} exchange;

/* Sends words to one rank and receives some from another. Collective. */
static moert_status swap(const exchange *e, const void *own, size_t sent, void *other,
                         size_t received) {
    e->sends[e->to] = sent;
    e->receives[e->from] = received;
    return moert_comm_alltoallv(e->check->world, own, e->sends, other, e->receives, sizeof(float));
}

/* Returns how many elements the present load has of a stream. */
static size_t floats_of(const exchange *e, const moert_checked_parts *parts) {
    const size_t start = e->load * MOERT_CHECKED_LOAD;
    return start < parts->floats ? moert_min(parts->floats - start, MOERT_CHECKED_LOAD) : 0;
}

/* u->values[kinds, floats] = the values that the updates of this rank's load read. */
static moert_status read_load(const exchange *e) {
    const moert_checked_update *u = &e->check->update;
    const size_t start = e->load * MOERT_CHECKED_LOAD, floats = floats_of(e, &u->own),
                 end = start + floats;
    for (size_t b = 0; b < moert_model_block_count(e->check->model); b++) {
        size_t ignored;
        const size_t first = u->start[b],
                     last =
                         first + moert_block_shard(moert_model_block(e->check->model, b), &ignored);
        const size_t from = moert_max(first, start), to = moert_min(last, end);
        for (size_t k = 0; k < moert_checked_kinds(e->check) && from < to; k++) {
            const moert_elements of = moert_checked_elements(e->check, b, k);
            MOERT_TRY(moert_elements_read(&of, from - first, to - from,
                                          u->values + k * floats + from - start));
        }
    }
    return MOERT_OK;
}

/* Updates part `index`, whose values are on the device in the buffers of the load. */
static moert_status update_part(const exchange *e, const moert_checked_parts *parts, size_t index) {
    const moert_checked_part *part = &parts->part[index];
    const size_t at = part->at - e->load * MOERT_CHECKED_LOAD;
    moert_elements of[MOERT_CHECKED_KINDS_MOST];
    for (size_t k = 0; k < moert_checked_kinds(e->check); k++)
        of[k] = (moert_elements){e->check->values[k], moert_checked_type(e->check, k), at};
    moert_update update = *e->check->update.coefficients;
    update.decay *= part->decay;
    update.at = at;
    update.part = part->first + part->count;
    update.first = part->first;
    update.keys = parts->keys;
    update.keys_at = index;
    return moert_update_weights(&update, part->count, e->check->values[MOERT_CHECK_WEIGHT],
                                &of[MOERT_CHECK_GRADIENT], &of[MOERT_CHECK_MOMENTS]);
}

/* Updates the parts [first, end), which form a load, and computes the digests of the results.
 * `values` has the values that the updates read. */
static moert_status update_load(const exchange *e, const moert_checked_parts *parts, size_t first,
                                size_t end, const float *values) {
    moert_cross_check *check = e->check;
    const size_t kinds = moert_checked_kinds(check), floats = floats_of(e, parts);
    for (size_t k = 0; k < kinds && floats > 0; k++) {
        const moert_elements of = {check->values[k], moert_checked_type(check, k), 0};
        MOERT_TRY(moert_elements_write(&of, 0, floats, values + k * floats));
    }
    for (size_t i = first; i < end; i++)
        MOERT_TRY(update_part(e, parts, i));
    if (parts == &check->update.own && first == 0 && end > 0)
        MOERT_TRY(moert_check_plant_bit(
            check, MOERT_CHECK_PLANT_OPTIMIZER,
            (moert_elements){check->values[MOERT_CHECK_WEIGHT], MOERT_DTYPE_F32, parts->part[0].at},
            parts->part[0].count));
    for (size_t k = MOERT_CHECK_WEIGHT; k < kinds; k++)
        MOERT_TRY(moert_checked_parts_digest(
            parts, k,
            (moert_elements){check->values[k], moert_checked_type(check, k),
                             (size_t)0 - e->load * MOERT_CHECKED_LOAD},
            first, end));
    return MOERT_OK;
}

/* Returns the end of the parts of the present load. `first` is the first of these parts. */
static size_t end_of_load(const exchange *e, const moert_checked_parts *parts, size_t first) {
    while (first < parts->count && parts->part[first].at / MOERT_CHECKED_LOAD == e->load)
        first++;
    return first;
}

/* Exchanges all loads, and updates those of the other rank and, if `with_own`, of this rank. */
static moert_status update_all(exchange *e, bool with_own) {
    moert_cross_check *check = e->check;
    const moert_checked_update *u = &check->update;
    const size_t kinds = moert_checked_kinds(check);
    moert_status status = MOERT_OK;
    for (size_t own = 0, other = 0, own_end, other_end; e->load < u->loads;
         e->load++, own = own_end, other = other_end) {
        own_end = end_of_load(e, &u->own, own);
        other_end = end_of_load(e, &u->other, other);
        if (status == MOERT_OK)
            status = read_load(e);
        MOERT_TRY(moert_comm_agree(check->world, status));
        MOERT_TRY(swap(e, u->values, kinds * floats_of(e, &u->own), u->others,
                       kinds * floats_of(e, &u->other)));
        if (with_own)
            status = update_load(e, &u->own, own, own_end, u->values);
        if (status == MOERT_OK)
            status = update_load(e, &u->other, other, other_end, u->others);
    }
    return status;
}

/* Allocates memory for the parts of the other rank. */
static moert_status prepare(exchange *e) {
    moert_checked_update *u = &e->check->update;
    const size_t ranks = moert_comm_size(e->check->world);
    u->other.count = u->counts[e->from][0];
    u->other.floats = u->counts[e->from][1];
    MOERT_TRY(MOERT_GROW(&u->other.part, &u->other.room, u->other.count));
    MOERT_TRY(MOERT_NEW_ARRAY(&e->sends, ranks));
    return MOERT_NEW_ARRAY(&e->receives, ranks);
}

/* Receives the list of parts of the other rank. Collective. */
static moert_status take_parts(const exchange *e) {
    moert_checked_update *u = &e->check->update;
    const size_t words = sizeof *u->own.part / sizeof(float);
    MOERT_TRY(swap(e, u->own.part, words * u->own.count, u->other.part, words * u->other.count));
    return moert_comm_agree(e->check->world, moert_checked_parts_upload(e->check, &u->other));
}

/* Reads the hashes of all repeated updates. */
static moert_status take_hashes(const exchange *e, uint64_t *own, uint64_t *other) {
    const moert_checked_update *u = &e->check->update;
    const size_t kinds = moert_checked_kinds(e->check);
    if (own != NULL)
        MOERT_TRY(moert_checked_parts_hash(&u->own, MOERT_CHECK_WEIGHT, kinds, own));
    return moert_checked_parts_hash(&u->other, MOERT_CHECK_WEIGHT, kinds, other);
}

moert_status moert_check_update_parts(moert_cross_check *check, size_t distance, uint64_t *own,
                                      uint64_t *other) {
    const size_t rank = moert_comm_rank(check->world);
    exchange e = {.check = check,
                  .to = moert_audit_repeater(check->audit, MOERT_AUDIT_TOKENS, rank, distance),
                  .from = moert_audit_repeated(check->audit, MOERT_AUDIT_TOKENS, rank, distance)};
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(check->world, prepare(&e)));
    MOERT_TRY_OR(done, take_parts(&e));
    status = update_all(&e, own != NULL);
    if (status == MOERT_OK)
        status = take_hashes(&e, own, other);
    status = moert_comm_agree(check->world, status);
done:
    MOERT_FREE(e.sends, e.receives);
    return status;
}
