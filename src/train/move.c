/*
 * Moves experts between ranks (move.h). Sender and receiver of a move list the same parcels in the
 * same order. Every replica of the old owner sends the weight to the corresponding replica of the
 * new owner. The moments are sharded over the replicas of the old owner, and again over those of
 * the new owner.
 */
#include "train/move.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "device/elements.h"
#include "layer/ship.h"

/* kinds of values that move: the weight; the moments, numbered from here on */
enum { WEIGHT, MOMENTS };

/* A tensor that moves. The tensor's offsets, before and after the move, count from the start of its
 * block, which has the same shape on all ranks. */
typedef struct moved {
    const moert_model_tensor *tensor; /* the tensor, as it is after the move */
    moert_block *block;               /* this rank's block that contains the tensor */
    size_t owner, offset;             /* owner and offset of the tensor before the move */
} moved;

typedef struct move {
    moert_optimizer *optimizer;
    moert_comm *world;
    size_t rank, ranks, replicas;
    moert_model_tensor *before; /* [tensors] */
    moved *moved;               /* [count] tensors that this rank sends or receives */
    size_t count;
    size_t *rank_of; /* [EP * replicas] the rank of each replica of each member of the EP group */
    moert_parcels out, in;
} move;

static moert_status allocate(move *m) {
    const moert_model *model = m->optimizer->model;
    const moert_mesh *mesh = moert_model_mesh(model);
    const size_t tensors = moert_model_tensor_count(model);
    moert_mesh_place *places;
    MOERT_TRY(MOERT_NEW_ARRAY(&m->before, tensors));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->moved, tensors));
    MOERT_TRY(MOERT_NEW_ARRAY(&m->rank_of, m->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&places, m->ranks));
    moert_mesh_places(m->world, moert_comm_size(mesh->experts), places);
    for (size_t r = 0; r < m->ranks; r++)
        m->rank_of[places[r].member * m->replicas + places[r].replica] = r;
    free(places);
    for (size_t t = 0; t < tensors; t++)
        m->before[t] = moert_model_tensors(model)[t];
    return MOERT_OK;
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

/* ---- parcels ---- */

/* The part of a tensor that lies in a replica's shard of the block, if the tensor begins at
 * `offset`. */
static moert_model_range shard_of(const moved *of, size_t offset, size_t replica) {
    const size_t *border = of->block->border, end = offset + of->tensor->elements;
    const size_t from = moert_max(border[replica], offset),
                 to = moert_min(border[replica + 1], end);
    return from < to ? (moert_model_range){from - offset, to - from} : (moert_model_range){0, 0};
}

/* The values of a kind (weight or moment) in a block, from `offset` on. */
static moert_elements elements_of(const move *m, const moert_block *block, size_t kind,
                                  size_t offset) {
    return kind == WEIGHT ? (moert_elements){block->weight, MOERT_DTYPE_F32, offset}
                          : moert_optimizer_moment(m->optimizer, block, kind - MOMENTS, offset);
}

/* Lists the parcels of a tensor from replica `source` of the old owner to replica `target` of the
 * new owner. */
static moert_status list_replicas(move *m, const moved *of, size_t source, size_t target) {
    const moert_model_range old = shard_of(of, of->offset, source),
                            new = shard_of(of, of->tensor->offset, target);
    const size_t first = moert_max(old.first, new.first),
                 end = moert_min(old.first + old.count, new.first + new.count);
    const size_t from = m->rank_of[of->owner * m->replicas + source],
                 to = m->rank_of[of->tensor->owner * m->replicas + target];
    const size_t kinds = MOMENTS + moert_optimizer_of(m->optimizer->model)->moments;
    for (size_t kind = WEIGHT; kind < kinds; kind++) {
        const size_t begin = kind == WEIGHT ? 0 : first;
        const size_t count = kind != WEIGHT ? (first < end ? end - first : 0)
                                            : (source == target ? of->tensor->elements : 0);
        if (count > 0 && from == m->rank)
            MOERT_TRY(moert_parcels_add(&m->out, to, count,
                                        elements_of(m, of->block, kind, of->offset + begin)));
        if (count > 0 && to == m->rank)
            MOERT_TRY(moert_parcels_add(
                &m->in, from, count, elements_of(m, of->block, kind, of->tensor->offset + begin)));
    }
    return MOERT_OK;
}

/* Lists all parcels that this rank sends or receives. Sender and receiver use the same order. */
static moert_status list_parcels(move *m) {
    find_moved(m);
    for (size_t i = 0; i < m->count; i++)
        for (size_t q = 0; q < m->replicas * m->replicas; q++)
            MOERT_TRY(list_replicas(m, &m->moved[i], q / m->replicas, q % m->replicas));
    return MOERT_OK;
}

/* ---- moving the parcels ---- */

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
    MOERT_TRY_OR(done, moert_ship(m.world, &m.out, &m.in, list_parcels(&m)));
    status = moert_comm_agree(m.world, moert_optimizer_renew(optimizer));
    for (size_t i = 0; moved_bytes != NULL && i < m.out.count; i++)
        *moved_bytes += m.out.list[i].peer != m.rank ? m.out.list[i].count * sizeof(float) : 0;
done:
    moert_parcels_free(&m.out);
    moert_parcels_free(&m.in);
    MOERT_FREE(m.rank_of, m.moved, m.before);
    return status;
}
