/*
 * Statistics of each layer for the metrics of a run: the size of the residual, and the entropy of
 * the router. The sums of single sequences are added in the order of the sequences, so the
 * statistics do not depend on the number of ranks.
 */
#pragma once

#include "model/model.h"

typedef struct moert_model_watch moert_model_watch;

/* `run` must outlive *watch. Not collective. Errors: ERROR_MEMORY. */
moert_status moert_model_watch_create(moert_run *run, moert_model_watch **watch);
void moert_model_watch_destroy(moert_model_watch *watch); /* NULL is legal */

/* Adds the last forward to the sums; with `first`, the sums of a new step begin with it. Call this
 * for each micro-batch, between the loss and the backward. Blocks. Collective. */
moert_status moert_model_watch_take(moert_model_watch *watch, bool first);

/* The root mean square of the residual after layer `layer`, over the step's tokens and padding. Not
 * collective. */
double moert_model_watch_activation(const moert_model_watch *watch, size_t layer);
/* The mean entropy of the router of MoE layer `index` (moert_router_entropy) over the step's
 * tokens. Not collective. */
double moert_model_watch_entropy(const moert_model_watch *watch, size_t index);
