/* Collects the report of moert-info on all ranks, as JSON. */
#include "tools/info/survey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"
#include "tools/common/fit.h"
#include "exchange/exchange.h"
#include "gemm/gemm.h"
#include "layer/mesh.h"
#include "tools/common/options.h"

/* Properties of one rank and its device. */
typedef struct rank_report {
    moert_placement placement;
    moert_device_info device;
    char topology[256];
    bool portable; /* GEMM results have the same bits as on CPUs with other drivers */
    char difference[256], bf16_order[32];
    size_t device_count; /* devices of the host; 0 on ranks that are not the first of their host */
} rank_report;

enum { LARGEST = 10 }; /* number of largest buffers that the report lists */

typedef struct survey {
    moert_comm *world;
    moert_device *device;
    size_t group;               /* ranks that share one set of experts */
    rank_report *ranks;         /* [R] */
    moert_mesh_place *places;   /* [R] */
    moert_device_info *devices; /* devices of all hosts, host by host */
    moert_exchange_report engines[MOERT_EXCHANGE_ENGINES];
} survey;

/* ---- JSON ---- */

/* A JSON string of `words`. Names of drivers and values of variables may not be valid UTF-8; in
 * these, bytes above 126 become '?'. */
static json_t *text(const char *words) {
    json_t *made = json_string(words);
    char *plain = made == NULL ? strdup(words) : NULL;
    for (char *at = plain; at != NULL && *at != '\0'; at++)
        if ((unsigned char)*at > 126)
            *at = '?';
    if (plain != NULL)
        made = json_string(plain);
    free(plain);
    return made;
}

static json_int_t number(size_t value) {
    return (json_int_t)value;
}

static moert_status no_memory(void) {
    return MOERT_FAIL(ERROR_MEMORY, "no room for the report");
}

/* Appends a row to the array, which then owns the row. */
static moert_status append(json_t *array, json_t *row) {
    return json_array_append_new(array, row) == 0 ? MOERT_OK : no_memory();
}

/* A new array in `object`, which owns the array. NULL if memory is short; append() then reports the
 * error. */
static json_t *new_array(json_t *object, const char *key) {
    json_t *array = json_array();
    return json_object_set_new(object, key, array) == 0 ? array : NULL;
}

/* ---- hosts, devices, placement ---- */

static moert_status describe_host(const moert_context *context, char *line, size_t bytes) {
    moert_topology *topology;
    snprintf(line, bytes, "%s", moert_context_topology(context));
    if (line[0] != '\0')
        return MOERT_OK;
    MOERT_TRY(moert_topology_create(moert_config_get()->topology, &topology));
    moert_topology_describe(topology, line, bytes);
    moert_topology_destroy(topology);
    return MOERT_OK;
}

/* Collects this rank's properties and, on the first rank of a host, the host's devices. */
static moert_status look_around(const moert_context *context, const survey *s, rank_report *mine,
                                moert_device_info **devices) {
    mine->placement = *moert_context_placement(context);
    mine->device = *moert_device_describe(s->device);
    snprintf(mine->difference, sizeof mine->difference, "%s", moert_context_difference(context));
    mine->portable = mine->difference[0] == '\0';
    snprintf(mine->bf16_order, sizeof mine->bf16_order, "%s", moert_gemm_bf16_order(s->device));
    if (mine->portable && moert_device_sums_in_tiles(&mine->device))
        snprintf(mine->difference, sizeof mine->difference,
                 "bf16 alone differs: its GEMMs add in tiles, as AMX does (see MOERT_BF16)");
    MOERT_TRY(describe_host(context, mine->topology, sizeof mine->topology));
    if (moert_comm_node_rank(s->world) == 0)
        MOERT_TRY(moert_device_list(devices, &mine->device_count));
    return MOERT_OK;
}

static moert_status gather(const moert_context *context, survey *s) {
    const size_t ranks = moert_comm_size(s->world);
    rank_report mine = {.device_count = 0};
    moert_device_info *devices = NULL;
    size_t *bytes = NULL, total = 0;
    moert_status status = look_around(context, s, &mine, &devices);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&s->ranks, ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&bytes, ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&s->places, ranks);
    MOERT_TRY_OR(done, moert_comm_agree(s->world, status));
    moert_mesh_places(s->world, s->group, s->places);
    MOERT_TRY_OR(done, moert_comm_allgather(s->world, &mine, sizeof mine, s->ranks));
    for (size_t r = 0; r < ranks; r++) {
        bytes[r] = s->ranks[r].device_count * sizeof *devices;
        total += bytes[r];
    }
    MOERT_TRY_OR(done, moert_comm_agree(s->world, moert_alloc(&s->devices, total, 1)));
    MOERT_TRY_OR(done, moert_comm_allgatherv(s->world, devices, bytes, s->devices));
done:
    MOERT_FREE(bytes, devices);
    return status;
}

static bool is_chosen(const survey *s, size_t node, const moert_device_info *device) {
    for (size_t r = 0; r < moert_comm_size(s->world); r++)
        if (moert_comm_node(s->world, r) == node &&
            s->ranks[r].device.platform == device->platform &&
            s->ranks[r].device.index == device->index)
            return true;
    return false;
}

static json_t *device_row(const survey *s, size_t rank, const moert_device_info *device) {
    char id[32];
    snprintf(id, sizeof id, "%d:%d", device->platform, device->index);
    return json_pack(
        "{so ss so so so ss si sI sI sI sb so sb}", "host", text(moert_comm_host(s->world, rank)),
        "id", id, "name", text(device->name), "platform", text(device->platform_name), "driver",
        text(device->driver), "type",
        device->is_gpu   ? "gpu"
        : device->is_cpu ? "cpu"
                         : "other",
        "compute_units", (int)device->compute_units, "memory", number(device->global_bytes),
        "largest", number(device->largest_bytes), "local", number(device->local_bytes), "fp64",
        device->has_fp64, "pci", text(device->pci), "chosen",
        is_chosen(s, moert_comm_node(s->world, rank), device));
}

static json_t *placement_row(const survey *s, size_t rank) {
    const moert_placement *placement = &s->ranks[rank].placement;
    const moert_device_info *device = &s->ranks[rank].device;
    char id[32];
    snprintf(id, sizeof id, "%d:%d", device->platform, device->index);
    return json_pack("{sI so ss si ss so sb sb}", "rank", number(rank), "host",
                     text(moert_comm_host(s->world, rank)), "cpus", placement->cpus, "cores",
                     (int)placement->cpu_count, "device", id, "pci",
                     text(device->pci[0] != '\0' ? device->pci : placement->pci), "confined",
                     placement->confined, "shared", placement->shared);
}

static json_t *digits_row(const survey *s, size_t rank) {
    const rank_report *report = &s->ranks[rank];
    return json_pack("{sI so ss sb so}", "rank", number(rank), "device", text(report->device.name),
                     "bf16_sums", report->bf16_order, "portable", report->portable, "reason",
                     text(report->difference));
}

static moert_status put_ranks(const survey *s, json_t *object) {
    const size_t ranks = moert_comm_size(s->world);
    json_t *hosts = new_array(object, "hosts"), *devices = new_array(object, "devices");
    json_t *placement = new_array(object, "placement"), *digits = new_array(object, "digits");
    const moert_device_info *device = s->devices;
    for (size_t r = 0; r < ranks; r++) {
        size_t here = 0;
        MOERT_TRY(append(placement, placement_row(s, r)));
        MOERT_TRY(append(digits, digits_row(s, r)));
        if (s->ranks[r].device_count == 0) /* not the first rank of its host */
            continue;
        for (size_t other = 0; other < ranks; other++)
            here += moert_comm_node(s->world, other) == moert_comm_node(s->world, r);
        MOERT_TRY(
            append(hosts, json_pack("{so sI ss}", "host", text(moert_comm_host(s->world, r)),
                                    "ranks", number(here), "topology", s->ranks[r].topology)));
        for (size_t i = 0; i < s->ranks[r].device_count; i++)
            MOERT_TRY(append(devices, device_row(s, r, device++)));
    }
    return MOERT_OK;
}

/* ---- engines, backends, tuning, variables ---- */

static json_t *choice_row(const char *name, bool automatic, const char *reason) {
    return json_pack("{ss sb sb so}", "name", name, "works", reason[0] == '\0', "auto", automatic,
                     "reason", text(reason));
}

static moert_status put_engines(survey *s, json_t *object) {
    json_t *rows = new_array(object, "engines");
    moert_comm *group;
    MOERT_TRY(moert_comm_split(s->world, s->places[moert_comm_rank(s->world)].group, &group));
    moert_exchange_survey(s->device, group, s->engines);
    moert_comm_destroy(group);
    MOERT_TRY(moert_comm_broadcast(s->world, 0, s->engines, sizeof s->engines));
    for (size_t i = 0; i < MOERT_EXCHANGE_ENGINES; i++) {
        /* after the broadcast, `name` points into rank 0's memory, so each rank sets it anew */
        s->engines[i].name =
            moert_config_choice("MOERT_EXCHANGE", MOERT_EXCHANGE_LOCAL + (unsigned)i);
        MOERT_TRY(append(
            rows, choice_row(s->engines[i].name, s->engines[i].automatic, s->engines[i].reason)));
    }
    return MOERT_OK;
}

static moert_status put_backends(const survey *s, json_t *object) {
    json_t *rows = new_array(object, "backends");
    moert_backend_report report;
    for (size_t i = 0; moert_backend_survey(s->device, i, &report); i++) {
        moert_status mine = report.reason[0] == '\0'
                                ? MOERT_OK
                                : MOERT_FAIL(ERROR_UNSUPPORTED, "%s", report.reason);
        const bool works = moert_comm_agree(s->world, mine) == MOERT_OK;
        MOERT_TRY(append(
            rows, choice_row(report.name, report.automatic, works ? "" : moert_last_error())));
    }
    return MOERT_OK;
}

static moert_status put_variables(json_t *object) {
    json_t *rows = new_array(object, "variables");
    moert_variable v;
    for (size_t i = 0; moert_config_variable(i, &v); i++)
        MOERT_TRY(append(rows, json_pack("{ss so sb ss ss ss ss ss}", "name", v.name, "value",
                                         text(v.value != NULL ? v.value : v.standard), "set",
                                         v.value != NULL, "default", v.standard, "ranks",
                                         v.agree ? "same" : "any", "type", v.type, "limits",
                                         v.limits, "help", v.help)));
    return MOERT_OK;
}

/* ---- memory ---- */

/* The engine that a run would use: the engine of MOERT_EXCHANGE, or the automatic choice. */
static unsigned chosen_engine(const survey *s) {
    unsigned engine = moert_config_get()->exchange;
    for (unsigned i = 0; i < MOERT_EXCHANGE_ENGINES && engine == MOERT_EXCHANGE_AUTO; i++)
        if (s->engines[i].automatic)
            engine = MOERT_EXCHANGE_LOCAL + i;
    return engine;
}

static json_t *memory_row(size_t rank, const moert_memory *memory) {
    json_t *row = json_pack("{sI}", "rank", number(rank));
#define PUT(field, title, help)                                                                    \
    json_object_set_new(row, #field, json_integer(number(memory->field)));
    MOERT_MEMORY_TABLE(PUT)
#undef PUT
    return row;
}

static moert_status put_largest(json_t *object, const moert_memory *memory) {
    json_t *rows = new_array(object, "largest");
    for (size_t i = 0; i < moert_min(memory->parts, LARGEST); i++) {
        const moert_memory_part *part = &memory->part[i];
        MOERT_TRY(append(rows, json_pack("{sI ss ss}", "bytes", number(part->bytes), "kind",
                                         part->kind, "name", part->name)));
    }
    return MOERT_OK;
}

/* Sets the ranks of the memory estimate, if they differ from this job's ranks. */
static moert_status set_ranks(const moert_survey_model *model, moert_memory_setting *setting) {
    if (model->ranks == 0)
        return MOERT_OK;
    setting->ranks = model->ranks;
    setting->places = NULL;
    if (setting->engine == MOERT_EXCHANGE_LOCAL && model->ranks > 1)
        setting->engine = MOERT_EXCHANGE_WINDOW;
    if (setting->engine != MOERT_EXCHANGE_LOCAL && model->ranks == 1)
        setting->engine = MOERT_EXCHANGE_LOCAL;
    return moert_mesh_group(model->ranks, model->ep, &setting->ep);
}

static moert_status put_memory(const survey *s, const moert_survey_model *model, json_t *object) {
    moert_model_config config = *model->config;
    moert_memory_choice *choice = &config.memory;
    moert_fit fit;
    moert_memory_setting setting = {.config = &config,
                                    .batch = model->batch,
                                    .length = model->length,
                                    .ranks = moert_comm_size(s->world),
                                    .ep = s->group,
                                    .exact = model->exact,
                                    .places = model->exact ? NULL : s->places,
                                    .engine = chosen_engine(s),
                                    .largest_bytes = SIZE_MAX,
                                    .micro_batches = model->micro_batches,
                                    .saves_beside = model->saves_beside,
                                    .verifies = model->verifies,
                                    .device = s->device,
                                    .aux_form = model->aux_form};
    for (size_t r = 0; r < setting.ranks; r++)
        setting.largest_bytes = moert_min(setting.largest_bytes, s->ranks[r].device.largest_bytes);
    MOERT_TRY(set_ranks(model, &setting));
    MOERT_TRY(choice->recompute == MOERT_RECOMPUTE_AUTO
                  ? moert_fit_choose(s->world, &setting, model->most, choice, &fit)
                  : moert_fit_compare(s->world, &setting, model->most, &fit));
    const char *method = model->config->quant_method;
    json_t *part = json_pack(
        "{so ss sI sI sI sI sf so so so so so so so so so sb sI sI sI}", "path", text(model->path),
        "weights", method != NULL ? method : "plain", "batch", number(model->batch), "length",
        number(model->length), "micro_batches", number(model->micro_batches), "loss_chunk",
        number(choice->loss_chunk), "imbalance", choice->imbalance, "recompute",
        text(moert_choice_word(MOERT_RECOMPUTE_WORDS, choice->recompute)), "optimizer",
        text(moert_choice_word(MOERT_OPTIMIZER_WORDS, choice->optimizer)), "moments",
        text(moert_choice_word(MOERT_STATE_WORDS, choice->moments)), "gradients",
        text(moert_choice_word(MOERT_STATE_WORDS, choice->gradients)), "precision",
        text(moert_choice_word(MOERT_PRECISION_WORDS "|a recipe", model->config->precision)),
        "dense", text(moert_choice_word(MOERT_DENSE_WORDS, model->config->dense)), "dispatch",
        text(moert_choice_word(MOERT_DISPATCH_WORDS, model->config->dispatch)), "combine",
        text(moert_choice_word(MOERT_COMBINE_WORDS, model->config->combine)), "engine",
        text(moert_config_choice("MOERT_EXCHANGE", setting.engine)), "fits", moert_fit_holds(&fit),
        "least_room", number(fit.rank), "needed", number(fit.needed), "limit", number(fit.limit));
    if (json_object_set_new(object, "memory", part) != 0)
        return no_memory();
    json_t *rows = new_array(part, "ranks");
    for (size_t r = 0; r < setting.ranks; r++) {
        moert_memory memory;
        MOERT_TRY(moert_memory_estimate(&setting, r, &memory));
        MOERT_TRY(append(rows, memory_row(r, &memory)));
        if (r == fit.rank)
            MOERT_TRY(put_largest(part, &memory));
    }
    return MOERT_OK;
}

/* ---- all ---- */

static moert_status fill(moert_context *context, const moert_survey_model *model, survey *s,
                         json_t *object) {
    MOERT_TRY(gather(context, s));
    MOERT_TRY(put_ranks(s, object));
    MOERT_TRY(put_engines(s, object));
    MOERT_TRY(put_backends(s, object));
    MOERT_TRY(moert_survey_tuning(s->device, object));
    MOERT_TRY(put_variables(object));
    if (model->config == NULL)
        return MOERT_OK;
    return moert_comm_agree(s->world, put_memory(s, model, object));
}

moert_status moert_survey(moert_context *context, size_t ep, const moert_survey_model *model,
                          json_t **out) {
    survey s = {.world = moert_context_comm(context), .device = moert_context_device(context)};
    const size_t ranks = moert_comm_size(s.world);
    char mpi[256];
    MOERT_TRY(moert_comm_agree(s.world, moert_mesh_group(ranks, ep, &s.group)));
    moert_comm_library(mpi, sizeof mpi);
    json_t *object = json_pack("{ss so sI sI}", "version", MOERT_VERSION, "mpi", text(mpi), "ranks",
                               number(ranks), "group", number(s.group));
    moert_status status = moert_comm_agree(s.world, object != NULL ? MOERT_OK : no_memory());
    if (status == MOERT_OK)
        status = fill(context, model, &s, object);
    MOERT_FREE(s.ranks, s.devices, s.places);
    if (status == MOERT_OK)
        *out = object;
    else
        json_decref(object);
    return status;
}
