/*
 * Gathers properties and rates of every rank before a job, and finds the ranks that differ from the
 * others or are slower.
 *
 * Ranks are compared with each other, never with a table of machines. A rank's typical link is the
 * median over its peers (the faster link if it has two peers). The reference is the median over all
 * ranks. A rank is slow if its rate is below `slow` times the reference. With only two ranks, a
 * slow link does not show which of the two ranks is slow.
 */
#pragma once

#include <jansson.h>

#include "context/context.h"
#include "tools/common/links.h"
#include "tools/common/rates.h"

/* X(FIELD, finding, hint): texts that must be the same on all ranks. */
#define MOERT_PREFLIGHT_TEXTS(X)                                                                   \
    X(commit, "another moert", "install one build everywhere, or run it from a shared directory")  \
    X(mpi, "another MPI library", "all ranks must load the library that mpirun came with")         \
    X(device, "another device",                                                                    \
      "MOERT_DEVICE chooses; all wait for the slowest, and only equal "                            \
      "devices give the same bits")                                                                \
    X(driver, "another OpenCL driver", "install the same driver on all hosts")                     \
    X(settings, "other MOERT_* variables", "mpirun -x NAME passes a variable on to all hosts")     \
    X(results, "other results of the same GEMM",                                                   \
      "if its device is of the same kind, it or its memory is faulty; leave the host out")

enum { MOERT_PREFLIGHT_TEXT_BYTES = 512 };

typedef struct moert_preflight_rank {
    char host[64];
    size_t node;
#define MOERT_PREFLIGHT_TEXT(field, differs, hint) char field[MOERT_PREFLIGHT_TEXT_BYTES];
    MOERT_PREFLIGHT_TEXTS(MOERT_PREFLIGHT_TEXT)
#undef MOERT_PREFLIGHT_TEXT
    size_t cores;
    bool shared;         /* other ranks run on the same cores */
    bool watched;        /* the watchdog works; false if it does not, or if MOERT_TIMEOUT_S is 0 */
    unsigned timeout_s;  /* MOERT_TIMEOUT_S */
    size_t shm_bytes;    /* free bytes of /dev/shm */
    size_t memory_bytes; /* available memory of the host */
    double skew_s;       /* this host's wall clock minus rank 0's */
    moert_rates rates;
    /* GEMMs of the stress test; number of these GEMMs whose bits differ from the first result */
    size_t runs, wrong_runs;
    /* typical GB/s to ranks of this node; to ranks of other nodes; 0 = none */
    double inside, between;
    /* typical latency to ranks of this node; to ranks of other nodes */
    double inside_us, between_us;
} moert_preflight_rank;

typedef struct moert_preflight {
    size_t ranks;
    moert_preflight_rank *rank; /* [R] */
    moert_link *links;          /* [R,R]; zeros for pairs that were not measured */
} moert_preflight;

/*
 * Gathers properties and measures devices. Computes the same GEMM repeatedly for stress_s seconds,
 * then measures links. All ranks measure at the same time. Links are measured among the ranks of
 * each node, then among the ranks with the same index on their nodes. Each of these two
 * measurements takes about links_s seconds. Every rank gets *all, and frees it also on failure.
 * Collective, blocking.
 */
moert_status moert_preflight_gather(moert_context *context, const char *commit, double stress_s,
                                    double links_s, moert_preflight *all);
void moert_preflight_free(moert_preflight *all);

/*
 * Computes each rank's typical links. *findings = an array of objects with the keys wrong (false =
 * only a note), text and hint. Not collective. Errors: ERROR_MEMORY.
 */
moert_status moert_preflight_judge(moert_preflight *all, double slow, json_t **findings);
