/*
 * Passes open files to the other processes of a host over Unix sockets.
 *
 * Every rank has a datagram socket. The system chooses the socket's name, so no file appears in any
 * directory. Rank r sends to rank r + s in step s. When a send returns, the datagram is in the
 * receiver's queue. The ranks agree on a step's sends before they receive. So no receive waits, and
 * a rank that could not send does not delay the others.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "comm/internal.h"

enum {
    MESSAGE_FILES = 250, /* Linux accepts up to 253 files a message */
    MOST_MESSAGES = 4    /* a socket's queue has room for 10 messages, and may hold the messages of
                            two steps */
};

/* The socket name of a rank, and the tag of its messages. The tag is needed, since any process of
 * the host may send to the socket. */
typedef struct mailbox {
    struct sockaddr_un name;
    socklen_t name_bytes;
    uint64_t tag;
} mailbox;

/* A message of files, for sendmsg or recvmsg. */
typedef struct envelope {
    struct iovec content;
    struct msghdr header;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(MESSAGE_FILES * sizeof(int))];
} envelope;

static void address_envelope(envelope *e, uint64_t *tag, size_t count) {
    memset(e, 0, sizeof *e);
    e->content = (struct iovec){tag, sizeof *tag};
    e->header = (struct msghdr){.msg_iov = &e->content,
                                .msg_iovlen = 1,
                                .msg_control = e->control,
                                .msg_controllen = CMSG_SPACE(count * sizeof(int))};
}

static moert_status open_mailbox(int *handle, mailbox *mine) {
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    mine->name_bytes = sizeof mine->name;
    *handle = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (*handle < 0 || bind(*handle, (void *)&any, sizeof any.sun_family) != 0 ||
        getsockname(*handle, (void *)&mine->name, &mine->name_bytes) != 0 ||
        getrandom(&mine->tag, sizeof mine->tag, 0) != sizeof mine->tag)
        return MOERT_FAIL(ERROR_MEMORY, "cannot open a Unix socket: %s", strerror(errno));
    return MOERT_OK;
}

static moert_status send_files(int handle, const mailbox *to, const int *files, size_t count) {
    envelope e;
    uint64_t tag = to->tag;
    address_envelope(&e, &tag, count);
    struct cmsghdr *part = CMSG_FIRSTHDR(&e.header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(part), files, count * sizeof(int));
    e.header.msg_name = (void *)(uintptr_t)&to->name;
    e.header.msg_namelen = to->name_bytes;
    if (sendmsg(handle, &e.header, MSG_DONTWAIT) < 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "cannot give %zu open files to another process: %s (other container?)",
                          count, strerror(errno));
    return MOERT_OK;
}

/* Receives the next message with the mailbox's tag; discards messages with other tags. */
static moert_status receive_files(int handle, const mailbox *mine, int *files, size_t count) {
    envelope e;
    uint64_t tag;
    for (;;) {
        address_envelope(&e, &tag, MESSAGE_FILES);
        const ssize_t bytes = recvmsg(handle, &e.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (bytes < 0)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "open files of another process did not arrive: %s (other container?)",
                              strerror(errno));
        /* files above this process's limit of open files stay -1 */
        int all[MESSAGE_FILES];
        const struct cmsghdr *part = CMSG_FIRSTHDR(&e.header);
        memset(all, -1, sizeof all);
        if (part != NULL && part->cmsg_type == SCM_RIGHTS)
            memcpy(all, CMSG_DATA(part), moert_min(sizeof all, part->cmsg_len - CMSG_LEN(0)));
        if (bytes == sizeof tag && tag == mine->tag) {
            memcpy(files, all, count * sizeof *files);
            if (files[count - 1] < 0)
                return MOERT_FAIL(ERROR_MEMORY, "no room for %zu more open files (ulimit -n)",
                                  count);
            return MOERT_OK;
        }
        moert_close_files(all, MESSAGE_FILES);
    }
}

static moert_status send_all(int handle, const mailbox *to, const int *files, size_t count) {
    for (size_t first = 0; first < count; first += MESSAGE_FILES)
        MOERT_TRY(
            send_files(handle, to, files + first, moert_min(count - first, (size_t)MESSAGE_FILES)));
    return MOERT_OK;
}

static moert_status receive_all(int handle, const mailbox *mine, int *files, size_t count) {
    for (size_t first = 0; first < count; first += MESSAGE_FILES)
        MOERT_TRY(receive_files(handle, mine, files + first,
                                moert_min(count - first, (size_t)MESSAGE_FILES)));
    return MOERT_OK;
}

static moert_status copy_own(const int *mine, size_t count, int *copies) {
    for (size_t i = 0; i < count; i++) {
        copies[i] = fcntl(mine[i], F_DUPFD_CLOEXEC, 0);
        if (copies[i] < 0)
            return MOERT_FAIL(ERROR_MEMORY, "no room for %zu more open files (ulimit -n): %s",
                              count - i, strerror(errno));
    }
    return MOERT_OK;
}

/* The ranks agree on the status of every step's sends. The status of the receives is part of the
 * next step's agreement. */
static moert_status exchange_files(moert_comm *comm, int handle, const mailbox *boxes,
                                   const int *mine, size_t count, int *all) {
    const size_t rank = comm->rank, size = comm->size;
    moert_status status = copy_own(mine, count, all + rank * count);
    for (size_t step = 1; step < size; step++) {
        const size_t to = (rank + step) % size, from = (rank + size - step) % size;
        if (status == MOERT_OK)
            status = send_all(handle, &boxes[to], mine, count);
        MOERT_TRY(moert_comm_agree(comm, status));
        status = receive_all(handle, &boxes[rank], all + from * count, count);
    }
    return moert_comm_agree(comm, status);
}

moert_status moert_comm_share_files(moert_comm *comm, const int *mine, size_t count, int *all) {
    mailbox own = {.tag = 0}, *boxes = NULL;
    int handle = -1;
    if (comm->node_count > 1 || count == 0 || count > MESSAGE_FILES * MOST_MESSAGES)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "cannot share %zu open files of each of %zu ranks on %zu hosts; 1 to %d "
                          "files on one host are possible",
                          count, comm->size, comm->node_count, MESSAGE_FILES * MOST_MESSAGES);
    memset(all, -1, comm->size * count * sizeof *all);
    moert_status status = MOERT_NEW_ARRAY(&boxes, comm->size);
    if (status == MOERT_OK)
        status = open_mailbox(&handle, &own);
    MOERT_TRY_OR(close_handle, moert_comm_agree(comm, status));
    MOERT_TRY_OR(close_handle, moert_comm_allgather(comm, &own, sizeof own, boxes));
    MOERT_TRY_OR(close_handle, exchange_files(comm, handle, boxes, mine, count, all));
close_handle:
    if (handle >= 0)
        close(handle);
    free(boxes);
    if (status != MOERT_OK)
        moert_close_files(all, comm->size * count);
    return status;
}
