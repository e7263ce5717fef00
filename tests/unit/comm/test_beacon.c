// run: check=1 all=1san device=0
/* Beacons of several hosts, simulated in one process on the loopback interface. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/watchdog/beacon.h"
#include "support/test.h"

enum { HOSTS = 3, DATAGRAM_BYTES = 40 };

static moert_beacon *beacons[HOSTS];
static moert_beacon_address places[HOSTS];
static moert_siphash_key key;

static void close_all(void *none) {
    (void)none;
    for (size_t h = 0; h < HOSTS; h++)
        moert_beacon_close(beacons[h]);
    memset(beacons, 0, sizeof beacons);
}

/* Opens all hosts' beacons on one address, because a host with one address listens only on that
 * address. The address is the first that the machine has, or else loopback. */
static void open_all(void) {
    ASSERT_OK(moert_beacon_draw_key(&key));
    owned(NULL, close_all);
    for (size_t h = 0; h < HOSTS; h++) {
        ASSERT_OK(moert_beacon_open(h, HOSTS, &beacons[h], &places[h]));
        if (places[h].addresses[0] == 0)
            places[h].addresses[0] = htonl(INADDR_LOOPBACK);
        places[h].addresses[1] = 0;
    }
    for (size_t h = 0; h < HOSTS; h++)
        moert_beacon_aim(beacons[h], &key, places);
}

/* Aims a host's beacon at `place` instead of host `at`. */
static void aim_at(size_t host, size_t at, moert_beacon_address place) {
    moert_beacon_address aimed[HOSTS];
    memcpy(aimed, places, sizeof aimed);
    aimed[at] = place;
    moert_beacon_aim(beacons[host], &key, aimed);
}

static void send_text(size_t host, const char *text) {
    char datagram[DATAGRAM_BYTES] = "";
    snprintf(datagram, sizeof datagram, "%s", text);
    moert_beacon_send(beacons[host], datagram, sizeof datagram);
}

/* The last datagram that a host received and the host that sent it, or the last host that refused a
 * datagram. */
static struct {
    size_t host;
    char datagram[DATAGRAM_BYTES];
} received;

/* Calls `look` until it returns true, for up to a second: datagrams and refusals arrive with a
 * delay. */
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

TEST(test_a_datagram_reaches_all_other_hosts) {
    open_all();
    send_text(2, "hello");
    for (size_t at = 0; at < 2; at++) {
        assert_true(wait_for(receive, at));
        assert_int_equal(received.host, 2);
        assert_string_equal(received.datagram, "hello");
        assert_false(receive(at));
    }
    assert_false(receive(2));
}

TEST(test_datagrams_of_other_jobs_and_sizes_are_dropped) {
    open_all();
    moert_siphash_key other = key;
    other.words[1]++;
    moert_beacon_aim(beacons[1], &other, places);
    send_text(1, "of another job");
    moert_beacon_aim(beacons[1], &key, places);
    moert_beacon_send(beacons[1], "short", 5);
    send_text(1, "mine");
    assert_true(wait_for(receive, 0));
    assert_string_equal(received.datagram, "mine");
    assert_int_equal(moert_beacon_dropped(beacons[0]), 2);
}

/* ---- forgeries ---- */

enum { HEADER_BYTES = 24, WIRE_BYTES = HEADER_BYTES + DATAGRAM_BYTES };

/* A socket that belongs to no host of the job. The stranger sends to host 0. Host 1 sends to the
 * stranger if its beacon is aimed there. */
static int stranger;
static moert_beacon_address stranger_place;

static void close_stranger(void *none) {
    (void)none;
    close(stranger);
}

static void open_stranger(void) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t size = sizeof own;
    open_all();
    own.sin_addr.s_addr = places[0].addresses[0];
    stranger = socket(AF_INET, SOCK_DGRAM, 0);
    owned(NULL, close_stranger);
    assert_int_equal(bind(stranger, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(getsockname(stranger, (struct sockaddr *)&own, &size), 0);
    stranger_place =
        (moert_beacon_address){.addresses = {own.sin_addr.s_addr}, .port = own.sin_port};
}

/* Records a datagram that host 1 sends to the stranger. */
static void record(const char *text, unsigned char wire[WIRE_BYTES]) {
    aim_at(1, 0, stranger_place);
    send_text(1, text);
    moert_beacon_aim(beacons[1], &key, places);
    assert_int_equal(recv(stranger, wire, WIRE_BYTES, 0), WIRE_BYTES);
}

static void strike(const void *wire, size_t bytes) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = places[0].port,
                                   .sin_addr.s_addr = places[0].addresses[0]};
    assert_int_equal(sendto(stranger, wire, bytes, 0, (const struct sockaddr *)&to, sizeof to),
                     bytes);
}

/* Makes the attack's n-th datagram from the recorded datagram `old`; returns the length of the new
 * datagram. */
static size_t forge(size_t n, const unsigned char old[WIRE_BYTES], unsigned char wire[WIRE_BYTES]) {
    memcpy(wire, old, WIRE_BYTES);
    switch (n % 4) {
    case 0: /* one bit of the tag, the sender, the number or the data is changed */
        wire[n / 4 % WIRE_BYTES] ^= (unsigned char)(1 << n / 4 / WIRE_BYTES % 8);
        return WIRE_BYTES;
    case 1: /* again, unchanged */
        return WIRE_BYTES;
    case 2: /* cut off */
        return n / 4 % WIRE_BYTES;
    default: /* garbage */
        for (size_t i = 0; i < WIRE_BYTES; i++)
            wire[i] = (unsigned char)(rand() >> 7);
        return WIRE_BYTES;
    }
}

TEST(test_forged_and_repeated_datagrams_have_no_effect) {
    enum { ATTACKS = 100000 };
    unsigned char old[WIRE_BYTES], wire[WIRE_BYTES];
    open_stranger();
    record("recorded", old);
    receive_from_host_1(0, 1);
    for (size_t n = 0; n < ATTACKS; n++) {
        strike(wire, forge(n, old, wire));
        assert_false(receive(0));
    }
    assert_int_equal(moert_beacon_dropped(beacons[0]), ATTACKS);
    receive_from_host_1(0, 1);
    send_text(0, "still for host 1");
    assert_true(wait_for(receive, 1));
    assert_string_equal(received.datagram, "still for host 1");
    assert_int_equal(recv(stranger, wire, sizeof wire, MSG_DONTWAIT), -1);
}

TEST(test_the_same_datagram_from_another_address_is_no_answer) {
    unsigned char wire[WIRE_BYTES];
    open_stranger();
    record("on two ways", wire);
    strike(wire, WIRE_BYTES);
    assert_true(wait_for(receive, 0));
    strike(wire, WIRE_BYTES);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_false(receive(0));
    assert_int_equal(moert_beacon_dropped(beacons[0]), 0);
}

/* Test vectors of SipHash's reference implementation: the key is the bytes 00 01 .. 0f, the message
 * 00 01 02 .. */
TEST(test_siphash_gives_the_reference_tags) {
    static const struct {
        size_t bytes;
        uint64_t tag;
    } vectors[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd},  {7, 0xab0200f58b01d137},
                   {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}, {63, 0x958a324ceb064572}};
    const moert_siphash_key count = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
    unsigned char message[64];
    for (size_t i = 0; i < sizeof message; i++)
        message[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        assert_int_equal(moert_siphash(&count, message, vectors[i].bytes), vectors[i].tag);
}

TEST(test_an_answer_goes_where_the_datagram_came_from) {
    open_all();
    aim_at(0, 1, (moert_beacon_address){.port = 0});
    send_text(0, "to nowhere");
    receive_from_host_1(0, 1);
    send_text(0, "answer");
    assert_true(wait_for(receive, 1));
    assert_string_equal(received.datagram, "answer");
}

TEST(test_a_closed_beacon_counts_as_refusing) {
    open_all();
    receive_from_host_1(0, 5);
    assert_false(moert_beacon_refused(beacons[0], &received.host));
    moert_beacon_close(beacons[1]);
    beacons[1] = NULL;
    assert_true(wait_for(refused, 0));
    assert_int_equal(received.host, 1);
}

/* Datagrams from host 1 arrive. Datagrams to host 1 go to a closed port and are refused. */
TEST(test_a_firewall_does_not_count_as_the_end_of_a_host) {
    open_all();
    moert_beacon_address closed = places[1];
    closed.port = htons(9); /* no process listens there */
    receive_from_host_1(0, 1);
    for (int i = 0; i < 5; i++) {
        aim_at(0, 1, closed);
        send_text(0, "do you hear me?");
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        assert_false(moert_beacon_refused(beacons[0], &received.host));
        receive_from_host_1(0, 1);
    }
}

TESTS(NULL, NULL)
