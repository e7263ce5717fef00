/* Posts the messages of a dispatch or combine in flight, and waits for them (see inflight.h). */
#include "exchange/staged/inflight.h"

#include <time.h>

#include "base/clock.h"
#include "base/phase.h"
#include "device/profile/profile.h"

enum { NAP_NS = 20000 };

/* Parts by which moert_mail counts messages: a chunk's number for the received rows of that chunk,
 * or one of these values. */
enum { PART_SENT = MOERT_INFLIGHT_CHUNKS, PART_BACK, PART_RETURNED };

/* ---- messages ---- */

/* Posts a chunk's messages of one kind to or from a peer. */
static moert_status post_pair(moert_staged *stage, const moert_inflight *inflight, int kind,
                              size_t chunk, bool send, size_t peer) {
    const moert_exchange_plan *plan = inflight->plan;
    const moert_window *window = inflight->window[kind];
    const size_t local = plan->plan->local_experts, row_bytes = window->width * sizeof(float);
    const size_t part = send ? (inflight->back ? PART_RETURNED : PART_SENT)
                             : (inflight->back ? (size_t)PART_BACK : chunk);
    const moert_mail_address to = {send, peer, inflight->back ? 2 : 1, part};
    const bool packed = send != inflight->back;
    moert_staging *memory = packed ? inflight->packed[kind] : window->storage.staging;
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

/* Posts a chunk's messages to or from all peers. Each rank begins with a different peer. */
static moert_status post_chunk(moert_staged *stage, const moert_inflight *inflight, size_t chunk,
                               bool send) {
    const size_t ranks = inflight->plan->plan->ranks, rank = inflight->plan->plan->rank;
    for (size_t k = 0; k < ranks; k++) {
        const size_t peer = (send ? rank + k : rank + ranks - k) % ranks;
        for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
            if (inflight->window[kind] != NULL)
                MOERT_TRY(post_pair(stage, inflight, kind, chunk, send, peer));
    }
    return MOERT_OK;
}

/* Posts the chunks whose events have completed. A dispatch sends one chunk at a time: messages in
 * flight together share the link, and the first chunk would arrive no earlier than the last. */
static void post_ready(moert_staged *stage, moert_inflight *inflight) {
    while (inflight->posted < inflight->recorded) {
        bool passed = true;
        if (!inflight->back && moert_mail_left(stage->mail, PART_SENT) > 0)
            return;
        if (inflight->event[inflight->posted] != NULL)
            moert_staged_note(stage, moert_event_test(inflight->event[inflight->posted], &passed));
        if (!passed)
            return;
        if (inflight->posted == 0) {
            inflight->began_ns = moert_clock_ns();
            for (size_t c = 0; c < inflight->plan->chunks; c++)
                moert_staged_note(stage, post_chunk(stage, inflight, c, false));
        }
        /* even after a failure this rank sends its rows, with unspecified contents, so that no rank
         * waits for ever */
        moert_staged_note(stage, post_chunk(stage, inflight, inflight->posted++, true));
    }
}

static bool has_arrived(const moert_staged *stage, const moert_inflight *inflight) {
    size_t left = inflight->posted < inflight->plan->chunks;
    for (size_t c = 0; c < inflight->plan->chunks && !inflight->back; c++)
        left += moert_mail_left(stage->mail, c);
    return left + (inflight->back ? moert_mail_left(stage->mail, PART_BACK) : 0) == 0;
}

/* Reports to a profile how long rows were in flight, once all have arrived. */
static void report_message(moert_staged *stage, moert_inflight *inflight) {
    if (inflight->began_ns == 0 || !has_arrived(stage, inflight))
        return;
    moert_profile_message(stage->exchange->device,
                          inflight->back ? MOERT_OPERATION_COMBINE : MOERT_OPERATION_DISPATCH,
                          inflight->began_ns, moert_clock_ns());
    inflight->began_ns = 0;
}

/* Posts all messages whose events have completed, and lets MPI make progress. With `wait`, the
 * function returns when a message is complete, or at once if the function has posted a chunk, since
 * the caller may wait for the posting only. */
static moert_status advance(moert_staged *stage, bool wait) {
    const size_t before = stage->out.posted + stage->back.posted;
    post_ready(stage, &stage->out);
    post_ready(stage, &stage->back);
    const bool posted = stage->out.posted + stage->back.posted != before;
    MOERT_TRY(moert_mail_progress(stage->mail, wait && !posted));
    report_message(stage, &stage->out);
    report_message(stage, &stage->back);
    return MOERT_OK;
}

void moert_staged_advance(moert_staged *stage) {
    moert_staged_note(stage, advance(stage, false));
}

/* ---- waiting ---- */

static bool is_posted(const moert_inflight *inflight) {
    return inflight->posted == inflight->recorded;
}

/* Whether the rows of a chunk have arrived; for the last chunk, also whether this rank has posted
 * all its chunks. With MOERT_STAGED_ALL, whether all messages are complete. */
static bool is_done(const moert_staged *stage, int chunk) {
    const moert_inflight *out = &stage->out;
    if (chunk == MOERT_STAGED_ALL)
        return is_posted(out) && is_posted(&stage->back) &&
               moert_mail_left_of_all(stage->mail) == 0;
    const size_t needed = (size_t)chunk + 1 == out->plan->chunks ? out->recorded : 1;
    return out->posted >= needed && moert_mail_left(stage->mail, (size_t)chunk) == 0;
}

/*
 * While the device works, the host polls messages and the device. When the device is idle, the host
 * waits in MPI. Only the wait in MPI counts for the watchdog and a profile.
 */
moert_status moert_staged_await(moert_staged *stage, int chunk) {
    const struct timespec nap = {0, NAP_NS};
    moert_event *end = NULL;
    bool idle = false, waiting = false;
    moert_status status = advance(stage, false);
    if (status == MOERT_OK && !is_done(stage, chunk))
        moert_staged_note(stage, moert_event_record(stage->exchange->device, &end));
    while (status == MOERT_OK && !is_done(stage, chunk)) {
        if (!idle && end != NULL && moert_event_test(end, &idle) != MOERT_OK)
            idle = true;
        if (idle && !waiting)
            moert_phase_wait_begin();
        waiting = idle;
        if (!idle)
            nanosleep(&nap, NULL);
        status = advance(stage, idle); /* if the device is idle, no message waits for an event */
    }
    if (waiting)
        moert_phase_wait_end();
    moert_event_free(end);
    moert_staged_note(stage, status);
    return stage->status;
}

/* ---- chunks of a transfer ---- */

static void free_events(moert_inflight *inflight) {
    for (size_t c = 0; c < MOERT_INFLIGHT_CHUNKS; c++) {
        moert_event_free(inflight->event[c]);
        inflight->event[c] = NULL;
    }
}

void moert_inflight_begin(moert_inflight *inflight, const moert_transfer *t) {
    free_events(inflight);
    inflight->plan = t->plan;
    inflight->window[MOERT_INFLIGHT_ROWS] = t->window;
    inflight->window[MOERT_INFLIGHT_SLOTS] = t->slots;
    inflight->recorded = inflight->posted = 0;
    inflight->began_ns = 0;
}

void moert_inflight_record(moert_staged *stage, moert_inflight *inflight) {
    moert_staged_note(
        stage, moert_event_record(stage->exchange->device, &inflight->event[inflight->recorded]));
    inflight->recorded++;
}

void moert_inflight_free(moert_inflight *inflight) {
    free_events(inflight);
    for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
        moert_staging_destroy(inflight->packed[kind]);
}
