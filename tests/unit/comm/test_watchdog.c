// run: check=1 all=1san device=0
/* The watchdog's judgement, in one process and with a simulated clock. Jobs with a real clock run
 * tests/tools/victim.c as ranks. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/phase.h"
#include "comm/watchdog/internal.h"
#include "support/mpi.h"

static const uint64_t second = 1000000000u;

/* ---- a watchdog among simulated ranks and hosts ---- */

/* A job whose ranks wait for each other from time 0, and the time at which the watchdog of one rank
 * ends the job. */
typedef struct scene {
    /* the ranks of this host, a character each: '.' this rank, 'w' waits, 'l' late, 's' slow: makes
     * progress every second, 'p' paused, 'h' halted, 'g' gone */
    const char *ranks;
    /* two other hosts of one rank each, or "": 'n' never sends a note, 'w' sends notes that its
     * rank waits, 'l' sends notes that its rank is late, 's' stops sending at time 0, 'r' refuses
     * datagrams */
    const char *hosts;
    unsigned timeout_s, node; /* node: the number of this host */
    bool outside;             /* this rank waits outside of any call of moert */
    /* a failure is reported by another rank of this host, or claimed by this rank */
    bool reported, claimed;
    uint64_t end_ms;  /* 0: the job goes on */
    const char *text; /* in the message */
} scene;

static const scene scenes[] = {
    {".l", "", 3, .end_ms = 3000,
     .text = "moert: rank 1 on here is late (process 77 lives, but has made no progress for 3 s), "
             "at step 12 in phase 'dispatch'; rank 0 has waited for it for 3 s in 'combine'; "
             "ending the job (MOERT_TIMEOUT_S=3)"},
    {".sls", "", 5, .end_ms = 5000, .text = "rank 2 on here is late"},
    {".s", "", .timeout_s = 3},
    {".l", "", 60, .end_ms = 60000, .text = "(MOERT_TIMEOUT_S=60)"},
    {".l", "", .timeout_s = 0},
    {".l", "", 3, .outside = true},
    {"w.l", "", 3, .end_ms = 4000, .text = "rank 1 has waited for it for 4 s"},
    {"l.w", "", 3, .end_ms = 3000, .text = "rank 0 on here is late"},
    {".p", "", .timeout_s = 3},
    {".lh", "", 5, .end_ms = 5000,
     .text = "rank 2 on here is stopped (process 77, no sign of life for 5 s), at step 12"},
    /* a rank is gone: its neighbour reports it at once, other ranks report it soon after; no rank
     * is late */
    {".g", "", 3, .end_ms = 400,
     .text = "rank 1 on here is gone (its process 77 has ended), at step 12 in phase 'dispatch'; "
             "rank 0 has waited for it for 0 s in 'combine'; ending the job"},
    {".g", "", 3, .outside = true, .end_ms = 400, .text = "rank 1 on here is gone"},
    {"g.", "", 3, .outside = true, .end_ms = 400, .text = "rank 0 on here is gone"},
    {".wg", "", 3, .end_ms = 600, .text = "rank 2 on here is gone"},
    {".wg", "", 3, .outside = true},
    {".g", "", .timeout_s = 0},
    {".g", "", 3, .outside = true, .claimed = true},
    /* as far as this rank knows, all ranks wait */
    {".w", "", 3, .end_ms = 5000,
     .text = "rank 0 on here has waited for 5 s at step 13 in phase 'combine', and no rank of its "
             "host is late; perhaps not all ranks make the same collective call; ending the job "
             "(MOERT_TIMEOUT_S=3)"},
    {"w.", "", 3, .end_ms = 6000, .text = "rank 1 on here has waited for 6 s"},
    {".", "nw", 3, .end_ms = 5000,
     .text = "late; the others are 1 (there, no report yet), 2 (yonder, rank 2 waits at step 9 in "
             "'experts')"},
    /* the late rank is on another host, whose watchdog would normally report it earlier */
    {".w", "wl", 3, .end_ms = 5000,
     .text = "rank 3 on yonder is late (process 88 lives, but has made no progress for 9 s), at "
             "step 9 in phase 'experts'; rank 0 on here has waited for it for 5 s in 'combine'"},
    {".w", "wl", 3, .node = 1, .end_ms = 6000, .text = "rank 3 on yonder is late"},
    {".w", "sl", 3, .end_ms = 5000,
     .text = "rank 2 on there is out of reach (no sign of life from its host or network for 5 s)"},
    {".w", "rl", 3, .end_ms = 800,
     .text =
         "rank 2 on there is gone, or the first rank of its host is (no process listens there)"},
    {".l", "rl", 3, .end_ms = 3000, .text = "rank 1 on here is late"},
    /* another rank reports the failure */
    {".l", "", 3, .reported = true, .end_ms = 1000,
     .text = "moert: another rank has reported a failure; ending the job"},
    {".l", "", 3, .reported = true, .claimed = true, .end_ms = 4000, .text = "is late"},
};

enum { NODES = 3 };

/* Updates the entry of another rank in the table as that rank's process would. */
static void play_rank(moert_watch_entry *entry, char does, uint64_t begin, uint64_t now) {
    entry->pid = 77;
    entry->step = 12;
    entry->phase = MOERT_PHASE_DISPATCH;
    entry->state = MOERT_WATCH_PRESENT;
    entry->waiting = does == 'w';
    entry->paused = does == 'p';
    entry->heartbeat_ns = does == 'h' ? begin : now;
    entry->progress_ns = does == 's' ? now - (now - begin) % second : begin;
}

/* Simulates the notes that another host sends to this one. */
static void play_host(moert_watch_host *host, char does, size_t rank, uint64_t begin,
                      uint64_t now) {
    moert_watch_note note = {.step = 9, .idle_ns = 9 * second, .rank = (int)rank, .pid = 88};
    note.phase = MOERT_PHASE_EXPERTS;
    note.verdict = does == 'l' ? MOERT_WATCH_LATE : MOERT_WATCH_FINE;
    if (does != 'n' && (does != 's' || now == begin))
        moert_watch_keep_note(host, &note, now);
    if (does == 'r')
        host->verdict = MOERT_WATCH_REFUSED;
}

static char ending[1024]; /* the message with which the job ended */

static bool take_ending(void *user, const char *message) {
    snprintf(ending, sizeof ending, "%s", message);
    return user == NULL;
}

/* Makes the watchdog of the rank '.' of a scene. */
static moert_watchdog *enter_scene(const scene *s, uint64_t begin) {
    static const char *const names[] = {"there", "yonder"};
    const size_t count = strlen(s->ranks), others = strlen(s->hosts);
    moert_watchdog *w = test_alloc(sizeof *w);
    moert_comm *comm = w->comm = test_alloc(sizeof *w->comm);
    comm->size = count + others;
    comm->node_count = 1 + others;
    comm->peers = test_alloc(comm->size * sizeof *comm->peers);
    w->me = comm->rank = strcspn(s->ranks, ".");
    w->count = count;
    w->ranks = test_alloc(count * sizeof *w->ranks);
    w->visible = test_alloc(count * sizeof *w->visible);
    w->table = test_alloc(sizeof *w->table + count * sizeof w->table->entries[0]);
    w->hosts = test_alloc(NODES * sizeof *w->hosts);
    for (size_t r = 0; r < comm->size; r++) {
        const size_t other = r - count, node = other + (other >= s->node);
        comm->peers[r].node = r < count ? s->node : node;
        strcpy(comm->peers[r].host, r < count ? "here" : names[other]);
    }
    for (size_t r = 0; r < count; r++) {
        w->ranks[r] = r;
        /* the rank's process is looked up in /proc, where it is absent */
        w->visible[r] = s->ranks[r] == 'g';
    }
    comm->self = comm->peers[comm->rank];
    w->claimed = s->claimed;
    w->table->reported = s->reported;
    w->sink = take_ending;
    moert_watchdog_set_timeout(w, s->timeout_s);
    moert_watch_enter(&w->table->entries[w->me], begin);
    return w;
}

/* Plays a scene for 70 s; returns the ms after which the job ends, or 0. */
static uint64_t play(const scene *s) {
    const uint64_t begin = 1000 * second;
    moert_watchdog *w = enter_scene(s, begin);
    for (uint64_t now = begin; now < begin + 70 * second; now += second / 5) {
        for (size_t r = 0; r < w->count; r++)
            if (r != w->me)
                play_rank(&w->table->entries[r], s->ranks[r], begin, now);
        for (size_t r = w->count; r < w->comm->size; r++)
            play_host(&w->hosts[w->comm->peers[r].node], s->hosts[r - w->count], r, begin, now);
        moert_watchdog_beat(w, now);
        if (w->released)
            return (now - begin) / 1000000;
    }
    return 0;
}

TEST(test_a_watchdog_ends_the_job_in_time_and_names_the_rank) {
    moert_phase_set_step(13);
    moert_phase_set(MOERT_PHASE_COMBINE);
    for (size_t i = 0; i < MOERT_COUNT(scenes); i++) {
        const scene *s = &scenes[i];
        ending[0] = '\0';
        if (!s->outside)
            moert_phase_wait_begin();
        const uint64_t end_ms = play(s);
        if (!s->outside)
            moert_phase_wait_end();
        if (end_ms != s->end_ms || (s->text != NULL && strstr(ending, s->text) == NULL))
            fail_msg("scene %zu, '%s' '%s', ends after %llu ms, not %llu: %s", i, s->ranks,
                     s->hosts, (unsigned long long)end_ms, (unsigned long long)s->end_ms, ending);
        if (end_ms > 0)
            ASSERT_FAILS(moert_comm_barrier(test_comm), MOERT_ERROR_TIMEOUT, ending);
        moert_comm_give_up(NULL);
    }
}

TEST(test_a_pause_restarts_the_wait_for_a_rank) {
    moert_watchdog *w = enter_scene(&(scene){".w", "", .timeout_s = 3}, 0);
    const moert_watch_entry *mine = &w->table->entries[0];
    moert_watchdog_pause(w, true);
    assert_int_equal(moert_watch_judge(mine, true, 0), MOERT_WATCH_PAUSED);
    assert_int_equal(mine->progress_ns, 0);
    moert_watchdog_pause(w, false);
    assert_int_equal(moert_watch_judge(mine, true, 0), MOERT_WATCH_LATE);
    assert_true(mine->progress_ns > 0);
}

/* ---- entries and notes ---- */

static int sleep_for_ever(const void *context) {
    for (;;)
        pause();
    return context != NULL;
}

/* Fills the entry for a new child process that sleeps; the entry's heartbeat is fresh. */
static pid_t enter_child(moert_watch_entry *entry) {
    unsigned long long birth;
    const int child = start_child(sleep_for_ever, NULL);
    moert_watch_enter(entry, 1000 * second);
    FILE *file = fopen(titled("/proc/%d/stat", (int)child), "r");
    assert_non_null(file);
    /* the start time is field 22; the name, field 2, contains no blank here */
    for (int field = 1; field < 22; field++)
        assert_int_equal(fscanf(file, "%*s"), 0);
    assert_int_equal(fscanf(file, "%llu", &birth), 1);
    fclose(file);
    atomic_store(&entry->pid, (int)child);
    atomic_store(&entry->birth, birth);
    return child;
}

/* A phase that another process wrote, or that a datagram carries, may be any number. */
TEST(test_every_phase_has_a_name_and_any_other_number_is_unknown) {
    for (int phase = 0; phase < MOERT_PHASES; phase++) {
        assert_true(strlen(moert_phase_name((moert_phase)phase)) > 0);
        assert_string_not_equal(moert_phase_name((moert_phase)phase), "unknown");
    }
    assert_string_equal(moert_phase_name(MOERT_PHASES), "unknown");
    assert_string_equal(moert_phase_name((moert_phase)-1), "unknown");
}

TEST(test_progress_restarts_the_wait) {
    moert_watch_entry entry = {0};
    moert_phase_set_step(12);
    moert_watch_enter(&entry, 10 * second);
    assert_int_equal(entry.step, 12);
    moert_watch_publish(&entry, 11 * second);
    assert_int_equal(atomic_load(&entry.progress_ns), 10 * second);
    moert_phase_set(MOERT_PHASE_SAVE);
    moert_watch_publish(&entry, 12 * second);
    assert_int_equal(entry.phase, MOERT_PHASE_SAVE);
    assert_int_equal(atomic_load(&entry.progress_ns), 12 * second);
    /* a pause this long means that the whole job was suspended, so the wait restarts */
    moert_watch_publish(&entry, 100 * second);
    assert_int_equal(atomic_load(&entry.progress_ns), 100 * second);
}

/* Publishes the entry every 20 ms for half a second, and keeps the processor busy meanwhile if
 * `computes`. Returns how often the entry showed progress. */
static size_t count_progress(bool computes) {
    moert_watch_entry entry = {0};
    size_t count = 0;
    moert_watch_enter(&entry, 0);
    for (uint64_t beat = 1; beat <= 25; beat++) {
        const clock_t end = clock() + CLOCKS_PER_SEC / 50;
        while (computes && clock() < end)
            ;
        if (!computes)
            usleep(20000);
        moert_watch_publish(&entry, beat);
        count += atomic_load(&entry.progress_ns) == beat;
    }
    return count;
}

TEST(test_a_compiler_makes_progress_while_it_uses_the_processor) {
    assert_int_equal(count_progress(true), 0);
    moert_phase_busy_begin();
    assert_in_range(count_progress(true), 9, 11); /* every 50 ms */
    assert_in_range(count_progress(false), 0, 1);
    moert_phase_busy_end();
    assert_int_equal(count_progress(true), 0);
}

TEST(test_a_process_is_judged_by_its_heartbeat_and_its_state_in_proc) {
    moert_watch_entry entry = {0}, reused;
    siginfo_t info;
    const pid_t child = enter_child(&entry);
    const uint64_t now = atomic_load(&entry.heartbeat_ns);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_LATE);
    assert_int_equal(moert_watch_judge(&entry, true, now + 9 * second), MOERT_WATCH_STOPPED);
    /* `reused` describes an earlier process with the same id */
    memcpy(&reused, &entry, sizeof reused);
    reused.birth++;
    assert_int_equal(moert_watch_judge(&reused, true, now), MOERT_WATCH_GONE);
    kill(child, SIGSTOP);
    waitpid(child, NULL, WUNTRACED);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_STOPPED);
    assert_int_equal(moert_watch_judge(&entry, false, now), MOERT_WATCH_LATE);
    kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_GONE); /* a zombie */
    waitpid(child, NULL, 0);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_GONE);
    atomic_store(&entry.state, MOERT_WATCH_LEFT);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_FINE);
}

TEST(test_a_note_names_the_rank_to_wait_for) {
    moert_watch_entry entries[3] = {0};
    const bool visible[3] = {false};
    const size_t ranks[3] = {4, 5, 6};
    const uint64_t now = 1000 * second;
    for (size_t i = 0; i < 3; i++)
        play_rank(&entries[i], 'w', now - (i + 1) * second, now);
    const moert_watch_note waits = moert_watch_take_note(entries, visible, ranks, 3, now);
    assert_int_equal(waits.rank, 6); /* rank 6 has waited longest */
    assert_int_equal(waits.verdict, MOERT_WATCH_FINE);
    assert_int_equal(waits.idle_ns, 3 * second);
    assert_int_equal(waits.step, 12);
    assert_int_equal(waits.phase, MOERT_PHASE_DISPATCH);
    entries[1].waiting = 0;
    const moert_watch_note late = moert_watch_take_note(entries, visible, ranks, 3, now);
    assert_int_equal(late.rank, 5);
    assert_int_equal(late.verdict, MOERT_WATCH_LATE);
}

MPI_TESTS(NULL, NULL)
