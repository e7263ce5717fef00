/*
 * What `--watch` adds to a step's metrics:
 *
 *   grad_norm/layer_N, grad_norm/outside   norms of the gradients of each layer's parameters before
 *                                          clipping, and of embedding, last norm and head
 *   activation_rms/layer_N                 root of the mean square of the residual behind the layer
 *   router_entropy/layer_N                 of MoE layers: mean over the tokens, in nats
 *   dead_experts                           experts of all layers without a row in the step
 *   model_flops_per_s                      of all ranks (model/flops.h)
 *   mfu                                    the same as a part of the peak of all ranks' devices
 *
 * All but the last two have the same digits on any number of ranks.
 */
#pragma once

#include "model/model.h"
#include "train/event_file.h"
#include "train/gradient_norm.h"

typedef struct moert_monitor moert_monitor;

typedef struct moert_monitor_options {
    moert_run *run;
    size_t sequences, length; /* of a step */
    double peak_flops;        /* of a rank's device; 0: measured now (moert_roof_measure) */
} moert_monitor_options;

/* The run must outlive the monitor. Collective; all ranks return the same status. Errors:
 * ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_monitor_create(const moert_monitor_options *options, moert_monitor **monitor);
void moert_monitor_destroy(moert_monitor *monitor); /* NULL is legal */

/* Adds a micro-batch, after its loss and before its backward; `first` begins a step. Does nothing
 * without a monitor. Collective. */
moert_status moert_monitor_take(moert_monitor *monitor, bool first);

/* The numbers of a step that took `seconds`, from the last gradient norm. `counts` [layers,E] are
 * the slots of the step. They are valid until the next call. Not collective. */
size_t moert_monitor_list(moert_monitor *monitor, const moert_gradient_norm *norm,
                          const uint64_t *counts, double seconds, const moert_scalar **numbers);
