/* Internals of src/exchange: engines, windows and kernels. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "args/exchange.h"
#include "base/config.h"
#include "device/device.h"
#include "device/staging.h"
#include "exchange/exchange.h"
#include "exchange/node/relay.h"

/* The memory of a window on this rank, and how its kernels reach the other ranks' rows. */
typedef struct moert_storage {
    moert_buffer *rows;      /* float32 [capacity, stride]; window engine: followed by uint32
                                [capacity] */
    moert_buffer *addresses; /* uint64 [ranks]: the rows of each rank, for this device's kernels */
    void *segments;          /* state of the moert_exchange_memory, or NULL */
    void (*release)(void *segments);
    moert_staging *staging; /* staged engine: the owner of `rows`; else NULL */
    void *host;             /* host address of `rows` in shared memory; else NULL */
} moert_storage;

/* A source of memory segments that the kernels of all ranks reach by address. */
typedef struct moert_exchange_memory {
    const char *name;
    bool reserves_worst_case; /* untouched rows use no memory */
    /* Fails, with the reason as last error, if this rank cannot use the memory. The test allocates
     * no memory. `look` may be NULL: no test. */
    moert_status (*look)(const moert_device *device, moert_comm *comm);
    /* Allocates `bytes` on every rank, at a multiple of 4096 bytes. A failure may concern this rank
     * alone; the caller then releases the content of *storage. Collective. */
    moert_status (*create)(moert_device *device, moert_comm *comm, size_t bytes,
                           moert_storage *storage);
} moert_exchange_memory;

extern const moert_exchange_memory moert_memory_shared, moert_memory_nvidia;
/* The memory for a kind of device. */
static inline const moert_exchange_memory *moert_memory_of(const moert_device *device) {
    return moert_device_describe(device)->is_cpu ? &moert_memory_shared : &moert_memory_nvidia;
}

/* Checks, before any allocation, every condition that excludes the memory. A failure may concern
 * this rank alone. Collective. */
moert_status moert_memory_look(const moert_exchange_memory *memory, const moert_device *device,
                               moert_comm *comm);

/* storage->addresses = table[ranks] */
moert_status moert_storage_point(moert_device *device, const uint64_t *table, size_t ranks,
                                 moert_storage *storage);
void moert_storage_release(moert_storage *storage);

struct moert_window {
    moert_exchange *exchange;
    size_t width, stride; /* floats */
    size_t columns;       /* elements of a row: `width` floats, or 2 width bf16 values */
    size_t capacity_rows; /* the rows for which each rank has memory, the same number on all
                             ranks; 0 before the first reservation */
    size_t counted_bytes; /* moert_device_count */
    moert_storage storage;
};

static inline bool moert_window_is_bf16(const moert_window *window) {
    return window->columns != window->width;
}

/*
 * An engine: a row of MOERT_ENGINE_TABLE (base/config.h) and a directory. open is collective. If
 * the engine works, `reason` stays empty on all ranks; otherwise all ranks get the same reason why
 * it cannot work. dispatch and combine receive this rank's status so far. Whatever that status is,
 * dispatch and combine do all of the communication and return the same failure on all ranks.
 *
 * An engine with chunks returns from dispatch while rows are still in flight, and has two more
 * entries, whose failures are local to this rank. `wait` waits until a chunk's rows are in the
 * windows. The caller calls `send` for one chunk after the other, each after it has enqueued the
 * work on the chunk's rows. Every rank sends all chunks, even after a failure, and combine then
 * reports the failure to the other ranks.
 */
typedef struct moert_engine {
    const char *name;
    bool packs; /* plans have `packed` */
    void (*open)(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]);
    void (*close)(moert_exchange *exchange);
    /* Allocates `rows` rows. On failure the caller releases the content of *storage. Collective. */
    moert_status (*allocate)(const moert_window *window, size_t rows, moert_storage *storage);
    moert_status (*dispatch)(moert_exchange *exchange, const moert_transfer *transfer,
                             moert_status status);
    moert_status (*combine)(moert_exchange *exchange, const moert_transfer *transfer,
                            moert_status status);
    /* An engine may lack the entries below (NULL). */
    size_t (*packed_bytes)(const moert_packed_sizes *sizes); /* moert_exchange_packed_bytes */
    moert_status (*wait)(moert_exchange *exchange, size_t chunk);
    moert_status (*send)(moert_exchange *exchange, const moert_transfer *transfer, size_t chunk);
    /* prepare_overlapped implements moert_exchange_combine_overlapped, and join implements
     * moert_exchange_combine_join. */
    moert_status (*prepare_overlapped)(moert_exchange *exchange, moert_transfer *transfer);
    moert_status (*join)(moert_exchange *exchange);
    /* Report failures on the device in dispatches and combines that returned MOERT_OK.
     * fetch_verdict enqueues a copy of the verdict to the host. After this copy, check_verdict
     * returns the verdict, which is local to this rank. */
    moert_status (*fetch_verdict)(moert_exchange *exchange);
    moert_status (*check_verdict)(moert_exchange *exchange);
    /* moert_exchange_pushes. */
    bool (*pushes)(const moert_exchange *exchange, bool gemm_scatters);
    /* Whether the combine itself sends the rows of moert_exchange_push_rows. */
    bool (*sends)(const moert_exchange *exchange, const moert_transfer *transfer);
    /* An all-gather, all[ranks][bytes], that is faster than MPI messages. Collective. */
    moert_status (*gather)(moert_exchange *exchange, const void *mine, size_t bytes, void *all);
} moert_engine;

#define MOERT_ENGINE_DECLARATION(NAME, name) extern const moert_engine moert_engine_##name;
MOERT_ENGINE_TABLE(MOERT_ENGINE_DECLARATION)
#undef MOERT_ENGINE_DECLARATION

struct moert_exchange {
    moert_device *device;
    moert_comm *comm;
    const moert_engine *engine;
    void *state;                 /* the engine's */
    moert_relay_map *relay_map;  /* the nodes of the ranks, if the engine is the node engine,
                                    whose plans have `relay`; else NULL */
    bool automatic;              /* MOERT_EXCHANGE is auto: an engine may refuse if it would be
                                    slower than another engine */
    bool reserves_worst_case;    /* untouched rows of windows use no memory */
    uint64_t largest_bytes;      /* bytes of the largest allocation that is possible on every
                                    rank's device */
    size_t capacity_rows;        /* largest capacity_rows of all plans so far */
    size_t widest;               /* largest stride of all windows so far */
    moert_buffer *row_addresses; /* addresses that the last push found; NULL before the first
                                    push */
    bool sums;                   /* result of moert_exchange_sums, which the engine sets */
    uint64_t dispatched_bytes;   /* bytes that this rank's dispatches have stored into windows so
                                    far (staged engine: packed), including slots and rows for this
                                    rank itself */
    uint64_t far_rows; /* rows that this rank's dispatches have sent to other hosts so far; node
                          engine: at most one for each token and host */
    const moert_exchange_tally *tally; /* or NULL */
    struct moert_planner *planner;     /* memory of the plans (plan.c); NULL before the first
                                          plan */
};

enum { MOERT_SLOT_STRIDE = MOERT_WINDOW_ROW_FLOATS }; /* stride of a window of width 1 */

/* Bytes of a window for one row: the row at its stride, and one word, the row's origin: the index
 * of the row of this window that has received the same token's data. The origins of all rows follow
 * the last row (kernels/exchange/exchange.cl, dispatch_once). */
static inline size_t moert_row_bytes(const moert_window *window) {
    return window->stride * sizeof(float) + sizeof(uint32_t);
}

/* The number of experts before a chunk, out of `count` in all chunks. */
static inline size_t moert_exchange_part(size_t count, size_t chunk, size_t chunks) {
    return count * chunk / chunks;
}

void moert_exchange_free_planner(struct moert_planner *planner); /* NULL is legal. */

/* Collective: true if `mine` is true on every rank. */
moert_status moert_exchange_everyone(moert_comm *comm, bool mine, bool *all);
/* Collective: true if `status` is MOERT_OK on all ranks. Otherwise `reason` receives, on all ranks,
 * the last error of the lowest rank that failed. */
bool moert_exchange_goes_on(moert_comm *comm, moert_status status,
                            char reason[MOERT_EXCHANGE_REASON_BYTES]);

/* ---- kernels (kernels.c); with `remote` they reach all ranks' windows by address ---- */

moert_status moert_kernel_dispatch(moert_exchange *exchange, const moert_transfer *t, bool remote);
/* After a dispatch that sends a row to each rank once, and its barrier: copies each row that has
 * arrived to the other rows of its token in this rank's window. */
moert_status moert_kernel_fan_out(moert_exchange *exchange, const moert_transfer *t);
/* addresses[rows], uint64 = the address, for each row of this rank, in the window of its slot's
 * rank; 0 for a row without a slot. Reads the slots' cells that the dispatch stored
 * (kernels/exchange/window.h). */
moert_status moert_kernel_find_addresses(moert_exchange *exchange, const moert_transfer *t,
                                         moert_buffer *addresses);
/* Sends the unsent rows to their addresses or, if the exchange sums (moert_exchange_sums), the sum
 * of each token's rows. */
moert_status moert_kernel_send_rows(moert_exchange *exchange, const moert_transfer *t);
/* Sums the rows of each token's slots: fetched from all windows or, with slot_window, those pushed
 * to this rank. */
moert_status moert_kernel_combine_rows(moert_exchange *exchange, const moert_transfer *t,
                                       bool remote);
/* Fetches the slots' floats, if the transfer has slots. */
moert_status moert_kernel_combine_slots(moert_exchange *exchange, const moert_transfer *t,
                                        bool remote);
/* Kernel arguments of a barrier of the ranks' devices (kernels/exchange/barrier.h). */
typedef struct moert_barrier {
    const moert_buffer *state;
    moert_barrier_args args;
} moert_barrier;

/*
 * A transfer of few rows as one kernel with a barrier inside. Before the barrier a dispatch stores
 * rows, their words (moert_row_bytes) and slots, and a combine sends its unsent rows. After the
 * barrier a dispatch fans out, and a combine sums fetched or pushed rows and fetches slots. A
 * barrier with 0 ranks makes the kernel return without moving rows.
 */
bool moert_kernel_is_small(const moert_transfer *t, bool combines);
moert_status moert_kernel_move_barrier(moert_exchange *exchange, const moert_transfer *t,
                                       bool combines, moert_barrier barrier);

/*
 * Whether a dispatch should send a token's row to each rank only once, because this saves enough
 * bytes. If a token's K experts are spread over R ranks at random, the token reaches R (1 - (1 -
 * 1/R)^K) different ranks. `fused`: a transfer of few rows runs as one
 * kernel instead of several (moert_control.fuse). The result is the same on all ranks.
 */
bool moert_window_saves(const moert_plan *plan, size_t row_bytes, bool fused);

/* packed[i, width] = row from[i].row of `window`, at `stride` floats; `from` are pairs (rank, row),
 * whose rank the kernel ignores. */
typedef struct moert_gather {
    const moert_buffer *window, *from;
    size_t rows, width, stride;
    moert_buffer *packed;
} moert_gather;
moert_status moert_kernel_gather(moert_device *device, const moert_gather *gather);
