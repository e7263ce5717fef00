/*
 * Non-blocking messages of rows, straight from the memory in which the rows are to that in which
 * they are needed, without a staging copy.
 *
 * A message is a list of runs of consecutive rows. Messages of one pair of ranks and one tag match
 * in the order in which they were posted. So both sides must post equal numbers of rows, but may
 * divide them into different runs. More than 4 MiB travel in several messages.
 */
#pragma once

#include "comm/comm.h"

/* Number of parts: the caller assigns each message to a part, and the messages of each part are
 * counted. */
enum { MOERT_MAIL_PARTS = 64 };

typedef struct moert_mail moert_mail;

/* A matrix of rows in host memory. It must stay valid until its messages are complete. */
typedef struct moert_mail_rows {
    void *data;
    size_t row_bytes, stride_bytes;
} moert_mail_rows;

/* Rows [first, first + count). */
typedef struct moert_mail_run {
    size_t first, count;
} moert_mail_run;

/* Direction, the other rank, the tag (small, not 0), and the part that counts the message. */
typedef struct moert_mail_address {
    bool send;
    size_t peer;
    int tag;
    size_t part;
} moert_mail_address;

/* Not collective. */
moert_status moert_mail_create(moert_comm *comm, moert_mail **mail);
/* Abandons messages in flight. NULL is legal. */
void moert_mail_destroy(moert_mail *mail);

/* Posts rows; without rows it posts no message. `peer` may be this rank. Errors: ERROR_MEMORY,
 * ERROR_UNSUPPORTED (a row or a list of runs beyond MPI's counts), ERROR_COMM. */
moert_status moert_mail_post(moert_mail *mail, moert_mail_address to, const moert_mail_rows *rows,
                             const moert_mail_run *runs, size_t count);

/*
 * The same for one run, where rows go both ways between hosts. In each message both sides put the
 * second half first, so that it is not contiguous. Open MPI puts a message that is contiguous at
 * both ends on a TCP connection as a whole, once the receiver has requested it, and that request
 * waits behind the receiver's own rows. It sends other messages in fragments, a few at a time.
 */
moert_status moert_mail_post_apart(moert_mail *mail, moert_mail_address to,
                                   const moert_mail_rows *rows, moert_mail_run run);

/* Progresses messages and counts the completed ones. With `wait`, returns once at least one more is
 * complete, or at once without messages; the caller reports the wait to base/phase.h. */
moert_status moert_mail_progress(moert_mail *mail, bool wait);

/* The messages in flight of one part, and of all parts. */
size_t moert_mail_left(const moert_mail *mail, size_t part);
size_t moert_mail_left_of_all(const moert_mail *mail);
