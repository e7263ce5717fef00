/* Measures the machine that a job runs on, for predictions (machine.h). */
#pragma once

#include "bench/predict/machine.h"
#include "bench/predict/predict.h"
#include "context/context.h"

/*
 * Measures GEMMs of the work's shapes with several numbers of rows, copies, engines and links, on
 * all ranks at the same time; each figure is the mean over the ranks. With one node, the link
 * between nodes gets the values of the link inside the node. Takes about 20 seconds. Collective,
 * blocking; all ranks get the same result. Errors: ERROR_DEVICE, ERROR_MEMORY, ERROR_COMM.
 */
moert_status bench_calibrate(moert_context *context, const bench_work *work, double shared_cores,
                             bench_machine *machine);

/* Measures only the links of a machine; the caller must have set machine->host_gbps. Collective. */
moert_status bench_calibrate_links(moert_comm *world, bench_machine *machine);

/* Measures machine->crowd and machine->crowd_nodes. crowd is the bandwidth of all-to-all messages
 * divided by the bandwidth of machine->between. Needs three or more nodes (ERROR_USAGE).
 * Collective, blocking; all ranks get the same result. */
moert_status bench_calibrate_crowd(moert_context *context, const bench_work *work,
                                   bench_machine *machine);
