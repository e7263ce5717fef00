/*
 * The engine for any ranks and devices: rows travel as non-blocking messages from and into host
 * memory, in chunks.
 *
 * A rank packs its rows on the device, sorted by (owner, row in the owner's window), in the order
 * of the plan's `packed`. The packed rows are a window of one rank, so the kernels of the other
 * engines pack and sum them, with the same bits. At the token's rank a message of a chunk is one
 * run of packed rows. At the owner the message is one run of the window for each expert of the
 * chunk. Combine sends the same rows back.
 *
 *   dispatch   out.packed -> window        combine   window -> back.packed
 *
 * Windows and packed rows are staging memory, so on CPU devices kernels access the memory that MPI
 * sends from and receives into. inflight.h says when messages are posted.
 */
#include <string.h>

#include "base/memory.h"
#include "exchange/staged/inflight.h"

/* ---- dispatch and combine ---- */

/* A copy of a transfer in which packed rows replace the windows, as windows of one rank. */
typedef struct moert_packed_move {
    moert_exchange_plan plan;
    moert_window window[MOERT_INFLIGHT_KINDS];
    moert_transfer t;
} moert_packed_move;

static void pack_move(const moert_inflight *inflight, const moert_transfer *t,
                      moert_packed_move *made) {
    made->plan = *t->plan;
    made->plan.destination = t->plan->packed;
    made->t = *t;
    made->t.plan = &made->plan;
    made->window[MOERT_INFLIGHT_ROWS] = *t->window;
    made->window[MOERT_INFLIGHT_ROWS].storage.rows =
        moert_staging_buffer(inflight->packed[MOERT_INFLIGHT_ROWS]);
    made->t.window = &made->window[MOERT_INFLIGHT_ROWS];
    if (t->slots == NULL)
        return;
    made->window[MOERT_INFLIGHT_SLOTS] = *t->slots;
    made->window[MOERT_INFLIGHT_SLOTS].storage.rows =
        moert_staging_buffer(inflight->packed[MOERT_INFLIGHT_SLOTS]);
    made->t.slots = &made->window[MOERT_INFLIGHT_SLOTS];
}

/* Copies rows between the device and the host. */
typedef moert_status moert_copy(moert_staging *staging, size_t offset_bytes, size_t bytes);

static moert_status copy_rows(moert_staging *staging, const moert_window *window, size_t first,
                              size_t end, moert_copy *copy) {
    const size_t row_bytes = window->stride * sizeof(float);
    return copy(staging, first * row_bytes, (end - first) * row_bytes);
}

static moert_status copy_chunk(const moert_inflight *inflight, size_t chunk, moert_copy *copy) {
    const moert_chunk part = moert_exchange_chunk(inflight->plan, chunk);
    for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
        if (inflight->window[kind] != NULL)
            MOERT_TRY(copy_rows(inflight->window[kind]->storage.staging, inflight->window[kind],
                                part.first_row, part.end_row, copy));
    return MOERT_OK;
}

static moert_status copy_packed(const moert_inflight *inflight, moert_copy *copy) {
    for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
        if (inflight->window[kind] != NULL)
            MOERT_TRY(copy_rows(inflight->packed[kind], inflight->window[kind], 0,
                                moert_routes_packed_rows(inflight->plan->plan), copy));
    return MOERT_OK;
}

static size_t packed_bytes(const moert_packed_sizes *s) {
    const size_t out = moert_window_stride_of(s->forth),
                 widest = moert_max(out, moert_window_stride_of(s->back));
    return moert_staging_room(s->slots * out * sizeof(float)) +
           moert_staging_room(s->slots * widest * sizeof(float)) +
           2 * moert_staging_room(s->slots * MOERT_SLOT_STRIDE * sizeof(float));
}

/* Enqueues the packing of rows and slots, and their copy to the host. */
static moert_status pack(moert_staged *stage, const moert_transfer *t) {
    moert_device *device = stage->exchange->device;
    const size_t rows = moert_routes_packed_rows(t->plan->plan);
    moert_packed_move packed;
    MOERT_TRY(moert_routes_find(&stage->routes, t->plan));
    /* Reserve memory for rows and slots in both directions. Rows of the combine may be wider than
     * those of the dispatch, so reserve for the widest window so far. */
    stage->stride = stage->exchange->widest;
    MOERT_TRY(moert_staging_reserve(device, rows * t->window->stride * sizeof(float),
                                    &stage->out.packed[MOERT_INFLIGHT_ROWS]));
    MOERT_TRY(moert_staging_reserve(device, rows * stage->stride * sizeof(float),
                                    &stage->back.packed[MOERT_INFLIGHT_ROWS]));
    if (t->slots != NULL)
        MOERT_TRY(moert_staging_reserve(device, rows * t->slots->stride * sizeof(float),
                                        &stage->out.packed[MOERT_INFLIGHT_SLOTS]));
    MOERT_TRY(moert_staging_reserve(device, rows * MOERT_SLOT_STRIDE * sizeof(float),
                                    &stage->back.packed[MOERT_INFLIGHT_SLOTS]));
    pack_move(&stage->out, t, &packed);
    moert_inflight_begin(&stage->out, t);
    MOERT_TRY(moert_kernel_dispatch(stage->exchange, &packed.t, false));
    return copy_packed(&stage->out, moert_staging_copy_to_host);
}

/* Either all ranks fail here, or all go through all chunks. */
static moert_status dispatch_staged(moert_exchange *exchange, const moert_transfer *t,
                                    moert_status status) {
    moert_staged *stage = exchange->state;
    stage->status = MOERT_OK;
    /* earlier messages may still read the packed rows */
    status = moert_first(status, moert_staged_await(stage, MOERT_STAGED_ALL));
    if (status == MOERT_OK)
        status = pack(stage, t);
    MOERT_TRY(moert_comm_agree(exchange->comm, status));
    for (size_t c = 0; c < t->plan->chunks; c++)
        moert_inflight_record(stage, &stage->out);
    moert_staged_advance(stage);
    return MOERT_OK;
}

/* Clears the padding of received rows, since messages carry rows without padding. */
static void clear_padding(const moert_window *window, size_t first, size_t end) {
    const size_t bytes = (window->stride - window->width) * sizeof(float);
    float *row = (float *)moert_staging_host(window->storage.staging) + first * window->stride;
    for (size_t i = first; bytes > 0 && i < end; i++, row += window->stride)
        memset(row + window->width, 0, bytes);
}

static moert_status wait_staged(moert_exchange *exchange, size_t chunk) {
    moert_staged *stage = exchange->state;
    const moert_chunk part = moert_exchange_chunk(stage->out.plan, chunk);
    MOERT_TRY(moert_staged_await(stage, (int)chunk));
    for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
        if (stage->out.window[kind] != NULL)
            clear_padding(stage->out.window[kind], part.first_row, part.end_row);
    return copy_chunk(&stage->out, chunk, moert_staging_copy_to_device);
}

static moert_status send_staged(moert_exchange *exchange, const moert_transfer *t, size_t chunk) {
    moert_staged *stage = exchange->state;
    if (chunk == 0 && stage->out.plan != t->plan)
        return MOERT_FAIL(ERROR_USAGE, "a combine must follow a dispatch of the same plan");
    if (chunk == 0 && t->window->stride > stage->stride) {
        /* this window is wider than all windows before the dispatch, on all ranks alike, so all
         * ranks make this collective call */
        const size_t floats = moert_routes_packed_rows(t->plan->plan) * t->window->stride;
        MOERT_TRY(moert_comm_agree(
            exchange->comm, moert_staging_reserve(exchange->device, floats * sizeof(float),
                                                  &stage->back.packed[MOERT_INFLIGHT_ROWS])));
        stage->stride = t->window->stride;
    }
    if (chunk == 0)
        moert_inflight_begin(&stage->back, t);
    moert_staged_note(stage, copy_chunk(&stage->back, chunk, moert_staging_copy_to_host));
    moert_inflight_record(stage, &stage->back);
    moert_staged_advance(stage);
    return stage->status;
}

static moert_status combine_staged(moert_exchange *exchange, const moert_transfer *t,
                                   moert_status status) {
    moert_staged *stage = exchange->state;
    moert_packed_move packed;
    status = moert_first(status, moert_staged_await(stage, MOERT_STAGED_ALL));
    MOERT_TRY(moert_comm_agree(exchange->comm, status));
    MOERT_TRY(copy_packed(&stage->back, moert_staging_copy_to_device));
    pack_move(&stage->back, t, &packed);
    MOERT_TRY(moert_kernel_combine_rows(exchange, &packed.t, false));
    return moert_kernel_combine_slots(exchange, &packed.t, false);
}

/* ---- the engine ---- */

static void free_stage(moert_staged *stage) {
    moert_inflight_free(&stage->out);
    moert_inflight_free(&stage->back);
    moert_mail_destroy(stage->mail);
    MOERT_FREE(stage->routes.packed, stage);
}

static void open_staged(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_staged *stage = NULL;
    moert_status status = MOERT_NEW(&stage);
    if (status == MOERT_OK) {
        *stage = (moert_staged){.exchange = exchange};
        stage->back.back = true;
        status = moert_mail_create(exchange->comm, &stage->mail);
    }
    exchange->state = stage;
    if (!moert_exchange_goes_on(exchange->comm, status, reason) && stage != NULL)
        free_stage(stage);
}

static void close_staged(moert_exchange *exchange) {
    moert_staged *stage = exchange->state;
    moert_staged_await(stage, MOERT_STAGED_ALL);
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
    .packed_bytes = packed_bytes,
    .wait = wait_staged,
    .send = send_staged,
};
