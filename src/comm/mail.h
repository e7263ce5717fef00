/*
 * Rows under way: non-blocking messages from where rows lie to where they are to lie, without a
 * copy of their own in between.
 *
 * A message is a list of runs of consecutive rows. Messages of one pair of ranks and one tag meet
 * in the order in which they were posted, so both sides post the same numbers of rows, however
 * their runs divide them. More than 4 MiB travel in several messages.
 */
#pragma once

#include "comm/comm.h"

/* Posted messages are counted by what they are part of. */
enum { MOERT_MAIL_PARTS = 64 };

typedef struct moert_mail moert_mail;

/* A matrix of rows in host memory; it must stay until its messages are done. */
typedef struct moert_mail_rows {
    void *data;
    size_t row_bytes, stride_bytes;
} moert_mail_rows;

/* Rows [first, first + count). */
typedef struct moert_mail_run {
    size_t first, count;
} moert_mail_run;

/* To whom or from whom, under which tag (small, not 0), as which part. */
typedef struct moert_mail_address {
    bool send;
    size_t peer;
    int tag;
    size_t part;
} moert_mail_address;

/* Not collective. */
moert_status moert_mail_create(moert_comm *comm, moert_mail **mail);
/* Messages still under way are given up. NULL is legal. */
void moert_mail_destroy(moert_mail *mail);

/* Posts rows; no rows, no message. `peer` may be this rank. Errors: ERROR_MEMORY, ERROR_UNSUPPORTED
 * (a row or a list of runs beyond MPI's counts), ERROR_COMM. */
moert_status moert_mail_post(moert_mail *mail, moert_mail_address to, const moert_mail_rows *rows,
                             const moert_mail_run *runs, size_t count);

/*
 * The same of one run, for rows that go both ways between hosts: each message's second half goes
 * first, on both sides. A message that lies together at both ends Open MPI puts on a TCP connection
 * as a whole, once the receiver has asked for it; that request waits behind the receiver's own
 * rows. One that does not goes in fragments, a few at a time.
 */
moert_status moert_mail_post_apart(moert_mail *mail, moert_mail_address to,
                                   const moert_mail_rows *rows, moert_mail_run run);

/* Lets messages move and notes which are done. `wait`: until at least one more is, as a wait that
 * base/phase.h may be told of by the caller; without messages it returns at once. */
moert_status moert_mail_progress(moert_mail *mail, bool wait);

/* Messages of a part that are not done, or of all parts. */
size_t moert_mail_left(const moert_mail *mail, size_t part);
size_t moert_mail_left_of_all(const moert_mail *mail);
