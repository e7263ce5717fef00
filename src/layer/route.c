/* Creates routes: compares the ranks' options, makes the plan, and pads the experts' rows. */
#include "layer/route.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"

/* ---- meetings ---- */

/* Compares the words (moert_meeting) of all ranks with those of rank 0. If the words of a rank
 * differ, the call fails on all ranks alike. */
static moert_status compare(const moert_comm *comm, const moert_meeting *meeting,
                            const uint64_t *all) {
    for (size_t r = 1; r < moert_comm_size(comm); r++)
        for (size_t i = 0; meeting->names[i] != NULL; i++) {
            const uint64_t theirs = all[r * MOERT_MEETING_WORDS + 1 + i], first = all[1 + i];
            if (theirs != first)
                return MOERT_FAIL(
                    ERROR_USAGE,
                    "%s: rank %zu (%s) has %s=%llu, but rank 0 has %s=%llu; all ranks "
                    "of a group must agree",
                    meeting->what, r, moert_comm_host(comm, r), meeting->names[i],
                    (unsigned long long)theirs, meeting->names[i], (unsigned long long)first);
        }
    return MOERT_OK;
}

moert_status moert_route_meet(moert_mesh *mesh, moert_meeting *meeting, moert_status local,
                              uint64_t *all) {
    moert_comm *comm = mesh->experts;
    bool failed = false;
    local = moert_first(local, moert_device_finish(mesh->device));
    meeting->words[0] = local;
    MOERT_TRY(moert_comm_allgather(comm, meeting->words, sizeof meeting->words, all));
    for (size_t r = 0; r < moert_comm_size(comm); r++)
        failed = failed || all[r * MOERT_MEETING_WORDS] != MOERT_OK;
    return failed ? moert_comm_agree(comm, local) : compare(comm, meeting, all);
}

moert_status moert_route_check_buffer(const moert_mesh *mesh, const char *name,
                                      const moert_buffer *buffer, size_t bytes) {
    if (buffer == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s of a route is NULL; %zu bytes are needed", name, bytes);
    if (moert_buffer_device(buffer) != mesh->device)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s of a route is on another device than that of the route's context",
                          name);
    if (moert_buffer_bytes(buffer) < bytes)
        return MOERT_FAIL(ERROR_USAGE, "%s of a route holds %zu bytes; %zu are needed", name,
                          moert_buffer_bytes(buffer), bytes);
    return MOERT_OK;
}

/* ---- routes ---- */

static moert_status check_options(const moert_mesh *mesh, const moert_route_options *o) {
    const struct {
        const char *name;
        size_t value, least;
    } sizes[] = {{"experts", o->experts, 1},
                 {"topk", o->topk, 1},
                 {"tokens", o->tokens, 0},
                 {"row_multiple", o->row_multiple, 0}};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > INT32_MAX)
            return MOERT_FAIL(ERROR_USAGE, "%s of a route is %zu; expected %zu to %d",
                              sizes[i].name, sizes[i].value, sizes[i].least, INT32_MAX);
    if (o->topk > o->experts)
        return MOERT_FAIL(ERROR_USAGE, "topk of a route is %zu, above the number of experts, %zu",
                          o->topk, o->experts);
    return moert_route_check_buffer(mesh, "index", o->index, o->tokens * o->topk * sizeof(int32_t));
}

/* Writes where each expert's rows end, if each expert's rows are filled up to a multiple of
 * `multiple`. */
static moert_status write_ends(moert_route *route, size_t multiple) {
    const moert_plan *plan = route->plan->plan;
    const size_t count = plan->local_experts;
    uint32_t *ends;
    for (size_t e = 0; e < count; e++)
        route->rows += moert_round_up(plan->ends[e] - (e > 0 ? plan->ends[e - 1] : 0), multiple);
    if (route->rows > INT32_MAX)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a route has %zu rows, above the limit %d",
                          route->rows, INT32_MAX);
    MOERT_TRY(moert_buffer_create(route->mesh->device, count * sizeof *ends, &route->ends));
    MOERT_TRY(moert_alloc(&ends, moert_max(count, 1), sizeof *ends));
    for (size_t e = 0, rows = 0; e < count; e++) {
        rows += moert_round_up(plan->ends[e] - (e > 0 ? plan->ends[e - 1] : 0), multiple);
        ends[e] = (uint32_t)rows;
    }
    const moert_status status = moert_buffer_write(route->ends, 0, ends, count * sizeof *ends);
    free(ends);
    return status;
}

static moert_status take_options(const moert_mesh *mesh, const moert_route_options *given,
                                 const void *route, moert_route_options *o) {
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_route_options, MOERT_ROUTE_OPTIONS_INIT, o, given));
    if (route == NULL)
        return MOERT_FAIL(ERROR_USAGE, "moert_route_create: route is NULL");
    return check_options(mesh, o);
}

static moert_status allocate(const moert_comm *comm, moert_route **route) {
    MOERT_TRY(MOERT_NEW(route));
    return MOERT_NEW_ARRAY(&(*route)->meeting, moert_comm_size(comm) * MOERT_MEETING_WORDS);
}

moert_status moert_route_create(moert_mesh *mesh, const moert_route_options *options,
                                moert_route **route) {
    static const char *const names[MOERT_MEETING_WORDS - 1] = {"experts", "topk", "row_multiple"};
    moert_route_options o;
    moert_route *made = NULL;
    MOERT_REQUIRE(mesh);
    moert_comm *comm = mesh->experts;
    moert_status status;
    MOERT_TRY_OR(fail, moert_comm_agree(comm, allocate(comm, &made)));
    status = take_options(mesh, options, route, &o);
    moert_meeting meeting = {"moert_route_create", names, {0, o.experts, o.topk, o.row_multiple}};
    MOERT_TRY_OR(fail, moert_route_meet(mesh, &meeting, status, made->meeting));
    made->mesh = mesh;
    made->tokens = o.tokens;
    made->topk = o.topk;
    made->padded = o.row_multiple > 1;
    MOERT_TRY_OR(fail, moert_exchange_make_plan(mesh->exchange,
                                                &(moert_exchange_slots){.index = o.index,
                                                                        .tokens = o.tokens,
                                                                        .topk = o.topk,
                                                                        .experts = o.experts},
                                                MOERT_OK, &made->plan));
    MOERT_TRY_OR(fail, moert_comm_agree(comm, write_ends(made, moert_max(o.row_multiple, 1))));
    *route = made;
    return MOERT_OK;
fail:
    moert_route_destroy(made);
    return status;
}

void moert_route_destroy(moert_route *route) {
    if (route == NULL)
        return;
    moert_exchange_free_plan(route->plan);
    moert_buffer_destroy(route->ends);
    MOERT_FREE(route->meeting, route);
}

size_t moert_route_rows(const moert_route *route) {
    return route != NULL ? route->rows : 0;
}

moert_buffer *moert_route_ends(const moert_route *route) {
    return route != NULL ? route->ends : NULL;
}

const moert_plan *moert_route_plan(const moert_route *route) {
    return route != NULL ? route->plan->plan : NULL;
}
