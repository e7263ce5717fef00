/*
 * What every rank tells of itself before a job, and what is wrong with it: who differs from the
 * others, and who is slower.
 *
 * Ranks are compared with each other, never with a table of machines: "typical" is the median (the
 * faster of two) of a rank's peers, and the reference the median over all ranks. A rank is slow
 * below the share `slow` of it. Two that are alone cannot tell which of them is slow where it takes
 * both, as on a link.
 */
#pragma once

#include <jansson.h>

#include "context/context.h"
#include "tools/common/links.h"
#include "tools/common/rates.h"

/* X(FIELD, what differs, hint): texts that must be the same on all ranks. */
#define MOERT_PREFLIGHT_TEXTS(X)                                                                   \
    X(commit, "another moert", "install one build everywhere, or run it from a shared folder")     \
    X(mpi, "another MPI library", "all ranks must load the library that mpirun came with")         \
    X(device, "another device",                                                                    \
      "MOERT_DEVICE chooses; all wait for the slowest, and only equal "                            \
      "devices give the same bits")                                                                \
    X(driver, "another OpenCL driver", "install the same driver on all hosts")                     \
    X(settings, "other MOERT_* variables", "mpirun -x NAME passes a variable on to all hosts")

enum { MOERT_PREFLIGHT_TEXT_BYTES = 512 };

typedef struct moert_preflight_rank {
    char host[64];
    size_t node;
#define MOERT_PREFLIGHT_TEXT(field, differs, hint) char field[MOERT_PREFLIGHT_TEXT_BYTES];
    MOERT_PREFLIGHT_TEXTS(MOERT_PREFLIGHT_TEXT)
#undef MOERT_PREFLIGHT_TEXT
    size_t cores;
    bool shared;         /* cores, with other ranks */
    bool watched;        /* by the watchdog; false also where MOERT_TIMEOUT_S is 0 */
    unsigned timeout_s;  /* MOERT_TIMEOUT_S */
    size_t shm_bytes;    /* free in /dev/shm */
    size_t memory_bytes; /* available on the host */
    double skew_s;       /* wall clock ahead of rank 0's */
    moert_rates rates;
    double inside, between; /* typical GB/s to other ranks of the node, of other nodes; 0 = none */
    double inside_us, between_us;
} moert_preflight_rank;

typedef struct moert_preflight {
    size_t ranks;
    moert_preflight_rank *rank; /* [R] */
    moert_link *links;          /* [R,R]; zeros where none was measured */
} moert_preflight;

/*
 * Gathers all, measured by all ranks at the same time: first what costs nothing, then devices, then
 * links among the ranks of each node and among the ranks of equal number on all nodes. links_s:
 * seconds for each of the two. *all on every rank; free it, also on failure. Collective, blocking.
 */
moert_status moert_preflight_gather(moert_context *context, const char *commit, double links_s,
                                    moert_preflight *all);
void moert_preflight_free(moert_preflight *all);

/*
 * Fills the typical figures of each rank from the links, and *findings with an array of objects:
 * wrong (bool; else a remark), text, hint. Pure. Errors: ERROR_MEMORY.
 */
moert_status moert_preflight_judge(moert_preflight *all, double slow, json_t **findings);
