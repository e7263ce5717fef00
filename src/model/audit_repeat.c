/* The second run of a part, on the tokens and experts of other ranks. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "layer/ship.h"
#include "model/audit_internal.h"
#include "model/audit_points.h"
#include "model/sizes.h"
#include "model/sublayer.h"
#include "moert/quantize.h"

/* ---- sending work to the rank that repeats it ---- */

/* Parcels to and from the ranks at a distance in their rings. */
typedef struct handing {
    moert_audit *audit;
    size_t distance;
} handing;

static moert_parcel of_device(const moert_buffer *buffer, size_t at, size_t floats) {
    return (moert_parcel){.count = floats, .device = {(moert_buffer *)buffer, MOERT_DTYPE_F32, at}};
}

/* A parcel of 32-bit words of host memory. */
static moert_parcel of_host(const int32_t *values, size_t count) {
    return (moert_parcel){.count = count, .host = (float *)(void *)values};
}

/* Adds two parcels: `source`, sent to the rank that repeats this rank's work of a class, and
 * `target`, received from the rank whose work this rank repeats. */
static moert_status add(const handing *h, moert_audit_class class, moert_parcel source,
                        moert_parcel target) {
    moert_parcels *out = &h->audit->out, *in = &h->audit->in;
    const size_t rank = moert_comm_rank(h->audit->model->mesh->world);
    source.peer = moert_audit_repeater(h->audit, class, rank, h->distance);
    target.peer = moert_audit_repeated(h->audit, class, rank, h->distance);
    MOERT_TRY(MOERT_GROW(&out->list, &out->room, out->count + 1));
    MOERT_TRY(MOERT_GROW(&in->list, &in->room, in->count + 1));
    out->list[out->count++] = source;
    in->list[in->count++] = target;
    return MOERT_OK;
}

/* Sends and receives all parcels that were added. Collective. */
static moert_status ship(const handing *h, moert_status status) {
    moert_audit *audit = h->audit;
    status = moert_ship(audit->model->mesh->world, &audit->out, &audit->in, status);
    audit->out.count = audit->in.count = 0;
    return status;
}

/* ---- weights ---- */

static moert_status copy_weights(const moert_block *from, moert_block *to) {
    moert_block_weights_changed(to);
    return from->floats > 0
               ? moert_buffer_copy(from->weight, 0, to->weight, 0, from->floats * sizeof(float))
               : MOERT_OK;
}

/* Places the experts of each rank on the rank that repeats its work. */
static moert_status place(moert_audit *audit, size_t distance) {
    const moert_mesh *mesh = audit->model->mesh;
    const moert_expert_map *own = moert_layer_placement(moert_audit_layer_of(audit)->moe);
    const size_t ranks = moert_comm_size(mesh->world),
                 slots = moert_comm_size(mesh->experts) * audit->slots;
    uint32_t *expert = NULL;
    MOERT_TRY(moert_comm_agree(mesh->world, moert_alloc(&expert, slots, sizeof *expert)));
    for (size_t i = 0; i < slots; i++)
        expert[i] = MOERT_LAYER_NO_EXPERT;
    for (size_t r = 0; r < ranks; r++) {
        const size_t to = moert_audit_repeater(audit, MOERT_AUDIT_EXPERTS, r, distance);
        const size_t member = audit->place[r].member,
                     count = moert_expert_map_slots_of(own, member);
        for (size_t s = 0; s < count; s++)
            expert[audit->place[to].member * audit->slots + s] =
                own->expert[own->first[member] + s];
    }
    const moert_status status = moert_layer_place(audit->copy.moe, expert);
    free(expert);
    return status;
}

/* Adds parcels of the experts' weights or, with `before`, of the gradients to which the backward
 * adds. */
static moert_status add_experts(const handing *h, bool before) {
    const moert_audit *audit = h->audit;
    moert_layer *own = moert_audit_layer_of(audit)->moe;
    const moert_expert_map *placement = moert_layer_placement(own);
    const size_t rank = moert_comm_rank(audit->model->mesh->world),
                 local = moert_layer_local_experts(own);
    const size_t from = moert_audit_repeated(audit, MOERT_AUDIT_EXPERTS, rank, h->distance);
    const size_t others = moert_expert_map_slots_of(placement, audit->place[from].member);
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS; b++) {
        const moert_block *block = moert_layer_block(own, b),
                          *again = moert_layer_block(audit->copy.moe, b);
        const moert_buffer *source = before ? audit->before[b - 1] : block->weight,
                           *target = before ? again->gradient : again->weight;
        for (size_t i = 0; i < block->count; i++) {
            const size_t floats = block->tensor[i].elements / moert_max(local, 1);
            MOERT_TRY(add(h, MOERT_AUDIT_EXPERTS,
                          of_device(source, block->tensor[i].offset, local * floats),
                          of_device(target, again->tensor[i].offset, others * floats)));
        }
    }
    return MOERT_OK;
}

/* ---- batches ---- */

/* Gives the second run its own batch, with the settings of the first run. */
static moert_status take_batch(moert_audit *audit, const moert_batch *batch) {
    const moert_run *first = audit->run;
    moert_run *run = audit->repeat;
    run->batch = *batch;
    run->length = first->length;
    run->losses = first->losses;
    const moert_model_sizes sizes = moert_run_sizes(run);
    MOERT_TRY(moert_buffer_table_reserve(moert_run_rows_buffers, run->device, &sizes, run, false));
    MOERT_TRY(
        moert_buffer_table_reserve(moert_run_backward_buffers, run->device, &sizes, run, false));
    MOERT_TRY(moert_buffer_write_ends(batch->sequences, first->length, run->ends));
    run->batch.ends = run->ends;
    run->packed = first->packed;
    run->factor = first->factor;
    run->slope = first->slope;
    run->counted = first->counted;
    run->accumulate = first->accumulate;
    run->rows = first->rows;
    return MOERT_OK;
}

/* Reserves the buffers for one layer of the batch. */
static moert_status reserve_layer(moert_run *run) {
    MOERT_TRY(moert_model_reserve_layer(run, run->layer));
    return moert_model_reserve_rows(run, run->model->attention.scratch, run->scratch);
}

/* Copies the gradient that a sublayer's backward reads into the run, also rounded to bf16 if
 * needed. */
static moert_status take_gradient(moert_run *run, const moert_buffer *d) {
    const size_t n = run->batch.tokens * run->config->hidden;
    if (n == 0)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_copy(d, 0, run->d, 0, n * sizeof(float)));
    return run->bf16 != NULL ? moert_model_round(run, run->config->hidden, run->d, run->bf16)
                             : MOERT_OK;
}

/* The batch of the rank whose tokens this rank repeats. */
static moert_batch other_batch(const moert_audit *audit, size_t distance) {
    const moert_run *first = audit->run;
    const moert_comm *world = first->mesh->world;
    moert_batch other = first->batch;
    other.token = NULL; /* padding is computed like other tokens */
    moert_model_partition(
        other.total_sequences,
        moert_audit_repeated(audit, MOERT_AUDIT_TOKENS, moert_comm_rank(world), distance),
        moert_comm_size(world), &other.first_sequence, &other.sequences);
    other.tokens = other.sequences * first->length;
    return other;
}

/* ---- attention and dense layers ---- */

/* The inputs of a second run on another rank's tokens. */
typedef struct tokens_work {
    moert_batch batch;
    int32_t *positions; /* positions of the tokens in their documents, or NULL */
    int32_t *input, *target;
} tokens_work;

static moert_status begin_tokens(moert_audit *audit, size_t distance, tokens_work *work) {
    work->batch = other_batch(audit, distance);
    const size_t floats = work->batch.tokens * audit->model->config.hidden;
    MOERT_TRY(moert_model_reserve(audit->model, floats, &audit->x));
    MOERT_TRY(moert_model_reserve(audit->model, floats, &audit->received));
    return audit->run->packed ? MOERT_NEW_ARRAY(&work->positions, work->batch.tokens) : MOERT_OK;
}

/* Adds parcels of the part's input x[T,H] and of a gradient d[T,H]. */
static moert_status add_rows(const handing *h, const tokens_work *work, const moert_buffer *x,
                             const moert_buffer *d) {
    const moert_audit *audit = h->audit;
    const size_t width = audit->model->config.hidden, own = audit->run->batch.tokens * width,
                 others = work->batch.tokens * width;
    MOERT_TRY(add(h, MOERT_AUDIT_TOKENS, of_device(x, 0, own), of_device(audit->x, 0, others)));
    return add(h, MOERT_AUDIT_TOKENS, of_device(d, 0, own), of_device(audit->received, 0, others));
}

/* Runs attention, and the MLP of a dense layer, on the rows in audit->x and audit->received. */
static moert_status run_tokens(moert_audit *audit, const tokens_work *work) {
    moert_run *run = audit->repeat;
    moert_run_layer *layer = run->layer;
    MOERT_TRY(take_batch(audit, &work->batch));
    if (work->positions != NULL)
        MOERT_TRY(moert_documents_set(run->documents, run->batch.sequences, run->length,
                                      work->positions));
    MOERT_TRY(reserve_layer(run));
    MOERT_TRY(moert_model_attention_forward(run, layer, audit->x));
    if (layer->of->is_dense)
        MOERT_TRY(moert_model_mlp_forward(run, layer));
    MOERT_TRY(take_gradient(run, audit->received));
    MOERT_TRY(moert_block_begin(layer->of->attention, &run->batch, run->accumulate));
    if (layer->of->is_dense)
        MOERT_TRY(moert_model_mlp_backward(run, layer, run->accumulate));
    return moert_model_attention_backward(run, layer, audit->x);
}

/* ---- the MoE layer ---- */

static moert_status repeat_experts(moert_audit *audit) {
    moert_run *run = audit->repeat;
    moert_run_layer *layer = run->layer;
    const moert_run_layer *own = &audit->run->layer[audit->part];
    const size_t floats = audit->run->batch.tokens * run->config->hidden;
    const moert_model_sizes sizes = moert_run_sizes(audit->run);
    MOERT_TRY(take_batch(audit, &audit->run->batch));
    MOERT_TRY(reserve_layer(run));
    MOERT_TRY(moert_buffer_table_reserve(moert_run_batch_buffers, run->device, &sizes, run, false));
    if (floats > 0)
        MOERT_TRY(moert_buffer_copy(own->activations->middle, 0, layer->activations->middle, 0,
                                    floats * sizeof(float)));
    MOERT_TRY(moert_model_mlp_forward(run, layer));
    MOERT_TRY(moert_model_take_loss_inputs(run, layer));
    MOERT_TRY(take_gradient(run, audit->d[0]));
    MOERT_TRY(moert_block_begin(layer->of->attention, &run->batch, run->accumulate));
    MOERT_TRY(moert_model_mlp_backward(run, layer, run->accumulate));
    moert_model_discard(layer);
    MOERT_TRY(moert_layer_reduce_start(layer->of->moe, false));
    return moert_layer_reduce_wait(layer->of->moe);
}

/* Copies the layer's replicated weights to its second copy, and places the experts that this rank
 * repeats there. */
static moert_status take_layer(moert_audit *audit, size_t distance) {
    const moert_model_layer *layer = moert_audit_layer_of(audit);
    moert_model_layer *again = &audit->copy;
    again->index = layer->index;
    again->is_dense = layer->is_dense;
    again->moe_index = layer->moe_index;
    again->attention = moert_audit_attention(audit, layer);
    MOERT_TRY(copy_weights(layer->attention, again->attention));
    if (layer->is_dense)
        return copy_weights(layer->mlp, again->mlp);
    moert_layer_share_passes(again->moe, layer->moe);
    MOERT_TRY(place(audit, distance));
    audit->probe->closed[0] = audit->probe->closed[1] = false;
    memset(audit->probe->plant, 0, sizeof audit->probe->plant);
    moert_layer_set_probe(again->moe, audit->probe);
    return copy_weights(moert_layer_block(layer->moe, 0), moert_layer_block(again->moe, 0));
}

static moert_status add_layer(const handing *h, const tokens_work *work) {
    const moert_audit *audit = h->audit;
    const moert_model_layer *layer = moert_audit_layer_of(audit);
    if (!layer->is_dense) {
        MOERT_TRY(add_experts(h, false));
        if (audit->run->accumulate)
            MOERT_TRY(add_experts(h, true));
    }
    if (work->positions != NULL)
        MOERT_TRY(add(h, MOERT_AUDIT_TOKENS,
                      of_host(audit->run->given.positions, audit->run->batch.tokens),
                      of_host(work->positions, work->batch.tokens)));
    return add_rows(h, work, moert_model_input(audit->run, layer->index),
                    audit->d[!layer->is_dense]);
}

static moert_status repeat_layer(moert_audit *audit, size_t distance) {
    const moert_model_layer *layer = moert_audit_layer_of(audit);
    moert_comm *world = audit->model->mesh->world;
    handing h = {.audit = audit, .distance = distance};
    tokens_work work = {.positions = NULL};
    moert_status status;
    MOERT_TRY_OR(done, take_layer(audit, distance));
    MOERT_TRY_OR(done, moert_comm_agree(world, begin_tokens(audit, distance, &work)));
    MOERT_TRY_OR(done, ship(&h, add_layer(&h, &work)));
    if (!layer->is_dense) {
        moert_layer_weights_changed(audit->copy.moe);
        MOERT_TRY_OR(done, repeat_experts(audit));
    }
    status = moert_comm_agree(world, run_tokens(audit, &work));
done:
    free(work.positions);
    return status;
}

/* ---- outside of the layers ---- */

static moert_status begin_outside(moert_audit *audit, size_t distance, tokens_work *work) {
    MOERT_TRY(copy_weights(audit->run->outer, audit->outer));
    if (audit->run->accumulate && moert_comm_size(audit->outer->comm) == 1)
        MOERT_TRY(moert_buffer_copy(audit->before_outer, 0, audit->outer->gradient, 0,
                                    moert_buffer_bytes(audit->before_outer)));
    MOERT_TRY(begin_tokens(audit, distance, work));
    MOERT_TRY(MOERT_NEW_ARRAY(&work->input, work->batch.tokens));
    return MOERT_NEW_ARRAY(&work->target, work->batch.tokens);
}

static moert_status add_outside(const handing *h, const tokens_work *work) {
    const moert_run *first = h->audit->run;
    const size_t own = first->batch.tokens, others = work->batch.tokens;
    MOERT_TRY(
        add(h, MOERT_AUDIT_TOKENS, of_host(first->given.input, own), of_host(work->input, others)));
    MOERT_TRY(add(h, MOERT_AUDIT_TOKENS, of_host(first->given.target, own),
                  of_host(work->target, others)));
    return add_rows(h, work, first->layer[first->layers - 1].out, first->d);
}

/* Runs embedding, last norm and head on another rank's tokens. */
static moert_status run_outside(moert_audit *audit, const tokens_work *work) {
    moert_run *run = audit->repeat;
    const moert_batch *batch = &work->batch;
    MOERT_TRY(take_batch(audit, batch));
    const moert_model_sizes sizes = moert_run_sizes(run);
    MOERT_TRY(moert_buffer_table_reserve(moert_run_batch_buffers, run->device, &sizes, run, false));
    MOERT_TRY(moert_model_upload_tokens(run, work->input, work->target));
    MOERT_TRY(moert_model_embed(run));
    MOERT_TRY(moert_model_normalise(run, run->outer, OUTER_NORM, audit->x, run->final_normed,
                                    run->final_rstd));
    MOERT_TRY(moert_audit_at(run, NULL, MOERT_AUDIT_NORM_DONE));
    MOERT_TRY(moert_head_loss(run));
    MOERT_TRY(moert_model_normalise_backward(run, run->outer, OUTER_NORM, audit->x, run->final_rstd,
                                             false));
    MOERT_TRY(moert_audit_at(run, NULL, MOERT_AUDIT_HEAD_DONE));
    MOERT_TRY(take_gradient(run, audit->received));
    return moert_model_embed_backward(run);
}

/* Exchanges the logits buffers of the two runs. The first run no longer needs its logits, so the
 * second run may overwrite them. */
static void swap_logits(moert_audit *audit) {
    moert_buffer *const logits = audit->run->logits;
    audit->run->logits = audit->repeat->logits;
    audit->repeat->logits = logits;
    audit->run->logits_rows = audit->repeat->logits_rows = 0;
}

static moert_status repeat_outside(moert_audit *audit, size_t distance) {
    moert_comm *world = audit->model->mesh->world;
    handing h = {.audit = audit, .distance = distance};
    tokens_work work = {.positions = NULL};
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(world, begin_outside(audit, distance, &work)));
    MOERT_TRY_OR(done, ship(&h, add_outside(&h, &work)));
    swap_logits(audit);
    status = moert_comm_agree(world, run_outside(audit, &work));
    swap_logits(audit);
done:
    MOERT_FREE(work.positions, work.input, work.target);
    return status;
}

/* ---- sites of kind RESTS ---- */

/* Sets the second run's hash of site `rests` to the first run's hash of site `producer` in
 * `part`. */
static void expect(moert_audit *audit, moert_audit_site rests, size_t part,
                   moert_audit_site producer) {
    const uint64_t *hash = audit->hash + (part * MOERT_AUDIT_SITES + producer) * audit->slots;
    audit->again_hash[rests * audit->slots] = *hash;
}

/* Fills in the hashes that sites of kind RESTS should have. */
static void expect_rests(moert_audit *audit) {
    const size_t part = audit->part, layers = audit->model->config.layers;
    if (part == layers) {
        expect(audit, MOERT_AUDIT_D_EMBEDDED, 0, MOERT_AUDIT_D_INPUT);
        expect(audit, MOERT_AUDIT_LAST, layers - 1, MOERT_AUDIT_OUT);
        return;
    }
    expect(audit, MOERT_AUDIT_INPUT, part > 0 ? part - 1 : layers,
           part > 0 ? MOERT_AUDIT_OUT : MOERT_AUDIT_EMBEDDED);
    expect(audit, MOERT_AUDIT_RESIDUAL, part, MOERT_AUDIT_MIDDLE);
    expect(audit, MOERT_AUDIT_D_RESULT, part + 1,
           part + 1 < layers ? MOERT_AUDIT_D_INPUT : MOERT_AUDIT_D_HEAD);
    /* all ranks have the same gradient of the auxiliary loss */
    expect(audit, MOERT_AUDIT_AUX, part, MOERT_AUDIT_AUX);
    /* The experts' gradients should be those that the previous micro-batch left, unless these have
     * been rounded to bf16. */
    const bool *taken = audit->taken + part * MOERT_AUDIT_SITES;
    const moert_model_layer *layer = &audit->model->layer[part];
    const bool chained =
        !layer->is_dense && audit->left_step && moert_layer_block(layer->moe, 1)->kept == NULL;
    const uint64_t *left =
        chained ? audit->left + part * audit->slots
                : moert_audit_hashes(audit, false) + MOERT_AUDIT_ADDEND * audit->slots;
    if (taken[MOERT_AUDIT_ADDEND])
        memcpy(audit->again_hash + MOERT_AUDIT_ADDEND * audit->slots, left,
               audit->slots * sizeof *left);
}

moert_status moert_audit_repeat(moert_audit *audit, size_t distance) {
    memset(audit->again_taken, 0, sizeof audit->again_taken);
    memset(audit->again_hash, 0, MOERT_AUDIT_SITES * audit->slots * sizeof *audit->again_hash);
    expect_rests(audit);
    MOERT_TRY(audit->part < audit->model->config.layers ? repeat_layer(audit, distance)
                                                        : repeat_outside(audit, distance));
    return moert_comm_agree(audit->model->mesh->world, moert_digest_flush(&audit->digests));
}
