/* The check of the optimizer's update, and of the weights that several ranks hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "base/phase.h"
#include "layer/ship.h"
#include "train/cross_check_internal.h"

enum { WEIGHT, GRADIENT, FIRST_MOMENT, SECOND_MOMENT, KINDS, CHANGED = KINDS - 1 };

moert_status moert_check_update_create(moert_cross_check *check) {
    const moert_model *model = check->model;
    moert_device *device = moert_model_mesh(model)->device;
    const size_t bytes = MOERT_CHECKED_FLOATS * sizeof(float);
    for (int k = 0; k < KINDS; k++)
        MOERT_TRY(moert_buffer_create(device, bytes, &check->values[k]));
    MOERT_TRY(moert_buffer_create(device, sizeof(uint64_t), &check->key));
    MOERT_TRY(moert_alloc(&check->update.values, KINDS * MOERT_CHECKED_FLOATS, sizeof(float)));
    MOERT_TRY(moert_alloc(&check->update.again, KINDS * MOERT_CHECKED_FLOATS, sizeof(float)));
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        check->weights += moert_model_block(model, b)->count;
    MOERT_TRY(moert_alloc(&check->hash, check->weights, sizeof *check->hash));
    return moert_alloc(&check->hashes, check->weights * moert_comm_size(check->world),
                       sizeof *check->hashes);
}

void moert_check_update_destroy(moert_cross_check *check) {
    moert_buffers_destroy(check->values, KINDS);
    MOERT_DESTROY(check->digests, check->key);
    MOERT_FREE(check->update.values, check->update.again, check->hash, check->hashes);
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
            .decay = moert_optimizer_decays(check->options.optimizer, &tensor[i]) ? 1.0 : 0.0,
            .first = u->at - tensor[i].offset,
            .key = moert_optimizer_key(&tensor[i])};
    }
}

/* values[] = the chosen weights, their gradients if `gradient`, and both moments, in this order. */
static moert_status read_kinds(const moert_cross_check *check, bool gradient, float *values) {
    const moert_checked_update *u = &check->update;
    const moert_block *block = moert_model_block(check->model, u->block);
    const moert_optimizer *optimizer = check->options.optimizer;
    if (u->part.count == 0)
        return MOERT_OK;
    const moert_elements kinds[KINDS] = {{block->weight, MOERT_DTYPE_F32, u->at},
                                         moert_block_gradient(block, u->at),
                                         moert_optimizer_moments(optimizer, block, false, u->at),
                                         moert_optimizer_moments(optimizer, block, true, u->at)};
    for (int k = 0; k < KINDS; k++) {
        if (k == GRADIENT && !gradient)
            continue;
        MOERT_TRY(moert_elements_read(&kinds[k], 0, u->part.count, values));
        values += u->part.count;
    }
    return MOERT_OK;
}

moert_status moert_cross_check_keep(moert_cross_check *check) {
    if (check == NULL || !check->due)
        return MOERT_OK;
    choose(check);
    return moert_comm_agree(check->world, read_kinds(check, true, check->update.values));
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
    MOERT_TRY(read_kinds(check, false, u->again));
    *hash = hash_of(u->again, CHANGED * u->part.count);
    return MOERT_OK;
}

static moert_status own_update(moert_cross_check *check, uint64_t *hash) {
    return moert_comm_agree(check->world, hash_updated(check, hash));
}

/* Repeats an update of parameters, in update.again[KINDS, count]. */
static moert_status update_again(const moert_cross_check *check, const moert_checked_part *part,
                                 uint64_t *hash) {
    float *values = check->update.again;
    const moert_dtype moments =
        moert_state_dtype(moert_model_describe(check->model)->memory.moments);
    const moert_elements kinds[KINDS] = {{check->values[WEIGHT], MOERT_DTYPE_F32, 0},
                                         {check->values[GRADIENT], MOERT_DTYPE_F32, 0},
                                         {check->values[FIRST_MOMENT], moments, 0},
                                         {check->values[SECOND_MOMENT], moments, 0}};
    const size_t count = part->count;
    moert_adamw adamw = *check->update.coefficients;
    adamw.decay *= part->decay;
    adamw.part = part->first + count;
    adamw.first = part->first;
    adamw.keys = check->key;
    MOERT_TRY(moert_buffer_write(check->key, 0, &part->key, sizeof part->key));
    for (int k = 0; k < KINDS && count > 0; k++)
        MOERT_TRY(moert_elements_write(&kinds[k], 0, count, values + (size_t)k * count));
    if (count > 0)
        MOERT_TRY(moert_adamw_step(&adamw, count, check->values[WEIGHT], &kinds[GRADIENT],
                                   &kinds[FIRST_MOMENT], &kinds[SECOND_MOMENT]));
    for (int k = 0, at = 0; k < KINDS && count > 0; k++)
        if (k != GRADIENT)
            MOERT_TRY(moert_elements_read(&kinds[k], 0, count, values + (size_t)at++ * count));
    *hash = hash_of(values, CHANGED * count);
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
    moert_parcel out = {to, KINDS * u->part.count, {NULL}, u->values},
                 in = {from, KINDS * parts[from].count, {NULL}, u->again};
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

/* The ranks that hold the same weights as `rank`, and have hash `index` as most of them. */
static size_t count_alike(const moert_cross_check *check, const moert_mesh_place *places,
                          bool replicated, size_t index, size_t rank) {
    size_t alike = 0;
    for (size_t r = 0; r < moert_comm_size(check->world); r++)
        alike += (replicated || places[r].member == places[rank].member) &&
                 check->hashes[r * check->weights + index] ==
                     check->hashes[rank * check->weights + index];
    return alike;
}

/* Names the rank whose weights differ from those of most other holders, or two that differ. */
static bool find_odd(const moert_cross_check *check, const moert_mesh_place *places,
                     bool replicated, size_t index, size_t holder, moert_check_verdict *v) {
    const size_t ranks = moert_comm_size(check->world);
    size_t most = holder, holders = 0;
    for (size_t r = 0; r < ranks; r++)
        if (replicated || places[r].member == places[holder].member) {
            holders++;
            if (count_alike(check, places, replicated, index, r) >
                count_alike(check, places, replicated, index, most))
                most = r;
        }
    const size_t alike = count_alike(check, places, replicated, index, most);
    *v = (moert_check_verdict){.wrong_count = 0};
    if (alike == holders)
        return false;
    for (size_t r = 0; r < ranks; r++) {
        if (!replicated && places[r].member != places[holder].member)
            continue;
        const bool right = check->hashes[r * check->weights + index] ==
                           check->hashes[most * check->weights + index];
        if (right && 2 * alike > holders && v->right_count < MOERT_COUNT(v->right))
            v->right[v->right_count++] = r;
        else if (!(right && 2 * alike > holders) && v->wrong_count < MOERT_COUNT(v->wrong))
            v->wrong[v->wrong_count++] = r;
    }
    return true;
}

/* Ends with the verdict of rank `from`, which may name a tensor that only it holds. */
static moert_status fail(const moert_cross_check *check, moert_check_verdict *verdict, size_t from,
                         const char *name) {
    snprintf(verdict->what, sizeof verdict->what, "the weights of %s", name);
    MOERT_TRY(moert_comm_broadcast(check->world, from, verdict->what, sizeof verdict->what));
    return moert_check_fail(check, verdict);
}

static moert_status compare_weights(moert_cross_check *check, const moert_mesh_place *places) {
    const size_t ranks = moert_comm_size(check->world);
    moert_check_verdict verdict;
    size_t index = 0;
    for (size_t b = 0; b < moert_model_block_count(check->model); b++) {
        const moert_block *block = moert_model_block(check->model, b);
        for (size_t i = 0; i < block->count; i++, index++)
            for (size_t r = 0; r < (block->replicated ? 1 : ranks); r++)
                if (moert_comm_size(block->comm) > 1 &&
                    find_odd(check, places, block->replicated, index, r, &verdict))
                    return fail(check, &verdict, r,
                                name_at(check->model, block, block->tensor[i].offset));
    }
    return MOERT_OK;
}

static moert_status check_weights(moert_cross_check *check) {
    moert_mesh *mesh = moert_model_mesh(check->model);
    moert_mesh_place *places = NULL;
    moert_status status = MOERT_NEW_ARRAY(&places, moert_comm_size(check->world));
    if (status == MOERT_OK)
        status = hash_weights(check);
    MOERT_TRY_OR(done, moert_comm_agree(check->world, status));
    MOERT_TRY_OR(done, moert_comm_allgather(check->world, check->hash,
                                            check->weights * sizeof *check->hash, check->hashes));
    moert_mesh_places(check->world, moert_comm_size(mesh->experts), places);
    status = compare_weights(check, places);
done:
    free(places);
    return status;
}

moert_status moert_cross_check_compare(moert_cross_check *check, const moert_adamw *coefficients) {
    if (check == NULL || !check->due)
        return MOERT_OK;
    moert_phase_set(MOERT_PHASE_VERIFY);
    check->update.coefficients = coefficients;
    MOERT_TRY(moert_check_run(check, &moert_check_update));
    return check_weights(check);
}
