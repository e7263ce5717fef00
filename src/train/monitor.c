/*
 * The observer of `--watch` adds these numbers to a step's metrics:
 *
 *   grad_norm/layer_N, grad_norm/outside   norms of the gradients of each layer's parameters before
 *                                          clipping, and of embedding, last norm and head
 *   activation_rms/layer_N                 root mean square of the residual after the layer
 *   router_entropy/layer_N                 of the router in a MoE layer, mean over tokens, in nats
 *   dead_experts                           number of experts in all layers that got no row
 *   model_flops_per_s                      FLOP/s of all ranks together (model/flops.h)
 *   mfu                                    model_flops_per_s / peak FLOP/s of all ranks' devices
 *
 * All metrics but the last two have the same bits for any number of ranks.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "device/profile/profile.h"
#include "model/flops.h"
#include "model/watch.h"
#include "train/breakdown.h"
#include "train/internal.h"

enum { NAME_BYTES = 48, OTHERS = 4 }; /* OTHERS: number of metrics outside of the layers */

typedef struct moert_monitor {
    moert_model *model;
    moert_model_watch *watch;
    double sequence_flops, peak_flops; /* FLOPs of a sequence; peak FLOP/s of all ranks */
    double *norm;                      /* [layers + 1] */
    moert_scalar *number;              /* [count] */
    char (*name)[NAME_BYTES];          /* [count] */
    size_t count;
} moert_monitor;

/* *sum = the sum of the peak FLOP/s of all ranks. Ranks that share a device have each measured
 * their part of its peak. Collective. */
static moert_status sum_peaks(const moert_trainer *t, double *sum) {
    const moert_mesh *mesh = moert_model_mesh(t->model);
    const size_t ranks = moert_comm_size(mesh->world);
    const double peak_flops = t->options->peak_flops;
    const bool bf16 = moert_trainer_uses_bf16(t);
    moert_roof roof;
    double own = 1e-9 * peak_flops, *all = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(mesh->world, MOERT_NEW_ARRAY(&all, ranks)));
    if (!(peak_flops > 0.0)) {
        MOERT_TRY_OR(done, moert_peaks_measure(mesh->device, mesh->world, bf16, &roof));
        own = bf16 ? roof.bf16_gflops : roof.gflops;
    }
    MOERT_TRY_OR(done, moert_comm_allgather(mesh->world, &own, sizeof own, all));
    *sum = 0.0;
    for (size_t r = 0; r < ranks; r++)
        *sum += 1e9 * all[r];
done:
    free(all);
    return status;
}

static bool wanted(const moert_trainer *t) {
    return t->options->watch;
}

static void close(void *self) {
    moert_monitor *monitor = self;
    moert_model_watch_destroy(monitor->watch);
    MOERT_FREE(monitor->name, monitor->number, monitor->norm);
}

static moert_status create(moert_trainer *t, moert_monitor *made) {
    const moert_model_config *config = moert_model_describe(t->model);
    const size_t most = 3 * config->layers + OTHERS;
    made->model = t->model;
    made->sequence_flops = moert_model_flops(config, t->options->length);
    MOERT_TRY(MOERT_NEW_ARRAY(&made->norm, config->layers + 1));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->number, most));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->name, most));
    return moert_model_watch_create(t->run, &made->watch);
}

static moert_status open(void *self, moert_trainer *t) {
    moert_monitor *made = self;
    MOERT_TRY(moert_comm_agree(t->world, create(t, made)));
    return sum_peaks(t, &made->peak_flops);
}

static moert_status take(void *self, moert_trainer *t) {
    const moert_monitor *monitor = self;
    return moert_model_watch_take(monitor->watch, t->micro_batch == 0);
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

/* Adds the step's numbers to its metrics, after its gradient norm was computed. The numbers are
 * valid until the next step. */
static moert_status report(void *self, moert_trainer *t) {
    moert_monitor *monitor = self;
    const moert_model_config *config = moert_model_describe(monitor->model);
    const size_t layers = config->layers;
    const double rate = (double)moert_trainer_batch(t) * monitor->sequence_flops / t->step_s;
    size_t dead = 0;
    monitor->count = 0;
    moert_gradient_norm_layers(t->optimizer->norm, monitor->norm);
    for (size_t l = 0; l < layers; l++)
        put_layer(monitor, "grad_norm", l, monitor->norm[l]);
    put(monitor, "grad_norm/outside", monitor->norm[layers]);
    for (size_t l = 0; l < layers; l++)
        put_layer(monitor, "activation_rms", l, moert_model_watch_activation(monitor->watch, l));
    for (size_t l = 0, moe = 0; l < layers; l++)
        if (moert_layer_is_moe(config, l))
            put_layer(monitor, "router_entropy", l,
                      moert_model_watch_entropy(monitor->watch, moe++));
    for (size_t e = 0; e < moert_trainer_experts(t); e++)
        dead += t->counts[e] == 0;
    put(monitor, "dead_experts", (double)dead);
    put(monitor, "model_flops_per_s", rate);
    put(monitor, "mfu", rate / monitor->peak_flops);
    t->row.more[0].number = monitor->number;
    t->row.more[0].count = monitor->count;
    return MOERT_OK;
}

const moert_observer moert_observer_monitor = {
    wanted,
    sizeof(moert_monitor),
    open,
    close,
    {[MOERT_EVENT_LOSS] = take, [MOERT_EVENT_ROW] = report}};
