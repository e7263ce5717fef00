/* A layer's creation, accessors and initial weights. */
#include "layer/internal.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/phase.h"
#include "base/rng.h"
#include "layer/check.h"
#include "layer/clones.h"
#include "layer/rounding.h"

static moert_status check_options(const moert_mesh *mesh, const moert_layer_options *options) {
    if (options->hidden == 0 || options->intermediate == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "a layer needs sizes above 0: hidden is %zu, intermediate %zu",
                          options->hidden, options->intermediate);
    MOERT_TRY(moert_layer_check_choices(options));
    MOERT_TRY(moert_router_check(&options->router));
    const size_t ep = moert_comm_size(mesh->experts) / mesh->exact;
    if (options->router.experts < ep)
        return MOERT_FAIL(ERROR_USAGE,
                          "%zu experts cannot be spread over %zu ranks; use fewer ranks, or expert "
                          "parallelism (ep) of at most %zu",
                          options->router.experts, ep, options->router.experts);
    if (options->recompute_experts && options->deferred_wgrad)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "recompute_experts cannot be used with deferred_wgrad, which keeps the "
                          "activations that recompute_experts would compute again");
    if (moert_activation_name(options->glu.activation) == NULL)
        return MOERT_FAIL(ERROR_USAGE, "a layer's GLU has no activation %d",
                          options->glu.activation);
    if (options->shared_gate && options->shared_intermediate == 0)
        return MOERT_FAIL(
            ERROR_USAGE,
            "shared_gate of a layer needs a shared expert (shared_intermediate above 0)");
    return moert_layer_check_sizes(options, ep);
}

/* Creates the blocks of a layer whose placement is set. */
static moert_status create_parts(moert_layer *layer) {
    static const char *const what[BLOCKS] = {
        "the router and the shared experts of a layer",
        "the first projection of all experts of a rank in one layer",
        "the second projection of all experts of a rank in one layer"};
    const moert_layer_options *o = &layer->options;
    const moert_mesh *mesh = layer->mesh;
    const size_t ep = moert_comm_size(mesh->experts) / mesh->exact,
                 rank = moert_comm_rank(mesh->experts);
    size_t count;
    moert_plan_experts(o->router.experts, ep, rank % ep, &layer->first_expert, &count);
    layer->local_experts = moert_expert_map_slots_of(layer->placement, rank);
    layer->choices = moert_layer_choose(o, mesh->device, layer->local_experts);
    const moert_layer_shapes shapes = moert_layer_shapes_of(o, layer->local_experts);
    for (int b = 0; b < BLOCKS; b++) {
        const bool dense = b == BLOCK_DENSE;
        const moert_block_shape shape = {shapes.elements[b], shapes.count[b], shapes.parts[b]};
        MOERT_TRY(moert_block_create(dense ? &mesh->everyone : &mesh->owners, what[b], dense,
                                     &shape, &layer->block[b]));
    }
    return MOERT_OK;
}

/* Allocates the placement, passes and blocks of a layer. */
static moert_status create(moert_layer *layer) {
    const moert_mesh *mesh = layer->mesh;
    const moert_layer_options *o = &layer->options;
    MOERT_TRY(moert_expert_map_create(o->router.experts, moert_comm_size(mesh->experts),
                                      mesh->exact, o->slots, &layer->placement));
    layer->placement->cut = moert_layer_cut_rows(o);
    MOERT_TRY(MOERT_NEW(&layer->passes));
    layer->passes->layers = 1;
    MOERT_TRY(create_parts(layer));
    return moert_clones_prepare(layer);
}

static moert_status take_options(const moert_mesh *mesh, const moert_layer_options *given,
                                 const void *layer, moert_layer_options *taken) {
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_layer_options, MOERT_LAYER_OPTIONS_INIT, taken, given));
    if (layer == NULL)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_create: layer is NULL");
    return check_options(mesh, taken);
}

moert_status moert_layer_create(moert_mesh *mesh, const moert_layer_options *options,
                                moert_layer **layer) {
    moert_layer *made = NULL;
    moert_layer_options taken;
    MOERT_REQUIRE(mesh);
    moert_status status;
    MOERT_TRY(moert_comm_agree(mesh->world, take_options(mesh, options, layer, &taken)));
    MOERT_TRY(moert_layer_compare_options(mesh, &taken));
    MOERT_TRY_OR(fail, moert_comm_agree(mesh->world, MOERT_NEW(&made)));
    made->mesh = mesh;
    made->options = taken;
    made->weights_changed = true;
    MOERT_TRY_OR(fail, moert_comm_agree(mesh->world, create(made)));
    *layer = made;
    return MOERT_OK;
fail:
    moert_layer_destroy(made);
    return status;
}

void moert_layer_destroy(moert_layer *layer) {
    if (layer == NULL)
        return;
    moert_pass_leave_list(layer);
    moert_round_free(layer);
    moert_expert_map_destroy(layer->placement);
    for (int i = 0; i < BLOCKS; i++)
        moert_block_destroy(layer->block[i]);
    free(layer);
}

/* The block and index of a tensor. */
static const struct location {
    int block, tensor;
} locations[MOERT_LAYER_TENSORS] = {
    [MOERT_LAYER_ROUTER] = {BLOCK_DENSE, DENSE_ROUTER},
    [MOERT_LAYER_ROUTER_BIAS] = {BLOCK_DENSE, DENSE_ROUTER_BIAS},
    [MOERT_LAYER_SHARED_W1] = {BLOCK_DENSE, DENSE_SHARED_W1},
    [MOERT_LAYER_SHARED_W2] = {BLOCK_DENSE, DENSE_SHARED_W2},
    [MOERT_LAYER_W1] = {BLOCK_EXPERT_IN, EXPERT_WEIGHT},
    [MOERT_LAYER_B1] = {BLOCK_EXPERT_IN, EXPERT_BIAS},
    [MOERT_LAYER_W2] = {BLOCK_EXPERT_OUT, EXPERT_WEIGHT},
    [MOERT_LAYER_B2] = {BLOCK_EXPERT_OUT, EXPERT_BIAS},
    [MOERT_LAYER_SHARED_GATE] = {BLOCK_DENSE, DENSE_SHARED_GATE},
    [MOERT_LAYER_CORRECTION] = {BLOCK_DENSE, DENSE_CORRECTION},
};

moert_buffer *moert_layer_weight(moert_layer *layer, moert_layer_tensor which) {
    if (layer == NULL || (unsigned)which >= MOERT_LAYER_TENSORS)
        return NULL;
    const struct location *location = &locations[which];
    return layer->block[location->block]->tensor[location->tensor].weight;
}

moert_buffer *moert_layer_gradient(moert_layer *layer, moert_layer_tensor which) {
    if (layer == NULL || (unsigned)which >= MOERT_LAYER_TENSORS)
        return NULL;
    const struct location *location = &locations[which];
    if (which == MOERT_LAYER_CORRECTION)
        return NULL;
    const moert_block_tensor *tensor = &layer->block[location->block]->tensor[location->tensor];
    return tensor->bound_gradient != NULL ? tensor->bound_gradient : tensor->gradient;
}

moert_status moert_layer_bind(moert_layer *layer, moert_layer_tensor which, moert_buffer *weight,
                              moert_buffer *gradient) {
    MOERT_REQUIRE(layer);
    moert_buffer *own = moert_layer_weight(layer, which);
    if (own == NULL)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_bind: the layer has no tensor %d", (int)which);
    const struct location *location = &locations[which];
    const size_t bytes = moert_buffer_bytes(own);
    if (weight != NULL)
        MOERT_TRY(moert_layer_check_buffer(layer, "weight", weight, bytes));
    if (gradient != NULL)
        MOERT_TRY(moert_layer_check_buffer(layer, "gradient", gradient, bytes));
    if (which == MOERT_LAYER_CORRECTION && gradient != NULL)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_bind: the correction bias has no gradient");
    moert_layer_weights_changed(layer);
    return moert_block_bind(layer->block[location->block], (size_t)location->tensor, weight,
                            gradient);
}

void moert_layer_weights_changed(moert_layer *layer) {
    if (layer == NULL)
        return;
    layer->weights_changed = true;
    layer->clones = CLONES_OLD;
    for (size_t i = 0; i < BLOCKS; i++)
        moert_block_weights_changed(layer->block[i]);
}

moert_block *moert_layer_block(moert_layer *layer, size_t index) {
    return index < BLOCKS ? layer->block[index] : NULL;
}

moert_status moert_layer_send_weights(moert_layer *layer) {
    return moert_clones_send(layer);
}

void moert_layer_balance_routing(moert_layer *layer) {
    layer->balanced = true;
}

void moert_layer_trust_batches(moert_layer *layer) {
    layer->trusts_batches = true;
}

void moert_layer_set_probe(moert_layer *layer, moert_probe *probe) {
    layer->probe = probe;
}

size_t moert_layer_first_expert(const moert_layer *layer) {
    return layer != NULL ? layer->first_expert : 0;
}

size_t moert_layer_local_experts(const moert_layer *layer) {
    return layer != NULL ? layer->local_experts : 0;
}

/* ---- placement ---- */

static void print_placement(const void *object, FILE *file) {
    const moert_expert_map *placement = object;
    const size_t slots = moert_expert_map_slots(placement);
    for (size_t i = 0; i < slots; i++)
        fprintf(file, "expert[%zu]=%u%c", i, placement->expert[i], 0);
}

static moert_status place(moert_layer *layer, const uint32_t *expert) {
    MOERT_REQUIRE(expert);
    if (layer->options.slots == 0)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_place: the layer was created without slots");
    for (size_t i = 0; i < layer->passes->count; i++)
        if (layer->passes->pass[i]->layer == layer && layer->passes->pass[i]->state != PASS_FREE)
            return MOERT_FAIL(
                ERROR_USAGE,
                "moert_layer_place: a pass of the layer still exists; destroy the pass first");
    MOERT_TRY(moert_expert_map_assign(layer->placement, expert));
    return moert_clones_prepare(layer);
}

moert_status moert_layer_place(moert_layer *layer, const uint32_t *expert) {
    MOERT_REQUIRE(layer);
    MOERT_TRY(moert_comm_agree(layer->mesh->world, place(layer, expert)));
    moert_layer_weights_changed(layer);
    return moert_comm_compare(layer->mesh->world, print_placement, layer->placement,
                              MOERT_ERROR_USAGE, "all ranks must place the experts alike");
}

const moert_expert_map *moert_layer_placement(const moert_layer *layer) {
    return layer->placement;
}

uint32_t moert_layer_expert(const moert_layer *layer, size_t slot) {
    if (layer == NULL || slot >= layer->local_experts)
        return MOERT_LAYER_NO_EXPERT;
    const moert_expert_map *map = layer->placement;
    const uint32_t word = map->expert[map->first[moert_comm_rank(layer->mesh->experts)] + slot];
    return (word & MOERT_LAYER_CLONE) != 0 ? MOERT_LAYER_NO_EXPERT : word;
}

/* ---- initial weights ---- */

enum { PIECE = 1 << 22 }; /* floats that are initialised at once */

/* Draws random values for one expert's part of a tensor, or for a whole replicated tensor. */
static moert_status fill(moert_buffer *weight, size_t offset, size_t elements, uint64_t seed,
                         uint64_t stream, double deviation) {
    float *values;
    moert_status status = MOERT_OK;
    MOERT_TRY(moert_alloc(&values, moert_min(elements, PIECE), sizeof *values));
    for (size_t first = 0; status == MOERT_OK && first < elements; first += PIECE) {
        const size_t count = moert_min(elements - first, PIECE);
        moert_rng_normals(seed, stream, first, deviation, values, count);
        status = moert_buffer_write(weight, (offset + first) * sizeof *values, values,
                                    count * sizeof *values);
        moert_phase_tick(); /* tells the watchdog of progress, since initialising a large model
                               takes minutes */
    }
    free(values);
    return status;
}

moert_status moert_layer_initialize(moert_layer *layer, uint64_t seed, double deviation) {
    static const moert_layer_tensor matrices[] = {MOERT_LAYER_ROUTER,    MOERT_LAYER_SHARED_W1,
                                                  MOERT_LAYER_SHARED_W2, MOERT_LAYER_SHARED_GATE,
                                                  MOERT_LAYER_W1,        MOERT_LAYER_W2};
    MOERT_REQUIRE(layer);
    moert_layer_weights_changed(layer);
    for (size_t m = 0; m < MOERT_COUNT(matrices); m++) {
        moert_layer_tensor which = matrices[m];
        moert_buffer *weight = moert_layer_weight(layer, which);
        bool of_expert = which == MOERT_LAYER_W1 || which == MOERT_LAYER_W2;
        size_t pieces = of_expert ? layer->local_experts : 1;
        size_t elements = weight != NULL ? moert_buffer_bytes(weight) / sizeof(float) / pieces : 0;
        for (size_t i = 0; i < pieces && elements > 0; i++) {
            const uint32_t expert = of_expert ? moert_layer_expert(layer, i) : 0;
            if (of_expert && expert == MOERT_LAYER_NO_EXPERT)
                continue;
            const uint64_t stream = (uint64_t)which << 32 | expert;
            MOERT_TRY(fill(weight, i * elements, elements, seed, stream, deviation));
        }
    }
    return MOERT_OK;
}
