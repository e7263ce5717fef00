/*
 * Shared by the tests of the exchange: a round trip of any shape with its oracle, and a table of
 * setups, each with a bit. main() runs each test in those of its setups that this device and number
 * of ranks allow.
 *
 * A round trip is a dispatch and a combine. Rows, slots and sums must equal values that the host
 * computes from the shape's routing (routing.h). A sum has the bits of a chain of fmaf in slot
 * order. If each node sums its results before it sends them, the chain runs over the sums of the
 * nodes.
 */
#pragma once

#include "exchange/exchange.h"
#include "exchange/window/control.h"
#include "support/exchange/routing.h"
#include "support/mpi.h"

enum { JOB_RANKS = 4 }; /* at most */

/* A setup: the engine and settings of an exchange. */
typedef struct setup {
    const char *name;
    unsigned engine;
    const char *sync;      /* MOERT_SYNC: whether the host or the device waits for other ranks */
    const char *timeout_s; /* MOERT_TIMEOUT_S */
    /* node engine: MOERT_NODE_RANKS, the number of ranks that count as a host; 0: all */
    size_t together;
    bool aside;       /* combines run on the second queue, if devices wait for each other */
    const char *push; /* MOERT_PUSH */
    /* window engine: whether rows go to each rank once, and whether a transfer of few rows is one
     * kernel */
    enum { AS_IT_IS, OFF, ON } one_copy_per_rank, fuse;
} setup;

/* The setups, in the order of their table. */
enum {
    BY_LOCAL = 1 << 0,
    BY_WINDOW = 1 << 1,
    BY_DEVICES = 1 << 2, /* devices, not hosts, wait for each other */
    BY_ONCE = 1 << 3,
    BY_FUSED = 1 << 4,
    BY_FUSED_ONCE = 1 << 5,
    BY_PUSHED = 1 << 6,
    BY_PUSHED_ONCE = 1 << 7,
    BY_SUMS = 3 << 8,
    BY_STAGED = 1 << 10,
    BY_NODES = 7 << 11, /* node engine with hosts of 1, 2 and 3 ranks */
    BY_IMPATIENT = 7 << 14,
    BY_ENGINES = BY_LOCAL | BY_WINDOW | BY_DEVICES | BY_STAGED | BY_NODES,
    BY_PUSHES = BY_PUSHED | BY_PUSHED_ONCE | BY_SUMS,
    BY_ALL = BY_ENGINES | BY_ONCE | BY_FUSED | BY_FUSED_ONCE | BY_PUSHES,
};

/* Defines a test that runs once in each of these setups, with *state = the setup. If `setups` is 0,
 * the test runs once, without a setup. */
#define EXCHANGE_TEST(name, ways) TEST_ROW(name, NULL, NULL, (void *)(uintptr_t)(ways))
/* main(): runs all tests in their setups, except those that this device or number of ranks rules
 * out. */
#define EXCHANGE_TESTS                                                                             \
    int main(int count, char **arguments) {                                                        \
        return run_exchange_tests(count, arguments);                                               \
    }
int run_exchange_tests(int count, char **arguments);

/* [n]: a communicator of all ranks, made with MOERT_NODE_RANKS=n; [0]: all ranks count as one
 * host. */
extern moert_comm *spread[JOB_RANKS];
/* True if the device supports the window engine. */
bool has_windows(void);
/* The name of the engine that `auto` chooses; "" if there is an error. Collective. */
const char *automatic_engine(moert_comm *comm);

/* ---- round trips; the running test owns their objects ---- */

/* The objects of a round trip on this rank. */
typedef struct trip {
    moert_exchange *exchange;
    moert_window *x, *y, *slot_x, *slot_y;
    moert_exchange_plan *plan;
    moert_buffer *index, *source, *weight, *target, *slot_target;
    shape c; /* the shape of the buffers made last */
    routing routing;
    /* this rank's number of tokens, and the first slot of its first token */
    size_t tokens, first_slot;
    bool bf16;          /* y holds bf16 */
    size_t chunks;      /* number of chunks; 0 means 1 */
    float *host;        /* host memory, large enough for each window and buffer */
    float *slot_weight; /* the content of `weight` */
    /* each node of this communicator sums results before it sends them; NULL: no node does */
    const moert_comm *presummed;
    bool summed;  /* every rank sums results before it sends them, and rounds the sums if `bf16` */
    size_t wrong; /* number of wrong values so far */
} trip;

/* Opens the exchange of a setup, *state. */
moert_exchange *open_exchange(void **state);
/* Opens windows for all shapes of one width. With `bf16`, the width must be even. A row of x then
 * has 2 `width` bf16 values, which hold `width` floats; a row of y has `width` bf16 values.
 * Collective. */
trip *open_windows(moert_exchange *exchange, size_t width, bool bf16);
/* Opens an exchange and windows, and makes a first round trip. */
trip *open_trip(void **state, const shape *c);

/* Makes buffers and a plan with t->chunks chunks. Dispatches, then combines with weights, without
 * weights, and with pushed rows if the exchange pushes. Then dispatches and combines once more,
 * chunk by chunk, as a layer does. If the trip fails on one rank, it fails on all ranks. */
moert_status trip_run(const shape *c, trip *t);
/* Makes a round trip of a shape, or of every hostile shape, with the fields `bf16`, `chunks` and
 * `presummed` of `like`. */
void run_shape(moert_exchange *exchange, shape c, trip like);
void run_shapes(moert_exchange *exchange, trip like);
/* Checks that a round trip succeeds after an earlier one has failed. */
void expect_usable(trip *t);

/* The parts of trip_run(): make the buffers for a shape, and the plan for the experts in
 * t->index. */
void trip_make_buffers(const shape *c, trip *t);
moert_status trip_plan(const trip *t, moert_exchange_plan **plan);
/* Describe the transfer of a dispatch, of a combine, and of a combine with pushed rows. With
 * `slots`, the transfer also carries one value per slot. */
moert_transfer trip_there(const trip *t, bool slots);
moert_transfer trip_back(const trip *t, bool weighted, bool slots);
moert_transfer trip_push(const trip *t, bool weighted, bool slots);
moert_status trip_dispatch(const trip *t, bool slots, moert_status local);
moert_status trip_combine(const trip *t, bool weighted, bool slots, moert_status local);
