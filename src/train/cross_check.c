/* Checks of the ranks by each other: what is checked when, and a layer's check. */
#include "train/cross_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "train/cross_check_internal.h"

/* ---- wrong bits for tests ---- */

/* Reads MOERT_PLANT, "SITE RANK STEP LAYER WORD BIT"; the site may also be `optimizer` or
 * `weights`. The bit is wrong once: not again when the step is computed again. */
static moert_status read_plant(moert_cross_check *check) {
    static const char *const sites[] = {
#define NAME(NAME, name, class, description) #name,
        MOERT_AUDIT_TABLE(NAME)
#undef NAME
            "optimizer",
        "weights"};
    const char *text = moert_config_get()->plant;
    const size_t layers = moert_model_describe(check->model)->layers;
    unsigned long long rank, step, layer, word;
    char site[32];
    unsigned bit;
    size_t at = 0;
    if (text[0] == '\0')
        return MOERT_OK;
    const int read =
        sscanf(text, "%31s %llu %llu %llu %llu %u", site, &rank, &step, &layer, &word, &bit);
    while (at < MOERT_COUNT(sites) && (read < 6 || strcmp(site, sites[at]) != 0))
        at++;
    if (at == MOERT_COUNT(sites) || layer >= layers || bit > 31)
        return MOERT_FAIL(ERROR_USAGE,
                          "MOERT_PLANT='%s': expected SITE RANK STEP LAYER WORD BIT, a layer below "
                          "%zu and a bit below 32",
                          text, layers);
    if (rank != moert_comm_rank(check->world))
        return MOERT_OK;
    check->plants = true;
    check->plant_step = step;
    check->plant = (moert_audit_plant){(moert_audit_site)at, layer, {word, bit}};
    return MOERT_OK;
}

/* ---- create ---- */

static moert_status create(const moert_cross_check_options *o, moert_cross_check **check) {
    moert_cross_check *made;
    MOERT_TRY(MOERT_NEW(&made));
    *check = made;
    made->options = *o;
    made->model = o->optimizer->model;
    made->world = moert_model_mesh(made->model)->world;
    return read_plant(made);
}

moert_status moert_cross_check_create(const moert_cross_check_options *options,
                                      moert_cross_check **check) {
    moert_comm *world = moert_model_mesh(options->optimizer->model)->world;
    moert_cross_check *made = NULL;
    moert_status status;
    MOERT_TRY_OR(fail, moert_comm_agree(world, create(options, &made)));
    MOERT_TRY_OR(fail, moert_audit_create(options->run, &made->audit));
    MOERT_TRY_OR(fail, moert_comm_agree(world, moert_check_update_create(made)));
    *check = made;
    return MOERT_OK;
fail:
    moert_cross_check_destroy(made);
    return status;
}

void moert_cross_check_destroy(moert_cross_check *check) {
    if (check == NULL)
        return;
    moert_audit_destroy(check->audit);
    moert_check_update_destroy(check);
    free(check);
}

/* ---- the check of a layer ---- */

void moert_cross_check_begin(moert_cross_check *check, uint64_t step, size_t micro_batch) {
    if (check == NULL)
        return;
    check->step = step;
    check->due = (step + 1) % check->options.every == 0;
    const size_t layers = moert_model_describe(check->model)->layers;
    const bool here = check->due && moert_check_random(check, MOERT_CHECK_MICRO_BATCH, 0,
                                                       check->options.micro_batches) == micro_batch;
    check->layer = here ? (ptrdiff_t)moert_check_random(check, MOERT_CHECK_LAYER, 0, layers)
                        : MOERT_AUDIT_NO_LAYER;
    const bool plants = check->plants && check->plant_step == step && micro_batch == 0;
    if (here)
        MOERT_INFO("verify: step %llu checks layer %td of micro-batch %zu",
                   (unsigned long long)step, check->layer, micro_batch);
    if (here || plants)
        moert_audit_begin(check->audit, check->layer, plants ? &check->plant : NULL);
}

/* table[R][MOERT_AUDIT_SITES, slots] = the hashes of all ranks. */
static moert_status gather(const moert_cross_check *check, bool repeated, uint64_t **table) {
    const size_t count = MOERT_AUDIT_SITES * moert_audit_slots(check->audit);
    if (*table == NULL)
        MOERT_TRY(
            moert_comm_agree(check->world, moert_alloc(table, count * moert_comm_size(check->world),
                                                       sizeof **table)));
    return moert_comm_allgather(check->world, moert_audit_hashes(check->audit, repeated),
                                count * sizeof **table, *table);
}

/* A hash that differs. */
typedef struct difference {
    moert_audit_site site;
    size_t rank, slot;
} difference;

/* The hash of rank `d.rank`: its own, or that of its repeater at this distance. */
static uint64_t hash_of(const moert_cross_check *check, const uint64_t *table, const difference *d,
                        size_t distance, size_t *rank) {
    const size_t slots = moert_audit_slots(check->audit);
    *rank = distance == 0
                ? d->rank
                : moert_audit_repeater(check->audit, moert_audit_class_of(check->audit, d->site),
                                       d->rank, distance);
    return table[(*rank * MOERT_AUDIT_SITES + d->site) * slots + d->slot];
}

/* Whether the site has a hash in this slot of the rank. */
static bool has(const moert_cross_check *check, const difference *d) {
    if (moert_audit_class_of(check->audit, d->site) != MOERT_AUDIT_EXPERTS)
        return d->slot == 0;
    return moert_audit_expert(check->audit, d->rank, d->slot) != MOERT_LAYER_NO_EXPERT;
}

/* Finds the first difference, in the order in which a layer computes. */
static bool find(const moert_cross_check *check, const uint64_t *own, const uint64_t *again,
                 difference *d) {
    const size_t ranks = moert_comm_size(check->world), slots = moert_audit_slots(check->audit);
    size_t rank;
    for (size_t i = 0; i < MOERT_AUDIT_SITES * ranks * slots; i++) {
        *d = (difference){(moert_audit_site)(i / slots / ranks), i / slots % ranks, i % slots};
        if (moert_audit_compares(check->audit, d->site) && has(check, d) &&
            hash_of(check, own, d, 0, &rank) != hash_of(check, again, d, 1, &rank))
            return true;
    }
    return false;
}

/* Describes a site: "its results (expert 5 of layer 3)". */
static void describe(const moert_cross_check *check, const difference *d, char *text, size_t size) {
    static const char *const descriptions[] = {
#define DESCRIPTION(NAME, name, class, description) description,
        MOERT_AUDIT_TABLE(DESCRIPTION)
#undef DESCRIPTION
    };
    const size_t layer = (size_t)check->layer;
    const char *what = descriptions[d->site];
    if (moert_audit_class_of(check->audit, d->site) == MOERT_AUDIT_EXPERTS)
        snprintf(text, size, "%s (expert %u of layer %zu)", what,
                 (unsigned)moert_audit_expert(check->audit, d->rank, d->slot), layer);
    else
        snprintf(text, size, "%s (layer %zu)", what, layer);
}

/* Decides about a difference, by a third rank if there is one. */
static moert_status decide(moert_cross_check *check, const difference *d, const uint64_t *own,
                           const uint64_t *again) {
    const moert_audit_class class = moert_audit_class_of(check->audit, d->site);
    const bool third = moert_audit_peers(check->audit, class, d->rank) > 2;
    moert_check_verdict verdict;
    uint64_t *last = NULL, value[3] = {0};
    size_t rank[3] = {0};
    moert_status status = MOERT_OK;
    value[0] = hash_of(check, own, d, 0, &rank[0]);
    value[1] = hash_of(check, again, d, 1, &rank[1]);
    if (third) {
        MOERT_TRY_OR(done, moert_audit_repeat(check->audit, 2));
        MOERT_TRY_OR(done, gather(check, true, &last));
        value[2] = hash_of(check, last, d, 2, &rank[2]);
    }
    moert_check_judge(rank, value, third, &verdict);
    describe(check, d, verdict.what, sizeof verdict.what);
    status = moert_check_fail(check, &verdict);
done:
    free(last);
    return status;
}

static moert_status check_layer(moert_cross_check *check) {
    uint64_t *own = NULL, *again = NULL;
    difference first;
    moert_status status;
    moert_phase_set(MOERT_PHASE_VERIFY);
    MOERT_TRY_OR(done, gather(check, false, &own));
    MOERT_TRY_OR(done, moert_audit_repeat(check->audit, 1));
    MOERT_TRY_OR(done, gather(check, true, &again));
    if (find(check, own, again, &first))
        status = decide(check, &first, own, again);
done:
    MOERT_FREE(own, again);
    return status;
}

void moert_cross_check_drop(moert_cross_check *check) {
    if (check == NULL)
        return;
    check->layer = MOERT_AUDIT_NO_LAYER;
    moert_audit_end(check->audit);
}

moert_status moert_cross_check_end(moert_cross_check *check) {
    if (check == NULL)
        return MOERT_OK;
    const moert_status status =
        check->layer != MOERT_AUDIT_NO_LAYER ? check_layer(check) : MOERT_OK;
    moert_audit_end(check->audit);
    check->plants &= check->plant_step != check->step || check->plant.site >= MOERT_AUDIT_SITES;
    return status;
}
