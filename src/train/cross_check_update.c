/* The check of the optimizer's update, and of the weights that several ranks hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "layer/ship.h"
#include "train/cross_check.h"

/* The gradient, and what the update changes: the weight and the moments. */
enum { GRADIENT, WEIGHT, MOMENTS };

static size_t count_kinds(const moert_cross_check *check) {
    return MOMENTS + moert_optimizer_of(check->model)->moments;
}

moert_status moert_check_update_create(moert_cross_check *check) {
    const moert_model *model = check->model;
    moert_device *device = moert_model_mesh(model)->device;
    const size_t bytes = MOERT_CHECKED_FLOATS * sizeof(float);
    const size_t kinds = count_kinds(check);
    for (size_t k = 0; k < kinds; k++)
        MOERT_TRY(moert_buffer_create(device, bytes, &check->values[k]));
    MOERT_TRY(moert_buffer_create(device, sizeof(uint64_t), &check->key));
    MOERT_TRY(moert_alloc(&check->update.values, kinds * MOERT_CHECKED_FLOATS, sizeof(float)));
    MOERT_TRY(moert_alloc(&check->update.again, kinds * MOERT_CHECKED_FLOATS, sizeof(float)));
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        check->weights += moert_model_block(model, b)->count;
    return moert_alloc(&check->hash, check->weights, sizeof *check->hash);
}

void moert_check_update_destroy(moert_cross_check *check) {
    moert_buffers_destroy(check->values, MOERT_CHECKED_KINDS_MOST);
    MOERT_DESTROY(check->digests, check->key);
    MOERT_FREE(check->update.values, check->update.again, check->hash);
}

/* ---- the update ---- */

/* Chooses one of this rank's parameters: its block and its offset. */
static void choose_first(const moert_cross_check *check, moert_checked_update *u) {
    const size_t blocks = moert_model_block_count(check->model);
    size_t all = 0, first = 0;
    for (size_t b = 0; b < blocks; b++)
        all += moert_block_shard(moert_model_block(check->model, b), &first);
    u->at = moert_check_random(check, MOERT_CHECK_PARAMETER, moert_comm_rank(check->world), all);
    for (u->block = 0; u->block < blocks; u->block++) {
        const size_t shard = moert_block_shard(moert_model_block(check->model, u->block), &first);
        if (u->at < shard)
            break;
        u->at -= shard;
    }
    u->block -= u->block == blocks; /* the rank has no parameters */
    u->at += first;
}

/* Chooses consecutive parameters of one tensor. */
static void choose(moert_cross_check *check) {
    moert_checked_update *u = &check->update;
    const moert_model_tensor *tensor = moert_model_tensors(check->model);
    choose_first(check, u);
    const moert_block *block = moert_model_block(check->model, u->block);
    const size_t chosen = u->at;
    u->part.count = 0;
    for (size_t i = 0; i < moert_model_tensor_count(check->model); i++) {
        const moert_model_range shard = moert_model_shard(&tensor[i]);
        const size_t first = tensor[i].offset + shard.first, last = first + shard.count;
        if (tensor[i].block != block || shard.count == 0 || chosen < first ||
            (u->part.count > 0 && u->at >= last))
            continue;
        u->at = moert_min(chosen, last - 1); /* not in the padding behind the tensor */
        u->part = (moert_checked_part){
            .count = moert_min(last - u->at, MOERT_CHECKED_FLOATS),
            .decay = moert_optimizer_decays(check->optimizer, &tensor[i]) ? 1.0 : 0.0,
            .first = u->at - tensor[i].offset,
            .key = moert_optimizer_key(&tensor[i])};
    }
}

/* values[kinds, count] = the chosen parameters, of the kinds from `kind` on. */
static moert_status read_kinds(const moert_cross_check *check, size_t kind, float *values) {
    const moert_checked_update *u = &check->update;
    const moert_block *block = moert_model_block(check->model, u->block);
    for (; kind < count_kinds(check) && u->part.count > 0; kind++, values += u->part.count) {
        const moert_elements of =
            kind == GRADIENT ? moert_block_gradient(block, u->at)
            : kind == WEIGHT
                ? (moert_elements){block->weight, MOERT_DTYPE_F32, u->at}
                : moert_optimizer_moment(check->optimizer, block, kind - MOMENTS, u->at);
        MOERT_TRY(moert_elements_read(&of, 0, u->part.count, values));
    }
    return MOERT_OK;
}

moert_status moert_check_update_keep(moert_cross_check *check) {
    choose(check);
    return moert_comm_agree(check->world, read_kinds(check, GRADIENT, check->update.values));
}

static uint64_t hash_of(const float *values, size_t count) {
    uint64_t hash;
    const moert_checksum sum = moert_checksum_of(values, count * sizeof *values);
    memcpy(&hash, sum.byte, sizeof hash);
    return hash;
}

/* Plants a wrong bit at a site, in floats of a block's weights. */
static moert_status plant(moert_cross_check *check, unsigned site, const moert_block *block,
                          size_t at, size_t floats) {
    if (!check->plants || check->plant_step != check->step || check->plant.site != site)
        return MOERT_OK;
    check->plants = false;
    return moert_plant_bit(&check->plant.plant, block->weight, at, floats);
}

/* The hash of what this rank's update has computed. */
static moert_status hash_updated(moert_cross_check *check, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    MOERT_TRY(plant(check, MOERT_AUDIT_SITES, moert_model_block(check->model, u->block), u->at,
                    u->part.count));
    MOERT_TRY(read_kinds(check, WEIGHT, u->again));
    *hash = hash_of(u->again, (count_kinds(check) - WEIGHT) * u->part.count);
    return MOERT_OK;
}

static moert_status own_update(moert_cross_check *check, uint64_t *hash) {
    return moert_comm_agree(check->world, hash_updated(check, hash));
}

/* Repeats an update of parameters, in update.again[kinds, count]. */
static moert_status update_again(const moert_cross_check *check, const moert_checked_part *part,
                                 uint64_t *hash) {
    float *values = check->update.again;
    const size_t count = part->count, kinds = count_kinds(check);
    const moert_dtype moments =
        moert_state_dtype(moert_model_describe(check->model)->memory.moments);
    moert_elements of[MOERT_CHECKED_KINDS_MOST];
    for (size_t k = 0; k < kinds; k++)
        of[k] = (moert_elements){check->values[k], k < MOMENTS ? MOERT_DTYPE_F32 : moments, 0};
    moert_update update = *check->update.coefficients;
    update.decay *= part->decay;
    update.part = part->first + count;
    update.first = part->first;
    update.keys = check->key;
    MOERT_TRY(moert_buffer_write(check->key, 0, &part->key, sizeof part->key));
    for (size_t k = 0; k < kinds && count > 0; k++)
        MOERT_TRY(moert_elements_write(&of[k], 0, count, values + k * count));
    if (count > 0)
        MOERT_TRY(moert_update_weights(&update, count, check->values[WEIGHT], &of[GRADIENT],
                                       &of[MOMENTS]));
    for (size_t k = WEIGHT; k < kinds && count > 0; k++)
        MOERT_TRY(moert_elements_read(&of[k], 0, count, values + (k - WEIGHT) * count));
    *hash = hash_of(values, (kinds - WEIGHT) * count);
    return MOERT_OK;
}

/* Receives the parameters of the rank whose update this one repeats, and updates them. */
static moert_status repeat_update(moert_cross_check *check, size_t distance, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    const size_t ranks = moert_comm_size(check->world), rank = moert_comm_rank(check->world);
    const size_t to = moert_audit_repeater(check->audit, MOERT_AUDIT_TOKENS, rank, distance),
                 from = moert_audit_repeated(check->audit, MOERT_AUDIT_TOKENS, rank, distance);
    moert_checked_part *parts = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(check->world, MOERT_NEW_ARRAY(&parts, ranks)));
    MOERT_TRY_OR(done, moert_comm_allgather(check->world, &u->part, sizeof u->part, parts));
    const size_t kinds = count_kinds(check);
    moert_parcel out = {to, kinds * u->part.count, {NULL}, u->values},
                 in = {from, kinds * parts[from].count, {NULL}, u->again};
    MOERT_TRY_OR(done, moert_ship(check->world, &(moert_parcels){&out, 1, 1},
                                  &(moert_parcels){&in, 1, 1}, MOERT_OK));
    status = moert_comm_agree(check->world, update_again(check, &parts[from], hash));
done:
    free(parts);
    return status;
}

/* The name of the model's tensor that has float `at` of a block. */
static const char *name_at(const moert_model *model, const moert_block *block, size_t at) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    const char *name = block->what;
    for (size_t i = 0; i < moert_model_tensor_count(model); i++)
        if (tensor[i].block == block && at - tensor[i].offset < tensor[i].elements)
            name = tensor[i].name;
    return name;
}

static size_t one(const moert_cross_check *check) {
    (void)check;
    return 1;
}

static moert_audit_class of_tokens(const moert_cross_check *check, size_t index) {
    (void)check, (void)index;
    return MOERT_AUDIT_TOKENS;
}

static bool always(const moert_cross_check *check, size_t rank, size_t index) {
    (void)check, (void)rank, (void)index;
    return true;
}

static void describe_update(const moert_cross_check *check, size_t rank, size_t index, char *text,
                            size_t bytes) {
    const moert_checked_update *u = &check->update;
    (void)rank, (void)index;
    snprintf(text, bytes, "the update of %s",
             name_at(check->model, moert_model_block(check->model, u->block), u->at));
}

const moert_check_site moert_check_update = {one,       own_update, repeat_update,
                                             of_tokens, always,     describe_update};

/* ---- weights that several ranks hold ---- */

static moert_status hash_weights(moert_cross_check *check) {
    const moert_block *first = moert_model_block(check->model, 0);
    uint64_t *hash = check->hash;
    MOERT_TRY(plant(check, MOERT_AUDIT_SITES + 1, first, 0, first->floats));
    for (size_t b = 0; b < moert_model_block_count(check->model); b++) {
        const moert_block *block = moert_model_block(check->model, b);
        for (size_t i = 0; i < block->count; i++, hash++) {
            *hash = 0;
            if (moert_comm_size(block->comm) > 1)
                MOERT_TRY(moert_digest_floats(block->weight, block->tensor[i].offset,
                                              block->tensor[i].elements, &check->digests, hash));
        }
    }
    return MOERT_OK;
}

static moert_status own_weights(moert_cross_check *check, uint64_t *hash) {
    MOERT_TRY(moert_comm_agree(check->world, hash_weights(check)));
    memcpy(hash, check->hash, check->weights * sizeof *hash);
    return MOERT_OK;
}

/* Other holders of the weights have computed them, too. */
static moert_status held_weights(moert_cross_check *check, size_t distance, uint64_t *hash) {
    (void)distance;
    memcpy(hash, check->hash, check->weights * sizeof *hash);
    return MOERT_OK;
}

static size_t count_weights(const moert_cross_check *check) {
    return check->weights;
}

/* The block of hash `index`, and the tensor in it. */
static const moert_block *block_of(const moert_cross_check *check, size_t index, size_t *tensor) {
    size_t b = 0;
    for (; index >= moert_model_block(check->model, b)->count; b++)
        index -= moert_model_block(check->model, b)->count;
    *tensor = index;
    return moert_model_block(check->model, b);
}

static moert_audit_class of_holders(const moert_cross_check *check, size_t index) {
    return block_of(check, index, &index)->replicated ? MOERT_AUDIT_EVERYONE : MOERT_AUDIT_REPLICAS;
}

static void describe_weights(const moert_cross_check *check, size_t rank, size_t index, char *text,
                             size_t bytes) {
    const moert_block *block = block_of(check, index, &index);
    (void)rank;
    snprintf(text, bytes, "the weights of %s",
             name_at(check->model, block, block->tensor[index].offset));
}

const moert_check_site moert_check_weights = {count_weights, own_weights, held_weights,
                                              of_holders,    always,      describe_weights};

moert_status moert_check_update_compare(moert_cross_check *check,
                                        const moert_update *coefficients) {
    moert_phase_set(MOERT_PHASE_VERIFY);
    check->update.coefficients = coefficients;
    MOERT_TRY(moert_check_run(check, &moert_check_update));
    return moert_check_run(check, &moert_check_weights);
}
