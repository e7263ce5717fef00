/* Measures the machine that a job runs on, for predictions (machine.h). */
#pragma once

#include "bench/predict/machine.h"
#include "bench/predict/predict.h"
#include "context/context.h"

/*
 * Rates of products of the work's shapes at some numbers of rows, of copies, of engines and links,
 * by all ranks at the same time; each figure is the mean over the ranks. With one node there is no
 * link between nodes to measure: it is that inside. Takes some 20 seconds. Collective, blocking;
 * the same on all ranks. Errors: ERROR_DEVICE, ERROR_MEMORY, ERROR_COMM.
 */
moert_status bench_calibrate(moert_context *context, const bench_work *work, double shared_cores,
                             bench_machine *machine);

/* The links of a machine alone, whose host_gbps is known. Collective. */
moert_status bench_calibrate_links(moert_comm *world, bench_machine *machine);

/* Measures machine->crowd on these nodes, of which there must be three or more (ERROR_USAGE):
 * messages of all to all, beside those of two nodes at a time. Collective, blocking; the same on
 * all ranks. */
moert_status bench_calibrate_crowd(moert_context *context, const bench_work *work,
                                   bench_machine *machine);
