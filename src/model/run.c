/* Creates runs, and returns their results: logits and counts. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "model/sizes.h"

static moert_status create(moert_run *run, moert_model_layer *layers) {
    const moert_model_config *c = run->config;
    const size_t experts = c->router.experts, nodes = moert_comm_node_count(run->mesh->experts),
                 moe_layers = run->model->moe_layers;
    MOERT_TRY(moert_documents_create(run->device, &run->documents));
    run->activation_count = moert_model_recomputes(run->model) ? 1 : run->layers;
    MOERT_TRY(MOERT_NEW_ARRAY(&run->activations, run->activation_count));
    MOERT_TRY(MOERT_NEW_ARRAY(&run->layer, run->layers));
    MOERT_TRY(MOERT_NEW_ARRAY(&run->moe, run->layers));
    for (size_t i = 0, moe = 0; i < run->layers; i++) {
        moert_run_layer *layer = &run->layer[i];
        layer->of = &layers[i];
        layer->activations = &run->activations[i % run->activation_count];
        if (!layers[i].is_dense)
            run->moe[moe++] = layer;
    }
    MOERT_TRY(MOERT_NEW_ARRAY(&run->counts, moe_layers * experts));
    MOERT_TRY(MOERT_NEW_ARRAY(&run->own_counts, moe_layers * experts));
    return nodes > 1 ? MOERT_NEW_ARRAY(&run->node_counts, moe_layers * nodes * experts) : MOERT_OK;
}

moert_status moert_run_create_of(moert_model *model, moert_model_layer *layers, size_t count,
                                 moert_run **run) {
    moert_run *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->model = model;
    made->mesh = model->mesh;
    made->device = model->device;
    made->config = &model->config;
    made->outer = model->outer;
    made->layers = count;
    MOERT_TRY_OR(fail, create(made, layers));
    *run = made;
    return MOERT_OK;
fail:
    moert_run_destroy(made);
    return status;
}

moert_status moert_run_create(moert_model *model, moert_run **run) {
    return moert_run_create_of(model, model->layer, model->config.layers, run);
}

moert_model *moert_run_model(const moert_run *run) {
    return run->model;
}

void moert_run_end(moert_run *run) {
    for (size_t i = 0; i < run->layers; i++)
        moert_model_discard(&run->layer[i]);
}

void moert_run_destroy(moert_run *run) {
    static moert_buffer_table *const of_run[] = {moert_run_rows_buffers, moert_run_batch_buffers,
                                                 moert_run_backward_buffers,
                                                 moert_run_head_buffers};
    if (run == NULL)
        return;
    for (size_t i = 0; run->layer != NULL && i < run->layers; i++) {
        moert_model_discard(&run->layer[i]);
        moert_buffer_table_free(moert_run_layer_buffers, &run->layer[i]);
        moert_buffer_table_free(moert_run_moe_buffers, &run->layer[i]);
        moert_buffers_destroy(run->layer[i].cache, MOERT_COUNT(run->layer[i].cache));
    }
    for (size_t i = 0; run->activations != NULL && i < run->activation_count; i++) {
        moert_model_activations *a = &run->activations[i];
        moert_buffer_table_free(moert_activation_buffers, a);
        moert_buffer_table_free(moert_dense_buffers, a);
        moert_buffers_destroy(a->kept, MOERT_ATTENTION_MOST);
    }
    for (size_t i = 0; i < MOERT_COUNT(of_run); i++)
        moert_buffer_table_free(of_run[i], run);
    moert_buffer_table_free(moert_head_chunk_buffers, &run->head);
    moert_buffers_destroy(run->head.end, MOERT_COUNT(run->head.end));
    moert_buffers_destroy(run->head.sum, MOERT_COUNT(run->head.sum));
    moert_buffers_destroy(run->scratch, MOERT_ATTENTION_MOST);
    moert_documents_destroy(run->documents);
    MOERT_FREE(run->moe, run->layer, run->activations, run->own_counts, run->node_counts,
               run->counts, run);
}
