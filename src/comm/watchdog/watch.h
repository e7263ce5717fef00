/*
 * The table in which the ranks of a host see each other, and what the other hosts say of theirs,
 * and the judgement of who is missing.
 *
 * Knows nothing of MPI: the table is plain memory that the processes share. Each entry is written
 * by its own process only.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A process that ends without having left is gone. */
enum { MOERT_WATCH_ABSENT, MOERT_WATCH_PRESENT, MOERT_WATCH_LEFT };

typedef struct moert_watch_entry {
    _Alignas(64) _Atomic uint64_t heartbeat_ns;
    _Atomic uint64_t progress_ns; /* when its ticks were last seen to grow */
    _Atomic uint64_t ticks, step;
    _Atomic uint64_t birth; /* start time by /proc, tells reused pids */
    atomic_int pid, waiting, state;
    atomic_int phase; /* moert_phase */
} moert_watch_entry;

/* In order of weight. */
typedef enum moert_watch_verdict {
    MOERT_WATCH_FINE,
    MOERT_WATCH_LATE,    /* lives, but does not wait: the others wait for it */
    MOERT_WATCH_STOPPED, /* halted by a signal or a debugger, or without a heartbeat */
    MOERT_WATCH_SILENT,  /* its host has been heard of, but is no longer */
    MOERT_WATCH_REFUSED, /* no process watches at its host any more */
    MOERT_WATCH_GONE,    /* has ended without leaving */
    MOERT_WATCH_ENDING   /* of a host: it has said why, and ends the job */
} moert_watch_verdict;

/* What a host last said of one of its ranks, see moert_watch_note. */
typedef struct moert_watch_host {
    moert_watch_entry entry;   /* by the clock of this host */
    _Atomic uint64_t heard_ns; /* 0: never */
    atomic_int rank, verdict;  /* REFUSED: what it last said no longer holds */
} moert_watch_host;

typedef struct moert_watch_table {
    atomic_int reported; /* set by the one process of the host that speaks */
    moert_watch_entry entries[];
} moert_watch_table;

/* Registers this process. */
void moert_watch_enter(moert_watch_entry *entry, uint64_t now_ns);

/* Copies what this process does (base/phase.h) into its entry. When this process itself has slept,
 * its wait counts from now: the others need time to wake up as well. */
void moert_watch_publish(moert_watch_entry *entry, uint64_t now_ns);

/* How the system sees a process. UNKNOWN: none of that number that was born then. */
typedef enum moert_watch_life {
    MOERT_WATCH_UNKNOWN,
    MOERT_WATCH_RUNNING,
    MOERT_WATCH_HALTED
} moert_watch_life;
moert_watch_life moert_watch_process(const moert_watch_entry *entry);

/* `visible`: the process is one that this process can find by its pid. */
moert_watch_verdict moert_watch_judge(const moert_watch_entry *entry, bool visible,
                                      uint64_t now_ns);

/* The entry to blame, `count` if none: the gravest verdict, then the longest without progress. */
size_t moert_watch_blame(const moert_watch_entry *entries, const bool *visible, size_t count,
                         size_t me, uint64_t now_ns, moert_watch_verdict *verdict);

/*
 * What a host tells the others: the rank of it that they may have to wait for, with the gravest
 * verdict, among equals the one that is longest without progress.
 */
typedef struct moert_watch_note {
    uint64_t step, silent_ns, idle_ns; /* ages, since clocks differ */
    int phase, rank, pid, verdict;
} moert_watch_note;

/* Of entries[count], whose ranks are ranks[count]. */
moert_watch_note moert_watch_take_note(const moert_watch_entry *entries, const bool *visible,
                                       const size_t *ranks, size_t count, uint64_t now_ns);
/* Called by one process of this host alone. */
void moert_watch_keep_note(moert_watch_host *host, const moert_watch_note *note, uint64_t now_ns);

/* The host to blame, `count` if none, as moert_watch_blame; one that was never heard of is not. */
size_t moert_watch_blame_host(const moert_watch_host *hosts, size_t count, uint64_t now_ns,
                              moert_watch_verdict *verdict);

/* Says of an entry what a verdict means, such as "is late (alive, but no progress for 31 s), at
 * step 12 in phase 'dispatch'". */
void moert_watch_describe(const moert_watch_entry *entry, moert_watch_verdict verdict,
                          uint64_t now_ns, char *text, size_t bytes);
