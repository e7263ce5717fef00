/*
 * The losses of a forward pass: cross-entropy, load balancing, z. All sums are float64. The rank
 * that holds a sequence sums over its tokens; then all ranks add the sums of the sequences in
 * order. So the digits do not depend on the number of ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"

moert_status moert_model_sum_sequences(const moert_model *model, const double *mine, size_t n,
                                       double *sum) {
    moert_comm *world = model->mesh->world;
    size_t ranks = moert_comm_size(world), total = model->batch.total_sequences, *bytes = NULL;
    double *all = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_alloc(&bytes, ranks, sizeof *bytes));
    MOERT_TRY_OR(done, moert_alloc(&all, total, n * sizeof *all));
    for (size_t r = 0, first; r < ranks; r++) {
        moert_model_partition(total, r, ranks, &first, &bytes[r]);
        bytes[r] *= n * sizeof *all;
    }
    MOERT_TRY_OR(done, moert_comm_allgatherv(world, mine, bytes, all));
    for (size_t i = 0; i < n; i++)
        sum[i] = 0.0;
    for (size_t s = 0; s < total; s++)
        for (size_t i = 0; i < n; i++)
            sum[i] += all[s * n + i];
done:
    MOERT_FREE(all, bytes);
    return status;
}

/* The sum of value[T], or of its squares, over the tokens of sequence `index`. */
static double sum_tokens(const moert_model *model, const float *value, size_t index, bool square) {
    double sum = 0.0;
    for (size_t t = index * model->length; t < (index + 1) * model->length; t++) {
        double x = (double)value[t];
        sum += square ? x * x : x;
    }
    return sum;
}

static bool balances_sequences(const moert_model *model) {
    return model->losses.aux_form == MOERT_AUX_SEQUENCE;
}

/* Columns of the per-sequence sums: cross-entropy, then per layer lse^2 and the E masses, or with
 * MOERT_AUX_SEQUENCE the sequence's auxiliary loss. */
static size_t column_of_layer(const moert_model *model, size_t layer) {
    return 1 + layer * (1 + (balances_sequences(model) ? 1 : model->config.router.experts));
}

/* The offset of a layer's inputs of the losses in model->loss_inputs: the losses of the tokens come
 * first, then per layer lse[T], mass[sequences, E] and uint32 counts[sequences, E], which are used
 * with MOERT_AUX_SEQUENCE. The entropies of all layers, [layers, T], which a watch reads, come
 * last. */
static size_t inputs_of_layer(const moert_model *model, size_t layer) {
    const size_t tokens = model->batch.tokens,
                 sums = model->batch.sequences * model->config.router.experts;
    return tokens + layer * (tokens + 2 * sums);
}

size_t moert_model_entropies_at(const moert_model *model) {
    return inputs_of_layer(model, model->moe_layers);
}

moert_status moert_model_reserve_loss(moert_model *model) {
    return moert_model_reserve(
        model, moert_model_entropies_at(model) + model->moe_layers * model->batch.tokens,
        &model->loss_inputs);
}

static moert_status copy_inputs(const moert_buffer *from, size_t count, moert_buffer *inputs,
                                size_t at) {
    return moert_buffer_copy(from, 0, inputs, at * sizeof(float), count * sizeof(float));
}

/* Copies the inputs of a layer to model->loss_inputs, in which the host reads those of all layers
 * at once. Before a loss, its form is not known. */
static moert_status gather_layer(moert_model *model, const moert_model_layer *layer,
                                 bool knows_form) {
    const moert_router_options *router = &model->config.router;
    const moert_routing *routing = moert_pass_routing(layer->pass);
    const size_t tokens = model->batch.tokens, sequences = model->batch.sequences,
                 count = sequences * router->experts, l = layer->moe_index,
                 at = inputs_of_layer(model, l);
    moert_buffer *const inputs = model->loss_inputs, *scratch;
    MOERT_TRY(
        moert_mesh_scratch(model->mesh, MOERT_SCRATCH_LOGITS, moert_max(count, tokens), &scratch));
    MOERT_TRY(copy_inputs(routing->lse, tokens, inputs, at));
    MOERT_TRY(
        moert_router_mass(router, tokens, routing->scores, model->batch.ends, sequences, scratch));
    MOERT_TRY(copy_inputs(scratch, count, inputs, at + tokens));
    if (!knows_form || balances_sequences(model)) {
        MOERT_TRY(moert_router_counts(router, tokens, routing->scores, model->batch.ends, sequences,
                                      scratch));
        MOERT_TRY(copy_inputs(scratch, count, inputs, at + tokens + count));
    }
    if (!model->watched)
        return MOERT_OK;
    MOERT_TRY(moert_router_entropy(router, tokens, routing->scores, scratch));
    return copy_inputs(scratch, tokens, inputs, moert_model_entropies_at(model) + l * tokens);
}

static void sum_nodes(moert_model *model, const moert_model_layer *layer) {
    const moert_comm *comm = model->mesh->experts;
    const size_t experts = model->config.router.experts, n = moert_comm_node_count(comm) * experts;
    const uint64_t *counts = moert_pass_rank_counts(layer->pass);
    uint64_t *sums = model->node_counts + layer->moe_index * n;
    memset(sums, 0, n * sizeof *sums);
    for (size_t r = 0; r < moert_comm_size(comm); r++)
        for (size_t e = 0; e < experts; e++)
            sums[moert_comm_node(comm, r) * experts + e] += counts[r * experts + e];
}

moert_status moert_model_take_loads(moert_model *model, const moert_model_layer *layer) {
    const size_t experts = model->config.router.experts;
    if (model->node_counts != NULL)
        sum_nodes(model, layer);
    memcpy(model->own_counts + layer->moe_index * experts, moert_pass_expert_counts(layer->pass),
           experts * sizeof *model->own_counts);
    return moert_model_recomputes(model) ? gather_layer(model, layer, false) : MOERT_OK;
}

static moert_status gather_inputs(moert_model *model) {
    MOERT_TRY(copy_inputs(model->token_loss, model->batch.tokens, model->loss_inputs, 0));
    for (size_t l = 0; l < model->moe_layers && !moert_model_recomputes(model); l++)
        MOERT_TRY(gather_layer(model, model->moe[l], true));
    return MOERT_OK;
}

static void sum_sequence(const moert_model *model, const float *inputs, size_t index,
                         double *sums) {
    const size_t experts = model->config.router.experts;
    sums[0] = sum_tokens(model, inputs, index, false);
    for (size_t l = 0; l < model->moe_layers; l++) {
        const float *lse = inputs + inputs_of_layer(model, l);
        const float *mass = lse + model->batch.tokens + index * experts;
        double *column = sums + column_of_layer(model, l);
        column[0] = sum_tokens(model, lse, index, true);
        for (size_t e = 0; e < experts && !balances_sequences(model); e++)
            column[1 + e] = (double)mass[e];
    }
}

/* The loss of one sequence in one layer, and gradient[E]; `inputs` are those of the layer. */
static moert_status balance_sequence(const moert_model *model, const float *inputs, size_t index,
                                     float *gradient, double *value) {
    const moert_router_options *router = &model->config.router;
    const size_t experts = router->experts;
    const float *masses = inputs + model->batch.tokens + index * experts;
    const float *slots = masses + model->batch.sequences * experts;
    const double share =
        model->losses.aux_coefficient * model->factor / (double)model->batch.total_sequences;
    double *mass = NULL;
    uint64_t *counts = NULL, slots_sum = 0;
    moert_status status;
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&mass, experts));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&counts, experts));
    for (size_t e = 0; e < experts; e++) {
        uint32_t count;
        memcpy(&count, slots + e, sizeof count);
        counts[e] = count;
        slots_sum += count;
        mass[e] = (double)masses[e];
    }
    const moert_router_load load = {counts, mass, (double)slots_sum / (double)router->topk};
    *value = moert_router_aux_loss(MOERT_AUX_SEQUENCE, router, &load, share, gradient);
done:
    MOERT_FREE(counts, mass);
    return status;
}

/* Computes the losses of this rank's sequences in all layers, per_sequence[sequences, columns], and
 * the gradients of the layers, [sequences, E]. */
static moert_status balance_sequences(moert_model *model, const float *inputs, size_t columns,
                                      double *per_sequence) {
    const size_t sequences = model->batch.sequences, experts = model->config.router.experts;
    float *gradient;
    MOERT_TRY(moert_alloc(&gradient, sequences * experts, sizeof *gradient));
    moert_status status = MOERT_OK;
    for (size_t l = 0; l < model->moe_layers && status == MOERT_OK; l++) {
        moert_buffer **const target = &model->moe[l]->aux_gradient;
        const float *own = inputs + inputs_of_layer(model, l);
        for (size_t s = 0; s < sequences && status == MOERT_OK; s++)
            status = balance_sequence(model, own, s, gradient + s * experts,
                                      &per_sequence[s * columns + column_of_layer(model, l) + 1]);
        MOERT_TRY_OR(done, status);
        MOERT_TRY_OR(done, moert_model_reserve(model, sequences * experts, target));
        status = moert_buffer_write(*target, 0, gradient, sequences * experts * sizeof *gradient);
    }
done:
    free(gradient);
    return status;
}

/* Sums model->counts over the replicas. Collective over these. */
static moert_status gather_counts(moert_model *model) {
    uint64_t *counts = model->counts;
    size_t experts = model->config.router.experts, n = model->moe_layers * experts;
    size_t replicas = moert_comm_size(model->mesh->replicas);
    uint64_t *all = NULL;
    memcpy(counts, model->own_counts, n * sizeof *counts);
    if (replicas == 1)
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&all, replicas, n * sizeof *all));
    moert_status status = moert_comm_allgather(model->mesh->replicas, counts, n * sizeof *all, all);
    for (size_t i = 0; status == MOERT_OK && i < n; i++) {
        counts[i] = 0;
        for (size_t r = 0; r < replicas; r++)
            counts[i] += all[r * n + i];
    }
    free(all);
    return status;
}

/* The largest number of slots of an expert over the mean, in the worst layer. */
static double expert_load(const moert_model *model, const uint64_t *counts) {
    size_t experts = model->config.router.experts;
    double worst = 0.0;
    for (size_t l = 0; l < model->moe_layers; l++) {
        uint64_t largest = 0, sum = 0;
        for (size_t e = 0; e < experts; e++) {
            uint64_t count = counts[l * experts + e];
            largest = count > largest ? count : largest;
            sum += count;
        }
        double load = sum > 0 ? (double)largest * (double)experts / (double)sum : 1.0;
        worst = load > worst ? load : worst;
    }
    return worst;
}

/* The tokens without padding, each of which has K slots in every layer. */
static double count_rows(const moert_model *model) {
    uint64_t slots = 0;
    for (size_t e = 0; e < model->config.router.experts; e++)
        slots += model->counts[e];
    return (double)slots / (double)model->config.router.topk;
}

/* Computes one loss from the slots and masses of all layers; all layers get the same gradient. */
static moert_status balance_together(moert_model *model, const uint64_t *counts, const double *sums,
                                     double coefficient, float *gradient, double *aux) {
    const moert_model_config *c = &model->config;
    size_t experts = c->router.experts;
    double rows = (double)model->moe_layers * model->rows;
    double *mass = NULL;
    uint64_t *count = NULL;
    moert_status status;
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&mass, experts));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&count, experts));
    for (size_t l = 0; l < model->moe_layers; l++)
        for (size_t e = 0; e < experts; e++) {
            mass[e] += sums[column_of_layer(model, l) + 1 + e];
            count[e] += counts[l * experts + e];
        }
    const moert_router_load load = {count, mass, rows};
    moert_buffer *first = model->moe[0]->aux_gradient;
    *aux = moert_router_aux_loss(MOERT_AUX_HUGGING_FACE, &c->router, &load, coefficient, gradient);
    MOERT_TRY_OR(done, moert_buffer_write(first, 0, gradient, experts * sizeof *gradient));
    for (size_t l = 1; l < model->moe_layers; l++)
        MOERT_TRY_OR(done, copy_inputs(first, experts, model->moe[l]->aux_gradient, 0));
done:
    MOERT_FREE(count, mass);
    return status;
}

/* Computes one loss per layer, and their sum. */
static moert_status balance_layers(moert_model *model, const uint64_t *counts, const double *sums,
                                   double coefficient, float *gradient, double *aux) {
    const moert_model_config *c = &model->config;
    size_t experts = c->router.experts;
    *aux = 0.0;
    for (size_t l = 0; l < model->moe_layers; l++) {
        const moert_router_load load = {counts + l * experts, sums + column_of_layer(model, l) + 1,
                                        model->rows};
        *aux += moert_router_aux_loss(MOERT_AUX_MEGATRON, &c->router, &load, coefficient, gradient);
        MOERT_TRY(moert_buffer_write(model->moe[l]->aux_gradient, 0, gradient,
                                     experts * sizeof *gradient));
    }
    return MOERT_OK;
}

/* Computes the auxiliary loss, and the gradients of forms whose sums are those of all ranks. */
static moert_status balance(moert_model *model, const double *sums, double *aux) {
    const double coefficient = model->losses.aux_coefficient * model->factor;
    float *gradient;
    *aux = 0.0;
    for (size_t l = 0; l < model->moe_layers && balances_sequences(model); l++)
        *aux += sums[column_of_layer(model, l) + 1] / (double)model->batch.total_sequences;
    if (balances_sequences(model))
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&gradient, model->config.router.experts, sizeof *gradient));
    const moert_status status =
        (model->losses.aux_form == MOERT_AUX_MEGATRON ? balance_layers : balance_together)(
            model, model->counts, sums, coefficient, gradient, aux);
    free(gradient);
    return status;
}

/* sums[columns] = the sums over all sequences of all ranks. Collective. */
static moert_status sum_everything(moert_model *model, size_t columns, double *sums) {
    const size_t sequences = model->batch.sequences;
    const size_t count = inputs_of_layer(model, model->moe_layers);
    double *per_sequence = NULL;
    float *values = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_alloc(&per_sequence, sequences, columns * sizeof *per_sequence));
    MOERT_TRY_OR(done, moert_alloc(&values, count, sizeof *values));
    MOERT_TRY_OR(done, gather_inputs(model));
    MOERT_TRY_OR(done, moert_buffer_read(model->loss_inputs, 0, values, count * sizeof *values));
    for (size_t s = 0; s < sequences; s++)
        sum_sequence(model, values, s, per_sequence + s * columns);
    if (balances_sequences(model))
        MOERT_TRY_OR(done, balance_sequences(model, values, columns, per_sequence));
    MOERT_TRY_OR(done, moert_model_sum_sequences(model, per_sequence, columns, sums));
done:
    MOERT_FREE(values, per_sequence);
    return status;
}

moert_status moert_model_loss(moert_model *model, const moert_model_losses *losses, double factor,
                              moert_model_result *result) {
    double tokens = (double)(model->batch.total_sequences * model->length), *sums = NULL;
    const double slope = model->counted > 0 ? 1.0 / (double)model->counted : factor / tokens;
    moert_status status;
    model->losses = *losses;
    model->factor = factor;
    const size_t columns = column_of_layer(model, model->moe_layers);
    model->slope = factor > 0.0 ? (float)slope : 0.0f;
    MOERT_TRY(moert_head_loss(model));
    moert_phase_set(MOERT_PHASE_LOSS);
    MOERT_TRY_OR(done, moert_alloc(&sums, columns, sizeof *sums));
    MOERT_TRY_OR(done, sum_everything(model, columns, sums));
    MOERT_TRY_OR(done, gather_counts(model));
    MOERT_TRY_OR(done, moert_mesh_settle(model->mesh));
    model->rows = count_rows(model);
    result->cross_entropy = sums[0] / (model->counted > 0 ? (double)model->counted : tokens);
    result->expert_load = expert_load(model, model->counts);
    result->z = 0.0;
    for (size_t l = 0; l < model->moe_layers; l++)
        result->z += model->rows > 0.0 ? sums[column_of_layer(model, l)] / model->rows : 0.0;
    result->aux = 0.0;
    status = model->moe_layers > 0 ? balance(model, sums, &result->aux) : MOERT_OK;
done:
    free(sums);
    return status;
}

const uint64_t *moert_model_expert_counts(const moert_model *model) {
    return model->counts;
}

const uint64_t *moert_model_node_counts(const moert_model *model) {
    return model->node_counts;
}
