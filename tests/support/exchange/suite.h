/*
 * What tests of the exchange have in common: the exchanges that they test, a row of a table each,
 * and a run of the rows that this device and job have.
 */
#pragma once

#include "exchange/window/control.h"
#include "support/exchange/round_trip.h"
#include "support/mpi.h"

/* What is tested: an engine, who waits for the other ranks, (node) how many ranks count as a host,
 * and (window) whether results are pushed, rows go to each rank once, and transfers of few rows are
 * one kernel. */
typedef struct setup {
    unsigned engine;
    const char *sync, *timeout_s;
    size_t together;
    bool aside; /* with devices that wait: combines run on the second queue */
    const char *push;
    enum { AS_IT_IS, OFF, ON } once, fuse;
} setup;

extern setup setup_local, setup_window, setup_devices, setup_once, setup_fused, setup_fused_once,
    setup_pushed, setup_pushed_once, setup_summed, setup_summed_fused, setup_impatient,
    setup_impatient_fused, setup_impatient_summed, setup_staged, setup_nodes_of_1, setup_nodes_of_2,
    setup_nodes_of_3;

/* Hostile ones. */
enum { SHAPES = 20 };
extern const shape shapes[SHAPES];

/* X-rows of tests: a test on one of them. */
#define LOCAL_ROW(test)   {#test "[local]", test, NULL, NULL, &setup_local},
#define WINDOW_ROW(test)  {#test "[window]", test, NULL, NULL, &setup_window},
#define DEVICES_ROW(test) {#test "[window, devices wait]", test, NULL, NULL, &setup_devices},
#define ONCE_ROW(test)    {#test "[window, rows once]", test, NULL, NULL, &setup_once},
#define FUSED_ROW(test)   {#test "[window, fused]", test, NULL, NULL, &setup_fused},
#define FUSED_ONCE_ROW(test)                                                                       \
    {#test "[window, fused, rows once]", test, NULL, NULL, &setup_fused_once},
#define PUSH_ROW(test) {#test "[window, pushed]", test, NULL, NULL, &setup_pushed},
#define PUSH_ONCE_ROW(test)                                                                        \
    {#test "[window, pushed, devices wait, rows once]", test, NULL, NULL, &setup_pushed_once},
#define SUM_ROW(test) {#test "[window, summed]", test, NULL, NULL, &setup_summed},
#define SUM_FUSED_ROW(test)                                                                        \
    {#test "[window, summed, fused]", test, NULL, NULL, &setup_summed_fused},
#define STAGED_ROW(test) {#test "[staged]", test, NULL, NULL, &setup_staged},
#define NODE_1_ROW(test) {#test "[nodes of 1]", test, NULL, NULL, &setup_nodes_of_1},
#define NODE_2_ROW(test) {#test "[nodes of 2]", test, NULL, NULL, &setup_nodes_of_2},
#define NODE_3_ROW(test) {#test "[nodes of 3]", test, NULL, NULL, &setup_nodes_of_3},

/* The ranks of the job on so many hosts as MOERT_NODE_RANKS makes; [0] has one. */
extern moert_comm *spread[MAX_RANKS];

/* The exchange under test. */
moert_exchange *open_exchange(void **state);
/* The end of a test; close_usable makes the trip once more before, and asks whether all went
 * right. */
void close_trip(trip *t, moert_exchange *exchange);
void close_usable(const shape *c, trip *t, moert_exchange *exchange);

/* What keeps the last rank's device busy, from keep_busy on, for longer than the others of
 * setup_impatient* wait for it. */
moert_flags *make_busy(void);
moert_status keep_busy(moert_flags *busy);
/* The next plan names that rank, and the phase. */
void expect_late(const shape *c, const trip *t, moert_exchange *exchange, const char *phase);

/* Whether the device takes the window engine. */
bool has_windows(void);
/* main() of a module: those of `tests` that apply to this device and number of ranks. */
int run_exchange_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                       int arguments, char **argument);
