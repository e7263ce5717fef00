/* The flow of a check: what it chooses, compares and judges, and how it names wrong ranks. */
#include <stdio.h>

#include "base/memory.h"
#include "base/rng.h"
#include "train/cross_check.h"

uint64_t moert_check_random(const moert_cross_check *check, uint64_t what, uint64_t rank,
                            uint64_t below) {
    const moert_random random = moert_rng_block(check->options->seed ^ moert_rng_stream("verify"),
                                                check->step, what << 32 | rank);
    return below > 0 ? ((uint64_t)random.word[0] << 32 | random.word[1]) % below : 0;
}

/* ---- verdicts ---- */

typedef struct text_of_ranks {
    char text[512];
} text_of_ranks;

/* "1 on node1", "1 on node1 and 2 on node2", ... */
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

/* The message of the first rank that may be wrong; an agreement puts its name before it. */
static moert_status complain(const moert_cross_check *check, const moert_check_verdict *v) {
    const unsigned long long step = check->step;
    const char *const plural = v->right_count > 1 ? "s" : "";
    text_of_ranks others;
    if (v->wrong_count > 1)
        return MOERT_FAIL(
            ERROR_HARDWARE,
            "its bits at step %llu in %s differ from those of rank%s %s; the device or "
            "memory of one of them is faulty%s; nothing of the step is saved",
            step, v->what, v->wrong_count > 2 ? "s" : "",
            name_ranks(check, v->wrong + 1, v->wrong_count - 1, &others),
            v->wrong_count > 2 ? "" : " (a third rank alike would show which)");
    if (v->right_count == 0)
        return MOERT_FAIL(ERROR_HARDWARE,
                          "wrong bits at step %llu in %s: they are others when computed again; the "
                          "device or memory is faulty; nothing of the step is saved",
                          step, v->what);
    return MOERT_FAIL(ERROR_HARDWARE,
                      "wrong bits at step %llu in %s: other than those of rank%s %s; the device or "
                      "memory is faulty; nothing of the step is saved",
                      step, v->what, plural, name_ranks(check, v->right, v->right_count, &others));
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

/* ---- the flow ---- */

enum { MOST_REPEATS = 2 };

/* A site under check: hashes [R, count] of all ranks, of their own work and of each repeat. */
typedef struct comparison {
    moert_cross_check *check;
    const moert_check_site *site;
    size_t count, ranks;
    uint64_t *table[1 + MOST_REPEATS];
} comparison;

/* Gathers table[distance]: 0, the own work; else, what ranks repeat at this distance. This rank's
 * hashes are behind those of all. */
static moert_status gather(comparison *c, size_t distance) {
    moert_cross_check *check = c->check;
    uint64_t **table = &c->table[distance];
    MOERT_TRY(moert_comm_agree(check->world, MOERT_NEW_ARRAY(table, (c->ranks + 1) * c->count)));
    uint64_t *mine = *table + c->ranks * c->count;
    MOERT_TRY(distance == 0 ? c->site->own(check, mine) : c->site->repeat(check, distance, mine));
    return moert_comm_allgather(check->world, mine, c->count * sizeof *mine, *table);
}

/* The hash `index` of a rank's work, as computed at a distance, and the rank that computed it. */
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

/* Decides about a difference, by a third rank if there is one. */
static moert_status decide(comparison *c, size_t rank, size_t index) {
    moert_cross_check *check = c->check;
    const moert_audit_class class = c->site->class(check, index);
    const bool third = moert_audit_peers(check->audit, class, rank) > MOST_REPEATS;
    moert_check_verdict verdict = {.wrong_count = 0};
    uint64_t value[1 + MOST_REPEATS] = {0};
    size_t by[1 + MOST_REPEATS] = {0};
    if (third)
        MOERT_TRY(gather(c, MOST_REPEATS));
    for (size_t distance = 0; distance < (third ? 3 : 2); distance++)
        value[distance] = hash_at(c, rank, index, distance, &by[distance]);
    moert_check_judge(by, value, third, &verdict);
    c->site->describe(check, rank, index, verdict.what, sizeof verdict.what);
    MOERT_TRY(moert_comm_broadcast(check->world, rank, verdict.what, sizeof verdict.what));
    const bool wrong = moert_comm_rank(check->world) == verdict.wrong[0];
    return moert_comm_agree(check->world, wrong ? complain(check, &verdict) : MOERT_OK);
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
