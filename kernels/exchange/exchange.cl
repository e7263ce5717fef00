/*
 * Rows between ranks.
 *
 *   dispatch   window of rank(t,k) [row(t,k), 0..stride) = source[t, 0..width), zeros beyond width
 *   combine    target[t, i] = sum over k of weight[t,k] * window of rank(t,k) [row(t,k), i], fma
 *              from 0 in order of k; _rows: of float32, _codes: of bf16 codes, two in the place of
 *              a float
 *   sum        as combine, but the row of slot (t,k) is row t K + k of this window, which its owner
 *              has sent there; with a chain, where owners have summed, that of the first slot of
 *              each rank alone (REMOTE = 0)
 *   gather     packed[i, 0..width) = window of rank(i) [row(i), 0..width), whose pairs are from[i]
 *   dispatch_once  as dispatch, but to other ranks than `own` only the row of a token's first slot
 *              there; for all slots word of rank(t,k) [row(t,k)] = the row that is stored for it
 *              there, its own or that of the first slot
 *   fan_out    window [row] = window [word[row]], of this rank, where that is another row below
 *              `capacity`
 *   find_places  place[row] = address of the row of its slot in the window of its slot's rank, by
 *              the row's cell; 0 if none is there (REMOTE = 1)
 *   send_rows  row of its slot in the window of its slot's rank, by the row's cell, if one is there
 *              = row; with a chain of K, for the first slot of a token here alone, row + those of
 *              the token's other slots here, in order of k; _codes: of bf16 codes, rounded once
 *              (REMOTE = 1)
 *
 * source, target [T,width]; weight [T,K]; destination [T,K] pairs (rank, row), rank DROPPED for a
 * slot that takes no part. A window's rows lie `stride` floats apart, a multiple of 16, and start
 * at a multiple of 64 bytes; its words, uint32 [capacity], lie behind its `capacity` rows.
 *
 * Required: REMOTE = 1: the windows are given by a table of raw addresses, one per rank (where a
 * kernel may follow any address: on CPUs those of its process, on NVIDIA's GPUs those of imported
 * memory, too); REMOTE = 0: one plain buffer, the rank is not looked at. A row_group moves TOKENS
 * tokens, or a piece of one token's rows (exchange.h), or SLOTS slots. No local memory but in
 * exchange_meet.h. Deterministic: each row has one writer, each sum one order.
 *
 * Non-temporal stores write a row without reading it first, which is worth a quarter of the time on
 * CPUs; the fence that they need comes once, at the end of the work-item.
 */
#if !defined(REMOTE)
#error "REMOTE must be defined (0, 1)"
#endif
#include "args/exchange.h"
#include "lib/formats.h"

#if MOERT_ITEMS == 1
#define TOKENS         MOERT_EXCHANGE_TOKENS
#define SLOTS          MOERT_EXCHANGE_SLOTS
#define FAN_ROW_GROUPS 1
#define PIECE          0x7fffffff /* whole rows */
#else
#define TOKENS         MOERT_EXCHANGE_GPU_TOKENS
#define SLOTS          MOERT_EXCHANGE_GPU_SLOTS
#define PIECE          MOERT_EXCHANGE_GPU_PIECE
#define STRIP          MOERT_EXCHANGE_GPU_STRIP
#define FAN_ROW_GROUPS MOERT_EXCHANGE_GPU_ROW_GROUPS
#endif
#define STREAMS 8
#define DROPPED 0xffffffffu

#if REMOTE
#define WINDOW global const ulong *
static inline global float *row_of(WINDOW window, uint2 to, uint stride) {
    return (global float *)(size_t)window[to.x] + (size_t)to.y * stride;
}
#else
#define WINDOW global float *
static inline global float *row_of(WINDOW window, uint2 to, uint stride) {
    return window + (size_t)to.y * stride;
}
#endif

/* A window of slots has rows of one cell, which begins with the slot's float. Behind it a dispatch
 * says where it comes from, uint (slot t K + k, rank), and which slots of a token lie on one rank:
 * a word with bit 31 where there is one before, and 1 + the row of the next, or 0. */
typedef float16 cell;
#define CELL  16
#define LATER 0x80000000u

/* Stores 16 floats at a multiple of 64 bytes. */
static inline void put(cell x, global float *p) {
#if MOERT_CPU && defined(__clang__)
    __builtin_nontemporal_store(x, (global cell *)p);
#else
    *(global cell *)p = x;
#endif
}

/* Orders the stores of put before what the host does after this kernel. */
static inline void put_end(void) {
#if MOERT_CPU && defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

static inline global uint *words_of(global float *rows, uint capacity, uint stride) {
    return (global uint *)(rows + (size_t)capacity * stride);
}

/* The first slot of a token on the rank of slot k; k is one of rank `own`, where each slot gets its
 * row. */
static inline uint first_slot(global const uint2 *destination, uint k, uint own) {
    uint first = 0;
    while (destination[k].x != own && destination[first].x != destination[k].x)
        first++;
    return destination[k].x != own ? first : k;
}

#include "exchange/exchange.h"

KERNEL void dispatch_rows(WINDOW window, global const uint2 *destination,
                          global const float *source, moert_exchange_args args) {
    dispatch_row_group(get_group_id(0), window, destination, source, args, false);
}

/* The words of a token's rows. */
INLINED void tell_rows(WINDOW window, global const uint2 *destination, moert_exchange_args args) {
    for (uint k = item_index(); k < args.topk; k += MOERT_ITEMS) {
        const uint2 to = destination[k];
        if (to.x != DROPPED)
            words_of(row_of(window, (uint2)(to.x, 0), args.stride), args.capacity,
                     args.stride)[to.y] = destination[first_slot(destination, k, args.rank)].y;
    }
}

/* What row_group `nth` does in a dispatch to other ranks than this once: the words, too. */
INLINED void dispatch_row_group_once(uint nth, WINDOW window, global const uint2 *destination,
                                     global const float *source, moert_exchange_args args) {
#if MOERT_ITEMS == 1
    const uint first = nth * TOKENS, last = min(first + TOKENS, args.tokens);
#else
    const uint pieces = (args.stride + PIECE - 1) / PIECE, first = nth / pieces;
    const uint last = nth % pieces == 0 ? first + 1 : first;
#endif
    for (uint t = first; t < last; t++)
        tell_rows(window, destination + (size_t)t * args.topk, args);
    dispatch_row_group(nth, window, destination, source, args, true);
}

KERNEL void dispatch_once(WINDOW window, global const uint2 *destination,
                          global const float *source, moert_exchange_args args) {
    dispatch_row_group_once(get_group_id(0), window, destination, source, args);
}

/* What a row_group copies in fan_out. */
INLINED void fan_out_share(uint nth, global float *rows, moert_exchange_args args) {
    const uint stride = args.stride, capacity = args.capacity;
    global const uint *word = words_of(rows, capacity, stride);
    const share s = share_of(nth, args.rows, stride);
    for (uint r = s.first; r < s.last; r++)
        if (word[r] != r && word[r] < capacity)
            copy_piece(rows + (size_t)word[r] * stride, rows + (size_t)r * stride, s.at, stride);
    put_end();
}

KERNEL_OF(FAN_ROW_GROUPS) void fan_out(global float *rows, moert_exchange_args args) {
    fan_out_share(get_group_id(0) * FAN_ROW_GROUPS + row_group_index(), rows, args);
}

/* The word of slot `slot` of a token, whose first is number `token`. */
static inline uint link_of(global const uint2 *destination, uint token, uint slot, uint topk) {
    const uint rank = destination[slot].x;
    uint next = slot + 1, word = 0;
    while (next < token + topk && destination[next].x != rank)
        next++;
    for (uint before = token; before < slot; before++)
        word = destination[before].x == rank ? LATER : word;
    return word | (next < token + topk ? destination[next].y + 1 : 0);
}

/* The cell of slot s of this rank. */
INLINED void put_slot(WINDOW window, global const uint2 *destination, global const float *source,
                      uint s, uint topk, uint rank) {
    const uint2 to = destination[s];
    if (to.x == DROPPED)
        return;
    const uint4 told =
        (uint4)(as_uint(source[s]), s, rank, link_of(destination, s / topk * topk, s, topk));
#if MOERT_CPU
    cell x = 0.0f;
    x.lo.lo = as_float4(told);
    put(x, row_of(window, to, CELL));
#else /* a quarter of the packets */
    *(global uint4 *)row_of(window, to, CELL) = told;
#endif
}

KERNEL void dispatch_slots(WINDOW window, global const uint2 *destination,
                           global const float *source, moert_exchange_args args) {
    uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, args.slots);
    for (uint s = first + item_index(); s < last; s += MOERT_ITEMS)
        put_slot(window, destination, source, s, args.topk, args.rank);
    put_end();
}

#define COMBINE(name, codes, home)                                                                 \
    KERNEL void name(WINDOW window, global const uint2 *destination, global const float *weight,   \
                     global float *target, moert_exchange_args args) {                             \
        const combining c = {window, destination, weight, target, args, codes, home};              \
        combine_row_group(get_group_id(0), get_num_groups(0), &c);                                 \
    }
COMBINE(combine_rows, false, FAR)
COMBINE(combine_codes, true, FAR)
#if !REMOTE
COMBINE(sum_rows, false, 0)
COMBINE(sum_codes, true, 0)
#endif

INLINED float slot_of(WINDOW window, uint2 to) {
    return to.x != DROPPED ? row_of(window, to, CELL)[0] : 0.0f;
}

/* target[slot] = the float at the start of its row, 0 when dropped. */
KERNEL void combine_slots(WINDOW window, global const uint2 *destination, global float *target,
                          moert_exchange_args args) {
    uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, args.slots);
    for (uint s = first + item_index(); s < last; s += MOERT_ITEMS)
        target[s] = slot_of(window, destination[s]);
}

KERNEL void gather_rows(WINDOW window, global const uint2 *from, global float *packed,
                        moert_exchange_args args) {
    const int width = (int)args.width;
    uint first = get_group_id(0) * TOKENS, last = min(first + TOKENS, args.rows);
    for (uint n = first; n < last; n++) {
        global const float *row = row_of(window, from[n], args.stride);
        global float *out = packed + (size_t)n * args.width;
        for (int i = 0; i < width; i += VEC)
            store_part(load_part(row + i, width - i), out + i, width - i);
    }
}

#if REMOTE
/* Where the row of a cell belongs; null: nowhere. A cell of a rank whose device has not come in
 * time may be anything. */
static inline global float *home_of(WINDOW window, uint4 told, moert_exchange_args args) {
    return told.z < args.ranks && told.y < args.capacity ? row_of(window, told.zy, args.stride) : 0;
}

KERNEL void find_places(WINDOW window, global const uint4 *cells, global ulong *place,
                        moert_exchange_args args) {
    const uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, args.rows);
    for (uint r = first + item_index(); r < last; r += MOERT_ITEMS)
        place[r] = (ulong)(size_t)home_of(window, cells[(size_t)r * (CELL / 4)], args);
}

INLINED void send_share(uint nth, WINDOW window, global const uint4 *cells,
                        global const float *rows, moert_exchange_args args, bool codes) {
    const uint stride = args.stride, chain = args.chain;
    const share s = share_of(nth, args.rows, stride);
    for (uint r = s.first; r < s.last; r++) {
        const uint4 told = cells[(size_t)r * (CELL / 4)];
        global float *home = home_of(window, told, args);
        if (home == 0 || (chain > 1 && (told.w & LATER) != 0))
            continue;
        if (chain > 1 && told.w != 0)
            sum_piece((chained){cells, rows, args.rows, chain, codes}, r, home, s.at, stride);
        else
            copy_piece(rows + (size_t)r * stride, home, s.at, stride);
    }
    put_end();
}

#define SEND(name, codes)                                                                          \
    KERNEL_OF(FAN_ROW_GROUPS)                                                                      \
    void name(WINDOW window, global const uint4 *cells, global const float *rows,                  \
              moert_exchange_args args) {                                                          \
        send_share(get_group_id(0) * FAN_ROW_GROUPS + row_group_index(), window, cells, rows,      \
                   args, codes);                                                                   \
    }
SEND(send_rows, false)
SEND(send_codes, true)

/* The start-up test: each rank writes row `rank` of every window, then every rank reads all rows of
 * all windows. */
static inline float probe_value(uint round, uint ranks, uint writer, uint owner) {
    return (float)((round * ranks + writer) * ranks + owner + 1);
}

KERNEL void probe_write(WINDOW window, moert_exchange_args args) {
    for (uint owner = item_index(); owner < args.ranks; owner += MOERT_ITEMS)
        put((cell)probe_value(args.round, args.ranks, args.rank, owner),
            row_of(window, (uint2)(owner, args.rank), CELL));
    put_end();
}

KERNEL void probe_read(WINDOW window, global uint *wrong, moert_exchange_args args) {
    uint count = 0;
    for (uint owner = 0; owner < args.ranks; owner++)
        for (uint writer = 0; writer < args.ranks; writer++) {
            cell x = *(global const cell *)row_of(window, (uint2)(owner, writer), CELL);
            count += any(x != (cell)probe_value(args.round, args.ranks, writer, owner));
        }
    if (is_first_item())
        *wrong = count;
}
#endif

#if REMOTE && (MOERT_CPU || MOERT_NVIDIA >= 70)
#include "exchange/exchange_barrier.h"
#endif
