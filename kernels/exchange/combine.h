/*
 * Included by the kernels that move rows between ranks: a row group's part of a combine.
 *
 * In the CPU form, a row group sums the rows of TOKENS tokens, up to STREAMS rows at a time. In the
 * GPU form, it sums one strip of one token's rows, STRIP floats of each, and issues all loads of a
 * strip at once. Reading a row from another GPU takes two microseconds, a latency that only many
 * strips in flight hide. Strips of a token have consecutive numbers. A combine may have fewer
 * work-groups than strips; each then continues with the tokens or strips `row_groups` further on.
 */
#include "exchange/slots.h"
#include "lib/formats.h"

/* Arguments of a combine. A null weight means 1 for all slots; bf16: rows hold bf16 values. */
typedef struct combining {
    WINDOW window;
    global const uint2 *destination;
    global const float *weight;
    global float *target;
    moert_exchange_args args;
    bool bf16;
    uint receiver;
} combining;

#if MOERT_ITEMS == 1
/* The values of a row from column i on. Of a bf16 row, n values are read, and the rest of the
 * vector is zero. A float32 row consists of whole vectors. */
INLINED vec read_row(global const float *row, bool bf16, int i, int n) {
    if (bf16)
        return as_vec(load_shorts((global const ushort *)row + i, n) << 16);
    return *(global const vec *)(row + i);
}

/* Adds the rows of up to STREAMS slots, from a token's slot `from` on, to the token's sum. `token`
 * is the number of the token's first slot. */
INLINED void combine_slots_of(const combining *c, global float *out, size_t token, uint from) {
    const uint width = c->args.width, end = min(from + STREAMS, c->args.topk);
    const bool firsts = c->receiver != NO_RECEIVER && c->args.chain > 1;
    global const float *row[STREAMS];
    float factor[STREAMS];
    uint streams = 0;
    for (uint k = from; k < end; k++) {
        const uint2 to = slot_row(c->destination, token + k, c->receiver);
        if (to.x == DROPPED || (firsts && first_slot(c->destination + token, k, DROPPED) != k))
            continue;
        row[streams] = row_from(c->window, to, c->receiver, c->args.stride);
        factor[streams++] = c->weight != 0 ? c->weight[token + k] : 1.0f;
    }
    for (uint i = 0; i < width; i += VEC) {
        vec sum = from > 0 ? load_part(out + i, width - i) : (vec)0.0f;
        for (uint j = 0; j < streams; j++)
            sum = fma((vec)factor[j], read_row(row[j], c->bf16, i, width - i), sum);
        store_part(sum, out + i, width - i);
    }
}

/* A token with more than STREAMS slots continues from the partial sum in `target`, with the same
 * bits as if all slots were added at once. */
INLINED void combine_row_group(uint nth, uint row_groups, const combining *c) {
    for (uint first = nth * TOKENS; first < c->args.tokens; first += row_groups * TOKENS)
        for (uint t = first; t < min(first + TOKENS, c->args.tokens); t++) {
            uint k = 0;
            do {
                combine_slots_of(c, c->target + (size_t)t * c->args.width, (size_t)t * c->args.topk,
                                 k);
                k += STREAMS;
            } while (k < c->args.topk);
        }
}
#else
/* Loads 16 bytes; zeros for null. The load is volatile assembly, so that the compiler does not
 * delay each load until its use: all loads must be in flight together. */
INLINED uint4 load_quad(global const float *p) {
    uint4 x = 0;
#if MOERT_NVIDIA
    __asm__ volatile("{.reg .pred given; setp.ne.u64 given, %4, 0; @given ld.global.v4.u32 {%0, "
                     "%1, %2, %3}, [%4];}"
                     : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                     : "l"(p));
#else
    if (p != 0)
        x = *(global const uint4 *)p;
#endif
    return x;
}

/* 16 bytes of a row as 4 floats, or as 8 floats from bf16 in the order of the columns. */
INLINED void widen(uint4 x, bool bf16, vec value[2]) {
    const uint high = 0xffff0000u;
    value[0] = as_vec(bf16 ? (uint4)(x.x << 16, x.x & high, x.y << 16, x.y & high) : x);
    value[1] = as_vec((uint4)(x.z << 16, x.z & high, x.w << 16, x.w & high));
}

/* Adds 16 bytes, at `offset` floats, of the rows of STREAMS slots from the token's slot `first`
 * on. */
INLINED void add_slots(const combining *c, size_t slot, uint first, size_t offset, vec sum[2]) {
    const uint topk = c->args.topk;
    global float *row[STREAMS];
    float factor[STREAMS];
    uint2 to[STREAMS];
    uint4 part[STREAMS];
    load_slots(c->destination, c->receiver, slot, first, topk, to);
    if (c->receiver != NO_RECEIVER && c->args.chain > 1)
        keep_first(c->destination + slot, first, DROPPED, to);
    find_rows(c->window, to, c->receiver, c->args.stride, row);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        factor[k] = c->weight != 0 ? c->weight[slot + min(first + k, topk - 1)] : 1.0f;
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        part[k] = load_quad(row[k] != 0 ? row[k] + offset : 0);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++) {
        vec value[2];
        widen(part[k], c->bf16, value);
        UNROLL_FOR(int i = 0; i < 2; i++)
            sum[i] = row[k] != 0 ? fma((vec)factor[k], value[i], sum[i]) : sum[i];
    }
}

/* Computes strip number `nth` over all tokens: each work-item sums 16 bytes of each of a token's
 * rows. */
INLINED void combine_strip(uint nth, uint strips, const combining *c) {
    const uint topk = c->args.topk, width = c->args.width, t = nth / strips;
    const bool bf16 = c->bf16;
    /* an item's 8 bf16 columns begin twice as far from the strip's start as its 4 floats would */
    const int i = (int)(nth % strips * (bf16 ? 2 * STRIP : STRIP)) + (bf16 ? part_start() : 0),
              n = (int)width - i;
    global float *out = c->target + (size_t)t * width + i;
    vec sum[2] = {0.0f, 0.0f};
    if (n <= part_start())
        return;
    for (uint first = 0; first < topk; first += STREAMS)
        add_slots(c, (size_t)t * topk, first, (size_t)(i + part_start()) / (bf16 ? 2 : 1), sum);
    store_part(sum[0], out, n);
    if (bf16)
        store_part(sum[1], out + PART, n - PART);
}

INLINED void combine_row_group(uint nth, uint row_groups, const combining *c) {
    const uint columns = c->bf16 ? 2 * STRIP : STRIP,
               strips = (c->args.width + columns - 1) / columns;
    for (; nth < c->args.tokens * strips; nth += row_groups)
        combine_strip(nth, strips, c);
}
#endif
