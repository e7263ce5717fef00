/*
 * Moves rows between ranks. Slot (t,k), choice k of token t, belongs to row row(t,k) of the window
 * of rank(t,k).
 *
 *   dispatch_rows   window of rank(t,k) [row(t,k), 0..stride) = source[t, 0..width), zeros from
 *                   width on
 *   dispatch_once   as dispatch_rows, but a rank other than this one gets a token's row once, for
 *                   the token's first slot there. For all slots, origin of rank(t,k) [row(t,k)] =
 *                   the row that holds its data there: its own or that of the first slot.
 *   fan_out         window [row] = window [origin[row]] of this rank, unless origin[row] is `row`,
 *                   or `capacity` or more
 *   combine_rows    target[t, i] = sum over k of weight[t,k] * window of rank(t,k) [row(t,k), i],
 *                   by fma from 0 in order of k
 *   combine_bf16    combine_rows of bf16 rows, with two values in the space of a float
 *   sum_rows, sum_bf16
 *                   as combine_*, but slot (t,k) reads row t K + k of this rank's window, to which
 *                   the slot's owner has sent it. If owners have summed (chain > 1), only a token's
 *                   first slot of each rank is read. (REMOTE = 0)
 *   gather_rows     packed[i, 0..width) = window of rank(i) [row(i), 0..width), (rank, row) =
 *                   from[i]
 *   dispatch_slots  the cell at row(t,k) of rank(t,k) = the slot's float, its number, the sending
 *                   rank and its link (window.h)
 *   combine_slots   target[t,k] = the float at the start of row(t,k) of rank(t,k); 0 if dropped
 *   find_addresses  place[row] = the destination address of this row: row t K + k of the window of
 *                   the rank that the row's cell names; 0 if the cell is not valid. (REMOTE = 1)
 *   send_rows       sends each row to its destination address. If chain > 1, sends only the row of
 *                   a token's first slot here, plus those of its other slots here, in order of k.
 *                   (REMOTE = 1)
 *   send_bf16       send_rows of bf16 rows; each sum is rounded once. (REMOTE = 1)
 *
 * source, target [T,width]; weight [T,K]; destination [T,K] pairs (rank, row), rank DROPPED for a
 * slot without an expert. A window's rows lie `stride` floats apart, a multiple of 16, and start at
 * a multiple of 64 bytes. The origins of a window, uint32 [capacity], follow the `capacity` rows of
 * the window.
 *
 * Required: REMOTE = 1: the windows are given by a table of raw addresses, one per rank. The device
 * must let a kernel follow such addresses: on CPUs those of the process, on NVIDIA GPUs also those
 * of imported memory. REMOTE = 0: the window is one plain buffer, and the rank is ignored. A row
 * group moves TOKENS tokens, a piece of one token's rows (pieces.h), or SLOTS slots. Local
 * memory: only in exchange_barrier.h. Deterministic: each row has one writer, each sum one order.
 *
 * Non-temporal stores write a row without reading it first, which saves a quarter of the time on
 * CPUs. Non-temporal stores need a fence before other devices may read what they have written. A
 * work-item issues this fence once, at its end.
 */
#include "exchange/combine.h"
#include "exchange/dispatch.h"
#include "exchange/pieces.h"

KERNEL void dispatch_rows(WINDOW window, global const uint2 *destination,
                          global const float *source, moert_exchange_args args) {
    dispatch_row_group(get_group_id(0), window, destination, source, args, false);
}

KERNEL void dispatch_once(WINDOW window, global const uint2 *destination,
                          global const float *source, moert_exchange_args args) {
    dispatch_row_group_once(get_group_id(0), window, destination, source, args);
}

KERNEL_OF(FAN_ROW_GROUPS) void fan_out(global float *rows, moert_exchange_args args) {
    fan_out_piece(get_group_id(0) * FAN_ROW_GROUPS + row_group_index(), rows, args);
}

KERNEL void dispatch_slots(WINDOW window, global const uint2 *destination,
                           global const float *source, moert_exchange_args args) {
    uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, args.slots);
    for (uint s = first + item_index(); s < last; s += MOERT_ITEMS)
        put_slot(window, destination, source, s, args.topk, args.rank);
    put_end();
}

#define COMBINE(name, bf16, receiver)                                                              \
    KERNEL void name(WINDOW window, global const uint2 *destination, global const float *weight,   \
                     global float *target, moert_exchange_args args) {                             \
        const combining c = {window, destination, weight, target, args, bf16, receiver};           \
        combine_row_group(get_group_id(0), get_num_groups(0), &c);                                 \
    }
COMBINE(combine_rows, false, NO_RECEIVER)
COMBINE(combine_bf16, true, NO_RECEIVER)
#if !REMOTE
COMBINE(sum_rows, false, 0)
COMBINE(sum_bf16, true, 0)
#endif

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
KERNEL void find_addresses(WINDOW window, global const uint4 *cells, global ulong *place,
                           moert_exchange_args args) {
    const uint first = get_group_id(0) * SLOTS, last = min(first + SLOTS, args.rows);
    for (uint r = first + item_index(); r < last; r += MOERT_ITEMS)
        place[r] = (ulong)(size_t)target_of(window, cells[(size_t)r * (CELL / 4)], args);
}

#define SEND(name, bf16)                                                                           \
    KERNEL_OF(FAN_ROW_GROUPS)                                                                      \
    void name(WINDOW window, global const uint4 *cells, global const float *rows,                  \
              moert_exchange_args args) {                                                          \
        send_piece(get_group_id(0) * FAN_ROW_GROUPS + row_group_index(), window, cells, rows,      \
                   args, bf16);                                                                    \
    }
SEND(send_rows, false)
SEND(send_bf16, true)

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
