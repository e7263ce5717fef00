/*
 * The sizes of a run's buffers: activations, logits, and the model's buffers in the mesh's scratch.
 * A run allocates by these tables, and the estimate of memory adds them up.
 */
#pragma once

#include "layer/sizes.h"
#include "model/internal.h"

typedef struct moert_model_sizes {
    const moert_model_config *config;
    const moert_attention_shape *attention;
    /* NULL in an estimate, which assumes a device without tensor cores */
    const moert_device *device;
    size_t layers;         /* layers of the run */
    size_t tokens, length; /* T, S */
    moert_span span;       /* this rank's sequences among those of the batch */
    size_t chunk;          /* tokens whose logits are in memory at a time (moert_head_rows) */
    bool forward_only;
    moert_aux_form aux_form;
} moert_model_sizes;

moert_model_sizes moert_run_sizes(const moert_run *run);

/* Buffers of a run: needed by every run (rows), by a run of all layers (batch), by a backward, and
 * by the head. */
moert_buffer_table moert_run_rows_buffers, moert_run_batch_buffers, moert_run_backward_buffers,
    moert_run_head_buffers;
/* Buffers of a run's head (moert_head_buffers) if logits are computed in chunks. */
moert_buffer_table moert_head_chunk_buffers;
/* Buffers of a run's layers (moert_run_layer): of every layer, and additional ones of MoE
 * layers. */
moert_buffer_table moert_run_layer_buffers, moert_run_moe_buffers;
/* Activations (moert_model_activations): of every layer, and additional ones of a dense GLU. */
moert_buffer_table moert_activation_buffers, moert_dense_buffers;

/* The offset of layer `layer` in run->loss_inputs (losses.c), with `sums` = sequences x E. */
static inline size_t moert_loss_inputs_at(size_t tokens, size_t sums, size_t layer) {
    return tokens + layer * (tokens + 2 * sums);
}
/* The number of floats in all buffers of rows[MOERT_ATTENTION_MOST]. */
size_t moert_model_rows_floats(const moert_model_rows *rows, size_t tokens);
/* The sizes of the GLU of a dense layer. */
moert_glu_sizes moert_model_glu_sizes(const moert_model_sizes *sizes);
/* The number of sums [V,H] over sequences that need memory if logits are computed in chunks.
 * `direct` further sums lie in the block's nodes. */
size_t moert_head_sums(moert_span span, size_t direct);
/* The number of rows of a tied embedding whose gradients are summed at a time. */
size_t moert_head_tied_rows(const moert_model_sizes *sizes);
/* Raises floats[] to the scratch sizes that a model's replicated parts need. */
void moert_model_scratch(const moert_model_sizes *sizes, size_t floats[MOERT_SCRATCHES]);

/*
 * Bytes of the rounded and prepacked copies of weights, if each weight is used in `times` forwards
 * and dgrads before it changes: of the experts and of the router of a MoE layer, of a layer's
 * attention, of a dense GLU, of the head. `layer`: the index of the layer. `keeps_bf16`: the recipe
 * keeps the layer in bf16.
 */
size_t moert_copies_of_experts(const moert_layer_sizes *sizes, size_t times);
size_t moert_copies_of_router(const moert_layer_sizes *sizes, size_t times, bool keeps_bf16);
size_t moert_copies_of_attention(const moert_model_sizes *sizes, size_t layer, size_t times);
size_t moert_copies_of_dense(const moert_model_sizes *sizes, size_t times);
size_t moert_copies_of_head(const moert_model_sizes *sizes, size_t times);

/* The memory of an audit (audit.h) on a rank, without digests of rows. `experts`: number of experts
 * in the second copy of a layer. `nodes`: tree nodes of the gradients' sums. `adds`: backwards add
 * to earlier gradients. */
size_t moert_audit_bytes(const moert_model_sizes *model, const moert_layer_sizes *layer,
                         size_t experts, size_t nodes, bool adds);
