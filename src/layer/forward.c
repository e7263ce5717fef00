/* The layer's forward pass. */
#include "base/dtype.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/phase.h"
#include "layer/check.h"
#include "layer/clones.h"
#include "layer/operand.h"
#include "layer/precision.h"
#include "layer/wire.h"
#include "nn/nn.h"

/* Takes the batch of a pass, and checks it with the forward's buffers. */
static moert_status take_batch(moert_pass *pass, const moert_batch *given, bool forward_only,
                               const moert_buffer *x, const moert_buffer *y) {
    const moert_layer *layer = pass->layer;
    moert_batch *batch = &pass->batch;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_batch, MOERT_BATCH_INIT, batch, given));
    batch->forward_only |= forward_only;
    MOERT_TRY(moert_layer_check_batch(layer, batch));
    const size_t bytes = batch->tokens * layer->options.hidden * moert_dtype_bits(batch->type) / 8;
    MOERT_TRY(moert_layer_check_buffer(layer, "x", x, bytes));
    MOERT_TRY(moert_layer_check_buffer(layer, "y", y, bytes));
    return batch->forward_only
               ? MOERT_OK
               : moert_layer_check_apart("y", y, "x", x, "which the backward reads");
}

/* logits = x router^T, then the choice of experts. */
static moert_status route(moert_pass *pass, const moert_buffer *x) {
    moert_layer *layer = pass->layer;
    const moert_router_options *router = &layer->options.router;
    moert_block *dense = layer->block[BLOCK_DENSE];
    size_t tokens = pass->batch.tokens, experts = router->experts, topk = router->topk;
    moert_phase_set(MOERT_PHASE_ROUTE);
    pass->index = pass->batch.index;
    pass->weight = pass->batch.weight;
    if (layer->options.external_routing)
        return MOERT_OK;
    MOERT_TRY(moert_pass_activation(pass, tokens, experts, &pass->logits));
    MOERT_TRY(moert_pass_activation(pass, tokens, experts, &pass->routing.scores));
    MOERT_TRY(moert_pass_activation(pass, tokens, topk, &pass->routing.index));
    MOERT_TRY(moert_pass_activation(pass, tokens, topk, &pass->routing.weight));
    MOERT_TRY(moert_pass_activation(pass, tokens, 1, &pass->routing.lse));
    pass->index = pass->routing.index;
    pass->weight = pass->routing.weight;
    moert_gemm gemm = moert_pass_router_gemm(pass, experts, x, pass->logits);
    gemm.bias = dense->tensor[DENSE_ROUTER_BIAS].weight;
    MOERT_TRY(moert_block_gemm(dense, DENSE_ROUTER, &gemm));
    if (layer->balanced)
        MOERT_TRY(moert_router_balance(layer->mesh->device, router, tokens, pass->logits));
    MOERT_TRY(moert_router_forward(layer->mesh->device, router, tokens, pass->logits,
                                   dense->tensor[DENSE_CORRECTION].weight, &pass->routing));
    return pass->batch.token != NULL ? moert_router_skip(layer->mesh->device, router, tokens,
                                                         pass->batch.token, &pass->routing)
                                     : MOERT_OK;
}

moert_status moert_pass_activate(moert_pass *pass, const moert_part *part) {
    moert_layer *layer = pass->layer;
    const moert_dtype v_type = moert_precision_v_type(layer),
                      h_type = moert_precision_h_type(layer);
    const size_t n = pass->plan->plan->rows * layer->options.intermediate;
    MOERT_TRY(moert_pass_hidden(pass, moert_operand_floats(v_type, 2 * n),
                                moert_operand_floats(h_type, n), &pass->v, &pass->h));
    if (part->end == part->first)
        return MOERT_OK;
    moert_gemm in = moert_pass_gemm(pass, MOERT_GEMM_FORWARD, BLOCK_EXPERT_IN, part);
    MOERT_TRY(moert_wire_unpack(pass, pass->x, &in.x, &in.ldx));
    in.y = pass->v;
    in.result = v_type;
    in.gated = true;
    in.glu = (moert_glu){.form = layer->options.glu,
                         .prob = moert_window_rows(pass->prob),
                         .prob_stride = moert_window_stride(pass->prob),
                         .type = h_type,
                         .h = pass->h};
    in.drop_v = moert_pass_drops_v(pass);
    return moert_precision_gemm(pass, BLOCK_EXPERT_IN, &in);
}

/* Runs a chunk's experts on its rows: out = W2 (prob * glu(W1 x)). The results travel while the
 * next chunk is computed, or as the GEMM stores them (moert_wire_results). */
static moert_status compute_chunk(moert_pass *pass, moert_transfer *back, size_t chunk,
                                  const moert_part *part) {
    moert_layer *layer = pass->layer;
    moert_phase_set(MOERT_PHASE_EXPERTS);
    if (chunk == 0)
        MOERT_TRY(moert_precision_refresh(layer));
    if (part->end == part->first)
        return moert_pass_activate(pass, part); /* only reserves v and h */
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_ROWS, pass->x,
                                      moert_wire_bytes(&layer->options), part));
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_PROB, pass->prob, sizeof(float), part));
    MOERT_TRY(moert_pass_activate(pass, part));
    moert_gemm second = moert_pass_gemm(pass, MOERT_GEMM_FORWARD, BLOCK_EXPERT_OUT, part);
    second.x = pass->h;
    second.bias = NULL;
    MOERT_TRY(moert_wire_results(pass, back, true, &second));
    MOERT_TRY(moert_precision_gemm(pass, BLOCK_EXPERT_OUT, &second));
    const moert_scaled_bias biases = moert_pass_biases(pass, &second);
    if (layer->options.expert_biases)
        MOERT_TRY(moert_scaled_bias_forward(&biases));
    MOERT_TRY(moert_probe_take_results(pass, MOERT_PROBE_Y, &second));
    return moert_wire_return(pass, back, &second);
}

/* Computes the shared expert's gate. */
static moert_status open_gate(moert_pass *pass, const moert_buffer *x) {
    moert_block *dense = pass->layer->block[BLOCK_DENSE];
    const moert_router_options gate = moert_pass_gate();
    moert_buffer **const buffers[] = {&pass->gate_logits, &pass->gate.scores, &pass->gate.index,
                                      &pass->gate.weight, &pass->gate.lse};
    for (size_t i = 0; i < MOERT_COUNT(buffers); i++)
        MOERT_TRY(moert_pass_activation(pass, pass->batch.tokens, 1, buffers[i]));
    const moert_gemm gemm = moert_pass_router_gemm(pass, 1, x, pass->gate_logits);
    MOERT_TRY(moert_block_gemm(dense, DENSE_SHARED_GATE, &gemm));
    return moert_router_forward(pass->layer->mesh->device, &gate, pass->batch.tokens,
                                pass->gate_logits, NULL, &pass->gate);
}

/* Reserves v and h of the shared expert. */
static moert_status reserve_shared(moert_pass *pass, const moert_dense_glu *glu) {
    const size_t tokens = pass->batch.tokens;
    return moert_pass_hidden(
        pass,
        moert_dense_glu_v_floats(glu->mesh->device, glu->type, tokens, glu->hidden, glu->width),
        moert_dense_glu_h_floats(glu->type, tokens, glu->width), &pass->shared_v, &pass->shared_h);
}

moert_status moert_pass_activate_shared(moert_pass *pass) {
    const moert_dense_glu glu = moert_pass_shared_expert(pass);
    MOERT_TRY(reserve_shared(pass, &glu));
    return moert_dense_glu_activate(&glu, pass->input, pass->shared_v, pass->shared_h);
}

/* result[T,H] = the shared expert's output for all tokens of this rank. The shared expert needs no
 * exchange. */
static moert_status compute_shared_expert(moert_pass *pass, const moert_buffer *x,
                                          moert_buffer **result) {
    const size_t tokens = pass->batch.tokens;
    moert_phase_set(MOERT_PHASE_SHARED_EXPERT);
    if (pass->layer->options.shared_gate)
        MOERT_TRY(open_gate(pass, x));
    const moert_dense_glu glu = moert_pass_shared_expert(pass);
    MOERT_TRY(reserve_shared(pass, &glu));
    MOERT_TRY(moert_mesh_scratch(glu.mesh, MOERT_SCRATCH_TOKENS, tokens * glu.hidden, result));
    return moert_dense_glu_forward(&glu, x, pass->shared_v, pass->shared_h, *result);
}

/* Makes the plan, reserves the window of the results and starts the dispatch of x. `status` is this
 * rank's status so far; all ranks of the EP group return the same status. */
static moert_status deliver(moert_pass *pass, moert_status status, const moert_buffer *x,
                            moert_transfer *back) {
    moert_layer *layer = pass->layer;
    moert_mesh *mesh = layer->mesh;
    const moert_router_options *router = &layer->options.router;
    const moert_buffer *wire_rows = NULL;
    status = moert_exchange_begin_plan(mesh->exchange,
                                       &(moert_exchange_slots){.index = pass->index,
                                                               .tokens = pass->batch.tokens,
                                                               .topk = router->topk,
                                                               .experts = router->experts,
                                                               .placement = layer->placement},
                                       status);
    if (status == MOERT_OK) /* the device packs rows while the host makes the plan */
        status = moert_wire_pack(pass, x, &wire_rows);
    MOERT_TRY(moert_exchange_end_plan(mesh->exchange, status, &pass->plan));
    moert_row_peak_add(&pass->peak, pass->plan->plan->rows, pass->plan->plan->largest_rows);
    MOERT_TRY(moert_wire_back(pass, true, back));
    if (moert_wire_takes_chunks(&layer->options))
        moert_exchange_cut(mesh->exchange, pass->plan,
                           moert_exchange_choose_chunks(
                               pass->plan, moert_wire_width(&layer->options) * sizeof(float)));
    const moert_transfer there = {.plan = pass->plan,
                                  .window = pass->x,
                                  .slots = pass->prob,
                                  .source = wire_rows,
                                  .slot_source = pass->weight};
    return moert_exchange_dispatch_start(mesh->exchange, &there, MOERT_OK);
}

/* Runs the forward of a pass that has its batch and input. */
static moert_status run(moert_pass *pass, moert_status status, moert_buffer *y) {
    moert_layer *layer = pass->layer;
    const bool shared = layer->options.shared_intermediate > 0;
    const moert_buffer *x = pass->input;
    moert_transfer back;
    moert_buffer *result = NULL; /* the shared expert's result, computed while rows travel */
    moert_precision_begin(layer);
    status = moert_clones_send(layer, status);
    if (status == MOERT_OK)
        status = route(pass, x);
    status = deliver(pass, status, x, &back);
    const bool delivered = status == MOERT_OK; /* the same on all ranks of the EP group */
    if (delivered && shared)
        status = compute_shared_expert(pass, x, &result);
    status = moert_clones_take(layer, status);
    if (!delivered)
        return moert_precision_tell_replicas(layer, status);
    status = moert_first(status, moert_pass_each_chunk(pass, &back, compute_chunk));
    status = moert_first(status, moert_wire_target(pass, y, &back.target));
    /* the ranks agree on `status` in the combine */
    MOERT_TRY(moert_exchange_combine_finish(layer->mesh->exchange, &back, status));
    MOERT_TRY(moert_wire_round(pass, back.target, y));
    MOERT_TRY(moert_probe_close(pass, true));
    return shared ? moert_add(pass->batch.tokens * layer->options.hidden, result, y) : MOERT_OK;
}

moert_status moert_layer_forward(moert_layer *layer, const moert_batch *batch,
                                 const moert_buffer *x, moert_buffer *y, moert_pass **pass) {
    moert_pass *taken = NULL;
    MOERT_REQUIRE(layer);
    MOERT_TRY(moert_pass_take(layer, &taken));
    moert_status status = take_batch(taken, batch, pass == NULL, x, y);
    taken->input = x;
    taken->again = false;
    status = run(taken, status, y);
    taken->stage = taken->batch.forward_only ? STAGE_NOTHING : STAGE_FORWARD;
    if (status == MOERT_OK && pass != NULL)
        *pass = taken;
    else
        moert_pass_destroy(taken);
    return status;
}
