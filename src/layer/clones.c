/* Hands weights and partial gradients from rank to rank (clones.h). */
#include "layer/clones.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "comm/mail.h"

/* A message has the tag FIRST_TAG + the number of its expert among those with clones; sums of
 * gradients have the tags below. Each link has two parts of the mail (part_of). */
enum { FIRST_TAG = 20000, MOST_LINKS = MOERT_MAIL_PARTS / 2 };

/* This rank's place in the chain of an expert with clones. */
typedef struct link {
    uint32_t expert;
    int tag;
    size_t slot; /* of this rank */
    size_t member, last;
    size_t own; /* the member that is the expert itself */
} link;

/* The messages of clones, and memory for them, of all layers of a mesh. */
typedef struct moert_handover {
    moert_mail *mail;
    link links[MOST_LINKS]; /* of the layer at work */
    size_t count;
    float *in, *out; /* [count,elements] values that arrive, and that are sent */
    size_t room;     /* floats of each */
} moert_handover;

/* A tensor of the local slots: [L,elements]. */
typedef struct tensor {
    moert_buffer *buffer;
    size_t elements;
} tensor;

void moert_clones_free(moert_handover *handover) {
    if (handover == NULL)
        return;
    moert_mail_destroy(handover->mail);
    MOERT_FREE(handover->in, handover->out, handover);
}

size_t moert_clones_bytes(const moert_handover *handover) {
    return handover != NULL ? 2 * handover->room * sizeof *handover->in : 0;
}

/* ---- preparation ---- */

/* The slots of this rank whose experts have several members, in the order of the experts, which all
 * ranks have. Returns their number; `links`, unless NULL, gets them. */
static size_t list_links(const moert_layer *layer, link *links) {
    const moert_expert_map *map = layer->placement;
    const size_t rank = moert_comm_rank(layer->mesh->experts);
    int tag = FIRST_TAG;
    size_t count = 0;
    for (uint32_t e = 0; e < map->experts; e++) {
        for (size_t s = map->first[rank]; map->chain[e] > 1 && s < map->first[rank + 1]; s++) {
            if (moert_expert_map_at(map, s) != e)
                continue;
            if (links != NULL)
                links[count] = (link){.expert = e,
                                      .tag = tag,
                                      .slot = s - map->first[rank],
                                      .member = map->member[s],
                                      .last = map->chain[e] - 1,
                                      .own = map->member[map->first[map->rank[e]] + map->slot[e]]};
            count++;
        }
        tag += map->chain[e] > 1;
    }
    return count;
}

/* The weights of a block's tensor in the local slots; without elements if there are none. */
static tensor weights_of(const moert_layer *layer, size_t block, size_t index) {
    const moert_block_tensor *t = &layer->block[block]->tensor[index];
    return (tensor){t->weight, t->elements / moert_max(layer->local_experts, 1)};
}

/* Makes room for the messages of one tensor: each link receives one, and sends up to one to each
 * other rank. */
static moert_status reserve_mail(const moert_layer *layer, size_t links, moert_mail *mail) {
    const size_t elements = weights_of(layer, BLOCK_EXPERT_IN, EXPERT_WEIGHT).elements;
    return moert_mail_reserve(mail, links * moert_comm_size(layer->mesh->experts),
                              elements * sizeof(float));
}

moert_status moert_clones_prepare(moert_layer *layer) {
    moert_mesh *mesh = layer->mesh;
    const size_t count = layer->placement->longest > 1 ? list_links(layer, NULL) : 0;
    const size_t floats = count * weights_of(layer, BLOCK_EXPERT_IN, EXPERT_WEIGHT).elements;
    if (count > MOST_LINKS)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "a placement puts %zu experts with clones on one rank; the limit is %d",
                          count, MOST_LINKS);
    if (layer->placement->longest > 1 && mesh->handover == NULL)
        MOERT_TRY(MOERT_NEW(&mesh->handover));
    moert_handover *h = mesh->handover;
    if (h == NULL)
        return MOERT_OK;
    if (h->mail == NULL)
        MOERT_TRY(moert_mail_create(mesh->experts, &h->mail));
    MOERT_TRY(reserve_mail(layer, count, h->mail));
    if (floats <= h->room)
        return MOERT_OK;
    h->room = 0;
    MOERT_FREE(h->in, h->out);
    h->in = h->out = NULL;
    MOERT_TRY(MOERT_NEW_ARRAY(&h->in, floats));
    MOERT_TRY(MOERT_NEW_ARRAY(&h->out, floats));
    h->room = floats;
    return MOERT_OK;
}

static moert_handover *begin(const moert_layer *layer) {
    moert_handover *h = layer->mesh->handover;
    h->count = list_links(layer, h->links);
    return h;
}

static bool is_own(const link *l) {
    return l->member == l->own;
}

/* ---- messages ---- */

static size_t rank_of(const moert_layer *layer, const link *l, size_t member) {
    const moert_expert_map *map = layer->placement;
    return moert_expert_map_rank(map, moert_expert_map_find(map, l->expert, member));
}

/* The part that counts the messages which a link sends, or receives. */
static size_t part_of(size_t number, bool send) {
    return 2 * number + send;
}

/* Posts a message of a link to or from another member of its chain. */
static moert_status post(const moert_layer *layer, moert_handover *h, size_t number, bool send,
                         size_t member, size_t elements) {
    const link *l = &h->links[number];
    float *values = (send ? h->out : h->in) + number * elements;
    const moert_mail_rows rows = {values, sizeof *values, sizeof *values};
    const moert_mail_run all = {0, elements};
    return moert_mail_post(
        h->mail,
        (moert_mail_address){send, rank_of(layer, l, member), l->tag, part_of(number, send)}, &rows,
        &all, 1);
}

/* Waits for the messages of a part. */
static moert_status await(moert_handover *h, size_t part) {
    moert_status status = MOERT_OK;
    moert_phase_wait_begin();
    while (status == MOERT_OK && moert_mail_left(h->mail, part) > 0)
        status = moert_mail_progress(h->mail, true);
    moert_phase_wait_end();
    return status;
}

static moert_status await_sent(moert_handover *h) {
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < h->count; i++)
        status = moert_first(status, await(h, part_of(i, true)));
    return status;
}

/* Reads a link's slot, to send it. */
static moert_status load(moert_handover *h, size_t number, const tensor *t) {
    const size_t bytes = t->elements * sizeof(float);
    const moert_status status = await(h, part_of(number, true)); /* what it has sent before */
    return moert_first(status, moert_buffer_read(t->buffer, h->links[number].slot * bytes,
                                                 h->out + number * t->elements, bytes));
}

/* Sends a link's slot to another member. */
static moert_status give(const moert_layer *layer, moert_handover *h, size_t number,
                         const tensor *t, size_t member) {
    const moert_status status = load(h, number, t);
    return moert_first(status, post(layer, h, number, true, member, t->elements));
}

/* Waits for a link's message, and writes it to the slot. */
static moert_status take(moert_handover *h, size_t number, const tensor *t) {
    const size_t bytes = t->elements * sizeof(float);
    MOERT_TRY(await(h, part_of(number, false)));
    return moert_buffer_write(t->buffer, h->links[number].slot * bytes,
                              h->in + number * t->elements, bytes);
}

/* ---- weights ---- */

/* Sends a link's slot, which is an expert itself, to all other members. */
static moert_status give_all(const moert_layer *layer, moert_handover *h, size_t number,
                             const tensor *t) {
    const link *l = &h->links[number];
    moert_status status = load(h, number, t);
    for (size_t m = 0; m <= l->last; m++)
        if (m != l->own)
            status = moert_first(status, post(layer, h, number, true, m, t->elements));
    return status;
}

/* Sends one tensor of the experts to their clones. */
static moert_status send_weights(const moert_layer *layer, moert_handover *h, const tensor *t) {
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < h->count; i++)
        if (!is_own(&h->links[i]))
            status = moert_first(status, post(layer, h, i, false, h->links[i].own, t->elements));
    for (size_t i = 0; i < h->count; i++)
        if (is_own(&h->links[i]))
            status = moert_first(status, give_all(layer, h, i, t));
    for (size_t i = 0; i < h->count; i++)
        if (!is_own(&h->links[i]))
            status = moert_first(status, take(h, i, t));
    return moert_first(status, await_sent(h));
}

moert_status moert_clones_refresh(moert_layer *layer, moert_status status) {
    if (layer->placement->longest == 1 || layer->clones_current)
        return status;
    moert_phase_set(MOERT_PHASE_MOVE);
    moert_handover *h = begin(layer);
    for (size_t b = BLOCK_EXPERT_IN; b <= BLOCK_EXPERT_OUT; b++)
        for (size_t i = 0; i < EXPERT_TENSORS; i++) {
            const tensor t = weights_of(layer, b, i);
            if (t.elements > 0)
                status = moert_first(status, send_weights(layer, h, &t));
        }
    for (size_t b = BLOCK_EXPERT_IN; b <= BLOCK_EXPERT_OUT; b++)
        moert_block_weights_changed(layer->block[b]); /* copies of the clones' weights are old */
    layer->weights_changed = true;
    layer->clones_current = status == MOERT_OK;
    return status;
}

/* ---- gradients ---- */

/* A gradient of all local slots. `run` computes that of a part. */
typedef struct chained {
    moert_status (*run)(const void *op, const moert_part *part, bool accumulate);
    const void *op;
    tensor result;
    bool accumulate;
} chained;

/* Computes slots [first, end), unless `status` is a failure. */
static moert_status run_slots(const moert_pass *pass, const chained *c, size_t first, size_t end,
                              bool accumulate, moert_status status) {
    const uint32_t *ends = pass->plan->plan->ends;
    const moert_part part = {first, end, first > 0 ? ends[first - 1] : 0,
                             end > 0 ? ends[end - 1] : 0};
    return first < end && status == MOERT_OK ? c->run(c->op, &part, accumulate) : status;
}

static bool is_link(const moert_handover *h, size_t slot) {
    for (size_t i = 0; i < h->count; i++)
        if (h->links[i].slot == slot)
            return true;
    return false;
}

/* Computes the slots that are in no chain. */
static moert_status run_others(const moert_pass *pass, const moert_handover *h, const chained *c,
                               moert_status status) {
    const size_t local = pass->layer->local_experts;
    size_t first = 0;
    for (size_t s = 0; s <= local; s++)
        if (s == local || is_link(h, s)) {
            status = run_slots(pass, c, first, s, c->accumulate, status);
            first = s + 1;
        }
    return status;
}

/* Whether a link goes on from another member's values: the sums of the member before it, or, as the
 * first, the old gradient of the expert itself. */
static bool waits(const link *l, const chained *c) {
    return l->member > 0 || (c->accumulate && !is_own(l));
}

/* Computes a link's part of the chain, and hands it on: to the next member, or from the last one to
 * the expert itself, which then waits for it. */
static moert_status run_link(const moert_pass *pass, moert_handover *h, size_t number,
                             const chained *c, moert_status status) {
    const moert_layer *layer = pass->layer;
    const link *l = &h->links[number];
    if (waits(l, c))
        status = moert_first(status, take(h, number, &c->result));
    status = run_slots(pass, c, l->slot, l->slot + 1, l->member > 0 || c->accumulate, status);
    if (l->member < l->last)
        status = moert_first(status, give(layer, h, number, &c->result, l->member + 1));
    else if (!is_own(l))
        status = moert_first(status, give(layer, h, number, &c->result, l->own));
    if (l->member < l->last && is_own(l))
        status = moert_first(status, post(layer, h, number, false, l->last, c->result.elements));
    return status;
}

/* The chains that this rank begins come first, those that wait for others last. All ranks take the
 * latter in the same order, so no two ranks wait for each other. */
static moert_status run_chains(const moert_pass *pass, moert_handover *h, const chained *c,
                               moert_status status) {
    const moert_layer *layer = pass->layer;
    const size_t elements = c->result.elements;
    for (size_t i = 0; i < h->count; i++) {
        const link *l = &h->links[i];
        if (waits(l, c))
            status = moert_first(
                status, post(layer, h, i, false, l->member > 0 ? l->member - 1 : l->own, elements));
    }
    for (size_t i = 0; i < h->count; i++) {
        const link *l = &h->links[i];
        if (c->accumulate && is_own(l) && l->member > 0)
            status = moert_first(status, give(layer, h, i, &c->result, 0));
        if (!waits(l, c))
            status = run_link(pass, h, i, c, status);
    }
    status = run_others(pass, h, c, status);
    for (size_t i = 0; i < h->count; i++)
        if (waits(&h->links[i], c))
            status = run_link(pass, h, i, c, status);
    for (size_t i = 0; i < h->count; i++)
        if (is_own(&h->links[i]) && h->links[i].member < h->links[i].last)
            status = moert_first(status, take(h, i, &c->result));
    return moert_first(status, await_sent(h));
}

static moert_status run(moert_pass *pass, const chained *c, moert_status status) {
    if (pass->layer->placement->longest > 1)
        return run_chains(pass, begin(pass->layer), c, status);
    return status == MOERT_OK ? c->run(c->op, &(moert_part){0}, c->accumulate) : status;
}

static moert_status run_gemm(const void *op, const moert_part *part, bool accumulate) {
    moert_gemm gemm = *(const moert_gemm *)op;
    gemm.part = *part;
    gemm.accumulate = accumulate;
    return moert_gemm_run(&gemm);
}

moert_status moert_clones_gemm(moert_pass *pass, const moert_gemm *gemm, moert_status status) {
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    const tensor result = {wgrad ? gemm->weight : gemm->bias, wgrad ? gemm->n * gemm->k : gemm->n};
    return run(pass, &(chained){run_gemm, gemm, result, gemm->accumulate}, status);
}

static moert_status run_bias(const void *op, const moert_part *part, bool accumulate) {
    moert_scaled_bias bias = *(const moert_scaled_bias *)op;
    bias.part = *part;
    bias.accumulate = accumulate;
    return moert_scaled_bias_gradient(&bias);
}

moert_status moert_clones_bias_gradient(moert_pass *pass, const moert_scaled_bias *bias,
                                        moert_status status) {
    const tensor result = {bias->dbias, bias->n};
    return run(pass, &(chained){run_bias, bias, result, bias->accumulate}, status);
}
