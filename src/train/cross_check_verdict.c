/* Runs a check: compares hashes, finds the wrong ranks, and names them in a message. */
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "train/cross_check.h"

/* ---- verdicts ---- */

typedef struct text_of_ranks {
    char text[512];
} text_of_ranks;

/* Writes "1 on node1", "1 on node1 and 2 on node2", ... */
static const char *name_ranks(const moert_cross_check *check, const size_t *ranks, size_t count,
                              text_of_ranks *text) {
    size_t used = 0;
    text->text[0] = '\0';
    for (size_t i = 0; i < count && used < sizeof text->text; i++)
        used += (size_t)snprintf(text->text + used, sizeof text->text - used, "%s%zu on %s",
                                 i == 0          ? ""
                                 : i + 1 < count ? ", "
                                                 : " and ",
                                 ranks[i], moert_comm_host(check->world, ranks[i]));
    return text->text;
}

#define FAULTY "the device or memory is faulty; nothing of the step is saved"

/* The error message about a single wrong rank. */
static moert_status complain_of_one(const moert_cross_check *check, const moert_check_verdict *v) {
    const unsigned long long step = check->step;
    text_of_ranks others;
    if (v->kind == MOERT_AUDIT_RESTS)
        return MOERT_FAIL(ERROR_HARDWARE,
                          "wrong bits at step %llu in %s: the bits have changed in the memory of "
                          "this rank; " FAULTY,
                          step, v->what);
    if (v->right_count == 0)
        return MOERT_FAIL(ERROR_HARDWARE,
                          "wrong bits at step %llu in %s: the bits differ when this rank "
                          "computes them again; " FAULTY,
                          step, v->what);
    return MOERT_FAIL(
        ERROR_HARDWARE,
        "wrong bits at step %llu in %s: the bits differ from those of rank%s %s; " FAULTY, step,
        v->what, v->right_count > 1 ? "s" : "",
        name_ranks(check, v->right, v->right_count, &others));
}

/* The error message of the first rank that may be wrong. moert_comm_agree() puts the rank's number
 * before this message. launch/train leaves out the rank's host only if the message has the words
 * "wrong bits". */
static moert_status complain(const moert_cross_check *check, const moert_check_verdict *v) {
    const unsigned long long step = check->step;
    text_of_ranks others;
    if (v->kind == MOERT_AUDIT_TRAVELS)
        return MOERT_FAIL(ERROR_HARDWARE,
                          "the bits of this rank at step %llu in %s differ when they are sent "
                          "again; this rank, a sender (%s) or the network between them is faulty; "
                          "nothing of the step is saved",
                          step, v->what,
                          name_ranks(check, v->wrong + 1, v->wrong_count - 1, &others));
    if (v->wrong_count == 1)
        return complain_of_one(check, v);
    return MOERT_FAIL(
        ERROR_HARDWARE,
        "the bits of this rank at step %llu in %s differ from those of rank%s %s; the device or "
        "memory of one of these ranks is faulty%s; nothing of the step is saved",
        step, v->what, v->wrong_count > 2 ? "s" : "",
        name_ranks(check, v->wrong + 1, v->wrong_count - 1, &others),
        v->wrong_count > 2 ? "" : " (a third rank with the same work would show which)");
}

void moert_check_judge(const size_t rank[3], const uint64_t value[3], bool third,
                       moert_check_verdict *v) {
    const bool alone = rank[0] == rank[1];
    v->wrong_count = v->right_count = 0;
    size_t odd = 3;
    if (third && value[0] == value[2])
        odd = 1;
    else if (third && value[1] == value[2])
        odd = 0;
    for (size_t i = 0; i < (third ? 3 : alone ? 1 : 2); i++) {
        const bool wrong = alone || odd == 3 || i == odd;
        if (wrong)
            v->wrong[v->wrong_count++] = rank[i];
        else
            v->right[v->right_count++] = rank[i];
    }
}

/* ---- the comparison ---- */

enum { MOST_REPEATS = 2 };

/* The hashes of a site: tables [R, count] of the work of all ranks, one for the own work and one
 * for each repetition. */
typedef struct comparison {
    moert_cross_check *check;
    const moert_check_site *site;
    size_t count, ranks;
    uint64_t *table[1 + MOST_REPEATS];
} comparison;

/* Gathers table[distance] of all ranks' hashes: of each rank's own work if `distance` is 0,
 * otherwise of the work that each rank repeats at this distance. This rank's hashes are stored
 * after the table. */
static moert_status gather(comparison *c, size_t distance) {
    moert_cross_check *check = c->check;
    uint64_t **table = &c->table[distance];
    MOERT_TRY(moert_comm_agree(check->world, MOERT_NEW_ARRAY(table, (c->ranks + 1) * c->count)));
    uint64_t *mine = *table + c->ranks * c->count;
    MOERT_TRY(distance == 0 ? c->site->own(check, mine) : c->site->repeat(check, distance, mine));
    return moert_comm_allgather(check->world, mine, c->count * sizeof *mine, *table);
}

/* The hash `index` of a rank's work, as repeated at a distance (0: as the rank computed it). *by =
 * the rank that computed the hash. */
static uint64_t hash_at(const comparison *c, size_t rank, size_t index, size_t distance,
                        size_t *by) {
    *by = distance == 0 ? rank
                        : moert_audit_repeater(c->check->audit, c->site->class(c->check, index),
                                               rank, distance);
    return c->table[distance][*by * c->count + index];
}

/* Finds the first difference, in the order in which the hashes are computed. */
static bool find(const comparison *c, size_t *rank, size_t *index) {
    size_t by;
    for (*index = 0; *index < c->count; ++*index)
        for (*rank = 0; *rank < c->ranks; ++*rank)
            if (c->site->compares(c->check, *rank, *index) &&
                hash_at(c, *rank, *index, 0, &by) != hash_at(c, *rank, *index, 1, &by))
                return true;
    return false;
}

/* Blames a rank that received wrong rows. The rank may be wrong, or a sender of its rows, or the
 * network. */
static void blame_travel(const comparison *c, size_t rank, size_t index, moert_check_verdict *v) {
    const bool from_all = c->site->class(c->check, index) == MOERT_AUDIT_EVERYONE;
    v->wrong[v->wrong_count++] = rank;
    for (size_t r = 0; r < c->ranks && v->wrong_count < MOERT_CHECK_NAMES; r++)
        if (r != rank && (from_all || moert_audit_exchange(c->check->audit, rank, r)))
            v->wrong[v->wrong_count++] = r;
}

/* Decides which rank is wrong about a difference, by the hash of a second repeater, if there are
 * enough ranks. */
static moert_status judge(comparison *c, size_t rank, size_t index, moert_check_verdict *verdict) {
    const moert_audit *audit = c->check->audit;
    const moert_audit_class class = c->site->class(c->check, index);
    const bool third = moert_audit_peers(audit, class, rank) > MOST_REPEATS;
    uint64_t value[1 + MOST_REPEATS] = {0};
    size_t by[1 + MOST_REPEATS] = {0};
    if (third)
        MOERT_TRY(gather(c, MOST_REPEATS));
    for (size_t distance = 0; distance < (third ? 3 : 2); distance++)
        value[distance] = hash_at(c, rank, index, distance, &by[distance]);
    moert_check_judge(by, value, third, verdict);
    return MOERT_OK;
}

/* Reports the ranks that may be wrong. Returns an error or, with --on-mismatch warn, only warns. */
static moert_status decide(comparison *c, size_t rank, size_t index) {
    moert_cross_check *check = c->check;
    moert_check_verdict verdict = {.kind = c->site->kind != NULL ? c->site->kind(check, index)
                                                                 : MOERT_AUDIT_COMPUTES};
    if (verdict.kind == MOERT_AUDIT_TRAVELS && c->ranks > 1)
        blame_travel(c, rank, index, &verdict);
    else
        MOERT_TRY(judge(c, rank, index, &verdict));
    if (c->ranks == 1 && verdict.kind == MOERT_AUDIT_TRAVELS)
        verdict.kind = MOERT_AUDIT_COMPUTES;
    c->site->describe(check, rank, index, verdict.what, sizeof verdict.what);
    MOERT_TRY(moert_comm_broadcast(check->world, rank, verdict.what, sizeof verdict.what));
    const bool wrong = moert_comm_rank(check->world) == verdict.wrong[0];
    const moert_status status =
        moert_comm_agree(check->world, wrong ? complain(check, &verdict) : MOERT_OK);
    if (status != MOERT_ERROR_HARDWARE || check->options->on_mismatch != MOERT_MISMATCH_WARN)
        return status;
    check->times.mismatches++;
    if (moert_comm_rank(check->world) == 0)
        MOERT_WARN("%s", moert_last_error());
    return MOERT_OK;
}

moert_status moert_check_run(moert_cross_check *check, const moert_check_site *site) {
    comparison c = {.check = check,
                    .site = site,
                    .count = site->count(check),
                    .ranks = moert_comm_size(check->world)};
    size_t rank, index;
    moert_status status;
    MOERT_TRY_OR(done, gather(&c, 0));
    MOERT_TRY_OR(done, gather(&c, 1));
    if (find(&c, &rank, &index))
        status = decide(&c, rank, index);
done:
    MOERT_FREE(c.table[0], c.table[1], c.table[2]);
    return status;
}
