/* The layer's backward pass and the completion of its gradients. */
#include "base/dtype.h"
#include "base/options.h"
#include "base/phase.h"
#include "layer/check.h"
#include "layer/clones.h"
#include "layer/operand.h"
#include "layer/wire.h"
#include "nn/nn.h"

/* With recompute_experts: recomputes the forward's first projection and GLU for the experts' rows
 * in `part`, or for the shared expert if `part` is NULL. */
static moert_status recompute_activation(moert_pass *pass, const moert_row_groups *part) {
    moert_block *block = pass->layer->block[part != NULL ? BLOCK_EXPERT_IN : BLOCK_DENSE];
    if (!pass->layer->options.recompute_experts)
        return MOERT_OK;
    moert_block_repeat(block, true);
    const moert_status status =
        part != NULL ? moert_pass_activate(pass, part) : moert_pass_activate_shared(pass);
    moert_block_repeat(block, false);
    return status;
}

/* Computes a chunk's dh from its received dy, then dv. Writes the gradients of the routing weights
 * to `dprob`. */
static moert_status glu_backward(moert_pass *pass, moert_window *dprob,
                                 const moert_row_groups *part) {
    moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const moert_layer_choices *c = &layer->choices;
    moert_result dh = {.rows = {.type = c->v}};
    moert_expert_gemm second;
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_DH, &dh.rows.buffer));
    MOERT_TRY(moert_experts_gemm(pass, MOERT_GEMM_DGRAD, BLOCK_EXPERT_OUT, part, &dh, &second));
    MOERT_TRY(moert_gemm_run(&second.gemm));
    pass->dv = pass->v;
    if (c->dv != c->v)
        MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_DV, &pass->dv));
    MOERT_TRY(moert_glu_backward(&(moert_glu){.form = o->glu,
                                              .first_row = part->first_row,
                                              .rows = part->end_row,
                                              .width = o->intermediate,
                                              .v = pass->v,
                                              .prob = moert_window_rows(pass->prob),
                                              .prob_stride = moert_window_stride(pass->prob),
                                              .from = c->v,
                                              .type = c->dv,
                                              .dh = dh.rows.buffer,
                                              .dv = pass->dv,
                                              .dprob = moert_window_rows(dprob)}));
    moert_scaled_bias biases = moert_experts_biases(pass, part, &second.y);
    biases.dprob = moert_window_rows(dprob);
    return c->biases ? moert_scaled_bias_dprob(&biases) : MOERT_OK;
}

/* Computes the weight gradients, those of the first projection first: dv may be in
 * MOERT_SCRATCH_ROUNDED_Y, which the second projection's GEMM overwrites with the rounded dy. After
 * a failure, sends and receives in the clone chains without computing. */
static moert_status compute_wgrad(moert_pass *pass) {
    const bool biased = pass->layer->choices.biases;
    const moert_row_groups all = moert_pass_groups(pass);
    moert_expert_gemm in, second;
    moert_phase_set(MOERT_PHASE_WGRAD);
    moert_experts_wgrad(pass, BLOCK_EXPERT_IN, &in);
    moert_clones_gemm(pass, &in.gemm);
    const moert_gemm bias = moert_experts_bias_gradient(pass);
    if (biased)
        moert_clones_gemm(pass, &bias);
    moert_experts_wgrad(pass, BLOCK_EXPERT_OUT, &second);
    moert_clones_gemm(pass, &second.gemm);
    const moert_scaled_bias biases = moert_experts_biases(pass, &all, &second.y);
    if (biased)
        moert_clones_bias_gradient(pass, &biases);
    return pass->status;
}

static moert_status chunk_backward(moert_pass *pass, const moert_row_groups *part) {
    moert_window *dprob = pass->back.slots;
    moert_result dx;
    moert_expert_gemm in;
    moert_phase_set(MOERT_PHASE_EXPERTS_BACKWARD);
    MOERT_TRY(recompute_activation(pass, part));
    if (part->end == part->first)
        return MOERT_OK;
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_DY, pass->dy,
                                      pass->layer->choices.forth.bytes, part));
    MOERT_TRY(glu_backward(pass, dprob, part));
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_DPROB, dprob, sizeof(float), part));
    MOERT_TRY(moert_wire_choose_output(pass, false, &dx));
    MOERT_TRY(moert_experts_gemm(pass, MOERT_GEMM_DGRAD, BLOCK_EXPERT_IN, part, &dx, &in));
    MOERT_TRY(moert_gemm_run(&in.gemm));
    MOERT_TRY(moert_probe_take_results(pass, MOERT_PROBE_DX, &dx.rows, part));
    return moert_wire_return(pass, &dx);
}

/* The experts' backward, chunk by chunk, between the dispatch of dy and the combine of dx. */
static moert_status experts_backward(moert_pass *pass) {
    return moert_pass_each_chunk(pass, chunk_backward);
}

/* Computes the weight gradients while dx travels, unless they are deferred. */
static moert_status overlap_wgrad(moert_pass *pass) {
    return pass->layer->options.deferred_wgrad
               ? MOERT_OK
               : moert_exchange_combine_overlapped(pass->layer->mesh->exchange, &pass->back);
}

static moert_status wgrad(moert_pass *pass) {
    return pass->layer->options.deferred_wgrad ? pass->status : compute_wgrad(pass);
}

/* The pass of the earliest backward whose deferred wgrad has not run; NULL if there is none. */
static moert_pass *first_owing(const moert_layer *layer) {
    moert_pass *first = NULL;
    for (size_t i = 0; i < layer->passes->count; i++) {
        moert_pass *pass = layer->passes->pass[i];
        if (pass->layer == layer && pass->state == PASS_OWES_WGRAD &&
            (first == NULL || pass->backward < first->backward))
            first = pass;
    }
    return first;
}

moert_status moert_pass_wgrad(moert_pass *pass) {
    MOERT_REQUIRE(pass);
    if (!pass->layer->options.deferred_wgrad)
        return MOERT_FAIL(ERROR_USAGE,
                          "moert_pass_wgrad needs a layer with deferred_wgrad; in this layer "
                          "moert_pass_backward computes the weight gradients");
    if (pass->state < PASS_OWES_WGRAD)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad was called without a backward before it");
    if (pass->state == PASS_DONE)
        return MOERT_FAIL(ERROR_USAGE,
                          "moert_pass_wgrad was called a second time for the same backward");
    if (first_owing(pass->layer) != pass)
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad is missing for a pass whose backward was "
                                       "earlier; call it in the order of the backwards");
    pass->state = PASS_DONE;
    pass->status = MOERT_OK;
    return compute_wgrad(pass);
}

/* Computes dlogits from the gradients of the routing weights and of the losses, then the gradient
 * of the router's weight. */
static moert_status router_backward(moert_pass *pass) {
    moert_layer *layer = pass->layer;
    const moert_layer_losses *losses = &pass->losses;
    const moert_router_options *router = &layer->options.router;
    const size_t tokens = pass->batch.tokens;
    const moert_buffer *ends = losses->aux_by_sequence ? pass->batch.ends : NULL;
    if (layer->options.external_routing)
        return MOERT_OK;
    moert_phase_set(MOERT_PHASE_ROUTER_BACKWARD);
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_DLOGITS, &pass->dlogits));
    MOERT_TRY(moert_router_backward(layer->mesh->device, router,
                                    &(moert_router_gradient){.tokens = tokens,
                                                             .logits = pass->logits,
                                                             .routing = &pass->routing,
                                                             .dweight = pass->back.slot_target,
                                                             .aux_gradient = losses->aux_gradient,
                                                             .z_factor = losses->z_factor,
                                                             .dlogits = pass->dlogits,
                                                             .sequence_ends = ends,
                                                             .sequences = pass->batch.sequences}));
    moert_gemm gemm = moert_pass_router_gemm(pass, router->experts, pass->input, pass->dlogits);
    gemm.bias = layer->block[BLOCK_DENSE]->tensor[DENSE_ROUTER_BIAS].gradient;
    return moert_block_dense_gradient(layer->block[BLOCK_DENSE], DENSE_ROUTER, &pass->batch, &gemm,
                                      &layer->mesh->scratch[MOERT_SCRATCH_PARTIAL]);
}

/* Adds the router's gradient to dx. */
static moert_status add_router(const moert_pass *pass) {
    if (pass->layer->options.external_routing)
        return MOERT_OK;
    moert_gemm router = moert_pass_router_gemm(pass, pass->layer->options.router.experts,
                                               pass->result, pass->dlogits);
    router.kind = MOERT_GEMM_DGRAD;
    router.epilogue.addend = MOERT_ADDEND_FIRST;
    return moert_block_gemm(pass->layer->block[BLOCK_DENSE], DENSE_ROUTER, &router);
}

/* Backward of the shared expert's gate, from the gradient dprob[T] of its result. */
static moert_status gate_backward(moert_pass *pass, const moert_buffer *dprob, moert_buffer *dx) {
    moert_mesh *mesh = pass->layer->mesh;
    moert_block *dense = pass->layer->block[BLOCK_DENSE];
    const moert_router_options gate = moert_pass_gate();
    const size_t tokens = pass->batch.tokens;
    moert_buffer *dlogits;
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_GATE_DLOGITS, &dlogits));
    MOERT_TRY(moert_router_backward(mesh->device, &gate,
                                    &(moert_router_gradient){.tokens = tokens,
                                                             .logits = pass->gate_logits,
                                                             .routing = &pass->gate,
                                                             .dweight = dprob,
                                                             .dlogits = dlogits}));
    moert_gemm gemm = moert_pass_router_gemm(pass, 1, pass->input, dlogits);
    MOERT_TRY(moert_block_dense_gradient(dense, DENSE_SHARED_GATE, &pass->batch, &gemm,
                                         &mesh->scratch[MOERT_SCRATCH_PARTIAL]));
    gemm.x.buffer = dx;
    gemm.kind = MOERT_GEMM_DGRAD;
    gemm.epilogue.addend = MOERT_ADDEND_FIRST;
    return moert_block_gemm(dense, DENSE_SHARED_GATE, &gemm);
}

/* Adds the shared expert's gradient to dx and collects the gradients of its weights. */
static moert_status shared_backward(moert_pass *pass) {
    const bool gated = pass->layer->options.shared_gate;
    moert_buffer *dprob = NULL;
    if (pass->layer->options.shared_intermediate == 0)
        return MOERT_OK;
    moert_phase_set(MOERT_PHASE_SHARED_EXPERT);
    if (gated)
        MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_GATE_DPROB, &dprob));
    MOERT_TRY(recompute_activation(pass, NULL));
    moert_dense_glu glu = moert_pass_shared_expert(pass);
    glu.dprob = dprob;
    MOERT_TRY(moert_dense_glu_backward(&glu, pass->gradient, pass->result, true));
    return gated ? gate_backward(pass, dprob, pass->result) : MOERT_OK;
}

/* ---- stages ---- */

/* Reserves the backward's windows. */
static moert_status reserve(moert_pass *pass) {
    moert_layer *layer = pass->layer;
    moert_transfer *back = &pass->back;
    if (!layer->options.deferred_wgrad)
        MOERT_TRY(
            moert_mesh_window(layer->mesh, MOERT_WINDOW_DY, layer->choices.forth.width, &pass->dy));
    MOERT_TRY(moert_wire_back(pass, false));
    MOERT_TRY(moert_mesh_window(layer->mesh, MOERT_WINDOW_DPROB, 1, &back->slots));
    return moert_window_reserve(back->slots, pass->plan->plan);
}

/* Opens the gradients of the layer's blocks (moert_block_open). */
static moert_status open_gradients(moert_pass *pass) {
    moert_layer *layer = pass->layer;
    MOERT_TRY(moert_block_begin(layer->block[BLOCK_DENSE], &pass->batch, pass->losses.accumulate));
    for (int b = BLOCK_EXPERT_IN; b <= BLOCK_EXPERT_OUT; b++)
        MOERT_TRY(moert_block_open(layer->block[b], pass->losses.accumulate));
    pass->back.slot_target = pass->losses.weight_gradient;
    return pass->losses.weight_gradient != NULL
               ? MOERT_OK
               : moert_pass_scratch(pass, MOERT_USE_DWEIGHT, &pass->back.slot_target);
}

static moert_status pack(moert_pass *pass) {
    return moert_wire_pack(pass, pass->gradient, pass->losses.dy_bf16, &pass->packed);
}

/* Starts the dispatch of dy. */
static moert_status dispatch(moert_pass *pass) {
    const moert_transfer there = {.plan = pass->plan, .window = pass->dy, .source = pass->packed};
    return moert_exchange_dispatch_start(pass->layer->mesh->exchange, &there, pass->status);
}

/* Combines dx, and records that the layer has gradients that must be reduced. */
static moert_status combine(moert_pass *pass) {
    moert_layer *layer = pass->layer;
    MOERT_TRY(moert_exchange_combine_finish(layer->mesh->exchange, &pass->back, pass->status));
    pass->backward = layer->backwards++;
    layer->lost_wgrad &= pass->losses.accumulate;
    layer->unreduced = true;
    return MOERT_OK;
}

static moert_status join(moert_pass *pass) {
    return moert_exchange_combine_join(pass->layer->mesh->exchange);
}

/* dx = the combined gradients, plus those of the router and the shared expert. */
static moert_status finish(moert_pass *pass) {
    MOERT_TRY(moert_wire_round(pass));
    MOERT_TRY(moert_probe_close(pass, false));
    MOERT_TRY(add_router(pass));
    return shared_backward(pass);
}

static const moert_stage to_experts[] = {{reserve, MOERT_STAGE_AGREED},
                                         {open_gradients, MOERT_STAGE_LOCAL},
                                         {pack, MOERT_STAGE_LOCAL},
                                         {dispatch, MOERT_STAGE_AGREED}};
static const moert_stage from_experts[] = {{experts_backward, MOERT_STAGE_JOINT},
                                           {overlap_wgrad, MOERT_STAGE_LOCAL},
                                           {wgrad, MOERT_STAGE_JOINT},
                                           {moert_wire_target, MOERT_STAGE_LOCAL},
                                           {combine, MOERT_STAGE_AGREED},
                                           {router_backward, MOERT_STAGE_LOCAL},
                                           {join, MOERT_STAGE_JOINT},
                                           {finish, MOERT_STAGE_LOCAL}};

/* Checks a bf16 buffer for the gradient of an expert block's weights; NULL is legal. */
static moert_status check_rounded(const moert_pass *pass, const char *name, int block,
                                  const moert_buffer *gradient) {
    const moert_layer *layer = pass->layer;
    const size_t elements = layer->block[block]->tensor[EXPERT_WEIGHT].elements;
    if (gradient == NULL)
        return MOERT_OK;
    if (pass->losses.accumulate)
        return MOERT_FAIL(
            ERROR_USAGE,
            "%s is given to a backward that accumulates; only float32 gradients can accumulate",
            name);
    if (moert_comm_size(layer->mesh->replicas) > 1 || layer->placement->longest > 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s is given for experts with replicas or clones, whose gradients are "
                          "summed in float32",
                          name);
    return moert_layer_check_buffer(layer, name, gradient, elements * sizeof(uint16_t));
}

/* Copies the caller's losses to the pass, and checks them and the backward's buffers. */
static moert_status take_losses(moert_pass *pass, const moert_layer_losses *given) {
    const moert_layer_losses none = MOERT_LAYER_LOSSES_INIT, *losses = &pass->losses;
    const moert_layer *layer = pass->layer;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_layer_losses, MOERT_LAYER_LOSSES_INIT, &pass->losses,
                                 given != NULL ? given : &none));
    const moert_buffer *dy = pass->gradient, *dx = pass->result;
    const moert_layer_options *o = &layer->options;
    const size_t bytes = pass->batch.tokens * o->hidden * moert_dtype_bits(pass->batch.type) / 8;
    MOERT_TRY(moert_layer_check_buffer(layer, "dy", dy, bytes));
    MOERT_TRY(moert_layer_check_buffer(layer, "dx", dx, bytes));
    MOERT_TRY(moert_layer_check_bf16(layer, "dy_bf16", losses->dy_bf16, &pass->batch));
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
        return MOERT_FAIL(
            ERROR_USAGE,
            "losses of the router are given, but a layer with external_routing has no router");
    MOERT_TRY(moert_layer_check_apart("dx", dx, "x", pass->input, "which the backward reads"));
    return o->shared_intermediate > 0
               ? moert_layer_check_apart("dx", dx, "dy", dy,
                                         "which the shared expert's backward reads last")
               : MOERT_OK;
}

/* Checks the order of the calls of a layer. Every rank fails here alike, so no agreement is
 * needed. */
static moert_status check_order(const moert_pass *pass) {
    MOERT_REQUIRE(pass);
    if (pass->state != PASS_READY)
        return MOERT_FAIL(ERROR_USAGE,
                          "moert_pass_backward was called without a forward before it");
    if (pass->layer->unreduced)
        return MOERT_FAIL(ERROR_USAGE, "moert_layer_reduce is missing between the last backward "
                                       "and this one");
    return MOERT_OK;
}

moert_status moert_pass_backward(moert_pass *pass, const moert_buffer *dy,
                                 const moert_layer_losses *losses, moert_buffer *dx) {
    MOERT_TRY(check_order(pass));
    moert_layer *layer = pass->layer;
    pass->gradient = dy;
    pass->result = dx;
    pass->status = take_losses(pass, losses);
    layer->unreduced = false;
    layer->batch = pass->batch;
    MOERT_TRY(moert_pass_run(pass, to_experts, MOERT_COUNT(to_experts)));
    pass->state = PASS_BACKWARD;
    const moert_status status = moert_pass_run(pass, from_experts, MOERT_COUNT(from_experts));
    pass->state = !layer->unreduced               ? PASS_FAILED
                  : layer->options.deferred_wgrad ? PASS_OWES_WGRAD
                                                  : PASS_DONE;
    return status;
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
        return MOERT_FAIL(ERROR_USAGE,
                          "moert_layer_reduce was called without a backward before it");
    if (last && (layer->lost_wgrad || first_owing(layer) != NULL))
        return MOERT_FAIL(ERROR_USAGE, "moert_pass_wgrad is missing before the last reduction: %s",
                          layer->lost_wgrad ? "a pass was destroyed without moert_pass_wgrad"
                                            : "a pass still needs moert_pass_wgrad");
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
