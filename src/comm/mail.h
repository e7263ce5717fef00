/*
 * Non-blocking messages of rows, directly from the sender's matrix to the receiver's matrix,
 * without a staging copy.
 *
 * A message is a list of runs of consecutive rows. Messages of one pair of ranks and one tag match
 * in the order in which they were posted. So both sides must post equal numbers of rows, but may
 * divide them into different runs. Rows of more than 4 MiB are split into several MPI messages.
 */
#pragma once

#include "comm/comm.h"

/* Number of parts: the caller assigns each message to a part, and the messages of each part are
 * counted. */
enum { MOERT_MAIL_PARTS = 1024 };

typedef struct moert_mail moert_mail;

/* A matrix of rows in host memory. The memory must stay valid until the matrix's messages are
 * complete. */
typedef struct moert_mail_rows {
    void *data;
    size_t row_bytes, stride_bytes;
} moert_mail_rows;

/* Rows [first, first + count). */
typedef struct moert_mail_run {
    size_t first, count;
} moert_mail_run;

/* The direction, the other rank, the tag (small, not 0), and the part of the transfer that waits
 * for the message (moert_mail_await). */
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

/* Allocates room for a number of messages in flight, each of one run and up to `bytes`. Posting
 * that many messages then allocates nothing. Errors: ERROR_MEMORY. */
moert_status moert_mail_reserve(moert_mail *mail, size_t messages, size_t bytes);

/* Posts a message with the rows of `count` runs, or no message if all runs are empty. `peer` may be
 * this rank. Errors: ERROR_MEMORY, ERROR_UNSUPPORTED (a row or a list of runs beyond MPI's counts),
 * ERROR_COMM. */
moert_status moert_mail_post(moert_mail *mail, moert_mail_address to, const moert_mail_rows *rows,
                             const moert_mail_run *runs, size_t count);

/*
 * Like moert_mail_post for one run, where rows travel in both directions between hosts. In each
 * message both sides put the second half first, so that the message is not contiguous. Open MPI
 * writes a message that is contiguous at both ends to the TCP connection as a whole, once the
 * receiver has requested it. That request waits behind the receiver's own rows. Open MPI sends
 * non-contiguous messages in fragments, a few at a time, so requests pass between the fragments.
 */
moert_status moert_mail_post_apart(moert_mail *mail, moert_mail_address to,
                                   const moert_mail_rows *rows, moert_mail_run run);

/* Progresses messages and counts the completed messages. With `wait`, returns once at least one
 * more message is complete, or at once if no message is in flight. The caller reports the wait to
 * base/phase.h. */
moert_status moert_mail_progress(moert_mail *mail, bool wait);

/* Progresses messages until those of one part, or of all parts, are complete. The caller reports
 * the wait to base/phase.h. */
moert_status moert_mail_await(moert_mail *mail, size_t part);
moert_status moert_mail_await_all(moert_mail *mail);

/* The messages in flight of one part, and of all parts. */
size_t moert_mail_left(const moert_mail *mail, size_t part);
size_t moert_mail_left_of_all(const moert_mail *mail);
