/* Implements a beacon as an unconnected socket, and keeps the addresses from which other hosts'
 * datagrams came. */
#include "comm/watchdog/beacon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"

/* A host that refuses datagrams is reported only if it has sent at least this many datagrams
 * before. If a datagram arrives after a refusal, the host is alive, and a firewall sent the
 * refusal. */
enum { PROBATION = 3 };

/* The content of a datagram; only the used bytes of `data` are sent. */
typedef struct datagram {
    uint64_t tag; /* SipHash of all fields that follow and of the used data */
    uint64_t host, sequence;
    unsigned char data[MOERT_BEACON_BYTES];
} datagram;

typedef struct contact {
    uint64_t sequence; /* sequence number of the host's last datagram; 0 before the first
                          datagram */
    unsigned received; /* datagrams */
    bool refused, firewall;
} contact;

struct moert_beacon {
    int socket;
    size_t me, hosts;
    moert_siphash_key key;
    uint64_t sent, dropped, next_warning; /* datagrams */
    moert_beacon_address *places;         /* [hosts] */
    contact *contacts;                    /* [hosts] */
};

/* Whether an item of Open MPI's if_include, "eth0" or "10.0.0.0/24", names the interface. */
static bool item_includes(const char *item, const char *name, uint32_t address) {
    char network[INET_ADDRSTRLEN];
    const char *slash = strchr(item, '/');
    struct in_addr wanted;
    if (slash == NULL || (size_t)(slash - item) >= sizeof network)
        return strcmp(item, name) == 0;
    memcpy(network, item, (size_t)(slash - item));
    network[slash - item] = '\0';
    const long bits = strtol(slash + 1, NULL, 10);
    const uint32_t mask = bits <= 0 ? 0 : htonl(UINT32_MAX << (32 - moert_min(bits, 32)));
    return inet_pton(AF_INET, network, &wanted) == 1 && ((wanted.s_addr ^ address) & mask) == 0;
}

/* Whether the job's messages use the interface: OMPI_MCA_btl_tcp_if_include names it, or is not
 * set. launch/train sets that variable if all hosts share a network. */
static bool is_included(const char *name, uint32_t address) {
    const char *list = getenv("OMPI_MCA_btl_tcp_if_include");
    char items[256], *rest = items;
    if (list == NULL || strlen(list) >= sizeof items)
        return true;
    strcpy(items, list);
    for (const char *item; (item = strsep(&rest, ",")) != NULL;)
        if (item_includes(item, name, address))
            return true;
    return false;
}

/* Lists the IPv4 addresses of interfaces that are up, except loopback; at most as many as fit. If
 * `included`, lists only the addresses that the job's messages use. Returns their number. */
static size_t select_addresses(const struct ifaddrs *list, bool included,
                               uint32_t addresses[MOERT_BEACON_ADDRESSES]) {
    size_t count = 0;
    for (const struct ifaddrs *at = list; at != NULL && count < MOERT_BEACON_ADDRESSES;
         at = at->ifa_next) {
        struct sockaddr_in address;
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET ||
            (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        memcpy(&address, at->ifa_addr, sizeof address);
        if (!included || is_included(at->ifa_name, address.sin_addr.s_addr))
            addresses[count++] = address.sin_addr.s_addr;
    }
    return count;
}

static moert_status list_addresses(uint32_t addresses[MOERT_BEACON_ADDRESSES], size_t *count) {
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return MOERT_FAIL(ERROR_COMM, "cannot list the network's addresses: %s", strerror(errno));
    *count = select_addresses(list, true, addresses);
    if (*count == 0)
        *count = select_addresses(list, false, addresses);
    freeifaddrs(list);
    return MOERT_OK;
}

/* A host with one address receives only at this address. A host with several addresses receives at
 * all of its addresses, since another host may reach only one of them. */
static moert_status open_socket(moert_beacon *beacon, moert_beacon_address *place) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t size = sizeof own;
    size_t count = 0;
    int on = 1;
    MOERT_TRY(list_addresses(place->addresses, &count));
    if (count == 1)
        own.sin_addr.s_addr = place->addresses[0];
    beacon->socket = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (beacon->socket < 0 || bind(beacon->socket, (struct sockaddr *)&own, sizeof own) != 0 ||
        getsockname(beacon->socket, (struct sockaddr *)&own, &size) != 0 ||
        setsockopt(beacon->socket, IPPROTO_IP, IP_RECVERR, &on, sizeof on) != 0)
        return MOERT_FAIL(ERROR_COMM, "cannot open a socket: %s", strerror(errno));
    place->port = own.sin_port;
    return MOERT_OK;
}

moert_status moert_beacon_draw_key(moert_siphash_key *key) {
    if (getrandom(key, sizeof *key, 0) != (ssize_t)sizeof *key)
        return MOERT_FAIL(ERROR_COMM, "cannot draw a random key: %s", strerror(errno));
    return MOERT_OK;
}

moert_status moert_beacon_open(size_t me, size_t hosts, moert_beacon **out,
                               moert_beacon_address *place) {
    moert_status status;
    moert_beacon *beacon;
    moert_beacon_address found = {0};
    MOERT_TRY(MOERT_NEW(&beacon));
    *beacon = (moert_beacon){.socket = -1, .me = me, .hosts = hosts, .next_warning = 1};
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

void moert_beacon_aim(moert_beacon *beacon, const moert_siphash_key *key,
                      const moert_beacon_address *places) {
    memcpy(beacon->places, places, beacon->hosts * sizeof *places);
    beacon->key = *key;
}

/* The tag of a datagram with `bytes` bytes of data. */
static uint64_t tag_of(const moert_beacon *beacon, const datagram *message, size_t bytes) {
    return moert_siphash(&beacon->key, &message->host,
                         offsetof(datagram, data) - offsetof(datagram, host) + bytes);
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
    datagram message = {.host = beacon->me, .sequence = ++beacon->sent};
    memcpy(message.data, data, bytes);
    message.tag = tag_of(beacon, &message, bytes);
    for (size_t h = 0; h < beacon->hosts; h++) {
        const moert_beacon_address *place = &beacon->places[h];
        if (h == beacon->me || place->port == 0)
            continue;
        for (size_t i = 0; i < MOERT_BEACON_ADDRESSES && place->addresses[i] != 0; i++)
            send_to(beacon, place->addresses[i], place->port, &message,
                    offsetof(datagram, data) + bytes);
    }
}

static void drop(moert_beacon *beacon, const struct sockaddr_in *from) {
    char address[INET_ADDRSTRLEN] = "";
    if (++beacon->dropped < beacon->next_warning)
        return;
    beacon->next_warning *= 10;
    inet_ntop(AF_INET, &from->sin_addr, address, sizeof address);
    MOERT_WARN(
        "the watchdog dropped %llu datagram(s), which came from other jobs or arrived twice; "
        "the last dropped datagram is from %s",
        (unsigned long long)beacon->dropped, address);
}

/* Whether a datagram is new and from another host of the job. Drops and counts other datagrams. A
 * host that still sends to several addresses repeats its last datagram, so a repeated datagram is
 * dropped but not counted. */
static bool is_new(moert_beacon *beacon, const datagram *message, bool whole, size_t bytes,
                   const struct sockaddr_in *from) {
    const bool authentic = whole && message->tag == tag_of(beacon, message, bytes) &&
                           message->host < beacon->hosts && message->host != beacon->me;
    const uint64_t last = authentic ? beacon->contacts[message->host].sequence : 0;
    if (!authentic || message->sequence < last)
        drop(beacon, from);
    return authentic && message->sequence > last;
}

bool moert_beacon_receive(moert_beacon *beacon, size_t *host, void *data, size_t bytes) {
    for (;;) {
        datagram message;
        struct sockaddr_in from = {0};
        socklen_t size = sizeof from;
        ssize_t got = recvfrom(beacon->socket, &message, sizeof message, MSG_TRUNC,
                               (struct sockaddr *)&from, &size);
        if (got < 0 && errno != EINTR && errno != ECONNREFUSED)
            return false;
        const bool whole = got == (ssize_t)(offsetof(datagram, data) + bytes);
        if (got < 0 || !is_new(beacon, &message, whole, bytes, &from))
            continue;
        /* from now on datagrams for the sending host go only to the address from which this
         * datagram came */
        contact *known = &beacon->contacts[message.host];
        beacon->places[message.host] =
            (moert_beacon_address){.addresses = {from.sin_addr.s_addr}, .port = from.sin_port};
        known->sequence = message.sequence;
        known->firewall |= known->refused;
        known->received++;
        *host = message.host;
        memcpy(data, message.data, bytes);
        return true;
    }
}

uint64_t moert_beacon_dropped(const moert_beacon *beacon) {
    return beacon->dropped;
}

/* Takes the next refusal from the socket's error queue: *whom = the address that refused. See
 * ip(7), IP_RECVERR. */
static bool next_refusal(const moert_beacon *beacon, struct sockaddr_in *whom) {
    for (;;) {
        /* `first` receives a byte of the datagram: with an empty buffer QEMU's recvmsg returns
         * early */
        char control[512], first;
        struct msghdr message = {.msg_name = whom,
                                 .msg_namelen = sizeof *whom,
                                 .msg_iov = &(struct iovec){&first, sizeof first},
                                 .msg_iovlen = 1,
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
