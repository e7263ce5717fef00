/*
 * Any ranks and devices: rows travel as non-blocking messages from and into host memory, in waves.
 *
 * A rank packs its rows on the device, sorted by (owner, row there), the plan's `packed` places:
 * its packed rows are a window of one rank. What travels between two ranks in a wave is one run of
 * packed rows, and one run of the owner's window for each expert of the wave. Combine sends the
 * same rows back, and the combine kernel of the other engines sums them from their packed places:
 * the same bits.
 *
 *   dispatch   out.packed -> window        combine   window -> back.packed
 *
 * Windows and packed rows lie in staging memory, so on CPU devices kernels write what is sent and
 * read what was received. A wave's messages are posted once a mark behind the work that makes its
 * rows has passed. That mark also says that no earlier work uses the memory to receive into, so
 * the first wave's posts all receives. A dispatch sends its waves one after the other, so that the
 * first comes first. Who waits lets messages move and marks pass meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"
#include "comm/mail.h"
#include "device/profile.h"
#include "exchange/internal.h"
#include "exchange/routes.h"

enum { NAP_NS = 20000, WAVES = MOERT_EXCHANGE_MOST_WAVES };

/* What a message is part of: the rows of a wave, or one of these. */
enum { PART_SENT = WAVES, PART_BACK, PART_RETURNED };

/* What travels: rows, and slots of one float. */
enum { ROWS, SLOTS, KINDS };

/* A dispatch or a combine. */
typedef struct moert_flight {
    bool back;                         /* a combine */
    const moert_exchange_plan *plan;   /* NULL: nothing is under way */
    const moert_window *window[KINDS]; /* slots: or NULL */
    moert_staging *packed[KINDS];      /* kept for the next flight */
    moert_mark *mark[WAVES];           /* behind what makes a wave's rows */
    size_t marked, posted;             /* waves */
    uint64_t began_ns;                 /* 0: told already, or not begun */
} moert_flight;

typedef struct moert_stage {
    moert_exchange *exchange;
    moert_mail *mail;
    moert_routes routes;
    moert_flight out, back;
    size_t stride;       /* of rows that there is room for on the way back */
    moert_status status; /* the first failure since the dispatch began */
} moert_stage;

static void note(moert_stage *stage, moert_status status) {
    if (stage->status == MOERT_OK)
        stage->status = status;
}

/* ---- messages ---- */

/* Posts a wave's messages of one kind with one peer, one way. */
static moert_status post_pair(moert_stage *stage, const moert_flight *flight, int kind, size_t wave,
                              bool send, size_t peer) {
    const moert_exchange_plan *plan = flight->plan;
    const moert_window *window = flight->window[kind];
    const size_t local = plan->plan->local_experts, row_bytes = window->width * sizeof(float);
    const size_t part = send ? (flight->back ? PART_RETURNED : PART_SENT)
                             : (flight->back ? (size_t)PART_BACK : wave);
    const moert_mail_address to = {send, peer, flight->back ? 2 : 1, part};
    const bool packed = send != flight->back;
    moert_staging *memory = packed ? flight->packed[kind] : window->storage.staging;
    const moert_mail_rows rows = {moert_staging_host(memory), row_bytes,
                                  window->stride * sizeof(float)};
    if (packed)
        return moert_mail_post(stage->mail, to, &rows,
                               &stage->routes.packed[peer * plan->waves + wave], 1);
    const moert_wave experts = moert_exchange_wave(plan, wave);
    return moert_mail_post(stage->mail, to, &rows,
                           &stage->routes.window[peer * local + experts.first],
                           experts.end - experts.first);
}

/* Posts a wave's messages one way; each rank begins with another peer. */
static moert_status post_wave(moert_stage *stage, const moert_flight *flight, size_t wave,
                              bool send) {
    const size_t ranks = flight->plan->plan->ranks, rank = flight->plan->plan->rank;
    for (size_t k = 0; k < ranks; k++) {
        const size_t peer = (send ? rank + k : rank + ranks - k) % ranks;
        for (int kind = 0; kind < KINDS; kind++)
            if (flight->window[kind] != NULL)
                MOERT_TRY(post_pair(stage, flight, kind, wave, send, peer));
    }
    return MOERT_OK;
}

/* Posts the next wave. Rows that could not be made are sent as they are: nobody may wait for them.
 */
static void post_next(moert_stage *stage, moert_flight *flight) {
    if (flight->posted == 0) {
        flight->began_ns = moert_clock_ns();
        for (size_t w = 0; w < flight->plan->waves; w++)
            note(stage, post_wave(stage, flight, w, false));
    }
    note(stage, post_wave(stage, flight, flight->posted, true));
    flight->posted++;
}

/* Posts the waves whose marks have passed; of a dispatch one at a time, since messages that are
 * under way together share the link, and the first wave would come no earlier than the last. */
static void post_marked(moert_stage *stage, moert_flight *flight) {
    while (flight->posted < flight->marked) {
        bool passed = true;
        if (!flight->back && moert_mail_left(stage->mail, PART_SENT) > 0)
            return;
        if (flight->mark[flight->posted] != NULL)
            note(stage, moert_mark_look(flight->mark[flight->posted], &passed));
        if (!passed)
            return;
        post_next(stage, flight);
    }
}

static bool has_landed(const moert_stage *stage, const moert_flight *flight) {
    size_t left = flight->posted < flight->plan->waves;
    for (size_t w = 0; w < flight->plan->waves && !flight->back; w++)
        left += moert_mail_left(stage->mail, w);
    return left + (flight->back ? moert_mail_left(stage->mail, PART_BACK) : 0) == 0;
}

/* Tells a profile how long rows were on their way, once all have come. */
static void tell_flight(moert_stage *stage, moert_flight *flight) {
    if (flight->began_ns == 0 || !has_landed(stage, flight))
        return;
    moert_profile_flight(stage->exchange->device,
                         flight->back ? MOERT_OPERATION_COMBINE : MOERT_OPERATION_DISPATCH,
                         flight->began_ns, moert_clock_ns());
    flight->began_ns = 0;
}

/* Posts what can be and lets messages move; `wait`: until one is done. */
static moert_status advance(moert_stage *stage, bool wait) {
    post_marked(stage, &stage->out);
    post_marked(stage, &stage->back);
    MOERT_TRY(moert_mail_progress(stage->mail, wait));
    tell_flight(stage, &stage->out);
    tell_flight(stage, &stage->back);
    return MOERT_OK;
}

/* ---- waiting ---- */

enum { ALL = -1 };

static bool is_posted(const moert_flight *flight) {
    return flight->posted == flight->marked;
}

/* Whether the rows of a wave have come, with the last one all of this rank's are sent off, or ALL
 * messages are done. */
static bool is_done(const moert_stage *stage, int wave) {
    const moert_flight *out = &stage->out;
    if (wave == ALL)
        return is_posted(out) && is_posted(&stage->back) &&
               moert_mail_left_of_all(stage->mail) == 0;
    const size_t needed = (size_t)wave + 1 == out->plan->waves ? out->marked : 1;
    return out->posted >= needed && moert_mail_left(stage->mail, (size_t)wave) == 0;
}

/*
 * Until a wave has come, or ALL is done. While the device works, looks now and then; this rank
 * waits for others, as the watchdog and a profile count it, from when its device has nothing to do.
 */
static moert_status await(moert_stage *stage, int wave) {
    const struct timespec nap = {0, NAP_NS};
    moert_mark *end = NULL;
    bool idle = false, waiting = false;
    moert_status status = advance(stage, false);
    if (status == MOERT_OK && !is_done(stage, wave))
        note(stage, moert_mark_set(stage->exchange->device, &end));
    while (status == MOERT_OK && !is_done(stage, wave)) {
        if (!idle && end != NULL && moert_mark_look(end, &idle) != MOERT_OK)
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
    moert_mark_free(end);
    note(stage, status);
    return stage->status;
}

/* ---- dispatch and combine ---- */

static void free_marks(moert_flight *flight) {
    for (size_t w = 0; w < WAVES; w++) {
        moert_mark_free(flight->mark[w]);
        flight->mark[w] = NULL;
    }
}

/* A flight whose waves are still to be marked. */
static void begin(moert_flight *flight, const moert_move *move) {
    free_marks(flight);
    flight->plan = move->plan;
    flight->window[ROWS] = move->window;
    flight->window[SLOTS] = move->slots;
    flight->marked = flight->posted = 0;
    flight->began_ns = 0;
}

/* The rows that are made by what is enqueued so far are the next wave's. */
static void mark_wave(moert_stage *stage, moert_flight *flight) {
    note(stage, moert_mark_set(stage->exchange->device, &flight->mark[flight->marked]));
    flight->marked++;
}

/* Room for the packed rows of a window's stride, and for slots, forth and back. What comes back may
 * be wider: as wide as any window so far. */
static moert_status reserve_packed(moert_stage *stage, const moert_move *move) {
    moert_device *device = stage->exchange->device;
    const size_t rows = moert_routes_packed_rows(move->plan->plan);
    stage->stride = stage->exchange->widest;
    MOERT_TRY(moert_staging_reserve(device, rows * move->window->stride * sizeof(float),
                                    &stage->out.packed[ROWS]));
    MOERT_TRY(moert_staging_reserve(device, rows * stage->stride * sizeof(float),
                                    &stage->back.packed[ROWS]));
    if (move->slots != NULL)
        MOERT_TRY(moert_staging_reserve(device, rows * move->slots->stride * sizeof(float),
                                        &stage->out.packed[SLOTS]));
    return moert_staging_reserve(device, rows * MOERT_SLOT_STRIDE * sizeof(float),
                                 &stage->back.packed[SLOTS]);
}

/* The packed rows of a move as its windows, which have one rank. */
typedef struct moert_packed_move {
    moert_exchange_plan plan;
    moert_window window[KINDS];
    moert_move move;
} moert_packed_move;

static void pack_move(const moert_flight *flight, const moert_move *move, moert_packed_move *made) {
    made->plan = *move->plan;
    made->plan.destination = move->plan->packed;
    made->move = *move;
    made->move.plan = &made->plan;
    made->window[ROWS] = *move->window;
    made->window[ROWS].storage.rows = moert_staging_buffer(flight->packed[ROWS]);
    made->move.window = &made->window[ROWS];
    if (move->slots == NULL)
        return;
    made->window[SLOTS] = *move->slots;
    made->window[SLOTS].storage.rows = moert_staging_buffer(flight->packed[SLOTS]);
    made->move.slots = &made->window[SLOTS];
}

/* Copies a wave's rows between the device and the host. */
typedef moert_status moert_copy(moert_staging *staging, size_t offset_bytes, size_t bytes);

static moert_status copy_rows(moert_staging *staging, const moert_window *window, size_t first,
                              size_t end, moert_copy *copy) {
    const size_t row_bytes = window->stride * sizeof(float);
    return copy(staging, first * row_bytes, (end - first) * row_bytes);
}

static moert_status copy_wave(const moert_flight *flight, size_t wave, moert_copy *copy) {
    const moert_wave part = moert_exchange_wave(flight->plan, wave);
    for (int kind = 0; kind < KINDS; kind++)
        if (flight->window[kind] != NULL)
            MOERT_TRY(copy_rows(flight->window[kind]->storage.staging, flight->window[kind],
                                part.first_row, part.end_row, copy));
    return MOERT_OK;
}

static moert_status copy_packed(const moert_flight *flight, moert_copy *copy) {
    for (int kind = 0; kind < KINDS; kind++)
        if (flight->window[kind] != NULL)
            MOERT_TRY(copy_rows(flight->packed[kind], flight->window[kind], 0,
                                moert_routes_packed_rows(flight->plan->plan), copy));
    return MOERT_OK;
}

/* Enqueues the packing of rows and slots, and how they come to the host. */
static moert_status pack(moert_stage *stage, const moert_move *move) {
    moert_packed_move packed;
    MOERT_TRY(moert_routes_find(&stage->routes, move->plan));
    MOERT_TRY(reserve_packed(stage, move));
    pack_move(&stage->out, move, &packed);
    begin(&stage->out, move);
    MOERT_TRY(moert_kernel_dispatch(stage->exchange, &packed.move, false));
    return copy_packed(&stage->out, moert_staging_fetch);
}

/* All ranks fail here or go through all waves. */
static moert_status dispatch_staged(moert_exchange *exchange, const moert_move *move,
                                    moert_status status) {
    moert_stage *stage = exchange->state;
    stage->status = MOERT_OK;
    const moert_status last = await(stage, ALL); /* what is packed next may still be sent */
    if (status == MOERT_OK)
        status = last == MOERT_OK ? pack(stage, move) : last;
    MOERT_TRY(moert_comm_agree(exchange->comm, status));
    for (size_t w = 0; w < move->plan->waves; w++)
        mark_wave(stage, &stage->out);
    note(stage, advance(stage, false));
    return MOERT_OK;
}

/* Rows travel without their padding. */
static void clear_padding(const moert_window *window, size_t first, size_t end) {
    const size_t bytes = (window->stride - window->width) * sizeof(float);
    float *row = (float *)moert_staging_host(window->storage.staging) + first * window->stride;
    for (size_t i = first; bytes > 0 && i < end; i++, row += window->stride)
        memset(row + window->width, 0, bytes);
}

static moert_status wait_staged(moert_exchange *exchange, size_t wave) {
    moert_stage *stage = exchange->state;
    const moert_wave part = moert_exchange_wave(stage->out.plan, wave);
    MOERT_TRY(await(stage, (int)wave));
    for (int kind = 0; kind < KINDS; kind++)
        if (stage->out.window[kind] != NULL)
            clear_padding(stage->out.window[kind], part.first_row, part.end_row);
    return copy_wave(&stage->out, wave, moert_staging_give);
}

/* Room for rows of a window that is new since the dispatch; all ranks come here or none. */
static moert_status widen(moert_stage *stage, const moert_move *move) {
    moert_exchange *exchange = stage->exchange;
    const size_t bytes =
        moert_routes_packed_rows(move->plan->plan) * move->window->stride * sizeof(float);
    MOERT_TRY(moert_comm_agree(
        exchange->comm, moert_staging_reserve(exchange->device, bytes, &stage->back.packed[ROWS])));
    stage->stride = move->window->stride;
    return MOERT_OK;
}

static moert_status begin_back(moert_stage *stage, const moert_move *move) {
    if (stage->out.plan != move->plan)
        return MOERT_FAIL(ERROR_USAGE, "a combine does not follow the dispatch of its plan");
    if (move->window->stride > stage->stride)
        MOERT_TRY(widen(stage, move));
    begin(&stage->back, move);
    return MOERT_OK;
}

static moert_status send_staged(moert_exchange *exchange, const moert_move *move, size_t wave) {
    moert_stage *stage = exchange->state;
    if (wave == 0)
        MOERT_TRY(begin_back(stage, move));
    note(stage, copy_wave(&stage->back, wave, moert_staging_fetch));
    mark_wave(stage, &stage->back);
    note(stage, advance(stage, false));
    return stage->status;
}

static moert_status combine_staged(moert_exchange *exchange, const moert_move *move,
                                   moert_status status) {
    moert_stage *stage = exchange->state;
    moert_packed_move packed;
    const moert_status come = await(stage, ALL);
    if (status == MOERT_OK)
        status = come;
    MOERT_TRY(moert_comm_agree(exchange->comm, status));
    MOERT_TRY(copy_packed(&stage->back, moert_staging_give));
    pack_move(&stage->back, move, &packed);
    MOERT_TRY(moert_kernel_combine_rows(exchange, &packed.move, false,
                                        packed.window[ROWS].storage.rows, packed.plan.destination));
    return move->slots != NULL ? moert_kernel_combine_slots(exchange, &packed.move, false)
                               : MOERT_OK;
}

/* ---- the engine ---- */

static void free_stage(moert_stage *stage) {
    moert_flight *flights[] = {&stage->out, &stage->back};
    for (size_t i = 0; i < 2; i++) {
        free_marks(flights[i]);
        for (int kind = 0; kind < KINDS; kind++)
            moert_staging_destroy(flights[i]->packed[kind]);
    }
    moert_mail_destroy(stage->mail);
    moert_routes_free(&stage->routes);
    free(stage);
}

static void open_staged(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_stage *stage = NULL;
    moert_status status = MOERT_NEW(&stage);
    if (status == MOERT_OK) {
        *stage = (moert_stage){.exchange = exchange, .back = {.back = true}};
        status = moert_mail_create(exchange->comm, &stage->mail);
    }
    if (status != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    moert_exchange_share_reason(exchange->comm, reason);
    exchange->state = stage;
    if (reason[0] != '\0' && stage != NULL)
        free_stage(stage);
}

static void close_staged(moert_exchange *exchange) {
    moert_stage *stage = exchange->state;
    await(stage, ALL);
    free_stage(stage);
}

static moert_status allocate_staged(const moert_window *window, size_t rows,
                                    moert_storage *storage) {
    MOERT_TRY(moert_staging_create(window->exchange->device, rows * window->stride * sizeof(float),
                                   &storage->staging));
    storage->rows = moert_staging_buffer(storage->staging);
    return MOERT_OK;
}

const moert_engine moert_engine_staged = {
    .name = "staged",
    .packs = true,
    .open = open_staged,
    .close = close_staged,
    .allocate = allocate_staged,
    .dispatch = dispatch_staged,
    .combine = combine_staged,
    .wait = wait_staged,
    .send = send_staged,
};
