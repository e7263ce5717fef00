/* Finds the rank that keeps this rank waiting, and writes the message that names that rank. */
#include <stdio.h>

#include "comm/watchdog/internal.h"

static const uint64_t second_ns = 1000000000u;

/* Describes the ranks first to last of another host, and names the rank that has waited longest. */
static size_t describe_range(const moert_watchdog *watchdog, size_t first, size_t last, char *text,
                             size_t bytes) {
    const moert_peer *peer = &watchdog->comm->peers[first];
    const moert_watch_host *host = &watchdog->hosts[peer->node];
    char range[48];
    if (last > first)
        snprintf(range, sizeof range, "%zu-%zu", first, last);
    else
        snprintf(range, sizeof range, "%zu", first);
    if (atomic_load(&host->heard_ns) == 0)
        return (size_t)snprintf(text, bytes, "%s (%s, no report yet)", range, peer->host);
    return (size_t)snprintf(text, bytes, "%s (%s, rank %d waits at step %llu in '%s')", range,
                            peer->host, atomic_load(&host->rank),
                            (unsigned long long)atomic_load(&host->entry.step),
                            moert_phase_name((moert_phase)atomic_load(&host->entry.phase)));
}

/* Lists the ranks of other hosts as text, cut off at the end of `text`. */
static void list_elsewhere(const moert_watchdog *watchdog, char *text, size_t bytes) {
    const moert_comm *comm = watchdog->comm;
    size_t length = 0;
    text[0] = '\0';
    for (size_t first = 0, last; first < comm->size && length < bytes; first = last + 1) {
        for (last = first;
             last + 1 < comm->size && comm->peers[last + 1].node == comm->peers[first].node;)
            last++;
        if (comm->peers[first].node == comm->peers[comm->rank].node)
            continue;
        if (length > 0)
            length += (size_t)snprintf(text + length, bytes - length, ", ");
        if (length < bytes)
            length += describe_range(watchdog, first, last, text + length, bytes - length);
    }
}

moert_suspect moert_watchdog_suspect(const moert_watchdog *watchdog, uint64_t now_ns) {
    moert_suspect found;
    size_t i = moert_watch_blame(watchdog->table->entries, watchdog->visible, watchdog->count,
                                 watchdog->me, now_ns, &found.verdict);
    found.elsewhere = found.verdict == MOERT_WATCH_FINE;
    if (!found.elsewhere) {
        found.entry = &watchdog->table->entries[i];
        found.rank = watchdog->ranks[i];
        return found;
    }
    i = moert_watch_blame_host(watchdog->hosts, watchdog->comm->node_count, now_ns, &found.verdict);
    if (found.verdict != MOERT_WATCH_FINE) {
        found.entry = &watchdog->hosts[i].entry;
        found.rank = (size_t)atomic_load(&watchdog->hosts[i].rank);
    }
    return found;
}

void moert_watchdog_explain_blame(const moert_watchdog *watchdog, const moert_suspect *culprit,
                                  uint64_t now_ns, char *text, size_t bytes) {
    const moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    char what[256];
    moert_watch_describe(culprit->entry, culprit->verdict, now_ns, what, sizeof what);
    snprintf(text, bytes, "rank %zu on %s %s; rank %zu%s%s has waited for it for %llu s in '%s'",
             culprit->rank, watchdog->comm->peers[culprit->rank].host, what, watchdog->comm->rank,
             culprit->elsewhere ? " on " : "", culprit->elsewhere ? watchdog->comm->self.host : "",
             (unsigned long long)((now_ns - atomic_load(&mine->progress_ns)) / second_ns),
             moert_phase_name(moert_phase_get()));
}

void moert_watchdog_explain_mystery(const moert_watchdog *watchdog, uint64_t now_ns, char *text,
                                    size_t bytes) {
    const moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    char elsewhere[512];
    list_elsewhere(watchdog, elsewhere, sizeof elsewhere);
    const char *hint = elsewhere[0] != '\0' ? "the others are "
                                            : "perhaps not all ranks make the same collective call";
    snprintf(text, bytes,
             "rank %zu on %s has waited for %llu s at step %llu in phase '%s', and no rank of its "
             "host is late; %s%s",
             watchdog->comm->rank, watchdog->comm->self.host,
             (unsigned long long)((now_ns - atomic_load(&mine->progress_ns)) / second_ns),
             (unsigned long long)moert_phase_step(), moert_phase_name(moert_phase_get()), hint,
             elsewhere);
}
