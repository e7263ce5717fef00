/* A run of moert-train. */
#pragma once

#include "context/context.h"
#include "tools/train/options.h"

/* Trains, replays, or computes gradients or logits, as the options say. Frees the memory of the
 * options' fields. Collective. */
moert_status moert_train_run(moert_context *context, moert_train_options *options);
