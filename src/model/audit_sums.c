/* Repeats the sums of gradients over the ranks with exchanged shards. Each rank sums the shard of
 * another rank, from copies of the nodes that were sent. Experts with replicas are not summed
 * again. */
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "comm/tree_sum.h"
#include "model/audit_internal.h"

static const char *const names[MOERT_AUDIT_SUMS] = {
    "the gradients of the weights that all tokens use in the MLP",
    "the gradients of attention's weights", "the gradients of embedding, head and last norm"};

const char *moert_audit_sum_name(size_t index) {
    return names[index / 2];
}

/* Whether the sum is repeated. A single rank has nothing to sum. */
static bool is_summed(const moert_audit *audit, const moert_block *block) {
    return audit->check != NULL && moert_comm_size(block->comm) > 1;
}

/* Reserves `count` floats of host memory. */
static moert_status keep(float **floats, size_t *room, size_t count) {
    if (*room >= count)
        return MOERT_OK;
    MOERT_FREE(*floats);
    *floats = NULL;
    MOERT_TRY(MOERT_NEW_ARRAY(floats, count));
    *room = count;
    return MOERT_OK;
}

moert_status moert_audit_keep_addend(moert_audit *audit, size_t index, const moert_block *block) {
    moert_audit_sum *sum = &audit->sum[index];
    size_t first;
    const size_t count = moert_block_shard(block, &first);
    if (!is_summed(audit, block))
        return MOERT_OK;
    MOERT_TRY(keep(&sum->shard, &sum->shard_room, count));
    const moert_elements gradient = moert_block_gradient(block, first);
    return count > 0 ? moert_elements_read(&gradient, 0, count, sum->shard) : MOERT_OK;
}

moert_status moert_audit_keep_nodes(moert_audit *audit, size_t index, const moert_block *block,
                                    const moert_batch *batch) {
    moert_audit_sum *sum = &audit->sum[index];
    moert_tree_node list[MOERT_TREE_MAX_NODES];
    const size_t nodes = moert_tree_nodes(moert_batch_span(batch), list),
                 floats = moert_max(nodes, 1) * block->floats;
    sum->block = NULL;
    if (!is_summed(audit, block))
        return MOERT_OK;
    sum->block = block;
    MOERT_TRY(keep(&sum->nodes, &sum->node_room, floats));
    return nodes > 0 ? moert_buffer_read(block->nodes, 0, sum->nodes,
                                         nodes * block->floats * sizeof(float))
                     : MOERT_OK;
}

static uint64_t hash_of(const float *values, size_t count) {
    uint64_t hash;
    memcpy(&hash, moert_checksum_of(values, count * sizeof *values).byte, sizeof hash);
    return hash;
}

/* Computes the gradients that a shard should have: the sum over the ranks, to which the shard's
 * earlier gradients are added if `accumulate`. */
static void add(const moert_audit_sum *sum, const float *of_ranks, size_t count, bool accumulate,
                float *values) {
    const bool kept = sum->block->kept != NULL;
    for (size_t i = 0; i < count; i++) {
        const float value = accumulate ? sum->shard[i] + of_ranks[i] : of_ranks[i];
        values[i] =
            kept ? moert_dtype_decode(MOERT_DTYPE_BF16, moert_dtype_encode(MOERT_DTYPE_BF16, value))
                 : value;
    }
}

/* Fills in three hashes for this rank's shard of a block: of the sum over the ranks (if hosts sum),
 * of the gradient, and of the gradient that the sum should give. */
static moert_status take_own(const moert_audit *audit, moert_audit_sum *sum) {
    const moert_block *block = sum->block;
    size_t first;
    const size_t count = moert_block_shard(block, &first);
    const bool on_hosts = block->peers == NULL, accumulate = audit->run->accumulate;
    const moert_elements gradient = moert_block_gradient(block, first);
    float *values = NULL;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&values, 2 * count));
    sum->hash[0] = sum->hash[1] = sum->expected = 0;
    sum->compares = on_hosts || (!accumulate && block->kept == NULL);
    if (count > 0) {
        MOERT_TRY_OR(done, moert_elements_read(&gradient, 0, count, values));
        sum->hash[0] = sum->hash[1] = sum->expected = hash_of(values, count);
    }
    if (count > 0 && on_hosts) {
        MOERT_TRY_OR(done, moert_buffer_read(block->nodes, first * sizeof(float), values,
                                             count * sizeof(float)));
        sum->hash[0] = hash_of(values, count);
        add(sum, values, count, accumulate, values + count);
        sum->expected = hash_of(values + count, count);
    }
    status = MOERT_OK;
done:
    free(values);
    return status;
}

static moert_status take_all(moert_audit *audit, uint64_t hash[MOERT_AUDIT_SUM_HASHES]) {
    for (size_t i = 0; i < MOERT_AUDIT_SUMS; i++) {
        moert_audit_sum *sum = &audit->sum[i];
        if (sum->block == NULL)
            continue;
        MOERT_TRY(take_own(audit, sum));
        hash[2 * i] = sum->compares ? sum->hash[0] : 0;
        hash[2 * i + 1] = sum->hash[1];
    }
    return MOERT_OK;
}

moert_status moert_audit_own_sums(moert_audit *audit, uint64_t hash[MOERT_AUDIT_SUM_HASHES]) {
    return moert_comm_agree(audit->model->mesh->world, take_all(audit, hash));
}

/* Repeats the sum for the shard of the rank `distance` before this one. */
static moert_status sum_again(const moert_audit *audit, moert_audit_sum *sum, size_t distance,
                              uint64_t *hash) {
    const moert_block *block = sum->block;
    const size_t ranks = moert_comm_size(block->comm),
                 owner = (moert_comm_rank(block->comm) + ranks - distance % ranks) % ranks;
    const size_t *border = block->border + owner;
    moert_tree_sum *second = NULL;
    MOERT_TRY(moert_tree_sum_start_shifted(block->comm, audit->model->mesh->spans, sum->nodes,
                                           block->border, distance, &second));
    MOERT_TRY(moert_tree_sum_wait(second));
    *hash = sum->compares && border[1] > border[0]
                ? hash_of(sum->nodes + border[0], border[1] - border[0])
                : 0;
    return MOERT_OK;
}

moert_status moert_audit_repeat_sums(moert_audit *audit, size_t distance,
                                     uint64_t hash[MOERT_AUDIT_SUM_HASHES]) {
    for (size_t i = 0; i < MOERT_AUDIT_SUMS; i++) {
        moert_audit_sum *sum = &audit->sum[i];
        if (sum->block == NULL)
            continue;
        MOERT_TRY(sum_again(audit, sum, distance, &hash[2 * i]));
        hash[2 * i + 1] = sum->expected;
    }
    return MOERT_OK;
}

void moert_audit_forget_sums(moert_audit *audit) {
    for (size_t i = 0; i < MOERT_AUDIT_SUMS; i++)
        audit->sum[i].block = NULL;
}

void moert_audit_free_sums(moert_audit *audit) {
    for (size_t i = 0; i < MOERT_AUDIT_SUMS; i++)
        MOERT_FREE(audit->sum[i].nodes, audit->sum[i].shard);
}
