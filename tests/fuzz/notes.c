/*
 * Each input is one datagram for the watchdog of rank 0. If the first byte is even, the datagram
 * has no valid signature and must be dropped. If the first byte is odd, the rest is signed as a
 * note of another host of the job. A signed note may claim anything, and the message about the
 * rank that the note names must still fit its buffer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/watchdog/internal.h"
#include "tests/fuzz/fuzz_files.h"

enum { HOSTS = 3, RANKS = 4, SENDER = 1, TEXT = 960 };

static struct {
    moert_comm comm;
    moert_peer peers[RANKS];
    size_t ranks[1];
    bool visible[1];
    moert_watch_host hosts[HOSTS];
    moert_watchdog watchdog;
    moert_beacon *sender;
    int stranger;
    moert_beacon_address place;
} job;

/* Rank 0 is alone on host 0, which this process plays; ranks 1 and 2 are on host 1, rank 3 on
 * host 2. */
static void begin_job(void) {
    static const size_t nodes[RANKS] = {0, 1, 1, 2};
    static const moert_siphash_key key = {{1, 2}};
    moert_beacon_address places[HOSTS] = {0};
    for (size_t r = 0; r < RANKS; r++)
        job.peers[r] = (moert_peer){r, nodes[r] + (nodes[r] > 1), nodes[r], "host"};
    job.comm = (moert_comm){.size = RANKS, .node_size = 1, .node_count = HOSTS, .peers = job.peers};
    job.watchdog = (moert_watchdog){.comm = &job.comm,
                                    .timeout_s = 60,
                                    .count = 1,
                                    .ranks = job.ranks,
                                    .visible = job.visible,
                                    .hosts = job.hosts};
    job.watchdog.table = calloc(1, sizeof *job.watchdog.table + sizeof(moert_watch_entry));
    job.stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (job.watchdog.table == NULL || job.stranger < 0 ||
        moert_beacon_open(0, HOSTS, &job.watchdog.beacon, &places[0]) != MOERT_OK ||
        moert_beacon_open(SENDER, HOSTS, &job.sender, &places[SENDER]) != MOERT_OK)
        fuzz_fail("no beacon: %s", moert_last_error());
    moert_watch_enter(&job.watchdog.table->entries[0], moert_clock_ns());
    for (size_t h = 0; h < 2; h++) {
        if (places[h].addresses[0] == 0)
            places[h].addresses[0] = htonl(INADDR_LOOPBACK);
        places[h].addresses[1] = 0; /* each host has one address, so each datagram arrives once */
    }
    moert_beacon_aim(job.watchdog.beacon, &key, places);
    moert_beacon_aim(job.sender, &key, places);
    job.place = places[0];
}

static void send_as_stranger(const uint8_t *bytes, size_t count) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = job.place.port,
                                   .sin_addr.s_addr = job.place.addresses[0]};
    if (sendto(job.stranger, bytes, count, 0, (const struct sockaddr *)&to, sizeof to) < 0)
        fuzz_fail("no datagram: %s", strerror(errno));
}

/* Formats the messages that the watchdog would print now, to find writes past a buffer. */
static void explain(uint64_t now_ns) {
    char text[TEXT];
    const moert_suspect suspect = moert_watchdog_suspect(&job.watchdog, now_ns);
    if (suspect.verdict != MOERT_WATCH_FINE)
        moert_watchdog_explain_blame(&job.watchdog, &suspect, now_ns, text, sizeof text);
    moert_watchdog_explain_mystery(&job.watchdog, now_ns, text, sizeof text);
}

moert_status read_notes(void) {
    const uint8_t *bytes = fuzz_input;
    const size_t count = fuzz_input_bytes;
    if (job.sender == NULL)
        begin_job();
    const uint64_t dropped = moert_beacon_dropped(job.watchdog.beacon), now_ns = moert_clock_ns();
    const bool is_signed = count > 0 && bytes[0] % 2 == 1;
    moert_watch_host before[HOSTS];
    memcpy(before, job.hosts, sizeof before);
    if (is_signed)
        moert_beacon_send(job.sender, bytes + 1, moert_min(count - 1, MOERT_BEACON_BYTES));
    else
        send_as_stranger(bytes, count);
    moert_watchdog_receive_notes(&job.watchdog, now_ns);
    const bool accepted = memcmp(before, job.hosts, sizeof before) != 0;
    if (!is_signed && (accepted || moert_beacon_dropped(job.watchdog.beacon) != dropped + 1))
        fuzz_fail("a stranger's datagram is not dropped");
    explain(now_ns);
    return MOERT_OK;
}
