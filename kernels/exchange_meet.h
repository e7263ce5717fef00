/*
 * Included by kernels/exchange.cl: a move of few rows in one kernel, with the ranks' meeting (kernels/meet.h) inside.
 *
 *   dispatch_meeting   as dispatch and, with `slots`, dispatch_slots, by the first `storing` work-groups, the last of which to
 *                      be done raises this rank's flags; the others wait for all ranks' flags. If `once`, as dispatch_once,
 *                      and they do the work of fan_out then
 *   combine_meeting    the first work-group raises the flags, as what comes before this kernel is done; all wait for all
 *                      ranks' and then do the work of combine and, with `slots`, of combine_slots
 *
 * Work-groups begin in order: those that wait never keep those of this device out that they wait for. FAN_TEAMS teams each, of
 * which the first waits.
 */
#include "meet.h"

/* What the kernels are told of a move, as src/exchange/exchange_kernels.c has it; `rows` are this rank's. */
typedef struct sizes {
    uint tokens, topk, slots, width, stride, capacity, rows, storing, once, codes;
} sizes;

/* A work-group has stored: the last one of `storing` raises the flags. */
INLINED void tell_stored(uint storing, local uint *last, MEETING)
{
    global uint *stored = (global uint *)verdict + LINE;
    put_end();
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (is_first_item() && team_index() == 0)
        *last = count_up(stored) + 1 == storing;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (*last == 0 || team_index() > 0)
        return;
    if (is_first_item())
        *stored = 0;
    raise_all(segments, verdict, m);
}

INLINED void wait_together(MEETING)
{
    if (team_index() == 0)
        wait_for_all(segments, verdict, m);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

KERNEL_OF(FAN_TEAMS) void dispatch_meeting(WINDOW window, WINDOW slots, global const uint2 *destination,
                                           global const float *source, global const float *slot_source, sizes s, MEETING)
{
    local uint last;
    const bool stores = get_group_id(0) < s.storing;
    const uint groups = stores ? s.storing : get_num_groups(0) - s.storing;
    const uint nth = (get_group_id(0) - (stores ? 0 : s.storing)) * FAN_TEAMS + team_index();
    if (stores) {
        if (slots != 0)
            for (uint i = nth * MOERT_ITEMS + item_index(); i < s.slots; i += groups * FAN_TEAMS * MOERT_ITEMS)
                put_slot(slots, destination, slot_source, i, s.topk, m.rank);
        if (nth < shares_of(s.tokens, s.stride)) {
            if (s.once)
                dispatch_team_once(nth, window, destination, source, s.tokens, s.topk, s.width, s.stride, s.capacity, m.rank);
            else
                dispatch_team(nth, window, destination, source, s.tokens, s.topk, s.width, s.stride, false, 0);
        }
        tell_stored(s.storing, &last, segments, verdict, m);
    } else {
        wait_together(segments, verdict, m);
        for (uint i = nth; s.once && i < shares_of(s.rows, s.stride); i += groups * FAN_TEAMS)
            fan_out_share(i, row_of(window, (uint2)(m.rank, 0), s.stride), s.rows, s.stride, s.capacity);
    }
}

KERNEL_OF(FAN_TEAMS) void combine_meeting(WINDOW window, WINDOW slots, global const uint2 *destination,
                                          global const float *weight, global float *target, global float *slot_target,
                                          sizes s, MEETING)
{
    const uint nth = get_group_id(0) * FAN_TEAMS + team_index(), teams = get_num_groups(0) * FAN_TEAMS;
    if (nth == 0)
        raise_all(segments, verdict, m);
    wait_together(segments, verdict, m);
    if (slots != 0)
        for (uint i = nth * MOERT_ITEMS + item_index(); i < s.slots; i += teams * MOERT_ITEMS)
            slot_target[i] = slot_of(slots, destination[i]);
    if (s.codes)
        combine_team(nth, teams, window, destination, weight, true, false, false, target, s.tokens, s.topk, s.width,
                     s.stride);
    else
        combine_team(nth, teams, window, destination, weight, false, false, false, target, s.tokens, s.topk, s.width,
                     s.stride);
}
