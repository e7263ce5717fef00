/* Declarations that the files of src/comm share: the communicator and the wrappers of MPI calls. */
#pragma once

#include <mpi.h>

#include "base/phase.h"
#include "comm/comm.h"

enum { MOERT_HOST_BYTES = 64 };

/* Facts about a rank that all ranks of a communicator store. */
typedef struct moert_peer {
    size_t origin; /* rank in the communicator that moert_comm_create made */
    size_t leader; /* lowest rank on the rank's host */
    size_t node;   /* index of the rank's host; hosts are ordered by their lowest ranks */
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
    int sums;                           /* number of the next sum, for the tags of its messages
                                           (tree_sum.c) */

    /* comm/arrivals.h: the next communicator of this process, and the recorded calls */
    struct moert_comm *next;
    struct moert_arrival *arrivals;
    size_t arrival_count, arrival_room;
};

/* One recorded call, in ns of rank 0's clock. */
typedef struct moert_arrival {
    int64_t entered, left;
} moert_arrival;

typedef struct moert_arrivals_state {
    bool recording;
    int64_t ahead_ns;  /* rank 0's clock minus this host's clock */
    moert_comm *first; /* list of all communicators, in the order of their creation */
} moert_arrivals_state;

extern moert_arrivals_state moert_arrivals;

/* Add a communicator to the list of comm/arrivals.h, and remove it. */
void moert_arrivals_join(moert_comm *comm);
void moert_arrivals_leave(const moert_comm *comm);

/* Call these before and after a call that waits for other ranks of `comm` (or NULL), for the
 * watchdog, the profile and comm/arrivals.h. All ranks of `comm` make the same calls in the same
 * order. */
void moert_comm_wait_begin(moert_comm *comm);
void moert_comm_wait_end(moert_comm *comm);

/* MPI_STATUSES_IGNORE, hidden from gcc, which would warn that MPICH's value is an array without
 * elements. */
extern MPI_Status *const moert_statuses_ignore;

/* Most bytes of one MPI call; longer transfers use several calls. Tests lower it. */
extern size_t moert_comm_piece_bytes;
/* Most bytes of a message of comm/mail.h. Tests lower it. */
extern size_t moert_mail_piece_bytes;

/* Most floats that a round of comm/tree_sum.h receives. Tests lower it. */
extern size_t moert_tree_round_floats;

/*
 * Zeroed memory that all ranks of `handle`, which share a host, map. Collective over `handle`. Each
 * rank gets its own status; a rank may use the memory once all ranks have agreed on success.
 * ERROR_MEMORY, ERROR_UNSUPPORTED (a rank cannot open the first rank's memory).
 */
moert_status moert_memory_map(const moert_comm *comm, MPI_Comm handle, size_t bytes, void **memory);
/* Unmaps the memory on this rank only. NULL is legal. */
void moert_memory_unmap(void *memory, size_t bytes);
/* The directory with the open files of processes: /proc. Tests change it. */
extern const char *moert_memory_processes;

/* Records a failed MPI call: its source text or name, MPI's message and the rank. `comm` may be
 * NULL. */
moert_status moert_mpi_fail(const moert_comm *comm, int code, const char *call,
                            const char *function, int line);

/*
 * After a failed call of MPI this rank is out of step with the others: this rank would wait for the
 * others in one call, and the others for this rank in another. So from then on all calls of this
 * process that wait for other ranks fail at once. moert_comm_check returns ERROR_COMM and the
 * message of the failed call, ERROR_TIMEOUT after moert_comm_give_up, or MOERT_OK. Tests clear the
 * message.
 */
moert_status moert_comm_check(void);
extern char moert_comm_failure[512];

/* Passes a failure of MPI up as ERROR_COMM. `code` is the result of the MPI call whose source text
 * is `text`. */
#define MOERT_MPI_CODE(comm, code, text)                                                           \
    do {                                                                                           \
        int mpi_code_ = (code);                                                                    \
        if (mpi_code_ != MPI_SUCCESS)                                                              \
            return moert_mpi_fail((comm), mpi_code_, (text), __func__, __LINE__);                  \
    } while (0)

/* MOERT_MPI(comm, MPI_Call(...)): makes the call and passes its failure up. */
#define MOERT_MPI(comm, call) MOERT_MPI_CODE(comm, call, #call)

/* Like MOERT_MPI, for a call that itself waits for other ranks; the watchdog sees this wait. */
#define MOERT_MPI_WAIT(comm, call)                                                                 \
    do {                                                                                           \
        MOERT_TRY(moert_comm_check());                                                             \
        moert_comm_wait_begin(comm);                                                               \
        int mpi_waited_ = (call);                                                                  \
        moert_comm_wait_end(comm);                                                                 \
        MOERT_MPI_CODE(comm, mpi_waited_, #call);                                                  \
    } while (0)

/* Waits until all requests are complete; the watchdog sees this wait. Yields or sleeps meanwhile;
 * MPICH's own wait would keep a core busy. */
moert_status moert_mpi_wait(moert_comm *comm, int count, MPI_Request *requests);

/* MOERT_MPI_COLLECT(comm, MPI_Ibarrier(handle, &request)): starts a collective call and waits for
 * its end. The macro declares `request`. */
#define MOERT_MPI_COLLECT(comm, call)                                                              \
    do {                                                                                           \
        MPI_Request request;                                                                       \
        MOERT_TRY(moert_comm_check());                                                             \
        MOERT_MPI(comm, call);                                                                     \
        MOERT_TRY(moert_mpi_wait((comm), 1, &request));                                            \
    } while (0)
