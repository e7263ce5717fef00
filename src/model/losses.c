/*
 * The losses of a forward pass: cross-entropy, load balancing, z. Everything is summed in float64,
 * per sequence on the rank that has it, then over all sequences in order, so that the digits do not
 * depend on the number of ranks.
 */
#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"

/* sum[n] over all sequences, in order, of mine[sequences, n]. Collective. */
static moert_status sum_sequences(moert_model *model, const double *mine, size_t n, double *sum) {
    moert_comm *world = model->mesh->world;
    size_t ranks = moert_comm_size(world), total = model->batch.total_sequences, *bytes = NULL;
    double *all = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_alloc(&bytes, ranks, sizeof *bytes));
    MOERT_TRY_OR(done, moert_alloc(&all, total, n * sizeof *all));
    for (size_t r = 0, first; r < ranks; r++) {
        moert_model_share(total, r, ranks, &first, &bytes[r]);
        bytes[r] *= n * sizeof *all;
    }
    MOERT_TRY_OR(done, moert_comm_allgatherv(world, mine, bytes, all));
    for (size_t i = 0; i < n; i++)
        sum[i] = 0.0;
    for (size_t s = 0; s < total; s++)
        for (size_t i = 0; i < n; i++)
            sum[i] += all[s * n + i];
done:
    free(all);
    free(bytes);
    return status;
}

/* per_sequence[s * stride] = sum over its tokens of value[t], squared when asked. */
static moert_status sum_tokens(const moert_model *model, const moert_buffer *value, bool square,
                               double *per_sequence, size_t stride) {
    size_t tokens = model->batch.tokens;
    float *values;
    MOERT_TRY(moert_alloc(&values, tokens, sizeof *values));
    moert_status status = moert_buffer_read(value, 0, values, tokens * sizeof *values);
    for (size_t s = 0; status == MOERT_OK && s < model->batch.sequences; s++) {
        double sum = 0.0;
        for (size_t t = 0; t < model->length; t++) {
            double x = (double)values[s * model->length + t];
            sum += square ? x * x : x;
        }
        per_sequence[s * stride] = sum;
    }
    free(values);
    return status;
}

/* Columns of the per-sequence sums: cross-entropy, then per layer lse^2 and the E masses. */
static size_t column_of_layer(const moert_model *model, size_t layer) {
    return 1 + layer * (1 + model->config.router.experts);
}

static moert_status sum_layer(moert_model *model, size_t index, double *per_sequence,
                              size_t columns) {
    const moert_model_config *c = &model->config;
    moert_layer *moe = model->layer[index].moe;
    const moert_routing *routing = moert_layer_routing(moe);
    size_t sequences = model->batch.sequences, experts = c->router.experts,
           column = column_of_layer(model, index);
    moert_buffer *mass;
    float *values = NULL;
    MOERT_TRY(sum_tokens(model, routing->lse, true, per_sequence + column, columns));
    MOERT_TRY(moert_mesh_scratch(model->mesh, MOERT_SCRATCH_LOGITS, sequences * experts, &mass));
    MOERT_TRY(moert_router_mass(model->device, &c->router, model->batch.tokens, routing->scores,
                                model->batch.ends, sequences, mass));
    MOERT_TRY(moert_alloc(&values, sequences * experts, sizeof *values));
    moert_status status = moert_buffer_read(mass, 0, values, sequences * experts * sizeof *values);
    for (size_t s = 0; status == MOERT_OK && s < sequences; s++)
        for (size_t e = 0; e < experts; e++)
            per_sequence[s * columns + column + 1 + e] = (double)values[s * experts + e];
    free(values);
    return status;
}

/* counts[layers, E] over all ranks. Collective when there are replicas. */
static moert_status gather_counts(moert_model *model, uint64_t *counts) {
    size_t experts = model->config.router.experts, n = model->config.layers * experts;
    size_t replicas = moert_comm_size(model->mesh->replicas);
    uint64_t *all = NULL;
    for (size_t l = 0; l < model->config.layers; l++)
        for (size_t e = 0; e < experts; e++)
            counts[l * experts + e] = moert_layer_expert_counts(model->layer[l].moe)[e];
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

/* Largest over mean slots per expert, in the worst layer. */
static double expert_load(const moert_model *model, const uint64_t *counts) {
    size_t experts = model->config.router.experts;
    double worst = 0.0;
    for (size_t l = 0; l < model->config.layers; l++) {
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

/* One loss over the slots and masses of all layers together; every layer gets the same gradient. */
static moert_status balance_together(moert_model *model, const uint64_t *counts, const double *sums,
                                     double coefficient, float *gradient, double *aux) {
    const moert_model_config *c = &model->config;
    size_t experts = c->router.experts;
    double rows = (double)(c->layers * model->batch.total_sequences * model->length), *mass;
    uint64_t *count;
    MOERT_TRY(moert_alloc(&mass, experts, sizeof *mass));
    moert_status status = moert_alloc(&count, experts, sizeof *count);
    if (status == MOERT_OK) {
        for (size_t l = 0; l < c->layers; l++)
            for (size_t e = 0; e < experts; e++) {
                mass[e] += sums[column_of_layer(model, l) + 1 + e];
                count[e] += counts[l * experts + e];
            }
        *aux = moert_router_aux_loss(MOERT_AUX_HUGGING_FACE, &c->router, count, mass, rows,
                                     coefficient, gradient);
        for (size_t l = 0; l < c->layers && status == MOERT_OK; l++)
            status = moert_buffer_write(model->layer[l].aux_gradient, 0, gradient,
                                        experts * sizeof *gradient);
        free(count);
    }
    free(mass);
    return status;
}

/* One loss per layer, summed. */
static moert_status balance_layers(moert_model *model, const uint64_t *counts, const double *sums,
                                   double coefficient, float *gradient, double *aux) {
    const moert_model_config *c = &model->config;
    size_t experts = c->router.experts;
    double rows = (double)(model->batch.total_sequences * model->length);
    *aux = 0.0;
    for (size_t l = 0; l < c->layers; l++) {
        *aux += moert_router_aux_loss(MOERT_AUX_MEGATRON, &c->router, counts + l * experts,
                                      sums + column_of_layer(model, l) + 1, rows, coefficient,
                                      gradient);
        MOERT_TRY(moert_buffer_write(model->layer[l].aux_gradient, 0, gradient,
                                     experts * sizeof *gradient));
    }
    return MOERT_OK;
}

/* Per-sequence sums of this rank, then over all sequences: sums[columns]. */
static moert_status sum_everything(moert_model *model, size_t columns, double *sums) {
    double *per_sequence;
    MOERT_TRY(moert_alloc(&per_sequence, model->batch.sequences, columns * sizeof *per_sequence));
    moert_status status = sum_tokens(model, model->token_loss, false, per_sequence, columns);
    for (size_t l = 0; l < model->config.layers && status == MOERT_OK; l++)
        status = sum_layer(model, l, per_sequence, columns);
    if (status == MOERT_OK)
        status = sum_sequences(model, per_sequence, columns, sums);
    free(per_sequence);
    return status;
}

moert_status moert_model_loss(moert_model *model, const moert_model_losses *losses, double factor,
                              moert_model_result *result) {
    const moert_model_config *c = &model->config;
    size_t columns = column_of_layer(model, c->layers), experts = c->router.experts;
    double tokens = (double)(model->batch.total_sequences * model->length), *sums = NULL;
    uint64_t *counts = NULL;
    float *gradient = NULL;
    moert_status status;
    moert_phase_set("loss");
    model->losses = *losses;
    model->factor = factor;
    MOERT_TRY(moert_model_reserve(model, model->batch.tokens, &model->token_loss));
    MOERT_TRY(moert_cross_entropy(model->batch.tokens, c->vocabulary, model->targets,
                                  (float)(factor / tokens), model->logits, model->token_loss));
    MOERT_TRY_OR(done, moert_alloc(&sums, columns, sizeof *sums));
    MOERT_TRY_OR(done, moert_alloc(&counts, c->layers * experts, sizeof *counts));
    MOERT_TRY_OR(done, moert_alloc(&gradient, experts, sizeof *gradient));
    MOERT_TRY_OR(done, sum_everything(model, columns, sums));
    MOERT_TRY_OR(done, gather_counts(model, counts));
    result->cross_entropy = sums[0] / tokens;
    result->expert_load = expert_load(model, counts);
    result->z = 0.0;
    for (size_t l = 0; l < c->layers; l++)
        result->z += sums[column_of_layer(model, l)] / tokens;
    status = (losses->aux_form == MOERT_AUX_MEGATRON ? balance_layers : balance_together)(
        model, counts, sums, losses->aux_coefficient * factor, gradient, &result->aux);
done:
    free(gradient);
    free(counts);
    free(sums);
    return status;
}
