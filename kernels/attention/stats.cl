/*
 * Prepares the backward of attention/nvidia/attention.cl: lse / log 2 and delta of each query (log
 * 2 is the natural logarithm).
 *
 *   stats[slot,head,0,i] = lse[t,head] / log 2
 *   stats[slot,head,1,i] = dout[t,head] . out[t,head]
 *                                                      t = position 64 block + i of a document, or
 *                                                      of a sequence; slots count the blocks of all
 *                                                      documents; infinity and 0 past the end
 *   out_bf16[t,head] = bf16(out[t,head])               unless out_bf16 is null
 *
 * dout is bf16 because attention.cl computes dp from the rounded dout. With the same dout in delta,
 * the ds of a row sum to nearly 0.
 *
 * Required: VALUE_SIZE, a multiple of 64. Local memory: 1 KiB. Deterministic: each sum has a fixed
 * order.
 */
#include "args/attention.h"
#ifndef VALUE_SIZE
#error "VALUE_SIZE must be defined"
#endif
#define ITEMS 256
#define ROWS  MOERT_STATS_ROWS /* rows of a work-group; 16 work-items compute one row */
#define BLOCK MOERT_ATTENTION_BLOCK_ROWS
#define GROUP __attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel

/* Rounds to nearest even; a NaN stays a NaN. */
static inline ushort4 to_bf16(float4 x) {
    const uint4 bits = as_uint4(x);
    const uint4 rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return convert_ushort4(isnan(x) ? (int4)0x7FC0 : as_int4(rounded));
}

static inline float4 from_bf16(ushort4 x) {
    return as_float4(convert_uint4(x) << 16);
}

/* `blocks`: the 64-position blocks of all documents, or null if each sequence is one document.
 * Grid: {4 times the blocks of a sequence; heads; sequences}, or {4 times the blocks; heads; 1}. */
GROUP void attention_stats(global const float *out, global ushort *out_bf16,
                           global const ushort *dout, global const float *lse, global float *stats,
                           global const moert_attention_block *blocks, moert_stats_args args) {
    local float parts[ROWS][16];
    const int own = get_local_id(0) / 16, part = get_local_id(0) % 16;
    const size_t number = get_group_id(0) / 4, head = get_group_id(1), sequence = get_group_id(2);
    const ulong first = sequence * args.length;
    const moert_attention_block whole = {first, first, (int)args.length, (int)number * BLOCK,
                                         (int)(sequence * (get_num_groups(0) / 4))};
    const moert_attention_block b = blocks != 0 ? blocks[number] : whole;
    const int in_block = get_group_id(0) % 4 * ROWS + own, position = b.first + in_block;
    const size_t token = b.token + position, row = token * args.heads + head;
    float4 sum = 0.0f;
    for (int d = 4 * part; d < VALUE_SIZE && position < b.length; d += 64) {
        const float4 x = *(global const float4 *)(out + row * VALUE_SIZE + d);
        if (out_bf16 != 0)
            *(global ushort4 *)(out_bf16 + row * VALUE_SIZE + d) = to_bf16(x);
        sum = fma(x, from_bf16(*(global const ushort4 *)(dout + row * VALUE_SIZE + d)), sum);
    }
    parts[own][part] = (sum.x + sum.y) + (sum.z + sum.w);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (part > 0)
        return;
    float delta = 0.0f;
    IN_ORDER_FOR(int i = 0; i < 16; i++)
        delta += parts[own][i];
    stats += ((size_t)(b.slot + b.first / BLOCK) * args.heads + head) * 2 * BLOCK + in_block;
    stats[0] = position < b.length ? lse[row] * 1.44269504088896341f : INFINITY;
    stats[BLOCK] = delta;
}
