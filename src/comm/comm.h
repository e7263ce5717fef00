/*
 * MPI, with checked counts, returned errors and agreement: the only module that includes mpi.h.
 *
 * Every rank of the communicator must call all functions marked Collective, in the same order. The
 * watchdog sees the waits inside these functions (base/phase.h). Sizes are size_t and may exceed
 * INT_MAX. After a failed call of MPI, all later collective calls of the process return ERROR_COMM
 * at once, with the message of that call, since they might wait for ever.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/tree.h"

typedef struct moert_comm moert_comm;

/* For programs: calls MPI_Init_thread(FUNNELED) unless MPI is initialized, and lets MPI's calls
 * return errors. moert_comm_world() then returns &MPI_COMM_WORLD. Also starts the timer of
 * comm/watchdog/timer.h. Errors: ERROR_COMM, ERROR_UNSUPPORTED (this MPI does not allow threads),
 * ERROR_MEMORY (no thread). */
moert_status moert_comm_init(int *count, char ***arguments);
/* Calls MPI_Finalize if moert_comm_init has initialized MPI. The process must then end within
 * MOERT_TIMEOUT_S; otherwise the timer ends it. Errors: ERROR_COMM. */
moert_status moert_comm_finalize(void);
const void *moert_comm_world(void);
/* Whether this process has rank 0 in moert_comm_world(). Not collective. */
bool moert_comm_is_first(void);
/* Name and version of the MPI library, such as "Open MPI v5.0.7" or "MPICH 4.0.2". */
void moert_comm_library(char *text, size_t bytes);

/* Duplicates *(const MPI_Comm *)parent. MPI calls on the duplicate return errors. Collective. */
moert_status moert_comm_create(const void *parent, moert_comm **comm);
/* Creates a communicator of the ranks with equal `color`, in rank order. Collective; the ranks of
 * all parts agree on the status. */
moert_status moert_comm_split(moert_comm *comm, size_t color, moert_comm **part);
/* Collective. NULL is legal. */
void moert_comm_destroy(moert_comm *comm);

size_t moert_comm_rank(const moert_comm *comm);
size_t moert_comm_size(const moert_comm *comm);
/* node_rank: the position among the ranks of this communicator that share this host. node_size: the
 * number of these ranks. Node indices count hosts in the order of their lowest ranks. */
size_t moert_comm_node_rank(const moert_comm *comm);
size_t moert_comm_node_size(const moert_comm *comm);
size_t moert_comm_node_count(const moert_comm *comm);
/* Node index of a rank. */
size_t moert_comm_node(const moert_comm *comm, size_t rank);
/* Host name of a rank. */
const char *moert_comm_host(const moert_comm *comm, size_t rank);

/*
 * Agrees on a status: returns MOERT_OK if all ranks pass MOERT_OK. Otherwise every rank gets the
 * status and message of the lowest failing rank. With several ranks the message is prefixed once by
 * "rank N (host): ". N is the rank in the communicator that moert_comm_create made, even if `comm`
 * is a part of that communicator. Collective.
 *
 * The ranks also compare the source lines of their calls. If a rank calls this at another line,
 * because a failure made it skip collective calls, all ranks get ERROR_INTERNAL with both lines and
 * ranks.
 */
#define moert_comm_agree(comm, local)                                                              \
    moert_comm_agree_at((comm), (local), __FILE__ ":" MOERT_COMM_LINE(__LINE__))
#define MOERT_COMM_LINE(line)   MOERT_COMM_STRING(line)
#define MOERT_COMM_STRING(text) #text
moert_status moert_comm_agree_at(moert_comm *comm, moert_status local, const char *site);
/* True if all ranks of the program have got the failure in moert_last_error(), by an agreement. All
 * ranks can then end in order. */
bool moert_comm_failure_is_shared(void);
/* From now on all calls of this process that wait for other ranks return ERROR_TIMEOUT with this
 * message. A call that is waiting returns ERROR_TIMEOUT as well; the messages of that call stay in
 * flight, so the process must end. With a NULL message, which only tests pass, calls wait again. */
void moert_comm_give_up(const char *message);
/* Ends all ranks at once with exit code `code` (MPI_Abort), after a failure of which the other
 * ranks have not been told. */
void moert_comm_abort(moert_comm *comm, int code);

/* Collective, blocking. */
moert_status moert_comm_barrier(moert_comm *comm);
moert_status moert_comm_broadcast(moert_comm *comm, size_t root, void *data, size_t bytes);
/* *value = the smallest value of all ranks. */
moert_status moert_comm_smallest(moert_comm *comm, uint64_t *value);
/* *value = the sum of the values of all ranks. */
moert_status moert_comm_sum(moert_comm *comm, uint64_t *value);
/* data[bytes] = the bitwise or of all ranks' data. Collective. */
moert_status moert_comm_or(moert_comm *comm, void *data, size_t bytes);
/* all[size][bytes] = the data of all ranks in rank order. Collective. */
moert_status moert_comm_allgather(moert_comm *comm, const void *mine, size_t bytes, void *all);
/* all = the data of all ranks in rank order; rank r provides bytes[r] bytes. `mine` may point into
 * `all`, to this rank's position. */
moert_status moert_comm_allgatherv(moert_comm *comm, const void *mine, const size_t *bytes,
                                   void *all);
/* `send` has send_rows[r] rows for each rank r, in rank order. `receive` gets receive_rows[r] rows
 * from each rank r, in rank order. Pairs without rows exchange no message. */
moert_status moert_comm_alltoallv(moert_comm *comm, const void *send, const size_t *send_rows,
                                  void *receive, const size_t *receive_rows, size_t row_bytes);

/*
 * Checks that print(object, file) prints the same entries on all ranks: strings that each end with
 * a 0 byte. All ranks must pass the same `code` and `rule`. Collective. All ranks return the same
 * error: `code` (the message names the lowest rank that differs from rank 0, the first entry that
 * differs on both ranks, and `rule`, which says what must be equal), ERROR_MEMORY, ERROR_COMM.
 */
typedef void moert_comm_printer(const void *object, FILE *file);
moert_status moert_comm_compare(moert_comm *comm, moert_comm_printer *print, const void *object,
                                moert_status code, const char *rule);

/* ---- files and memory shared by the ranks of one host ---- */

/*
 * all[size][count]: all[r][i] = a file descriptor of this process for the open file mine[i] of rank
 * r. The caller closes them. `count` is the same on all ranks. Collective. All ranks return the
 * same error, with all[] = -1: ERROR_UNSUPPORTED (ranks on several hosts or in several containers,
 * a count of 0 or above 1000), ERROR_MEMORY (too many open files).
 */
moert_status moert_comm_share_files(moert_comm *comm, const int *mine, size_t count, int *all);

typedef struct moert_shared moert_shared;

/*
 * Creates zeroed segments, one per rank, each with the largest `bytes` of all ranks. Untouched
 * pages use no memory. Segment r starts r * round_up(bytes, 4096) bytes after segment 0, and all
 * segments start at multiples of 4096 bytes. Collective. All ranks return the same error:
 * ERROR_UNSUPPORTED (ranks on several hosts, in several containers or of several users),
 * ERROR_MEMORY (no room in the address space).
 */
moert_status moert_shared_create(moert_comm *comm, size_t bytes, moert_shared **shared);
void *moert_shared_segment(const moert_shared *shared, size_t rank);
/* Makes all earlier writes of all ranks to any shared memory, not only `shared`, visible to all
 * ranks. Collective. */
moert_status moert_shared_sync(moert_shared *shared);
/* Unmaps the segments on this rank only. NULL is legal. */
void moert_shared_destroy(moert_shared *shared);
