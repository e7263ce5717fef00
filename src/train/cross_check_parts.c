/* Divides the tensors that a rank updates into parts, and computes the digests of parts. */
#include <stdlib.h>
#include <string.h>

#include "args/nn.h"
#include "base/checksum.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "train/cross_check.h"

size_t moert_checked_kinds(const moert_cross_check *check) {
    return MOERT_CHECK_MOMENTS + moert_optimizer_of(check->model)->moments;
}

moert_dtype moert_checked_type(const moert_cross_check *check, size_t kind) {
    return kind < MOERT_CHECK_MOMENTS
               ? MOERT_DTYPE_F32
               : moert_state_dtype(moert_model_describe(check->model)->memory.moments);
}

moert_status moert_check_plant_bit(moert_cross_check *check, moert_check_plant site,
                                   moert_elements elements, size_t count) {
    const size_t each = elements.type == MOERT_DTYPE_F32 ? 1 : 2; /* elements per 32-bit word */
    if (!check->plants || check->plant_step != check->step || (int)check->plant.site != (int)site)
        return MOERT_OK;
    check->plants = false;
    return moert_plant_bit(&check->plant.plant, elements.buffer, elements.at / each, count / each);
}

/* ---- tables of parts ---- */

enum { ROW = MOERT_SQUARES_CHUNK }; /* the most elements of a row */

static size_t rows_of(const moert_checked_part *part) {
    return moert_ceil_div(part->count, ROW);
}

/* table[rows] = the rows of the parts; sets first_row and sizes. */
static void list_rows(moert_checked_parts *parts, moert_digest_row *table) {
    size_t rows = 0;
    parts->sizes = 0;
    for (size_t i = 0; i < parts->count; i++) {
        const moert_checked_part *p = &parts->part[i];
        parts->first_row[i] = rows;
        parts->sizes |= p->at | p->count;
        for (size_t done = 0; done < p->count; done += ROW)
            table[rows++] = (moert_digest_row){p->at + done, moert_min(p->count - done, ROW)};
    }
    parts->first_row[parts->count] = rows;
}

static moert_status write_tables(const moert_cross_check *check, moert_checked_parts *parts,
                                 moert_digest_row *table, uint64_t *keys) {
    moert_device *device = moert_model_mesh(check->model)->device;
    const size_t rows = parts->first_row[parts->count], kinds = moert_checked_kinds(check);
    for (size_t i = 0; i < parts->count; i++)
        keys[i] = parts->part[i].key;
    MOERT_TRY(moert_buffer_reserve(device, rows * sizeof *table, &parts->table));
    MOERT_TRY(moert_buffer_reserve(device, kinds * rows * sizeof *keys, &parts->digests));
    MOERT_TRY(moert_buffer_reserve(device, parts->count * sizeof *keys, &parts->keys));
    MOERT_TRY(moert_buffer_write(parts->table, 0, table, rows * sizeof *table));
    return moert_buffer_write(parts->keys, 0, keys, parts->count * sizeof *keys);
}

moert_status moert_checked_parts_upload(const moert_cross_check *check,
                                        moert_checked_parts *parts) {
    size_t rows = 0;
    for (size_t i = 0; i < parts->count; i++)
        rows += rows_of(&parts->part[i]);
    moert_digest_row *table = NULL;
    uint64_t *keys = NULL;
    free(parts->first_row);
    parts->first_row = NULL;
    moert_status status;
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&parts->first_row, parts->count + 1));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&table, rows));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&keys, parts->count));
    list_rows(parts, table);
    status = parts->count > 0 ? write_tables(check, parts, table, keys) : MOERT_OK;
done:
    MOERT_FREE(table, keys);
    return status;
}

moert_status moert_checked_parts_digest(const moert_checked_parts *parts, size_t kind,
                                        moert_elements x, size_t first, size_t end) {
    const size_t row = parts->first_row[first];
    return moert_digest_spans(
        &(moert_span_digest){.x = x,
                             .table = parts->table,
                             .first_row = row,
                             .rows = parts->first_row[end] - row,
                             .sizes = parts->sizes,
                             .digest = parts->digests,
                             .first = kind * parts->first_row[parts->count] + row});
}

moert_status moert_checked_parts_hash(const moert_checked_parts *parts, size_t kind, size_t end,
                                      uint64_t *hash) {
    const size_t rows = parts->first_row[parts->count], count = (end - kind) * rows;
    uint64_t *digest;
    if (count == 0)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW_ARRAY(&digest, count));
    const moert_status status = moert_buffer_read(parts->digests, kind * rows * sizeof *digest,
                                                  digest, count * sizeof *digest);
    for (size_t i = 0; i < parts->count && status == MOERT_OK; i++) {
        const size_t first = parts->first_row[i], own = parts->first_row[i + 1] - first;
        uint64_t of_kind[MOERT_CHECKED_KINDS_MOST] = {0};
        for (size_t k = 0; k < end - kind; k++)
            memcpy(&of_kind[k],
                   moert_checksum_of(digest + k * rows + first, own * sizeof *digest).byte,
                   sizeof of_kind[k]);
        memcpy(&hash[i], moert_checksum_of(of_kind, sizeof of_kind).byte, sizeof hash[i]);
    }
    free(digest);
    return status;
}

void moert_checked_parts_free(moert_checked_parts *parts) {
    MOERT_DESTROY(parts->table, parts->digests, parts->keys);
    MOERT_FREE(parts->part, parts->first_row);
}

/* ---- the parts of this rank ---- */

moert_elements moert_checked_elements(const moert_cross_check *check, size_t block, size_t kind) {
    const moert_block *of = moert_model_block(check->model, block);
    size_t first;
    moert_block_shard(of, &first);
    return kind == MOERT_CHECK_GRADIENT ? moert_block_gradient(of, first)
           : kind == MOERT_CHECK_WEIGHT
               ? (moert_elements){of->weight, MOERT_DTYPE_F32, first}
               : moert_optimizer_moment(check->optimizer, of, kind - MOERT_CHECK_MOMENTS, first);
}

moert_elements moert_check_first(const moert_cross_check *check, size_t kind) {
    const moert_checked_update *u = &check->update;
    size_t block = 0;
    while (u->own.part[0].at >= u->start[block + 1])
        block++;
    moert_elements of = moert_checked_elements(check, block, kind);
    of.at += u->own.part[0].at - u->start[block];
    return of;
}

/* Lists the parts of a tensor. The shard of the tensor's block begins at element `start` of the
 * stream. */
static moert_status add_tensor(moert_cross_check *check, size_t index, size_t start) {
    moert_checked_parts *own = &check->update.own;
    const moert_model_tensor *tensor = &moert_model_tensors(check->model)[index];
    const moert_model_range shard = moert_model_shard(tensor);
    size_t first, at;
    moert_block_shard(tensor->block, &first);
    at = start + tensor->offset + shard.first - first;
    for (size_t done = 0, count; done < shard.count; done += count, at += count) {
        count = moert_min(shard.count - done, MOERT_CHECKED_LOAD - at % MOERT_CHECKED_LOAD);
        MOERT_TRY(MOERT_GROW(&own->part, &own->room, own->count + 1));
        own->part[own->count++] = (moert_checked_part){
            .at = at,
            .count = count,
            .decay = moert_optimizer_decays(check->optimizer, tensor) ? 1.0 : 0.0,
            .first = shard.first + done,
            .key = moert_optimizer_key(tensor),
            .tensor = index};
    }
    return MOERT_OK;
}

static int compare_places(const void *left, const void *right) {
    const moert_checked_part *a = left, *b = right;
    return (a->at > b->at) - (a->at < b->at);
}

static moert_status list_parts(moert_cross_check *check) {
    moert_checked_update *u = &check->update;
    const moert_model_tensor *tensor = moert_model_tensors(check->model);
    u->own.count = 0;
    for (size_t b = 0; b < moert_model_block_count(check->model); b++) {
        const moert_block *block = moert_model_block(check->model, b);
        size_t first;
        u->start[b + 1] =
            u->start[b] + moert_round_up(moert_block_shard(block, &first), MOERT_VIEW_FLOATS);
        for (size_t i = 0; i < moert_model_tensor_count(check->model); i++)
            if (tensor[i].block == block && !tensor[i].is_fixed)
                MOERT_TRY(add_tensor(check, i, u->start[b]));
    }
    u->own.floats = u->start[moert_model_block_count(check->model)];
    qsort(u->own.part, u->own.count, sizeof *u->own.part, compare_places);
    return moert_checked_parts_upload(check, &u->own);
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
    const uint64_t own[2] = {u->own.count, u->own.floats};
    MOERT_TRY(moert_comm_allgather(check->world, own, sizeof own, u->counts));
    u->most = u->loads = 0;
    for (size_t r = 0; r < moert_comm_size(check->world); r++) {
        u->most = moert_max(u->most, u->counts[r][0]);
        u->loads = moert_max(u->loads, moert_ceil_div(u->counts[r][1], MOERT_CHECKED_LOAD));
    }
    if (u->most == before)
        return MOERT_OK;
    u->chained = false;
    return moert_comm_agree(check->world, allocate_hashes(u));
}

/* hash[parts] = hashes of the values of this rank's parts, of the kinds [kind, end). */
static moert_status hash_kinds(const moert_cross_check *check, size_t kind, size_t end,
                               uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    for (size_t b = 0, first = 0, last = 0; b < moert_model_block_count(check->model);
         b++, first = last) {
        while (last < u->own.count && u->own.part[last].at < u->start[b + 1])
            last++;
        for (size_t k = kind; k < end && first < last; k++) {
            moert_elements of = moert_checked_elements(check, b, k);
            of.at -= u->start[b];
            MOERT_TRY(moert_checked_parts_digest(&u->own, k, of, first, last));
        }
    }
    return moert_checked_parts_hash(&u->own, kind, end, hash);
}

moert_status moert_check_hash_gradients(moert_cross_check *check, uint64_t *hash) {
    return hash_kinds(check, MOERT_CHECK_GRADIENT, MOERT_CHECK_WEIGHT, hash);
}

moert_status moert_check_hash_states(moert_cross_check *check, uint64_t *hash) {
    return hash_kinds(check, MOERT_CHECK_WEIGHT, moert_checked_kinds(check), hash);
}
