/*
 * What a rank of a training run will allocate, from config.json alone: the sums that the modules
 * make when they create their blocks (layer/block.h), reserve their activations (layer, model) and
 * their windows (exchange), in closed form. tests/unit/estimate/test_memory_estimate.c holds them
 * against what a real model allocates. Memory that OpenCL, MPI and compiled kernels take is not in
 * it.
 */
#pragma once

#include "device/device.h"
#include "io/model_config.h"

typedef struct moert_memory_setting {
    const moert_model_config *config;
    size_t batch, length; /* B sequences of one micro-batch over all ranks, of S tokens each */
    size_t ranks, ep;     /* R; ranks that share one set of experts, a divisor of R */
    unsigned engine;      /* MOERT_EXCHANGE_* of base/config.h, not AUTO */
    size_t largest_bytes; /* largest allocation that every rank's device takes */
    size_t micro_batches; /* of a step */
    const moert_device *device; /* that the backend packs weights for; NULL: it packs none */
} moert_memory_setting;

/*
 * X(field, title, help): bytes of one rank. Rows are counted at balanced routing, where the rank
 * receives M = tokens of its EP group x K x L / E rows, rounded up.
 */
#define MOERT_MEMORY_TABLE(X)                                                                      \
    X(weights, "weights", "parameters, each tensor padded to 512 bytes")                           \
    X(gradients, "gradients", "as many again")                                                     \
    X(moments, "moments",                                                                          \
      "of AdamW, twice as many for this rank's slices: what several ranks hold, they share")       \
    X(copies, "copies", "of weights: rounded, or packed for their products")                       \
    X(sums, "sums", "gradients of replicated parameters, per node of the tree that sums them")     \
    X(activations, "activations", "kept from forward to backward")                                 \
    X(scratch, "scratch", "of backward, shared by all layers")                                     \
    X(staging, "staging", "packed rows of the staged or node exchange")                            \
    X(windows, "windows", "rows of the exchange windows that balanced routing uses")               \
    X(reserved, "reserved",                                                                        \
      "what those windows reserve; untouched pages of the window exchange "                        \
      "cost nothing")                                                                              \
    X(total, "total", "with what the windows use (window exchange) or reserve (the others)")

typedef struct moert_memory {
#define MOERT_MEMORY_FIELD(field, title, help) size_t field;
    MOERT_MEMORY_TABLE(MOERT_MEMORY_FIELD)
#undef MOERT_MEMORY_FIELD
} moert_memory;

/*
 * What the setting's `rank` allocates. Errors: ERROR_USAGE (sizes that a run would refuse),
 * ERROR_UNSUPPORTED and ERROR_FORMAT (moert_model_config_check_model).
 */
moert_status moert_memory_estimate(const moert_memory_setting *setting, size_t rank,
                                   moert_memory *memory);
