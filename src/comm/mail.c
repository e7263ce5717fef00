/* Sends and receives runs of consecutive rows as non-blocking messages. MPI gathers and scatters
 * the runs by a datatype that lists them. */
#include "comm/mail.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/internal.h"

size_t moert_mail_piece_bytes = (size_t)4 << 20;

struct moert_mail {
    moert_comm *comm;
    size_t count, room;            /* requests in flight; capacity of the next three arrays */
    MPI_Request *requests;         /* [room] */
    size_t *part;                  /* [room] */
    int *done;                     /* [room] scratch */
    size_t runs;                   /* capacity of the next two arrays */
    int *lengths, *offsets;        /* [runs] of one message: each run's length, and its offset from
                                      the first run, in rows */
    size_t left[MOERT_MAIL_PARTS]; /* requests in flight of each part */
};

moert_status moert_mail_create(moert_comm *comm, moert_mail **mail) {
    moert_mail *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->comm = comm;
    *mail = made;
    return MOERT_OK;
}

void moert_mail_destroy(moert_mail *mail) {
    if (mail == NULL)
        return;
    for (size_t i = 0; i < mail->count; i++)
        MPI_Request_free(&mail->requests[i]);
    MOERT_FREE(mail->requests, mail->part, mail->done, mail->lengths, mail->offsets, mail);
}

/* Grows *array to `room` objects, and keeps the first `used`. */
static moert_status grow(void *array, size_t used, size_t room, size_t bytes) {
    void *made, *old;
    memcpy(&old, array, sizeof old);
    MOERT_TRY(moert_alloc(&made, room, bytes));
    if (used > 0)
        memcpy(made, old, used * bytes);
    free(old);
    memcpy(array, &made, sizeof made);
    return MOERT_OK;
}

static moert_status reserve_messages(moert_mail *mail, size_t room) {
    MOERT_TRY(grow(&mail->requests, mail->count, room, sizeof *mail->requests));
    MOERT_TRY(grow(&mail->part, mail->count, room, sizeof *mail->part));
    MOERT_TRY(grow(&mail->done, 0, room, sizeof *mail->done));
    mail->room = room;
    return MOERT_OK;
}

static moert_status reserve_runs(moert_mail *mail, size_t runs) {
    MOERT_TRY(grow(&mail->lengths, 0, runs, sizeof *mail->lengths));
    MOERT_TRY(grow(&mail->offsets, 0, runs, sizeof *mail->offsets));
    mail->runs = runs;
    return MOERT_OK;
}

moert_status moert_mail_reserve(moert_mail *mail, size_t messages, size_t bytes) {
    const size_t room = messages * (bytes / moert_mail_piece_bytes + 1);
    if (mail->runs == 0)
        MOERT_TRY(reserve_runs(mail, 1));
    return room > mail->room ? reserve_messages(mail, room) : MOERT_OK;
}

/* Creates the MPI datatype of the runs in lengths and offsets. */
static moert_status describe(const moert_mail *mail, const moert_mail_rows *rows, int runs,
                             MPI_Datatype *type) {
    MPI_Datatype bytes, row;
    int row_bytes;
    MOERT_TRY(moert_to_int(rows->row_bytes, "bytes of a row", &row_bytes));
    MOERT_MPI(mail->comm, MPI_Type_contiguous(row_bytes, MPI_BYTE, &bytes));
    int code = MPI_Type_create_resized(bytes, 0, (MPI_Aint)rows->stride_bytes, &row);
    MPI_Type_free(&bytes);
    MOERT_MPI_CODE(mail->comm, code, "MPI_Type_create_resized");
    code = MPI_Type_indexed(runs, mail->lengths, mail->offsets, row, type);
    MPI_Type_free(&row);
    MOERT_MPI_CODE(mail->comm, code, "MPI_Type_indexed");
    code = MPI_Type_commit(type);
    if (code != MPI_SUCCESS)
        MPI_Type_free(type);
    MOERT_MPI_CODE(mail->comm, code, "MPI_Type_commit");
    return MOERT_OK;
}

/* Posts one message. A contiguous message, as most are, is sent as bytes and needs no datatype. */
static moert_status post_piece(moert_mail *mail, moert_mail_address to, const moert_mail_rows *rows,
                               size_t first, size_t runs) {
    char *data = (char *)rows->data + first * rows->stride_bytes;
    const bool together = runs == 1 && rows->row_bytes == rows->stride_bytes;
    MPI_Datatype type = MPI_BYTE;
    int count = 1, peer = (int)to.peer;
    if (mail->count == mail->room)
        MOERT_TRY(reserve_messages(mail, 2 * mail->room + 16));
    if (together)
        MOERT_TRY(
            moert_to_int((size_t)mail->lengths[0] * rows->row_bytes, "bytes of a message", &count));
    else
        MOERT_TRY(describe(mail, rows, (int)runs, &type));
    MPI_Request *request = &mail->requests[mail->count];
    const int code = to.send
                         ? MPI_Isend(data, count, type, peer, to.tag, mail->comm->handle, request)
                         : MPI_Irecv(data, count, type, peer, to.tag, mail->comm->handle, request);
    if (!together)
        MPI_Type_free(&type);
    MOERT_MPI_CODE(mail->comm, code, to.send ? "MPI_Isend" : "MPI_Irecv");
    mail->part[mail->count++] = to.part;
    mail->left[to.part]++;
    return MOERT_OK;
}

/* The position of the next row to post. */
typedef struct moert_mail_cursor {
    const moert_mail_run *run, *end;
    size_t used; /* rows of *run */
} moert_mail_cursor;

/* The offset of a row from the first row of its message; negative if the row comes before that
 * first row. */
static moert_status find_offset(size_t row, size_t first, int *offset) {
    MOERT_TRY(moert_to_int(row > first ? row - first : first - row, "rows of a message", offset));
    *offset = row > first ? *offset : -*offset;
    return MOERT_OK;
}

/* Lists the runs of the next `most` rows, or fewer, from the cursor on. The offsets of the runs
 * count from row *first. */
static moert_status take_piece(moert_mail *mail, moert_mail_cursor *at, size_t most, size_t *first,
                               size_t *runs) {
    size_t rows = 0;
    *runs = 0;
    while (at->run < at->end && rows < most) {
        const size_t take = moert_min(at->run->count - at->used, most - rows);
        const size_t row = at->run->first + at->used;
        if (take > 0) {
            *first = *runs == 0 ? row : *first;
            MOERT_TRY(moert_to_int(take, "rows of a message", &mail->lengths[*runs]));
            MOERT_TRY(find_offset(row, *first, &mail->offsets[*runs]));
            ++*runs;
        }
        rows += take;
        at->used += take;
        if (at->used == at->run->count) {
            at->run++;
            at->used = 0;
        }
    }
    return MOERT_OK;
}

static size_t rows_of_message(const moert_mail_rows *rows) {
    return moert_max(moert_mail_piece_bytes / moert_max(rows->row_bytes, 1), 1);
}

moert_status moert_mail_post(moert_mail *mail, moert_mail_address to, const moert_mail_rows *rows,
                             const moert_mail_run *runs, size_t count) {
    const size_t most = rows_of_message(rows);
    moert_mail_cursor at = {runs, runs + count, 0};
    if (count > mail->runs)
        MOERT_TRY(reserve_runs(mail, count));
    while (at.run < at.end) {
        size_t first = 0, listed;
        MOERT_TRY(take_piece(mail, &at, most, &first, &listed));
        if (listed > 0)
            MOERT_TRY(post_piece(mail, to, rows, first, listed));
    }
    return MOERT_OK;
}

moert_status moert_mail_post_apart(moert_mail *mail, moert_mail_address to,
                                   const moert_mail_rows *rows, moert_mail_run run) {
    const size_t most = rows_of_message(rows);
    while (run.count > 0) {
        const size_t part = moert_min(run.count, most), half = part / 2;
        const moert_mail_run halves[] = {{run.first + half, part - half}, {run.first, half}};
        MOERT_TRY(moert_mail_post(mail, to, rows, halves, 2));
        run.first += part;
        run.count -= part;
    }
    return MOERT_OK;
}

moert_status moert_mail_progress(moert_mail *mail, bool wait) {
    int done = 0, count;
    size_t kept = 0;
    if (mail->count == 0)
        return MOERT_OK;
    MOERT_TRY(moert_comm_check());
    MOERT_TRY(moert_to_int(mail->count, "messages in flight", &count));
    for (const uint64_t begun = moert_clock_ns();; moert_clock_pause(begun)) {
        MOERT_MPI(mail->comm,
                  MPI_Testsome(count, mail->requests, &done, mail->done, moert_statuses_ignore));
        if (!wait || done != 0)
            break;
        MOERT_TRY(moert_comm_check());
    }
    for (int i = 0; i < done; i++)
        mail->left[mail->part[mail->done[i]]]--;
    for (size_t i = 0; i < mail->count && done > 0; i++) /* drop completed requests */
        if (mail->requests[i] != MPI_REQUEST_NULL) {
            mail->requests[kept] = mail->requests[i];
            mail->part[kept++] = mail->part[i];
        }
    mail->count = done > 0 ? kept : mail->count;
    return MOERT_OK;
}

size_t moert_mail_left(const moert_mail *mail, size_t part) {
    return mail->left[part];
}

size_t moert_mail_left_of_all(const moert_mail *mail) {
    return mail->count;
}

moert_status moert_mail_await(moert_mail *mail, size_t part) {
    while (mail->left[part] > 0)
        MOERT_TRY(moert_mail_progress(mail, true));
    return MOERT_OK;
}

moert_status moert_mail_await_all(moert_mail *mail) {
    while (mail->count > 0)
        MOERT_TRY(moert_mail_progress(mail, true));
    return MOERT_OK;
}
