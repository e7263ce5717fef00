/*
 * Rows between ranks.
 *
 *   dispatch   window of rank(t,k) [row(t,k), 0..stride) = source[t, 0..width), zeros beyond width
 *   combine    target[t, i] = sum over k of weight[t,k] * window of rank(t,k) [row(t,k), i], fma from 0 in order of k;
 *              _rows: of float32, _codes: of bf16 codes, two in the place of a float
 *   gather     packed[i, 0..width) = window of rank(i) [row(i), 0..width), whose pairs are from[i]
 *   dispatch_once  as dispatch, but to another rank than `own` only the row of a token's first slot there, and to all:
 *              word of rank(t,k) [row(t,k)] = the row that has been stored for it, its own or that of the first slot
 *   fan_out    window [row] = window [word[row]], of this rank, where that is another row below `capacity`
 *
 * source, target [T,width]; weight [T,K]; destination [T,K] pairs (rank, row), rank DROPPED for a slot that takes no part.
 * A window's rows lie `stride` floats apart, a multiple of 16, and start at a multiple of 64 bytes; its words, uint32
 * [capacity], lie behind its `capacity` rows.
 *
 * Required: REMOTE = 1: the windows are given by a table of raw addresses, one per rank (where a kernel may
 * follow any address: on CPUs those of its process, on NVIDIA's GPUs those of imported memory, too); REMOTE = 0: one plain buffer, the rank is not looked at.
 * No local memory. Deterministic: each row has one writer, each sum one order.
 *
 * In the CPU form a team moves TOKENS tokens or rows, or SLOTS slots. In the GPU form it moves a piece of one token's rows,
 * of PIECE floats each in dispatch and STRIP in combine, which are all under way at once: between GPUs it takes two
 * microseconds to fetch a row, and as many pieces hide that as there is room for. Pieces of a token follow each other.
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
#define FAN_TEAMS 1
#else
#define TOKENS 1
#define SLOTS  32
#define PIECE  (BATCH * VEC)
#define STRIP  VEC
#define FAN_TEAMS 4
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

static inline global uint *words_of(global float *rows, uint capacity, uint stride)
{
    return (global uint *)(rows + (size_t)capacity * stride);
}

/* The first slot of a token on the rank of slot k; k is one of rank `own`, where each slot gets its row. */
static inline uint first_slot(global const uint2 *destination, uint k, uint own)
{
    uint first = 0;
    while (destination[k].x != own && destination[first].x != destination[k].x)
        first++;
    return destination[k].x != own ? first : k;
}

#define EACH DROPPED /* own: rows go to each slot */

#if MOERT_ITEMS == 1
/* A whole row to one expert after the other: the stores stream. */
INLINED void dispatch_token(WINDOW window, global const uint2 *destination, global const float *x, uint topk,
                            uint width, uint stride, bool once, uint own)
{
    const uint whole = width / VEC * VEC;
    for (uint k = 0; k < topk; k++) {
        const uint2 to = destination[k];
        if (to.x == DROPPED || (once && first_slot(destination, k, own) != k))
            continue;
        global float *row = row_of(window, to, stride);
        for (uint i = 0; i < whole; i += VEC)
            put(vload16(0, x + i), row + i);
        if (whole < width)
            put(load_part(x + whole, width - whole), row + whole);
    }
}

INLINED void dispatch_team(WINDOW window, global const uint2 *destination, global const float *source, uint tokens,
                           uint topk, uint width, uint stride, bool once, uint own)
{
    const uint first = get_group_id(0) * TOKENS, last = min(first + TOKENS, tokens);
    for (uint t = first; t < last; t++)
        dispatch_token(window, destination + (size_t)t * topk, source + (size_t)t * width, topk, width, stride, once, own);
    put_end();
}
#else
/* The destinations of STREAMS slots from slot `first` on, in loads that do not wait for each other; DROPPED: none. */
INLINED void load_slots(global const uint2 *destination, uint first, uint topk, uint2 to[STREAMS])
{
    UNROLL for (uint k = 0; k < STREAMS; k++)
        to[k] = destination[min(first + k, topk - 1)];
    UNROLL for (uint k = 0; k < STREAMS; k++)
        to[k].x = first + k < topk ? to[k].x : DROPPED;
}

/* Their rows, and so; null: none. */
INLINED void find_rows(WINDOW window, const uint2 to[STREAMS], uint stride, global float *row[STREAMS])
{
    UNROLL for (uint k = 0; k < STREAMS; k++)
        row[k] = row_of(window, to[k].x != DROPPED ? to[k] : (uint2)0, stride);
    UNROLL for (uint k = 0; k < STREAMS; k++)
        row[k] = to[k].x != DROPPED ? row[k] : 0;
}

/* Drops those that are not the first of the token on a rank other than `own`. */
INLINED void keep_first(global const uint2 *destination, uint first, uint own, uint2 to[STREAMS])
{
    UNROLL for (int k = STREAMS - 1; k >= 0; k--) {
        bool again = false;
        for (uint j = 0; j < first; j++)
            again = again || destination[j].x == to[k].x;
        UNROLL for (int j = 0; j < k; j++)
            again = again || to[j].x == to[k].x;
        to[k].x = again && to[k].x != own ? DROPPED : to[k].x;
    }
}

/* A piece to all experts: it is read once. */
INLINED void dispatch_team(WINDOW window, global const uint2 *destination, global const float *source, uint tokens,
                           uint topk, uint width, uint stride, bool once, uint own)
{
    const uint pieces = (stride + PIECE - 1) / PIECE, t = get_group_id(0) / pieces;
    const int i = (int)(get_group_id(0) % pieces * PIECE);
    vec part[BATCH];
    load_batch(part, source + (size_t)t * width + i, (int)width - i);
    destination += (size_t)t * topk;
    for (uint first = 0; first < topk; first += STREAMS) {
        uint2 to[STREAMS];
        global float *row[STREAMS];
        load_slots(destination, first, topk, to);
        if (once)
            keep_first(destination, first, own, to);
        find_rows(window, to, stride, row);
        UNROLL for (uint k = 0; k < STREAMS; k++)
            if (row[k] != 0)
                store_batch(part, row[k] + i, (int)stride - i);
    }
}
#endif

KERNEL void dispatch_rows(WINDOW window, global const uint2 *destination, global const float *source, uint tokens,
                          uint topk, uint width, uint stride)
{
    dispatch_team(window, destination, source, tokens, topk, width, stride, false, 0);
}

/* The words of a token's rows. */
INLINED void tell_rows(WINDOW window, global const uint2 *destination, uint topk, uint stride, uint capacity, uint own)
{
    for (uint k = item_index(); k < topk; k += MOERT_ITEMS) {
        const uint2 to = destination[k];
        if (to.x != DROPPED)
            words_of(row_of(window, (uint2)(to.x, 0), stride), capacity, stride)[to.y] =
                destination[first_slot(destination, k, own)].y;
    }
}

KERNEL void dispatch_once(WINDOW window, global const uint2 *destination, global const float *source, uint tokens,
                          uint topk, uint width, uint stride, uint capacity, uint own)
{
#if MOERT_ITEMS == 1
    const uint first = get_group_id(0) * TOKENS, last = min(first + TOKENS, tokens);
#else
    const uint pieces = (stride + PIECE - 1) / PIECE, first = get_group_id(0) / pieces;
    const uint last = get_group_id(0) % pieces == 0 ? first + 1 : first;
#endif
    for (uint t = first; t < last; t++)
        tell_rows(window, destination + (size_t)t * topk, topk, stride, capacity, own);
    dispatch_team(window, destination, source, tokens, topk, width, stride, true, own);
}

KERNEL_OF(FAN_TEAMS) void fan_out(global float *rows, uint count, uint stride, uint capacity)
{
    global const uint *word = words_of(rows, capacity, stride);
    const uint team = get_group_id(0) * FAN_TEAMS + team_index();
#if MOERT_ITEMS == 1
    const uint first = team * TOKENS, last = min(first + TOKENS, count);
    for (uint r = first; r < last; r++)
        if (word[r] != r && word[r] < capacity)
            for (uint i = 0; i < stride; i += VEC)
                put(vload16(0, rows + (size_t)word[r] * stride + i), rows + (size_t)r * stride + i);
    put_end();
#else
    const uint pieces = (stride + PIECE - 1) / PIECE, r = team / pieces;
    const int i = (int)(team % pieces * PIECE);
    vec part[BATCH];
    if (r >= count || word[r] == r || word[r] >= capacity)
        return;
    load_batch(part, rows + (size_t)word[r] * stride + i, (int)stride - i);
    store_batch(part, rows + (size_t)r * stride + i, (int)stride - i);
#endif
}

KERNEL void dispatch_slots(WINDOW window, global const uint2 *destination, global const float *source, uint slots)
{
    uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, slots);
    for (uint s = first + item_index(); s < last; s += MOERT_ITEMS) {
        const uint2 to = destination[s];
        if (to.x == DROPPED)
            continue;
#if MOERT_CPU
        cell x = 0.0f;
        x.s0 = source[s];
        put(x, row_of(window, to, CELL));
#else
        row_of(window, to, CELL)[0] = source[s]; /* a quarter of the packets */
#endif
    }
    put_end();
}

#if MOERT_ITEMS == 1
/* The numbers of a row from i on: n are wanted, and there are whole vectors of floats. */
INLINED vec read_row(global const float *row, bool codes, int i, int n)
{
    if (codes)
        return as_vec(load_shorts((global const ushort *)row + i, n) << 16);
    return *(global const vec *)(row + i);
}

/* Adds the rows of up to STREAMS slots, read side by side, to a token's sum. */
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

/*
 * A token with more than STREAMS slots continues from the partial sum in `target`, which has the same bits as one long
 * chain. weight 0 (null) means 1 for all.
 */
INLINED void combine_team(WINDOW window, global const uint2 *destination, global const float *weight, bool codes,
                          global float *target, uint tokens, uint topk, uint width, uint stride)
{
    uint first = get_group_id(0) * TOKENS, last = min(first + TOKENS, tokens);
    for (uint t = first; t < last; t++) {
        uint k = 0;
        do {
            const size_t slot = (size_t)t * topk + k;
            combine_slots_of(window, destination + slot, weight != 0 ? weight + slot : 0, codes,
                             target + (size_t)t * width, k > 0, min(topk - k, (uint)STREAMS), width, stride);
            k += STREAMS;
        } while (k < topk);
    }
}
#else
/* 16 bytes; zeros for null. The compiler may not put off these loads until each is used: they are under way together. */
INLINED uint4 fetch(global const float *p)
{
    uint4 x = 0;
#if MOERT_NVIDIA
    __asm__ volatile("{.reg .pred given; setp.ne.u64 given, %4, 0; @given ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                     : "l"(p));
#else
    if (p != 0)
        x = *(global const uint4 *)p;
#endif
    return x;
}

/* 16 bytes of a row, as 4 floats or, in their order, as 8 codes' values. */
INLINED void widen(uint4 x, bool codes, vec value[2])
{
    const uint high = 0xffff0000u;
    value[0] = as_vec(codes ? (uint4)(x.x << 16, x.x & high, x.y << 16, x.y & high) : x);
    value[1] = as_vec((uint4)(x.z << 16, x.z & high, x.w << 16, x.w & high));
}

/* Adds 16 bytes at `offset` floats of the rows of STREAMS slots from slot `first` on. */
INLINED void add_slots(WINDOW window, global const uint2 *destination, global const float *weight, bool codes, uint first,
                       uint topk, size_t offset, uint stride, vec sum[2])
{
    global float *row[STREAMS];
    float factor[STREAMS];
    uint2 to[STREAMS];
    uint4 part[STREAMS];
    load_slots(destination, first, topk, to);
    find_rows(window, to, stride, row);
    UNROLL for (uint k = 0; k < STREAMS; k++)
        factor[k] = weight != 0 ? weight[min(first + k, topk - 1)] : 1.0f;
    UNROLL for (uint k = 0; k < STREAMS; k++)
        part[k] = fetch(row[k] != 0 ? row[k] + offset : 0);
    UNROLL for (uint k = 0; k < STREAMS; k++) {
        vec value[2];
        widen(part[k], codes, value);
        UNROLL for (int i = 0; i < 2; i++)
            sum[i] = row[k] != 0 ? fma((vec)factor[k], value[i], sum[i]) : sum[i];
    }
}

/* A strip of a token's sum: 16 bytes of each row for a work-item. weight 0 (null) means 1 for all. */
INLINED void combine_team(WINDOW window, global const uint2 *destination, global const float *weight, bool codes,
                          global float *target, uint tokens, uint topk, uint width, uint stride)
{
    const uint numbers = codes ? 2 * STRIP : STRIP, strips = (width + numbers - 1) / numbers;
    const uint t = get_group_id(0) / strips;
    /* an item's codes begin twice as far from the strip's start as its floats would */
    const int i = (int)(get_group_id(0) % strips * numbers) + (codes ? part_start() : 0), n = (int)width - i;
    global float *out = target + (size_t)t * width + i;
    vec sum[2] = {0.0f, 0.0f};
    if (n <= part_start())
        return;
    for (uint first = 0; first < topk; first += STREAMS)
        add_slots(window, destination + (size_t)t * topk, weight != 0 ? weight + (size_t)t * topk : 0, codes, first, topk,
                  (size_t)(i + part_start()) / (codes ? 2 : 1), stride, sum);
    store_part(sum[0], out, n);
    if (codes)
        store_part(sum[1], out + PART, n - PART);
}
#endif

KERNEL void combine_rows(WINDOW window, global const uint2 *destination, global const float *weight,
                         global float *target, uint tokens, uint topk, uint width, uint stride)
{
    combine_team(window, destination, weight, false, target, tokens, topk, width, stride);
}

KERNEL void combine_codes(WINDOW window, global const uint2 *destination, global const float *weight,
                          global float *target, uint tokens, uint topk, uint width, uint stride)
{
    combine_team(window, destination, weight, true, target, tokens, topk, width, stride);
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
