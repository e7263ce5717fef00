/*
 * Where the slots of a batch go (moert/plan.h): index int32 [T,K] has the expert of each slot, of
 * E, or -1 for none.
 *
 *   count_slots   counts[e,c] = slots of expert e among the tokens of chunk c; counts[E,c] =
 *                 whether an index of the chunk is outside -1..E-1, or one expert twice in a token
 *   store_words   table[first + i] = words.word[i] for i < count: what the host tells travels as an
 *                 argument, since a kernel waits longer for a copy before it than it runs
 *   scan_chunks   counts[e,c] becomes the slots of expert e before chunk c, total[e] all of them;
 *                 and so for row E
 *   place_slots   destination[t,k] = (rank, row) and, unless it is null, packed[t,k] = (0,
 *                 position) of the slot: table[first + e] = (rank, row, position, 0) of the
 *                 first slot of expert e, and the others follow in the order of their tokens;
 *                 (DROPPED, DROPPED) for no expert
 *
 * A chunk is CHUNK tokens: a token has an expert once, so a word of bits says which tokens of a
 * chunk have it, and the bits below a token's are the slots before its own. Integers only;
 * deterministic, in whatever order bits are set. A row_group takes a chunk, or a row of counts. Local
 * memory: marks[E + 1], of each expert and of what is wrong.
 */
#include "args/exchange.h"

#define CHUNK   MOERT_PLAN_CHUNK
#define DROPPED 0xffffffffu

typedef struct words {
    uint word[MOERT_PLAN_WORDS];
} words;

KERNEL void store_words(words from, global uint *restrict table, moert_plan_args args) {
    for (uint i = item_index(); i < args.count; i += MOERT_ITEMS)
        table[args.first + i] = from.word[i];
}

/* The tokens of a chunk by expert. */
static inline void mark_tokens(global const int *restrict index, uint first, moert_plan_args args,
                               local uint *marks) {
    const uint tokens = args.tokens, topk = args.topk, experts = args.experts;
    for (uint e = item_index(); e <= experts; e += MOERT_ITEMS)
        marks[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item_index(); i < CHUNK && first + i < tokens; i += MOERT_ITEMS)
        for (uint k = 0; k < topk; k++) {
            const int expert = index[(ulong)(first + i) * topk + k];
            const bool known = expert >= 0 && expert < (int)experts;
            if (expert != -1 && (!known || (atomic_or(&marks[expert], 1u << i) >> i & 1) != 0))
                atomic_or(&marks[experts], 1u);
        }
    barrier(CLK_LOCAL_MEM_FENCE);
}

KERNEL void count_slots(global const int *restrict index, global uint *restrict counts,
                        moert_plan_args args, local uint *marks) {
    const uint chunk = get_group_id(0);
    mark_tokens(index, chunk * CHUNK, args, marks);
    for (uint e = item_index(); e <= args.experts; e += MOERT_ITEMS)
        counts[(ulong)e * args.chunks + chunk] = popcount(marks[e]);
}

KERNEL void scan_chunks(global uint *restrict counts, global uint *restrict total,
                        moert_plan_args args) {
    local uint sums[MOERT_ITEMS];
    const uint chunks = args.chunks;
    const uint row = get_group_id(0), share = (chunks + MOERT_ITEMS - 1) / MOERT_ITEMS;
    const uint first = min(chunks, item_index() * share), end = min(chunks, first + share);
    global uint *count = counts + (ulong)row * chunks;
    uint sum = 0, before = 0;
    for (uint c = first; c < end; c++)
        sum += count[c];
    sums[item_index()] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < item_index(); i++)
        before += sums[i];
    for (uint c = first; c < end; c++) {
        const uint own = count[c];
        count[c] = before;
        before += own;
    }
    if (item_index() == MOERT_ITEMS - 1)
        total[row] = before;
}

KERNEL void place_slots(global const int *restrict index, global const uint *restrict before,
                        global const uint4 *restrict table, global uint2 *restrict destination,
                        global uint2 *restrict packed, moert_plan_args args, local uint *marks) {
    const uint chunk = get_group_id(0), first = chunk * CHUNK;
    mark_tokens(index, first, args, marks);
    for (uint i = item_index(); i < CHUNK && first + i < args.tokens; i += MOERT_ITEMS)
        for (uint k = 0; k < args.topk; k++) {
            const ulong slot = (ulong)(first + i) * args.topk + k;
            const int expert = index[slot];
            uint2 to = DROPPED, from = DROPPED;
            if (expert >= 0) {
                const uint4 lane = table[args.first + (uint)expert];
                const uint place = before[(ulong)expert * args.chunks + chunk] +
                                   popcount(marks[expert] & ((1u << i) - 1));
                to = (uint2)(lane.x, lane.y + place);
                from = (uint2)(0, lane.z + place);
            }
            destination[slot] = to;
            if (packed != 0)
                packed[slot] = from;
        }
}
