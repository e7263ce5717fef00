/*
 * Included last by kernels/exchange/exchange.cl, whose headers it uses: a transfer of few rows in
 * one kernel, with the barrier of all ranks (kernels/exchange/barrier.h) inside.
 *
 *   dispatch_barrier   The first `storing` work-groups do the work of dispatch_rows and, with
 *                      `slots`, dispatch_slots; the last of them to finish raises this rank's
 *                      flags. The other work-groups wait for all ranks' flags. If `once`, the first
 *                      `storing` work-groups do the work of dispatch_once, and the others that of
 *                      fan_out.
 *   combine_barrier    The first work-group raises the flags at once, since earlier kernels have
 *                      finished. All work-groups wait for all ranks, then do the work of
 *                      combine_rows and, with `slots`, combine_slots.
 *   sum_barrier        The first `storing` work-groups do the work of send_rows; the last of them
 *                      to finish raises the flags. If `storing` is 0, the first work-group raises
 *                      the flags. The other work-groups wait, then do the work of sum_rows and,
 *                      with `slots`, combine_slots.
 *
 * Work-groups start in order, and the storing ones come first. So waiting work-groups never keep
 * storing ones from starting. A work-group has FAN_ROW_GROUPS row groups; only the first one polls
 * the flags. Local memory: 4 bytes. Deterministic, like the kernels of exchange.cl.
 */
#include "exchange/barrier.h"

/*
 * The barrier, called after a work-group's stores. The last of the `storing` work-groups to arrive
 * raises the flags; if `storing` is 0, work-group 0 does. Work-groups that do not store wait.
 */
INLINED void barrier_inside(uint storing, local uint *last, global uint *state,
                            moert_barrier_args m) {
    global uint *stored = state + LINE_INTS;
    const bool stores = get_group_id(0) < storing, first = row_group_index() == 0;
    put_end();
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (first && is_first_item())
        *last = stores ? count_up(stored) + 1 == storing : get_group_id(0) == 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first && *last != 0) {
        if (is_first_item())
            *stored = 0;
        raise_all(state, m);
    }
    if (first && !stores)
        wait_for_all(state, m);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

/* Whether a row group's work-group stores or waits. `nth` is the row group's number among the
 * `row_groups` row groups of all storing, or all waiting, work-groups. */
typedef struct role {
    bool stores;
    uint nth, row_groups;
} role;

INLINED role find_role(uint storing) {
    const bool stores = get_group_id(0) < storing;
    return (role){stores,
                  (get_group_id(0) - (stores ? 0 : storing)) * FAN_ROW_GROUPS + row_group_index(),
                  (stores ? storing : get_num_groups(0) - storing) * FAN_ROW_GROUPS};
}

KERNEL_OF(FAN_ROW_GROUPS)
void dispatch_barrier(WINDOW window, WINDOW slots, global const uint2 *destination,
                      global const float *source, global const float *slot_source,
                      global uint *state, moert_fused_args fused) {
    local uint last;
    const moert_exchange_args args = fused.move;
    const role p = find_role(args.storing);
    if (p.stores && slots != 0)
        for (uint i = p.nth * MOERT_ITEMS + item_index(); i < args.slots;
             i += p.row_groups * MOERT_ITEMS)
            put_slot(slots, destination, slot_source, i, args.topk, fused.barrier.rank);
    if (p.stores && p.nth < count_pieces(args.tokens, args.stride)) {
        if (args.once)
            dispatch_row_group_once(p.nth, window, destination, source, args);
        else
            dispatch_row_group(p.nth, window, destination, source, args, false);
    }
    barrier_inside(args.storing, &last, state, fused.barrier);
    for (uint i = p.nth; !p.stores && args.once && i < count_pieces(args.rows, args.stride);
         i += p.row_groups)
        fan_out_piece(i, row_of(window, (uint2)(fused.barrier.rank, 0), args.stride), args);
}

/* A row group's part of a combine. c.bf16 is false on entry. In each branch c.bf16 is a constant,
 * so that the compiler specialises both branches. */
INLINED void combine_part(role p, WINDOW slots, global float *slot_target, combining c) {
    for (uint i = p.nth * MOERT_ITEMS + item_index(); slots != 0 && i < c.args.slots;
         i += p.row_groups * MOERT_ITEMS)
        slot_target[i] = slot_of(slots, c.destination[i]);
    if (c.args.bf16) {
        c.bf16 = true;
        combine_row_group(p.nth, p.row_groups, &c);
    } else {
        combine_row_group(p.nth, p.row_groups, &c);
    }
}

KERNEL_OF(FAN_ROW_GROUPS)
void combine_barrier(WINDOW window, WINDOW slots, global const uint2 *destination,
                     global const float *weight, global float *target, global float *slot_target,
                     global uint *state, moert_fused_args fused) {
    local uint last;
    const moert_exchange_args args = fused.move;
    barrier_inside(0, &last, state, fused.barrier);
    const combining c = {window, destination, weight, target, args, false, NO_RECEIVER};
    combine_part(find_role(0), slots, slot_target, c);
}

KERNEL_OF(FAN_ROW_GROUPS)
void sum_barrier(WINDOW window, WINDOW slots, global const uint2 *destination,
                 global const float *weight, global float *target, global float *slot_target,
                 global const uint4 *cells, global const float *rows, global uint *state,
                 moert_fused_args fused) {
    local uint last;
    const moert_exchange_args args = fused.move;
    const role p = find_role(args.storing);
    for (uint i = p.nth; p.stores && i < count_pieces(args.rows, args.stride); i += p.row_groups)
        if (args.bf16)
            send_piece(i, window, cells, rows, args, true);
        else
            send_piece(i, window, cells, rows, args, false);
    barrier_inside(args.storing, &last, state, fused.barrier);
    const combining c = {window, destination, weight, target, args, false, fused.barrier.rank};
    if (!p.stores)
        combine_part(p, slots, slot_target, c);
}
