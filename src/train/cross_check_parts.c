/* The parts of the tensors that a rank updates, and the repetition of their updates. */
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "train/cross_check.h"

static size_t count_kinds(const moert_cross_check *check) {
    return MOERT_CHECK_MOMENTS + moert_optimizer_of(check->model)->moments;
}

moert_status moert_check_plant_bit(moert_cross_check *check, moert_check_plant site,
                                   moert_elements elements, size_t count) {
    const size_t each = elements.type == MOERT_DTYPE_F32 ? 1 : 2; /* elements of a word */
    if (!check->plants || check->plant_step != check->step || (int)check->plant.site != (int)site)
        return MOERT_OK;
    check->plants = false;
    return moert_plant_bit(&check->plant.plant, elements.buffer, elements.at / each, count / each);
}

/* ---- lists ---- */

static moert_status add_tensor(moert_cross_check *check, size_t index) {
    moert_checked_update *u = &check->update;
    const moert_model_tensor *tensor = &moert_model_tensors(check->model)[index];
    if (tensor->block == NULL || tensor->is_fixed)
        return MOERT_OK;
    const moert_model_range shard = moert_model_shard(tensor);
    const double decay = moert_optimizer_decays(check->optimizer, tensor) ? 1.0 : 0.0;
    for (size_t done = 0; done < shard.count; done += MOERT_CHECKED_PART) {
        MOERT_TRY(MOERT_GROW(&u->part, &u->room, u->parts + 1));
        u->part[u->parts++] =
            (moert_checked_part){.count = moert_min(shard.count - done, MOERT_CHECKED_PART),
                                 .decay = decay,
                                 .first = shard.first + done,
                                 .key = moert_optimizer_key(tensor),
                                 .tensor = index,
                                 .at = tensor->offset + shard.first + done};
    }
    return MOERT_OK;
}

static moert_status list_parts(moert_cross_check *check) {
    check->update.parts = 0;
    for (size_t i = 0; i < moert_model_tensor_count(check->model); i++)
        MOERT_TRY(add_tensor(check, i));
    return MOERT_OK;
}

/* The end of the load that begins with part `from` of `count`; *floats = those of its parts. */
static size_t end_of_load(const moert_checked_part *part, size_t from, size_t count,
                          size_t *floats) {
    for (*floats = 0; from < count && *floats + part[from].count <= MOERT_CHECKED_LOAD; from++)
        *floats += part[from].count;
    return from;
}

static moert_status allocate_hashes(moert_checked_update *u) {
    free(u->repeated);
    u->repeated = NULL;
    MOERT_TRY(MOERT_NEW_ARRAY(&u->repeated, u->most));
    for (int i = 0; i < MOERT_CHECKED_STATES; i++) {
        MOERT_FREE(u->was[i], u->is[i]);
        u->was[i] = u->is[i] = NULL;
        MOERT_TRY(MOERT_NEW_ARRAY(&u->was[i], u->most));
        MOERT_TRY(MOERT_NEW_ARRAY(&u->is[i], u->most));
    }
    return MOERT_OK;
}

moert_status moert_check_list_parts(moert_cross_check *check) {
    moert_checked_update *u = &check->update;
    const size_t before = u->most;
    MOERT_TRY(moert_comm_agree(check->world, list_parts(check)));
    uint64_t own[2] = {u->parts, 0};
    for (size_t at = 0, floats; at < u->parts; own[1]++)
        at = end_of_load(u->part, at, u->parts, &floats);
    MOERT_TRY(moert_comm_allgather(check->world, own, sizeof own, u->counts));
    u->most = u->loads = 0;
    for (size_t r = 0; r < moert_comm_size(check->world); r++) {
        u->most = moert_max(u->most, u->counts[r][0]);
        u->loads = moert_max(u->loads, u->counts[r][1]);
    }
    if (u->most == before)
        return MOERT_OK;
    u->chained = false;
    return moert_comm_agree(check->world, allocate_hashes(u));
}

/* ---- values ---- */

static moert_elements elements_of(const moert_cross_check *check, const moert_checked_part *part,
                                  size_t kind) {
    const moert_block *block = moert_model_tensors(check->model)[part->tensor].block;
    return kind == MOERT_CHECK_GRADIENT ? moert_block_gradient(block, part->at)
           : kind == MOERT_CHECK_WEIGHT
               ? (moert_elements){block->weight, MOERT_DTYPE_F32, part->at}
               : moert_optimizer_moment(check->optimizer, block, kind - MOERT_CHECK_MOMENTS,
                                        part->at);
}

moert_elements moert_check_first(const moert_cross_check *check, size_t kind) {
    return elements_of(check, &check->update.part[0], kind);
}

/* values[end - kind, count] = those of a part, of the kinds [kind, end). */
static moert_status read_part(const moert_cross_check *check, const moert_checked_part *part,
                              size_t kind, size_t end, float *values) {
    for (; kind < end; kind++, values += part->count) {
        const moert_elements of = elements_of(check, part, kind);
        MOERT_TRY(moert_elements_read(&of, 0, part->count, values));
    }
    return MOERT_OK;
}

static uint64_t hash_of(const float *values, size_t count) {
    uint64_t hash;
    const moert_checksum sum = moert_checksum_of(values, count * sizeof *values);
    memcpy(&hash, sum.byte, sizeof hash);
    return hash;
}

static moert_status hash_kinds(moert_cross_check *check, size_t kind, size_t end, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    for (size_t i = 0; i < u->parts; i++) {
        MOERT_TRY(read_part(check, &u->part[i], kind, end, u->values));
        hash[i] = hash_of(u->values, (end - kind) * u->part[i].count);
    }
    return MOERT_OK;
}

moert_status moert_check_read_gradients(moert_cross_check *check, uint64_t *hash) {
    return hash_kinds(check, MOERT_CHECK_GRADIENT, MOERT_CHECK_WEIGHT, hash);
}

moert_status moert_check_read_states(moert_cross_check *check, uint64_t *hash) {
    return hash_kinds(check, MOERT_CHECK_WEIGHT, count_kinds(check), hash);
}

/* ---- updates ---- */

/* Updates values[kinds, count] of a part on this device, and reads weight and moments back. */
static moert_status update_part(moert_cross_check *check, const moert_checked_part *part,
                                bool is_first, float *values, uint64_t *hash) {
    const size_t count = part->count, kinds = count_kinds(check);
    const moert_dtype moments =
        moert_state_dtype(moert_model_describe(check->model)->memory.moments);
    moert_elements of[MOERT_CHECKED_KINDS_MOST];
    for (size_t k = 0; k < kinds; k++)
        of[k] = (moert_elements){check->values[k],
                                 k < MOERT_CHECK_MOMENTS ? MOERT_DTYPE_F32 : moments, 0};
    moert_update update = *check->update.coefficients;
    update.decay *= part->decay;
    update.part = part->first + count;
    update.first = part->first;
    update.keys = check->key;
    MOERT_TRY(moert_buffer_write(check->key, 0, &part->key, sizeof part->key));
    for (size_t k = 0; k < kinds; k++)
        MOERT_TRY(moert_elements_write(&of[k], 0, count, values + k * count));
    MOERT_TRY(moert_update_weights(&update, count, check->values[MOERT_CHECK_WEIGHT],
                                   &of[MOERT_CHECK_GRADIENT], &of[MOERT_CHECK_MOMENTS]));
    if (is_first)
        MOERT_TRY(moert_check_plant_bit(check, MOERT_CHECK_PLANT_OPTIMIZER, of[MOERT_CHECK_WEIGHT],
                                        count));
    for (size_t k = MOERT_CHECK_WEIGHT; k < kinds; k++)
        MOERT_TRY(moert_elements_read(&of[k], 0, count, values + k * count));
    *hash = hash_of(values + count, (kinds - MOERT_CHECK_WEIGHT) * count);
    return MOERT_OK;
}

/* A load of parts on its way to the rank that repeats their updates, and one from another rank. */
typedef struct exchange {
    size_t to, from, others;
    moert_checked_part *part;     /* [others] of the other rank */
    size_t own, own_end, floats;  /* this rank's load, */
    size_t other, other_end, got; /* and the other one's */
    size_t *sends, *receives;     /* [R] words for and from each rank */
} exchange;

/* Sends words to one rank and receives some from another. Collective. */
static moert_status swap(const moert_cross_check *check, const exchange *e, const void *own,
                         void *other) {
    return moert_comm_alltoallv(check->world, own, e->sends, other, e->receives, sizeof(float));
}

/* Reads the load of this rank. With `own`, hashes what the update will read. */
static moert_status read_load(moert_cross_check *check, const exchange *e, const uint64_t *own) {
    const moert_checked_update *u = &check->update;
    const size_t kinds = count_kinds(check);
    float *values = u->values;
    for (size_t i = e->own; i < e->own_end; i++) {
        const size_t count = u->part[i].count;
        MOERT_TRY(read_part(check, &u->part[i], MOERT_CHECK_GRADIENT, kinds, values));
        if (own != NULL) {
            u->is[MOERT_CHECKED_GRADIENT][i] = hash_of(values, count);
            u->is[MOERT_CHECKED_STATE][i] =
                hash_of(values + count, (kinds - MOERT_CHECK_WEIGHT) * count);
        }
        values += kinds * count;
    }
    return MOERT_OK;
}

/* Updates both loads. */
static moert_status update_loads(moert_cross_check *check, const exchange *e, uint64_t *own,
                                 uint64_t *other) {
    const moert_checked_update *u = &check->update;
    const size_t kinds = count_kinds(check);
    float *values = u->values;
    for (size_t i = e->own; i < e->own_end && own != NULL; i++) {
        MOERT_TRY(update_part(check, &u->part[i], i == 0, values, &own[i]));
        values += kinds * u->part[i].count;
    }
    values = u->others;
    for (size_t i = e->other; i < e->other_end; i++) {
        MOERT_TRY(update_part(check, &e->part[i], false, values, &other[i]));
        values += kinds * e->part[i].count;
    }
    return MOERT_OK;
}

static moert_status update_all(moert_cross_check *check, exchange *e, uint64_t *own,
                               uint64_t *other) {
    const moert_checked_update *u = &check->update;
    const size_t kinds = count_kinds(check), words = sizeof *e->part / sizeof(float);
    moert_status status = MOERT_OK;
    e->sends[e->to] = u->parts * words;
    e->receives[e->from] = e->others * words;
    MOERT_TRY(swap(check, e, u->part, e->part));
    for (size_t l = 0; l < u->loads; l++, e->own = e->own_end, e->other = e->other_end) {
        e->own_end = end_of_load(u->part, e->own, u->parts, &e->floats);
        e->other_end = end_of_load(e->part, e->other, e->others, &e->got);
        e->sends[e->to] = kinds * e->floats;
        e->receives[e->from] = kinds * e->got;
        if (status == MOERT_OK)
            status = read_load(check, e, own);
        MOERT_TRY(moert_comm_agree(check->world, status));
        MOERT_TRY(swap(check, e, u->values, u->others));
        status = update_loads(check, e, own, other);
    }
    return moert_comm_agree(check->world, status);
}

static moert_status prepare(const moert_cross_check *check, exchange *e) {
    const size_t ranks = moert_comm_size(check->world);
    MOERT_TRY(MOERT_NEW_ARRAY(&e->part, e->others));
    MOERT_TRY(MOERT_NEW_ARRAY(&e->sends, ranks));
    return MOERT_NEW_ARRAY(&e->receives, ranks);
}

moert_status moert_check_update_parts(moert_cross_check *check, size_t distance, uint64_t *own,
                                      uint64_t *other) {
    const size_t rank = moert_comm_rank(check->world);
    exchange e = {.to = moert_audit_repeater(check->audit, MOERT_AUDIT_TOKENS, rank, distance),
                  .from = moert_audit_repeated(check->audit, MOERT_AUDIT_TOKENS, rank, distance)};
    e.others = check->update.counts[e.from][0];
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(check->world, prepare(check, &e)));
    status = update_all(check, &e, own, other);
done:
    MOERT_FREE(e.part, e.sends, e.receives);
    return status;
}
