/* The passes of a layer: their memory, their GEMM descriptors, and the loop over chunks. */
#include <stdlib.h>

#include "base/memory.h"
#include "layer/experts.h"
#include "layer/operand.h"

/* ---- memory ---- */

static moert_status create_windows(moert_pass *pass) {
    const moert_layer_options *options = &pass->layer->options;
    moert_exchange *exchange = pass->layer->mesh->exchange;
    const size_t width = pass->layer->choices.forth.width;
    if (pass->x == NULL)
        MOERT_TRY(moert_window_create(exchange, width, &pass->x));
    if (pass->prob == NULL)
        MOERT_TRY(moert_window_create(exchange, 1, &pass->prob));
    return options->deferred_wgrad && pass->dy == NULL
               ? moert_window_create(exchange, width, &pass->dy)
               : MOERT_OK;
}

static moert_status add_pass(moert_layer *layer) {
    moert_pass_list *list = layer->passes;
    MOERT_TRY(MOERT_GROW(&list->pass, &list->room, list->count + 1));
    if (list->pass[list->count] == NULL)
        MOERT_TRY(MOERT_NEW(&list->pass[list->count]));
    list->pass[list->count]->layer = layer;
    return create_windows(list->pass[list->count]);
}

moert_status moert_pass_take(moert_layer *layer, moert_pass **pass) {
    moert_pass_list *list = layer->passes;
    size_t i = 0;
    while (i < list->count && list->pass[i]->state != PASS_FREE)
        i++;
    if (i == list->count) {
        MOERT_TRY(moert_comm_agree(layer->mesh->world, add_pass(layer)));
        list->count++;
    }
    list->pass[i]->state = PASS_FORWARD;
    list->pass[i]->layer = layer;
    *pass = list->pass[i];
    return MOERT_OK;
}

moert_row_peak moert_layer_row_peak(const moert_layer *layer) {
    const moert_pass_list *list = layer->passes;
    moert_row_peak most = {0};
    for (size_t i = 0; i < list->count; i++)
        moert_row_peak_add(&most, list->pass[i]->peak.rows, list->pass[i]->peak.largest);
    return most;
}

void moert_layer_share_passes(moert_layer *layer, const moert_layer *with) {
    moert_pass_leave_list(layer);
    layer->passes = with->passes;
    layer->passes->layers++;
}

void moert_pass_destroy(moert_pass *pass) {
    if (pass == NULL)
        return;
    moert_exchange_free_plan(pass->plan);
    pass->plan = NULL;
    pass->layer->lost_wgrad |= pass->state == PASS_OWES_WGRAD;
    pass->state = PASS_FREE;
}

static void free_pass(moert_pass *pass) {
    moert_pass_destroy(pass);
    if (pass->layer->options.deferred_wgrad)
        moert_window_destroy(pass->dy);
    moert_window_destroy(pass->prob);
    moert_window_destroy(pass->x);
    if (pass->layer->options.recompute_experts) /* v and h lie in scratch */
        pass->v = pass->h = pass->shared_v = pass->shared_h = NULL;
    moert_buffer_table_free(moert_pass_routing_buffers, pass);
    moert_buffer_table_free(moert_pass_hidden_buffers, pass);
    free(pass);
}

void moert_pass_leave_list(moert_layer *layer) {
    moert_pass_list *list = layer->passes;
    if (list == NULL || --list->layers > 0)
        return;
    for (size_t i = 0; i < list->room; i++)
        if (list->pass[i] != NULL) {
            list->pass[i]->layer = layer; /* the layer that used the pass may be destroyed */
            free_pass(list->pass[i]);
        }
    MOERT_FREE(list->pass, list);
}

/* ---- results ---- */

const moert_routing *moert_pass_routing(const moert_pass *pass) {
    return &pass->routing;
}

const moert_buffer *moert_pass_get(const moert_pass *pass, moert_pass_view which) {
    if (pass == NULL || pass->state == PASS_FREE || (unsigned)which >= MOERT_PASS_VIEWS)
        return NULL;
    const moert_routing *routing = &pass->routing;
    const moert_buffer *const views[MOERT_PASS_VIEWS] = {[MOERT_PASS_INDEX] = routing->index,
                                                         [MOERT_PASS_WEIGHT] = routing->weight,
                                                         [MOERT_PASS_LOGITS] = pass->logits,
                                                         [MOERT_PASS_SCORES] = routing->scores,
                                                         [MOERT_PASS_LSE] = routing->lse};
    return views[which];
}

const uint64_t *moert_pass_expert_counts(const moert_pass *pass) {
    return pass != NULL && pass->plan != NULL ? pass->plan->plan->expert_counts : NULL;
}

const uint64_t *moert_pass_rank_counts(const moert_pass *pass) {
    return pass != NULL && pass->plan != NULL ? pass->plan->plan->counts : NULL;
}

/* ---- descriptors ---- */

moert_row_groups moert_pass_groups(const moert_pass *pass) {
    return (moert_row_groups){.ends = pass->plan->ends,
                              .count = pass->layer->local_experts,
                              .rows = pass->plan->plan->rows};
}

bool moert_pass_drops_v(const moert_pass *pass) {
    return pass->state != PASS_BACKWARD &&
           (pass->batch.forward_only || pass->layer->options.recompute_experts);
}

moert_dense_glu moert_pass_shared_expert(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const bool rounds = layer->choices.quantizes && !pass->batch.bf16_operands;
    return (moert_dense_glu){.mesh = layer->mesh,
                             .block = layer->block[BLOCK_DENSE],
                             .first = DENSE_SHARED_W1,
                             .hidden = o->hidden,
                             .width = o->shared_intermediate,
                             .form = o->glu,
                             .type = layer->choices.shared,
                             .recipe = rounds ? &layer->choices.recipe : NULL,
                             .x = pass->input,
                             .v = pass->shared_v,
                             .h = pass->shared_h,
                             .prob = o->shared_gate ? pass->gate.weight : NULL,
                             .batch = pass->batch,
                             .drop_v = moert_pass_drops_v(pass)};
}

moert_router_options moert_pass_gate(void) {
    moert_router_options gate = MOERT_ROUTER_OPTIONS_INIT;
    gate.experts = gate.topk = gate.group_best = 1;
    gate.score = MOERT_SCORE_SIGMOID;
    return gate;
}

moert_gemm moert_pass_router_gemm(const moert_pass *pass, size_t experts, const moert_buffer *x,
                                  moert_buffer *logits) {
    const moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const moert_batch *batch = &pass->batch;
    return (moert_gemm){.groups = {batch->ends, batch->sequences, batch->tokens, .shared = true},
                        .n = experts,
                        .k = o->hidden,
                        .x = {.buffer = (moert_buffer *)x},
                        .y = {.buffer = logits},
                        .more = layer->choices.splits_router ? &layer->mesh->splitting : NULL};
}

/* ---- stages ---- */

moert_status moert_pass_run(moert_pass *pass, const moert_stage *stages, size_t count) {
    bool together = false; /* true once the whole EP group has failed */
    for (size_t i = 0; i < count; i++) {
        const moert_stage_kind kind = stages[i].kind;
        if (pass->status != MOERT_OK && kind != MOERT_STAGE_ALWAYS &&
            (together || kind == MOERT_STAGE_LOCAL))
            continue;
        const moert_status status = stages[i].run(pass);
        if (kind == MOERT_STAGE_AGREED && status != MOERT_OK) {
            together = true;
            pass->status = status;
        }
        moert_note(&pass->status, status);
    }
    return pass->status;
}

moert_status moert_pass_each_chunk(moert_pass *pass, moert_chunk_work *work) {
    moert_exchange *exchange = pass->layer->mesh->exchange;
    for (size_t c = 0; c < pass->plan->chunks; c++) {
        const moert_chunk chunk = moert_exchange_chunk(pass->plan, c);
        moert_row_groups part = moert_pass_groups(pass);
        part.first = chunk.first;
        part.end = chunk.end;
        part.first_row = chunk.first_row;
        part.end_row = chunk.end_row;
        moert_note(&pass->status, moert_exchange_dispatch_wait(exchange, c));
        if (pass->status == MOERT_OK)
            pass->status = work(pass, &part);
        moert_note(&pass->status, moert_exchange_combine_send(exchange, &pass->back, c));
    }
    return pass->status;
}
