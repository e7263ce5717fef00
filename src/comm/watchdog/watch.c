/* Publishes the state of this process. Finds, from the table of the host's ranks and from /proc,
 * the rank for which the other ranks wait. */
#include "comm/watchdog/watch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/phase.h"

static const uint64_t second_ns = 1000000000u;
static const uint64_t silence_ns =
    3 * (uint64_t)1000000000u; /* a process publishes 5 heartbeats a second; without a heartbeat
                                  for this time, the process counts as stopped */
static const uint64_t host_silence_ns =
    4 * (uint64_t)1000000000u; /* a host sends a datagram every second, and some may be lost;
                                  without a datagram for this time, the host counts as silent */

/* State letter and start time of a process; 0 if there is no such process. See proc(5),
 * /proc/PID/stat. */
static char read_stat(int pid, uint64_t *birth) {
    char path[48], line[1024], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    /* the command's name, in brackets, may contain spaces and ')'; field 3 follows the last ')' */
    const char *fields = strrchr(line, ')');
    unsigned long long start = 0;
    if (fields == NULL || sscanf(fields + 1,
                                 " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                 "%*s %*s %*s %llu",
                                 &state, &start) != 2)
        return 0;
    *birth = start;
    return state;
}

void moert_watch_enter(moert_watch_entry *entry, uint64_t now_ns) {
    uint64_t birth = 0;
    int pid = (int)getpid();
    read_stat(pid, &birth);
    atomic_store(&entry->birth, birth);
    atomic_store(&entry->pid, pid);
    atomic_store(&entry->heartbeat_ns, now_ns);
    atomic_store(&entry->progress_ns, now_ns);
    atomic_store(&entry->ticks, moert_phase_ticks());
    moert_watch_publish(entry, now_ns);
    atomic_store(&entry->state, MOERT_WATCH_PRESENT);
}

void moert_watch_publish(moert_watch_entry *entry, uint64_t now_ns) {
    uint64_t ticks = moert_phase_ticks();
    bool slept = now_ns - atomic_load(&entry->heartbeat_ns) > silence_ns;
    if (ticks != atomic_load(&entry->ticks) || slept)
        atomic_store(&entry->progress_ns, now_ns);
    atomic_store(&entry->ticks, ticks);
    atomic_store(&entry->step, moert_phase_step());
    atomic_store(&entry->phase, (int)moert_phase_get());
    atomic_store(&entry->waiting, moert_phase_waiting() > 0);
    atomic_store(&entry->heartbeat_ns, now_ns);
}

moert_watch_life moert_watch_process(const moert_watch_entry *entry) {
    uint64_t birth = 0;
    char state = read_stat(atomic_load(&entry->pid), &birth);
    if (birth != atomic_load(&entry->birth))
        return MOERT_WATCH_UNKNOWN;
    switch (state) {
    case 0:
    case 'Z':
    case 'X':
        return MOERT_WATCH_UNKNOWN;
    case 'T':
    case 't':
        return MOERT_WATCH_HALTED;
    default:
        return MOERT_WATCH_RUNNING;
    }
}

/* Time since `then`; 0 if another process has meanwhile stored a later time. */
static uint64_t since(uint64_t now_ns, uint64_t then) {
    return now_ns > then ? now_ns - then : 0;
}

moert_watch_verdict moert_watch_judge(const moert_watch_entry *entry, bool visible,
                                      uint64_t now_ns) {
    if (atomic_load(&entry->state) != MOERT_WATCH_PRESENT)
        return MOERT_WATCH_FINE;
    moert_watch_life life = visible ? moert_watch_process(entry) : MOERT_WATCH_RUNNING;
    if (life == MOERT_WATCH_UNKNOWN) /* state PRESENT: the process is gone; otherwise the process
                                        has set LEFT since the check above */
        return atomic_load(&entry->state) == MOERT_WATCH_PRESENT ? MOERT_WATCH_GONE
                                                                 : MOERT_WATCH_FINE;
    if (life == MOERT_WATCH_HALTED || since(now_ns, atomic_load(&entry->heartbeat_ns)) > silence_ns)
        return MOERT_WATCH_STOPPED;
    return atomic_load(&entry->waiting)  ? MOERT_WATCH_FINE
           : atomic_load(&entry->paused) ? MOERT_WATCH_PAUSED
                                         : MOERT_WATCH_LATE;
}

/* The entry with the gravest verdict so far; among entries with equal verdicts, the entry that is
 * longest without progress. */
typedef struct worst {
    size_t at;
    const moert_watch_entry *entry; /* NULL: none */
    moert_watch_verdict verdict;
} worst;

static void weigh(worst *so_far, size_t at, const moert_watch_entry *entry,
                  moert_watch_verdict verdict) {
    if (so_far->entry == NULL || verdict > so_far->verdict ||
        (verdict == so_far->verdict &&
         atomic_load(&entry->progress_ns) < atomic_load(&so_far->entry->progress_ns)))
        *so_far = (worst){at, entry, verdict};
}

/* Finds the entry with the gravest verdict among all entries except `me`. */
static worst find_worst(const moert_watch_entry *entries, const bool *visible, size_t count,
                        size_t me, uint64_t now_ns) {
    worst found = {count, NULL, MOERT_WATCH_FINE};
    for (size_t i = 0; i < count; i++)
        if (i != me)
            weigh(&found, i, &entries[i], moert_watch_judge(&entries[i], visible[i], now_ns));
    return found;
}

size_t moert_watch_blame(const moert_watch_entry *entries, const bool *visible, size_t count,
                         size_t me, uint64_t now_ns, moert_watch_verdict *verdict) {
    const worst found = find_worst(entries, visible, count, me, now_ns);
    *verdict = found.verdict;
    return found.verdict == MOERT_WATCH_FINE ? count : found.at;
}

moert_watch_note moert_watch_take_note(const moert_watch_entry *entries, const bool *visible,
                                       const size_t *ranks, size_t count, uint64_t now_ns) {
    const worst found = find_worst(entries, visible, count, count, now_ns);
    const moert_watch_entry *entry = found.entry;
    moert_watch_note note = {.step = atomic_load(&entry->step),
                             .silent_ns = since(now_ns, atomic_load(&entry->heartbeat_ns)),
                             .idle_ns = since(now_ns, atomic_load(&entry->progress_ns)),
                             .rank = (int)ranks[found.at],
                             .pid = atomic_load(&entry->pid),
                             .verdict = (int)found.verdict};
    note.phase = atomic_load(&entry->phase);
    return note;
}

void moert_watch_keep_note(moert_watch_host *host, const moert_watch_note *note, uint64_t now_ns) {
    atomic_store(&host->entry.heartbeat_ns, since(now_ns, note->silent_ns));
    atomic_store(&host->entry.progress_ns, since(now_ns, note->idle_ns));
    atomic_store(&host->entry.step, note->step);
    atomic_store(&host->entry.pid, note->pid);
    atomic_store(&host->entry.phase, note->phase);
    atomic_store(&host->rank, note->rank);
    atomic_store(&host->verdict, note->verdict);
    atomic_store(&host->heard_ns, now_ns);
}

static moert_watch_verdict judge_host(const moert_watch_host *host, uint64_t now_ns) {
    uint64_t heard_ns = atomic_load(&host->heard_ns);
    if (heard_ns == 0)
        return MOERT_WATCH_FINE;
    moert_watch_verdict said = (moert_watch_verdict)atomic_load(&host->verdict);
    bool silent = since(now_ns, heard_ns) > host_silence_ns && said != MOERT_WATCH_REFUSED;
    return silent ? MOERT_WATCH_SILENT : said;
}

size_t moert_watch_blame_host(const moert_watch_host *hosts, size_t count, uint64_t now_ns,
                              moert_watch_verdict *verdict) {
    worst found = {count, NULL, MOERT_WATCH_FINE};
    for (size_t h = 0; h < count; h++) {
        const moert_watch_verdict said = judge_host(&hosts[h], now_ns);
        if (said != MOERT_WATCH_FINE)
            weigh(&found, h, &hosts[h].entry, said);
    }
    *verdict = found.verdict;
    return found.at;
}

void moert_watch_describe(const moert_watch_entry *entry, moert_watch_verdict verdict,
                          uint64_t now_ns, char *text, size_t bytes) {
    char reason[96];
    unsigned long long silent = since(now_ns, atomic_load(&entry->heartbeat_ns)) / second_ns;
    unsigned long long idle = since(now_ns, atomic_load(&entry->progress_ns)) / second_ns;
    int pid = atomic_load(&entry->pid);
    if (verdict == MOERT_WATCH_GONE)
        snprintf(reason, sizeof reason, "is gone (its process %d has ended)", pid);
    else if (verdict == MOERT_WATCH_STOPPED)
        snprintf(reason, sizeof reason, "is stopped (process %d, no sign of life for %llu s)", pid,
                 silent);
    else if (verdict == MOERT_WATCH_SILENT)
        snprintf(reason, sizeof reason,
                 "is out of reach (no sign of life from its host or network for %llu s)", silent);
    else if (verdict == MOERT_WATCH_REFUSED)
        snprintf(reason, sizeof reason,
                 "is gone, or the first rank of its host is (no process listens there)");
    else
        snprintf(reason, sizeof reason,
                 "is late (process %d lives, but has made no progress for %llu s)", pid, idle);
    snprintf(text, bytes, "%s, at step %llu in phase '%s'", reason,
             (unsigned long long)atomic_load(&entry->step),
             moert_phase_name((moert_phase)atomic_load(&entry->phase)));
}
