/* The observer that checks ranks by each other: the order of checks in a step, and the check of a
 * part of the model. */
#include "train/cross_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"

/* ---- wrong bits for tests ---- */

/* Reads MOERT_PLANT, "SITE RANK STEP LAYER WORD BIT". The bit is wrong only once, so the step is
 * correct when it is computed again. */
static moert_status read_plant(moert_cross_check *check) {
    static const char *const sites[] = {
#define NAME(NAME, name, ...) #name,
        MOERT_AUDIT_TABLE(NAME) MOERT_CHECK_PLANT_TABLE(NAME)
#undef NAME
    };
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
    return t->options->verify_every > 0 || t->options->verify_share > 0.0;
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
    MOERT_TRY(moert_comm_agree(t->world, read_plant(check)));
    MOERT_TRY(moert_audit_create(t->run, &check->audit));
    return moert_comm_agree(t->world, moert_check_update_create(check));
}

/* ---- the check of a part of the model (moert_audit_part) ---- */

static size_t count_hashes(const moert_cross_check *check) {
    return MOERT_AUDIT_SITES * moert_audit_slots(check->audit);
}

static moert_status own_hashes(moert_cross_check *check, uint64_t *hash) {
    memcpy(hash, moert_audit_hashes(check->audit, false), count_hashes(check) * sizeof *hash);
    return MOERT_OK;
}

static moert_status repeat_part(moert_cross_check *check, size_t distance, uint64_t *hash) {
    MOERT_TRY(moert_audit_repeat(check->audit, distance));
    memcpy(hash, moert_audit_hashes(check->audit, true), count_hashes(check) * sizeof *hash);
    return MOERT_OK;
}

static moert_audit_site site_of(const moert_cross_check *check, size_t index) {
    return (moert_audit_site)(index / moert_audit_slots(check->audit));
}

static moert_audit_class class_of(const moert_cross_check *check, size_t index) {
    return moert_audit_class_of(check->audit, site_of(check, index));
}

static moert_audit_kind kind_of(const moert_cross_check *check, size_t index) {
    return moert_audit_kinds[site_of(check, index)];
}

/* Whether the rank has a hash of the site in this slot, and the hash is the same wherever the site
 * is computed. */
static bool compares(const moert_cross_check *check, size_t rank, size_t index) {
    const size_t slot = index % moert_audit_slots(check->audit);
    const moert_audit_site site = site_of(check, index);
    if (!moert_audit_compares(check->audit, site))
        return false;
    return moert_audit_of_experts(site)
               ? moert_audit_expert(check->audit, rank, slot) != MOERT_LAYER_NO_EXPERT
               : slot == 0;
}

/* Describes a site, such as "its results (expert 5 of layer 3)". */
static void describe(const moert_cross_check *check, size_t rank, size_t index, char *text,
                     size_t bytes) {
    static const char *const descriptions[] = {
#define DESCRIPTION(NAME, name, part, class, kind, description) description,
        MOERT_AUDIT_TABLE(DESCRIPTION)
#undef DESCRIPTION
    };
    const size_t layer = moert_audit_layer(check->audit);
    const char *what = descriptions[site_of(check, index)];
    if (moert_audit_of_experts(site_of(check, index)))
        snprintf(text, bytes, "%s (expert %u of layer %zu)", what,
                 (unsigned)moert_audit_expert(check->audit, rank,
                                              index % moert_audit_slots(check->audit)),
                 layer);
    else if (layer < moert_model_describe(check->model)->layers)
        snprintf(text, bytes, "%s (layer %zu)", what, layer);
    else
        snprintf(text, bytes, "%s", what);
}

static const moert_check_site part_site = {count_hashes, own_hashes, repeat_part, class_of,
                                           kind_of,      compares,   describe};

/* ---- the check of a part's sums over the ranks ---- */

static size_t count_sums(const moert_cross_check *check) {
    (void)check;
    return MOERT_AUDIT_SUM_HASHES;
}

static moert_status own_sums(moert_cross_check *check, uint64_t *hash) {
    return moert_audit_own_sums(check->audit, hash);
}

static moert_status repeat_sums(moert_cross_check *check, size_t distance, uint64_t *hash) {
    return moert_audit_repeat_sums(check->audit, distance, hash);
}

static moert_audit_class class_of_sum(const moert_cross_check *check, size_t index) {
    (void)check;
    return index % 2 == 0 ? MOERT_AUDIT_EVERYONE : MOERT_AUDIT_OWN;
}

static moert_audit_kind kind_of_sum(const moert_cross_check *check, size_t index) {
    (void)check;
    return index % 2 == 0 ? MOERT_AUDIT_TRAVELS : MOERT_AUDIT_COMPUTES;
}

static bool always(const moert_cross_check *check, size_t rank, size_t index) {
    (void)check, (void)rank, (void)index;
    return true;
}

static void describe_sum(const moert_cross_check *check, size_t rank, size_t index, char *text,
                         size_t bytes) {
    const size_t layer = moert_audit_layer(check->audit);
    (void)rank;
    if (layer < moert_model_describe(check->model)->layers)
        snprintf(text, bytes, "the sum of %s (layer %zu)", moert_audit_sum_name(index), layer);
    else
        snprintf(text, bytes, "the sum of %s", moert_audit_sum_name(index));
}

static const moert_check_site sums_site = {count_sums,  own_sums, repeat_sums, class_of_sum,
                                           kind_of_sum, always,   describe_sum};

static moert_status check_part(void *context, moert_audit_stage stage) {
    moert_phase_set(MOERT_PHASE_VERIFY);
    return moert_check_run(context, stage == MOERT_AUDIT_SUMMED ? &sums_site : &part_site);
}

/* ---- events ---- */

static moert_status begin(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    const uint64_t step = t->state.step;
    check->step = step;
    if (t->micro_batch == 0)
        MOERT_TRY(moert_check_plan(check));
    const bool plants = check->plants && check->plant_step == step && t->micro_batch == 0;
    if (check->due && t->micro_batch == 0)
        MOERT_TRY(moert_check_update_begin(check));
    if (check->due || plants)
        moert_audit_begin(check->audit, check->due ? check_part : NULL, check,
                          plants ? &check->plant : NULL);
    return MOERT_OK;
}

/* Ends the audit of a micro-batch whose forward has failed. */
static moert_status give_up(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    (void)t;
    moert_audit_end(check->audit);
    return MOERT_OK;
}

static moert_status end_backward(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    moert_audit_end(check->audit);
    check->plants &= check->plant_step != check->step || check->plant.site >= MOERT_AUDIT_SITES;
    return check->due && t->micro_batch + 1 == check->options->micro_batches
               ? moert_check_update_end_backward(check)
               : MOERT_OK;
}

static moert_status keep(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    check->norm = t->row.grad_norm;
    return check->due ? moert_check_update_keep(check, &t->coefficients) : MOERT_OK;
}

static moert_status compare(void *self, moert_trainer *t) {
    moert_cross_check *check = self;
    (void)t;
    return check->due ? moert_check_update_compare(check) : MOERT_OK;
}

static moert_status measure(void *self, moert_trainer *t) {
    moert_check_measure(self, t->step_s);
    return MOERT_OK;
}

static moert_status report(void *self, moert_trainer *t) {
    if (t->first)
        moert_check_report(self);
    return MOERT_OK;
}

const moert_observer moert_observer_check = {wanted,
                                             sizeof(moert_cross_check),
                                             open,
                                             close,
                                             {[MOERT_EVENT_BATCH] = begin,
                                              [MOERT_EVENT_GIVE_UP] = give_up,
                                              [MOERT_EVENT_BACKWARD] = end_backward,
                                              [MOERT_EVENT_UPDATE] = keep,
                                              [MOERT_EVENT_UPDATED] = compare,
                                              [MOERT_EVENT_ROW] = measure,
                                              [MOERT_EVENT_END] = report}};
