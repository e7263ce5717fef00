/* Checks of the ranks by each other: what is checked when, and a layer's check. */
#include "train/cross_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"

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

static bool wanted(const moert_trainer *t) {
    return t->options->verify_every > 0;
}

static void close(void *self) {
    moert_cross_check *check = self;
    moert_audit_destroy(check->audit);
    moert_check_update_destroy(check);
}

static moert_status open(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    check->options = t->options;
    check->optimizer = t->optimizer;
    check->model = t->model;
    check->world = t->world;
    check->layer = MOERT_AUDIT_NO_LAYER;
    MOERT_TRY(moert_comm_agree(t->world, read_plant(check)));
    MOERT_TRY(moert_audit_create(t->run, &check->audit));
    return moert_comm_agree(t->world, moert_check_update_create(check));
}

/* ---- the check of a layer ---- */

static moert_status begin(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    const uint64_t step = t->state.step;
    check->step = step;
    check->due = (step + 1) % check->options->verify_every == 0;
    const size_t layers = moert_model_describe(check->model)->layers;
    const bool here =
        check->due && moert_check_random(check, MOERT_CHECK_MICRO_BATCH, 0,
                                         check->options->micro_batches) == t->micro_batch;
    check->layer = here ? (ptrdiff_t)moert_check_random(check, MOERT_CHECK_LAYER, 0, layers)
                        : MOERT_AUDIT_NO_LAYER;
    const bool plants = check->plants && check->plant_step == step && t->micro_batch == 0;
    if (here)
        MOERT_INFO("verify: step %llu checks layer %td of micro-batch %zu",
                   (unsigned long long)step, check->layer, t->micro_batch);
    if (here || plants)
        moert_audit_begin(check->audit, check->layer, plants ? &check->plant : NULL);
    return MOERT_OK;
}

static size_t count_hashes(const moert_cross_check *check) {
    return MOERT_AUDIT_SITES * moert_audit_slots(check->audit);
}

static moert_status own_hashes(moert_cross_check *check, uint64_t *hash) {
    memcpy(hash, moert_audit_hashes(check->audit, false), count_hashes(check) * sizeof *hash);
    return MOERT_OK;
}

static moert_status repeat_layer(moert_cross_check *check, size_t distance, uint64_t *hash) {
    MOERT_TRY(moert_audit_repeat(check->audit, distance));
    memcpy(hash, moert_audit_hashes(check->audit, true), count_hashes(check) * sizeof *hash);
    return MOERT_OK;
}

static moert_audit_class class_of(const moert_cross_check *check, size_t index) {
    return moert_audit_class_of(check->audit,
                                (moert_audit_site)(index / moert_audit_slots(check->audit)));
}

/* Whether the site has a hash in this slot of the rank, with the same bits in all places. */
static bool compares(const moert_cross_check *check, size_t rank, size_t index) {
    const size_t slots = moert_audit_slots(check->audit), slot = index % slots;
    if (!moert_audit_compares(check->audit, (moert_audit_site)(index / slots)))
        return false;
    return class_of(check, index) != MOERT_AUDIT_EXPERTS
               ? slot == 0
               : moert_audit_expert(check->audit, rank, slot) != MOERT_LAYER_NO_EXPERT;
}

/* Describes a site: "its results (expert 5 of layer 3)". */
static void describe(const moert_cross_check *check, size_t rank, size_t index, char *text,
                     size_t bytes) {
    static const char *const descriptions[] = {
#define DESCRIPTION(NAME, name, class, description) description,
        MOERT_AUDIT_TABLE(DESCRIPTION)
#undef DESCRIPTION
    };
    const size_t layer = (size_t)check->layer, slots = moert_audit_slots(check->audit);
    const char *what = descriptions[index / slots];
    if (class_of(check, index) == MOERT_AUDIT_EXPERTS)
        snprintf(text, bytes, "%s (expert %u of layer %zu)", what,
                 (unsigned)moert_audit_expert(check->audit, rank, index % slots), layer);
    else
        snprintf(text, bytes, "%s (layer %zu)", what, layer);
}

const moert_check_site moert_check_layer = {count_hashes, own_hashes, repeat_layer,
                                            class_of,     compares,   describe};

/* Gives up the check of a micro-batch whose forward has failed. */
static moert_status drop(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    (void)t;
    check->layer = MOERT_AUDIT_NO_LAYER;
    moert_audit_end(check->audit);
    return MOERT_OK;
}

static moert_status end(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    moert_status status = MOERT_OK;
    (void)t;
    if (check->layer != MOERT_AUDIT_NO_LAYER) {
        moert_phase_set(MOERT_PHASE_VERIFY);
        status = moert_check_run(check, &moert_check_layer);
    }
    moert_audit_end(check->audit);
    check->plants &= check->plant_step != check->step || check->plant.site >= MOERT_AUDIT_SITES;
    return status;
}

/* ---- the check of an update ---- */

static moert_status keep(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    (void)t;
    return check->due ? moert_check_update_keep(check) : MOERT_OK;
}

static moert_status compare(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    return check->due ? moert_check_update_compare(check, &t->coefficients) : MOERT_OK;
}

const moert_observer moert_observer_check = {wanted,
                                             sizeof(moert_cross_check),
                                             open,
                                             close,
                                             {[MOERT_EVENT_BATCH] = begin,
                                              [MOERT_EVENT_GIVE_UP] = drop,
                                              [MOERT_EVENT_BACKWARD] = end,
                                              [MOERT_EVENT_UPDATE] = keep,
                                              [MOERT_EVENT_UPDATED] = compare}};
