/* Audits: chooses which rank repeats whose work, allocates the second copies, and starts audits. */
#include "model/audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/config.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "model/audit_internal.h"
#include "model/audit_points.h"
#include "model/layer_files.h"
#include "model/sublayer.h"

/* ---- rings ---- */

/* Gathers the kind of each rank: a hash of its device's name and driver. Only ranks of one kind
 * repeat each other's work. */
static moert_status gather_kinds(const moert_model *model, moert_checksum *kinds) {
    const moert_device_info *info = moert_device_describe(model->device);
    char text[sizeof info->name + sizeof info->driver + sizeof info->version];
    const int length =
        snprintf(text, sizeof text, "%s|%s|%s", info->name, info->driver, info->version);
    const moert_checksum own = moert_checksum_of(text, (size_t)length);
    return moert_comm_allgather(model->mesh->world, &own, sizeof own, kinds);
}

/* Computes keys[R]: ranks with equal keys are of one EP group and repeat each other's experts. All
 * groups place experts alike, so two members have equal keys only if their kinds are equal in every
 * group. */
static moert_status make_keys(const moert_checksum *kinds, const moert_mesh_place *place,
                              size_t ranks, moert_checksum *keys) {
    moert_checksum *of_member;
    MOERT_TRY(moert_alloc(&of_member, ranks + 1, sizeof *of_member));
    for (size_t r = 0; r < ranks; r++) {
        size_t groups = 0;
        for (size_t p = 0; p < ranks; p++) /* visits groups in the same order for all members */
            if (place[p].member == place[r].member)
                of_member[1 + place[p].group] = kinds[p], groups++;
        memset(&of_member[0], 0, sizeof of_member[0]);
        memcpy(&of_member[0], &place[r].group, sizeof place[r].group);
        keys[r] = moert_checksum_of(of_member, (1 + groups) * sizeof *of_member);
    }
    free(of_member);
    return MOERT_OK;
}

/* Orders the ranks by key: those with equal keys form a ring. */
static moert_status create_ring(const moert_checksum *keys, size_t ranks, moert_audit_ring *ring) {
    size_t placed = 0;
    MOERT_TRY(MOERT_NEW_ARRAY(&ring->order, ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&ring->at, ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&ring->first, ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&ring->count, ranks));
    for (size_t r = 0; r < ranks; r++) {
        const size_t first = placed;
        if (ring->count[r] > 0)
            continue;
        for (size_t p = r; p < ranks; p++)
            if (memcmp(&keys[p], &keys[r], sizeof keys[p]) == 0) {
                ring->first[p] = first;
                ring->at[p] = placed;
                ring->order[placed++] = p;
            }
        for (size_t i = first; i < placed; i++)
            ring->count[ring->order[i]] = placed - first;
    }
    return MOERT_OK;
}

/* Fills in the keys of the classes that do not depend on devices. Class OWN has one rank per ring,
 * and class REPLICAS the ranks that are the same member of their EP groups. The keys of
 * MOERT_AUDIT_EVERYONE stay equal. */
static void number_ranks(const moert_mesh_place *place, size_t ranks,
                         moert_checksum *keys[MOERT_AUDIT_CLASSES]) {
    for (size_t r = 0; r < ranks; r++) {
        keys[MOERT_AUDIT_OWN][r] = moert_checksum_of(&r, sizeof r);
        keys[MOERT_AUDIT_REPLICAS][r] = moert_checksum_of(&place[r].member, sizeof place[r].member);
    }
}

static moert_status allocate_rings(moert_audit *audit, size_t ranks,
                                   moert_checksum *keys[MOERT_AUDIT_CLASSES]) {
    for (int c = 0; c < MOERT_AUDIT_CLASSES; c++)
        MOERT_TRY(MOERT_NEW_ARRAY(&keys[c], ranks));
    return MOERT_NEW_ARRAY(&audit->place, ranks);
}

static moert_status create_rings(moert_audit *audit) {
    const moert_mesh *mesh = audit->model->mesh;
    const size_t ranks = moert_comm_size(mesh->world);
    moert_checksum *keys[MOERT_AUDIT_CLASSES] = {NULL};
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(mesh->world, allocate_rings(audit, ranks, keys)));
    MOERT_TRY_OR(done, gather_kinds(audit->model, keys[MOERT_AUDIT_TOKENS]));
    moert_mesh_places(mesh->world, moert_comm_size(mesh->experts), audit->place);
    number_ranks(audit->place, ranks, keys);
    MOERT_TRY_OR(
        done, make_keys(keys[MOERT_AUDIT_TOKENS], audit->place, ranks, keys[MOERT_AUDIT_EXPERTS]));
    for (int c = 0; c < MOERT_AUDIT_CLASSES; c++)
        MOERT_TRY_OR(done, create_ring(keys[c], ranks, &audit->ring[c]));
done:
    MOERT_FREE(keys[0], keys[1], keys[2], keys[3], keys[4]);
    return status;
}

/* The rank that is `distance` places after `rank` in its ring if `behind`, otherwise before it. */
static size_t neighbour(const moert_audit *audit, moert_audit_class class, size_t rank,
                        size_t distance, bool behind) {
    const moert_audit_ring *ring = &audit->ring[class];
    const size_t count = ring->count[rank], steps = distance % count;
    const size_t at = ring->at[rank] - ring->first[rank] + (behind ? steps : count - steps);
    return ring->order[ring->first[rank] + at % count];
}

size_t moert_audit_repeater(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance) {
    return neighbour(audit, class, rank, distance, true);
}

size_t moert_audit_repeated(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance) {
    return neighbour(audit, class, rank, distance, false);
}

size_t moert_audit_peers(const moert_audit *audit, moert_audit_class class, size_t rank) {
    return audit->ring[class].count[rank];
}

bool moert_audit_exchange(const moert_audit *audit, size_t rank, size_t other) {
    return audit->place[rank].group == audit->place[other].group;
}

/* ---- create ---- */

static moert_status create_copy(moert_audit *audit) {
    moert_model *model = audit->model;
    moert_layer_options options = moert_layer_options_of(&model->config);
    const size_t members = moert_comm_size(model->mesh->experts);
    options.slots = audit->slots =
        moert_max(options.slots, moert_ceil_div(options.router.experts, members));
    for (size_t i = 0; i < MOERT_COUNT(audit->attention); i++)
        if (moert_model_attention_count(&model->config, MOERT_MODEL_ATTENTION + i) > 0)
            MOERT_TRY(moert_comm_agree(
                model->mesh->world,
                moert_model_create_block(model, MOERT_MODEL_ATTENTION + i, &audit->attention[i])));
    MOERT_TRY(moert_comm_agree(model->mesh->world,
                               moert_model_create_block(model, MOERT_MODEL_OUTER, &audit->outer)));
    if (model->moe_layers < model->config.layers)
        MOERT_TRY(moert_model_dense.create(model, &audit->copy));
    if (model->moe_layers == 0)
        return MOERT_OK;
    MOERT_TRY(moert_layer_create(model->mesh, &options, &audit->copy.moe));
    if (model->config.balanced_routing)
        moert_layer_balance_routing(audit->copy.moe);
    moert_layer_share_passes(audit->copy.moe, model->moe[0]->moe);
    return MOERT_OK;
}

static moert_status create_rest(moert_audit *audit) {
    const size_t parts = audit->model->config.layers + 1, sites = parts * MOERT_AUDIT_SITES;
    MOERT_TRY(moert_alloc(&audit->hash, sites * audit->slots, sizeof *audit->hash));
    MOERT_TRY(moert_alloc(&audit->left, parts * audit->slots, sizeof *audit->left));
    MOERT_TRY(moert_alloc(&audit->taken, sites, sizeof *audit->taken));
    MOERT_TRY(moert_alloc(&audit->again_hash, MOERT_AUDIT_SITES * audit->slots,
                          sizeof *audit->again_hash));
    MOERT_TRY(moert_probe_create(audit->slots, &audit->probe));
    MOERT_TRY(moert_run_create_of(audit->model, &audit->copy, 1, &audit->repeat));
    audit->repeat->outer = audit->outer;
    audit->repeat->audit = audit;
    return MOERT_OK;
}

moert_status moert_audit_create(moert_run *run, moert_audit **audit) {
    moert_model *model = run->model;
    moert_audit *made = NULL;
    moert_status status;
    MOERT_TRY_OR(fail, moert_comm_agree(model->mesh->world, MOERT_NEW(&made)));
    made->run = run;
    made->model = model;
    MOERT_TRY_OR(fail, create_copy(made));
    MOERT_TRY_OR(fail, moert_comm_agree(model->mesh->world, create_rest(made)));
    MOERT_TRY_OR(fail, moert_comm_agree(model->mesh->world, create_rings(made)));
    *audit = made;
    return MOERT_OK;
fail:
    moert_audit_destroy(made);
    return status;
}

void moert_audit_destroy(moert_audit *audit) {
    if (audit == NULL)
        return;
    moert_run_destroy(audit->repeat);
    moert_layer_destroy(audit->copy.moe);
    moert_block_destroy(audit->copy.mlp);
    for (size_t i = 0; i < MOERT_COUNT(audit->attention); i++)
        moert_block_destroy(audit->attention[i]);
    moert_block_destroy(audit->outer);
    moert_probe_destroy(audit->probe);
    moert_digest_free(&audit->digests);
    moert_parcels_free(&audit->out);
    moert_parcels_free(&audit->in);
    MOERT_DESTROY(audit->d[0], audit->d[1], audit->before[0], audit->before[1], audit->before_outer,
                  audit->x, audit->received);
    moert_audit_free_sums(audit);
    for (int c = 0; c < MOERT_AUDIT_CLASSES; c++)
        MOERT_FREE(audit->ring[c].order, audit->ring[c].at, audit->ring[c].first,
                   audit->ring[c].count);
    MOERT_FREE(audit->place, audit->hash, audit->left, audit->taken, audit->again_hash, audit);
}

static const moert_audit_class classes[MOERT_AUDIT_SITES] = {
#define CLASS(NAME, name, part, class, ...) MOERT_AUDIT_##class,
    MOERT_AUDIT_TABLE(CLASS)
#undef CLASS
};

static const moert_audit_part parts[MOERT_AUDIT_SITES] = {
#define PART(NAME, name, part, ...) MOERT_AUDIT_##part,
    MOERT_AUDIT_TABLE(PART)
#undef PART
};

const moert_audit_kind moert_audit_kinds[MOERT_AUDIT_SITES] = {
#define KIND(NAME, name, part, class, kind, ...) MOERT_AUDIT_##kind,
    MOERT_AUDIT_TABLE(KIND)
#undef KIND
};

static uint64_t *hashes_of(const moert_audit *audit, size_t part) {
    return audit->hash + part * MOERT_AUDIT_SITES * audit->slots;
}

static bool is_dense(const moert_audit *audit) {
    const moert_model_layer *layer = moert_audit_layer_of(audit);
    return layer != NULL && layer->is_dense;
}

moert_audit_class moert_audit_class_of(const moert_audit *audit, moert_audit_site site) {
    return moert_audit_kinds[site] == MOERT_AUDIT_RESTS ? MOERT_AUDIT_OWN
           : is_dense(audit)                            ? MOERT_AUDIT_TOKENS
                                                        : classes[site];
}

bool moert_audit_of_experts(moert_audit_site site) {
    return classes[site] == MOERT_AUDIT_EXPERTS;
}

/* ---- starting and ending an audit ---- */

static void set_probes(const moert_audit *audit, moert_probe *probe) {
    const moert_model *model = audit->model;
    for (size_t i = 0; i < model->moe_layers; i++)
        moert_layer_set_probe(model->moe[i]->moe, probe);
}

void moert_audit_begin(moert_audit *audit, moert_audit_check *check, void *context,
                       const moert_audit_plant *plant) {
    const size_t count = audit->model->config.layers + 1, row = MOERT_AUDIT_SITES * audit->slots;
    audit->run->audit = audit;
    audit->left_step = audit->taken[MOERT_AUDIT_EXPERT_GRADIENT] && audit->check != NULL;
    audit->check = check;
    audit->context = context;
    audit->plant = plant;
    for (size_t i = 0; i < count; i++)
        memcpy(audit->left + i * audit->slots,
               hashes_of(audit, i) + MOERT_AUDIT_EXPERT_GRADIENT * audit->slots,
               audit->slots * sizeof *audit->left);
    memset(audit->taken, 0, count * MOERT_AUDIT_SITES * sizeof *audit->taken);
    memset(audit->hash, 0, count * row * sizeof *audit->hash);
    set_probes(audit, audit->probe);
    moert_audit_forget_sums(audit);
    audit->digests.count = audit->digests.rows = 0;
}

void moert_audit_end(moert_audit *audit) {
    set_probes(audit, NULL);
    audit->run->audit = NULL;
}

bool moert_audit_checks(const moert_run *run) {
    return run->audit != NULL && run->audit->check != NULL && run == run->audit->run;
}

moert_status moert_audit_check_part(moert_run *run, size_t index) {
    moert_audit *audit = run->audit;
    if (!moert_audit_checks(run))
        return MOERT_OK;
    audit->part = index;
    if (index < run->layers)
        moert_model_discard(&run->layer[index]); /* frees the layer's pass for the second run */
    MOERT_TRY(moert_comm_agree(run->mesh->world, moert_audit_take_rests(audit)));
    return audit->check(audit->context, MOERT_AUDIT_COMPUTED);
}

moert_status moert_audit_check_sums(moert_run *run, size_t index) {
    moert_audit *audit = run->audit;
    if (!moert_audit_checks(run) || moert_comm_size(run->mesh->world) == 1)
        return MOERT_OK;
    audit->part = index;
    MOERT_TRY(audit->check(audit->context, MOERT_AUDIT_SUMMED));
    moert_audit_forget_sums(audit);
    return MOERT_OK;
}

/* ---- for the caller's comparison of hashes ---- */

size_t moert_audit_slots(const moert_audit *audit) {
    return audit->slots;
}

size_t moert_audit_layer(const moert_audit *audit) {
    return audit->part;
}

const uint64_t *moert_audit_hashes(const moert_audit *audit, bool repeated) {
    return repeated ? audit->again_hash : hashes_of(audit, audit->part);
}

bool moert_audit_compares(const moert_audit *audit, moert_audit_site site) {
    const moert_mesh *mesh = audit->model->mesh;
    const bool presums = moert_exchange_sums(mesh->exchange) ||
                         moert_config_get()->node_sum == MOERT_NODE_SUM_PRESUM;
    const bool sums = site == MOERT_AUDIT_COMBINED || site == MOERT_AUDIT_OUT ||
                      site == MOERT_AUDIT_D_COMBINED || site == MOERT_AUDIT_D_MIDDLE;
    return parts[site] ==
               (moert_audit_layer_of(audit) == NULL ? MOERT_AUDIT_OUTSIDE : MOERT_AUDIT_LAYER) &&
           (is_dense(audit) || !presums || !sums);
}

uint32_t moert_audit_expert(const moert_audit *audit, size_t rank, size_t slot) {
    const moert_model_layer *layer = moert_audit_layer_of(audit);
    if (layer == NULL || layer->is_dense)
        return MOERT_LAYER_NO_EXPERT;
    const moert_expert_map *map = moert_layer_placement(layer->moe);
    const size_t member = audit->place[rank].member;
    return slot < moert_expert_map_slots_of(map, member) ? map->expert[map->first[member] + slot]
                                                         : MOERT_LAYER_NO_EXPERT;
}
