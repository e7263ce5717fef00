/* Declarations that the files of the watchdog share. */
#pragma once

#include <pthread.h>

#include "comm/internal.h"
#include "comm/watchdog/beacon.h"
#include "comm/watchdog/watch.h"
#include "comm/watchdog/watchdog.h"

struct moert_watchdog {
    moert_comm *comm;
    atomic_uint timeout_s;
    moert_watch_sink *sink; /* the function to call before this process ends, or NULL */
    void *sink_user;
    bool released;            /* the program ends its process itself */
    moert_watch_table *table; /* NULL: off */
    size_t table_bytes;
    size_t me, count;        /* this rank's index, and the number of ranks, on this host */
    size_t *ranks;           /* [count] the numbers of this host's ranks in comm */
    bool *visible;           /* [count] whether this process finds the ranks' processes in /proc */
    moert_watch_host *hosts; /* [node_count] the other hosts' reports, after the table's entries;
                                the element of this host is unused */
    moert_beacon *beacon;    /* only the first rank of each host has a beacon, and only if the
                                job has several hosts; else NULL */
    uint64_t next_note_ns;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stopping;
    uint64_t gone_ns;    /* when the next rank of the host was found gone; 0: it was not found
                            gone */
    atomic_bool claimed; /* this rank has reported a failure itself */
    uint64_t ending_ns;  /* when this process ends after another rank's report; 0: no report */
    char message[1024];  /* the reason for which this process ends; "": none yet */
};

/* Publishes the state of this process, and ends the process if a check finds a reason to end it.
 * The watchdog's thread calls this five times a second. All times are measured from `now_ns`, so
 * that tests need not wait. */
void moert_watchdog_beat(moert_watchdog *watchdog, uint64_t now_ns);

/* The rank that this rank waits for. */
typedef struct moert_suspect {
    const moert_watch_entry *entry;
    size_t rank;
    moert_watch_verdict verdict; /* FINE: no suspect */
    bool elsewhere;              /* the suspect is on another host, whose own watchdog has better
                                    data and reports earlier */
} moert_suspect;
moert_suspect moert_watchdog_suspect(const moert_watchdog *watchdog, uint64_t now_ns);

/* Writes which rank keeps this rank waiting, and for how long. */
void moert_watchdog_explain_blame(const moert_watchdog *watchdog, const moert_suspect *culprit,
                                  uint64_t now_ns, char *text, size_t bytes);
/* Writes the message for the case that all ranks with a known state wait. These ranks may wait in
 * different calls, or for a host from which no datagram came. */
void moert_watchdog_explain_mystery(const moert_watchdog *watchdog, uint64_t now_ns, char *text,
                                    size_t bytes);

/* Opens the beacon of each host's first rank, exchanges the beacons' addresses, and shares a key
 * that rank 0 draws. If a beacon does not open, the other hosts receive no notes from that beacon's
 * host. Collective. */
moert_status moert_watchdog_light_beacon(moert_watchdog *watchdog);
/* Stores the notes of the other hosts, and records which hosts refuse datagrams. */
void moert_watchdog_receive_notes(moert_watchdog *watchdog, uint64_t now_ns);
/* Sends a note about this host's ranks every second and at the end. While this rank waits, sends a
 * note at every check, so that refusals show which hosts are gone. */
void moert_watchdog_send_note(moert_watchdog *watchdog, uint64_t now_ns);
