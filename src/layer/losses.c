/*
 * The losses of a pass's router. All sums are float64: a rank sums over the tokens of each of its
 * sequences, then all ranks add the sums of the sequences in order. So the digits do not depend on
 * the number of ranks.
 */
#include <stdlib.h>

#include "base/memory.h"
#include "base/options.h"
#include "layer/check.h"

/* Columns of the sums of a sequence: tokens, lse^2, then the experts' masses
 * (moert_router_mass). */
enum { TOKENS, SQUARES, MASS };

typedef struct sums {
    size_t columns;
    double *mine, *all, *total; /* mine[sequences, columns] of this rank, all[total sequences,
                                   columns] of all ranks, total[columns] */
    float *lse, *mass;          /* [T], [sequences, E] */
    uint32_t *ends;             /* [sequences] */
    size_t *bytes;              /* [ranks] */
    uint64_t *counts;           /* [EDP, E] */
    float *gradient;            /* [E] */
} sums;

static moert_status allocate(const moert_pass *pass, sums *s) {
    const moert_batch *b = &pass->batch;
    const moert_mesh *mesh = pass->layer->mesh;
    const size_t experts = pass->layer->options.router.experts;
    s->columns = MASS + experts;
    MOERT_TRY(MOERT_NEW_ARRAY(&s->mine, b->sequences * s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->all, b->total_sequences * s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->total, s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->lse, b->tokens));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->mass, b->sequences * experts));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->ends, b->sequences));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->bytes, moert_comm_size(mesh->world)));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->counts, moert_comm_size(mesh->replicas) * experts));
    return MOERT_NEW_ARRAY(&s->gradient, experts);
}

/* Reads the sums of this rank's tokens from the device to s->mine. */
static moert_status sum_tokens(const moert_pass *pass, sums *s) {
    const moert_batch *b = &pass->batch;
    const moert_layer *layer = pass->layer;
    const size_t experts = layer->options.router.experts, masses = b->sequences * experts;
    moert_buffer *mass;
    if (b->sequences == 0)
        return MOERT_OK;
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_MASS, &mass));
    MOERT_TRY(moert_router_mass(&layer->options.router, b->tokens, pass->routing.scores, b->ends,
                                b->sequences, mass));
    MOERT_TRY(moert_buffer_read(mass, 0, s->mass, masses * sizeof *s->mass));
    MOERT_TRY(moert_buffer_read(pass->routing.lse, 0, s->lse, b->tokens * sizeof *s->lse));
    MOERT_TRY(moert_buffer_read(b->ends, 0, s->ends, b->sequences * sizeof *s->ends));
    for (size_t i = 0, t = 0; i < b->sequences; i++) {
        double *sum = s->mine + i * s->columns;
        sum[TOKENS] = (double)(s->ends[i] - t);
        for (; t < s->ends[i]; t++)
            sum[SQUARES] += (double)s->lse[t] * (double)s->lse[t];
        for (size_t e = 0; e < experts; e++)
            sum[MASS + e] = (double)s->mass[i * experts + e];
    }
    return MOERT_OK;
}

/* Fills s->total and s->counts[E] from all ranks. Collective. */
static moert_status sum_ranks(const moert_pass *pass, sums *s) {
    moert_mesh *mesh = pass->layer->mesh;
    const size_t experts = pass->layer->options.router.experts;
    const size_t replicas = moert_comm_size(mesh->replicas);
    MOERT_TRY(moert_mesh_gather_spans(mesh, &pass->batch));
    for (size_t r = 0; r < moert_comm_size(mesh->world); r++)
        s->bytes[r] = mesh->spans[r].count * s->columns * sizeof *s->all;
    MOERT_TRY(moert_comm_allgatherv(mesh->world, s->mine, s->bytes, s->all));
    for (size_t i = 0; i < pass->batch.total_sequences; i++)
        for (size_t c = 0; c < s->columns; c++)
            s->total[c] += s->all[i * s->columns + c];
    MOERT_TRY(moert_comm_allgather(mesh->replicas, pass->plan->plan->expert_counts,
                                   experts * sizeof *s->counts, s->counts));
    for (size_t r = 1; r < replicas; r++)
        for (size_t e = 0; e < experts; e++)
            s->counts[e] += s->counts[r * experts + e];
    return MOERT_OK;
}

static moert_status check(const moert_pass *pass, const moert_pass_losses *losses) {
    const moert_layer *layer = pass->layer;
    if (layer->options.external_routing || pass->plan == NULL)
        return MOERT_FAIL(
            ERROR_USAGE,
            "moert_pass_report needs a layer with a router and a pass after its forward");
    return losses->aux_gradient == NULL
               ? MOERT_OK
               : moert_layer_check_buffer(layer, "aux_gradient", losses->aux_gradient,
                                          layer->options.router.experts * sizeof(float));
}

/* Copies and checks the caller's struct, and sums over this rank's tokens. */
static moert_status sum_own(moert_pass *pass, const moert_pass_losses *given,
                            moert_pass_losses *taken, sums *s) {
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_pass_losses, MOERT_PASS_LOSSES_INIT, taken, given));
    MOERT_TRY(check(pass, taken));
    MOERT_TRY(allocate(pass, s));
    return sum_tokens(pass, s);
}

moert_status moert_pass_report(moert_pass *pass, moert_pass_losses *losses) {
    moert_pass_losses taken;
    sums s = {0};
    MOERT_REQUIRE(pass);
    const moert_layer *layer = pass->layer;
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(layer->mesh->world, sum_own(pass, losses, &taken, &s)));
    MOERT_TRY_OR(done, sum_ranks(pass, &s));
    const moert_router_load load = {s.counts, s.total + MASS, s.total[TOKENS]};
    const bool empty = s.total[TOKENS] == 0.0;
    losses->aux = empty ? 0.0
                        : moert_router_aux_loss(MOERT_AUX_MEGATRON, &layer->options.router, &load,
                                                taken.aux_coefficient, s.gradient);
    losses->z = empty ? 0.0 : s.total[SQUARES] / s.total[TOKENS];
    if (taken.aux_gradient != NULL)
        status = moert_buffer_write(taken.aux_gradient, 0, s.gradient,
                                    layer->options.router.experts * sizeof *s.gradient);
done:
    MOERT_FREE(s.gradient, s.counts, s.bytes, s.ends, s.mass, s.lse, s.total, s.all, s.mine);
    return status;
}
