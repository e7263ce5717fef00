// run: np=1 sanitize=1
/* Beacons of several hosts, in one process, on the loopback. */
#include <arpa/inet.h>
#include <time.h>

#include "comm/watchdog/beacon.h"
#include "support/test.h"

enum { HOSTS = 3, LETTER_BYTES = 40 };

static moert_beacon *beacons[HOSTS];
static moert_beacon_place places[HOSTS];

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

static void send_letter(size_t host, const char *text) {
    char letter[LETTER_BYTES] = "";
    snprintf(letter, sizeof letter, "%s", text);
    moert_beacon_send(beacons[host], letter, sizeof letter);
}

/* The last letter, and its host, or the one that refused. */
static struct {
    size_t host;
    char letter[LETTER_BYTES];
} heard;

/* Looks for a second: datagrams and refusals take their time. */
static bool wait_for(bool (*look)(size_t at), size_t at) {
    for (int i = 0; i < 100; i++) {
        if (look(at))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

static bool receive(size_t at) {
    return moert_beacon_receive(beacons[at], &heard.host, heard.letter, LETTER_BYTES);
}

static bool refused(size_t at) {
    send_letter(at, "are you there?");
    return moert_beacon_refused(beacons[at], &heard.host);
}

/* The letters that host `at` gets from host 1 become `times` more. */
static void hear_host_1(size_t at, int times) {
    for (int i = 0; i < times; i++) {
        send_letter(1, "here I am");
        assert_true(wait_for(receive, at));
        assert_int_equal(heard.host, 1);
    }
}

TEST_WITH(test_a_letter_reaches_all_others, open_all, close_all) {
    send_letter(2, "hello");
    for (size_t at = 0; at < 2; at++) {
        assert_true(wait_for(receive, at));
        assert_int_equal(heard.host, 2);
        assert_string_equal(heard.letter, "hello");
        assert_false(receive(at));
    }
    assert_false(receive(2));
}

TEST_WITH(test_letters_of_other_jobs_and_sizes_are_dropped, open_all, close_all) {
    moert_beacon_place others[HOSTS];
    memcpy(others, places, sizeof others);
    others[0].key++;
    moert_beacon_aim(beacons[1], others);
    send_letter(1, "of another job");
    moert_beacon_aim(beacons[1], places);
    moert_beacon_send(beacons[1], "short", 5);
    send_letter(1, "mine");
    assert_true(wait_for(receive, 0));
    assert_string_equal(heard.letter, "mine");
}

TEST_WITH(test_an_answer_goes_where_the_letter_came_from, open_all, close_all) {
    moert_beacon_place unknown[HOSTS];
    memcpy(unknown, places, sizeof unknown);
    unknown[1].addresses[0] = unknown[1].port = 0;
    moert_beacon_aim(beacons[0], unknown);
    send_letter(0, "to nowhere");
    hear_host_1(0, 1);
    send_letter(0, "answer");
    assert_true(wait_for(receive, 1));
    assert_string_equal(heard.letter, "answer");
}

TEST_WITH(test_a_beacon_that_is_closed_refuses, open_all, close_all) {
    hear_host_1(0, 5);
    assert_false(moert_beacon_refused(beacons[0], &heard.host));
    moert_beacon_close(beacons[1]);
    beacons[1] = NULL;
    assert_true(wait_for(refused, 0));
    assert_int_equal(heard.host, 1);
}

/* Host 1 speaks, but what is sent to it is refused: another port is where it is heard from. */
TEST_WITH(test_a_firewall_is_no_end, open_all, close_all) {
    hear_host_1(0, 1);
    moert_beacon_place closed[HOSTS];
    memcpy(closed, places, sizeof closed);
    closed[1].port = htons(9); /* nobody listens there */
    for (int i = 0; i < 5; i++) {
        moert_beacon_aim(beacons[0], closed);
        send_letter(0, "do you hear me?");
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        assert_false(moert_beacon_refused(beacons[0], &heard.host));
        hear_host_1(0, 1);
    }
}

TESTS(NULL, NULL)
