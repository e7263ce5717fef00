/* Flights and their messages: see flights.h. */
#include "exchange/staged/inflight.h"

#include <time.h>

#include "base/clock.h"
#include "base/phase.h"
#include "device/profile/profile.h"

enum { NAP_NS = 20000 };

/* What a message is part of: the rows of a chunk, or one of these. */
enum { PART_SENT = MOERT_INFLIGHT_CHUNKS, PART_BACK, PART_RETURNED };

/* ---- messages ---- */

/* Posts a chunk's messages of one kind with one peer, one way. */
static moert_status post_pair(moert_stage *stage, const moert_inflight *flight, int kind,
                              size_t chunk, bool send, size_t peer) {
    const moert_exchange_plan *plan = flight->plan;
    const moert_window *window = flight->window[kind];
    const size_t local = plan->plan->local_experts, row_bytes = window->width * sizeof(float);
    const size_t part = send ? (flight->back ? PART_RETURNED : PART_SENT)
                             : (flight->back ? (size_t)PART_BACK : chunk);
    const moert_mail_address to = {send, peer, flight->back ? 2 : 1, part};
    const bool packed = send != flight->back;
    moert_staging *memory = packed ? flight->packed[kind] : window->storage.staging;
    const moert_mail_rows rows = {moert_staging_host(memory), row_bytes,
                                  window->stride * sizeof(float)};
    if (packed)
        return moert_mail_post(stage->mail, to, &rows,
                               &stage->routes.packed[peer * plan->chunks + chunk], 1);
    const moert_chunk experts = moert_exchange_chunk(plan, chunk);
    return moert_mail_post(stage->mail, to, &rows,
                           &stage->routes.window[peer * local + experts.first],
                           experts.end - experts.first);
}

/* Posts a chunk's messages one way; each rank begins with another peer. */
static moert_status post_chunk(moert_stage *stage, const moert_inflight *flight, size_t chunk,
                               bool send) {
    const size_t ranks = flight->plan->plan->ranks, rank = flight->plan->plan->rank;
    for (size_t k = 0; k < ranks; k++) {
        const size_t peer = (send ? rank + k : rank + ranks - k) % ranks;
        for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
            if (flight->window[kind] != NULL)
                MOERT_TRY(post_pair(stage, flight, kind, chunk, send, peer));
    }
    return MOERT_OK;
}

/* Posts the chunks whose marks have passed; of a dispatch one at a time, since messages that are
 * under way together share the link, and the first chunk would come no earlier than the last. */
static void post_marked(moert_stage *stage, moert_inflight *flight) {
    while (flight->posted < flight->marked) {
        bool passed = true;
        if (!flight->back && moert_mail_left(stage->mail, PART_SENT) > 0)
            return;
        if (flight->mark[flight->posted] != NULL)
            moert_stage_note(stage, moert_event_test(flight->mark[flight->posted], &passed));
        if (!passed)
            return;
        if (flight->posted == 0) {
            flight->began_ns = moert_clock_ns();
            for (size_t w = 0; w < flight->plan->chunks; w++)
                moert_stage_note(stage, post_chunk(stage, flight, w, false));
        }
        /* rows that could not be made are sent as they are: nobody may wait for them */
        moert_stage_note(stage, post_chunk(stage, flight, flight->posted++, true));
    }
}

static bool has_landed(const moert_stage *stage, const moert_inflight *flight) {
    size_t left = flight->posted < flight->plan->chunks;
    for (size_t w = 0; w < flight->plan->chunks && !flight->back; w++)
        left += moert_mail_left(stage->mail, w);
    return left + (flight->back ? moert_mail_left(stage->mail, PART_BACK) : 0) == 0;
}

/* Tells a profile how long rows were on their way, once all have come. */
static void report_message(moert_stage *stage, moert_inflight *flight) {
    if (flight->began_ns == 0 || !has_landed(stage, flight))
        return;
    moert_profile_message(stage->exchange->device,
                          flight->back ? MOERT_OPERATION_COMBINE : MOERT_OPERATION_DISPATCH,
                          flight->began_ns, moert_clock_ns());
    flight->began_ns = 0;
}

/* Posts what can be and lets messages t; `wait`: until one is done. */
static moert_status advance(moert_stage *stage, bool wait) {
    post_marked(stage, &stage->out);
    post_marked(stage, &stage->back);
    MOERT_TRY(moert_mail_progress(stage->mail, wait));
    report_message(stage, &stage->out);
    report_message(stage, &stage->back);
    return MOERT_OK;
}

void moert_stage_advance(moert_stage *stage) {
    moert_stage_note(stage, advance(stage, false));
}

/* ---- waiting ---- */

static bool is_posted(const moert_inflight *flight) {
    return flight->posted == flight->marked;
}

/* Whether the rows of a chunk have come, with the last one all of this rank's are sent off, or ALL
 * messages are done. */
static bool is_done(const moert_stage *stage, int chunk) {
    const moert_inflight *out = &stage->out;
    if (chunk == MOERT_STAGE_ALL)
        return is_posted(out) && is_posted(&stage->back) &&
               moert_mail_left_of_all(stage->mail) == 0;
    const size_t needed = (size_t)chunk + 1 == out->plan->chunks ? out->marked : 1;
    return out->posted >= needed && moert_mail_left(stage->mail, (size_t)chunk) == 0;
}

/*
 * Until a chunk has come, or ALL is done. While the device works, looks now and then; this rank
 * waits for others, as the watchdog and a profile count it, from when its device has nothing to do.
 */
moert_status moert_stage_await(moert_stage *stage, int chunk) {
    const struct timespec nap = {0, NAP_NS};
    moert_event *end = NULL;
    bool idle = false, waiting = false;
    moert_status status = advance(stage, false);
    if (status == MOERT_OK && !is_done(stage, chunk))
        moert_stage_note(stage, moert_event_record(stage->exchange->device, &end));
    while (status == MOERT_OK && !is_done(stage, chunk)) {
        if (!idle && end != NULL && moert_event_test(end, &idle) != MOERT_OK)
            idle = true;
        if (idle && !waiting)
            moert_phase_wait_begin();
        waiting = idle;
        if (!idle)
            nanosleep(&nap, NULL);
        status = advance(stage, idle); /* then no mark holds up a message */
    }
    if (waiting)
        moert_phase_wait_end();
    moert_event_free(end);
    moert_stage_note(stage, status);
    return stage->status;
}

/* ---- flights ---- */

static void free_marks(moert_inflight *flight) {
    for (size_t w = 0; w < MOERT_INFLIGHT_CHUNKS; w++) {
        moert_event_free(flight->mark[w]);
        flight->mark[w] = NULL;
    }
}

void moert_inflight_begin(moert_inflight *flight, const moert_transfer *t) {
    free_marks(flight);
    flight->plan = t->plan;
    flight->window[MOERT_INFLIGHT_ROWS] = t->window;
    flight->window[MOERT_INFLIGHT_SLOTS] = t->slots;
    flight->marked = flight->posted = 0;
    flight->began_ns = 0;
}

void moert_inflight_record(moert_stage *stage, moert_inflight *flight) {
    moert_stage_note(stage,
                     moert_event_record(stage->exchange->device, &flight->mark[flight->marked]));
    flight->marked++;
}

void moert_inflight_free(moert_inflight *flight) {
    free_marks(flight);
    for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
        moert_staging_destroy(flight->packed[kind]);
}
