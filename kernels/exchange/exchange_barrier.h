/*
 * Included by kernels/exchange/exchange.cl: a transfer of few rows in one kernel, with the ranks'
 * meeting (kernels/exchange/barrier.h) inside.
 *
 *   dispatch_barrier   as dispatch and, with `slots`, dispatch_slots, by the first `storing`
 *                      work-groups, the last of which to be done raises this rank's flags; the
 *                      others wait for all ranks' flags. If `once`, as dispatch_once, and they do
 *                      the work of fan_out then
 *   combine_barrier    the first work-group raises the flags, as what comes before this kernel is
 *                      done; all wait for all ranks' and then do the work of combine and, with
 *                      `slots`, of combine_slots
 *   sum_barrier        the first `storing` work-groups do that of send, the last of which to be
 *                      done raises the flags, or else the first one; the others wait and do that of
 *                      sum and, with `slots`, of combine_slots
 *
 * Work-groups begin in order: those that wait never keep those of this device out that they wait
 * for. FAN_ROW_GROUPS row_groups each, of which the first waits. Local memory: 4 bytes. Deterministic, as
 * what they do is.
 */
#include "exchange/barrier.h"

/*
 * The meeting, behind what a work-group stores: the last of `storing` to come here raises the
 * flags, or the first where none stores; those that do not store wait.
 */
INLINED void barrier_inside(uint storing, local uint *last, BARRIER_PARAMETERS) {
    global uint *stored = (global uint *)verdict + LINE;
    const bool stores = get_group_id(0) < storing, first = row_group_index() == 0;
    put_end();
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (first && is_first_item())
        *last = stores ? count_up(stored) + 1 == storing : get_group_id(0) == 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first && *last != 0) {
        if (is_first_item())
            *stored = 0;
        raise_all(segments, verdict, m);
    }
    if (first && !stores)
        wait_for_all(segments, verdict, m);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

/* A row_group's number, and how many there are, among those of work-groups that store or among the
 * others. */
typedef struct standing {
    bool stores;
    uint nth, row_groups;
} standing;

INLINED standing find_standing(uint storing) {
    const bool stores = get_group_id(0) < storing;
    return (standing){
        stores, (get_group_id(0) - (stores ? 0 : storing)) * FAN_ROW_GROUPS + row_group_index(),
        (stores ? storing : get_num_groups(0) - storing) * FAN_ROW_GROUPS};
}

KERNEL_OF(FAN_ROW_GROUPS)
void dispatch_barrier(WINDOW window, WINDOW slots, global const uint2 *destination,
                      global const float *source, global const float *slot_source,
                      moert_exchange_args args, BARRIER_PARAMETERS) {
    local uint last;
    const standing p = find_standing(args.storing);
    if (p.stores && slots != 0)
        for (uint i = p.nth * MOERT_ITEMS + item_index(); i < args.slots;
             i += p.row_groups * MOERT_ITEMS)
            put_slot(slots, destination, slot_source, i, args.topk, m.rank);
    if (p.stores && p.nth < shares_of(args.tokens, args.stride)) {
        if (args.once)
            dispatch_row_group_once(p.nth, window, destination, source, args);
        else
            dispatch_row_group(p.nth, window, destination, source, args, false);
    }
    barrier_inside(args.storing, &last, segments, verdict, m);
    for (uint i = p.nth; !p.stores && args.once && i < shares_of(args.rows, args.stride);
         i += p.row_groups)
        fan_out_share(i, row_of(window, (uint2)(m.rank, 0), args.stride), args);
}

/* What a row_group does in a combine; c.codes is false, and a constant in either half. */
INLINED void combine_standing(standing p, WINDOW slots, global float *slot_target, combining c) {
    for (uint i = p.nth * MOERT_ITEMS + item_index(); slots != 0 && i < c.args.slots;
         i += p.row_groups * MOERT_ITEMS)
        slot_target[i] = slot_of(slots, c.destination[i]);
    if (c.args.codes) {
        c.codes = true;
        combine_row_group(p.nth, p.row_groups, &c);
    } else {
        combine_row_group(p.nth, p.row_groups, &c);
    }
}

KERNEL_OF(FAN_ROW_GROUPS)
void combine_barrier(WINDOW window, WINDOW slots, global const uint2 *destination,
                     global const float *weight, global float *target, global float *slot_target,
                     moert_exchange_args args, BARRIER_PARAMETERS) {
    local uint last;
    barrier_inside(0, &last, segments, verdict, m);
    const combining c = {window, destination, weight, target, args, false, FAR};
    combine_standing(find_standing(0), slots, slot_target, c);
}

KERNEL_OF(FAN_ROW_GROUPS)
void sum_barrier(WINDOW window, WINDOW slots, global const uint2 *destination,
                 global const float *weight, global float *target, global float *slot_target,
                 global const uint4 *cells, global const float *rows, moert_exchange_args args,
                 BARRIER_PARAMETERS) {
    local uint last;
    const standing p = find_standing(args.storing);
    for (uint i = p.nth; p.stores && i < shares_of(args.rows, args.stride); i += p.row_groups)
        if (args.codes)
            send_share(i, window, cells, rows, args, true);
        else
            send_share(i, window, cells, rows, args, false);
    barrier_inside(args.storing, &last, segments, verdict, m);
    const combining c = {window, destination, weight, target, args, false, m.rank};
    if (!p.stores)
        combine_standing(p, slots, slot_target, c);
}
