/*
 * Computes the destinations of a batch's slots (moert/plan.h). index int32 [T,K] holds the expert
 * of each slot, 0 to E - 1, or -1 for none.
 *
 *   count_slots   counts[e,c] = slots of expert e among the tokens of chunk c. counts[E,c] = 1 if
 *                 an index of the chunk is outside -1..E-1, or if a token has an expert twice; else
 *                 0
 *   store_words   table[first + i] = from.word[i] for i < count. The host passes these words as an
 *                 argument, since the wait for a copy would take longer than the kernel.
 *   scan_chunks   counts[e,c] becomes the number of slots of expert e before chunk c, and total[e]
 *                 that of all its slots. Row E, which counts errors, is summed likewise.
 *   place_slots   destination[t,k] = (rank, row + nth) and, unless packed is null, packed[t,k] =
 *                 (0, position + nth) of the slot, slot number nth of expert e in the order of the
 *                 tokens. table[first + e] = (rank, row, position, end) holds for nth < end. Slots
 *                 from number `end` on go to the next member of the expert's chain, whose entry is
 *                 table[first + E + e], and so on. A slot without an expert gets (DROPPED,
 *                 DROPPED).
 *
 * A chunk is CHUNK tokens. A token has an expert at most once, so each expert has one word, with a
 * bit for each token of the chunk that has the expert. The bits below a token's bit count the
 * expert's earlier slots in the chunk. Integers only; deterministic, whatever the order in which
 * bits are set. A row group computes one chunk, or one row of counts. Local memory: bits[E + 1], 4
 * (E + 1) bytes: one word per expert and one for errors; in scan_chunks 4 bytes per item.
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

/* Sets bits[e] to the tokens of a chunk that have expert e, and bits[E] to 1 after an invalid
 * index. */
static inline void set_token_bits(global const int *restrict index, uint first,
                                  moert_plan_args args, local uint *bits) {
    const uint tokens = args.tokens, topk = args.topk, experts = args.experts;
    for (uint e = item_index(); e <= experts; e += MOERT_ITEMS)
        bits[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item_index(); i < CHUNK && first + i < tokens; i += MOERT_ITEMS)
        for (uint k = 0; k < topk; k++) {
            const int expert = index[(ulong)(first + i) * topk + k];
            const bool known = expert >= 0 && expert < (int)experts;
            if (expert != -1 && (!known || (atomic_or(&bits[expert], 1u << i) >> i & 1) != 0))
                atomic_or(&bits[experts], 1u);
        }
    barrier(CLK_LOCAL_MEM_FENCE);
}

KERNEL void count_slots(global const int *restrict index, global uint *restrict counts,
                        moert_plan_args args, local uint *bits) {
    const uint chunk = get_group_id(0);
    set_token_bits(index, chunk * CHUNK, args, bits);
    for (uint e = item_index(); e <= args.experts; e += MOERT_ITEMS)
        counts[(ulong)e * args.chunks + chunk] = popcount(bits[e]);
}

KERNEL void scan_chunks(global uint *restrict counts, global uint *restrict total,
                        moert_plan_args args) {
    local uint sums[MOERT_ITEMS];
    const uint chunks = args.chunks;
    const uint row = get_group_id(0), per_item = (chunks + MOERT_ITEMS - 1) / MOERT_ITEMS;
    const uint first = min(chunks, item_index() * per_item), end = min(chunks, first + per_item);
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
                        global uint2 *restrict packed, moert_plan_args args, local uint *bits) {
    const uint chunk = get_group_id(0), first = chunk * CHUNK;
    set_token_bits(index, first, args, bits);
    for (uint i = item_index(); i < CHUNK && first + i < args.tokens; i += MOERT_ITEMS)
        for (uint k = 0; k < args.topk; k++) {
            const ulong slot = (ulong)(first + i) * args.topk + k;
            const int expert = index[slot];
            uint2 to = DROPPED, from = DROPPED;
            if (expert >= 0) {
                const uint nth = before[(ulong)expert * args.chunks + chunk] +
                                 popcount(bits[expert] & ((1u << i) - 1));
                uint entry = args.first + (uint)expert;
                while (nth >= table[entry].w)
                    entry += args.experts;
                const uint4 base = table[entry];
                to = (uint2)(base.x, base.y + nth);
                from = (uint2)(0, base.z + nth);
            }
            destination[slot] = to;
            if (packed != 0)
                packed[slot] = from;
        }
}
