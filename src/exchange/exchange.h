/*
 * Moves rows by a plan, forth (dispatch) and back (combine), in one of several engines with the
 * same bits.
 *
 * A window is one row-major float32 matrix per rank, on the rank's device, that the peers of the
 * exchange can reach: rows of `width` floats at a stride of moert_window_stride() floats (width
 * rounded up to 16). Dispatch copies each token's row, bit by bit whatever it means, into the
 * windows of the owners of its K experts, at the plan's rows; combine sums the K rows of each
 * token, from the owners' windows, in slot order. Slots (weights, and their gradients) travel along
 * as one float per row.
 *
 *   local   one rank
 *   window  ranks of one host, all on CPU devices (shared memory) or all on NVIDIA GPUs that reach
 *           each other (exported memory): one-sided kernels
 *   node    ranks of several hosts on CPU devices: windows inside a host; a row goes to each other
 *           host at most once, and one rank there passes it on (relay.h)
 *   staged  any ranks and devices: messages from and into host memory, in chunks
 *
 * Order: plan, dispatch, (compute on the window's rows), combine; the plan waits for this device's
 * earlier work, so a window may be dispatched to again in the next round. Between a combine and the
 * next dispatch *to the same window* there must be a plan or another dispatch-combine pair (its two
 * synchronisations order the accesses).
 *
 * Waves let a rank compute while rows travel. A chunk is a part of every rank's experts, consecutive
 * ones, and so a range of a window's rows:
 *
 *   dispatch_start, then for each chunk: dispatch_wait, enqueue the work on its rows, combine_send;
 *   combine_finish
 *
 * Between dispatch_start and combine_finish there may be other work on the device and collective
 * calls on other communicators; a rank on which something fails still goes through all chunks and
 * hands its status to combine_finish. Only the staged engine has more than one chunk. dispatch and
 * combine are the same calls one after the other.
 *
 * A failure on any rank is returned by all ranks of a collective call, and the exchange stays
 * usable. Where the ranks wait for each other on their devices (MOERT_SYNC), a device that does not
 * come in time is found out later: by the next plan, or by moert_exchange_settle. The
 * exceptions come after the last synchronisation of their call, and only when a device or the
 * host's memory is at its end: make_plan while it copies the plan, dispatch and combine while they
 * enqueue their last kernels. There the rank keeps its own error, to be handed to the next plan as
 * `local`.
 */
#pragma once

#include "base/config.h"
#include "comm/comm.h"
#include "device/device.h"
#include "moert/plan.h"

typedef struct moert_exchange moert_exchange;
typedef struct moert_window moert_window;

/*
 * An exchange among the ranks of `comm`. engine: MOERT_EXCHANGE_* of base/config.h; AUTO takes
 * local for one rank, else window where it works on every rank, else staged, and logs why. A named
 * engine that cannot work is ERROR_UNSUPPORTED with the reason. Collective. `device` and `comm`
 * must outlive it.
 */
moert_status moert_exchange_create(moert_device *device, moert_comm *comm, unsigned engine,
                                   moert_exchange **exchange);
/* Collective. NULL is legal. Windows go first. */
void moert_exchange_destroy(moert_exchange *exchange);
/* Its name in MOERT_ENGINE_TABLE. */
const char *moert_exchange_engine(const moert_exchange *exchange);
/* Bytes that this rank's dispatches have brought into windows (staged: have sent) so far, slots
 * included, rows for itself too. */
uint64_t moert_exchange_dispatched_bytes(const moert_exchange *exchange);
/* Rows that this rank's dispatches have sent to other hosts so far: of the node engine, at most one
 * for each token and host. */
uint64_t moert_exchange_far_rows(const moert_exchange *exchange);

/*
 * Counts from now on, until NULL, the bytes of the rows, slots included, that dispatches bring from
 * this rank to each rank of the exchange, itself too, and combines likewise: what the plans say,
 * whatever way and padding an engine takes. Both [ranks], of the caller.
 */
typedef struct moert_exchange_tally {
    uint64_t *dispatched_bytes, *combined_bytes;
} moert_exchange_tally;
void moert_exchange_count_into(moert_exchange *exchange, const moert_exchange_tally *tally);

/*
 * Whether each engine works among these ranks, in the order in which AUTO tries them: opens and
 * closes each. The same on all ranks. Collective.
 */
enum { MOERT_EXCHANGE_ENGINES = MOERT_EXCHANGE_CHOICES - 1, MOERT_EXCHANGE_REASON_BYTES = 256 };
typedef struct moert_exchange_report {
    const char *name;
    bool automatic;                           /* AUTO takes this one */
    char reason[MOERT_EXCHANGE_REASON_BYTES]; /* why it cannot work; "" if it does */
} moert_exchange_report;
void moert_exchange_survey(moert_device *device, moert_comm *comm,
                           moert_exchange_report reports[MOERT_EXCHANGE_ENGINES]);

/* A window for rows of `width` floats, still without rows. Collective. */
moert_status moert_window_create(moert_exchange *exchange, size_t width, moert_window **window);
/* A window for rows of `columns` bf16 codes, two in the place of a float: combine sums their values
 * in float32, dispatch copies them as ever. Collective. Errors: ERROR_UNSUPPORTED (odd). */
moert_status moert_window_create_bf16(moert_exchange *exchange, size_t columns,
                                      moert_window **window);
void moert_window_destroy(moert_window *window); /* Collective. NULL is legal. */
size_t moert_window_stride(const moert_window *window);
/* This rank's rows, [>= plan->rows, stride]; valid until the window grows. */
moert_buffer *moert_window_rows(const moert_window *window);
/*
 * Makes room for the plan's rows on every rank; the content is lost when the window grows. Only
 * then does it communicate, and all ranks grow together. Errors, on all ranks alike: ERROR_MEMORY,
 * ERROR_DEVICE. Collective.
 */
moert_status moert_window_reserve(moert_window *window, const moert_plan *plan);
/* The same, and room for a row of each slot: for moert_exchange_push. */
typedef struct moert_exchange_plan moert_exchange_plan;
moert_status moert_window_reserve_slots(moert_window *window, const moert_exchange_plan *plan);

/*
 * Plan of index int32 [T,K], whose slots the device counts and places: without slots on the host
 * (moert_plan_create), but for the node engine. `local` is this rank's status so far: if it or the
 * index is bad on any rank, all ranks get the same error (ERROR_MISMATCH if the ranks differ in
 * topk). Collective: one all-gather of E counts per rank.
 */
struct moert_exchange_plan {
    moert_plan *plan;
    moert_buffer *ends;        /* uint32 [local experts]; then lanes of kernels/exchange/plan.cl */
    moert_buffer *destination; /* uint32 [T,K,2]: rank, row; rank MOERT_PLAN_DROPPED when dropped */
    moert_buffer *packed; /* staged: the same with (0, place in the received rows); else NULL */
    struct moert_relay *relay; /* node: routes to other hosts; else NULL */
    size_t capacity_rows;      /* rows that a plan of as many tokens needs at most, on any rank */
    size_t largest_slots;      /* T K of the rank that has the most */
    size_t chunks;             /* 1, until moert_exchange_cut */
    struct moert_planner *planner; /* the exchange's */
};
typedef struct moert_exchange_slots {
    const moert_buffer *index; /* int32 [T,K] */
    size_t tokens, topk, experts;
} moert_exchange_slots;
moert_status moert_exchange_make_plan(moert_exchange *exchange, const moert_exchange_slots *slots,
                                      moert_status local, moert_exchange_plan **plan);
/*
 * The same in two calls, between which the caller may enqueue work that needs no plan: the device
 * does it while the host makes the plan. begin's status, an error of this rank's own, goes with
 * that of the work to end, as `local`; every begin has its end. index stays as it is until the
 * plan's first dispatch is done. Collective: end.
 */
moert_status moert_exchange_begin_plan(moert_exchange *exchange, const moert_exchange_slots *slots,
                                       moert_status local);
moert_status moert_exchange_end_plan(moert_exchange *exchange, moert_status local,
                                     moert_exchange_plan **plan);
/* Before its exchange is destroyed. What has been enqueued may still use it. NULL is legal. */
void moert_exchange_free_plan(moert_exchange_plan *plan);

/*
 * The rows of a dispatch or of a combine. It stays as it is from the first call that takes it to
 * the last; what moert notes in it comes after the caller's own.
 */
typedef struct moert_transfer {
    const moert_exchange_plan *plan;
    moert_window *window; /* to which rows go, or from which they come back */
    moert_window *slots;  /* the same of one float per slot, of width 1; or NULL */

    const moert_buffer *source;      /* dispatch: [T,width] */
    const moert_buffer *slot_source; /* dispatch with slots: [T,K] */

    const moert_buffer *weight; /* combine: [T,K], or NULL: 1 */
    moert_buffer *target;       /* combine: [T,width], of codes [T,columns] */
    moert_buffer *slot_target;  /* combine with slots: [T,K] */
    const moert_window *cells;  /* combine of rows that are sent as they are made (below): the slots
                                   of their dispatch; NULL: it fetches rows */

    const moert_buffer *unsent; /* rows that the combine itself sends */
    bool beside;                /* the combine runs beside other work */
    bool once;                  /* the dispatch sends a row to each rank once */
    size_t most_groups;         /* that the combine's kernel may have; 0: any */
} moert_transfer;

/*
 * rows[t] of source[T,width] to the owners of its slots; with `slots` also one float per slot.
 * Reserves the windows. What this device does next finds the rows there. `local` is this rank's
 * status so far: if it is bad on any rank, all ranks get the same error. Collective.
 */
moert_status moert_exchange_dispatch(moert_exchange *exchange, const moert_transfer *transfer,
                                     moert_status local);

/*
 * target[T,width], of codes [T,columns], = sum over k of weight[t,k] * (row of slot k), in order of
 * k, by fma from 0. A token without slots gets 0. With `slots` also slot_target[T,K] = the slots'
 * floats (0 when dropped). Waits for this rank's compute on the windows first, whose status is
 * `local`, as above. Collective.
 */
moert_status moert_exchange_combine(moert_exchange *exchange, moert_transfer *transfer,
                                    moert_status local);

/* Waits for this device where the ranks wait for each other on theirs: MOERT_OK if what all ranks
 * have dispatched and combined so far is right. Else ERROR_COMM names the rank that was late.
 * Collective. */
moert_status moert_exchange_settle(moert_exchange *exchange);

/* ---- chunks ---- */

enum { MOERT_EXCHANGE_MOST_CHUNKS = 8, MOERT_EXCHANGE_GOOD_CHUNKS = 4 };

/* This rank's experts [first, end), counted from its first one, and rows [first_row, end_row) of
 * one chunk. */
typedef struct moert_chunk {
    size_t first, end, first_row, end_row;
} moert_chunk;
moert_chunk moert_exchange_chunk(const moert_exchange_plan *plan, size_t chunk);

/* How many chunks are worth it between ranks of `experts` experts each that send each other so many
 * bytes. */
size_t moert_exchange_good_chunks(size_t bytes, size_t experts);
/* The same for a plan's rows of so many bytes, or what MOERT_CHUNKS says; the same on all ranks. */
size_t moert_exchange_choose_chunks(const moert_exchange_plan *plan, size_t row_bytes);
/* Cuts the plan's later exchanges into so many chunks (1..MOST_CHUNKS, engines without chunks: 1),
 * the same on all ranks; not between a dispatch and its combine. */
void moert_exchange_cut(const moert_exchange *exchange, moert_exchange_plan *plan, size_t chunks);

/* As moert_exchange_dispatch, but rows may still be on their way on return: source and slot_source
 * may be changed by work enqueued later, the windows by nothing. Collective. */
moert_status moert_exchange_dispatch_start(moert_exchange *exchange, const moert_transfer *transfer,
                                           moert_status local);
/* Waits for a chunk's rows; an error is this rank's own. Waves come in order. Not collective. */
moert_status moert_exchange_dispatch_wait(moert_exchange *exchange, size_t chunk);

/*
 * Sends a chunk's rows (with `slots` its slots too) back to their tokens' owners, once the work
 * enqueued so far is done; does not wait. The windows have room for the plan, and stay as they are
 * until the combine is finished. An error is this rank's own. All chunks in order. Not collective.
 */
moert_status moert_exchange_combine_send(moert_exchange *exchange, const moert_transfer *transfer,
                                         size_t chunk);
/*
 * After the last chunk is sent: what is enqueued from here on may run beside the rest of the combine
 * until moert_exchange_combine_join, and touches neither its windows nor its targets; products that
 * would fill a GPU leave some of it to the combine (moert_device_spare). An error is this rank's
 * own. Not collective.
 */
moert_status moert_exchange_combine_beside(moert_exchange *exchange, moert_transfer *transfer);
/* The rest of moert_exchange_combine, after its last chunk is sent. After combine_beside `target`
 * may still be on its way on return, slot_target is not. Collective. */
moert_status moert_exchange_combine_finish(moert_exchange *exchange, const moert_transfer *transfer,
                                           moert_status local);
/* What this device does next finds the target of the last combine there. An error is this rank's
 * own. Not collective. */
moert_status moert_exchange_combine_join(moert_exchange *exchange);

/* ---- rows that are sent as they are made ---- */

/*
 * Where an engine can (MOERT_PUSH), rows need not wait in a window until the combine fetches them:
 * a product, or a copy, stores each into the window of the rank whose slot it is, at row t K + k.
 * The combine, of the same bits, then reads this rank's memory alone.
 *
 *   window_reserve_slots, dispatch with slots, push and work that stores rows to their places, or
 *   push_rows, combine: these three of one transfer, whose `cells` are the slots of that dispatch
 *
 * Every rank pushes or none. One window serves pushed rows and others in turn: a rank that stores
 * into it has met all others in the dispatch before, behind what they have read of it.
 */

/* Whether to do so, the same on all ranks where `products` is: whether products store rows there
 * themselves, as Hopper's do if they round to bf16. */
bool moert_exchange_pushes(const moert_exchange *exchange, bool products);
/*
 * Whether push_rows sends the sum of a rank's rows of a token, in order of k, in place of the first
 * (MOERT_PUSH=sum; codes are rounded once more), and combine sums these, without weights. Then rows
 * are pushed by push_rows alone, push is ERROR_USAGE. The same on all ranks.
 */
bool moert_exchange_sums(const moert_exchange *exchange);
/*
 * *places = uint64 [plan->rows], where this device finds the place of each row in the windows of
 * all ranks, 0: nowhere; until the next push. An error is this rank's own. Not collective.
 */
moert_status moert_exchange_push(moert_exchange *exchange, const moert_transfer *transfer,
                                 const moert_buffer **places);
/* rows[M,stride of the window] are copied there, maybe not before the combine: they and the cells
 * stay as they are until it, or combine_beside, returns. */
moert_status moert_exchange_push_rows(moert_exchange *exchange, moert_transfer *transfer,
                                      const moert_buffer *rows);
