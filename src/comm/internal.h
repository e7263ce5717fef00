/* What the files of src/comm share: the communicator and the wrapper of MPI calls. */
#pragma once

#include <mpi.h>

#include "base/phase.h"
#include "comm/comm.h"

enum { MOERT_HOST_BYTES = 64 };

/* What every rank knows of each rank. */
typedef struct moert_peer {
    size_t origin; /* its rank in the communicator that moert_comm_create made */
    size_t leader; /* lowest rank on its host */
    size_t node;   /* index of its host, counted by lowest rank */
    char host[MOERT_HOST_BYTES];
} moert_peer;

struct moert_comm {
    MPI_Comm handle, node; /* node: the ranks of this host, in rank order */
    size_t rank, size, node_rank, node_size, node_count;
    bool whole; /* holds all ranks of the communicator that moert_comm_create made */
    moert_peer self;
    moert_peer *peers;                  /* [size] */
    int *counts, *displacements;        /* [size] scratch of one collective call */
    size_t *send_start, *receive_start; /* [size] scratch of one collective call */
    int sums;                           /* the tag of the next one, see tree_sum.c */

    /* comm/arrivals.h: the next communicator of this process, and the calls that were noted */
    struct moert_comm *next;
    struct moert_arrival *arrivals;
    size_t arrival_count, arrival_room;
};

/* One call that was noted: in ns of rank 0's clock. */
typedef struct moert_arrival {
    int64_t entered, left;
} moert_arrival;

typedef struct moert_arrivals_state {
    bool noting;
    int64_t ahead_ns;  /* of this host's clock rank 0's is */
    moert_comm *first; /* of all communicators, in the order in which they were made */
} moert_arrivals_state;

extern moert_arrivals_state moert_arrivals;

/* A communicator that lives from now on, or no more; see comm/arrivals.h. */
void moert_arrivals_join(moert_comm *comm);
void moert_arrivals_leave(const moert_comm *comm);

/* Bracket a call that waits for other ranks of `comm` (or NULL): for the watchdog, the profile and
 * comm/arrivals.h. All ranks of `comm` make the same calls in the same order. */
void moert_comm_wait_begin(moert_comm *comm);
void moert_comm_wait_end(moert_comm *comm);

/* Most bytes handed to MPI under one int count; longer pieces travel in several. Tests lower it. */
extern size_t moert_comm_piece_bytes;
/* Most bytes of a message of comm/mail.h. Tests lower it. */
extern size_t moert_mail_piece_bytes;

/* Most floats of nodes that a round of comm/tree_sum.h receives. Tests lower it. */
extern size_t moert_tree_round_floats;

/*
 * Zeroed memory that all ranks of `handle`, which share a host, map. Collective over `handle`; the
 * status is this rank's own, and the memory may be used once all have agreed. ERROR_MEMORY,
 * ERROR_UNSUPPORTED (a rank cannot reach what another has made).
 */
moert_status moert_memory_map(const moert_comm *comm, MPI_Comm handle, size_t bytes, void **memory);
/* Takes it from this rank alone. NULL is legal. */
void moert_memory_unmap(void *memory, size_t bytes);
/* Where the processes' files are: /proc. Tests look elsewhere. */
extern const char *moert_memory_processes;

/* Records a failed MPI call: its text, MPI's words and the rank. `comm` may be NULL. */
moert_status moert_mpi_fail(const moert_comm *comm, int code, const char *call,
                            const char *function, int line);

/* MOERT_MPI(comm, MPI_Call(...)): passes a failure of MPI up as ERROR_COMM. */
#define MOERT_MPI(comm, call)                                                                      \
    do {                                                                                           \
        int mpi_code_ = (call);                                                                    \
        if (mpi_code_ != MPI_SUCCESS)                                                              \
            return moert_mpi_fail((comm), mpi_code_, #call, __func__, __LINE__);                   \
    } while (0)

/* The same for a call that waits for other ranks: the watchdog sees this rank waiting meanwhile. */
#define MOERT_MPI_WAIT(comm, call)                                                                 \
    do {                                                                                           \
        moert_comm_wait_begin(comm);                                                               \
        int mpi_waited_ = (call);                                                                  \
        moert_comm_wait_end(comm);                                                                 \
        if (mpi_waited_ != MPI_SUCCESS)                                                            \
            return moert_mpi_fail((comm), mpi_waited_, #call, __func__, __LINE__);                 \
    } while (0)
