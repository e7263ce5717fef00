/*
 * Included by kernels/exchange/exchange.cl: a transfer of few rows in one kernel, with the ranks'
 * meeting (kernels/exchange/meet.h) inside.
 *
 *   dispatch_meeting   as dispatch and, with `slots`, dispatch_slots, by the first `storing`
 *                      work-groups, the last of which to be done raises this rank's flags; the
 *                      others wait for all ranks' flags. If `once`, as dispatch_once, and they do
 *                      the work of fan_out then
 *   combine_meeting    the first work-group raises the flags, as what comes before this kernel is
 *                      done; all wait for all ranks' and then do the work of combine and, with
 *                      `slots`, of combine_slots
 *   sum_meeting        the first `storing` work-groups do that of send, the last of which to be
 *                      done raises the flags, or else the first one; the others wait and do that of
 *                      sum and, with `slots`, of combine_slots
 *
 * Work-groups begin in order: those that wait never keep those of this device out that they wait
 * for. FAN_TEAMS teams each, of which the first waits. Local memory: 4 bytes. Deterministic, as
 * what they do is.
 */
#include "exchange/meet.h"

/*
 * The meeting, behind what a work-group stores: the last of `storing` to come here raises the
 * flags, or the first where none stores; those that do not store wait.
 */
INLINED void meet_inside(uint storing, local uint *last, MEETING) {
    global uint *stored = (global uint *)verdict + LINE;
    const bool stores = get_group_id(0) < storing, first = team_index() == 0;
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

/* A team's number, and how many there are, among those of work-groups that store or among the
 * others. */
typedef struct standing {
    bool stores;
    uint nth, teams;
} standing;

INLINED standing find_standing(uint storing) {
    const bool stores = get_group_id(0) < storing;
    return (standing){stores, (get_group_id(0) - (stores ? 0 : storing)) * FAN_TEAMS + team_index(),
                      (stores ? storing : get_num_groups(0) - storing) * FAN_TEAMS};
}

KERNEL_OF(FAN_TEAMS)
void dispatch_meeting(WINDOW window, WINDOW slots, global const uint2 *destination,
                      global const float *source, global const float *slot_source,
                      moert_exchange_args args, MEETING) {
    local uint last;
    const standing p = find_standing(args.storing);
    if (p.stores && slots != 0)
        for (uint i = p.nth * MOERT_ITEMS + item_index(); i < args.slots;
             i += p.teams * MOERT_ITEMS)
            put_slot(slots, destination, slot_source, i, args.topk, m.rank);
    if (p.stores && p.nth < shares_of(args.tokens, args.stride)) {
        if (args.once)
            dispatch_team_once(p.nth, window, destination, source, args);
        else
            dispatch_team(p.nth, window, destination, source, args, false);
    }
    meet_inside(args.storing, &last, segments, verdict, m);
    for (uint i = p.nth; !p.stores && args.once && i < shares_of(args.rows, args.stride);
         i += p.teams)
        fan_out_share(i, row_of(window, (uint2)(m.rank, 0), args.stride), args);
}

/* What a team does in a combine; c.codes is false, and a constant in either half. */
INLINED void combine_standing(standing p, WINDOW slots, global float *slot_target, combining c) {
    for (uint i = p.nth * MOERT_ITEMS + item_index(); slots != 0 && i < c.args.slots;
         i += p.teams * MOERT_ITEMS)
        slot_target[i] = slot_of(slots, c.destination[i]);
    if (c.args.codes) {
        c.codes = true;
        combine_team(p.nth, p.teams, &c);
    } else {
        combine_team(p.nth, p.teams, &c);
    }
}

KERNEL_OF(FAN_TEAMS)
void combine_meeting(WINDOW window, WINDOW slots, global const uint2 *destination,
                     global const float *weight, global float *target, global float *slot_target,
                     moert_exchange_args args, MEETING) {
    local uint last;
    meet_inside(0, &last, segments, verdict, m);
    const combining c = {window, destination, weight, target, args, false, FAR};
    combine_standing(find_standing(0), slots, slot_target, c);
}

KERNEL_OF(FAN_TEAMS)
void sum_meeting(WINDOW window, WINDOW slots, global const uint2 *destination,
                 global const float *weight, global float *target, global float *slot_target,
                 global const uint4 *cells, global const float *rows, moert_exchange_args args,
                 MEETING) {
    local uint last;
    const standing p = find_standing(args.storing);
    for (uint i = p.nth; p.stores && i < shares_of(args.rows, args.stride); i += p.teams)
        if (args.codes)
            send_share(i, window, cells, rows, args, true);
        else
            send_share(i, window, cells, rows, args, false);
    meet_inside(args.storing, &last, segments, verdict, m);
    const combining c = {window, destination, weight, target, args, false, m.rank};
    if (!p.stores)
        combine_standing(p, slots, slot_target, c);
}
