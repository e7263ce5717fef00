/* What the files of src/exchange share: the engines' table, windows and moves. */
#ifndef MOERT_EXCHANGE_INTERNAL_H
#define MOERT_EXCHANGE_INTERNAL_H

#include <stdbool.h>

#include "exchange/exchange.h"

/* The memory behind a window on this rank. */
typedef struct moert_storage {
    moert_buffer *rows;      /* float32 [capacity, stride] */
    moert_shared *shared;    /* window engine: the segments of all ranks */
    moert_buffer *addresses; /* window engine: uint64 [ranks], where the segments lie */
} moert_storage;

struct moert_window {
    moert_exchange *exchange;
    size_t width, stride; /* floats */
    size_t columns;       /* numbers of a row: its floats, or twice as many bf16 codes */
    size_t capacity_rows; /* the same on all ranks; 0 before the first reservation */
    moert_storage storage;
};

/* One dispatch or combine; `slots`, slot_values and weight may be NULL. */
typedef struct moert_move {
    const moert_exchange_plan *plan;
    moert_window *window, *slots;
    const moert_buffer *source;      /* dispatch */
    const moert_buffer *slot_source; /* dispatch */
    const moert_buffer *weight;      /* combine */
    moert_buffer *target;            /* combine */
    moert_buffer *slot_target;       /* combine */
} moert_move;

/*
 * An engine. open: collective; leaves `reason` empty on all ranks, or the same reason why it cannot
 * work on all ranks. dispatch and combine are given this rank's status so far, take part in all
 * communication whatever it is, and return the same failure on all ranks.
 */
typedef struct moert_engine {
    const char *name;
    bool reserves_worst_case; /* untouched rows cost nothing */
    bool packs;               /* plans carry `packed` */
    void (*open)(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]);
    void (*close)(moert_exchange *exchange);
    /* storage for so many rows; may leave a part of it made on failure. Collective. */
    moert_status (*allocate)(const moert_window *window, size_t rows, moert_storage *storage);
    moert_status (*dispatch)(moert_exchange *exchange, const moert_move *move, moert_status status);
    moert_status (*combine)(moert_exchange *exchange, const moert_move *move, moert_status status);
} moert_engine;

extern const moert_engine moert_engine_local, moert_engine_window, moert_engine_staged;

struct moert_exchange {
    moert_device *device;
    moert_comm *comm;
    const moert_engine *engine;
    void *state;          /* the engine's */
    size_t largest_bytes; /* largest allocation that every rank's device takes */
    size_t capacity_rows; /* largest capacity_rows of all plans so far */
    uint64_t dispatched_bytes;
    moert_buffer *counts, *words; /* of plans, nothing is kept there: kernels/plan.cl */
};

void moert_storage_release(moert_storage *storage);

/* Counts a dispatch of rows of so many floats to all owners. */
void moert_exchange_count(moert_exchange *exchange, const moert_plan *plan, size_t row_floats);

/* Collective: true if `mine` is true on every rank. */
moert_status moert_exchange_everyone(moert_comm *comm, bool mine, bool *all);
/* Collective: the reason of the lowest rank that has one, on all ranks; "" if none has. */
void moert_exchange_share_reason(moert_comm *comm, char reason[MOERT_EXCHANGE_REASON_BYTES]);

/* ---- kernels (exchange_kernels.c); `reach` is a window's rows (remote = false) or addresses ----
 */

moert_status moert_kernel_dispatch(moert_exchange *exchange, const moert_move *move, bool remote);
moert_status moert_kernel_combine_rows(moert_exchange *exchange, const moert_move *move,
                                       bool remote, const moert_buffer *reach,
                                       const moert_buffer *destination);
moert_status moert_kernel_combine_slots(moert_exchange *exchange, const moert_move *move,
                                        bool remote);

#endif
