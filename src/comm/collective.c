/*
 * Collective calls whose sizes are size_t.
 *
 * MPI-3 counts and displacements are int. Transfers of more than moert_comm_piece_bytes use several
 * messages instead, by a rule that gives the same decision on all ranks.
 */
#include "comm/internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/mail.h"

size_t moert_comm_piece_bytes = (size_t)1 << 30;

moert_status moert_mpi_wait(moert_comm *comm, int count, MPI_Request *requests) {
    int done = 0, code;
    const uint64_t begun = moert_clock_ns();
    moert_comm_wait_begin(comm);
    moert_status status = MOERT_OK;
    while ((code = MPI_Testall(count, requests, &done, moert_statuses_ignore)) == MPI_SUCCESS &&
           !done && (status = moert_comm_check()) == MOERT_OK)
        moert_clock_pause(begun);
    moert_comm_wait_end(comm);
    MOERT_TRY(status);
    MOERT_MPI_CODE(comm, code, "MPI_Testall");
    return MOERT_OK;
}

moert_status moert_comm_barrier(moert_comm *comm) {
    MOERT_MPI_COLLECT(comm, MPI_Ibarrier(comm->handle, &request));
    return MOERT_OK;
}

moert_status moert_comm_smallest(moert_comm *comm, uint64_t *value) {
    MOERT_MPI_COLLECT(comm, MPI_Iallreduce(MPI_IN_PLACE, value, 1, MPI_UINT64_T, MPI_MIN,
                                           comm->handle, &request));
    return MOERT_OK;
}

moert_status moert_comm_sum(moert_comm *comm, uint64_t *value) {
    MOERT_MPI_COLLECT(comm, MPI_Iallreduce(MPI_IN_PLACE, value, 1, MPI_UINT64_T, MPI_SUM,
                                           comm->handle, &request));
    return MOERT_OK;
}

moert_status moert_comm_or(moert_comm *comm, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += moert_comm_piece_bytes) {
        const int piece = (int)moert_min(bytes - at, moert_comm_piece_bytes);
        MOERT_MPI_COLLECT(comm, MPI_Iallreduce(MPI_IN_PLACE, (char *)data + at, piece, MPI_BYTE,
                                               MPI_BOR, comm->handle, &request));
    }
    return MOERT_OK;
}

moert_status moert_comm_broadcast(moert_comm *comm, size_t root, void *data, size_t bytes) {
    if (root >= comm->size)
        return MOERT_FAIL(ERROR_USAGE, "cannot broadcast from rank %zu: there are only %zu ranks",
                          root, comm->size);
    for (size_t at = 0; at < bytes; at += moert_comm_piece_bytes) {
        int piece = (int)moert_min(bytes - at, moert_comm_piece_bytes);
        MOERT_MPI_COLLECT(comm, MPI_Ibcast((char *)data + at, piece, MPI_BYTE, (int)root,
                                           comm->handle, &request));
    }
    return MOERT_OK;
}

/* Copies this rank's data to its position, so that all ranks can use MPI_IN_PLACE. */
static void place(const void *mine, size_t bytes, void *where) {
    if (bytes > 0 && mine != where)
        memmove(where, mine, bytes);
}

moert_status moert_comm_allgather(moert_comm *comm, const void *mine, size_t bytes, void *all) {
    char *data = all;
    if (bytes == 0)
        return MOERT_OK;
    place(mine, bytes, data + comm->rank * bytes);
    if (bytes <= moert_comm_piece_bytes) {
        MOERT_MPI_COLLECT(comm, MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)bytes,
                                               MPI_BYTE, comm->handle, &request));
        return MOERT_OK;
    }
    for (size_t root = 0; root < comm->size; root++)
        MOERT_TRY(moert_comm_broadcast(comm, root, data + root * bytes, bytes));
    return MOERT_OK;
}

moert_status moert_comm_allgatherv(moert_comm *comm, const void *mine, const size_t *bytes,
                                   void *all) {
    char *data = all;
    size_t *start = comm->receive_start, total = 0;
    for (size_t r = 0; r < comm->size; r++) {
        start[r] = total;
        total += bytes[r];
    }
    if (total == 0)
        return MOERT_OK;
    place(mine, bytes[comm->rank], data + start[comm->rank]);
    if (total <= moert_comm_piece_bytes) {
        for (size_t r = 0; r < comm->size; r++) {
            comm->counts[r] = (int)bytes[r];
            comm->displacements[r] = (int)start[r];
        }
        MOERT_MPI_COLLECT(comm,
                          MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, comm->counts,
                                          comm->displacements, MPI_BYTE, comm->handle, &request));
        return MOERT_OK;
    }
    for (size_t root = 0; root < comm->size; root++)
        MOERT_TRY(moert_comm_broadcast(comm, root, data + start[root], bytes[root]));
    return MOERT_OK;
}

/* ---- all to all ---- */

enum { TAG = 0 }; /* no other message uses this tag */

/* In round k every rank sends to rank + k and receives from rank - k. Pairs without rows exchange
 * no message. */
static moert_status post_rounds(moert_comm *comm, moert_mail *mail, const moert_mail_rows *send,
                                const size_t *send_rows, const moert_mail_rows *receive,
                                const size_t *receive_rows) {
    for (size_t k = 1; k < comm->size; k++) {
        const size_t to = (comm->rank + k) % comm->size;
        const size_t from = (comm->rank + comm->size - k) % comm->size;
        const moert_mail_run in = {comm->receive_start[from], receive_rows[from]};
        const moert_mail_run out = {comm->send_start[to], send_rows[to]};
        MOERT_TRY(
            moert_mail_post(mail, (moert_mail_address){false, from, TAG, 0}, receive, &in, 1));
        MOERT_TRY(moert_mail_post(mail, (moert_mail_address){true, to, TAG, 0}, send, &out, 1));
    }
    return MOERT_OK;
}

moert_status moert_comm_alltoallv(moert_comm *comm, const void *send, const size_t *send_rows,
                                  void *receive, const size_t *receive_rows, size_t row_bytes) {
    /* MPI does not write to a send buffer */
    const moert_mail_rows from = {(char *)(uintptr_t)send, row_bytes, row_bytes};
    const moert_mail_rows to = {receive, row_bytes, row_bytes};
    size_t sent = 0, received = 0, me = comm->rank;
    moert_mail *mail;
    for (size_t r = 0; r < comm->size; r++) {
        comm->send_start[r] = sent;
        comm->receive_start[r] = received;
        sent += send_rows[r];
        received += receive_rows[r];
    }
    if (send_rows[me] != receive_rows[me])
        return MOERT_FAIL(ERROR_MISMATCH,
                          "rank %zu sends %zu rows to itself, but expects %zu rows from itself", me,
                          send_rows[me], receive_rows[me]);
    place((char *)from.data + comm->send_start[me] * row_bytes, send_rows[me] * row_bytes,
          (char *)receive + comm->receive_start[me] * row_bytes);
    MOERT_TRY(moert_mail_create(comm, &mail));
    moert_comm_wait_begin(comm);
    moert_status status = post_rounds(comm, mail, &from, send_rows, &to, receive_rows);
    if (status == MOERT_OK)
        status = moert_mail_await_all(mail);
    moert_comm_wait_end(comm);
    moert_mail_destroy(mail);
    return status;
}
