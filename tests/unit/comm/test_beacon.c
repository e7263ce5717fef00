// run: np=1 sanitize=1
/* Beacons of several hosts, simulated in one process on the loopback interface. */
#include <arpa/inet.h>
#include <time.h>

#include "comm/watchdog/beacon.h"
#include "support/test.h"

enum { HOSTS = 3, DATAGRAM_BYTES = 40 };

static moert_beacon *beacons[HOSTS];
static moert_beacon_address places[HOSTS];

static int open_all(void **state) {
    (void)state;
    for (size_t h = 0; h < HOSTS; h++) {
        if (moert_beacon_open(h, HOSTS, &beacons[h], &places[h]) != MOERT_OK)
            return -1;
        places[h].addresses[0] = htonl(INADDR_LOOPBACK);
        places[h].addresses[1] = 0;
    }
    for (size_t h = 0; h < HOSTS; h++)
        moert_beacon_aim(beacons[h], places);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (size_t h = 0; h < HOSTS; h++) {
        moert_beacon_close(beacons[h]);
        beacons[h] = NULL;
    }
    return 0;
}

static void send_text(size_t host, const char *text) {
    char datagram[DATAGRAM_BYTES] = "";
    snprintf(datagram, sizeof datagram, "%s", text);
    moert_beacon_send(beacons[host], datagram, sizeof datagram);
}

/* The last datagram and the host that sent it, or the host that refused a datagram. */
static struct {
    size_t host;
    char datagram[DATAGRAM_BYTES];
} received;

/* Polls `look` for up to a second, since datagrams and refusals arrive with a delay. */
static bool wait_for(bool (*look)(size_t at), size_t at) {
    for (int i = 0; i < 100; i++) {
        if (look(at))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

static bool receive(size_t at) {
    return moert_beacon_receive(beacons[at], &received.host, received.datagram, DATAGRAM_BYTES);
}

static bool refused(size_t at) {
    send_text(at, "are you there?");
    return moert_beacon_refused(beacons[at], &received.host);
}

/* Host `at` receives `times` datagrams from host 1. */
static void receive_from_host_1(size_t at, int times) {
    for (int i = 0; i < times; i++) {
        send_text(1, "here I am");
        assert_true(wait_for(receive, at));
        assert_int_equal(received.host, 1);
    }
}

TEST_WITH(test_a_datagram_reaches_all_other_hosts, open_all, close_all) {
    send_text(2, "hello");
    for (size_t at = 0; at < 2; at++) {
        assert_true(wait_for(receive, at));
        assert_int_equal(received.host, 2);
        assert_string_equal(received.datagram, "hello");
        assert_false(receive(at));
    }
    assert_false(receive(2));
}

TEST_WITH(test_datagrams_of_other_jobs_and_sizes_are_dropped, open_all, close_all) {
    moert_beacon_address others[HOSTS];
    memcpy(others, places, sizeof others);
    others[0].key++;
    moert_beacon_aim(beacons[1], others);
    send_text(1, "of another job");
    moert_beacon_aim(beacons[1], places);
    moert_beacon_send(beacons[1], "short", 5);
    send_text(1, "mine");
    assert_true(wait_for(receive, 0));
    assert_string_equal(received.datagram, "mine");
}

TEST_WITH(test_an_answer_goes_where_the_datagram_came_from, open_all, close_all) {
    moert_beacon_address unknown[HOSTS];
    memcpy(unknown, places, sizeof unknown);
    unknown[1].addresses[0] = unknown[1].port = 0;
    moert_beacon_aim(beacons[0], unknown);
    send_text(0, "to nowhere");
    receive_from_host_1(0, 1);
    send_text(0, "answer");
    assert_true(wait_for(receive, 1));
    assert_string_equal(received.datagram, "answer");
}

TEST_WITH(test_a_closed_beacon_counts_as_refusing, open_all, close_all) {
    receive_from_host_1(0, 5);
    assert_false(moert_beacon_refused(beacons[0], &received.host));
    moert_beacon_close(beacons[1]);
    beacons[1] = NULL;
    assert_true(wait_for(refused, 0));
    assert_int_equal(received.host, 1);
}

/* Datagrams from host 1 arrive. Datagrams to host 1 go to a closed port and are refused. */
TEST_WITH(test_a_firewall_does_not_count_as_the_end_of_a_host, open_all, close_all) {
    receive_from_host_1(0, 1);
    moert_beacon_address closed[HOSTS];
    memcpy(closed, places, sizeof closed);
    closed[1].port = htons(9); /* no process listens there */
    for (int i = 0; i < 5; i++) {
        moert_beacon_aim(beacons[0], closed);
        send_text(0, "do you hear me?");
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        assert_false(moert_beacon_refused(beacons[0], &received.host));
        receive_from_host_1(0, 1);
    }
}

TESTS(NULL, NULL)
