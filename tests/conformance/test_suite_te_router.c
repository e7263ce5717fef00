// run: check=1 night=1
/*
 * TransformerEngine's tables of the fused router: weights, map, gradient of the logits, and the
 * load-balancing loss with its gradient, within TransformerEngine's tolerances of float64.
 * TransformerEngine scores a group of experts by its topk/group_topk best experts. Cases with
 * groups have at least four experts per token.
 */
#include "support/layer/router.h"
#include "support/suite.h"
#include "support/test.h"

enum { MOST_EXPERTS = 1024, GRADIENTS = 24, GROUPS = 8, KEPT_GROUPS = 4 };

typedef struct row {
    size_t tokens, experts, topk;
    bool slow;
} row;

static const row rows[] = {
    {2048, 32, 1, false}, {2048, 32, 4, false},  {2048, 128, 8, false},  {7168, 128, 4, true},
    {7168, 32, 8, true},  {8992, 128, 8, true},  {14234, 64, 8, true},   {512, 256, 8, false},
    {2048, 256, 8, true}, {64, 1024, 32, false}, {2048, 1024, 32, true}, {8992, 1024, 8, true},
};
enum { ROWS = MOERT_COUNT(rows) };

static router_tolerance tolerance_of(size_t experts) {
    const double absolute = fmax(1e-5, 4e-7 * (double)experts);
    return (router_tolerance){absolute, absolute, absolute, fmax(1.3e-6, 4e-7 * (double)experts)};
}

/* Checks dlogits of some tokens by central differences, for the chosen experts and some others. */
static void check_backward(const router_input *input, const router_run *run) {
    const size_t experts = input->options.experts, topk = input->options.topk;
    const router_tolerance tolerance = tolerance_of(experts);
    for (size_t i = 0; i < GRADIENTS; i++) {
        const size_t t = i * input->tokens / GRADIENTS;
        for (size_t k = 0; k < topk + 16; k++) {
            const size_t e =
                k < topk ? (size_t)run->index[t * topk + k] : suite_bits(t, k) % experts;
            router_check_dlogit(input, run, t, e, tolerance.score, tolerance.relative);
        }
    }
}

static void check(const row *r, moert_score score, bool renormalise, bool grouped, float scale,
                  bool biased) {
    moert_router_options options = router_options(r->experts, r->topk, score);
    options.renormalise = renormalise;
    options.scale = scale;
    if (grouped)
        options = router_groups(options, GROUPS, KEPT_GROUPS, r->topk / KEPT_GROUPS);
    print_message("# %zu tokens, top %zu of %zu, score %d%s%s%s, scale %g\n", r->tokens, r->topk,
                  r->experts, (int)score, renormalise ? ", renormalised" : "",
                  grouped ? ", grouped" : "", biased ? ", biased" : "", (double)scale);
    router_input input = router_draw(options, r->tokens, 1.0, biased ? 0.1 : 0.0);
    router_draw_gradients(&input);
    input.aux = NULL;
    const router_run run = router_do(&input);
    for (size_t t = 0; t < r->tokens; t++)
        router_check_token(&input, &run, t, tolerance_of(r->experts));
    check_backward(&input, &run);
}

/* Softmax before the choice of experts, with and without renormalisation, or after the choice. */
TEST(test_softmax_routers_of_the_table) {
    for (size_t i = 0; i < ROWS; i++)
        for (size_t c = 0; c < 6 && !suite_skips(rows[i].slow); c++)
            check(&rows[i], c % 3 == 2 ? MOERT_SCORE_SOFTMAX_TOPK : MOERT_SCORE_SOFTMAX, c % 3 == 1,
                  c >= 3 && rows[i].topk >= KEPT_GROUPS, c >= 3 ? 1.2f : 1.0f, false);
}

TEST(test_sigmoid_and_sqrt_softplus_routers_of_the_table) {
    for (size_t i = 0; i < ROWS * 2; i++)
        for (size_t c = 0; c < 4 && !suite_skips(rows[i % ROWS].slow); c++)
            check(&rows[i % ROWS], i < ROWS ? MOERT_SCORE_SIGMOID : MOERT_SCORE_SQRT_SOFTPLUS, true,
                  c % 2 == 1 && rows[i % ROWS].topk >= KEPT_GROUPS, c % 2 == 1 ? 1.2f : 1.0f,
                  c >= 2);
}

/* ---- the load-balancing loss ---- */

/* Checks the loss and its gradient, and then those of the logits. */
static void check_aux(const row *r, moert_score score) {
    router_input input =
        router_draw(router_options(r->experts, r->topk, score), r->tokens, 1.0, 0.0);
    /* makes the gradient of a token larger than the tolerance */
    const double tokens = (double)r->tokens, coefficient = tokens;
    uint64_t counts[MOST_EXPERTS];
    double mass[MOST_EXPERTS], loss = 0.0;
    float want[MOST_EXPERTS], gradient[MOST_EXPERTS];
    router_run run = router_do(&input);
    oracle_load(&input, to_doubles(input.logits, r->tokens * r->experts), run.index, counts, mass);
    for (size_t e = 0; e < r->experts; e++) {
        const double each = coefficient * (double)r->experts * (double)counts[e] /
                            ((double)r->topk * tokens * tokens);
        want[e] = (float)each;
        loss += each * mass[e];
    }
    const float *got_mass =
        router_mass(&input.options, r->tokens, run.scores, &(uint32_t){(uint32_t)r->tokens}, 1);
    const moert_router_load load = {counts, to_doubles(got_mass, r->experts), tokens};
    const double got =
        moert_router_aux_loss(MOERT_AUX_MEGATRON, &input.options, &load, coefficient, gradient);
    const router_tolerance tolerance = tolerance_of(r->experts);
    assert_within(coefficient * got, loss, tolerance.score + tolerance.relative * loss);
    for (size_t e = 0; e < r->experts; e++)
        assert_within((double)gradient[e], (double)want[e], 1e-6 * (double)want[e]);
    input.dweight = test_alloc(r->tokens * r->topk * sizeof *input.dweight);
    input.aux = want;
    run = router_do(&input);
    check_backward(&input, &run);
}

TEST(test_the_balancing_loss_and_its_gradient) {
    static const moert_score scores[] = {MOERT_SCORE_SOFTMAX, MOERT_SCORE_SIGMOID,
                                         MOERT_SCORE_SQRT_SOFTPLUS};
    for (size_t i = 0; i < ROWS; i++)
        for (size_t s = 0; s < 3 && !suite_skips(rows[i].slow); s++)
            check_aux(&rows[i], scores[s]);
}

TESTS(open_test_device, close_test_device)
