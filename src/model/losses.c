/*
 * The losses of a forward pass: cross-entropy, load balancing, z-loss. All sums are float64. The
 * rank that holds a sequence sums over its tokens. Then every rank adds the sums of all sequences,
 * in their order, so the losses do not depend on the number of ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/sizes.h"

moert_status moert_model_sum_sequences(const moert_run *run, const double *mine, size_t n,
                                       double *sum) {
    moert_comm *world = run->mesh->world;
    size_t ranks = moert_comm_size(world), total = run->batch.total_sequences, *bytes = NULL;
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
static double sum_tokens(const moert_run *run, const float *value, size_t index, bool square) {
    double sum = 0.0;
    for (size_t t = index * run->length; t < (index + 1) * run->length; t++) {
        double x = (double)value[t];
        sum += square ? x * x : x;
    }
    return sum;
}

/* The first column of a layer in the per-sequence sums. Column 0 is the cross-entropy. Each
 * layer has lse^2 and the masses of E experts or, with MOERT_AUX_SEQUENCE, the sequence's
 * auxiliary loss. */
static size_t column_of_layer(const moert_run *run, size_t layer) {
    return 1 + layer * (1 + (moert_balances_sequences(run) ? 1 : run->config->router.experts));
}

/* The offset of a layer's inputs in run->loss_inputs. The tokens' losses come first. Each layer
 * then has lse[T], mass[sequences, E] and uint32 counts[sequences, E], used with
 * MOERT_AUX_SEQUENCE. Last come the entropies of all layers, [layers, T], which a watch reads. */
static size_t inputs_of_layer(const moert_run *run, size_t layer) {
    return moert_loss_inputs_at(run->batch.tokens,
                                run->batch.sequences * run->config->router.experts, layer);
}

size_t moert_model_entropies_at(const moert_run *run) {
    return inputs_of_layer(run, run->model->moe_layers);
}

static moert_status copy_inputs(const moert_buffer *from, size_t count, moert_buffer *inputs,
                                size_t at) {
    return moert_buffer_copy(from, 0, inputs, at * sizeof(float), count * sizeof(float));
}

/* Copies the losses' inputs of one layer to run->loss_inputs, so that the host reads the inputs of
 * all layers at once. The form of the auxiliary loss is known only when the loss is called. */
static moert_status gather_layer(moert_run *run, const moert_run_layer *layer, bool knows_form) {
    const moert_router_options *router = &run->config->router;
    const moert_routing *routing = moert_pass_routing(layer->pass);
    const size_t tokens = run->batch.tokens, sequences = run->batch.sequences,
                 count = sequences * router->experts, l = layer->of->moe_index,
                 at = inputs_of_layer(run, l);
    moert_buffer *const inputs = run->loss_inputs, *scratch;
    MOERT_TRY(
        moert_mesh_scratch(run->mesh, MOERT_SCRATCH_LOGITS, moert_max(count, tokens), &scratch));
    MOERT_TRY(copy_inputs(routing->lse, tokens, inputs, at));
    MOERT_TRY(
        moert_router_mass(router, tokens, routing->scores, run->batch.ends, sequences, scratch));
    MOERT_TRY(copy_inputs(scratch, count, inputs, at + tokens));
    if (!knows_form || moert_balances_sequences(run)) {
        MOERT_TRY(moert_router_counts(router, tokens, routing->scores, run->batch.ends, sequences,
                                      scratch));
        MOERT_TRY(copy_inputs(scratch, count, inputs, at + tokens + count));
    }
    if (!run->watched)
        return MOERT_OK;
    MOERT_TRY(moert_router_entropy(router, tokens, routing->scores, scratch));
    return copy_inputs(scratch, tokens, inputs, moert_model_entropies_at(run) + l * tokens);
}

moert_status moert_model_take_loss_inputs(moert_run *run, const moert_run_layer *layer) {
    return gather_layer(run, layer, true);
}

static void sum_nodes(moert_run *run, const moert_run_layer *layer) {
    const moert_comm *comm = run->mesh->experts;
    const size_t experts = run->config->router.experts, n = moert_comm_node_count(comm) * experts;
    const uint64_t *counts = moert_pass_rank_counts(layer->pass);
    uint64_t *sums = run->node_counts + layer->of->moe_index * n;
    memset(sums, 0, n * sizeof *sums);
    for (size_t r = 0; r < moert_comm_size(comm); r++)
        for (size_t e = 0; e < experts; e++)
            sums[moert_comm_node(comm, r) * experts + e] += counts[r * experts + e];
}

moert_status moert_model_take_loads(moert_run *run, const moert_run_layer *layer) {
    const size_t experts = run->config->router.experts;
    if (run->node_counts != NULL)
        sum_nodes(run, layer);
    memcpy(run->own_counts + layer->of->moe_index * experts, moert_pass_expert_counts(layer->pass),
           experts * sizeof *run->own_counts);
    return moert_model_recomputes(run->model) ? gather_layer(run, layer, false) : MOERT_OK;
}

static moert_status gather_inputs(moert_run *run) {
    MOERT_TRY(copy_inputs(run->token_loss, run->batch.tokens, run->loss_inputs, 0));
    for (size_t l = 0; l < run->model->moe_layers && !moert_model_recomputes(run->model); l++)
        MOERT_TRY(gather_layer(run, run->moe[l], true));
    return MOERT_OK;
}

static void sum_sequence(const moert_run *run, const float *inputs, size_t index, double *sums) {
    const size_t experts = run->config->router.experts;
    sums[0] = sum_tokens(run, inputs, index, false);
    for (size_t l = 0; l < run->model->moe_layers; l++) {
        const float *lse = inputs + inputs_of_layer(run, l);
        const float *mass = lse + run->batch.tokens + index * experts;
        double *column = sums + column_of_layer(run, l);
        column[0] = sum_tokens(run, lse, index, true);
        for (size_t e = 0; e < experts && !moert_balances_sequences(run); e++)
            column[1 + e] = (double)mass[e];
    }
}

/* The auxiliary loss of one sequence in one layer, and its gradient[E]. `inputs` are the layer's
 * inputs. */
static moert_status balance_sequence(const moert_run *run, const float *inputs, size_t index,
                                     float *gradient, double *value) {
    const moert_router_options *router = &run->config->router;
    const size_t experts = router->experts;
    const float *masses = inputs + run->batch.tokens + index * experts;
    const float *slots = masses + run->batch.sequences * experts;
    const double share =
        run->losses.aux_coefficient * run->factor / (double)run->batch.total_sequences;
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

/* Computes the auxiliary losses of this rank's sequences in all layers, per_sequence[sequences,
 * columns], and the gradients in each layer, [sequences, E]. */
static moert_status balance_sequences(moert_run *run, const float *inputs, size_t columns,
                                      double *per_sequence) {
    const size_t sequences = run->batch.sequences, experts = run->config->router.experts;
    const moert_model_sizes sizes = moert_run_sizes(run);
    float *gradient;
    MOERT_TRY(moert_alloc(&gradient, sequences * experts, sizeof *gradient));
    moert_status status = MOERT_OK;
    for (size_t l = 0; l < run->model->moe_layers && status == MOERT_OK; l++) {
        moert_buffer **const target = &run->moe[l]->aux_gradient;
        const float *own = inputs + inputs_of_layer(run, l);
        for (size_t s = 0; s < sequences && status == MOERT_OK; s++)
            status = balance_sequence(run, own, s, gradient + s * experts,
                                      &per_sequence[s * columns + column_of_layer(run, l) + 1]);
        MOERT_TRY_OR(done, status);
        MOERT_TRY_OR(done, moert_buffer_table_reserve(moert_run_moe_buffers, run->device, &sizes,
                                                      run->moe[l], false));
        status = moert_buffer_write(*target, 0, gradient, sequences * experts * sizeof *gradient);
    }
done:
    free(gradient);
    return status;
}

/* Sums run->counts over the replicas. Collective over the replicas. */
static moert_status gather_counts(moert_run *run) {
    uint64_t *counts = run->counts;
    size_t experts = run->config->router.experts, n = run->model->moe_layers * experts;
    size_t replicas = moert_comm_size(run->mesh->replicas);
    uint64_t *all = NULL;
    memcpy(counts, run->own_counts, n * sizeof *counts);
    if (replicas == 1)
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&all, replicas, n * sizeof *all));
    moert_status status = moert_comm_allgather(run->mesh->replicas, counts, n * sizeof *all, all);
    for (size_t i = 0; status == MOERT_OK && i < n; i++) {
        counts[i] = 0;
        for (size_t r = 0; r < replicas; r++)
            counts[i] += all[r * n + i];
    }
    free(all);
    return status;
}

/* The slots of the busiest expert divided by the mean, in the layer with the largest ratio. */
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

/* The number of tokens without padding. Each token has K slots in every layer. */
static double count_rows(const moert_run *run) {
    uint64_t slots = 0;
    for (size_t e = 0; e < run->config->router.experts; e++)
        slots += run->counts[e];
    return (double)slots / (double)run->config->router.topk;
}

/* Computes one auxiliary loss from the slots and masses of all layers. All layers get the same
 * gradient. */
static moert_status balance_together(moert_run *run, const uint64_t *counts, const double *sums,
                                     double coefficient, float *gradient, double *aux) {
    const moert_model_config *c = run->config;
    size_t experts = c->router.experts;
    double rows = (double)run->model->moe_layers * run->rows;
    double *mass = NULL;
    uint64_t *count = NULL;
    moert_status status;
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&mass, experts));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&count, experts));
    for (size_t l = 0; l < run->model->moe_layers; l++)
        for (size_t e = 0; e < experts; e++) {
            mass[e] += sums[column_of_layer(run, l) + 1 + e];
            count[e] += counts[l * experts + e];
        }
    const moert_router_load load = {count, mass, rows};
    moert_buffer *first = run->moe[0]->aux_gradient;
    *aux = moert_router_aux_loss(MOERT_AUX_HUGGING_FACE, &c->router, &load, coefficient, gradient);
    MOERT_TRY_OR(done, moert_buffer_write(first, 0, gradient, experts * sizeof *gradient));
    for (size_t l = 1; l < run->model->moe_layers; l++)
        MOERT_TRY_OR(done, copy_inputs(first, experts, run->moe[l]->aux_gradient, 0));
done:
    MOERT_FREE(count, mass);
    return status;
}

/* Computes an auxiliary loss for each layer, and the sum of these losses. */
static moert_status balance_layers(moert_run *run, const uint64_t *counts, const double *sums,
                                   double coefficient, float *gradient, double *aux) {
    const moert_model_config *c = run->config;
    size_t experts = c->router.experts;
    *aux = 0.0;
    for (size_t l = 0; l < run->model->moe_layers; l++) {
        const moert_router_load load = {counts + l * experts, sums + column_of_layer(run, l) + 1,
                                        run->rows};
        *aux += moert_router_aux_loss(MOERT_AUX_MEGATRON, &c->router, &load, coefficient, gradient);
        MOERT_TRY(
            moert_buffer_write(run->moe[l]->aux_gradient, 0, gradient, experts * sizeof *gradient));
    }
    return MOERT_OK;
}

/* Computes the auxiliary loss and, if its form uses sums over all ranks, its gradients. */
static moert_status balance(moert_run *run, const double *sums, double *aux) {
    const double coefficient = run->losses.aux_coefficient * run->factor;
    float *gradient;
    *aux = 0.0;
    for (size_t l = 0; l < run->model->moe_layers && moert_balances_sequences(run); l++)
        *aux += sums[column_of_layer(run, l) + 1] / (double)run->batch.total_sequences;
    if (moert_balances_sequences(run))
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&gradient, run->config->router.experts, sizeof *gradient));
    const moert_status status =
        (run->losses.aux_form == MOERT_AUX_MEGATRON ? balance_layers : balance_together)(
            run, run->counts, sums, coefficient, gradient, aux);
    free(gradient);
    return status;
}

/* sums[columns] = the per-sequence sums, summed over the sequences of all ranks. Collective. */
static moert_status sum_everything(moert_run *run, size_t columns, double *sums) {
    const size_t sequences = run->batch.sequences;
    const size_t count = inputs_of_layer(run, run->model->moe_layers);
    double *per_sequence = NULL;
    float *values = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_alloc(&per_sequence, sequences, columns * sizeof *per_sequence));
    MOERT_TRY_OR(done, moert_alloc(&values, count, sizeof *values));
    MOERT_TRY_OR(done, gather_inputs(run));
    MOERT_TRY_OR(done, moert_buffer_read(run->loss_inputs, 0, values, count * sizeof *values));
    for (size_t s = 0; s < sequences; s++)
        sum_sequence(run, values, s, per_sequence + s * columns);
    if (moert_balances_sequences(run))
        MOERT_TRY_OR(done, balance_sequences(run, values, columns, per_sequence));
    MOERT_TRY_OR(done, moert_model_sum_sequences(run, per_sequence, columns, sums));
done:
    MOERT_FREE(values, per_sequence);
    return status;
}

moert_status moert_run_loss(moert_run *run, const moert_model_losses *losses, double factor,
                            moert_model_result *result) {
    double tokens = (double)(run->batch.total_sequences * run->length), *sums = NULL;
    const double slope = run->counted > 0 ? 1.0 / (double)run->counted : factor / tokens;
    moert_status status;
    run->losses = *losses;
    run->factor = factor;
    const size_t columns = column_of_layer(run, run->model->moe_layers);
    run->slope = factor > 0.0 ? (float)slope : 0.0f;
    MOERT_TRY(moert_head_loss(run));
    moert_phase_set(MOERT_PHASE_LOSS);
    MOERT_TRY_OR(done, moert_alloc(&sums, columns, sizeof *sums));
    MOERT_TRY_OR(done, sum_everything(run, columns, sums));
    MOERT_TRY_OR(done, gather_counts(run));
    MOERT_TRY_OR(done, moert_mesh_settle(run->mesh));
    run->rows = count_rows(run);
    result->cross_entropy = sums[0] / (run->counted > 0 ? (double)run->counted : tokens);
    result->expert_load = expert_load(run->model, run->counts);
    result->z = 0.0;
    for (size_t l = 0; l < run->model->moe_layers; l++)
        result->z += run->rows > 0.0 ? sums[column_of_layer(run, l)] / run->rows : 0.0;
    result->aux = 0.0;
    status = run->model->moe_layers > 0 ? balance(run, sums, &result->aux) : MOERT_OK;
done:
    free(sums);
    return status;
}

const uint64_t *moert_run_expert_counts(const moert_run *run) {
    return run->counts;
}

const uint64_t *moert_run_node_counts(const moert_run *run) {
    return run->node_counts;
}
