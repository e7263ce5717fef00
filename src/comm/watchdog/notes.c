/* Notes that hosts send each other through their beacons. A note names the rank of the sending host
 * for which other ranks may be waiting. */
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/watchdog/internal.h"

static const uint64_t note_ns = 1000000000u; /* interval of notes to the other hosts */
static const uint64_t wait_ns = 200000000u;  /* once this rank has waited so long, every check
                                                sends a note */

moert_status moert_watchdog_light_beacon(moert_watchdog *watchdog) {
    moert_comm *comm = watchdog->comm;
    moert_beacon_address mine = {0}, *all = NULL;
    moert_siphash_key key = {{0}};
    if (comm->node_count == 1)
        return MOERT_OK;
    if (comm->node_rank == 0 && watchdog->table != NULL &&
        moert_beacon_open(comm->peers[comm->rank].node, comm->node_count, &watchdog->beacon,
                          &mine) != MOERT_OK)
        MOERT_WARN("this host cannot send watchdog reports to other hosts: %s", moert_last_error());
    moert_status status = MOERT_NEW_ARRAY(&all, comm->size);
    if (comm->rank == 0)
        status = moert_first(status, moert_beacon_draw_key(&key));
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    MOERT_TRY_OR(done, moert_comm_broadcast(comm, 0, &key, sizeof key));
    MOERT_TRY_OR(done, moert_comm_allgather(comm, &mine, sizeof mine, all));
    for (size_t r = 0; r < comm->size; r++) /* compacts all[] in place: all[node] has been read,
                                               since a node's index is at most its lowest rank */
        if (comm->peers[r].leader == r)
            all[comm->peers[r].node] = all[r];
    if (watchdog->beacon != NULL)
        moert_beacon_aim(watchdog->beacon, &key, all);
done:
    free(all);
    return status;
}

void moert_watchdog_receive_notes(moert_watchdog *watchdog, uint64_t now_ns) {
    moert_watch_note note;
    size_t host;
    while (moert_beacon_receive(watchdog->beacon, &host, &note, sizeof note)) {
        if (note.rank < 0 || (size_t)note.rank >= watchdog->comm->size)
            continue;
        moert_watch_keep_note(&watchdog->hosts[host], &note, now_ns);
        if (note.verdict == MOERT_WATCH_ENDING) /* the sending host has reported the failure */
            atomic_store(&watchdog->table->reported, 1);
    }
    while (moert_beacon_refused(watchdog->beacon, &host))
        atomic_store(&watchdog->hosts[host].verdict, MOERT_WATCH_REFUSED);
}

void moert_watchdog_send_note(moert_watchdog *watchdog, uint64_t now_ns) {
    const moert_watch_entry *mine = &watchdog->table->entries[watchdog->me];
    bool ending = atomic_load(&watchdog->table->reported) != 0;
    if (now_ns < watchdog->next_note_ns && !ending &&
        now_ns - atomic_load(&mine->progress_ns) < wait_ns)
        return;
    moert_watch_note note = moert_watch_take_note(watchdog->table->entries, watchdog->visible,
                                                  watchdog->ranks, watchdog->count, now_ns);
    if (ending)
        note.verdict = MOERT_WATCH_ENDING;
    watchdog->next_note_ns = now_ns + note_ns;
    moert_beacon_send(watchdog->beacon, &note, sizeof note);
}
