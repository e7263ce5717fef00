/* The check of the optimizer's update, and of the weights that several ranks hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "base/phase.h"
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
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        check->weights += moert_model_block(model, b)->count;
    MOERT_TRY(moert_alloc(&check->hash, check->weights, sizeof *check->hash));
    return moert_alloc(&check->hashes, check->weights * moert_comm_size(check->world),
                       sizeof *check->hashes);
}

void moert_check_update_destroy(moert_cross_check *check) {
    moert_buffers_destroy(check->values, KINDS);
    MOERT_DESTROY(check->digests, check->key);
    MOERT_FREE(check->update.values, check->hash, check->hashes);
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
static moert_status hash_own(moert_cross_check *check, float *values, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    MOERT_TRY(plant(check, MOERT_AUDIT_SITES, moert_model_block(check->model, u->block), u->at,
                    u->part.count));
    MOERT_TRY(read_kinds(check, false, values));
    *hash = hash_of(values, CHANGED * u->part.count);
    return MOERT_OK;
}

/* Repeats an update of parameters, in values[KINDS, count]. */
static moert_status update_again(const moert_cross_check *check, const moert_adamw *coefficients,
                                 const moert_checked_part *part, float *values, uint64_t *hash) {
    const moert_dtype moments =
        moert_state_dtype(moert_model_describe(check->model)->memory.moments);
    const moert_elements kinds[KINDS] = {{check->values[WEIGHT], MOERT_DTYPE_F32, 0},
                                         {check->values[GRADIENT], MOERT_DTYPE_F32, 0},
                                         {check->values[FIRST_MOMENT], moments, 0},
                                         {check->values[SECOND_MOMENT], moments, 0}};
    const size_t count = part->count;
    moert_adamw adamw = *coefficients;
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
static moert_status repeat(const moert_cross_check *check, const moert_adamw *coefficients,
                           size_t distance, float *values, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    const size_t ranks = moert_comm_size(check->world), rank = moert_comm_rank(check->world);
    const size_t to = moert_audit_repeater(check->audit, MOERT_AUDIT_TOKENS, rank, distance),
                 from = moert_audit_repeated(check->audit, MOERT_AUDIT_TOKENS, rank, distance);
    moert_checked_part *parts = NULL;
    size_t *sent = NULL, *received = NULL;
    moert_status status = MOERT_NEW_ARRAY(&parts, ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&sent, ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&received, ranks);
    MOERT_TRY_OR(done, moert_comm_agree(check->world, status));
    MOERT_TRY_OR(done, moert_comm_allgather(check->world, &u->part, sizeof u->part, parts));
    sent[to] = KINDS * u->part.count;
    received[from] = KINDS * parts[from].count;
    MOERT_TRY_OR(done, moert_comm_alltoallv(check->world, u->values, sent, values, received,
                                            sizeof *values));
    status = moert_comm_agree(check->world,
                              update_again(check, coefficients, &parts[from], values, hash));
done:
    MOERT_FREE(parts, sent, received);
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

/* Ends with the verdict of rank `from`, which may name a tensor that only it holds. */
static moert_status fail(const moert_cross_check *check, moert_check_verdict *verdict, size_t from,
                         const char *what, const char *name) {
    snprintf(verdict->what, sizeof verdict->what, "%s %s", what, name);
    MOERT_TRY(moert_comm_broadcast(check->world, from, verdict->what, sizeof verdict->what));
    return moert_check_fail(check, verdict);
}

static moert_status decide_update(const moert_cross_check *check, const moert_adamw *coefficients,
                                  size_t owner, const uint64_t (*hashes)[2], float *values) {
    const bool third = moert_audit_peers(check->audit, MOERT_AUDIT_TOKENS, owner) > 2;
    const moert_checked_update *u = &check->update;
    moert_check_verdict verdict;
    size_t rank[3] = {owner};
    uint64_t value[3] = {hashes[owner][0]}, last;
    for (size_t distance = 1; distance < 3; distance++)
        rank[distance] = moert_audit_repeater(check->audit, MOERT_AUDIT_TOKENS, owner, distance);
    value[1] = hashes[rank[1]][1];
    if (third) {
        MOERT_TRY(repeat(check, coefficients, 2, values, &last));
        value[2] = last;
        MOERT_TRY(moert_comm_broadcast(check->world, rank[2], &value[2], sizeof value[2]));
    }
    moert_check_judge(rank, value, third, &verdict);
    return fail(check, &verdict, owner, "the update of",
                name_at(check->model, moert_model_block(check->model, u->block), u->at));
}

static moert_status check_update(moert_cross_check *check, const moert_adamw *coefficients) {
    const size_t ranks = moert_comm_size(check->world);
    float *values = NULL;
    uint64_t own[2] = {0}, (*hashes)[2] = NULL;
    moert_status status = moert_alloc(&values, KINDS * MOERT_CHECKED_FLOATS, sizeof *values);
    if (status == MOERT_OK)
        status = moert_alloc(&hashes, ranks, sizeof *hashes);
    if (status == MOERT_OK)
        status = hash_own(check, values, &own[0]);
    MOERT_TRY_OR(done, moert_comm_agree(check->world, status));
    MOERT_TRY_OR(done, repeat(check, coefficients, 1, values, &own[1]));
    MOERT_TRY_OR(done, moert_comm_allgather(check->world, own, sizeof own, hashes));
    for (size_t r = 0; r < ranks && status == MOERT_OK; r++) {
        const size_t by = moert_audit_repeater(check->audit, MOERT_AUDIT_TOKENS, r, 1);
        if (hashes[r][0] != hashes[by][1])
            status = decide_update(check, coefficients, r, (const uint64_t(*)[2])hashes, values);
    }
done:
    MOERT_FREE(values, hashes);
    return status;
}

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
                    return fail(check, &verdict, r, "the weights of",
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
    MOERT_TRY(check_update(check, coefficients));
    return check_weights(check);
}
