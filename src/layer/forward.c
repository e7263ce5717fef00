/* The layer's forward pass. */
#include "base/dtype.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/phase.h"
#include "layer/check.h"
#include "layer/clones.h"
#include "layer/operand.h"
#include "layer/rounding.h"
#include "layer/wire.h"
#include "nn/nn.h"

/* Copies the caller's batch to the pass, and checks it and the forward's buffers. */
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
    MOERT_TRY(moert_layer_check_bf16(layer, "bf16", batch->bf16, batch));
    return batch->forward_only
               ? MOERT_OK
               : moert_layer_check_apart("y", y, "x", x, "which the backward reads");
}

/* logits = x router^T, then the choice of experts. */
static moert_status route(moert_pass *pass) {
    const moert_buffer *x = pass->input;
    moert_layer *layer = pass->layer;
    const moert_router_options *router = &layer->options.router;
    moert_block *dense = layer->block[BLOCK_DENSE];
    const moert_layer_sizes sizes = moert_pass_sizes(pass);
    const size_t tokens = pass->batch.tokens, experts = router->experts;
    moert_phase_set(MOERT_PHASE_ROUTE);
    MOERT_TRY(moert_buffer_table_reserve(moert_pass_routing_buffers, layer->mesh->device, &sizes,
                                         pass, true));
    pass->index = pass->batch.index;
    pass->weight = pass->batch.weight;
    if (layer->options.external_routing)
        return MOERT_OK;
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

moert_status moert_pass_activate(moert_pass *pass, const moert_row_groups *part) {
    const moert_layer_choices *c = &pass->layer->choices;
    moert_expert_gemm in;
    MOERT_TRY(moert_pass_hidden(pass));
    if (part->end == part->first)
        return MOERT_OK;
    const moert_result v = {.rows = {.buffer = pass->v, .type = c->v}};
    MOERT_TRY(moert_experts_gemm(pass, MOERT_GEMM_FORWARD, BLOCK_EXPERT_IN, part, &v, &in));
    MOERT_TRY(moert_gemm_run(&in.gemm));
    const moert_glu glu = moert_experts_glu(pass, part);
    return glu.gated ? MOERT_OK : moert_glu_forward(&glu);
}

/* Runs a chunk's experts on its rows: out = W2 (prob * glu(W1 x)). The results travel while the
 * next chunk is computed, or as the GEMM stores them (moert_wire_choose_output). */
static moert_status compute_chunk(moert_pass *pass, const moert_row_groups *part) {
    moert_layer *layer = pass->layer;
    moert_result y;
    moert_expert_gemm second;
    moert_phase_set(MOERT_PHASE_EXPERTS);
    if (part->end == part->first)
        return moert_pass_activate(pass, part); /* this chunk has no experts: only allocates v and
                                                   h */
    MOERT_TRY(
        moert_probe_take_window(pass, MOERT_PROBE_ROWS, pass->x, layer->choices.forth.bytes, part));
    MOERT_TRY(moert_probe_take_window(pass, MOERT_PROBE_PROB, pass->prob, sizeof(float), part));
    MOERT_TRY(moert_pass_activate(pass, part));
    MOERT_TRY(moert_wire_choose_output(pass, true, &y));
    MOERT_TRY(moert_experts_gemm(pass, MOERT_GEMM_FORWARD, BLOCK_EXPERT_OUT, part, &y, &second));
    MOERT_TRY(moert_gemm_run(&second.gemm));
    const moert_scaled_bias biases = moert_experts_biases(pass, part, &y.rows);
    if (layer->choices.biases)
        MOERT_TRY(moert_scaled_bias_forward(&biases));
    MOERT_TRY(moert_probe_take_results(pass, MOERT_PROBE_Y, &y.rows, part));
    return moert_wire_return(pass, &y);
}

/* Computes the shared expert's gate. */
static moert_status open_gate(moert_pass *pass, const moert_buffer *x) {
    moert_block *dense = pass->layer->block[BLOCK_DENSE];
    const moert_router_options gate = moert_pass_gate();
    const moert_gemm gemm = moert_pass_router_gemm(pass, 1, x, pass->gate_logits);
    MOERT_TRY(moert_block_gemm(dense, DENSE_SHARED_GATE, &gemm));
    return moert_router_forward(pass->layer->mesh->device, &gate, pass->batch.tokens,
                                pass->gate_logits, NULL, &pass->gate);
}

/* Uses scratch buffers for v and h of the shared expert if the backward recomputes them. */
static moert_status take_shared(moert_pass *pass) {
    if (!pass->layer->options.recompute_experts)
        return MOERT_OK;
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_SHARED_V, &pass->shared_v));
    return moert_pass_scratch(pass, MOERT_USE_SHARED_H, &pass->shared_h);
}

moert_status moert_pass_activate_shared(moert_pass *pass) {
    MOERT_TRY(take_shared(pass));
    const moert_dense_glu glu = moert_pass_shared_expert(pass);
    return moert_dense_glu_activate(&glu);
}

/* The shared expert's output for all tokens of this rank, while rows travel. */
static moert_status compute_shared_expert(moert_pass *pass) {
    if (pass->layer->options.shared_intermediate == 0)
        return MOERT_OK;
    moert_phase_set(MOERT_PHASE_SHARED_EXPERT);
    if (pass->layer->options.shared_gate)
        MOERT_TRY(open_gate(pass, pass->input));
    MOERT_TRY(take_shared(pass));
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_SHARED_Y, &pass->shared_result));
    const moert_dense_glu glu = moert_pass_shared_expert(pass);
    return moert_dense_glu_forward(&glu, pass->shared_result);
}

static moert_status send_clones(moert_pass *pass) {
    return moert_clones_send(pass->layer);
}

static moert_status take_clones(moert_pass *pass) {
    return moert_clones_take(pass->layer);
}

/* Begins the plan. The device packs x while the host computes the plan. */
static moert_status begin_plan(moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    return moert_exchange_begin_plan(
        layer->mesh->exchange,
        &(moert_exchange_slots){.index = pass->index,
                                .tokens = pass->batch.tokens,
                                .topk = layer->options.router.topk,
                                .experts = layer->options.router.experts,
                                .placement = layer->placement},
        pass->status);
}

static moert_status pack(moert_pass *pass) {
    return moert_wire_pack(pass, pass->input, pass->batch.bf16, &pass->packed);
}

/* Ends the plan and starts the dispatch of x. Reserves the window of the results. */
static moert_status dispatch(moert_pass *pass) {
    moert_layer *layer = pass->layer;
    moert_exchange *exchange = layer->mesh->exchange;
    MOERT_TRY(moert_exchange_end_plan(exchange, pass->status, &pass->plan));
    moert_row_peak_add(&pass->peak, pass->plan->plan->rows, pass->plan->plan->largest_rows);
    MOERT_TRY(moert_wire_back(pass, true));
    if (layer->choices.chunks)
        moert_exchange_cut(
            exchange, pass->plan,
            moert_exchange_choose_chunks(pass->plan, layer->choices.forth.width * sizeof(float)));
    const moert_transfer there = {.plan = pass->plan,
                                  .window = pass->x,
                                  .slots = pass->prob,
                                  .source = pass->packed,
                                  .slot_source = pass->weight};
    return moert_exchange_dispatch_start(exchange, &there, MOERT_OK);
}

static moert_status compute_experts(moert_pass *pass) {
    return moert_pass_each_chunk(pass, compute_chunk);
}

static moert_status combine(moert_pass *pass) {
    return moert_exchange_combine_finish(pass->layer->mesh->exchange, &pass->back, pass->status);
}

/* y = the combined results, plus the shared expert's. */
static moert_status finish(moert_pass *pass) {
    MOERT_TRY(moert_wire_round(pass));
    MOERT_TRY(moert_probe_close(pass, true));
    return pass->layer->options.shared_intermediate > 0
               ? moert_add(pass->batch.tokens * pass->layer->options.hidden, pass->shared_result,
                           pass->result)
               : MOERT_OK;
}

static const moert_stage stages[] = {{send_clones, MOERT_STAGE_JOINT},
                                     {route, MOERT_STAGE_LOCAL},
                                     {begin_plan, MOERT_STAGE_JOINT},
                                     {pack, MOERT_STAGE_LOCAL},
                                     {dispatch, MOERT_STAGE_AGREED},
                                     {compute_shared_expert, MOERT_STAGE_LOCAL},
                                     {take_clones, MOERT_STAGE_ALWAYS},
                                     {compute_experts, MOERT_STAGE_JOINT},
                                     {moert_wire_target, MOERT_STAGE_LOCAL},
                                     {combine, MOERT_STAGE_AGREED},
                                     {finish, MOERT_STAGE_LOCAL}};

moert_status moert_layer_forward(moert_layer *layer, const moert_batch *batch,
                                 const moert_buffer *x, moert_buffer *y, moert_pass **pass) {
    moert_pass *taken = NULL;
    MOERT_REQUIRE(layer);
    MOERT_TRY(moert_pass_take(layer, &taken));
    taken->input = x;
    taken->result = y;
    taken->status = take_batch(taken, batch, pass == NULL, x, y);
    const moert_status status = moert_pass_run(taken, stages, MOERT_COUNT(stages));
    if (!taken->batch.forward_only)
        taken->state = PASS_READY;
    if (status == MOERT_OK && pass != NULL)
        *pass = taken;
    else
        moert_pass_destroy(taken);
    return status;
}
