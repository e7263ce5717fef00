/* Implements a beacon as an unconnected socket, and keeps the addresses from which other hosts'
 * datagrams came. */
#include "comm/watchdog/beacon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

/* Refusals of a host count only after this many datagrams from that host. If a datagram arrives
 * after a refusal, the host is alive, and a firewall refused. */
enum { PROBATION = 3 };

/* The content of a datagram; only the used bytes of `data` are sent. */
typedef struct datagram {
    uint64_t key, host;
    unsigned char data[MOERT_BEACON_BYTES];
} datagram;

typedef struct contact {
    unsigned received; /* datagrams */
    bool refused, firewall;
} contact;

struct moert_beacon {
    int socket;
    size_t me, hosts;
    uint64_t key;
    moert_beacon_address *places; /* [hosts] */
    contact *contacts;            /* [hosts] */
};

/* Lists the IPv4 addresses of interfaces that are up, except loopback; at most as many as fit. */
static moert_status list_addresses(uint32_t addresses[MOERT_BEACON_ADDRESSES]) {
    struct ifaddrs *list;
    size_t count = 0;
    if (getifaddrs(&list) != 0)
        return MOERT_FAIL(ERROR_COMM, "cannot list the network's addresses: %s", strerror(errno));
    for (const struct ifaddrs *at = list; at != NULL && count < MOERT_BEACON_ADDRESSES;
         at = at->ifa_next) {
        struct sockaddr_in address;
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET ||
            (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        memcpy(&address, at->ifa_addr, sizeof address);
        addresses[count++] = address.sin_addr.s_addr;
    }
    freeifaddrs(list);
    return MOERT_OK;
}

static moert_status open_socket(moert_beacon *beacon, moert_beacon_address *place) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t size = sizeof any;
    int on = 1;
    beacon->socket = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (beacon->socket < 0 || bind(beacon->socket, (struct sockaddr *)&any, sizeof any) != 0 ||
        getsockname(beacon->socket, (struct sockaddr *)&any, &size) != 0 ||
        setsockopt(beacon->socket, IPPROTO_IP, IP_RECVERR, &on, sizeof on) != 0)
        return MOERT_FAIL(ERROR_COMM, "cannot open a socket: %s", strerror(errno));
    place->port = any.sin_port;
    place->key = moert_clock_ns() ^ (uint64_t)getpid() << 40;
    return list_addresses(place->addresses);
}

moert_status moert_beacon_open(size_t me, size_t hosts, moert_beacon **out,
                               moert_beacon_address *place) {
    moert_status status;
    moert_beacon *beacon;
    moert_beacon_address found = {0};
    MOERT_TRY(MOERT_NEW(&beacon));
    *beacon = (moert_beacon){.socket = -1, .me = me, .hosts = hosts};
    MOERT_TRY_OR(undo, MOERT_NEW_ARRAY(&beacon->places, hosts));
    MOERT_TRY_OR(undo, MOERT_NEW_ARRAY(&beacon->contacts, hosts));
    MOERT_TRY_OR(undo, open_socket(beacon, &found));
    *place = found;
    *out = beacon;
    return MOERT_OK;
undo:
    moert_beacon_close(beacon);
    return status;
}

void moert_beacon_aim(moert_beacon *beacon, const moert_beacon_address *places) {
    memcpy(beacon->places, places, beacon->hosts * sizeof *places);
    beacon->key = places[0].key;
}

/* Ignores failures to send, since the receiver notices missing datagrams. The socket reports an
 * earlier refusal by failing one send without sending, so send_to retries. */
static void send_to(const moert_beacon *beacon, uint32_t address, uint16_t port,
                    const datagram *message, size_t bytes) {
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = address};
    for (int tries = 0; tries < 3; tries++)
        if (sendto(beacon->socket, message, bytes, MSG_NOSIGNAL, (const struct sockaddr *)&to,
                   sizeof to) >= 0 ||
            errno != ECONNREFUSED)
            return;
}

void moert_beacon_send(moert_beacon *beacon, const void *data, size_t bytes) {
    datagram message = {.key = beacon->key, .host = beacon->me};
    memcpy(message.data, data, bytes);
    for (size_t h = 0; h < beacon->hosts; h++) {
        const moert_beacon_address *place = &beacon->places[h];
        if (h == beacon->me || place->port == 0)
            continue;
        for (size_t i = 0; i < MOERT_BEACON_ADDRESSES && place->addresses[i] != 0; i++)
            send_to(beacon, place->addresses[i], place->port, &message,
                    offsetof(datagram, data) + bytes);
    }
}

bool moert_beacon_receive(moert_beacon *beacon, size_t *host, void *data, size_t bytes) {
    for (;;) {
        datagram message;
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        ssize_t got =
            recvfrom(beacon->socket, &message, sizeof message, 0, (struct sockaddr *)&from, &size);
        if (got < 0 && errno != EINTR && errno != ECONNREFUSED)
            return false;
        if (got != (ssize_t)(offsetof(datagram, data) + bytes) || message.key != beacon->key ||
            message.host >= beacon->hosts || message.host == beacon->me)
            continue;
        /* from now on send to this host only at the address of this datagram */
        moert_beacon_address *place = &beacon->places[message.host];
        contact *known = &beacon->contacts[message.host];
        *place = (moert_beacon_address){
            .key = place->key, .addresses = {from.sin_addr.s_addr}, .port = from.sin_port};
        known->firewall |= known->refused;
        known->received++;
        *host = message.host;
        memcpy(data, message.data, bytes);
        return true;
    }
}

/* Takes the next refusal from the socket's error queue: *whom = the address that refused. See
 * ip(7), IP_RECVERR. */
static bool next_refusal(const moert_beacon *beacon, struct sockaddr_in *whom) {
    for (;;) {
        char control[512];
        struct msghdr message = {.msg_name = whom,
                                 .msg_namelen = sizeof *whom,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        if (recvmsg(beacon->socket, &message, MSG_ERRQUEUE) < 0)
            return false;
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
            struct sock_extended_err error;
            memcpy(&error, CMSG_DATA(at), sizeof error);
            if (at->cmsg_level == IPPROTO_IP && at->cmsg_type == IP_RECVERR &&
                error.ee_errno == ECONNREFUSED)
                return true;
        }
    }
}

bool moert_beacon_refused(moert_beacon *beacon, size_t *host) {
    struct sockaddr_in whom;
    while (next_refusal(beacon, &whom)) {
        for (size_t h = 0; h < beacon->hosts; h++) {
            const moert_beacon_address *place = &beacon->places[h];
            contact *known = &beacon->contacts[h];
            if (known->received == 0 || place->addresses[0] != whom.sin_addr.s_addr ||
                place->port != whom.sin_port)
                continue;
            known->refused = true;
            if (known->firewall || known->received < PROBATION)
                continue;
            *host = h;
            return true;
        }
    }
    return false;
}

void moert_beacon_close(moert_beacon *beacon) {
    if (beacon == NULL)
        return;
    if (beacon->socket >= 0)
        close(beacon->socket);
    MOERT_FREE(beacon->contacts, beacon->places, beacon);
}
