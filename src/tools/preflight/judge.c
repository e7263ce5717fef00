/* Finds the ranks of a job that differ or are slow. Uses no device and no MPI. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "tools/preflight/preflight.h"

enum {
    WHO_BYTES = 256,
    TEXT_BYTES = 3 * WHO_BYTES + 2 * MOERT_PREFLIGHT_TEXT_BYTES,
    /* bytes that /dev/shm must have free for a rank: more than MPI libraries allocate there */
    SHM_BYTES_A_RANK = 16 << 20,
    MEMORY_BYTES_A_RANK = 1 << 30,
};
#define MOST_SKEW_S    0.5
#define LATENCY_FACTOR 4.0
#define LATENCY_US     50.0 /* delay that a busy CPU core may add to a message */

/* The findings so far, and scratch arrays with one value per rank. */
typedef struct judge {
    moert_preflight *all;
    double slow;
    json_t *findings;
    bool *odd;      /* [R] whether the next finding is about the rank */
    double *values; /* [R] */
    double *sorted; /* [R] scratch of median() */
    moert_status status;
} judge;

/* ---- words ---- */

static void add(judge *j, bool wrong, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void add(judge *j, bool wrong, const char *hint, const char *format, ...) {
    char text[WHO_BYTES + TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    json_t *row = json_pack("{sb ss ss}", "wrong", wrong, "text", text, "hint", hint);
    if (json_array_append_new(j->findings, row) != 0 && j->status == MOERT_OK)
        j->status = MOERT_FAIL(ERROR_MEMORY, "no room for the findings");
}

/* Returns the number of a node's odd ranks (those with judge.odd). *ranks = the number of all ranks
 * of the node. */
static size_t count_odd(const judge *j, size_t node, size_t *ranks) {
    size_t odd = 0;
    *ranks = 0;
    for (size_t r = 0; r < j->all->ranks; r++)
        if (j->all->rank[r].node == node) {
            odd += j->odd[r];
            ++*ranks;
        }
    return odd;
}

static bool is_first_of_node(const judge *j, size_t rank) {
    for (size_t r = 0; r < rank; r++)
        if (j->all->rank[r].node == j->all->rank[rank].node)
            return false;
    return true;
}

/* Writes the names of the odd ranks, such as "node2, rank 5 (node3)". A node whose ranks are all
 * odd is named by its host only. Truncates at the end of `who`. Returns false if no rank is odd. */
static bool name_odd(const judge *j, char who[WHO_BYTES]) {
    size_t used = 0, of_node;
    bool any = false;
    who[0] = '\0';
    for (size_t r = 0; r < j->all->ranks && used < WHO_BYTES; r++) {
        const moert_preflight_rank *rank = &j->all->rank[r];
        const char *comma = used > 0 ? ", " : "";
        const bool whole = count_odd(j, rank->node, &of_node) == of_node && of_node < j->all->ranks;
        any = any || j->odd[r];
        if (!j->odd[r] || (whole && !is_first_of_node(j, r)))
            continue;
        used += (size_t)(whole ? snprintf(who + used, WHO_BYTES - used, "%s%s", comma, rank->host)
                               : snprintf(who + used, WHO_BYTES - used, "%srank %zu (%s)", comma, r,
                                          rank->host));
    }
    return any;
}

/* Adds a finding about the odd ranks, if there are any: the ranks' names, then the text. */
static void tell_odd(judge *j, bool wrong, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void tell_odd(judge *j, bool wrong, const char *hint, const char *format, ...) {
    char who[WHO_BYTES], text[TEXT_BYTES];
    va_list arguments;
    if (!name_odd(j, who))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    add(j, wrong, hint, "%s: %s", who, text);
}

/* ---- texts ---- */

/* The most common value of the text at `offset` in moert_preflight_rank. If several values are
 * equally common, takes the value of the lowest rank. */
static const char *most_common(const moert_preflight *all, size_t offset) {
    const char *best = NULL;
    size_t most = 0;
    for (size_t r = 0; r < all->ranks; r++) {
        const char *mine = (const char *)&all->rank[r] + offset;
        size_t same = 0;
        for (size_t other = 0; other < all->ranks; other++)
            same += strcmp(mine, (const char *)&all->rank[other] + offset) == 0;
        if (same > most) {
            most = same;
            best = mine;
        }
    }
    return best;
}

/* For each uncommon value of a text, adds one finding about all ranks that have this value. */
static void judge_text(judge *j, size_t offset, const char *differs, const char *hint) {
    const char *common = most_common(j->all, offset);
    const size_t ranks = j->all->ranks;
    for (size_t r = 0; r < ranks; r++) {
        const char *value = (const char *)&j->all->rank[r] + offset;
        bool done = strcmp(value, common) == 0;
        for (size_t other = 0; other < ranks; other++) {
            j->odd[other] = strcmp(value, (const char *)&j->all->rank[other] + offset) == 0;
            done = done || (other < r && j->odd[other]);
        }
        if (done)
            continue;
        tell_odd(j, true, hint, "%s: %s; the others: %s", differs,
                 value[0] != '\0' ? value : "none", common[0] != '\0' ? common : "none");
    }
}

/* ---- rates ---- */

/* The median of the values above 0. For an even number of values, the larger or the smaller of the
 * two middle values. 0 if no value is above 0. */
static double median(const judge *j, const double *values, bool larger) {
    size_t count = 0;
    for (size_t r = 0; r < j->all->ranks; r++)
        if (values[r] > 0.0)
            j->sorted[count++] = values[r];
    moert_sort_numbers(j->sorted, count);
    return count > 0 ? j->sorted[larger ? count / 2 : (count - 1) / 2] : 0.0;
}

/* Marks the ranks whose value is below `slow` times `reference` as odd. Returns the mean value of
 * the slow ranks divided by `reference`, or 0 if no rank is slow. */
static double find_slow(judge *j, double reference) {
    double sum = 0.0;
    size_t count = 0;
    for (size_t r = 0; r < j->all->ranks; r++) {
        j->odd[r] = j->values[r] > 0.0 && j->values[r] < j->slow * reference;
        sum += j->odd[r] ? j->values[r] / reference : 0.0;
        count += j->odd[r];
    }
    return count > 0 ? sum / (double)count : 0.0;
}

/* Copies the double at `offset` in each moert_preflight_rank to values[R]. */
static void take_values(judge *j, size_t offset) {
    for (size_t r = 0; r < j->all->ranks; r++)
        memcpy(&j->values[r], (const char *)&j->all->rank[r] + offset, sizeof *j->values);
}

/* Adds a finding about the ranks whose rate (the double at `offset`) is slow. Returns the median
 * rate. */
static double judge_rate(judge *j, size_t offset, const char *what, const char *unit,
                         const char *hint) {
    take_values(j, offset);
    const double reference = median(j, j->values, true), fraction = find_slow(j, reference);
    tell_odd(j, true, hint, "slow: %.2f of the median %s (%.3g of %.3g %s)", fraction, what,
             fraction * reference, reference, unit);
    return reference;
}

static void judge_results(judge *j) {
    size_t runs = 0, wrong = 0;
    for (size_t r = 0; r < j->all->ranks; r++) {
        const moert_preflight_rank *rank = &j->all->rank[r];
        j->odd[r] = rank->wrong_runs > 0;
        if (rank->wrong_runs > wrong) {
            wrong = rank->wrong_runs;
            runs = rank->runs;
        }
    }
    tell_odd(j, true, "the device or memory is faulty; leave the host out",
             "computes wrongly: %zu of %zu equal GEMMs have other bits", wrong, runs);
}

static void judge_rates(judge *j) {
    judge_rate(j, offsetof(moert_preflight_rank, rates.gemm_gflops), "GEMM rate", "GFLOP/s",
               "look there for other programs, a low power limit or clock, fewer threads");
    judge_rate(j, offsetof(moert_preflight_rank, rates.copy_gbps), "copy rate", "GB/s",
               "look there for other programs, or memory of another NUMA node");
}

/* ---- links ---- */

static bool is_inside(const judge *j, size_t a, size_t b) {
    return j->all->rank[a].node == j->all->rank[b].node;
}

/* The median latency or bandwidth between rank `r` and other ranks: those of its node if `inside`,
 * otherwise those of other nodes. */
static double typical(judge *j, size_t r, bool inside, bool latency) {
    const size_t ranks = j->all->ranks;
    for (size_t other = 0; other < ranks; other++) {
        const moert_link *link = &j->all->links[r * ranks + other];
        const double value = latency ? link->us : link->gbps;
        j->values[other] = is_inside(j, r, other) == inside ? value : 0.0;
    }
    return median(j, j->values, !latency);
}

/* Adds a finding for each slow link between two ranks that are not slow themselves. */
static void judge_pairs(judge *j, bool inside, double reference, const char *hint) {
    const moert_preflight *all = j->all;
    for (size_t a = 0; a < all->ranks; a++)
        for (size_t b = a + 1; b < all->ranks; b++) {
            const double gbps = all->links[a * all->ranks + b].gbps;
            if (is_inside(j, a, b) == inside && !j->odd[a] && !j->odd[b] && gbps > 0.0 &&
                gbps < j->slow * reference)
                add(j, true, hint,
                    "the link of ranks %zu and %zu (%s, %s): slow: %.2f of the median bandwidth "
                    "(%.3g of %.3g GB/s)",
                    a, b, all->rank[a].host, all->rank[b].host, gbps / reference, gbps, reference);
        }
}

static void judge_latency(judge *j, bool inside, const char *hint) {
    double worst = 0.0;
    take_values(j, inside ? offsetof(moert_preflight_rank, inside_us)
                          : offsetof(moert_preflight_rank, between_us));
    const double reference = median(j, j->values, false);
    for (size_t r = 0; r < j->all->ranks; r++) {
        j->odd[r] = j->values[r] > LATENCY_FACTOR * reference + LATENCY_US;
        worst = j->odd[r] ? fmax(worst, j->values[r]) : worst;
    }
    tell_odd(j, true, hint, "late: a small message %s takes %.0f us, the median is %.0f us",
             inside ? "inside of the node" : "between nodes", worst, reference);
}

static void judge_links(judge *j, bool inside) {
    const char *hint = inside ? "look there for other programs, or more ranks than cores"
                              : "look there for a link at a lower speed, a bad cable or port, or "
                                "messages over another network (btl_tcp_if_include)";
    const double reference = judge_rate(
        j,
        inside ? offsetof(moert_preflight_rank, inside) : offsetof(moert_preflight_rank, between),
        inside ? "bandwidth inside of a node" : "bandwidth to the other nodes", "GB/s", hint);
    judge_pairs(j, inside, reference, hint);
    judge_latency(j, inside, hint);
}

/* ---- hosts ---- */

static void judge_clocks(judge *j) {
    double worst = 0.0;
    for (size_t r = 0; r < j->all->ranks; r++) {
        const double skew = j->all->rank[r].skew_s;
        j->odd[r] = fabs(skew) > MOST_SKEW_S;
        worst = fabs(skew) > fabs(worst) ? skew : worst;
    }
    tell_odd(j, true, "let chrony or another NTP client set the clocks",
             "the clock is %.1f s %s rank 0's", fabs(worst), worst > 0.0 ? "ahead of" : "behind");
}

/* Compares a host's free memory, or free space in /dev/shm, with the needs of all its ranks. */
static void judge_room(judge *j, bool shm) {
    const size_t need = shm ? SHM_BYTES_A_RANK : MEMORY_BYTES_A_RANK;
    size_t of_node, least = SIZE_MAX;
    for (size_t r = 0; r < j->all->ranks; r++) {
        const moert_preflight_rank *rank = &j->all->rank[r];
        const size_t room = shm ? rank->shm_bytes : rank->memory_bytes;
        count_odd(j, rank->node, &of_node);
        j->odd[r] = room < of_node * need;
        least = j->odd[r] ? moert_min(least, room) : least;
    }
    tell_odd(j, true,
             shm ? "delete files there, or give the container more (docker run --shm-size)"
                 : "end other programs there, or use fewer ranks a host",
             "only %zu MiB %s; each rank of the host needs at least %zu MiB", least >> 20,
             shm ? "free in /dev/shm" : "of memory available", need >> 20);
}

static void judge_watchdog(judge *j) {
    if (j->all->rank[0].timeout_s == 0) {
        add(j, false, "set MOERT_TIMEOUT_S",
            "the watchdog is off: a lost rank leaves the others "
            "waiting");
        return;
    }
    for (size_t r = 0; r < j->all->ranks; r++)
        j->odd[r] = !j->all->rank[r].watched;
    tell_odd(j, true, "ranks of a host must share its memory: one container, one user",
             "the watchdog does not reach the ranks of this host");
}

static void judge_placement(judge *j) {
    const moert_preflight_rank *rank = j->all->rank;
    size_t first, here;
    for (size_t r = 0; r < j->all->ranks; r++)
        j->odd[r] = rank[r].shared;
    tell_odd(j, false, "use as many ranks a host as it has cores, or fewer",
             "cores are shared with other ranks");
    count_odd(j, rank[0].node, &first);
    for (size_t r = 0; r < j->all->ranks; r++) {
        count_odd(j, rank[r].node, &here);
        if (here != first && is_first_of_node(j, r))
            add(j, false, "equal numbers keep all hosts equally busy",
                "%s has %zu ranks, %s has %zu", rank[r].host, here, rank[0].host, first);
    }
}

static void judge_all(judge *j) {
#define JUDGE_TEXT(field, differs, hint)                                                           \
    judge_text(j, offsetof(moert_preflight_rank, field), differs, hint);
    MOERT_PREFLIGHT_TEXTS(JUDGE_TEXT)
#undef JUDGE_TEXT
    judge_watchdog(j);
    judge_clocks(j);
    judge_room(j, true);
    judge_room(j, false);
    judge_results(j);
    judge_rates(j);
    judge_links(j, true);
    judge_links(j, false);
    judge_placement(j);
}

moert_status moert_preflight_judge(moert_preflight *all, double slow, json_t **findings) {
    judge j = {.all = all, .slow = slow, .findings = json_array(), .status = MOERT_OK};
    moert_status status;
    if (j.findings == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the findings");
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&j.odd, all->ranks));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&j.values, all->ranks));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&j.sorted, all->ranks));
    for (size_t r = 0; r < all->ranks; r++) {
        moert_preflight_rank *rank = &all->rank[r];
        rank->inside = typical(&j, r, true, false);
        rank->inside_us = typical(&j, r, true, true);
        rank->between = typical(&j, r, false, false);
        rank->between_us = typical(&j, r, false, true);
    }
    judge_all(&j);
    status = j.status;
done:
    MOERT_FREE(j.sorted, j.values, j.odd);
    if (status == MOERT_OK)
        *findings = j.findings;
    else
        json_decref(j.findings);
    return status;
}
