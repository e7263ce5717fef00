/* What the files of src/exchange share: the engines, windows and kernels. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "args/exchange.h"
#include "base/config.h"
#include "device/staging.h"
#include "exchange/exchange.h"
#include "exchange/node/relay.h"

/* The memory behind a window on this rank. `addresses`, `segments` and `release`: where kernels
 * reach the other ranks'. */
typedef struct moert_storage {
    moert_buffer *rows;      /* float32 [capacity, stride], then maybe uint32 [capacity] */
    moert_buffer *addresses; /* uint64 [ranks], where this device finds all ranks' rows */
    void *segments;          /* what the memory's maker keeps of them */
    void (*release)(void *segments);
    moert_staging *staging; /* staged engine: whose buffer `rows` is */
    void *host;             /* shared memory: `rows`, as the host finds them */
} moert_storage;

/* Where segments come from that the kernels of all ranks reach by address. */
typedef struct moert_exchange_memory {
    const char *name;
    bool reserves_worst_case; /* untouched rows cost nothing */
    /* Fails where it cannot be used on this rank, as far as one can tell before making any, for the
     * reason that is then the last error; NULL: one cannot. */
    moert_status (*look)(const moert_device *device, moert_comm *comm);
    /* `bytes` on every rank, from a multiple of 4096 bytes on. May leave a part made on failure,
     * which may be this rank's alone. Collective. */
    moert_status (*create)(moert_device *device, moert_comm *comm, size_t bytes,
                           moert_storage *storage);
} moert_exchange_memory;

extern const moert_exchange_memory moert_memory_shared, moert_memory_nvidia;
/* The one for this kind of device. */
static inline const moert_exchange_memory *moert_memory_of(const moert_device *device) {
    return moert_device_describe(device)->is_cpu ? &moert_memory_shared : &moert_memory_nvidia;
}

/* storage->addresses = table[ranks] */
moert_status moert_storage_point(moert_device *device, const uint64_t *table, size_t ranks,
                                 moert_storage *storage);
void moert_storage_release(moert_storage *storage);

struct moert_window {
    moert_exchange *exchange;
    size_t width, stride; /* floats */
    size_t columns;       /* numbers of a row: its floats, or twice as many bf16 codes */
    size_t capacity_rows; /* the same on all ranks; 0 before the first reservation */
    moert_storage storage;
};

static inline bool moert_window_is_bf16(const moert_window *window) {
    return window->columns != window->width;
}

/*
 * An engine: a row of MOERT_ENGINE_TABLE (base/config.h) and a directory. open: collective; leaves
 * `reason` empty on all ranks, or the same reason why it cannot work on all ranks. dispatch and
 * combine are given this rank's status so far, take part in all communication whatever it is, and
 * return the same failure on all ranks.
 *
 * An engine with chunks returns from dispatch with rows still on their way, and has two more
 * entries, whose failures are this rank's own: `wait` until a chunk's rows are in the windows, and
 * `send`, to be called for one chunk after the other once the work on its rows is enqueued. Whatever
 * has failed, every rank sends all chunks, and combine then tells the others.
 */
typedef struct moert_engine {
    const char *name;
    bool packs; /* plans carry `packed` */
    void (*open)(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]);
    void (*close)(moert_exchange *exchange);
    /* storage for so many rows; may leave a part of it made on failure. Collective. */
    moert_status (*allocate)(const moert_window *window, size_t rows, moert_storage *storage);
    moert_status (*dispatch)(moert_exchange *exchange, const moert_transfer *transfer,
                             moert_status status);
    moert_status (*combine)(moert_exchange *exchange, const moert_transfer *transfer,
                            moert_status status);
    /* The entries below may be NULL: what an engine cannot do. */
    moert_status (*wait)(moert_exchange *exchange, size_t chunk);
    moert_status (*send)(moert_exchange *exchange, const moert_transfer *transfer, size_t chunk);
    /* From here on, until `join`, other work may be enqueued beside this combine. */
    moert_status (*beside)(moert_exchange *exchange, moert_transfer *transfer);
    moert_status (*join)(moert_exchange *exchange);
    /* What dispatches and combines that returned MOERT_OK have found wrong since: fetch enqueues
     * that the device tells, check reads that once it has. This rank's own status. */
    moert_status (*fetch)(moert_exchange *exchange);
    moert_status (*check)(moert_exchange *exchange);
    /* Whether rows can be sent to their slots' ranks as they are made: by products, or however. The
     * same on all ranks. */
    bool (*pushes)(const moert_exchange *exchange, bool products);
    /* Whether the combine of rows to be pushed sends them itself. */
    bool (*sends)(const moert_exchange *exchange, const moert_transfer *transfer);
    /* all[ranks][bytes] = what every rank brings, faster than by messages. Collective. */
    moert_status (*gather)(moert_exchange *exchange, const void *mine, size_t bytes, void *all);
} moert_engine;

#define MOERT_ENGINE_DECLARATION(NAME, name) extern const moert_engine moert_engine_##name;
MOERT_ENGINE_TABLE(MOERT_ENGINE_DECLARATION)
#undef MOERT_ENGINE_DECLARATION

struct moert_exchange {
    moert_device *device;
    moert_comm *comm;
    const moert_engine *engine;
    void *state;                /* the engine's */
    moert_relay_map *relay_map; /* node engine: its plans carry `relay`; else NULL */
    bool automatic;             /* AUTO asks: an engine that works may still refuse */
    bool reserves_worst_case;   /* of its windows: untouched rows cost nothing */
    uint64_t largest_bytes;     /* largest allocation that every rank's device takes */
    size_t capacity_rows;       /* largest capacity_rows of all plans so far */
    size_t widest;              /* largest stride of all windows so far */
    moert_buffer *places;       /* of the last push; NULL before the first */
    bool sums;                  /* the engine's: ranks sum the rows of a token that they push */
    uint64_t dispatched_bytes, far_rows;
    const moert_exchange_tally *tally; /* or NULL */
    struct moert_planner *planner;     /* plan.c; NULL before the first plan */
};

enum { MOERT_SLOT_STRIDE = 16 }; /* of a window of width 1 */

/* Of a row and the word behind the rows that says whose copy it is
 * (kernels/exchange/exchange.cl). */
static inline size_t moert_row_bytes(const moert_window *window) {
    return window->stride * sizeof(float) + sizeof(uint32_t);
}

/* The experts before a chunk, of `count`. */
static inline size_t moert_exchange_part(size_t count, size_t chunk, size_t chunks) {
    return count * chunk / chunks;
}

void moert_exchange_free_planner(struct moert_planner *planner); /* NULL is legal. */

/* Collective: true if `mine` is true on every rank. */
moert_status moert_exchange_everyone(moert_comm *comm, bool mine, bool *all);
/* Collective: true if `status` is MOERT_OK on all ranks; else `reason` is the last error of the lowest
 * rank where it is not, on all ranks. */
bool moert_exchange_goes_on(moert_comm *comm, moert_status status,
                            char reason[MOERT_EXCHANGE_REASON_BYTES]);

/* ---- kernels (kernels.c); `reach` is a window's rows (remote = false) or addresses
 * ---- */

moert_status moert_kernel_dispatch(moert_exchange *exchange, const moert_transfer *t, bool remote);
/* Of a dispatch in which a row goes to each rank once, when all ranks have done so: from this rank's
 * rows to the others of the same tokens. Its window has words behind its rows. */
moert_status moert_kernel_fan_out(moert_exchange *exchange, const moert_transfer *t);
/* Where the cells say that the rows of this rank belong: places, uint64 [rows], the
 * addresses of their slots' rows in the windows of all ranks. */
moert_status moert_kernel_find_places(moert_exchange *exchange, const moert_transfer *t,
                                      moert_buffer *places);
/* The unsent rows go there or, if the exchange sums, the sums of those of each token. */
moert_status moert_kernel_send_rows(moert_exchange *exchange, const moert_transfer *t);
/* Sums the rows that tokens' slots have in all windows or, with cells, that have been sent here. */
moert_status moert_kernel_combine_rows(moert_exchange *exchange, const moert_transfer *t,
                                       bool remote);
/* Fetches the slots' floats, if there are any. */
moert_status moert_kernel_combine_slots(moert_exchange *exchange, const moert_transfer *t,
                                        bool remote);
/* A meeting of the ranks' devices as kernels are told of it (kernels/exchange/barrier.h). */
typedef struct moert_barrier {
    const moert_buffer *segments, *verdict;
    moert_barrier_args args;
} moert_barrier;

/*
 * Transfers of few rows as one kernel with a meeting inside, before which a dispatch stores rows,
 * words and slots, or a combine sends rows, and after which a dispatch fans out, or a combine fetches
 * rows, or sums pushed ones, and slots. In a meeting of no ranks nothing is moved.
 */
bool moert_kernel_is_small(const moert_transfer *t, bool combines);
moert_status moert_kernel_move_barrier(moert_exchange *exchange, const moert_transfer *t,
                                       bool combines, moert_barrier meeting);

/*
 * Whether a plan saves enough for that: of K slots that fall on R ranks at random,
 * R (1 - (1 - 1/R)^K) are the first of their token on a rank. `fused`: in one kernel, where few
 * rows are. The same on all ranks.
 */
bool moert_window_saves(const moert_plan *plan, size_t row_bytes, bool fused);

/* packed[rows,width] = the rows `from`, pairs (rank, row), of a reach with rows of `stride`. */
typedef struct moert_gather {
    const moert_buffer *reach, *from;
    size_t rows, width, stride;
    moert_buffer *packed;
} moert_gather;
moert_status moert_kernel_gather(moert_device *device, const moert_gather *gather);
