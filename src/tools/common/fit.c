/* Compares the estimated memory of the ranks with the memory that they may take. */
#include "tools/common/fit.h"

#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"

/* The values that a rank sends to all other ranks. */
typedef struct report {
    uint64_t needed, available; /* bytes; ranks that share a memory also share `available` */
    /* identifies the memory of the rank's device: a host's memory, or that of one GPU of a host */
    uint64_t place;
} report;

void moert_fit_prepare(const moert_mesh *mesh, moert_mesh_place *places,
                       moert_memory_setting *setting) {
    unsigned engine = MOERT_EXCHANGE_LOCAL;
    while (strcmp(moert_config_choice("MOERT_EXCHANGE", engine), moert_mesh_engine(mesh)) != 0)
        engine++;
    setting->ranks = moert_comm_size(mesh->world);
    setting->exact = mesh->exact > 1;
    setting->ep = moert_comm_size(mesh->experts) / mesh->exact;
    moert_mesh_places(mesh->world, setting->ep, places);
    /* exact replicas are estimated as if all ranks were on one host */
    setting->places = setting->exact ? NULL : places;
    setting->engine = engine;
    setting->device = mesh->device;
    setting->largest_bytes = moert_device_describe(mesh->device)->largest_bytes;
}

/* Identifies the memory of this rank's device. Ranks that share a memory get the same number. */
static uint64_t place_of(const moert_comm *world, const moert_device_info *info) {
    const uint64_t node = moert_comm_node(world, moert_comm_rank(world));
    const uint64_t device =
        info->is_cpu ? 0 : 1 + ((uint64_t)info->platform << 16) + (uint64_t)info->index;
    return node << 32 | device;
}

/* Returns the available bytes of a memory that ranks share. For a host whose available memory is
 * unknown, returns all of the host's memory. Of a GPU's memory, 2 % are reserved for its driver and
 * for errors of the estimate. */
static size_t available_bytes(const moert_device_info *info) {
    if (!info->is_cpu)
        return info->global_bytes / 50 * 49;
    const size_t bytes = moert_memory_available();
    return bytes > 0 ? bytes : info->global_bytes;
}

/* Stores the rank in *fit if it has less room than the ranks before. */
static void take(moert_fit *fit, size_t rank, size_t needed, size_t limit) {
    if (rank == 0 || needed + fit->limit > fit->needed + limit)
        *fit = (moert_fit){rank, needed, limit};
}

/* Estimates setting->ranks hypothetical ranks of one host. Each rank has its own GPU like this
 * rank's or, without GPUs, all share the CPUs. */
static moert_status compare_others(const moert_memory_setting *setting, size_t most,
                                   moert_fit *fit) {
    const moert_device_info *info = moert_device_describe(setting->device);
    const size_t own = available_bytes(info) / (info->is_cpu ? setting->ranks : 1);
    for (size_t r = 0; r < setting->ranks; r++) {
        moert_memory memory;
        MOERT_TRY(moert_memory_estimate(setting, r, &memory));
        take(fit, r, memory.total, most > 0 ? most : own);
    }
    return MOERT_OK;
}

moert_status moert_fit_compare(moert_comm *world, const moert_memory_setting *setting, size_t most,
                               moert_fit *fit) {
    const moert_device_info *info = moert_device_describe(setting->device);
    moert_memory memory = {0};
    report *reports, mine = {.place = place_of(world, info)};
    if (setting->ranks != moert_comm_size(world))
        return moert_comm_agree(world, compare_others(setting, most, fit));
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW_ARRAY(&reports, setting->ranks)));
    moert_status status = moert_memory_estimate(setting, moert_comm_rank(world), &memory);
    mine.needed = memory.total;
    mine.available = available_bytes(info);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, moert_comm_allgather(world, &mine, sizeof mine, reports));
    for (size_t r = 0; r < setting->ranks; r++) {
        size_t sharers = 0;
        for (size_t s = 0; s < setting->ranks; s++)
            sharers += reports[s].place == reports[r].place;
        take(fit, r, reports[r].needed, most > 0 ? most : reports[r].available / sharers);
    }
done:
    MOERT_FREE(reports);
    return status;
}

moert_status moert_fit_choose(moert_comm *world, const moert_memory_setting *setting, size_t most,
                              moert_memory_choice *choice, moert_fit *fit) {
    const size_t given = choice->loss_chunk;
    const size_t chunks[] = {given, 1024, 128};
    moert_model_config config = *setting->config;
    moert_memory_setting tried = *setting;
    tried.config = &config;
    for (unsigned r = MOERT_RECOMPUTE_NONE; r <= MOERT_RECOMPUTE_LAYER; r++)
        for (size_t i = 0; i < (given > 0 ? 1 : MOERT_COUNT(chunks)); i++) {
            config.memory.recompute = r;
            config.memory.loss_chunk = chunks[i];
            *choice = config.memory;
            MOERT_TRY(moert_fit_compare(world, &tried, most, fit));
            if (moert_fit_holds(fit))
                return MOERT_OK;
        }
    return MOERT_OK;
}
