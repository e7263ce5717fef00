/* Hands weights and partial gradients from rank to rank (clones.h). */
#include "layer/clones.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "device/device.h"
#include "layer/handover.h"

/*
 * A message has the tag FIRST_TAG + the number of its expert among those with clones; sums of
 * gradients over ranks have tags below FIRST_TAG. Weight gradients travel in up to MOST_PIECES
 * pieces, so that the next member can begin while this member computes its next piece. In the mail,
 * each link has one part for each piece that it receives, and one part for all pieces that it
 * sends.
 */
enum { FIRST_TAG = 20000, MOST_PIECES = 8, WEIGHTS = 2 * EXPERT_TENSORS };

/* A tensor of the local slots, [L,rows,columns]. Each slot's matrix travels in `pieces` pieces. */
typedef struct tensor {
    moert_buffer *buffer;
    size_t rows, columns, pieces;
    size_t before; /* offset in floats of the tensor's values in moert_handover.in and .out */
} tensor;

/* The weight tensors of a layer's local slots, and the floats that all links send or receive.
 */
typedef struct weight_list {
    tensor tensor[WEIGHTS];
    size_t count, floats;
} weight_list;

/* A range [first, first + count) of rows or pieces of a slot's matrix, or of slots. */
typedef struct span {
    size_t first, count;
} span;

/* ---- preparation ---- */

/* Lists this rank's slots whose chains have several members, in ascending order of the experts, the
 * same order on all ranks. Returns the number of these slots; stores the slots in `links` unless
 * `links` is NULL. */
static size_t list_links(const moert_layer *layer, moert_chain_link *links) {
    const moert_expert_map *map = layer->placement;
    const size_t rank = moert_comm_rank(layer->mesh->experts);
    int tag = FIRST_TAG;
    size_t count = 0;
    for (uint32_t e = 0; e < map->experts; e++) {
        for (size_t s = map->first[rank]; map->chain[e] > 1 && s < map->first[rank + 1]; s++) {
            if (moert_expert_map_at(map, s) != e)
                continue;
            if (links != NULL)
                links[count] = (moert_chain_link){
                    .expert = e,
                    .tag = tag,
                    .slot = s - map->first[rank],
                    .position = map->position[s],
                    .last = map->chain[e] - 1,
                    .home = map->position[map->first[map->rank[e]] + map->slot[e]]};
            count++;
        }
        tag += map->chain[e] > 1;
    }
    return count;
}

static weight_list list_weights(const moert_layer *layer, size_t links) {
    weight_list list = {0};
    for (size_t b = BLOCK_EXPERT_IN; b <= BLOCK_EXPERT_OUT; b++)
        for (size_t i = 0; i < EXPERT_TENSORS; i++) {
            const moert_block_tensor *t = &layer->block[b]->tensor[i];
            const size_t columns = t->elements / moert_max(layer->local_experts, 1);
            if (columns > 0)
                list.tensor[list.count++] = (tensor){t->weight, 1, columns, 1, list.floats};
            list.floats += links * columns;
        }
    return list;
}

/* Makes room for the messages in flight, each of up to `elements` floats. For each weight, a link
 * sends at most one message to each other rank. For a gradient, a link sends and receives up to
 * MOST_PIECES messages with the old values, and as many with the new values. */
static moert_status reserve_mail(const moert_layer *layer, size_t links, size_t elements,
                                 moert_mail *mail) {
    const size_t ranks = moert_comm_size(layer->mesh->experts);
    return moert_mail_reserve(mail, links * moert_max(WEIGHTS * ranks, 4 * MOST_PIECES),
                              elements * sizeof(float));
}

moert_status moert_clones_prepare(moert_layer *layer) {
    moert_mesh *mesh = layer->mesh;
    const size_t count = layer->placement->longest > 1 ? list_links(layer, NULL) : 0;
    const weight_list weights = list_weights(layer, count);
    if (count > MOERT_LINKS_MOST)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "a placement puts %zu experts with clones on one rank; the limit is %d",
                          count, MOERT_LINKS_MOST);
    if (layer->placement->longest > 1 && mesh->handover == NULL)
        MOERT_TRY(MOERT_NEW(&mesh->handover));
    moert_handover *h = mesh->handover;
    if (h == NULL)
        return MOERT_OK;
    if (h->mail == NULL)
        MOERT_TRY(moert_mail_create(mesh->experts, &h->mail));
    MOERT_TRY(reserve_mail(layer, count, weights.tensor[0].columns, h->mail));
    if (weights.floats <= h->room)
        return MOERT_OK;
    h->room = 0;
    MOERT_FREE(h->in, h->out);
    h->in = h->out = NULL;
    MOERT_TRY(MOERT_NEW_ARRAY(&h->in, weights.floats));
    MOERT_TRY(MOERT_NEW_ARRAY(&h->out, weights.floats));
    h->room = weights.floats;
    return MOERT_OK;
}

static moert_handover *begin(const moert_layer *layer, moert_status *status) {
    moert_handover *h = layer->mesh->handover;
    h->status = status;
    h->count = list_links(layer, h->links);
    return h;
}

static bool is_home(const moert_chain_link *l) {
    return l->position == l->home;
}

/* ---- messages ---- */

/* A view of a matrix with `columns` columns can begin at every multiple of this many rows. */
static size_t rows_of_view(size_t columns) {
    size_t rows = MOERT_VIEW_FLOATS;
    while (rows > 1 && rows / 2 * columns % MOERT_VIEW_FLOATS == 0)
        rows /= 2;
    return rows;
}

static span piece_of(const tensor *t, size_t piece) {
    const size_t step = t->pieces > 1 ? rows_of_view(t->columns) : 1, steps = t->rows / step;
    const size_t first = steps * piece / t->pieces * step,
                 end = steps * (piece + 1) / t->pieces * step;
    return (span){first, end - first};
}

/* The floats of a piece that a link sends or receives. */
static float *values_of(const moert_handover *h, size_t number, const tensor *t, size_t piece,
                        bool send) {
    return (send ? h->out : h->in) + t->before +
           (number * t->rows + piece_of(t, piece).first) * t->columns;
}

/* The mail's part for the messages that a link sends, and the part for a piece that it receives. */
static size_t sent_by(size_t number) {
    return MOERT_LINKS_MOST + number;
}
static size_t received_by(size_t number, const tensor *t, size_t piece) {
    return number * t->pieces + piece;
}

/* Posts the message with a link's piece to or from another position of its chain. */
static moert_status post(const moert_layer *layer, size_t number, bool send, size_t position,
                         const tensor *t, size_t piece) {
    const moert_handover *h = layer->mesh->handover;
    const moert_chain_link *l = &h->links[number];
    const moert_expert_map *map = layer->placement;
    const size_t rank = moert_expert_map_rank(map, moert_expert_map_find(map, l->expert, position));
    const moert_mail_rows rows = {values_of(h, number, t, piece, send), sizeof(float),
                                  sizeof(float)};
    const moert_mail_run all = {0, piece_of(t, piece).count * t->columns};
    const size_t part = send ? sent_by(number) : received_by(number, t, piece);
    return moert_mail_post(h->mail, (moert_mail_address){send, rank, l->tag, part}, &rows, &all, 1);
}

static moert_status post_all(const moert_layer *layer, size_t number, bool send, size_t position,
                             const tensor *t) {
    for (size_t p = 0; p < t->pieces; p++)
        MOERT_TRY(post(layer, number, send, position, t, p));
    return MOERT_OK;
}

/* Waits for the messages of a part. */
static moert_status await(moert_handover *h, size_t part) {
    moert_phase_wait_begin();
    const moert_status status = moert_mail_await(h->mail, part);
    moert_phase_wait_end();
    return status;
}

static moert_status await_sent(moert_handover *h) {
    for (size_t i = 0; i < h->count; i++)
        MOERT_TRY(await(h, sent_by(i)));
    return MOERT_OK;
}

/* Copies a piece of a link's slot from the device to host memory (`send`), or back to the
 * device. */
static void copy(const moert_handover *h, size_t number, const tensor *t, size_t piece, bool send) {
    const span rows = piece_of(t, piece);
    const size_t row_bytes = t->columns * sizeof(float), bytes = rows.count * row_bytes,
                 offset = (h->links[number].slot * t->rows + rows.first) * row_bytes;
    float *values = values_of(h, number, t, piece, send);
    moert_note(h->status, send ? moert_buffer_read(t->buffer, offset, values, bytes)
                               : moert_buffer_write(t->buffer, offset, values, bytes));
}

/* Sends a piece of the matrix in a link's slot to another member of its chain. */
static moert_status give(const moert_layer *layer, size_t number, const tensor *t, size_t piece,
                         size_t position) {
    copy(layer->mesh->handover, number, t, piece, true);
    return post(layer, number, true, position, t, piece);
}

/* Waits for a piece for a link, and writes it to the slot. */
static moert_status take(moert_handover *h, size_t number, const tensor *t, size_t piece) {
    MOERT_TRY(await(h, received_by(number, t, piece)));
    copy(h, number, t, piece, false);
    return MOERT_OK;
}

/* ---- weights ---- */

/* Sends the weight in a link's slot, that of the expert itself, to all other members of its
 * chain. */
static moert_status give_weight(const moert_layer *layer, size_t number, const tensor *t) {
    const moert_chain_link *l = &layer->mesh->handover->links[number];
    copy(layer->mesh->handover, number, t, 0, true);
    for (size_t m = 0; m <= l->last; m++)
        if (m != l->home)
            MOERT_TRY(post(layer, number, true, m, t, 0));
    return MOERT_OK;
}

/* Begins to receive a tensor's weights for clones, and to send those of experts. */
static moert_status exchange_weight(const moert_layer *layer, const tensor *t) {
    const moert_handover *h = layer->mesh->handover;
    for (size_t i = 0; i < h->count; i++)
        if (!is_home(&h->links[i]))
            MOERT_TRY(post(layer, i, false, h->links[i].home, t, 0));
    for (size_t i = 0; i < h->count; i++)
        if (is_home(&h->links[i]))
            MOERT_TRY(give_weight(layer, i, t));
    return MOERT_OK;
}

/* Waits until this rank's clones have the weights of a tensor. */
static moert_status take_weight(moert_handover *h, const tensor *t) {
    for (size_t i = 0; i < h->count; i++)
        if (!is_home(&h->links[i]))
            MOERT_TRY(take(h, i, t, 0));
    return MOERT_OK;
}

static weight_list begin_weights(const moert_layer *layer, moert_status *status) {
    moert_phase_set(MOERT_PHASE_MOVE);
    return list_weights(layer, begin(layer, status)->count);
}

moert_status moert_clones_send(moert_layer *layer) {
    moert_status status = MOERT_OK;
    if (layer->placement->longest == 1 || layer->clones != CLONES_OLD)
        return MOERT_OK;
    const weight_list weights = begin_weights(layer, &status);
    layer->clones = CLONES_SENT;
    for (size_t i = 0; i < weights.count; i++)
        MOERT_TRY(exchange_weight(layer, &weights.tensor[i]));
    return status;
}

moert_status moert_clones_take(moert_layer *layer) {
    moert_status status = MOERT_OK;
    if (layer->clones != CLONES_SENT)
        return MOERT_OK;
    const weight_list weights = begin_weights(layer, &status);
    moert_handover *h = layer->mesh->handover;
    layer->clones = CLONES_OLD;
    for (size_t i = 0; i < weights.count; i++)
        MOERT_TRY(take_weight(h, &weights.tensor[i]));
    MOERT_TRY(await_sent(h));
    layer->clones = status == MOERT_OK ? CLONES_CURRENT : CLONES_OLD;
    return status;
}

/* ---- gradients ---- */

/* The gradient of a tensor of all local slots. `run` computes the rows `rows` of the matrix of each
 * slot in `part`. */
typedef struct chained {
    moert_status (*run)(const struct chained *c, const moert_row_groups *part, span rows,
                        bool accumulate);
    const void *op;
    tensor result;
    bool accumulate;
} chained;

static span all_rows(const chained *c) {
    return (span){0, c->result.rows};
}

/* Computes rows of some slots, unless the pass has failed. */
static void run_slots(moert_pass *pass, const chained *c, span slots, span rows, bool accumulate) {
    const uint32_t *ends = pass->plan->plan->ends;
    const size_t first = slots.first, end = first + slots.count;
    moert_row_groups part = moert_pass_groups(pass);
    part.first = first;
    part.end = end;
    part.first_row = first > 0 ? ends[first - 1] : 0;
    part.end_row = end > 0 ? ends[end - 1] : 0;
    if (first < end && pass->status == MOERT_OK)
        pass->status = c->run(c, &part, rows, accumulate);
}

static bool is_link(const moert_handover *h, size_t slot) {
    for (size_t i = 0; i < h->count; i++)
        if (h->links[i].slot == slot)
            return true;
    return false;
}

/* Computes the slots whose experts have no clones. */
static void run_others(moert_pass *pass, const moert_handover *h, const chained *c) {
    const size_t local = pass->layer->local_experts;
    size_t first = 0;
    for (size_t s = 0; s <= local; s++)
        if (s == local || is_link(h, s)) {
            run_slots(pass, c, (span){first, s - first}, all_rows(c), c->accumulate);
            first = s + 1;
        }
}

/* Whether a link starts from another member's values: from the previous member's sums or, for the
 * first member, from the old gradient of the expert itself. */
static bool waits(const moert_chain_link *l, const chained *c) {
    return l->position > 0 || (c->accumulate && !is_home(l));
}

/* Whether a link sends its sums to another member. *to = that member: the next one or, after the
 * last one, the expert itself. */
static bool hands_on(const moert_chain_link *l, size_t *to) {
    *to = l->position < l->last ? l->position + 1 : l->home;
    return *to != l->position;
}

/* Computes some pieces of a link: receives the sums so far, adds this slot's sums, and sends the
 * result on. */
static moert_status run_pieces(moert_pass *pass, moert_handover *h, size_t number, const chained *c,
                               span pieces) {
    const moert_chain_link *l = &h->links[number];
    const tensor *t = &c->result;
    const size_t end = pieces.first + pieces.count;
    const span before = piece_of(t, pieces.first), last = piece_of(t, end - 1);
    const span rows = {before.first, last.first + last.count - before.first};
    size_t to;
    for (size_t p = pieces.first; p < end && waits(l, c); p++)
        MOERT_TRY(take(h, number, t, p));
    run_slots(pass, c, (span){l->slot, 1}, rows, l->position > 0 || c->accumulate);
    for (size_t p = pieces.first; p < end && hands_on(l, &to); p++)
        MOERT_TRY(give(pass->layer, number, t, p, to));
    return MOERT_OK;
}

/* Computes a link's part of the chain. A GPU computes all pieces at once, since one piece would not
 * keep the GPU busy. If the link is the expert itself, but not the last member, then also posts the
 * receive of the last member's sums. */
static moert_status run_link(moert_pass *pass, moert_handover *h, size_t number, const chained *c) {
    const moert_chain_link *l = &h->links[number];
    const tensor *t = &c->result;
    const size_t together = moert_by_form(pass->layer->mesh->device, 1, t->pieces);
    MOERT_TRY(await(h, sent_by(number))); /* waits until the old gradient has been sent */
    for (size_t p = 0; p < t->pieces; p += together)
        MOERT_TRY(run_pieces(pass, h, number, c, (span){p, together}));
    return l->position < l->last && is_home(l) ? post_all(pass->layer, number, false, l->last, t)
                                               : MOERT_OK;
}

/* Computes first the links that wait for no other member, last those that wait. All ranks process
 * the waiting links in the same order, so no two ranks wait for each other. */
static moert_status run_chains(moert_pass *pass, moert_handover *h, const chained *c) {
    const moert_layer *layer = pass->layer;
    const tensor *t = &c->result;
    for (size_t i = 0; i < h->count; i++) {
        const moert_chain_link *l = &h->links[i];
        if (waits(l, c))
            MOERT_TRY(post_all(layer, i, false, l->position > 0 ? l->position - 1 : l->home, t));
    }
    for (size_t i = 0; i < h->count; i++) {
        const moert_chain_link *l = &h->links[i];
        if (c->accumulate && is_home(l) && l->position > 0)
            for (size_t p = 0; p < t->pieces; p++) /* send the old gradient to the first member */
                MOERT_TRY(give(layer, i, t, p, 0));
        if (!waits(l, c))
            MOERT_TRY(run_link(pass, h, i, c));
    }
    run_others(pass, h, c);
    for (size_t i = 0; i < h->count; i++)
        if (waits(&h->links[i], c))
            MOERT_TRY(run_link(pass, h, i, c));
    for (size_t i = 0; i < h->count; i++)
        if (is_home(&h->links[i]) && h->links[i].position < h->links[i].last)
            for (size_t p = 0; p < t->pieces; p++)
                MOERT_TRY(take(h, i, t, p));
    return await_sent(h);
}

static void run_chained(moert_pass *pass, const chained *c) {
    const moert_row_groups all = moert_pass_groups(pass);
    if (pass->layer->placement->longest > 1)
        moert_note(&pass->status, run_chains(pass, begin(pass->layer, &pass->status), c));
    else if (pass->status == MOERT_OK)
        pass->status = c->run(c, &all, all_rows(c), c->accumulate);
}

/* The number of pieces in which a weight gradient [N,K] travels. With many chains the number is 1:
 * while one member computes one expert, the next member computes another expert. */
static size_t pieces_of(const moert_layer *layer, size_t n, size_t k) {
    const moert_expert_map *map = layer->placement;
    const size_t step = rows_of_view(k);
    size_t chains = 0;
    for (size_t e = 0; e < map->experts; e++)
        chains += map->chain[e] > 1;
    return chains > MOST_PIECES || n % step != 0 ? 1 : moert_min(n / step, MOST_PIECES);
}

/* Runs a wgrad of some rows of one slot's matrix [N,K]. The GEMM gets N = rows.count, so it writes
 * from row `slot` * rows.count on of the buffer that it gets as the weight. This buffer is a view
 * of the whole weight; the start of the view makes the GEMM write to the slot's rows. */
static moert_status run_rows(moert_gemm *gemm, span rows) {
    const size_t slot = gemm->groups.first, row_bytes = gemm->k * sizeof(float);
    const size_t before = slot * (gemm->n - rows.count) + rows.first;
    moert_buffer *view;
    MOERT_TRY(moert_buffer_view(gemm->weight.buffer, before * row_bytes,
                                gemm->groups.count * rows.count * row_bytes, &view));
    gemm->y.stride = gemm->y.stride > 0 ? gemm->y.stride : gemm->n;
    gemm->y.first += rows.first;
    gemm->n = rows.count;
    gemm->weight.buffer = view;
    const moert_status status = moert_gemm_run(gemm);
    moert_buffer_destroy(view);
    return status;
}

static moert_status run_gemm(const chained *c, const moert_row_groups *part, span rows,
                             bool accumulate) {
    moert_gemm gemm = *(const moert_gemm *)c->op;
    if (gemm.x.quantized == NULL) /* FP8 rows have their own groups, and no clones */
        gemm.groups = *part;
    gemm.epilogue.addend = moert_accumulate(accumulate);
    return rows.count < c->result.rows ? run_rows(&gemm, rows) : moert_gemm_run(&gemm);
}

void moert_clones_gemm(moert_pass *pass, const moert_gemm *gemm) {
    const size_t n = gemm->n, k = gemm->k;
    const tensor result = gemm->kind == MOERT_GEMM_WGRAD
                              ? (tensor){gemm->weight.buffer, n, k, pieces_of(pass->layer, n, k), 0}
                              : (tensor){gemm->bias, 1, n, 1, 0};
    run_chained(pass,
                &(chained){run_gemm, gemm, result, gemm->epilogue.addend != MOERT_ADDEND_NONE});
}

static moert_status run_bias(const chained *c, const moert_row_groups *part, span rows,
                             bool accumulate) {
    moert_scaled_bias bias = *(const moert_scaled_bias *)c->op;
    (void)rows;
    bias.groups = *part;
    bias.accumulate = accumulate;
    return moert_scaled_bias_gradient(&bias);
}

void moert_clones_bias_gradient(moert_pass *pass, const moert_scaled_bias *bias) {
    const tensor result = {bias->dbias, 1, bias->n, 1, 0};
    run_chained(pass, &(chained){run_bias, bias, result, bias->accumulate});
}
