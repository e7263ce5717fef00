// run: check=1 all=1san device=0
/*
 * The watchdog's judgement, in one process. With the arguments `victim
 * kill|stop|late|mixed|alone|report` the program is one rank of a job that hangs, for
 * tests/e2e/watchdog.sh. With `victim init|start|end|finalize|exit`, the last rank stops before
 * MPI_Init, before the watchdog's start, after its stop, after the last collective call, or after
 * MPI_Finalize.
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/phase.h"
#include "comm/watchdog/watch.h"
#include "comm/watchdog/watchdog.h"
#include "support/mpi.h"

static const uint64_t second = 1000000000u;

/* Fills the entry for a new child process that sleeps; its heartbeat is fresh. */
static pid_t enter_child(moert_watch_entry *entry) {
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    assert_true(child > 0);
    moert_watch_enter(entry, moert_clock_ns());
    atomic_store(&entry->pid, (int)child);
    char text[1024];
    FILE *file = fopen(titled("/proc/%d/stat", (int)child), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    /* moves to field 22, the start time; none of the first 21 fields contains a blank here */
    char *at = text;
    for (int field = 1; field < 22; field++)
        at = strchr(at, ' ') + 1;
    atomic_store(&entry->birth, strtoull(at, NULL, 10));
    return child;
}

TEST(test_an_entry_says_step_and_phase) {
    moert_watch_entry entry = {0};
    moert_phase_set_step(12);
    moert_phase_set(MOERT_PHASE_COPY_RATES);
    moert_watch_enter(&entry, moert_clock_ns());
    assert_int_equal(atomic_load(&entry.phase), MOERT_PHASE_COPY_RATES);
    assert_int_equal(atomic_load(&entry.step), 12);
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

TEST(test_waiting_is_fine_and_computing_is_late) {
    moert_watch_entry entry = {0};
    uint64_t now = moert_clock_ns();
    moert_watch_enter(&entry, now);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_LATE);
    moert_phase_wait_begin();
    moert_watch_publish(&entry, now);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_FINE);
    moert_phase_wait_end();
}

TEST(test_progress_restarts_the_wait) {
    moert_watch_entry entry = {0};
    moert_watch_enter(&entry, 10 * second);
    moert_watch_publish(&entry, 11 * second);
    assert_int_equal(atomic_load(&entry.progress_ns), 10 * second);
    moert_phase_set(MOERT_PHASE_SAVE);
    moert_watch_publish(&entry, 12 * second);
    assert_int_equal(atomic_load(&entry.progress_ns), 12 * second);
    /* a pause this long means that the whole job was suspended, so the wait restarts */
    moert_watch_publish(&entry, 100 * second);
    assert_int_equal(atomic_load(&entry.progress_ns), 100 * second);
}

TEST(test_a_silent_or_halted_process_is_stopped) {
    moert_watch_entry entry = {0};
    pid_t child = enter_child(&entry);
    uint64_t now = moert_clock_ns();
    moert_watch_verdict before = moert_watch_judge(&entry, true, now);
    moert_watch_verdict silent = moert_watch_judge(&entry, true, now + 9 * second);
    kill(child, SIGSTOP);
    waitpid(child, NULL, WUNTRACED);
    moert_watch_verdict halted = moert_watch_judge(&entry, true, now);
    moert_watch_verdict unseen = moert_watch_judge(&entry, false, now);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(before, MOERT_WATCH_LATE);
    assert_int_equal(silent, MOERT_WATCH_STOPPED);
    assert_int_equal(halted, MOERT_WATCH_STOPPED);
    assert_int_equal(unseen, MOERT_WATCH_LATE);
}

TEST(test_a_process_that_ended_is_gone_unless_it_left) {
    moert_watch_entry entry = {0};
    pid_t child = enter_child(&entry);
    uint64_t now = moert_clock_ns();
    siginfo_t info;
    kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
    moert_watch_verdict zombie = moert_watch_judge(&entry, true, now);
    waitpid(child, NULL, 0);
    assert_int_equal(zombie, MOERT_WATCH_GONE);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_GONE);
    atomic_store(&entry.state, MOERT_WATCH_LEFT);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_FINE);
}

TEST(test_another_process_with_the_same_id_is_not_the_old_one) {
    moert_watch_entry entry = {0};
    uint64_t now = moert_clock_ns();
    moert_watch_enter(&entry, now);
    atomic_fetch_add(&entry.birth, 1);
    assert_int_equal(moert_watch_judge(&entry, true, now), MOERT_WATCH_GONE);
}

TEST(test_the_gravest_and_then_the_longest_idle_is_blamed) {
    moert_watch_entry entries[4] = {0};
    bool visible[4] = {true, true, true, true};
    moert_watch_verdict verdict;
    uint64_t now = moert_clock_ns();
    for (size_t i = 0; i < 4; i++)
        moert_watch_enter(&entries[i], now);
    /* rank 0, which judges, never blames itself */
    atomic_store(&entries[0].progress_ns, now - 9 * second);
    atomic_store(&entries[2].progress_ns, now - 2 * second);
    atomic_store(&entries[3].progress_ns, now - second);
    assert_int_equal(moert_watch_blame(entries, visible, 4, 0, now, &verdict), 2);
    assert_int_equal(verdict, MOERT_WATCH_LATE);
    atomic_store(&entries[3].heartbeat_ns, now - 30 * second);
    assert_int_equal(moert_watch_blame(entries, visible, 4, 0, now, &verdict), 3);
    assert_int_equal(verdict, MOERT_WATCH_STOPPED);
    for (size_t i = 1; i < 4; i++) {
        atomic_store(&entries[i].heartbeat_ns, now);
        atomic_store(&entries[i].waiting, 1);
    }
    assert_int_equal(moert_watch_blame(entries, visible, 4, 0, now, &verdict), 4);
    assert_int_equal(verdict, MOERT_WATCH_FINE);
}

TEST(test_a_verdict_is_described_with_step_and_phase) {
    moert_watch_entry entry = {0};
    char text[256];
    uint64_t now = moert_clock_ns();
    moert_phase_set_step(7);
    moert_phase_set(MOERT_PHASE_DISPATCH);
    moert_watch_enter(&entry, now);
    moert_watch_describe(&entry, MOERT_WATCH_STOPPED, now + 31 * second, text, sizeof text);
    assert_non_null(strstr(text, "is stopped"));
    assert_non_null(strstr(text, "no sign of life for 31 s"));
    assert_non_null(strstr(text, "at step 7 in phase 'dispatch'"));
}

/* Stores a note in which `host` reports `verdict` for its rank 3. */
static void receive_note(moert_watch_host *host, moert_watch_verdict verdict, uint64_t now) {
    moert_watch_note note = {.step = 9, .idle_ns = 5 * second, .rank = 3, .verdict = (int)verdict};
    note.phase = MOERT_PHASE_EXPERTS;
    moert_watch_keep_note(host, &note, now);
}

TEST(test_a_note_names_the_rank_to_wait_for) {
    moert_watch_entry entries[3] = {0};
    const bool visible[3] = {true, true, true};
    const size_t ranks[3] = {4, 5, 6};
    uint64_t now = moert_clock_ns();
    moert_phase_set_step(7);
    moert_phase_set(MOERT_PHASE_DISPATCH);
    for (size_t i = 0; i < 3; i++) {
        moert_watch_enter(&entries[i], now);
        atomic_store(&entries[i].waiting, 1);
        atomic_store(&entries[i].progress_ns, now - (i + 1) * second);
    }
    moert_watch_note waits = moert_watch_take_note(entries, visible, ranks, 3, now);
    assert_int_equal(waits.rank, 6); /* rank 6 has waited longest */
    assert_int_equal(waits.verdict, MOERT_WATCH_FINE);
    assert_int_equal(waits.idle_ns, 3 * second);
    assert_int_equal(waits.step, 7);
    assert_int_equal(waits.phase, MOERT_PHASE_DISPATCH);
    atomic_store(&entries[1].waiting, 0);
    moert_watch_note late = moert_watch_take_note(entries, visible, ranks, 3, now);
    assert_int_equal(late.rank, 5);
    assert_int_equal(late.verdict, MOERT_WATCH_LATE);
}

TEST(test_a_host_is_blamed_for_its_note_or_its_silence) {
    moert_watch_host hosts[2] = {0};
    moert_watch_verdict verdict;
    char text[256];
    uint64_t now = moert_clock_ns();
    /* no note has arrived yet */
    assert_int_equal(moert_watch_blame_host(hosts, 2, now, &verdict), 2);
    receive_note(&hosts[1], MOERT_WATCH_FINE, now);
    assert_int_equal(moert_watch_blame_host(hosts, 2, now, &verdict), 2);
    receive_note(&hosts[1], MOERT_WATCH_LATE, now);
    assert_int_equal(moert_watch_blame_host(hosts, 2, now, &verdict), 1);
    assert_int_equal(verdict, MOERT_WATCH_LATE);
    moert_watch_describe(&hosts[1].entry, verdict, now, text, sizeof text);
    assert_non_null(strstr(text, "no progress for 5 s), at step 9 in phase 'experts'"));
    assert_int_equal(moert_watch_blame_host(hosts, 2, now + 8 * second, &verdict), 1);
    assert_int_equal(verdict, MOERT_WATCH_SILENT);
    moert_watch_describe(&hosts[1].entry, verdict, now + 8 * second, text, sizeof text);
    assert_non_null(strstr(text, "is out of reach"));
    assert_non_null(strstr(text, "for 8 s), at step 9 in phase 'experts'"));
    receive_note(&hosts[1], MOERT_WATCH_REFUSED, now);
    receive_note(&hosts[0], MOERT_WATCH_LATE, now + 7 * second);
    assert_int_equal(moert_watch_blame_host(hosts, 2, now + 8 * second, &verdict), 1);
    assert_int_equal(verdict, MOERT_WATCH_REFUSED);
}

TEST(test_a_watchdog_starts_and_stops) {
    moert_watchdog *watchdog = NULL;
    for (unsigned timeout = 0; timeout < 2; timeout++) {
        ASSERT_OK(moert_watchdog_start(test_comm, timeout, &watchdog));
        moert_watchdog_stop(watchdog);
    }
    moert_watchdog_stop(NULL);
}

TEST(test_a_rank_that_only_computes_is_left_alone) {
    moert_watchdog *watchdog = NULL;
    ASSERT_OK(moert_watchdog_start(test_comm, 1, &watchdog));
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 800000000}, NULL);
    moert_watchdog_stop(watchdog);
}

/* All ranks except rank 0 report the same failure, and only the rank that claims the watchdog
 * prints it. The reporting ranks ignore SIGTERM and do not end. */
static void report(moert_watchdog *watchdog) {
    signal(SIGTERM, SIG_IGN);
    if (moert_watchdog_claim(watchdog))
        fprintf(stderr, "moert: rank %zu reports a failure\n", test_rank);
    sleep(60);
}

/* The last rank lets the watchdog end its process; the others end it themselves. */
static bool take_message(void *user, const char *message) {
    (void)user, (void)message;
    return test_rank + 1 < test_ranks;
}

/* The last rank fails in the given way at step 12. The others wait for it in a barrier; with
 * `alone`, they wait outside of any call. */
static int be_victim(const char *way) {
    moert_watchdog *watchdog = NULL;
    if (moert_watchdog_start(test_comm, moert_config_get()->timeout_s, &watchdog) != MOERT_OK)
        return 1;
    bool last = test_rank + 1 == test_ranks;
    moert_phase_set_step(12);
    moert_phase_set(last ? MOERT_PHASE_DISPATCH : MOERT_PHASE_COMBINE);
    moert_comm_barrier(test_comm);
    /* this is long enough for a heartbeat, which publishes step and phase. With several hosts and
     * `kill`, it is also long enough for several datagrams, without which other hosts cannot detect
     * the end of a host. */
    bool notes = strcmp(way, "kill") == 0 && moert_comm_node_count(test_comm) > 1;
    if (last)
        nanosleep(&(struct timespec){.tv_sec = notes ? 4 : 0, .tv_nsec = 500000000}, NULL);
    if (last && (strcmp(way, "kill") == 0 || strcmp(way, "alone") == 0))
        raise(SIGKILL);
    /* the other ranks wait outside of any call, as a rank that waits for its device */
    if (strcmp(way, "alone") == 0)
        sleep(60);
    if (last && strcmp(way, "stop") == 0)
        raise(SIGSTOP);
    if (strcmp(way, "sink") == 0)
        moert_watchdog_set_sink(watchdog, take_message, NULL);
    if (last && (strcmp(way, "late") == 0 || strcmp(way, "sink") == 0))
        sleep(60);
    if (last && strcmp(way, "paused") == 0) { /* longer than MOERT_TIMEOUT_S */
        moert_watchdog_pause(watchdog, true);
        sleep(5);
        moert_watchdog_pause(watchdog, false);
    }
    if (strcmp(way, "limit") == 0)
        moert_watchdog_set_timeout(watchdog, 60);
    if (last && strcmp(way, "limit") == 0)
        sleep(5);
    if (strcmp(way, "report") == 0 && test_rank > 0)
        report(watchdog);
    /* the last rank waits in a call that no other rank makes */
    if (last && strcmp(way, "mixed") == 0) {
        moert_phase_wait_begin();
        sleep(60);
    }
    if (moert_comm_barrier(test_comm) == MOERT_ERROR_TIMEOUT) {
        printf("ends by itself: %s\n", moert_last_error());
        fflush(stdout);
        _exit(5);
    }
    moert_watchdog_stop(watchdog);
    return 0;
}

/* Stops the last rank at the moment `moment`, if that is the one of `way`. */
static void stop_at(const char *moment, const char *way) {
    const long rank = launched_as("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
               ranks = launched_as("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    if (way != NULL && strcmp(moment, way) == 0 && rank + 1 == ranks)
        raise(SIGSTOP);
}

/* A run without faults, except that the last rank stops. */
static int be_stopped(const char *way) {
    moert_watchdog *watchdog = NULL;
    stop_at("start", way);
    if (moert_watchdog_start(test_comm, moert_config_get()->timeout_s, &watchdog) != MOERT_OK)
        return 1;
    if (strcmp(way, "exit") == 0)
        sleep(2); /* long enough for launch/environment to see the ranks */
    moert_watchdog_stop(watchdog);
    stop_at("end", way);
    moert_comm_barrier(test_comm);
    stop_at("finalize", way);
    return 0;
}

static bool is_moment(const char *way) {
    static const char *const moments[] = {"init", "start", "end", "finalize", "exit"};
    for (size_t i = 0; i < MOERT_COUNT(moments); i++)
        if (strcmp(way, moments[i]) == 0)
            return true;
    return false;
}

int main(int count, char **arguments) {
    const char *way = count == 3 && strcmp(arguments[1], "victim") == 0 ? arguments[2] : NULL;
    stop_at("init", way);
    if (!mpi_tests_begin(count, arguments))
        return 1;
    const int failed = way == NULL      ? run_file(__FILE__, NULL, NULL)
                       : is_moment(way) ? be_stopped(way)
                                        : be_victim(way);
    mpi_tests_end(failed);
    stop_at("exit", way);
    return failed;
}
