/*
 * Shared by the tests of the exchange: a table of setups, one bit each, and a main() that runs each
 * test in those of its setups that this device and number of ranks allow.
 */
#pragma once

#include "exchange/window/control.h"
#include "support/exchange/round_trip.h"
#include "support/mpi.h"

/* A setup: the engine and settings of an exchange. */
typedef struct setup {
    const char *name;
    unsigned engine;
    const char *sync;      /* MOERT_SYNC: whether host or device waits for other ranks */
    const char *timeout_s; /* MOERT_TIMEOUT_S */
    /* node engine: MOERT_NODE_RANKS, the number of ranks that count as a host; 0: all */
    size_t together;
    bool aside;       /* if devices wait for each other: combines run on the second queue */
    const char *push; /* MOERT_PUSH */
    /* window engine: whether rows go to each rank once, and whether a transfer of few rows is one
     * kernel */
    enum { AS_IT_IS, OFF, ON } once, fuse;
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
    BY_SUMMED = 1 << 8,
    BY_SUMMED_FUSED = 1 << 9,
    BY_STAGED = 1 << 10,
    BY_NODES = 7 << 11, /* node engine with hosts of 1, 2 and 3 ranks */
    BY_IMPATIENT = 1 << 14,
    BY_IMPATIENT_FUSED = 1 << 15,
    BY_IMPATIENT_SUMMED = 1 << 16,
    BY_ENGINES = BY_LOCAL | BY_WINDOW | BY_DEVICES | BY_STAGED | BY_NODES,
    BY_PUSHES = BY_PUSHED | BY_PUSHED_ONCE,
    BY_SUMS = BY_SUMMED | BY_SUMMED_FUSED,
    BY_ALL = BY_ENGINES | BY_ONCE | BY_FUSED | BY_FUSED_ONCE | BY_PUSHES | BY_SUMS,
};

/* A test and the bits of its setups; 0: it runs once, without a setup. */
typedef struct exchange_test {
    const char *name;
    CMUnitTestFunction function;
    unsigned ways;
} exchange_test;
#define EXCHANGE_TEST(test, ways)                                                                  \
    { #test, test, ways }

/* Hostile shapes. */
enum { SHAPES = 20 };
extern const shape shapes[SHAPES];

/* [n]: all ranks of the job with MOERT_NODE_RANKS=n; [0]: all on one host. */
extern moert_comm *spread[MAX_RANKS];

/* Opens the exchange of a setup, *state. */
moert_exchange *open_exchange(void **state);
/* Opens windows for a shape. */
trip open_windows(moert_exchange *exchange, const shape *c, bool bf16);
/* Opens an exchange and windows, and makes a first round trip. */
trip open_trip(void **state, const shape *c);
/* Makes a round trip of every shape, with the fields `bf16`, `chunks` and `presummed` of `like`. */
void run_shapes(moert_exchange *exchange, const trip *like);
/* Destroys a trip and its exchange. close_usable() first checks that another round trip
 * succeeds. */
void close_trip(trip *t);
void close_usable(const shape *c, trip *t);

/* keep_busy() keeps the last rank's device for 2.5 s in a barrier that no other rank enters. In the
 * setups BY_IMPATIENT*, the other ranks time out earlier. make_busy() creates the flags. */
moert_flags *make_busy(void);
moert_status keep_busy(moert_flags *busy);
/* Checks that the next plan fails with a message that names the last rank and `phase`. */
void expect_late(const shape *c, const trip *t, const char *phase);

/* True if the device supports the window engine. */
bool has_windows(void);
/* main(): runs `tests` in their setups, except those that this device or number of ranks rules
 * out. */
int run_exchange_tests(const char *name, const exchange_test *tests, size_t count, int arguments,
                       char **argument);
