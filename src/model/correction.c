/* Updates the routers' correction biases, which balance the experts' loads without a loss. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"

static moert_status update_layer(moert_layer *layer, const uint64_t *counts, size_t experts,
                                 float rate) {
    moert_buffer *correction = moert_layer_weight(layer, MOERT_LAYER_CORRECTION);
    const size_t bytes = experts * sizeof(float);
    float *bias;
    MOERT_TRY(moert_alloc(&bias, experts, sizeof *bias));
    moert_status status;
    MOERT_TRY_OR(done, moert_buffer_read(correction, 0, bias, bytes));
    moert_router_update_bias(bias, counts, experts, rate);
    status = moert_buffer_write(correction, 0, bias, bytes);
done:
    free(bias);
    return status;
}

moert_status moert_model_update_correction(moert_model *model, const uint64_t *counts, float rate) {
    const moert_model_config *c = &model->config;
    const size_t experts = c->router.experts;
    moert_status status = MOERT_OK;
    moert_phase_set(MOERT_PHASE_OPTIMIZER);
    for (size_t l = 0; c->correction_bias && l < model->moe_layers && status == MOERT_OK; l++)
        status = update_layer(model->moe[l]->moe, counts + l * experts, experts, rate);
    return moert_comm_agree(model->mesh->world, status);
}
