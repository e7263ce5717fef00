/*
 * Moves experts between ranks (move.h). Both ends of a move walk over the same pieces in the same
 * order. Every replica of the old owner sends the weight to the same replica of the new one. The
 * moments are sharded over the replicas at both ends.
 */
#include "train/move.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"

enum { WEIGHT, FIRST_MOMENT, SECOND_MOMENT, KINDS };

/* A tensor that moves. Offsets are in its block, which has the same shape on all ranks. */
typedef struct moved {
    const moert_model_tensor *tensor; /* after the move */
    moert_block *block;               /* of this rank */
    size_t owner, offset;             /* before the move */
} moved;

/* Elements of a tensor that one rank of the world sends to another or to itself. */
typedef struct piece {
    const moved *of;
    int kind;
    size_t first, count, from, to;
} piece;

typedef struct move {
    moert_optimizer *optimizer;
    moert_comm *world;
    size_t rank, ranks, replicas;
    moert_model_tensor *before; /* [tensors] */
    moved *moved;               /* [count] tensors that this rank sends or receives */
    size_t count;
    size_t *rank_of;                /* [EP * replicas] the rank of a member's replica */
    size_t *sent, *received, *next; /* [ranks] floats */
    float *out, *in;                /* all pieces by rank, in order */
} move;

static moert_status allocate(move *m) {
    const moert_model *model = m->optimizer->model;
    const moert_mesh *mesh = moert_model_mesh(model);
    const size_t tensors = moert_model_tensor_count(model);
    moert_mesh_place *places;
    MOERT_TRY(MOERT_NEW_ARRAY(&m->before, tensors));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->moved, tensors));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->rank_of, m->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->sent, m->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->received, m->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->next, m->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&places, m->ranks));
    moert_mesh_places(m->world, moert_comm_size(mesh->experts), places);
    for (size_t r = 0; r < m->ranks; r++)
        m->rank_of[places[r].member * m->replicas + places[r].replica] = r;
    free(places);
    for (size_t t = 0; t < tensors; t++)
        m->before[t] = moert_model_tensors(model)[t];
    return MOERT_OK;
}

static void release(move *m) {
    MOERT_FREE(m->in, m->out, m->next, m->received, m->sent, m->rank_of, m->moved, m->before);
}

/* Lists the tensors that this rank sends or receives. */
static void find_moved(move *m) {
    const moert_model *model = m->optimizer->model;
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const moert_model_tensor *old = &m->before[t], *new = &moert_model_tensors(model)[t];
        moert_block *block = new->block != NULL ? new->block : old->block;
        if (block != NULL && (old->owner != new->owner || old->offset != new->offset))
            m->moved[m->count++] = (moved){new, block, old->owner, old->offset};
    }
}

/* ---- pieces ---- */

typedef moert_status visitor(move *m, const piece *p);

/* The elements of a tensor at `offset` in a replica's shard. */
static moert_model_range shard_of(const moved *of, size_t offset, size_t replica) {
    const size_t *border = of->block->border, end = offset + of->tensor->elements;
    const size_t from = moert_max(border[replica], offset),
                 to = moert_min(border[replica + 1], end);
    return from < to ? (moert_model_range){from - offset, to - from} : (moert_model_range){0, 0};
}

/* Visits what replica `source` of the old owner sends to replica `target` of the new one. */
static moert_status visit_replicas(move *m, const moved *of, size_t source, size_t target,
                                   visitor *visit) {
    const moert_model_range old = shard_of(of, of->offset, source),
                            new = shard_of(of, of->tensor->offset, target);
    const size_t first = moert_max(old.first, new.first),
                 end = moert_min(old.first + old.count, new.first + new.count);
    piece p = {.of = of,
               .from = m->rank_of[of->owner * m->replicas + source],
               .to = m->rank_of[of->tensor->owner * m->replicas + target]};
    for (p.kind = WEIGHT; p.kind < KINDS; p.kind++) {
        p.first = p.kind == WEIGHT ? 0 : first;
        p.count = p.kind != WEIGHT ? (first < end ? end - first : 0)
                                   : (source == target ? of->tensor->elements : 0);
        if (p.count > 0 && (p.from == m->rank || p.to == m->rank))
            MOERT_TRY(visit(m, &p));
    }
    return MOERT_OK;
}

/* Visits all pieces that this rank sends or receives, in an order that both ends have. */
static moert_status visit_pieces(move *m, visitor *visit) {
    for (size_t i = 0; i < m->count; i++)
        for (size_t q = 0; q < m->replicas * m->replicas; q++)
            MOERT_TRY(visit_replicas(m, &m->moved[i], q / m->replicas, q % m->replicas, visit));
    return MOERT_OK;
}

static moert_status measure(move *m, const piece *p) {
    if (p->from == m->rank)
        m->sent[p->to] += p->count;
    if (p->to == m->rank)
        m->received[p->from] += p->count;
    return MOERT_OK;
}

/* A piece's elements if the tensor is at `offset`. */
static moert_elements elements_of(const move *m, const piece *p, size_t offset) {
    const moert_block *block = p->of->block;
    const size_t at = offset + p->first;
    return p->kind == WEIGHT
               ? (moert_elements){block->weight, MOERT_DTYPE_F32, at}
               : moert_optimizer_moments(m->optimizer, block, p->kind == SECOND_MOMENT, at);
}

static moert_status pack(move *m, const piece *p) {
    if (p->from != m->rank)
        return MOERT_OK;
    const moert_elements from = elements_of(m, p, p->of->offset);
    float *values = m->out + m->next[p->to];
    m->next[p->to] += p->count;
    return moert_elements_read(&from, 0, p->count, values);
}

static moert_status unpack(move *m, const piece *p) {
    if (p->to != m->rank)
        return MOERT_OK;
    const moert_elements to = elements_of(m, p, p->of->tensor->offset);
    const float *values = m->in + m->next[p->from];
    m->next[p->from] += p->count;
    return moert_elements_write(&to, 0, p->count, values);
}

/* ---- the move ---- */

/* next[ranks] = where each rank's floats start; returns the floats of all. */
static size_t start(move *m, const size_t *floats) {
    size_t sum = 0;
    for (size_t r = 0; r < m->ranks; r++) {
        m->next[r] = sum;
        sum += floats[r];
    }
    return sum;
}

/* Packs what this rank sends, and makes room for what it receives. */
static moert_status prepare(move *m) {
    find_moved(m);
    MOERT_TRY(visit_pieces(m, measure));
    MOERT_TRY(moert_alloc(&m->in, start(m, m->received), sizeof *m->in));
    MOERT_TRY(moert_alloc(&m->out, start(m, m->sent), sizeof *m->out));
    return visit_pieces(m, pack);
}

moert_status moert_move_experts(moert_optimizer *optimizer, size_t layer, const uint32_t *expert,
                                uint64_t *moved_bytes) {
    const moert_mesh *mesh = moert_model_mesh(optimizer->model);
    move m = {.optimizer = optimizer,
              .world = mesh->world,
              .rank = moert_comm_rank(mesh->world),
              .ranks = moert_comm_size(mesh->world),
              .replicas = moert_comm_size(mesh->replicas)};
    moert_status status;
    moert_phase_set(MOERT_PHASE_MOVE);
    MOERT_TRY_OR(done, moert_comm_agree(m.world, allocate(&m)));
    MOERT_TRY_OR(done, moert_model_place(optimizer->model, layer, expert));
    MOERT_TRY_OR(done, moert_comm_agree(m.world, prepare(&m)));
    MOERT_TRY_OR(done,
                 moert_comm_alltoallv(m.world, m.out, m.sent, m.in, m.received, sizeof *m.in));
    start(&m, m.received);
    status = visit_pieces(&m, unpack);
    if (status == MOERT_OK)
        status = moert_optimizer_renew(optimizer);
    status = moert_comm_agree(m.world, status);
    for (size_t r = 0; moved_bytes != NULL && r < m.ranks; r++)
        *moved_bytes += r != m.rank ? m.sent[r] * sizeof *m.out : 0;
done:
    release(&m);
    return status;
}
