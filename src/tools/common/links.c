/* Measures latency and bandwidth between pairs of ranks. */
#include "tools/common/links.h"

#include <math.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"

enum {
    SMALL_BYTES = 8,
    SMALL_CALLS = 16, /* messages in one sample of the latency */
    LEAST_BYTES = 64 << 10,
    MOST_BYTES = 16 << 20,
    SAMPLES = 5,
    /* number of samples among which a round's time is divided, approximately */
    SAMPLES_OF_A_PAIR = 12,
};

/* This rank and its partner. If this rank has no partner in this round, a communicator of one
 * rank. */
typedef struct pair {
    moert_comm *comm;
    unsigned char *send, *receive; /* [MOST_BYTES] */
    double most_s; /* approximate limit of the time that a sample of large messages takes */
} pair;

size_t moert_links_rounds(size_t count) {
    return count < 2 ? 0 : count - 1 + count % 2;
}

/* The circle method for tournaments: if the count is even, the last player is fixed and the others
 * rotate. */
size_t moert_links_partner(size_t count, size_t round, size_t i) {
    const size_t rotating = count - 1 + count % 2;
    /* the fixed player plays against the player that the rotation pairs with itself */
    if (i == rotating) {
        for (size_t other = 0; other < rotating; other++)
            if (2 * other % rotating == round)
                return other;
    }
    const size_t partner = (round + rotating - i) % rotating;
    return partner != i ? partner : rotating;
}

/* *seconds = mean time of one of `calls` exchanges of `bytes` in each direction, on the slower of
 * the two ranks. */
static moert_status take(const pair *p, size_t bytes, size_t calls, double *seconds) {
    const size_t me = moert_comm_rank(p->comm);
    size_t rows[2] = {bytes, bytes};
    double both[2];
    rows[me] = 0;
    MOERT_TRY(moert_comm_barrier(p->comm));
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < calls; i++)
        MOERT_TRY(moert_comm_alltoallv(p->comm, p->send, rows, p->receive, rows, 1));
    const double mine = (double)(moert_clock_ns() - start) * 1e-9 / (double)calls;
    MOERT_TRY(moert_comm_allgather(p->comm, &mine, sizeof mine, both));
    *seconds = fmax(both[0], both[1]);
    return MOERT_OK;
}

/* Takes the minimum of SAMPLES samples, since disturbances only make samples slower. */
static moert_status take_best(const pair *p, size_t bytes, size_t calls, double *best) {
    double seconds;
    *best = INFINITY;
    for (int i = 0; i < SAMPLES; i++) {
        MOERT_TRY(take(p, bytes, calls, &seconds));
        *best = fmin(*best, seconds);
    }
    return MOERT_OK;
}

static moert_status measure_pair(const pair *p, moert_link *link) {
    double seconds;
    size_t bytes = LEAST_BYTES;
    if (moert_comm_size(p->comm) < 2)
        return MOERT_OK;
    MOERT_TRY(take(p, SMALL_BYTES, SMALL_CALLS, &seconds)); /* connects */
    MOERT_TRY(take_best(p, SMALL_BYTES, SMALL_CALLS, &seconds));
    link->us = seconds * 1e6;
    for (;; bytes *= 2) {
        MOERT_TRY(take(p, bytes, 1, &seconds));
        if (bytes >= MOST_BYTES || 2.0 * seconds > p->most_s)
            break;
    }
    MOERT_TRY(take_best(p, bytes, 1, &seconds));
    link->gbps = (double)bytes / seconds * 1e-9;
    return MOERT_OK;
}

/* One round: this rank measures with its partner, or waits if it has none. */
static moert_status run_round(moert_comm *comm, size_t round, pair *p, moert_link *links) {
    const size_t me = moert_comm_rank(comm), size = moert_comm_size(comm);
    const size_t other = moert_links_partner(size, round, me);
    moert_link link = {0.0, 0.0};
    MOERT_TRY(moert_comm_split(comm, other < size ? moert_min(me, other) : me, &p->comm));
    moert_status status = measure_pair(p, &link);
    moert_comm_destroy(p->comm);
    if (other < size)
        links[other] = link;
    return status;
}

moert_status moert_links_measure(moert_comm *comm, double seconds, moert_link *links) {
    const size_t size = moert_comm_size(comm), rounds = moert_links_rounds(size);
    pair p = {.most_s = seconds / (double)(moert_max(rounds, 1) * SAMPLES_OF_A_PAIR)};
    moert_phase_set(MOERT_PHASE_LINKS);
    for (size_t r = 0; r < size; r++)
        links[r] = (moert_link){0.0, 0.0};
    moert_status status = moert_alloc(&p.send, MOST_BYTES, 1);
    if (status == MOERT_OK)
        status = moert_alloc(&p.receive, MOST_BYTES, 1);
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    for (size_t round = 0; round < rounds; round++)
        MOERT_TRY_OR(done, run_round(comm, round, &p, links));
done:
    MOERT_FREE(p.receive, p.send);
    return status;
}
