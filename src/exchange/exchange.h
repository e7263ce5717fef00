/*
 * Moves rows by a plan to the experts (dispatch) and back (combine). Four engines implement both
 * operations and give the same bits.
 *
 * A window is one row-major float32 matrix per rank, on the rank's device, with rows of `width`
 * floats at a stride of moert_window_stride() floats (width rounded up to 16). All ranks of the
 * exchange can reach a window. Dispatch copies the bits of each token's row into the windows of the
 * owners of its K experts, at the plan's rows. Combine sums the K rows of each token from the
 * owners' windows, in slot order. One float per slot may travel with its row, such as a routing
 * weight or its gradient.
 *
 *   local   one rank
 *   window  ranks of one host, all on CPU devices (shared memory) or all on NVIDIA GPUs that reach
 *           each other (exported memory): kernels read and write the windows of peers
 *   node    ranks of several hosts on CPU devices: windows inside a host; a row goes to each other
 *           host at most once, to a relay (node/relay.h)
 *   staged  any ranks and devices: messages from and into host memory, in chunks
 *
 * Order: plan, dispatch, work on the window's rows, combine. The plan waits for this device's
 * earlier work, so the next dispatch-combine pair may use the same window. Between a combine and
 * the next dispatch *to the same window* there must be a plan or another dispatch-combine pair. The
 * synchronisations in the dispatch and in the combine of a pair order the accesses to the window.
 *
 * Chunks let a rank compute while rows travel. A chunk is a range of consecutive experts of every
 * rank, and so a range of a window's rows:
 *
 *   dispatch_start, then for each chunk: dispatch_wait, enqueue the work on its rows, combine_send;
 *   combine_finish
 *
 * Between dispatch_start and combine_finish the caller may enqueue other work and make collective
 * calls on other communicators. A rank on which something fails still goes through all chunks, and
 * passes its status to combine_finish. Only the staged engine has more than one chunk.
 * moert_exchange_dispatch and moert_exchange_combine make the calls of all chunks in turn.
 *
 * If a rank fails in a collective call, all ranks return its failure, and the exchange stays
 * usable. Exceptions are failures after the last synchronisation of a call, when a device fails or
 * memory runs out: in make_plan while it copies the plan, in dispatch and combine while they
 * enqueue their last kernels. Then only this rank fails, and passes its error to the next plan as
 * `local`. If the ranks' devices wait for each other (MOERT_SYNC), the next plan or
 * moert_exchange_settle reports a device that was late at a barrier.
 */
#pragma once

#include "base/config.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "device/buffer_table.h"
#include "plan/expert_map.h"

/* Strides of windows in floats are multiples of this number, so rows consist of whole vectors. */
enum { MOERT_WINDOW_ROW_FLOATS = 16 };

typedef struct moert_exchange moert_exchange;
typedef struct moert_window moert_window;

/*
 * Creates an exchange among the ranks of `comm`. engine: MOERT_EXCHANGE_* of base/config.h. AUTO
 * takes the first of local, window, node and staged that works on all ranks, and logs why other
 * engines do not work. A named engine that does not work is ERROR_UNSUPPORTED with the reason.
 * Collective. `device` and `comm` must outlive the exchange.
 */
moert_status moert_exchange_create(moert_device *device, moert_comm *comm, unsigned engine,
                                   moert_exchange **exchange);
/* Collective. NULL is legal. The caller destroys windows and plans first. */
void moert_exchange_destroy(moert_exchange *exchange);
/* The engine's name in MOERT_ENGINE_TABLE. */
const char *moert_exchange_engine(const moert_exchange *exchange);

/*
 * From now on counts the bytes of rows and slots that move from this rank to rank r, which may be
 * this rank. Dispatches add to dispatched_bytes[r], combines add to combined_bytes[r]. Both counts
 * follow from the plans alone; they ignore an engine's route and padding. The caller owns both
 * arrays, [ranks]. NULL ends the counting.
 */
typedef struct moert_exchange_tally {
    uint64_t *dispatched_bytes, *combined_bytes;
} moert_exchange_tally;
void moert_exchange_count_into(moert_exchange *exchange, const moert_exchange_tally *tally);

/*
 * Reports which engines work among these ranks, in the order in which AUTO tries them. Opens and
 * closes each engine. The result is the same on all ranks. Collective.
 */
enum { MOERT_EXCHANGE_ENGINES = MOERT_EXCHANGE_CHOICES - 1, MOERT_EXCHANGE_REASON_BYTES = 256 };
typedef struct moert_exchange_report {
    const char *name;
    bool automatic;                           /* AUTO takes this engine */
    char reason[MOERT_EXCHANGE_REASON_BYTES]; /* why the engine cannot work; "" if it works */
} moert_exchange_report;
void moert_exchange_survey(moert_device *device, moert_comm *comm,
                           moert_exchange_report reports[MOERT_EXCHANGE_ENGINES]);

/* The floats from row to row of a window. */
static inline size_t moert_window_stride_of(size_t width) {
    return moert_round_up(width, MOERT_WINDOW_ROW_FLOATS);
}
/*
 * The number of rows that a window reserves if it needs `needed` rows: at most `limit`. Growing
 * later costs far more than reserving. If untouched rows use no memory in the engine (`worst`), the
 * window gets `capacity` rows, the largest number of rows that any plan of these token counts can
 * need. In other engines the window gets up to an eighth more rows than needed.
 */
static inline size_t moert_window_room(size_t needed, size_t capacity, size_t limit, bool worst) {
    const size_t wanted = worst ? moert_max(capacity, needed) : moert_with_room(needed);
    return moert_min(wanted, limit);
}

/* The rows that a rank packs: its tokens have `slots` slots, and it receives `rows` rows, which are
 * `forth` floats wide in a dispatch and `back` in a combine. */
typedef struct moert_packed_sizes {
    size_t slots, rows, forth, back;
} moert_packed_sizes;

/* Whether the plans of an engine (MOERT_EXCHANGE_* of base/config.h, not AUTO) have `packed`, and
 * the bytes of the memory into which it packs rows. For the node engine this is an upper bound:
 * every slot's result travels between hosts. */
bool moert_exchange_packs(unsigned engine);
size_t moert_exchange_packed_bytes(unsigned engine, const moert_packed_sizes *sizes);

/* Creates a window for rows of `width` floats, still without rows. Every rank calls this, but the
 * ranks do not communicate: an error is local to this rank. */
moert_status moert_window_create(moert_exchange *exchange, size_t width, moert_window **window);
/* Like moert_window_create, for rows of `columns` bf16 values, two in the space of a float. Combine
 * sums the bf16 rows in float32. Errors: ERROR_UNSUPPORTED (odd number of columns). */
moert_status moert_window_create_bf16(moert_exchange *exchange, size_t columns,
                                      moert_window **window);
void moert_window_destroy(moert_window *window); /* Collective. NULL is legal. */
size_t moert_window_stride(const moert_window *window);
/* This rank's rows, [>= plan->rows, stride]; valid until the window grows. */
moert_buffer *moert_window_rows(const moert_window *window);
/*
 * Makes room for the plan's rows on every rank. If the window must grow, it grows on all ranks and
 * its content is lost. The ranks communicate only in that case. Errors, the same on all ranks:
 * ERROR_MEMORY, ERROR_DEVICE. Collective.
 */
moert_status moert_window_reserve(moert_window *window, const moert_plan *plan);
/* Like moert_window_reserve, with room also for one row per slot, which moert_exchange_push
 * needs. */
typedef struct moert_exchange_plan moert_exchange_plan;
moert_status moert_window_reserve_slots(moert_window *window, const moert_exchange_plan *plan);

/*
 * Makes the plan of index int32 [T,K]. The device counts the slots and computes their rows; the
 * plan has slots on the host (moert_plan_create) only for the node engine. `local` is this rank's
 * status so far: if it is a failure, or the index is invalid, on any rank, all ranks return the
 * same error (ERROR_MISMATCH if the ranks differ in topk). Collective: one all-gather of E counts
 * per rank.
 */
enum { MOERT_STREAMS = 4 }; /* streams of random bits of an expert */

struct moert_exchange_plan {
    moert_plan *plan;
    moert_buffer *ends;            /* uint32 [local slots]: the end of each local slot's rows; then
                                      [local slots, 2] for random bits of the rows: the first of
                                      MOERT_STREAMS streams of the slot's expert, and the number of
                                      row 0 among the expert's rows on all ranks (modulo 2^32); then
                                      the table of exchange/plan.cl */
    moert_buffer *destination;     /* uint32 [T,K,2]: rank, row; MOERT_PLAN_DROPPED if dropped */
    moert_buffer *packed;          /* staged engine: uint32 [T,K,2]: (0, row among the packed rows);
                                      else NULL */
    struct moert_relay *relay;     /* node engine: routes to other hosts; else NULL */
    size_t capacity_rows;          /* an upper bound of a rank's rows in any plan of these token
                                      counts */
    size_t largest_slots;          /* the largest T K of all ranks */
    size_t chunks;                 /* 1 until moert_exchange_cut */
    struct moert_planner *planner; /* of the exchange */
};
typedef struct moert_exchange_slots {
    const moert_buffer *index; /* int32 [T,K] */
    size_t tokens, topk, experts;
    const moert_expert_map *placement; /* where the experts are; NULL: in contiguous blocks. The
                                          placement must not change until the plan is made */
} moert_exchange_slots;
moert_status moert_exchange_make_plan(moert_exchange *exchange, const moert_exchange_slots *slots,
                                      moert_status local, moert_exchange_plan **plan);
/* The sizes of a plan on the device: the most slots of any rank, since a plan's memory also serves
 * plans in which a rank repeats another rank's work; lanes (moert_lane) of all experts; slots of
 * this rank's tokens; whether the engine packs rows. */
typedef struct moert_plan_sizes {
    size_t local, lanes, slots;
    bool packs;
} moert_plan_sizes;
moert_buffer_table moert_exchange_plan_buffers; /* of a moert_exchange_plan */
/*
 * moert_exchange_make_plan in two calls, begin and end. Between begin and end the caller may
 * enqueue work that needs no plan; the device does this work while the host makes the plan. The
 * status of begin is local to this rank. The caller passes the status of begin, or of the work, to
 * end as `local`. Every begin needs an end. The index must not change before the plan's first
 * dispatch is done. Only end is collective.
 */
moert_status moert_exchange_begin_plan(moert_exchange *exchange, const moert_exchange_slots *slots,
                                       moert_status local);
moert_status moert_exchange_end_plan(moert_exchange *exchange, moert_status local,
                                     moert_exchange_plan **plan);
/* Free all plans before the exchange is destroyed. Enqueued work may still use the plan. NULL is
 * legal. */
void moert_exchange_free_plan(moert_exchange_plan *plan);

/*
 * The rows of a dispatch or a combine. The caller must not change the struct between the first and
 * the last call that takes it.
 */
typedef struct moert_transfer {
    const moert_exchange_plan *plan;
    moert_window *window; /* target of a dispatch's rows, source of a combine's rows */
    moert_window *slots;  /* a window of width 1 for one float per slot, or NULL */

    const moert_buffer *source;      /* dispatch: [T,width] */
    const moert_buffer *slot_source; /* dispatch with slots: [T,K] */

    const moert_buffer *weight; /* combine: [T,K]; NULL: each is 1 */
    moert_buffer *target;       /* combine: float32 [T,width], or [T,columns] of a bf16 window */
    moert_buffer *slot_target;  /* combine with slots: [T,K] */
    const moert_window *slot_window; /* combine of pushed rows: the window `slots` of their
                                        dispatch; NULL: the combine fetches rows */

    /* the exchange, not the caller, sets the fields below */
    const moert_buffer *unsent; /* pushed rows that the combine itself sends */
    bool overlaps;              /* other work may run at the same time as the combine */
    bool one_copy_per_rank;     /* a dispatch sends a token's row at most once to each rank */
    size_t most_groups;         /* the most work-groups that the combine's kernel may have; 0:
                                   any number */
} moert_transfer;

/*
 * Copies row t of source[T,width] to the owners of its slots; with `slots` also one float per slot.
 * Reserves the windows. Work that the caller enqueues next finds the rows in the windows. `local`
 * is this rank's status so far: if it is a failure on any rank, all ranks return the same error.
 * Collective.
 */
moert_status moert_exchange_dispatch(moert_exchange *exchange, const moert_transfer *transfer,
                                     moert_status local);

/*
 * target[t] = sum over k of weight[t,k] * (row of slot k), in order of k, by fma from 0; a token
 * without slots gets 0. With `slots` also slot_target[T,K] = the slots' floats (0 if dropped). Runs
 * after this rank's enqueued work on the windows. `local` is this rank's status so far, as in
 * moert_exchange_dispatch. Collective.
 */
moert_status moert_exchange_combine(moert_exchange *exchange, moert_transfer *transfer,
                                    moert_status local);

/* Returns MOERT_OK if no device was late in the dispatches and combines so far, else ERROR_COMM
 * with the late rank. Waits for this device if the ranks' devices wait for each other.
 * Collective. */
moert_status moert_exchange_settle(moert_exchange *exchange);

/* ---- chunks ---- */

enum { MOERT_EXCHANGE_MOST_CHUNKS = 8, MOERT_EXCHANGE_GOOD_CHUNKS = 4 };

/* The experts [first, end) of a chunk, numbered from this rank's first expert, and their rows
 * [first_row, end_row). */
typedef struct moert_chunk {
    size_t first, end, first_row, end_row;
} moert_chunk;
moert_chunk moert_exchange_chunk(const moert_exchange_plan *plan, size_t chunk);

/* A good number of chunks if each rank has `experts` experts and sends `bytes`. */
size_t moert_exchange_good_chunks(size_t bytes, size_t experts);
/* MOERT_CHUNKS if it is set, else a good number of chunks for a plan's rows of `row_bytes`. The
 * result is the same on all ranks. */
size_t moert_exchange_choose_chunks(const moert_exchange_plan *plan, size_t row_bytes);
/* Sets the number of chunks of the plan's later exchanges, limited to 1..MOST_CHUNKS, or to 1 in
 * engines without chunks. All ranks must give the same number. Must not be called between a
 * dispatch and its combine. */
void moert_exchange_cut(const moert_exchange *exchange, moert_exchange_plan *plan, size_t chunks);

/* Like moert_exchange_dispatch, but rows may still be in flight on return. Work enqueued later may
 * change source and slot_source, but not the windows. Collective. */
moert_status moert_exchange_dispatch_start(moert_exchange *exchange, const moert_transfer *transfer,
                                           moert_status local);
/* Waits for the rows of a chunk; the caller takes chunks in order. An error is local to
 * this rank. Not collective. */
moert_status moert_exchange_dispatch_wait(moert_exchange *exchange, size_t chunk);

/*
 * Sends a chunk's rows, and with `slots` also one float per slot, back to the ranks of the rows'
 * tokens once the work enqueued so far is done. Does not wait. The windows must have room for the
 * plan, and must not change before the combine is finished. The caller sends all chunks in order.
 * An error is local to this rank. Not collective.
 */
moert_status moert_exchange_combine_send(moert_exchange *exchange, const moert_transfer *transfer,
                                         size_t chunk);
/*
 * Optional, after the last chunk is sent: lets work that is enqueued from here on overlap with the
 * rest of the combine, until moert_exchange_combine_join. The overlapping work must not touch the
 * combine's windows and targets. Persistent GEMMs leave some compute units of a GPU to the combine
 * (moert_device_reserve_units). An error is local to this rank. Not collective.
 */
moert_status moert_exchange_combine_overlapped(moert_exchange *exchange, moert_transfer *transfer);
/* Does the rest of moert_exchange_combine, after the last chunk is sent. Work enqueued next finds
 * the results in slot_target and `target`. After moert_exchange_combine_overlapped, `target` is
 * complete only after moert_exchange_combine_join. Collective. */
moert_status moert_exchange_combine_finish(moert_exchange *exchange, const moert_transfer *transfer,
                                           moert_status local);
/* Work that is enqueued on this device next finds the complete `target` of the last combine. An
 * error is local to this rank. Not collective. */
moert_status moert_exchange_combine_join(moert_exchange *exchange);

/* ---- push: rows that are sent as they are computed ---- */

/*
 * With MOERT_PUSH, rows do not wait in a window until the combine fetches them. Instead a GEMM or a
 * copy stores each row into the window of the rank that has its slot, at row t K + k. The combine
 * then only reads this rank's memory. The combine's results have the same bits as without push. The
 * calls are:
 *
 *   moert_window_reserve_slots and a dispatch with slots;
 *   moert_exchange_push and a GEMM that stores rows to these addresses, or
 *   moert_exchange_push_rows;
 *   a combine of the same transfer, whose `slot_window` is `slots` of that dispatch
 *
 * All ranks push, or none does. One window may serve pushed rows in one round and fetched rows in
 * the next: the barrier of the dispatch guarantees that peers have finished reading the window.
 */

/* Whether to push. The result is the same on all ranks if `gemm_scatters` is. gemm_scatters: the
 * GEMM can store its rows to any address, as GEMMs on Hopper's tensor cores can if they round to
 * bf16. */
bool moert_exchange_pushes(const moert_exchange *exchange, bool gemm_scatters);
/*
 * Whether moert_exchange_push_rows sums the rows that a rank has for a token, in order of k
 * (MOERT_PUSH=sum). moert_exchange_push_rows sends each sum to the position of the first of these
 * rows; sums of bf16 rows are rounded once more. Combine then adds these sums, without weights, and
 * moert_exchange_push returns ERROR_USAGE. The result is the same on all ranks.
 */
bool moert_exchange_sums(const moert_exchange *exchange);
/*
 * *addresses = uint64 [plan->rows], on this device: the address of each row in the window of its
 * slot's rank, or 0 for a row without a slot. Valid until the next push. An error is local to
 * this rank. Not collective.
 */
moert_status moert_exchange_push(moert_exchange *exchange, const moert_transfer *transfer,
                                 const moert_buffer **addresses);
/* Copies rows[M,stride of the window] to the addresses of moert_exchange_push, possibly as late as
 * in the combine. So `rows` and the window `slots` of the dispatch must not change before the
 * combine, or moert_exchange_combine_overlapped, returns. */
moert_status moert_exchange_push_rows(moert_exchange *exchange, moert_transfer *transfer,
                                      const moert_buffer *rows);
