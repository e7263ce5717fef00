/* Checks the optimizer's update, the values in memory before the update, and the weights that
 * several ranks hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "layer/ship.h"
#include "train/cross_check.h"

moert_status moert_check_update_create(moert_cross_check *check) {
    const moert_model *model = check->model;
    moert_device *device = moert_model_mesh(model)->device;
    moert_checked_update *u = &check->update;
    const size_t kinds = moert_checked_kinds(check);
    for (size_t k = 0; k < kinds; k++)
        MOERT_TRY(moert_buffer_create(
            device, MOERT_CHECKED_LOAD * (moert_dtype_bits(moert_checked_type(check, k)) / 8),
            &check->values[k]));
    MOERT_TRY(MOERT_NEW_ARRAY(&u->start, moert_model_block_count(model) + 1));
    MOERT_TRY(moert_alloc(&u->values, kinds * MOERT_CHECKED_LOAD, sizeof(float)));
    MOERT_TRY(moert_alloc(&u->others, kinds * MOERT_CHECKED_LOAD, sizeof(float)));
    MOERT_TRY(moert_alloc(&u->counts, moert_comm_size(check->world), sizeof *u->counts));
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        check->weights += moert_model_block(model, b)->count;
    return moert_alloc(&check->hash, check->weights, sizeof *check->hash);
}

void moert_check_update_destroy(moert_cross_check *check) {
    moert_checked_update *u = &check->update;
    moert_buffers_destroy(check->values, MOERT_CHECKED_KINDS_MOST);
    moert_checked_parts_free(&u->own);
    moert_checked_parts_free(&u->other);
    moert_digest_free(&check->digests);
    for (int i = 0; i < MOERT_CHECKED_STATES; i++)
        MOERT_FREE(u->was[i], u->is[i]);
    MOERT_FREE(u->start, u->counts, u->repeated, u->values, u->others, check->hash);
}

static moert_status plant_first(moert_cross_check *check, moert_check_plant site, size_t kind) {
    const moert_checked_parts *own = &check->update.own;
    return own->count > 0 ? moert_check_plant_bit(check, site, moert_check_first(check, kind),
                                                  own->part[0].count)
                          : MOERT_OK;
}

static moert_status copy(const uint64_t *from, size_t count, uint64_t *hash) {
    if (count > 0)
        memcpy(hash, from, count * sizeof *hash);
    return MOERT_OK;
}

/* ---- sites ---- */

static size_t count_parts(const moert_cross_check *check) {
    return check->update.most;
}

static moert_audit_class of_tokens(const moert_cross_check *check, size_t index) {
    (void)check, (void)index;
    return MOERT_AUDIT_TOKENS;
}

static moert_audit_class of_own(const moert_cross_check *check, size_t index) {
    (void)check, (void)index;
    return MOERT_AUDIT_OWN;
}

static bool always(const moert_cross_check *check, size_t rank, size_t index) {
    (void)check, (void)rank, (void)index;
    return true;
}

static bool has_part(const moert_cross_check *check, size_t rank, size_t index) {
    return index % check->update.most < check->update.counts[rank][0];
}

static void describe_part(const moert_cross_check *check, size_t index, const char *what,
                          char *text, size_t bytes) {
    const moert_checked_update *u = &check->update;
    index %= u->most;
    snprintf(text, bytes, "%s of %s", what,
             index < u->own.count
                 ? moert_model_tensors(check->model)[u->own.part[index].tensor].name
                 : "");
}

/* ---- the update's result, computed before the update is made ---- */

/* Repeats this rank's own updates, and in the same exchange of loads the updates of the rank at
 * distance 1. Hashes the values that were sent only after that exchange: if a bit flips before the
 * hash, the hash shows the flip; if a bit flips later, the result of the update itself shows it. */
static moert_status own_update(moert_cross_check *check, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    MOERT_TRY(moert_check_update_parts(check, 1, hash, u->repeated));
    moert_status status = moert_check_hash_gradients(check, u->is[MOERT_CHECKED_GRADIENT]);
    if (status == MOERT_OK)
        status = moert_check_hash_states(check, u->is[MOERT_CHECKED_STATE]);
    MOERT_TRY(moert_comm_agree(check->world, status));
    return copy(hash, u->own.count, u->was[MOERT_CHECKED_UPDATED]);
}

static moert_status repeat_update(moert_cross_check *check, size_t distance, uint64_t *hash) {
    return distance == 1 ? copy(check->update.repeated, check->update.most, hash)
                         : moert_check_update_parts(check, distance, NULL, hash);
}

static void describe_update(const moert_cross_check *check, size_t rank, size_t index, char *text,
                            size_t bytes) {
    (void)rank;
    describe_part(check, index, "the update", text, bytes);
}

static const moert_check_site update_site = {count_parts, own_update, repeat_update,  of_tokens,
                                             NULL,        has_part,   describe_update};

/* ---- the weights and moments after the update ---- */

static moert_status own_updated(moert_cross_check *check, uint64_t *hash) {
    MOERT_TRY(moert_comm_agree(check->world, moert_check_hash_states(check, hash)));
    return copy(hash, check->update.own.count, check->update.is[MOERT_CHECKED_UPDATED]);
}

static moert_status kept_updated(moert_cross_check *check, size_t distance, uint64_t *hash) {
    (void)distance;
    return copy(check->update.was[MOERT_CHECKED_UPDATED], check->update.own.count, hash);
}

static const moert_check_site updated_site = {count_parts, own_updated, kept_updated,   of_own,
                                              NULL,        has_part,    describe_update};

/* ---- values that stay in memory: gradients, then weights and moments ---- */

static size_t count_rests(const moert_cross_check *check) {
    return 2 * check->update.most;
}

static moert_status copy_rests(moert_cross_check *check, uint64_t *const *from, uint64_t *hash) {
    const moert_checked_update *u = &check->update;
    MOERT_TRY(copy(from[MOERT_CHECKED_GRADIENT], u->own.count, hash));
    return copy(from[MOERT_CHECKED_STATE], u->own.count, hash + u->most);
}

static moert_status own_rests(moert_cross_check *check, uint64_t *hash) {
    return copy_rests(check, check->update.is, hash);
}

static moert_status kept_rests(moert_cross_check *check, size_t distance, uint64_t *hash) {
    (void)distance;
    return copy_rests(check, check->update.was, hash);
}

static moert_audit_kind rests(const moert_cross_check *check, size_t index) {
    (void)check, (void)index;
    return MOERT_AUDIT_RESTS;
}

static void describe_rests(const moert_cross_check *check, size_t rank, size_t index, char *text,
                           size_t bytes) {
    (void)rank;
    describe_part(check, index,
                  index < check->update.most ? "the gradient" : "the weights or moments", text,
                  bytes);
}

static const moert_check_site rests_site = {count_rests, own_rests, kept_rests,    of_own,
                                            rests,       has_part,  describe_rests};

/* ---- the experts' gradients after the backward ---- */

static size_t count_left(const moert_cross_check *check) {
    return moert_model_describe(check->model)->layers * moert_audit_slots(check->audit);
}

static moert_status own_left(moert_cross_check *check, uint64_t *hash) {
    return moert_comm_agree(check->world, moert_audit_left_gradients(check->audit, true, hash));
}

static moert_status kept_left(moert_cross_check *check, size_t distance, uint64_t *hash) {
    (void)distance;
    return moert_audit_left_gradients(check->audit, false, hash);
}

static void describe_left(const moert_cross_check *check, size_t rank, size_t index, char *text,
                          size_t bytes) {
    (void)rank;
    snprintf(text, bytes, "the gradients of its experts (layer %zu)",
             index / moert_audit_slots(check->audit));
}

static const moert_check_site left_site = {count_left, own_left, kept_left,    of_own,
                                           rests,      always,   describe_left};

/* ---- a rank's sums of squares, computed twice, and the norm of the gradient on all ranks ---- */

/* In the order in which they are computed. A wrong chunk of one rank also makes the sums of tensors
 * wrong on other ranks. */
enum { CHUNKS, TENSORS, NORM, NORM_HASHES };

static size_t count_norm(const moert_cross_check *check) {
    (void)check;
    return NORM_HASHES;
}

static moert_status own_norm(moert_cross_check *check, uint64_t *hash) {
    moert_gradient_norm_own(check->optimizer->norm, &hash[CHUNKS]);
    memcpy(&hash[NORM], &check->norm, sizeof check->norm);
    return MOERT_OK;
}

/* Sums the squares again, with new tables on the device: those of the first sums may be damaged. */
static moert_status norm_again(moert_cross_check *check, size_t distance, uint64_t *hash) {
    moert_gradient_norm *again = NULL;
    double norm;
    (void)distance;
    MOERT_TRY(moert_comm_agree(check->world, moert_gradient_norm_create(check->model, &again)));
    const moert_status status = moert_gradient_norm_take(again, &norm);
    moert_gradient_norm_own(again, &hash[CHUNKS]);
    memcpy(&hash[NORM], &check->norm, sizeof check->norm); /* the norm of the other rank */
    moert_gradient_norm_destroy(again);
    return status;
}

/* A rank repeats its sums of squares itself. The norm is the same on all ranks. */
static moert_audit_class of_norm(const moert_cross_check *check, size_t index) {
    (void)check;
    return index == NORM ? MOERT_AUDIT_EVERYONE : MOERT_AUDIT_OWN;
}

static void describe_norm(const moert_cross_check *check, size_t rank, size_t index, char *text,
                          size_t bytes) {
    static const char *const what[NORM_HASHES] = {"the squares of its gradients",
                                                  "the sums of all ranks' squares of gradients",
                                                  "the norm of the gradient"};
    (void)check, (void)rank;
    snprintf(text, bytes, "%s", what[index]);
}

static const moert_check_site norm_site = {count_norm, own_norm, norm_again,   of_norm,
                                           NULL,       always,   describe_norm};

/* ---- weights that several ranks hold ---- */

static moert_status hash_weights(moert_cross_check *check) {
    uint64_t *hash = check->hash;
    for (size_t b = 0; b < moert_model_block_count(check->model); b++) {
        const moert_block *block = moert_model_block(check->model, b);
        for (size_t i = 0; i < block->count; i++, hash++) {
            *hash = 0;
            if (moert_comm_size(block->comm) > 1)
                MOERT_TRY(moert_digest_add(&check->digests, block->weight, block->tensor[i].offset,
                                           block->tensor[i].elements, hash));
        }
    }
    return moert_digest_flush(&check->digests);
}

static moert_status own_weights(moert_cross_check *check, uint64_t *hash) {
    MOERT_TRY(moert_comm_agree(check->world, hash_weights(check)));
    return copy(check->hash, check->weights, hash);
}

/* Every rank that holds the weights has hashed its own copy, so nothing is repeated here. */
static moert_status held_weights(moert_cross_check *check, size_t distance, uint64_t *hash) {
    (void)distance;
    return copy(check->hash, check->weights, hash);
}

static size_t count_weights(const moert_cross_check *check) {
    return check->weights;
}

/* Returns the block of hash `index`. Sets *tensor to the index of the tensor in the block. */
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
    const moert_model_tensor *tensor = moert_model_tensors(check->model);
    const char *name = block->what;
    (void)rank;
    for (size_t i = 0; i < moert_model_tensor_count(check->model); i++)
        if (tensor[i].block == block && tensor[i].offset == block->tensor[index].offset)
            name = tensor[i].name;
    snprintf(text, bytes, "the weights of %s", name);
}

static const moert_check_site weights_site = {
    count_weights, own_weights, held_weights, of_holders, NULL, always, describe_weights};

/* ---- the order of the checks in a step ---- */

moert_status moert_check_update_begin(moert_cross_check *check) {
    moert_checked_update *u = &check->update;
    MOERT_TRY(moert_check_list_parts(check));
    const bool chained =
        u->chained && u->next == check->step && check->options->rebalance_every == 0;
    MOERT_TRY(moert_comm_agree(
        check->world,
        chained ? MOERT_OK : moert_check_hash_states(check, u->was[MOERT_CHECKED_STATE])));
    return plant_first(check, MOERT_CHECK_PLANT_MOMENT, MOERT_CHECK_MOMENTS);
}

moert_status moert_check_update_end_backward(moert_cross_check *check) {
    moert_phase_set(MOERT_PHASE_VERIFY);
    MOERT_TRY(moert_comm_agree(
        check->world,
        moert_check_hash_gradients(check, check->update.was[MOERT_CHECKED_GRADIENT])));
    MOERT_TRY(moert_check_run(check, &left_site));
    return plant_first(check, MOERT_CHECK_PLANT_GRADIENT, MOERT_CHECK_GRADIENT);
}

moert_status moert_check_update_keep(moert_cross_check *check, const moert_update *coefficients) {
    static const moert_check_site *const sites[] = {&update_site, &rests_site, &norm_site,
                                                    &weights_site};
    moert_phase_set(MOERT_PHASE_VERIFY);
    check->update.coefficients = coefficients;
    for (size_t i = 0; i < MOERT_COUNT(sites); i++)
        MOERT_TRY(moert_check_run(check, sites[i]));
    return MOERT_OK;
}

moert_status moert_check_update_compare(moert_cross_check *check) {
    const moert_block *first = moert_model_block(check->model, 0);
    moert_checked_update *u = &check->update;
    moert_phase_set(MOERT_PHASE_VERIFY);
    MOERT_TRY(moert_check_plant_bit(check, MOERT_CHECK_PLANT_WEIGHTS,
                                    (moert_elements){first->weight, MOERT_DTYPE_F32, 0},
                                    first->floats));
    MOERT_TRY(moert_check_run(check, &weights_site));
    MOERT_TRY(plant_first(check, MOERT_CHECK_PLANT_UPDATED, MOERT_CHECK_WEIGHT));
    MOERT_TRY(moert_check_run(check, &updated_site));
    MOERT_TRY(copy(u->is[MOERT_CHECKED_UPDATED], u->own.count, u->was[MOERT_CHECKED_STATE]));
    u->chained = true;
    u->next = check->step + 1;
    return MOERT_OK;
}
