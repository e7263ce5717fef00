/*
 * The head and the cross-entropy: logits, losses, and the gradients of the head's weight and input.
 *
 *   logits = x W^T    g = gradient of the logits, in the logits' buffer    dx = g W    dW = g^T x
 *
 * If config.memory.loss_chunk is below the tokens of this rank, logits exist only for one chunk of
 * tokens of one sequence at a time. The fma chain of a sequence's dW continues from chunk to chunk,
 * so dW has the same bits as without chunks. A stack holds sums of dW over sequences, the nodes of
 * the summation tree (base/tree.h):
 *
 *   sequence 0: n(0,1)    1: n(0,2)    2: n(0,2) n(2,1)    3: n(0,4)    4: n(0,4) n(4,1) ...
 *
 * The lowest entries of the stack lie in the block's nodes, so a single node needs no further
 * memory. For a tied weight, the gradients of head and embedding are added within each sequence.
 * The embedding's gradient is known only after the whole backward, so chunked logits are then
 * recomputed.
 */
#include "base/dtype.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "model/audit_points.h"
#include "model/sizes.h"
#include "model/sublayer.h"

/* Tokens of this rank, and their rows of operands and results. */
typedef struct chunk {
    size_t first;
    moert_row_groups groups;
    moert_buffer *x, *dx, *target, *loss;
} chunk;

/* The state of one pass of the head over all tokens. */
typedef struct pass {
    moert_run *run;
    moert_gemm forward, dgrad, wgrad;
    /* derivative of the loss by each token's cross-entropy; 0: only losses are computed */
    float slope;
    bool recomputes; /* the second pass, which adds the head's gradient to the embedding's
                        gradient */
    moert_tree_node node[MOERT_TREE_MAX_NODES];
    moert_buffer *sum[MOERT_TREE_MAX_NODES], *view[MOERT_TREE_MAX_NODES];
    /* number of sums on the stack; number of sums that lie in the block's nodes */
    size_t depth, direct;
} pass;

static size_t step_of(const moert_run *run) {
    return moert_head_rows(run->config, run->batch.tokens, run->length);
}

static bool in_chunks(const moert_run *run) {
    return step_of(run) < run->batch.tokens;
}

/* ---- chunks ---- */

/* *end = a device buffer with one uint32 of value `rows`. */
static moert_status take_end(moert_run *run, size_t rows, moert_buffer **end) {
    moert_head_buffers *head = &run->head;
    const size_t i = head->end_rows[0] != 0 && head->end_rows[0] != rows;
    if (head->end_rows[i] != rows) {
        MOERT_TRY(moert_buffer_reserve(run->device, sizeof(uint32_t), &head->end[i]));
        MOERT_TRY(moert_buffer_write_ends(1, rows, head->end[i]));
        head->end_rows[i] = rows;
    }
    *end = head->end[i];
    return MOERT_OK;
}

static moert_status take_chunk(moert_run *run, size_t first, size_t rows, chunk *taken) {
    const moert_batch *batch = &run->batch;
    moert_head_buffers *head = &run->head;
    const size_t row_bytes =
        run->config->hidden * moert_dtype_bits(moert_model_type(run->model)) / 8;
    moert_model_sizes sizes = moert_run_sizes(run);
    moert_buffer *end = NULL;
    if (rows == batch->tokens) {
        *taken = (chunk){0,
                         {batch->ends, batch->sequences, batch->tokens, .shared = true},
                         run->final_normed,
                         run->dn,
                         run->targets,
                         run->token_loss};
        return MOERT_OK;
    }
    MOERT_TRY(take_end(run, rows, &end));
    sizes.chunk = rows;
    MOERT_TRY(
        moert_buffer_table_reserve(moert_head_chunk_buffers, run->device, &sizes, head, false));
    MOERT_TRY(
        moert_buffer_copy(run->final_normed, first * row_bytes, head->x, 0, rows * row_bytes));
    *taken =
        (chunk){first, {end, 1, rows, .shared = true}, head->x, head->dx, head->target, head->loss};
    return moert_buffer_copy(run->targets, first * sizeof(int32_t), head->target, 0,
                             rows * sizeof(int32_t));
}

/* Copies a chunk's rows to the batch's buffer. */
static moert_status give_rows(const chunk *from, const moert_buffer *rows, size_t columns,
                              moert_buffer *target) {
    const size_t row_bytes = columns * sizeof(float);
    return rows == target ? MOERT_OK
                          : moert_buffer_copy(rows, 0, target, from->first * row_bytes,
                                              from->groups.rows * row_bytes);
}

/* ---- GEMMs ---- */

/* A GEMM of the head, before its rows are set. In bf16, each row of the logits' gradient takes the
 * first half of the space of its float32 logits. */
static moert_status make_gemm(moert_run *run, moert_gemm_kind kind, moert_gemm *gemm) {
    const moert_model_config *c = run->config;
    *gemm = moert_model_gemm(run, kind, c->vocabulary, c->hidden, NULL, run->logits);
    if (gemm->y.type != MOERT_DTYPE_F32)
        gemm->y.stride = 2 * c->vocabulary;
    return kind == MOERT_GEMM_WGRAD
               ? MOERT_OK
               : moert_block_take_weight(run->outer, moert_model_head(run->model), gemm);
}

static moert_status run_gemm(const moert_gemm *gemm, const chunk *rows, moert_buffer *x) {
    moert_gemm of_chunk = *gemm;
    of_chunk.groups = rows->groups;
    of_chunk.x.buffer = x;
    return moert_gemm_run(&of_chunk);
}

static moert_status begin_pass(moert_run *run, float slope, bool recomputes, pass *p) {
    const moert_model_sizes sizes = moert_run_sizes(run);
    *p = (pass){.run = run, .slope = slope, .recomputes = recomputes};
    MOERT_TRY(moert_buffer_table_reserve(moert_run_head_buffers, run->device, &sizes, run, false));
    /* with one pass, CPUs do not prepack the weight, even if the pass has several chunks */
    if (!recomputes)
        MOERT_TRY(make_gemm(run, MOERT_GEMM_FORWARD, &run->head.forward));
    p->forward = run->head.forward;
    if (slope == 0.0f)
        return MOERT_OK;
    MOERT_TRY(make_gemm(run, MOERT_GEMM_WGRAD, &p->wgrad));
    return recomputes ? MOERT_OK : make_gemm(run, MOERT_GEMM_DGRAD, &p->dgrad);
}

/* The factor of the logits. */
static float scale_of(const moert_model_config *c) {
    return moert_or_one(c->logits_scale) / moert_or_one(c->logits_divisor);
}

static moert_status compute_logits(const pass *p, const chunk *rows) {
    const moert_run *run = p->run;
    const float scale = scale_of(run->config);
    MOERT_TRY(run_gemm(&p->forward, rows, rows->x));
    return scale == 1.0f
               ? MOERT_OK
               : moert_scale(rows->groups.rows * run->config->vocabulary, scale, run->logits);
}

/* Computes the logits of a chunk, then its losses, and overwrites the logits by their gradient.
 * With slope 0, computes the losses only. */
static moert_status lose(const pass *p, const chunk *rows) {
    moert_run *run = p->run;
    moert_phase_set(MOERT_PHASE_LOGITS);
    MOERT_TRY(compute_logits(p, rows));
    moert_phase_set(MOERT_PHASE_LOSS);
    run->logits_rows = 0;
    MOERT_TRY(moert_cross_entropy(&(moert_prediction){.tokens = rows->groups.rows,
                                                      .vocabulary = run->config->vocabulary,
                                                      .target = rows->target,
                                                      .factor = p->slope * scale_of(run->config),
                                                      .type = moert_model_type(run->model),
                                                      .logits = run->logits,
                                                      .loss = rows->loss}));
    return give_rows(rows, rows->loss, 1, run->token_loss);
}

static moert_status run_chunk(const pass *p, const chunk *rows) {
    MOERT_TRY(lose(p, rows));
    moert_phase_set(MOERT_PHASE_LOGITS_BACKWARD);
    if (p->slope == 0.0f || p->recomputes)
        return MOERT_OK;
    MOERT_TRY(run_gemm(&p->dgrad, rows, rows->dx));
    return give_rows(rows, rows->dx, p->run->config->hidden, p->run->dn);
}

/* ---- the weight's gradient ---- */

static size_t weight_floats(const moert_model_config *config) {
    return config->vocabulary * config->hidden;
}

/* Sets `direct`, the number of sums that lie in the block's nodes. */
static void begin_stack(pass *p) {
    const moert_run *run = p->run;
    const moert_tree_nodes_at at =
        moert_block_nodes(run->outer, moert_model_head(run->model), &run->batch, 0);
    p->direct = at.accumulate ? 0 : moert_tree_nodes(at.span, p->node);
}

/* Makes p->sum[p->depth]. */
static moert_status open_sum(pass *p) {
    moert_run *run = p->run;
    const size_t i = p->depth, bytes = weight_floats(run->config) * sizeof(float);
    moert_buffer **own = &run->head.sum[i];
    const moert_tree_nodes_at at =
        moert_block_nodes(run->outer, moert_model_head(run->model), &run->batch, 0);
    if (p->sum[i] != NULL)
        return MOERT_OK;
    if (i < p->direct)
        MOERT_TRY(moert_buffer_view(at.target, (i * at.stride + at.offset) * sizeof(float), bytes,
                                    &p->view[i]));
    else
        MOERT_TRY(moert_buffer_reserve(run->device, bytes, own));
    p->sum[i] = i < p->direct ? p->view[i] : *own;
    return MOERT_OK;
}

/* Ends the gradient of sequence `index`, which is at the top of the stack, and adds up the sums
 * that form a complete node. */
static moert_status close_sum(pass *p, size_t index) {
    const moert_batch *batch = &p->run->batch;
    const size_t top = p->depth;
    moert_tree_append(p->node, &p->depth, (moert_tree_node){batch->first_sequence + index, 1},
                      batch->total_sequences);
    for (size_t i = top; i >= p->depth; i--)
        MOERT_TRY(moert_add(weight_floats(p->run->config), p->sum[i], p->sum[i - 1]));
    return MOERT_OK;
}

/* Zeroes the pad token's row in the embedding gradients partial[sequences,rows,H], which begin at
 * row first_row of the embedding. As in transformers, only the head changes the pad token's row. */
static moert_status clear_pad(const moert_model_config *config, size_t sequences, size_t first_row,
                              size_t rows, moert_buffer *partial) {
    const size_t row_bytes = config->hidden * sizeof(float);
    const bool has_row =
        config->pad_token >= 0 && (size_t)config->pad_token - first_row < rows; /* wraps if below */
    for (size_t s = 0; has_row && s < sequences; s++)
        MOERT_TRY(moert_buffer_clear(
            partial, (s * rows + (size_t)config->pad_token - first_row) * row_bytes, row_bytes));
    return MOERT_OK;
}

static moert_status run_sequence(pass *p, size_t index) {
    moert_run *run = p->run;
    const size_t length = run->length, step = step_of(run);
    const bool collects = p->slope != 0.0f && (p->recomputes || !run->config->tied_embeddings);
    if (collects)
        MOERT_TRY(open_sum(p));
    if (p->recomputes)
        MOERT_TRY(moert_embedding_backward(&(moert_embedding_part){.sequences = 1,
                                                                   .first_sequence = index,
                                                                   .length = length,
                                                                   .hidden = run->config->hidden,
                                                                   .rows = run->config->vocabulary,
                                                                   .token = run->tokens,
                                                                   .dx = run->d_embedded,
                                                                   .partial = p->sum[p->depth]}));
    if (p->recomputes)
        MOERT_TRY(clear_pad(run->config, 1, 0, run->config->vocabulary, p->sum[p->depth]));
    for (size_t at = 0; at < length; at += step) {
        chunk rows;
        MOERT_TRY(take_chunk(run, index * length + at, moert_min(step, length - at), &rows));
        MOERT_TRY(run_chunk(p, &rows));
        if (!collects)
            continue;
        p->wgrad.weight.buffer = p->sum[p->depth];
        p->wgrad.epilogue.addend = moert_accumulate(p->recomputes || at > 0);
        MOERT_TRY(run_gemm(&p->wgrad, &rows, rows.x));
    }
    return collects ? close_sum(p, index) : MOERT_OK;
}

static moert_status run_sequences(pass *p) {
    moert_run *run = p->run;
    const size_t head = moert_model_head(run->model);
    moert_status status = MOERT_OK;
    if (p->slope != 0.0f)
        begin_stack(p);
    for (size_t s = 0; s < run->batch.sequences && status == MOERT_OK; s++)
        status = run_sequence(p, s);
    if (status == MOERT_OK && p->depth > p->direct) /* the block accumulates */
        status =
            moert_add(weight_floats(run->config), p->sum[0], run->outer->tensor[head].gradient);
    moert_buffers_destroy(p->view, p->direct);
    return status;
}

/* Computes losses and gradients of all tokens at once. */
static moert_status run_whole(pass *p) {
    moert_run *run = p->run;
    chunk all;
    MOERT_TRY(take_chunk(run, 0, run->batch.tokens, &all));
    MOERT_TRY(run_chunk(p, &all));
    if (run->slope == 0.0f || run->config->tied_embeddings)
        return MOERT_OK;
    p->wgrad.x.buffer = all.x;
    return moert_block_dense_gradient(run->outer, OUTER_HEAD, &run->batch, &p->wgrad,
                                      &run->mesh->scratch[MOERT_SCRATCH_PARTIAL]);
}

moert_status moert_head_loss(moert_run *run) {
    pass p;
    if (run->slope != 0.0f) {
        const moert_model_sizes sizes = moert_run_sizes(run);
        MOERT_TRY(moert_buffer_table_reserve(moert_run_backward_buffers, run->device, &sizes, run,
                                             false));
        MOERT_TRY(moert_block_begin(run->outer, &run->batch, run->accumulate));
    }
    MOERT_TRY(begin_pass(run, run->slope, false, &p));
    MOERT_TRY(in_chunks(run) ? run_sequences(&p) : run_whole(&p));
    return run->slope != 0.0f ? moert_audit_at(run, NULL, MOERT_AUDIT_LOSS_DONE) : MOERT_OK;
}

/* Adds the head's and the embedding's gradients of a tied weight within each sequence. The logits
 * of all tokens are still in memory. */
static moert_status collect_tied(moert_run *run) {
    const moert_model_config *c = run->config;
    const moert_model_sizes sizes = moert_run_sizes(run);
    const size_t sequences = run->batch.sequences, rows = moert_head_tied_rows(&sizes);
    moert_buffer **partial = &run->mesh->scratch[MOERT_SCRATCH_PARTIAL];
    moert_gemm gemm;
    MOERT_TRY(moert_model_reserve(run->model, rows * moert_max(sequences, 1) * c->hidden, partial));
    MOERT_TRY(make_gemm(run, MOERT_GEMM_WGRAD, &gemm));
    gemm.y.stride = gemm.y.stride > 0 ? gemm.y.stride : c->vocabulary;
    gemm.x.buffer = run->final_normed;
    gemm.weight.buffer = *partial;
    gemm.epilogue.addend = MOERT_ADDEND_FIRST;
    for (size_t row = 0; row < c->vocabulary && sequences > 0; row += rows) {
        gemm.n = moert_min(rows, c->vocabulary - row);
        gemm.y.first = row;
        MOERT_TRY(moert_embedding_backward(&(moert_embedding_part){.sequences = sequences,
                                                                   .length = run->length,
                                                                   .hidden = c->hidden,
                                                                   .first_row = row,
                                                                   .rows = gemm.n,
                                                                   .token = run->tokens,
                                                                   .dx = run->d_embedded,
                                                                   .partial = *partial}));
        MOERT_TRY(clear_pad(run->config, sequences, row, gemm.n, *partial));
        MOERT_TRY(moert_gemm_run(&gemm));
        MOERT_TRY(moert_block_collect(run->outer, OUTER_EMBED, &run->batch, row * c->hidden,
                                      gemm.n * c->hidden, *partial));
    }
    return MOERT_OK;
}

moert_status moert_head_collect_tied(moert_run *run) {
    pass p;
    if (!in_chunks(run))
        return collect_tied(run);
    MOERT_TRY(begin_pass(run, run->slope, true, &p));
    return run_sequences(&p);
}

moert_status moert_run_logits(moert_run *run, size_t token, float *out) {
    const size_t tokens = run->batch.tokens, bytes = run->config->vocabulary * sizeof(float);
    if (token >= tokens)
        return MOERT_FAIL(ERROR_USAGE, "there are no logits of token %zu: this rank has %zu tokens",
                          token, tokens);
    if (token < run->logits_first || token - run->logits_first >= run->logits_rows) {
        const size_t rows = moert_min(step_of(run), tokens - token);
        pass p;
        chunk taken;
        moert_phase_set(MOERT_PHASE_LOGITS);
        MOERT_TRY(begin_pass(run, 0.0f, false, &p));
        MOERT_TRY(take_chunk(run, token, rows, &taken));
        MOERT_TRY(compute_logits(&p, &taken));
        run->logits_first = token;
        run->logits_rows = rows;
    }
    return moert_buffer_read(run->logits, (token - run->logits_first) * bytes, out, bytes);
}
