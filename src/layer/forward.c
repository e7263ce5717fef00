/* The layer's forward pass. */
#include "base/phase.h"
#include "layer/operand.h"
#include "layer/precision.h"
#include "layer/wire.h"
#include "nn/nn.h"

static moert_status check_batch(const moert_layer *layer, const moert_batch *batch,
                                const moert_buffer *x, const moert_buffer *y) {
    size_t bytes = batch->tokens * layer->options.hidden * sizeof(float);
    if (x == NULL || y == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "x or y of a layer is NULL; without tokens a buffer of 0 bytes will do");
    if (moert_buffer_bytes(x) < bytes || moert_buffer_bytes(y) < bytes)
        return MOERT_FAIL(ERROR_USAGE,
                          "x and y hold %zu and %zu bytes; %zu tokens of hidden size %zu need %zu",
                          moert_buffer_bytes(x), moert_buffer_bytes(y), batch->tokens,
                          layer->options.hidden, bytes);
    if ((batch->tokens > 0) != (batch->sequences > 0))
        return MOERT_FAIL(ERROR_USAGE, "a batch of %zu tokens in %zu sequences", batch->tokens,
                          batch->sequences);
    return MOERT_OK;
}

/* logits = x router^T, then the choice of experts. */
static moert_status route(moert_layer *layer, const moert_buffer *x) {
    const moert_router_options *router = &layer->options.router;
    moert_block *dense = layer->block[BLOCK_DENSE];
    size_t tokens = layer->batch.tokens, experts = router->experts, topk = router->topk;
    moert_phase_set(MOERT_PHASE_ROUTE);
    MOERT_TRY(moert_layer_activation(layer, tokens, experts, &layer->logits));
    MOERT_TRY(moert_layer_activation(layer, tokens, experts, &layer->routing.scores));
    MOERT_TRY(moert_layer_activation(layer, tokens, topk, &layer->routing.index));
    MOERT_TRY(moert_layer_activation(layer, tokens, topk, &layer->routing.weight));
    MOERT_TRY(moert_layer_activation(layer, tokens, 1, &layer->routing.lse));
    moert_gemm gemm = moert_layer_router_gemm(layer, x, layer->logits);
    gemm.bias = dense->tensor[DENSE_ROUTER_BIAS].weight;
    MOERT_TRY(moert_block_gemm(dense, DENSE_ROUTER, &gemm));
    return moert_router_forward(layer->mesh->device, router, tokens, layer->logits,
                                layer->correction, &layer->routing);
}

/* Runs a chunk's experts on its rows: out = W2 (prob * glu(W1 x)). The results travel while the
 * next chunk is computed, or as the GEMM stores them (moert_wire_results). */
static moert_status compute_chunk(moert_layer *layer, moert_transfer *back, size_t chunk,
                                  const moert_part *part) {
    moert_phase_set(MOERT_PHASE_EXPERTS);
    if (chunk == 0) { /* once per pass: round the weights, and reserve v and h of all rows */
        const size_t n = layer->plan->plan->rows * layer->options.intermediate;
        const size_t v = moert_operand_floats(moert_precision_v_type(layer), 2 * n);
        const size_t h = moert_operand_floats(moert_precision_h_type(layer), n);
        MOERT_TRY(moert_precision_refresh(layer));
        MOERT_TRY(moert_layer_activation(layer, 1, v, &layer->v));
        MOERT_TRY(moert_layer_activation(layer, 1, h, &layer->h));
    }
    if (part->end == part->first)
        return MOERT_OK;
    moert_gemm in = moert_layer_gemm(layer, MOERT_GEMM_FORWARD, BLOCK_EXPERT_IN, part);
    MOERT_TRY(moert_wire_unpack(layer, layer->x, &in.x, &in.ldx));
    in.y = layer->v;
    in.result = moert_precision_v_type(layer);
    in.gated = true;
    in.glu = (moert_glu){.form = layer->options.glu,
                         .prob = moert_window_rows(layer->prob),
                         .prob_stride = moert_window_stride(layer->prob),
                         .type = moert_precision_h_type(layer),
                         .h = layer->h};
    in.drop_v = layer->batch.forward_only;
    MOERT_TRY(moert_precision_gemm(layer, BLOCK_EXPERT_IN, &in));
    moert_gemm second = moert_layer_gemm(layer, MOERT_GEMM_FORWARD, BLOCK_EXPERT_OUT, part);
    second.x = layer->h;
    second.bias = NULL;
    MOERT_TRY(moert_wire_results(layer, back, true, &second));
    MOERT_TRY(moert_precision_gemm(layer, BLOCK_EXPERT_OUT, &second));
    const moert_scaled_bias biases = moert_layer_biases(layer, &second);
    if (layer->options.expert_biases)
        MOERT_TRY(moert_scaled_bias_forward(&biases));
    return moert_wire_return(layer, back, &second);
}

/* result[T,H] = the shared expert's output for all tokens of this rank. The shared expert needs no
 * exchange. */
static moert_status compute_shared_expert(moert_layer *layer, const moert_buffer *x,
                                          moert_buffer **result) {
    const moert_layer_options *o = &layer->options;
    moert_block *dense = layer->block[BLOCK_DENSE];
    size_t tokens = layer->batch.tokens, width = o->shared_intermediate;
    moert_mesh *mesh = layer->mesh;
    const moert_dtype type = moert_operand_type(o->dense);
    const moert_dtype from = moert_operand_between(mesh->device, type, 1, o->hidden, width);
    moert_glu_form form = o->glu;
    form.interleaved = false;
    moert_phase_set(MOERT_PHASE_SHARED_EXPERT);
    MOERT_TRY(moert_layer_activation(layer, 1, moert_operand_floats(from, tokens * 2 * width),
                                     &layer->shared_v));
    MOERT_TRY(moert_layer_activation(layer, 1, moert_operand_floats(type, tokens * width),
                                     &layer->shared_h));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_TOKENS, tokens * o->hidden, result));
    moert_gemm gemm = moert_layer_dense_gemm(layer, type, 2 * width, o->hidden);
    gemm.result = from;
    gemm.y = layer->shared_v;
    gemm.gated = true;
    gemm.glu = (moert_glu){.form = form, .type = type, .h = layer->shared_h};
    gemm.drop_v = layer->batch.forward_only;
    MOERT_TRY(
        moert_operand_take(mesh, type, tokens * o->hidden, x, MOERT_SCRATCH_ROUNDED_X, &gemm.x));
    MOERT_TRY(moert_block_gemm(dense, DENSE_SHARED_W1, &gemm));
    gemm.gated = false;
    gemm.n = o->hidden;
    gemm.k = width;
    gemm.result = MOERT_DTYPE_F32;
    gemm.x = layer->shared_h;
    gemm.y = *result;
    return moert_block_gemm(dense, DENSE_SHARED_W2, &gemm);
}

/* Makes the plan, reserves the window of the results and starts the dispatch of x. `status` is this
 * rank's status so far; all ranks of the EP group return the same status. */
static moert_status deliver(moert_layer *layer, moert_status status, const moert_buffer *x,
                            moert_transfer *back) {
    moert_mesh *mesh = layer->mesh;
    const moert_router_options *router = &layer->options.router;
    const moert_buffer *wire_rows = NULL;
    status =
        moert_exchange_begin_plan(mesh->exchange,
                                  &(moert_exchange_slots){layer->routing.index, layer->batch.tokens,
                                                          router->topk, router->experts},
                                  status);
    if (status == MOERT_OK) /* the device packs rows while the host makes the plan */
        status = moert_wire_pack(layer, x, &wire_rows);
    MOERT_TRY(moert_exchange_end_plan(mesh->exchange, status, &layer->plan));
    MOERT_TRY(moert_wire_back(layer, true, back));
    if (moert_wire_takes_chunks(&layer->options))
        moert_exchange_cut(mesh->exchange, layer->plan,
                           moert_exchange_choose_chunks(
                               layer->plan, moert_wire_width(&layer->options) * sizeof(float)));
    const moert_transfer there = {.plan = layer->plan,
                                  .window = layer->x,
                                  .slots = layer->prob,
                                  .source = wire_rows,
                                  .slot_source = layer->routing.weight};
    return moert_exchange_dispatch_start(mesh->exchange, &there, MOERT_OK);
}

moert_status moert_layer_forward(moert_layer *layer, const moert_batch *batch,
                                 const moert_buffer *x, moert_buffer *y) {
    const bool shared = layer->options.shared_intermediate > 0;
    moert_transfer back;
    moert_buffer *result = NULL; /* the shared expert's result, computed while rows travel */
    moert_status status = check_batch(layer, batch, x, y);
    moert_exchange_free_plan(layer->plan);
    layer->plan = NULL;
    layer->stage = STAGE_NOTHING;
    layer->batch = *batch;
    layer->input = x;
    moert_precision_begin(layer);
    if (status == MOERT_OK)
        status = route(layer, x);
    status = deliver(layer, status, x, &back);
    if (status != MOERT_OK)
        return moert_precision_tell_replicas(layer, status);
    if (shared)
        status = compute_shared_expert(layer, x, &result);
    status = moert_first(status, moert_layer_each_chunk(layer, &back, compute_chunk));
    back.target = y;
    /* the ranks agree on `status` in the combine */
    MOERT_TRY(moert_exchange_combine_finish(layer->mesh->exchange, &back, status));
    layer->stage = batch->forward_only ? STAGE_NOTHING : STAGE_FORWARD;
    return shared ? moert_add(batch->tokens * layer->options.hidden, result, y) : MOERT_OK;
}
