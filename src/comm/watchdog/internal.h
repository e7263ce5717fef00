/* What the files of the watchdog share. */
#pragma once

#include <pthread.h>

#include "comm/internal.h"
#include "comm/watchdog/beacon.h"
#include "comm/watchdog/watch.h"
#include "comm/watchdog/watchdog.h"

struct moert_watchdog {
    moert_comm *comm;
    unsigned timeout_s;
    moert_watch_table *table; /* NULL: off */
    size_t table_bytes;
    size_t me, count;        /* among the ranks of this host */
    size_t *ranks;           /* [count] */
    bool *visible;           /* [count] */
    moert_watch_host *hosts; /* [node_count], behind the table's entries; this host's is unused */
    moert_beacon *beacon;    /* NULL: another rank's, or there is one host */
    uint64_t next_note_ns;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stopping;
    uint64_t gone_ns;    /* since when the next rank of the host is gone; 0: it is not */
    atomic_bool claimed; /* this rank has reported a failure itself */
    uint64_t ending_ns;  /* when to follow a rank that has reported one; 0: none has */
};

/* Whom this rank waits for. */
typedef struct moert_suspect {
    const moert_watch_entry *entry;
    size_t rank;
    moert_watch_verdict verdict; /* FINE: there is none */
    bool elsewhere;              /* on another host, which knows more and speaks before */
} moert_suspect;
moert_suspect moert_watchdog_suspect(const moert_watchdog *watchdog, uint64_t now_ns);

/* Says who keeps this rank waiting, and how long. */
void moert_watchdog_explain_blame(const moert_watchdog *watchdog, const moert_suspect *culprit,
                                  uint64_t now_ns, char *text, size_t bytes);
/* The same when all ranks wait, as far as is known: each in another call, or for a host that was
 * never heard of. */
void moert_watchdog_explain_mystery(const moert_watchdog *watchdog, uint64_t now_ns, char *text,
                                    size_t bytes);
