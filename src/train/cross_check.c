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

void moert_cross_check_drop(moert_cross_check *check) {
    if (check == NULL)
        return;
    check->layer = MOERT_AUDIT_NO_LAYER;
    moert_audit_end(check->audit);
}

moert_status moert_cross_check_end(moert_cross_check *check) {
    if (check == NULL)
        return MOERT_OK;
    moert_status status = MOERT_OK;
    if (check->layer != MOERT_AUDIT_NO_LAYER) {
        moert_phase_set(MOERT_PHASE_VERIFY);
        status = moert_check_run(check, &moert_check_layer);
    }
    moert_audit_end(check->audit);
    check->plants &= check->plant_step != check->step || check->plant.site >= MOERT_AUDIT_SITES;
    return status;
}
