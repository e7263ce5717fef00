/*
 * The watchdog's thread, and the table that the ranks of a host map.
 *
 * The thread makes no MPI call. Every rank of the host decides alone; the first to set `reported`
 * speaks, and lower ranks decide a little earlier. Once it is set, the job is ending: every rank of
 * the host leaves.
 */
#include "comm/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/internal.h"
#include "comm/watch.h"

enum { BEAT_MS = 200 };

static const uint64_t second_ns = 1000000000u;
static const uint64_t early_ns = 500000000u;     /* wait after which the dead are named */
static const uint64_t patience_ns = 1000000000u; /* head start of lower ranks, when not sure */

struct moert_watchdog {
    moert_comm *comm;
    unsigned timeout_s;
    moert_watch_table *table; /* NULL: off */
    size_t table_bytes;
    size_t me, count; /* among the ranks of this host */
    size_t *ranks;    /* [count] */
    bool *visible;    /* [count] */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stopping;
    atomic_bool claimed; /* this rank has reported a failure itself */
    uint64_t ending_ns;  /* when to follow a rank that has reported one; 0: none has */
};

/* ---- what it says ---- */

/* Ranks of other hosts as text, such as "4-7 (nodeB), 8 (nodeC)"; cut off where `text` ends. */
static void list_elsewhere(const moert_comm *comm, char *text, size_t bytes) {
    size_t length = 0;
    text[0] = '\0';
    for (size_t first = 0, last; first < comm->size && length < bytes; first = last + 1) {
        const moert_peer *peer = &comm->peers[first];
        for (last = first; last + 1 < comm->size && comm->peers[last + 1].node == peer->node;)
            last++;
        if (peer->node == comm->peers[comm->rank].node)
            continue;
        char range[48];
        if (last > first)
            snprintf(range, sizeof range, "%zu-%zu", first, last);
        else
            snprintf(range, sizeof range, "%zu", first);
        length += (size_t)snprintf(text + length, bytes - length, "%s%s (%s)",
                                   length > 0 ? ", " : "", range, peer->host);
    }
}

static void explain_blame(const moert_watchdog *watchdog, size_t culprit,
                          moert_watch_verdict verdict, uint64_t now_ns, char *text, size_t bytes) {
    const moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    char what[256];
    moert_watch_describe(&watchdog->table->entries[culprit], verdict, now_ns, what, sizeof what);
    snprintf(text, bytes, "rank %zu on %s %s; rank %zu has waited for it for %llu s in '%s'",
             watchdog->ranks[culprit], watchdog->comm->self.host, what, watchdog->comm->rank,
             (unsigned long long)((now_ns - atomic_load(&mine->progress_ns)) / second_ns),
             moert_phase_name());
}

/* All ranks of this host wait: for another host, or each in another call. */
static void explain_mystery(const moert_watchdog *watchdog, uint64_t now_ns, char *text,
                            size_t bytes) {
    const moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    char elsewhere[256];
    list_elsewhere(watchdog->comm, elsewhere, sizeof elsewhere);
    const char *hint = elsewhere[0] != '\0' ? "one of these ranks may be: "
                                            : "perhaps not all ranks make the same collective call";
    snprintf(text, bytes,
             "rank %zu on %s has waited for %llu s at step %llu in phase '%s', and no rank of its "
             "host is late; %s%s",
             watchdog->comm->rank, watchdog->comm->self.host,
             (unsigned long long)((now_ns - atomic_load(&mine->progress_ns)) / second_ns),
             (unsigned long long)moert_phase_step(), moert_phase_name(), hint, elsewhere);
}

/* ---- the thread ---- */

/* Ends this process, after the one of this host that speaks has spoken. */
static _Noreturn void end_process(const moert_watchdog *watchdog, const char *explanation,
                                  bool late) {
    if (atomic_exchange(&watchdog->table->reported, 1) == 0) {
        char line[1024], cause[48] = "";
        if (late)
            snprintf(cause, sizeof cause, " (MOERT_TIMEOUT_S=%u)", watchdog->timeout_s);
        int length =
            snprintf(line, sizeof line, "moert: %s; ending the job%s\n", explanation, cause);
        ssize_t ignored = write(STDERR_FILENO, line, moert_min((size_t)length, sizeof line - 1));
        (void)ignored;
    } else {
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    }
    _exit(1);
}

/* Lower ranks of the host speak first. */
static bool lower_rank_waits(const moert_watchdog *watchdog) {
    for (size_t i = 0; i < watchdog->me; i++)
        if (atomic_load(&watchdog->table->entries[i].waiting))
            return true;
    return false;
}

/* Ends the process if it has waited too long, or for a process that is gone. */
static void inspect(const moert_watchdog *watchdog, uint64_t now_ns) {
    const moert_watch_entry *entries = watchdog->table->entries, *mine = &entries[watchdog->me];
    uint64_t waited_ns = now_ns - atomic_load(&mine->progress_ns);
    if (!atomic_load(&mine->waiting) || watchdog->timeout_s == 0 ||
        waited_ns < moert_min(early_ns, watchdog->timeout_s * second_ns))
        return;
    moert_watch_verdict verdict;
    size_t culprit = moert_watch_blame(entries, watchdog->visible, watchdog->count, watchdog->me,
                                       now_ns, &verdict);
    uint64_t limit_ns = watchdog->timeout_s * second_ns;
    limit_ns += lower_rank_waits(watchdog) ? patience_ns : 0;
    if (verdict == MOERT_WATCH_FINE) /* the culprit's host knows more, and speaks before */
        limit_ns += 2 * patience_ns;
    bool late = waited_ns >= limit_ns;
    if (verdict == MOERT_WATCH_LATE && /* it is slow, but gets on: a large checkpoint, say */
        now_ns - moert_min(now_ns, atomic_load(&entries[culprit].progress_ns)) <
            watchdog->timeout_s * second_ns)
        return;
    if (!late && verdict != MOERT_WATCH_GONE)
        return;
    char explanation[896];
    if (verdict == MOERT_WATCH_FINE)
        explain_mystery(watchdog, now_ns, explanation, sizeof explanation);
    else
        explain_blame(watchdog, culprit, verdict, now_ns, explanation, sizeof explanation);
    end_process(watchdog, explanation, late);
}

/* Leaves with the others when one has reported a failure; its own words need a moment. */
static void follow(moert_watchdog *watchdog, uint64_t now_ns) {
    if (watchdog->claimed || atomic_load(&watchdog->table->reported) == 0)
        return;
    if (watchdog->ending_ns == 0)
        watchdog->ending_ns = now_ns + second_ns;
    if (now_ns >= watchdog->ending_ns)
        _exit(1);
}

static void *keep_watch(void *argument) {
    moert_watchdog *watchdog = argument;
    pthread_mutex_lock(&watchdog->mutex);
    while (!watchdog->stopping) {
        uint64_t now_ns = moert_clock_ns(), next_ns = now_ns + BEAT_MS * (uint64_t)1000000;
        moert_watch_publish(&watchdog->table->entries[watchdog->me], now_ns);
        follow(watchdog, now_ns);
        inspect(watchdog, now_ns);
        struct timespec next = {.tv_sec = (time_t)(next_ns / second_ns),
                                .tv_nsec = (long)(next_ns % second_ns)};
        pthread_cond_timedwait(&watchdog->wake, &watchdog->mutex, &next);
    }
    pthread_mutex_unlock(&watchdog->mutex);
    return NULL;
}

/* The thread takes no signals: they belong to the program. */
static moert_status start_thread(moert_watchdog *watchdog) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&watchdog->mutex, NULL);
    pthread_cond_init(&watchdog->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&watchdog->thread, NULL, keep_watch, watchdog);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_MEMORY, "the watchdog's thread does not start: %s", strerror(code));
}

static void stop_thread(moert_watchdog *watchdog) {
    pthread_mutex_lock(&watchdog->mutex);
    watchdog->stopping = true;
    pthread_cond_signal(&watchdog->wake);
    pthread_mutex_unlock(&watchdog->mutex);
    pthread_join(watchdog->thread, NULL);
    pthread_cond_destroy(&watchdog->wake);
    pthread_mutex_destroy(&watchdog->mutex);
}

/* ---- the table ---- */

static void unmap_table(moert_watchdog *watchdog) {
    moert_memory_unmap(watchdog->table, watchdog->table_bytes);
    watchdog->table = NULL;
}

/* Shares a table among the ranks of each host; without one the watchdog is off, with a warning. */
static moert_status share_table(moert_watchdog *watchdog) {
    moert_comm *comm = watchdog->comm;
    void *table;
    moert_status status = moert_memory_map(comm, comm->node, watchdog->table_bytes, &table);
    int mine = status, worst = 0;
    watchdog->table = table;
    if (status != MOERT_OK)
        MOERT_WARN("the watchdog is off: %s", moert_last_error());
    MOERT_MPI_WAIT(comm, MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, comm->node));
    if (worst != 0)
        unmap_table(watchdog);
    return MOERT_OK;
}

/* Registers, then looks which of the others this process can find: not those in other containers.
 */
static moert_status enter_table(moert_watchdog *watchdog) {
    if (watchdog->table == NULL)
        return MOERT_OK;
    moert_watch_enter(&watchdog->table->entries[watchdog->me], moert_clock_ns());
    MOERT_MPI_WAIT(watchdog->comm, MPI_Barrier(watchdog->comm->node));
    for (size_t i = 0; i < watchdog->count; i++)
        watchdog->visible[i] =
            moert_watch_process(&watchdog->table->entries[i]) != MOERT_WATCH_UNKNOWN;
    return start_thread(watchdog);
}

/* ---- start and stop ---- */

static moert_status prepare(moert_comm *comm, unsigned timeout_s, moert_watchdog **out) {
    MOERT_TRY(MOERT_NEW(out));
    moert_watchdog *watchdog = *out;
    watchdog->comm = comm;
    watchdog->timeout_s = timeout_s;
    watchdog->me = comm->node_rank;
    watchdog->count = comm->node_size;
    watchdog->table_bytes =
        sizeof *watchdog->table + comm->node_size * sizeof watchdog->table->entries[0];
    MOERT_TRY(MOERT_NEW_ARRAY(&watchdog->ranks, watchdog->count));
    for (size_t r = 0, at = 0; r < comm->size; r++)
        if (comm->peers[r].node == comm->peers[comm->rank].node)
            watchdog->ranks[at++] = r;
    return MOERT_NEW_ARRAY(&watchdog->visible, watchdog->count);
}

static void release(moert_watchdog *watchdog) {
    if (watchdog == NULL)
        return;
    unmap_table(watchdog);
    free(watchdog->visible);
    free(watchdog->ranks);
    free(watchdog);
}

moert_status moert_watchdog_start(moert_comm *comm, unsigned timeout_s, moert_watchdog **out) {
    moert_watchdog *watchdog = NULL;
    moert_status status = prepare(comm, timeout_s, &watchdog);
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status));
    MOERT_TRY_OR(undo, share_table(watchdog));
    status = enter_table(watchdog);
    bool running = status == MOERT_OK && watchdog->table != NULL;
    status = moert_comm_agree(comm, status);
    if (status == MOERT_OK) {
        *out = watchdog;
        return MOERT_OK;
    }
    if (running)
        stop_thread(watchdog);
undo:
    release(watchdog);
    return status;
}

bool moert_watchdog_claim(moert_watchdog *watchdog) {
    if (watchdog == NULL || watchdog->table == NULL)
        return true;
    atomic_store(&watchdog->claimed, true);
    return atomic_exchange(&watchdog->table->reported, 1) == 0;
}

bool moert_watchdog_is_on(const moert_watchdog *watchdog) {
    return watchdog != NULL && watchdog->table != NULL && watchdog->timeout_s > 0;
}

void moert_watchdog_stop(moert_watchdog *watchdog) {
    if (watchdog == NULL)
        return;
    moert_comm_barrier(watchdog->comm); /* under watch: a rank that never comes is named */
    if (watchdog->table != NULL) {
        stop_thread(watchdog);
        atomic_store(&watchdog->table->entries[watchdog->me].state, MOERT_WATCH_LEFT);
    }
    release(watchdog);
}
