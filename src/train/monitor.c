/* The numbers of a watched run. */
#include "train/monitor.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "device/profile/profile.h"
#include "model/flops.h"
#include "model/watch.h"

enum { NAME_BYTES = 48, OTHERS = 4 }; /* OTHERS: numbers that are not of a layer */

struct moert_monitor {
    moert_model *model;
    moert_model_watch *watch;
    double step_flops, peak_flops; /* of all ranks */
    double *norm;                  /* [layers + 1] */
    moert_scalar *number;          /* [count] */
    char (*name)[NAME_BYTES];      /* [count] */
    size_t count;
};

/* *sum = the peaks of all ranks' devices, in FLOP/s. Ranks that share a device each measure their
 * part of it. Collective. */
static moert_status sum_peaks(const moert_monitor_options *o, double *sum) {
    const moert_mesh *mesh = moert_model_mesh(moert_run_model(o->run));
    const size_t ranks = moert_comm_size(mesh->world);
    moert_roof roof = {.gflops = 1e-9 * o->peak_flops};
    double *all = NULL;
    moert_status status = MOERT_NEW_ARRAY(&all, ranks);
    if (status == MOERT_OK && !(o->peak_flops > 0.0))
        status = moert_roof_measure(mesh->device, &roof);
    MOERT_TRY_OR(done, moert_comm_agree(mesh->world, status));
    MOERT_TRY_OR(done, moert_comm_allgather(mesh->world, &roof.gflops, sizeof roof.gflops, all));
    *sum = 0.0;
    for (size_t r = 0; r < ranks; r++)
        *sum += 1e9 * all[r];
done:
    free(all);
    return status;
}

static moert_status create(const moert_monitor_options *o, moert_monitor **monitor) {
    const moert_model_config *config = moert_model_describe(moert_run_model(o->run));
    const size_t most = 3 * config->layers + OTHERS;
    moert_monitor *made;
    MOERT_TRY(MOERT_NEW(&made));
    *monitor = made;
    made->model = moert_run_model(o->run);
    made->step_flops = (double)o->sequences * moert_model_flops(config, o->length);
    MOERT_TRY(MOERT_NEW_ARRAY(&made->norm, config->layers + 1));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->number, most));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->name, most));
    return moert_model_watch_create(o->run, &made->watch);
}

moert_status moert_monitor_create(const moert_monitor_options *options, moert_monitor **monitor) {
    moert_monitor *made = NULL;
    moert_status status;
    MOERT_TRY_OR(failed, moert_comm_agree(moert_model_mesh(moert_run_model(options->run))->world,
                                          create(options, &made)));
    MOERT_TRY_OR(failed, sum_peaks(options, &made->peak_flops));
    *monitor = made;
    return MOERT_OK;
failed:
    moert_monitor_destroy(made);
    return status;
}

void moert_monitor_destroy(moert_monitor *monitor) {
    if (monitor == NULL)
        return;
    moert_model_watch_destroy(monitor->watch);
    MOERT_FREE(monitor->name, monitor->number, monitor->norm, monitor);
}

moert_status moert_monitor_take(moert_monitor *monitor, bool first) {
    return monitor != NULL ? moert_model_watch_take(monitor->watch, first) : MOERT_OK;
}

static void put(moert_monitor *monitor, const char *name, double value) {
    char *copy = monitor->name[monitor->count];
    snprintf(copy, NAME_BYTES, "%s", name);
    monitor->number[monitor->count++] = (moert_scalar){copy, value};
}

static void put_layer(moert_monitor *monitor, const char *what, size_t layer, double value) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s/layer_%zu", what, layer);
    put(monitor, name, value);
}

static double count_dead(const moert_monitor *monitor, const uint64_t *counts) {
    const size_t slots = moert_model_moe_layers(monitor->model) *
                         moert_model_describe(monitor->model)->router.experts;
    size_t dead = 0;
    for (size_t i = 0; i < slots; i++)
        dead += counts[i] == 0;
    return (double)dead;
}

size_t moert_monitor_list(moert_monitor *monitor, const moert_gradient_norm *norm,
                          const uint64_t *counts, double seconds, const moert_scalar **numbers) {
    const moert_model_config *config = moert_model_describe(monitor->model);
    const size_t layers = config->layers;
    const double rate = monitor->step_flops / seconds;
    monitor->count = 0;
    moert_gradient_norm_layers(norm, monitor->norm);
    for (size_t l = 0; l < layers; l++)
        put_layer(monitor, "grad_norm", l, monitor->norm[l]);
    put(monitor, "grad_norm/outside", monitor->norm[layers]);
    for (size_t l = 0; l < layers; l++)
        put_layer(monitor, "activation_rms", l, moert_model_watch_activation(monitor->watch, l));
    for (size_t l = 0, moe = 0; l < layers; l++)
        if (moert_layer_is_moe(config, l))
            put_layer(monitor, "router_entropy", l,
                      moert_model_watch_entropy(monitor->watch, moe++));
    put(monitor, "dead_experts", count_dead(monitor, counts));
    put(monitor, "model_flops_per_s", rate);
    put(monitor, "mfu", rate / monitor->peak_flops);
    *numbers = monitor->number;
    return monitor->count;
}
