/*
 * The table of a host's ranks, the reports of other hosts about their ranks, and the rules that
 * find the missing rank.
 *
 * Does not use MPI: the table is plain memory that the processes share. Each process writes only
 * its own entry.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* LEFT is set before an orderly end: a process that ends as PRESENT is gone. */
enum { MOERT_WATCH_ABSENT, MOERT_WATCH_PRESENT, MOERT_WATCH_LEFT };

typedef struct moert_watch_entry {
    _Alignas(64) _Atomic uint64_t heartbeat_ns;
    _Atomic uint64_t progress_ns; /* when `ticks` was last seen to grow */
    _Atomic uint64_t ticks, step;
    _Atomic uint64_t birth; /* start time in /proc, to detect a reused pid */
    atomic_int pid, waiting, state;
    atomic_int phase;  /* moert_phase */
    atomic_int paused; /* the rank's program has called moert_watchdog_pause, since the program
                          computes outside of moert */
} moert_watch_entry;

/* The verdicts on a rank, in ascending order of gravity. */
typedef enum moert_watch_verdict {
    MOERT_WATCH_FINE,
    MOERT_WATCH_PAUSED,  /* alive, and may take any time */
    MOERT_WATCH_LATE,    /* alive and not waiting, so the other ranks wait for it */
    MOERT_WATCH_STOPPED, /* halted by a signal or a debugger, or without a heartbeat */
    MOERT_WATCH_SILENT,  /* the rank's host has stopped sending datagrams */
    MOERT_WATCH_REFUSED, /* the rank's host refuses datagrams: no watchdog listens there any more */
    MOERT_WATCH_GONE,    /* the process has ended without setting LEFT */
    MOERT_WATCH_ENDING   /* for hosts only: the host has reported the failure and ends the job */
} moert_watch_verdict;

/* The last report of another host about one of its ranks, see moert_watch_note. */
typedef struct moert_watch_host {
    moert_watch_entry entry;   /* the rank's entry as the host reported it, with times converted
                                  to the clock of this host */
    _Atomic uint64_t heard_ns; /* when the report arrived; 0: never */
    atomic_int rank, verdict;  /* the rank and verdict that the report names; this host sets REFUSED
                                  itself */
} moert_watch_host;

typedef struct moert_watch_table {
    atomic_int reported; /* the process of this host that reports the failure sets this flag */
    moert_watch_entry entries[];
} moert_watch_table;

/* Registers this process. */
void moert_watch_enter(moert_watch_entry *entry, uint64_t now_ns);

/* Copies the phase of this process (base/phase.h) into its entry. If this process was suspended,
 * the length of its wait is measured from now on, since the other processes may need time to resume
 * as well. */
void moert_watch_publish(moert_watch_entry *entry, uint64_t now_ns);

/* The state of a process in /proc. UNKNOWN: no such pid, a zombie, or a process that started at
 * another time. */
typedef enum moert_watch_life {
    MOERT_WATCH_UNKNOWN,
    MOERT_WATCH_RUNNING,
    MOERT_WATCH_HALTED
} moert_watch_life;
moert_watch_life moert_watch_process(const moert_watch_entry *entry);

/* Judges the process of an entry. `visible`: this process can find that process by its pid. */
moert_watch_verdict moert_watch_judge(const moert_watch_entry *entry, bool visible,
                                      uint64_t now_ns);

/* The index of the entry to blame, or `count` if there is none. The blamed entry has the gravest
 * verdict and, among equal verdicts, the longest time without progress. */
size_t moert_watch_blame(const moert_watch_entry *entries, const bool *visible, size_t count,
                         size_t me, uint64_t now_ns, moert_watch_verdict *verdict);

/*
 * The report of a host to the other hosts. The report names the rank for which the other hosts may
 * have to wait: the rank with the gravest verdict and, among equal verdicts, the longest time
 * without progress.
 */
typedef struct moert_watch_note {
    uint64_t step, silent_ns, idle_ns; /* silent_ns, idle_ns: durations, not times, since the hosts'
                                          clocks differ */
    int phase, rank, pid, verdict;
} moert_watch_note;

/* Writes the note about entries[count], whose ranks are ranks[count]. */
moert_watch_note moert_watch_take_note(const moert_watch_entry *entries, const bool *visible,
                                       const size_t *ranks, size_t count, uint64_t now_ns);
/* Stores a note that another host sent. Only one process of this host may call this function. */
void moert_watch_keep_note(moert_watch_host *host, const moert_watch_note *note, uint64_t now_ns);

/* The index of the host to blame by the rule of moert_watch_blame, or `count` if there is none. A
 * host that never sent a datagram is not blamed. */
size_t moert_watch_blame_host(const moert_watch_host *hosts, size_t count, uint64_t now_ns,
                              moert_watch_verdict *verdict);

/* Describes an entry with its verdict, such as "is late (process 123 lives, but has made no
 * progress for 31 s), at step 12 in phase 'dispatch'". */
void moert_watch_describe(const moert_watch_entry *entry, moert_watch_verdict verdict,
                          uint64_t now_ns, char *text, size_t bytes);
