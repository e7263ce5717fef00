/*
 * The watchdog's thread, and the table that the ranks of a host map.
 *
 * The watchdog's thread makes no MPI call. On a host's first rank the thread also reports the
 * host's ranks to the other hosts every second (comm/watchdog/beacon.h), and stores the other
 * hosts' reports in the table. Every rank of the host decides on its own when to report a failure.
 * The first rank to set `reported` writes the message; lower ranks have slightly shorter limits.
 * Once `reported` is set, the job is ending, and every rank of the host ends its process.
 */
#include "comm/watchdog/watchdog.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/watchdog/internal.h"
#include "comm/watchdog/timer.h"

static const uint64_t second_ns = 1000000000u;
static const uint64_t beat_ns = 200000000u;  /* interval of the thread's checks */
static const uint64_t early_ns = 500000000u; /* wait after which a dead rank is named */
static const uint64_t sure_ns = 300000000u;  /* time after which a rank that does not wait names
                                                a dead rank */
/* a rank waits longer by this time if a lower rank of its host waits, and by two or three times
 * this time if the suspect is on another host */
static const uint64_t patience_ns = 1000000000u;

/* ---- the thread ---- */

/* Ends this process, or tells the program to do so. */
static void leave(moert_watchdog *watchdog) {
    if (watchdog->sink == NULL || !watchdog->sink(watchdog->sink_user, watchdog->message))
        _exit(1);
    watchdog->released = true;
    moert_comm_give_up(watchdog->message);
}

/* Ends this rank later, so that the rank that reports the failure first writes its message. */
static void end_later(moert_watchdog *watchdog, uint64_t now_ns) {
    if (watchdog->ending_ns == 0)
        watchdog->ending_ns = now_ns + second_ns;
}

/* Writes a text and the end of a line to stderr in one piece, since other processes write there. */
static void write_line(char *text) {
    const size_t length = strlen(text);
    text[length] = '\n';
    const ssize_t ignored = write(STDERR_FILENO, text, length + 1);
    (void)ignored; /* ignores a failure, such as a closed pipe */
    text[length] = '\0';
}

/* Ends this process. The first process of its host that ends this way writes the message, unless
 * its program has set a sink. Later processes of the host end a second after they find that another
 * process has reported the failure. */
static void end_process(moert_watchdog *watchdog, uint64_t now_ns, const char *explanation,
                        bool late) {
    char cause[48] = "";
    if (late)
        snprintf(cause, sizeof cause, " (MOERT_TIMEOUT_S=%u)", watchdog->timeout_s);
    snprintf(watchdog->message, sizeof watchdog->message, "moert: %s; ending the job%s",
             explanation, cause);
    if (atomic_exchange(&watchdog->table->reported, 1) != 0) {
        end_later(watchdog, now_ns);
        return;
    }
    if (watchdog->sink == NULL)
        write_line(watchdog->message);
    if (watchdog->beacon != NULL)
        moert_watchdog_send_note(watchdog, now_ns);
    leave(watchdog);
}

/* The time that this rank waits for the suspect before this rank reports the suspect. The limit is
 * short for a process that is gone, since mpirun ends the job soon. Other ranks of the suspect's
 * host report earlier. */
static uint64_t limit_of(const moert_watchdog *watchdog, const moert_suspect *culprit) {
    const moert_comm *comm = watchdog->comm;
    uint64_t limit_ns = watchdog->timeout_s * second_ns;
    if (culprit->verdict == MOERT_WATCH_GONE && !culprit->elsewhere)
        return moert_min(early_ns, limit_ns);
    if (culprit->verdict == MOERT_WATCH_REFUSED)
        return moert_min(early_ns + beat_ns, limit_ns);
    bool lower_rank_waits = false; /* a lower rank of this host waits, and reports first */
    for (size_t i = 0; i < watchdog->me; i++)
        lower_rank_waits |= atomic_load(&watchdog->table->entries[i].waiting) != 0;
    limit_ns += lower_rank_waits ? patience_ns : 0;
    if (culprit->elsewhere)
        limit_ns += (comm->peers[comm->rank].node > 0 ? 3 : 2) * patience_ns;
    return limit_ns;
}

/* Ends this process if it has waited for too long, or waits for a process that is gone. */
static void inspect(moert_watchdog *watchdog, uint64_t now_ns) {
    const moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    uint64_t waited_ns = now_ns - atomic_load(&mine->progress_ns);
    if (!atomic_load(&mine->waiting) || watchdog->timeout_s == 0 ||
        waited_ns < moert_min(early_ns, watchdog->timeout_s * second_ns))
        return;
    moert_suspect culprit = moert_watchdog_suspect(watchdog, now_ns);
    if (waited_ns < limit_of(watchdog, &culprit) || culprit.verdict == MOERT_WATCH_PAUSED ||
        (culprit.verdict == MOERT_WATCH_LATE && /* the suspect is slow but makes progress, for
                                                   example on a large checkpoint */
         now_ns - moert_min(now_ns, atomic_load(&culprit.entry->progress_ns)) <
             watchdog->timeout_s * second_ns))
        return;
    char explanation[960];
    if (culprit.verdict == MOERT_WATCH_FINE)
        moert_watchdog_explain_mystery(watchdog, now_ns, explanation, sizeof explanation);
    else
        moert_watchdog_explain_blame(watchdog, &culprit, now_ns, explanation, sizeof explanation);
    end_process(watchdog, now_ns, explanation, waited_ns >= watchdog->timeout_s * second_ns);
}

/*
 * A rank may wait outside of any call: for example, for its device, which waits for another rank's
 * device. So every rank also checks the next rank of its host and names that rank when its process
 * is gone, since mpirun ends the other ranks within a second.
 */
static void look_after_next(moert_watchdog *watchdog, uint64_t now_ns) {
    const size_t next = (watchdog->me + 1) % watchdog->count;
    const moert_suspect suspect = {.entry = &watchdog->table->entries[next],
                                   .rank = watchdog->ranks[next],
                                   .verdict = MOERT_WATCH_GONE};
    const bool gone =
        next != watchdog->me && watchdog->timeout_s > 0 && !watchdog->claimed &&
        moert_watch_judge(suspect.entry, watchdog->visible[next], now_ns) == MOERT_WATCH_GONE;
    if (!gone || watchdog->gone_ns == 0) {
        watchdog->gone_ns = gone ? now_ns : 0;
        return;
    }
    char explanation[960];
    if (now_ns - watchdog->gone_ns < sure_ns)
        return;
    moert_watchdog_explain_blame(watchdog, &suspect, now_ns, explanation, sizeof explanation);
    end_process(watchdog, now_ns, explanation, false);
}

/* Ends this process a second after another rank has reported a failure, unless this rank reports a
 * failure itself. */
static void follow(moert_watchdog *watchdog, uint64_t now_ns) {
    if (!watchdog->claimed && atomic_load(&watchdog->table->reported) != 0)
        end_later(watchdog, now_ns);
    if (watchdog->ending_ns == 0 || now_ns < watchdog->ending_ns)
        return;
    if (watchdog->message[0] == '\0')
        snprintf(watchdog->message, sizeof watchdog->message,
                 "moert: another rank has reported a failure; ending the job");
    leave(watchdog);
}

void moert_watchdog_beat(moert_watchdog *watchdog, uint64_t now_ns) {
    void (*const checks[])(moert_watchdog *, uint64_t) = {follow, inspect, look_after_next};
    moert_watch_publish(&watchdog->table->entries[watchdog->me], now_ns);
    if (watchdog->beacon != NULL) {
        moert_watchdog_receive_notes(watchdog, now_ns);
        moert_watchdog_send_note(watchdog, now_ns);
    }
    for (size_t i = 0; i < MOERT_COUNT(checks) && !watchdog->released; i++)
        checks[i](watchdog, now_ns);
}

static void *keep_watch(void *argument) {
    moert_watchdog *watchdog = argument;
    pthread_mutex_lock(&watchdog->mutex);
    while (!watchdog->stopping && !watchdog->released) {
        const uint64_t now_ns = moert_clock_ns(), next_ns = now_ns + beat_ns;
        moert_watchdog_beat(watchdog, now_ns);
        struct timespec next = {.tv_sec = (time_t)(next_ns / second_ns),
                                .tv_nsec = (long)(next_ns % second_ns)};
        pthread_cond_timedwait(&watchdog->wake, &watchdog->mutex, &next);
    }
    pthread_mutex_unlock(&watchdog->mutex);
    return NULL;
}

/* Blocks all signals in the watchdog's thread, so that the program's threads handle them. */
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

/* Shares a table among the ranks of each host. If that fails, the watchdog warns and is off. */
static moert_status share_table(moert_watchdog *watchdog) {
    moert_comm *comm = watchdog->comm;
    void *table;
    moert_status status = moert_memory_map(comm, comm->node, watchdog->table_bytes, &table);
    int mine = status, worst = 0;
    watchdog->table = table;
    if (status != MOERT_OK)
        MOERT_WARN("the watchdog is off: %s", moert_last_error());
    MOERT_MPI_COLLECT(comm,
                      MPI_Iallreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, comm->node, &request));
    if (worst != 0)
        unmap_table(watchdog);
    else
        watchdog->hosts = (moert_watch_host *)(void *)&watchdog->table->entries[watchdog->count];
    return MOERT_OK;
}

/* Registers this process, then checks which other processes of the host it finds in /proc;
 * processes in other containers are not found. Starts the thread. */
static moert_status enter_table(moert_watchdog *watchdog) {
    if (watchdog->table == NULL)
        return MOERT_OK;
    moert_watch_enter(&watchdog->table->entries[watchdog->me], moert_clock_ns());
    MOERT_MPI_COLLECT(watchdog->comm, MPI_Ibarrier(watchdog->comm->node, &request));
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
    watchdog->table_bytes = sizeof *watchdog->table +
                            comm->node_size * sizeof watchdog->table->entries[0] +
                            comm->node_count * sizeof *watchdog->hosts;
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
    moert_beacon_close(watchdog->beacon);
    MOERT_FREE(watchdog->visible, watchdog->ranks, watchdog);
}

moert_status moert_watchdog_start(moert_comm *comm, unsigned timeout_s, moert_watchdog **out) {
    moert_watchdog *watchdog = NULL;
    moert_status status = prepare(comm, timeout_s, &watchdog);
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status));
    MOERT_TRY_OR(undo, share_table(watchdog));
    MOERT_TRY_OR(undo, moert_watchdog_light_beacon(watchdog));
    status = enter_table(watchdog);
    bool running = status == MOERT_OK && watchdog->table != NULL;
    status = moert_comm_agree(comm, status);
    if (status == MOERT_OK) {
        moert_timer_pause();
        *out = watchdog;
        return MOERT_OK;
    }
    if (running)
        stop_thread(watchdog);
undo:
    release(watchdog);
    return status;
}

void moert_watchdog_set_sink(moert_watchdog *watchdog, moert_watch_sink *sink, void *user) {
    if (watchdog == NULL || watchdog->table == NULL)
        return;
    pthread_mutex_lock(&watchdog->mutex);
    watchdog->sink = sink;
    watchdog->sink_user = user;
    pthread_mutex_unlock(&watchdog->mutex);
}

void moert_watchdog_set_timeout(moert_watchdog *watchdog, unsigned timeout_s) {
    if (watchdog != NULL)
        atomic_store(&watchdog->timeout_s, timeout_s);
}

void moert_watchdog_pause(moert_watchdog *watchdog, bool paused) {
    if (watchdog == NULL || watchdog->table == NULL)
        return;
    moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    if (!paused) /* this rank's time without progress is measured from here */
        atomic_store(&mine->progress_ns, moert_clock_ns());
    atomic_store(&mine->paused, paused);
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
    moert_comm_barrier(watchdog->comm); /* the watchdog is still on here, so it names a rank that
                                           never arrives */
    if (watchdog->table != NULL) {
        stop_thread(watchdog);
        atomic_store(&watchdog->table->entries[watchdog->me].state, MOERT_WATCH_LEFT);
    }
    moert_timer_resume();
    if (watchdog->comm->node_count > 1) /* all hosts have stopped watching before any beacon
                                           closes */
        moert_comm_barrier(watchdog->comm);
    release(watchdog);
}
