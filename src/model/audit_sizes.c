/* Computes the memory that an audit allocates. */
#include "base/memory.h"
#include "model/sizes.h"

/* Bytes of the second copy of a MoE or dense layer without its attention: blocks, copies of
 * weights, activations. `experts` is the number of experts in the copy. With `adds`, this rank's
 * own experts' gradients from before the backward are also kept. */
static size_t kind_bytes(const moert_model_sizes *one, const moert_layer_sizes *layer,
                         size_t experts, size_t nodes, bool adds, bool moe) {
    const size_t first = moe ? MOERT_MODEL_MOE : MOERT_MODEL_DENSE,
                 end = moe ? MOERT_MODEL_SHAPES : MOERT_MODEL_MOE;
    moert_model_shapes copy, own;
    moert_layer_sizes of = *layer;
    size_t floats = 0;
    of.local = experts;
    moert_model_list_shapes(one->config, one->attention, experts, &copy);
    moert_model_list_shapes(one->config, one->attention, layer->local, &own);
    for (size_t i = first; i < end; i++) {
        const bool owned = i > MOERT_MODEL_MOE;
        floats += (owned ? 2 : 2 + nodes) * moert_block_border(&copy.of[i], 1, 1);
        floats += owned && adds ? moert_block_border(&own.of[i], 1, 1) : 0;
    }
    return floats * sizeof(float) +
           (moe ? moert_copies_of_experts(&of, 1) + moert_copies_of_router(&of, 1, false) +
                      moert_buffer_table_bytes(moert_run_moe_buffers, one)
                : moert_copies_of_dense(one, 1) +
                      moert_buffer_table_bytes(moert_dense_buffers, one));
}

/* Bytes of the second copy of embedding, last norm and head. The second run uses the logits buffer
 * of the first run. With `adds`, a run on a single rank also keeps the gradients from before the
 * loss. */
static size_t outside_bytes(const moert_model_sizes *one, const moert_block_shape *outer,
                            size_t nodes, bool adds) {
    const moert_model_config *c = one->config;
    const bool alone = nodes == 0;
    moert_model_sizes sizes = *one;
    const size_t floats = (2 + nodes + (alone && adds ? 1 : 0)) * moert_block_border(outer, 1, 1);
    size_t bytes = floats * sizeof(float) + moert_copies_of_head(one, 1) +
                   moert_buffer_table_bytes(moert_run_batch_buffers, one);
    sizes.chunk = 0;
    bytes += moert_buffer_table_bytes(moert_run_head_buffers, &sizes);
    if (one->chunk == one->tokens)
        return bytes;
    return bytes + moert_buffer_table_bytes(moert_head_chunk_buffers, one) +
           (one->length % one->chunk == 0 ? 1 : 2) * sizeof(uint32_t) +
           moert_head_sums(one->span, alone && adds ? 0 : moert_max(nodes, 1)) * c->vocabulary *
               c->hidden * sizeof(float);
}

size_t moert_audit_bytes(const moert_model_sizes *model, const moert_layer_sizes *layer,
                         size_t experts, size_t nodes, bool adds) {
    static moert_buffer_table *const tables[] = {moert_run_rows_buffers, moert_run_backward_buffers,
                                                 moert_run_layer_buffers, moert_activation_buffers};
    const moert_model_config *c = model->config;
    moert_model_sizes one = *model; /* the second run, which has one layer */
    moert_model_shapes shapes;
    const size_t moe_layers = moert_moe_layers(c);
    one.layers = 1;
    moert_model_list_shapes(c, one.attention, experts, &shapes);
    size_t floats =
        4 * one.tokens * c->hidden + /* the buffers d[0], d[1], x and received of moert_audit */
        moert_model_rows_floats(one.attention->scratch, one.tokens) +
        moert_model_rows_floats(one.attention->kept, one.tokens);
    for (size_t kind = MOERT_MODEL_ATTENTION; kind <= MOERT_MODEL_DENSE_ATTENTION; kind++)
        if (moert_model_attention_count(c, kind) > 0)
            floats += (2 + nodes) * moert_block_border(&shapes.of[kind], 1, 1);
    size_t copies = 0;
    for (size_t l = 0; l < c->layers; l++)
        copies = moert_max(copies, moert_copies_of_attention(&one, l, 1));
    size_t bytes = floats * sizeof(float) + copies +
                   outside_bytes(&one, &shapes.of[MOERT_MODEL_OUTER], nodes, adds);
    for (size_t i = 0; i < MOERT_COUNT(tables); i++)
        bytes += moert_buffer_table_bytes(tables[i], &one);
    if (moe_layers > 0)
        bytes += kind_bytes(&one, layer, experts, nodes, adds, true);
    if (moe_layers < c->layers)
        bytes += kind_bytes(&one, layer, experts, nodes, adds, false);
    return bytes;
}
