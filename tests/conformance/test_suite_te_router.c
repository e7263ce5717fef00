// run: check=1
/*
 * TransformerEngine's tables of the fused router: weights, map, gradient of the logits, and the
 * load-balancing loss with its gradient, within TransformerEngine's tolerances of float64.
 * TransformerEngine scores a group of experts by its topk/group_topk best experts. Cases with
 * groups have at least four experts per token.
 */
#include "base/rng.h"
#include "support/layer/router_oracle.h"
#include "support/layer/router_run.h"
#include "support/suite.h"
#include "support/test.h"

enum { MOST_EXPERTS = 1024, MOST_TOPK = 32, GRADIENTS = 24, GROUPS = 8, KEPT_GROUPS = 4 };

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

static double absolute_of(size_t experts) {
    return fmax(1e-5, 4e-7 * (double)experts);
}

static double relative_of(size_t experts) {
    return fmax(1.3e-6, 4e-7 * (double)experts);
}

static void assert_near_to(const char *title, size_t token, size_t at, size_t experts, double got,
                           double want) {
    if (!(fabs(got - want) <= absolute_of(experts) + relative_of(experts) * fabs(want)))
        fail_msg("%s: token %zu, %zu: %.9g, not %.9g", title, token, at, got, want);
}

/* Checks choice, weights and scores of every token. */
static void check_forward(const char *title, const router_input *input, const router_run *run) {
    const size_t experts = input->options.experts, topk = input->options.topk;
    for (size_t t = 0; t < input->tokens; t++) {
        double logits[MOST_EXPERTS], weight[MOST_TOPK], scores[MOST_EXPERTS];
        int32_t index[MOST_TOPK];
        oracle_row(input, t, logits);
        oracle_choose(&input->options, logits, input->bias, index);
        if (memcmp(index, run->index + t * topk, topk * sizeof *index) != 0)
            fail_msg("%s: token %zu goes to other experts", title, t);
        oracle_weights(&input->options, logits, index, weight);
        for (size_t k = 0; k < topk; k++)
            assert_near_to(title, t, k, experts, (double)run->weight[t * topk + k], weight[k]);
        oracle_scores(&input->options, logits, scores);
        for (size_t e = 0; e < experts; e++)
            assert_near_to(title, t, e, experts, (double)run->scores[t * experts + e], scores[e]);
    }
}

/* Checks dlogits of some tokens by central differences, for the chosen experts and some others. */
static void check_backward(const char *title, const router_input *input, const router_run *run) {
    const size_t experts = input->options.experts, topk = input->options.topk;
    for (size_t i = 0; i < GRADIENTS; i++) {
        const size_t t = i * input->tokens / GRADIENTS;
        const int32_t *index = run->index + t * topk;
        for (size_t k = 0; k < topk + 16; k++) {
            const size_t e = k < topk ? (size_t)index[k] : suite_bits(t, k) % experts;
            assert_near_to(title, t, e, experts, (double)run->dlogits[t * experts + e],
                           oracle_gradient(input, index, t, e));
        }
    }
}

/* A row of the table with its random logits, bias and gradients. */
typedef struct data {
    float *logits, *dweight, bias[MOST_EXPERTS];
} data;

static data make(const row *r, const moert_router_options *options, bool biased) {
    data d = {test_alloc(r->tokens * r->experts * sizeof *d.logits),
              test_alloc(r->tokens * r->topk * sizeof *d.dweight),
              {0}};
    for (size_t e = 0; e < r->experts; e++)
        d.bias[e] = 0.1f * (float)moert_rng_normal(1, 1, e);
    for (size_t i = 0; i < r->tokens * r->topk; i++)
        d.dweight[i] = 2.0f * suite_uniform(2, i) - 1.0f;
    oracle_logits(options, r->tokens, biased ? d.bias : NULL, 1.0, r->experts, d.logits);
    return d;
}

static void check(const row *r, moert_score score, bool renormalise, bool grouped, float scale,
                  bool biased) {
    moert_router_options options = router_options(r->experts, r->topk, score);
    options.renormalise = renormalise;
    options.scale = scale;
    if (grouped) {
        options.groups = GROUPS;
        options.kept_groups = KEPT_GROUPS;
        options.group_best = r->topk / KEPT_GROUPS;
    }
    const char *title = titled("%zu tokens, top %zu of %zu, score %d%s%s%s, scale %g", r->tokens,
                               r->topk, r->experts, (int)score, renormalise ? ", renormalised" : "",
                               grouped ? ", grouped" : "", biased ? ", biased" : "", (double)scale);
    data d = make(r, &options, biased);
    const router_input input = {
        options, r->tokens, d.logits, biased ? d.bias : NULL, d.dweight, NULL, 0, NULL, NULL, 0};
    router_run run = router_do(&input);
    check_forward(title, &input, &run);
    check_backward(title, &input, &run);
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

/* The loss and its gradient in float64, from the slots of each expert and the sums of its
 * scores. */
static double oracle_loss(const router_input *input, const int32_t *index, double coefficient,
                          uint64_t *counts, float *gradient) {
    const size_t experts = input->options.experts, topk = input->options.topk;
    const double tokens = (double)input->tokens;
    double mass[MOST_EXPERTS], loss = 0.0;
    oracle_load(input, to_doubles(input->logits, input->tokens * experts), index, counts, mass);
    for (size_t e = 0; e < experts; e++) {
        const double each =
            coefficient * (double)experts * (double)counts[e] / ((double)topk * tokens * tokens);
        gradient[e] = (float)each;
        loss += each * mass[e];
    }
    return loss;
}

static void check_aux(const row *r, moert_score score) {
    const moert_router_options options = router_options(r->experts, r->topk, score);
    uint64_t counts[MOST_EXPERTS];
    float want[MOST_EXPERTS], gradient[MOST_EXPERTS];
    const char *title = titled("aux loss, %zu tokens, top %zu of %zu, score %d", r->tokens, r->topk,
                               r->experts, (int)score);
    data d = make(r, &options, false);
    memset(d.dweight, 0, r->tokens * r->topk * sizeof *d.dweight);
    router_input input = {options, r->tokens, d.logits, NULL, NULL, NULL, 0, NULL, NULL, 0};
    router_run run = router_do(&input);
    /* makes the gradient of a token larger than the tolerance */
    const double coefficient = (double)r->tokens;
    const double loss = oracle_loss(&input, run.index, coefficient, counts, want);
    const float *mass =
        router_mass(&options, r->tokens, run.scores, &(uint32_t){(uint32_t)r->tokens}, 1);
    const moert_router_load load = {counts, to_doubles(mass, r->experts), (double)r->tokens};
    const double got =
        moert_router_aux_loss(MOERT_AUX_MEGATRON, &options, &load, coefficient, gradient);
    assert_within(coefficient * got, loss,
                  absolute_of(r->experts) + relative_of(r->experts) * loss);
    for (size_t e = 0; e < r->experts; e++)
        assert_within((double)gradient[e], (double)want[e], 1e-6 * (double)want[e]);
    input.dweight = d.dweight;
    input.aux = want;
    run = router_do(&input);
    check_backward(title, &input, &run);
}

TEST(test_the_balancing_loss_and_its_gradient) {
    static const moert_score scores[] = {MOERT_SCORE_SOFTMAX, MOERT_SCORE_SIGMOID,
                                         MOERT_SCORE_SQRT_SOFTPLUS};
    for (size_t i = 0; i < ROWS; i++)
        for (size_t s = 0; s < 3 && !suite_skips(rows[i].slow); s++)
            check_aux(&rows[i], scores[s]);
}

TESTS(open_test_device, close_test_device)
