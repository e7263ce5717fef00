/*
 * What tests of the exchange have in common: the ways to exchange that they test, a bit each, and a
 * run of the tests in the ways that this device and job have.
 */
#pragma once

#include "exchange/window/control.h"
#include "support/exchange/round_trip.h"
#include "support/mpi.h"

/* What is tested: an engine, who waits for the other ranks, (node) how many ranks count as a host,
 * and (window) whether results are pushed, rows go to each rank once, and transfers of few rows are
 * one kernel. */
typedef struct setup {
    const char *name;
    unsigned engine;
    const char *sync, *timeout_s;
    size_t together;
    bool aside; /* with devices that wait: combines run on the second queue */
    const char *push;
    enum { AS_IT_IS, OFF, ON } once, fuse;
} setup;

/* The setups, in the order of their table. */
enum {
    BY_LOCAL = 1 << 0,
    BY_WINDOW = 1 << 1,
    BY_DEVICES = 1 << 2, /* which wait, not the hosts */
    BY_ONCE = 1 << 3,
    BY_FUSED = 1 << 4,
    BY_FUSED_ONCE = 1 << 5,
    BY_PUSHED = 1 << 6,
    BY_PUSHED_ONCE = 1 << 7,
    BY_SUMMED = 1 << 8,
    BY_SUMMED_FUSED = 1 << 9,
    BY_STAGED = 1 << 10,
    BY_NODES = 7 << 11, /* of 1, 2 and 3 ranks */
    BY_IMPATIENT = 1 << 14,
    BY_IMPATIENT_FUSED = 1 << 15,
    BY_IMPATIENT_SUMMED = 1 << 16,
    BY_ENGINES = BY_LOCAL | BY_WINDOW | BY_DEVICES | BY_STAGED | BY_NODES,
    BY_PUSHES = BY_PUSHED | BY_PUSHED_ONCE,
    BY_SUMS = BY_SUMMED | BY_SUMMED_FUSED,
    BY_ALL = BY_ENGINES | BY_ONCE | BY_FUSED | BY_FUSED_ONCE | BY_PUSHES | BY_SUMS,
};

/* A test and its ways, or none: it runs once. */
typedef struct exchange_test {
    const char *name;
    CMUnitTestFunction function;
    unsigned ways;
} exchange_test;
#define EXCHANGE_TEST(test, ways)                                                                  \
    { #test, test, ways }

/* Hostile ones. */
enum { SHAPES = 20 };
extern const shape shapes[SHAPES];

/* The ranks of the job on so many hosts as MOERT_NODE_RANKS makes; [0] has one. */
extern moert_comm *spread[MAX_RANKS];

/* The exchange under test. */
moert_exchange *open_exchange(void **state);
/* Its windows for a shape. */
trip open_windows(moert_exchange *exchange, const shape *c, bool codes);
/* Both, and the first trip. */
trip open_trip(void **state, const shape *c);
/* Trips of all shapes, with the settings of `like`. */
void run_shapes(moert_exchange *exchange, const trip *like);
/* The end of a test; close_usable makes the trip once more before, and asks whether all went
 * right. */
void close_trip(trip *t);
void close_usable(const shape *c, trip *t);

/* What keeps the last rank's device busy, from keep_busy on, for longer than the others of
 * BY_IMPATIENT* wait for it. */
moert_flags *make_busy(void);
moert_status keep_busy(moert_flags *busy);
/* The next plan names that rank, and the phase. */
void expect_late(const shape *c, const trip *t, const char *phase);

/* Whether the device takes the window engine. */
bool has_windows(void);
/* main() of a module: those of `tests` that apply to this device and number of ranks. */
int run_exchange_tests(const char *name, const exchange_test *tests, size_t count, int arguments,
                       char **argument);
