/* The layer's backward pass and the completion of its gradients. */
#include "base/dtype.h"
#include "base/options.h"
#include "base/phase.h"
#include "layer/check.h"
#include "layer/clones.h"
#include "layer/operand.h"
#include "layer/precision.h"
#include "layer/wire.h"
#include "nn/nn.h"

/* With recompute_experts: repeats the forward's first projection and GLU of the experts' rows in
 * `part`, or of the shared expert if it is NULL. */
static moert_status activate_again(moert_pass *pass, const moert_part *part) {
    moert_block *block = pass->layer->block[part != NULL ? BLOCK_EXPERT_IN : BLOCK_DENSE];
    if (!pass->again)
        return MOERT_OK;
    moert_block_repeat(block, true);
    const moert_status status =
        part != NULL ? moert_pass_activate(pass, part) : moert_pass_activate_shared(pass);
    moert_block_repeat(block, false);
    return status;
}

/* Computes a chunk's dh from its received dy, then dv. Writes the gradients of the routing weights
 * to `dprob`. */
static moert_status differentiate_glu(moert_pass *pass, moert_window *dprob,
                                      const moert_part *part) {
    moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const moert_dtype from = moert_precision_v_type(layer), type = moert_precision_dv_type(layer);
    const size_t n = pass->plan->plan->rows * o->intermediate;
    moert_buffer *dh;
    MOERT_TRY(
        moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_HIDDEN, moert_operand_floats(from, n), &dh));
    moert_gemm second = moert_pass_gemm(pass, MOERT_GEMM_DGRAD, BLOCK_EXPERT_OUT, part);
    second.x = dh;
    second.result = from;
    MOERT_TRY(moert_wire_unpack(pass, pass->dy, &second.y, &second.ldy));
    MOERT_TRY(moert_precision_gemm(pass, BLOCK_EXPERT_OUT, &second));
    pass->dv = pass->v;
    if (type != from)
        MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_ROUNDED_Y,
                                     moert_operand_floats(type, 2 * n), &pass->dv));
    MOERT_TRY(moert_glu_backward(&(moert_glu){.form = o->glu,
                                              .first_row = part->first_row,
                                              .rows = part->end_row,
                                              .width = o->intermediate,
                                              .v = pass->v,
                                              .prob = moert_window_rows(pass->prob),
                                              .prob_stride = moert_window_stride(pass->prob),
                                              .from = from,
                                              .type = type,
                                              .dh = dh,
                                              .dv = pass->dv,
                                              .dprob = moert_window_rows(dprob)}));
    moert_scaled_bias biases = moert_pass_biases(pass, &second);
    biases.dprob = moert_window_rows(dprob);
    return o->expert_biases ? moert_scaled_bias_dprob(&biases) : MOERT_OK;
}

/* moert_precision_gemm of a wgrad; after a failure only takes part in the chains of clones. */
static moert_status run_wgrad(moert_pass *pass, int block, const moert_gemm *gemm,
                              moert_status status) {
    return status == MOERT_OK ? moert_precision_gemm(pass, block, gemm)
                              : moert_clones_gemm(pass, gemm, status);
}

/* Computes the weight gradients, those of the first projection first: dv may be in
 * MOERT_SCRATCH_ROUNDED_Y, which the second projection's GEMM overwrites with the rounded dy. After
 * a failure, `status`, it only takes part in the chains of clones. */
static moert_status compute_wgrad(moert_pass *pass, moert_status status) {
    moert_layer *layer = pass->layer;
    const bool biased = layer->options.expert_biases;
    moert_gemm in = moert_pass_gemm(pass, MOERT_GEMM_WGRAD, BLOCK_EXPERT_IN, NULL);
    moert_gemm second = moert_pass_gemm(pass, MOERT_GEMM_WGRAD, BLOCK_EXPERT_OUT, NULL);
    moert_phase_set(MOERT_PHASE_WGRAD);
    in.y = pass->dv;
    if (status == MOERT_OK)
        status = moert_wire_unpack(pass, pass->x, &in.x, &in.ldx);
    status = run_wgrad(pass, BLOCK_EXPERT_IN, &in, status);
    in.kind = MOERT_GEMM_BIAS_GRAD;
    if (biased)
        status = moert_clones_gemm(pass, &in, status);
    second.x = pass->h;
    if (status == MOERT_OK)
        status = moert_wire_unpack(pass, pass->dy, &second.y, &second.ldy);
    status = run_wgrad(pass, BLOCK_EXPERT_OUT, &second, status);
    const moert_scaled_bias biases = moert_pass_biases(pass, &second);
    return biased ? moert_clones_bias_gradient(pass, &biases, status) : status;
}

static moert_status differentiate_chunk(moert_pass *pass, moert_transfer *back, size_t chunk,
                                        const moert_part *part) {
    (void)chunk;
    moert_phase_set(MOERT_PHASE_EXPERTS_BACKWARD);
    MOERT_TRY(activate_again(pass, part));
    if (part->end == part->first)
        return MOERT_OK;
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_DY, pass->dy,
                                      moert_wire_bytes(&pass->layer->options), part));
    MOERT_TRY(differentiate_glu(pass, back->slots, part));
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_DPROB, back->slots, sizeof(float), part));
    moert_gemm in = moert_pass_gemm(pass, MOERT_GEMM_DGRAD, BLOCK_EXPERT_IN, part);
    in.y = pass->dv;
    MOERT_TRY(moert_wire_results(pass, back, false, &in));
    MOERT_TRY(moert_precision_gemm(pass, BLOCK_EXPERT_IN, &in));
    MOERT_TRY(moert_probe_take_results(pass, MOERT_PROBE_DX, &in));
    return moert_wire_return(pass, back, &in);
}

/* Runs the experts' backward chunk by chunk, between the dispatch of dy and the combine of dx.
 * Computes the weight gradients, unless they are deferred, while dx travels. */
static moert_status differentiate_experts(moert_pass *pass, moert_transfer *back) {
    moert_layer *layer = pass->layer;
    moert_status status = moert_pass_each_chunk(pass, back, differentiate_chunk);
    if (layer->options.deferred_wgrad)
        return status;
    if (status == MOERT_OK)
        status = moert_exchange_combine_overlapped(layer->mesh->exchange, back);
    return compute_wgrad(pass, status);
}

/* The pass of the earliest backward whose deferred wgrad has not run; NULL if there is none. */
static moert_pass *first_owing(const moert_layer *layer) {
    moert_pass *first = NULL;
    for (size_t i = 0; i < layer->passes->count; i++) {
        moert_pass *pass = layer->passes->pass[i];
        if (pass->layer == layer && pass->owes_wgrad &&
            (first == NULL || pass->backward < first->backward))
            first = pass;
    }
    return first;
}

moert_status moert_pass_wgrad(moert_pass *pass) {
    MOERT_REQUIRE(pass);
    if (!pass->layer->options.deferred_wgrad)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad of a layer without deferred_wgrad, whose "
                                       "backward computes the weight gradients");
    if (pass->stage != STAGE_BACKWARD)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad without a backward before it");
    if (!pass->owes_wgrad)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad a second time for the same backward");
    if (first_owing(pass->layer) != pass)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad is missing for a pass whose backward was "
                                       "earlier; weight gradients add up in that order");
    pass->owes_wgrad = false;
    return compute_wgrad(pass, MOERT_OK);
}

/* Computes dlogits from the gradients of the routing weights and of the losses, then the gradient
 * of the router's weight. */
static moert_status differentiate_router(moert_pass *pass, const moert_layer_losses *losses,
                                         const moert_buffer *dweight, moert_buffer **dlogits) {
    moert_layer *layer = pass->layer;
    const moert_router_options *router = &layer->options.router;
    const size_t tokens = pass->batch.tokens;
    const moert_buffer *ends = losses->aux_by_sequence ? pass->batch.ends : NULL;
    moert_phase_set(MOERT_PHASE_ROUTER_BACKWARD);
    MOERT_TRY(
        moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_LOGITS, tokens * router->experts, dlogits));
    MOERT_TRY(moert_router_backward(layer->mesh->device, router,
                                    &(moert_router_gradient){.tokens = tokens,
                                                             .logits = pass->logits,
                                                             .routing = &pass->routing,
                                                             .dweight = dweight,
                                                             .aux_gradient = losses->aux_gradient,
                                                             .z_factor = losses->z_factor,
                                                             .dlogits = *dlogits,
                                                             .sequence_ends = ends,
                                                             .sequences = pass->batch.sequences}));
    moert_gemm gemm = moert_pass_router_gemm(pass, router->experts, pass->input, *dlogits);
    gemm.bias = layer->block[BLOCK_DENSE]->tensor[DENSE_ROUTER_BIAS].gradient;
    return moert_block_dense_gradient(layer->block[BLOCK_DENSE], DENSE_ROUTER, &pass->batch, &gemm,
                                      &layer->mesh->scratch[MOERT_SCRATCH_PARTIAL]);
}

/* Adds the router's gradient to dx. */
static moert_status add_router(const moert_pass *pass, moert_buffer *dlogits, moert_buffer *dx) {
    moert_gemm router =
        moert_pass_router_gemm(pass, pass->layer->options.router.experts, dx, dlogits);
    router.kind = MOERT_GEMM_DGRAD;
    router.accumulate = true;
    return moert_block_gemm(pass->layer->block[BLOCK_DENSE], DENSE_ROUTER, &router);
}

/* Backward of the shared expert's gate, from the gradient dprob[T] of its result. */
static moert_status differentiate_gate(moert_pass *pass, const moert_buffer *dprob,
                                       moert_buffer *dx) {
    moert_mesh *mesh = pass->layer->mesh;
    moert_block *dense = pass->layer->block[BLOCK_DENSE];
    const moert_router_options gate = moert_pass_gate();
    const size_t tokens = pass->batch.tokens;
    moert_buffer *dlogits;
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_LOGITS, tokens, &dlogits));
    MOERT_TRY(moert_router_backward(mesh->device, &gate,
                                    &(moert_router_gradient){.tokens = tokens,
                                                             .logits = pass->gate_logits,
                                                             .routing = &pass->gate,
                                                             .dweight = dprob,
                                                             .dlogits = dlogits}));
    moert_gemm gemm = moert_pass_router_gemm(pass, 1, pass->input, dlogits);
    MOERT_TRY(moert_block_dense_gradient(dense, DENSE_SHARED_GATE, &pass->batch, &gemm,
                                         &mesh->scratch[MOERT_SCRATCH_PARTIAL]));
    gemm.x = dx;
    gemm.kind = MOERT_GEMM_DGRAD;
    gemm.accumulate = true;
    return moert_block_gemm(dense, DENSE_SHARED_GATE, &gemm);
}

/* Adds the shared expert's gradient to dx and collects the gradients of its weights. */
static moert_status differentiate_shared(moert_pass *pass, const moert_buffer *dy,
                                         moert_buffer *dx) {
    const bool gated = pass->layer->options.shared_gate;
    moert_dense_glu glu = moert_pass_shared_expert(pass);
    moert_phase_set(MOERT_PHASE_SHARED_EXPERT);
    if (gated)
        MOERT_TRY(
            moert_mesh_scratch(glu.mesh, MOERT_SCRATCH_SLOTS, pass->batch.tokens, &glu.dprob));
    MOERT_TRY(activate_again(pass, NULL));
    MOERT_TRY(
        moert_dense_glu_backward(&glu, pass->input, pass->shared_v, pass->shared_h, dy, dx, true));
    return gated ? differentiate_gate(pass, glu.dprob, dx) : MOERT_OK;
}

/* Reserves the windows and scratch of the backward and starts the dispatch of dy. `status` is this
 * rank's status so far; all ranks of the EP group return the same status. */
static moert_status deliver(moert_pass *pass, moert_status status, const moert_buffer *dy,
                            moert_buffer *weight_gradient, moert_transfer *back) {
    moert_layer *layer = pass->layer;
    moert_mesh *mesh = layer->mesh;
    const moert_buffer *wire_rows = NULL;
    if (!layer->options.deferred_wgrad)
        MOERT_TRY(
            moert_mesh_window(mesh, MOERT_WINDOW_DY, moert_wire_width(&layer->options), &pass->dy));
    MOERT_TRY(moert_wire_back(pass, false, back));
    MOERT_TRY(moert_mesh_window(mesh, MOERT_WINDOW_DPROB, 1, &back->slots));
    MOERT_TRY(moert_window_reserve(back->slots, pass->plan->plan));
    if (status == MOERT_OK)
        status = moert_block_begin(layer->block[BLOCK_DENSE], &pass->batch, pass->accumulate);
    for (int b = BLOCK_EXPERT_IN; b <= BLOCK_EXPERT_OUT && status == MOERT_OK; b++)
        status = moert_block_open(layer->block[b], pass->accumulate);
    back->slot_target = weight_gradient;
    if (status == MOERT_OK && weight_gradient == NULL)
        status =
            moert_mesh_scratch(mesh, MOERT_SCRATCH_SLOTS,
                               pass->batch.tokens * layer->options.router.topk, &back->slot_target);
    if (status == MOERT_OK)
        status = moert_wire_pack(pass, dy, &wire_rows);
    const moert_transfer there = {.plan = pass->plan, .window = pass->dy, .source = wire_rows};
    return moert_exchange_dispatch_start(mesh->exchange, &there, status);
}

/* Checks a bf16 buffer for the gradient of an expert block's weights; NULL is legal. */
static moert_status check_rounded(const moert_pass *pass, const char *name, int block,
                                  const moert_buffer *gradient) {
    const moert_layer *layer = pass->layer;
    const size_t elements = layer->block[block]->tensor[EXPERT_WEIGHT].elements;
    if (gradient == NULL)
        return MOERT_OK;
    if (pass->accumulate)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s of a backward that accumulates; only float32 gradients "
                          "are added to",
                          name);
    if (moert_comm_size(layer->mesh->replicas) > 1 || layer->placement->longest > 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s of experts with replicas or clones, whose gradients are summed in "
                          "float32",
                          name);
    return moert_layer_check_buffer(layer, name, gradient, elements * sizeof(uint16_t));
}

/* Checks the buffers and losses of a backward. */
static moert_status check_backward(const moert_pass *pass, const moert_buffer *dy,
                                   const moert_layer_losses *losses, const moert_buffer *dx) {
    const moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const size_t bytes = pass->batch.tokens * o->hidden * moert_dtype_bits(pass->batch.type) / 8;
    MOERT_TRY(moert_layer_check_buffer(layer, "dy", dy, bytes));
    MOERT_TRY(moert_layer_check_buffer(layer, "dx", dx, bytes));
    MOERT_TRY(check_rounded(pass, "w1_gradient", BLOCK_EXPERT_IN, losses->w1_gradient));
    MOERT_TRY(check_rounded(pass, "w2_gradient", BLOCK_EXPERT_OUT, losses->w2_gradient));
    const size_t rows = losses->aux_by_sequence ? pass->batch.sequences : 1;
    if (losses->aux_gradient != NULL)
        MOERT_TRY(moert_layer_check_buffer(layer, "aux_gradient", losses->aux_gradient,
                                           rows * o->router.experts * sizeof(float)));
    if (losses->weight_gradient != NULL)
        MOERT_TRY(moert_layer_check_buffer(layer, "weight_gradient", losses->weight_gradient,
                                           pass->batch.tokens * o->router.topk * sizeof(float)));
    if (o->external_routing && (losses->aux_gradient != NULL || losses->z_factor != 0.0f))
        return MOERT_FAIL(ERROR_USAGE, "losses of the router for a layer with external_routing");
    MOERT_TRY(moert_layer_check_apart("dx", dx, "x", pass->input, "which the backward reads"));
    return o->shared_intermediate > 0
               ? moert_layer_check_apart("dx", dx, "dy", dy,
                                         "which the shared expert's backward reads last")
               : MOERT_OK;
}

/* Checks the order of the calls of a layer. All ranks make the same calls, so no rank is alone with
 * a failure. */
static moert_status check_order(const moert_pass *pass) {
    MOERT_REQUIRE(pass);
    if (pass->stage != STAGE_FORWARD)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_backward without a forward before it");
    if (pass->layer->unreduced)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_reduce is missing between the last backward "
                                       "and this one");
    return MOERT_OK;
}

moert_status moert_pass_backward(moert_pass *pass, const moert_buffer *dy,
                                 const moert_layer_losses *losses, moert_buffer *dx) {
    const moert_layer_losses none = MOERT_LAYER_LOSSES_INIT;
    moert_layer_losses taken;
    moert_transfer back;
    moert_buffer *dlogits = NULL;
    moert_status status = MOERT_OPTIONS_TAKE(moert_layer_losses, MOERT_LAYER_LOSSES_INIT, &taken,
                                             losses != NULL ? losses : &none);
    MOERT_TRY(check_order(pass));
    moert_layer *layer = pass->layer;
    moert_mesh *mesh = layer->mesh;
    pass->accumulate = taken.accumulate;
    pass->rounded[BLOCK_EXPERT_IN] = taken.w1_gradient;
    pass->rounded[BLOCK_EXPERT_OUT] = taken.w2_gradient;
    if (status == MOERT_OK)
        status = check_backward(pass, dy, &taken, dx);
    pass->stage = STAGE_NOTHING;
    pass->again = layer->options.recompute_experts;
    layer->unreduced = false;
    layer->batch = pass->batch;
    moert_precision_begin(layer);
    status = deliver(pass, status, dy, taken.weight_gradient, &back);
    if (status != MOERT_OK) {
        pass->stage = STAGE_FORWARD;
        return moert_precision_tell_replicas(layer, status);
    }
    /* the ranks agree on `status` in the combine */
    status = differentiate_experts(pass, &back);
    status = moert_first(status, moert_wire_target(pass, dx, &back.target));
    MOERT_TRY(moert_exchange_combine_finish(mesh->exchange, &back, status));
    pass->stage = STAGE_BACKWARD;
    pass->backward = layer->backwards++;
    pass->owes_wgrad = layer->options.deferred_wgrad;
    layer->lost_wgrad &= taken.accumulate;
    layer->unreduced = true;
    const bool routes = !layer->options.external_routing;
    if (routes)
        status = differentiate_router(pass, &taken, back.slot_target, &dlogits);
    MOERT_TRY(moert_first(status, moert_exchange_combine_join(mesh->exchange)));
    MOERT_TRY(moert_wire_round(pass, back.target, dx));
    MOERT_TRY(moert_probe_close(pass, false));
    if (routes)
        MOERT_TRY(add_router(pass, dlogits, dx));
    return layer->options.shared_intermediate > 0 ? differentiate_shared(pass, dy, dx) : MOERT_OK;
}

moert_status moert_layer_reduce_start(moert_layer *layer, bool last) {
    moert_mesh *mesh = layer->mesh;
    layer->unreduced = false;
    MOERT_TRY(moert_block_reduce_start(layer->block[BLOCK_DENSE], mesh->spans));
    if (!last)
        return MOERT_OK;
    MOERT_TRY(moert_block_reduce_start(layer->block[BLOCK_EXPERT_IN], mesh->replica_spans));
    return moert_block_reduce_start(layer->block[BLOCK_EXPERT_OUT], mesh->replica_spans);
}

moert_status moert_layer_reduce_progress(moert_layer *layer) {
    for (int i = 0; i < BLOCKS; i++)
        MOERT_TRY(moert_block_reduce_progress(layer->block[i]));
    return MOERT_OK;
}

moert_status moert_layer_reduce_wait(moert_layer *layer) {
    for (int i = 0; i < BLOCKS; i++)
        MOERT_TRY(moert_block_reduce_wait(layer->block[i]));
    return MOERT_OK;
}

moert_status moert_layer_reduce(moert_layer *layer, bool last) {
    MOERT_REQUIRE(layer);
    if (!layer->unreduced)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_reduce without a backward before it");
    if (last && (layer->lost_wgrad || first_owing(layer) != NULL))
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad is missing before the last reduction: %s",
                          layer->lost_wgrad ? "a pass was destroyed before it"
                                            : "a pass waits for it");
    MOERT_TRY(moert_mesh_gather_spans(layer->mesh, &layer->batch));
    MOERT_TRY(moert_layer_reduce_start(layer, last));
    MOERT_TRY(moert_layer_reduce_wait(layer));
    for (int i = 0; i < BLOCKS; i++)
        if (i == BLOCK_DENSE || last)
            MOERT_TRY(moert_block_gather(layer->block[i], layer->block[i]->gradient));
    for (int i = 0; i < BLOCKS; i++)
        if (i == BLOCK_DENSE || last)
            MOERT_TRY(moert_block_give_bound(layer->block[i]));
    return MOERT_OK;
}
