/* What a cross-check chooses, and how it judges and names ranks whose bits differ. */
#include <stdio.h>

#include "base/rng.h"
#include "train/cross_check_internal.h"

uint64_t moert_check_random(const moert_cross_check *check, uint64_t what, uint64_t rank,
                            uint64_t below) {
    const moert_random random = moert_rng_block(check->options.seed ^ moert_rng_stream("verify"),
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

moert_status moert_check_fail(const moert_cross_check *check, const moert_check_verdict *v) {
    const bool wrong = moert_comm_rank(check->world) == v->wrong[0];
    return moert_comm_agree(check->world, wrong ? complain(check, v) : MOERT_OK);
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
