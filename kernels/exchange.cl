/*
 * Rows between ranks.
 *
 *   dispatch   window of rank(t,k) [row(t,k), 0..stride) = source[t, 0..width), zeros beyond width
 *   combine    target[t, i] = sum over k of weight[t,k] * window of rank(t,k) [row(t,k), i], fma from 0 in order of k;
 *              _rows: of float32, _codes: of bf16 codes, two in the place of a float
 *   gather     packed[i, 0..width) = window of rank(i) [row(i), 0..width), whose pairs are from[i]
 *
 * source, target [T,width]; weight [T,K]; destination [T,K] pairs (rank, row), rank DROPPED for a slot that takes no part.
 * A window's rows lie `stride` floats apart, a multiple of 16, and start at a multiple of 64 bytes.
 *
 * Required: REMOTE = 1: the windows are given by a table of raw addresses, one per rank (where a kernel may
 * follow any address: on CPUs those of its process, on NVIDIA's GPUs those of imported memory, too); REMOTE = 0: one plain buffer, the rank is not looked at.
 * A team moves TOKENS tokens or SLOTS slots; of a combine the next ones after all teams', as long as there are any. No local memory. Deterministic: each row has one writer, each sum one order.
 *
 * Non-temporal stores write a row without reading it first, which is worth a quarter of the time on CPUs; the fence that
 * they need comes once, at the end of the work-item.
 */
#if !defined(REMOTE)
#error "REMOTE must be defined (0, 1)"
#endif
#include "formats.h"

#if MOERT_ITEMS == 1
#define TOKENS 16
#define SLOTS  256
#else
#define TOKENS 1
#define SLOTS  32
#endif
#define STREAMS 8
#define DROPPED 0xffffffffu

#if REMOTE
#define WINDOW global const ulong *
static inline global float *row_of(WINDOW window, uint2 to, uint stride)
{
    return (global float *)(size_t)window[to.x] + (size_t)to.y * stride;
}
#else
#define WINDOW global float *
static inline global float *row_of(WINDOW window, uint2 to, uint stride)
{
    return window + (size_t)to.y * stride;
}
#endif

/* A window of slots has rows of one cell, which begins with the slot's float. */
typedef float16 cell;
#define CELL 16

/* Stores 16 floats at a multiple of 64 bytes. */
static inline void put(cell x, global float *p)
{
#if MOERT_CPU && defined(__clang__)
    __builtin_nontemporal_store(x, (global cell *)p);
#else
    *(global cell *)p = x;
#endif
}

/* Orders the stores of put before what the host does after this kernel. */
static inline void put_end(void)
{
#if MOERT_CPU && defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

#if MOERT_ITEMS == 1
/* A whole row to one expert after the other: the stores stream. */
static inline void dispatch_token(WINDOW window, global const uint2 *destination, global const float *x, uint topk,
                                  uint width, uint stride)
{
    for (uint k = 0; k < topk; k++) {
        uint2 to = destination[k];
        if (to.x == DROPPED)
            continue;
        global float *row = row_of(window, to, stride);
        uint whole = width / VEC * VEC;
        for (uint i = 0; i < whole; i += VEC)
            put(vload16(0, x + i), row + i);
        if (whole < width)
            put(load_part(x + whole, width - whole), row + whole);
    }
}
#else
/* A batch of steps to all experts: it is read once. */
static inline void dispatch_token(WINDOW window, global const uint2 *destination, global const float *x, uint topk,
                                  uint width, uint stride)
{
    for (int i = 0; i < (int)stride; i += BATCH * VEC) {
        vec part[BATCH];
        load_batch(part, x + i, (int)width - i);
        for (uint k = 0; k < topk; k++)
            if (destination[k].x != DROPPED)
                store_batch(part, row_of(window, destination[k], stride) + i, (int)stride - i);
    }
}
#endif

KERNEL void dispatch_rows(WINDOW window, global const uint2 *destination, global const float *source, uint tokens,
                          uint topk, uint width, uint stride)
{
    uint first = get_group_id(0) * TOKENS, last = min(first + TOKENS, tokens);
    for (uint t = first; t < last; t++)
        dispatch_token(window, destination + (size_t)t * topk, source + (size_t)t * width, topk, width, stride);
    put_end();
}

KERNEL void dispatch_slots(WINDOW window, global const uint2 *destination, global const float *source, uint slots)
{
    uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, slots);
    for (uint s = first + item_index(); s < last; s += MOERT_ITEMS) {
        uint2 to = destination[s];
        cell x = 0.0f;
        x.s0 = source[s];
        if (to.x != DROPPED)
            put(x, row_of(window, to, CELL));
    }
    put_end();
}

/* The numbers of a row from i on: n are wanted, and there are whole vectors of floats. */
INLINED vec read_row(global const float *row, bool codes, int i, int n)
{
    if (codes)
        return as_vec(load_shorts((global const ushort *)row + i, n) << 16);
#if MOERT_ITEMS == 1
    return *(global const vec *)(row + i);
#else
    return load_part(row + i, n);
#endif
}

/* Adds the rows of up to STREAMS slots, read side by side, to a token's sum. */
#if MOERT_ITEMS == 1
INLINED void combine_slots_of(WINDOW window, global const uint2 *destination, global const float *weight, bool codes,
                              global float *out, bool started, uint slots, uint width, uint stride)
{
    global const float *row[STREAMS];
    float factor[STREAMS];
    uint streams = 0;
    for (uint k = 0; k < slots; k++) {
        if (destination[k].x == DROPPED)
            continue;
        row[streams] = row_of(window, destination[k], stride);
        factor[streams++] = weight != 0 ? weight[k] : 1.0f;
    }
    for (uint i = 0; i < width; i += VEC) {
        vec sum = started ? load_part(out + i, width - i) : (vec)0.0f;
        for (uint j = 0; j < streams; j++)
            sum = fma((vec)factor[j], read_row(row[j], codes, i, width - i), sum);
        store_part(sum, out + i, width - i);
    }
}
#else
INLINED void combine_slots_of(WINDOW window, global const uint2 *destination, global const float *weight, bool codes,
                              global float *out, bool started, uint slots, uint width, uint stride)
{
    global const float *row[STREAMS]; /* null: none */
    float factor[STREAMS];
    UNROLL for (uint k = 0; k < STREAMS; k++) {
        const bool taken = k < slots && destination[k].x != DROPPED;
        row[k] = taken ? row_of(window, destination[k], stride) : 0;
        factor[k] = taken && weight != 0 ? weight[k] : 1.0f;
    }
    for (int i = 0; i < (int)width; i += VEC) {
        const int n = (int)width - i;
        vec sum = started ? load_part(out + i, n) : (vec)0.0f, part[STREAMS];
        UNROLL for (int k = 0; k < STREAMS; k++)
            part[k] = read_row(row[k], codes, i, row[k] != 0 ? n : 0);
        UNROLL for (int k = 0; k < STREAMS; k++)
            sum = row[k] != 0 ? fma((vec)factor[k], part[k], sum) : sum;
        store_part(sum, out + i, n);
    }
}
#endif

/*
 * A token with more than STREAMS slots continues from the partial sum in `target`, which has the same bits as one long
 * chain. weight 0 (null) means 1 for all.
 */
INLINED void combine_group(WINDOW window, global const uint2 *destination, global const float *weight, bool codes,
                           global float *target, uint tokens, uint topk, uint width, uint stride)
{
    for (uint first = get_group_id(0) * TOKENS; first < tokens; first += get_num_groups(0) * TOKENS)
        for (uint t = first; t < min(first + TOKENS, tokens); t++) {
            uint k = 0;
            do {
                const size_t slot = (size_t)t * topk + k;
                combine_slots_of(window, destination + slot, weight != 0 ? weight + slot : 0, codes,
                                 target + (size_t)t * width, k > 0, min(topk - k, (uint)STREAMS), width, stride);
                k += STREAMS;
            } while (k < topk);
        }
}

KERNEL void combine_rows(WINDOW window, global const uint2 *destination, global const float *weight,
                         global float *target, uint tokens, uint topk, uint width, uint stride)
{
    combine_group(window, destination, weight, false, target, tokens, topk, width, stride);
}

KERNEL void combine_codes(WINDOW window, global const uint2 *destination, global const float *weight,
                          global float *target, uint tokens, uint topk, uint width, uint stride)
{
    combine_group(window, destination, weight, true, target, tokens, topk, width, stride);
}

/* target[slot] = the float at the start of its row, 0 when dropped. */
KERNEL void combine_slots(WINDOW window, global const uint2 *destination, global float *target, uint slots)
{
    uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, slots);
    for (uint s = first + item_index(); s < last; s += MOERT_ITEMS) {
        uint2 to = destination[s];
        target[s] = to.x != DROPPED ? row_of(window, to, CELL)[0] : 0.0f;
    }
}

KERNEL void gather_rows(WINDOW window, global const uint2 *from, global float *packed, uint rows, uint width, uint stride)
{
    uint first = get_group_id(0) * TOKENS, last = min(first + TOKENS, rows);
    for (uint n = first; n < last; n++) {
        global const float *row = row_of(window, from[n], stride);
        global float *out = packed + (size_t)n * width;
        for (int i = 0; i < (int)width; i += VEC)
            store_part(load_part(row + i, (int)width - i), out + i, (int)width - i);
    }
}

#if REMOTE
/* The start-up test: each rank writes row `rank` of every window, then every rank reads all rows of all windows. */
static inline float probe_value(uint round, uint ranks, uint writer, uint owner)
{
    return (float)((round * ranks + writer) * ranks + owner + 1);
}

KERNEL void probe_write(WINDOW window, uint ranks, uint rank, uint round)
{
    for (uint owner = item_index(); owner < ranks; owner += MOERT_ITEMS)
        put((cell)probe_value(round, ranks, rank, owner), row_of(window, (uint2)(owner, rank), CELL));
    put_end();
}

KERNEL void probe_read(WINDOW window, global uint *wrong, uint ranks, uint round)
{
    uint count = 0;
    for (uint owner = 0; owner < ranks; owner++)
        for (uint writer = 0; writer < ranks; writer++) {
            cell x = *(global const cell *)row_of(window, (uint2)(owner, writer), CELL);
            count += any(x != (cell)probe_value(round, ranks, writer, owner));
        }
    if (is_first_item())
        *wrong = count;
}
#endif
