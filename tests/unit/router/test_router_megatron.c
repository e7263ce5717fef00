// run: check=1 all=1san
/*
 * The router against Megatron Core's functions (tests/golden/README.md): weights, the loss of each
 * sequence with its gradient, and the update of the correction bias.
 */
#include "support/files.h"
#include "support/layer/router.h"
#include "support/test.h"

enum { SEQUENCES = 3, LENGTH = 11, TOKENS = SEQUENCES * LENGTH, MOST_EXPERTS = 20 };
#define COEFFICIENT 0.03
#define RATE        1e-3f

typedef struct golden {
    const char *name;
    const moert_tensors *files;
    moert_router_options options;
} golden;

/* Returns a tensor of the case, or NULL. */
static float *read_golden(const golden *g, const char *name) {
    const moert_tensor *tensor = moert_tensors_find(g->files, titled("%s.%s", g->name, name));
    if (tensor == NULL)
        return NULL;
    float *values = test_alloc(tensor->elements * sizeof *values);
    ASSERT_OK(moert_tensor_read_f32(tensor, 0, tensor->elements, values));
    return values;
}

static const uint32_t ends[SEQUENCES] = {LENGTH, 2 * LENGTH, TOKENS};

/* Compares the weights with probs[T,E], and counts the slots of each expert. */
static void check_weights(const golden *g, const router_run *run, uint64_t *counts) {
    const size_t experts = g->options.experts, topk = g->options.topk;
    const float *probs = read_golden(g, "probs");
    for (size_t t = 0; t < TOKENS; t++) {
        float row[MOST_EXPERTS] = {0};
        for (size_t k = 0; k < topk; k++) {
            row[run->index[t * topk + k]] = run->weight[t * topk + k];
            counts[run->index[t * topk + k]]++;
        }
        for (size_t e = 0; e < experts; e++)
            assert_within((double)row[e], (double)probs[t * experts + e], 1e-6);
    }
}

/* Computes the loss of all sequences, and gradient[S,E]. */
static double balance(const golden *g, const float *scores, float *gradient) {
    const size_t experts = g->options.experts;
    const router_sums sums = router_sum(&g->options, TOKENS, scores, ends, SEQUENCES);
    double sum = 0.0;
    for (size_t s = 0; s < SEQUENCES; s++) {
        uint64_t counts[MOST_EXPERTS];
        for (size_t e = 0; e < experts; e++)
            counts[e] = sums.counts[s * experts + e];
        const moert_router_load load = {counts, to_doubles(sums.mass + s * experts, experts),
                                        LENGTH};
        sum += moert_router_aux_loss(MOERT_AUX_SEQUENCE, &g->options, &load,
                                     COEFFICIENT / SEQUENCES, gradient + s * experts);
    }
    return COEFFICIENT * sum / SEQUENCES;
}

static void check_case(golden g) {
    const size_t experts = g.options.experts, topk = g.options.topk;
    float gradient[SEQUENCES * MOST_EXPERTS], dweight[TOKENS * MOST_EXPERTS];
    uint64_t counts[MOST_EXPERTS] = {0};
    g.files = open_tensors("tests/golden/router/megatron.safetensors");
    const float *dprobs = read_golden(&g, "dprobs"), *bias = read_golden(&g, "bias");
    router_input input = {
        .options = g.options, .tokens = TOKENS, .logits = read_golden(&g, "logits"), .bias = bias};
    const router_run forward = router_do(&input);
    check_weights(&g, &forward, counts);
    assert_within(balance(&g, forward.scores, gradient), (double)*read_golden(&g, "aux"), 1e-7);

    for (size_t i = 0; i < TOKENS * topk; i++)
        dweight[i] = dprobs[i / topk * experts + (size_t)forward.index[i]];
    input.dweight = dweight;
    input.aux = gradient;
    input.ends = ends;
    input.sequences = SEQUENCES;
    const router_run run = router_do(&input);
    const float *dlogits = read_golden(&g, "dlogits");
    for (size_t i = 0; i < TOKENS * experts; i++)
        assert_within((double)run.dlogits[i], (double)dlogits[i], 1e-6);

    float updated[MOST_EXPERTS] = {0};
    const float *want = read_golden(&g, "updated");
    if (bias != NULL)
        memcpy(updated, bias, experts * sizeof *bias);
    moert_router_update_bias(updated, counts, experts, RATE);
    for (size_t e = 0; e < experts; e++)
        assert_within((double)updated[e], (double)want[e], 1e-7);
}

TEST(test_routers_agree_with_megatron) {
    moert_router_options sigmoid = router_options(16, 4, MOERT_SCORE_SIGMOID),
                         best = router_options(20, 3, MOERT_SCORE_SOFTMAX);
    sigmoid.scale = 2.5f;
    best.renormalise = false;
    best.scale = 1.5f;
    const golden cases[] = {
        {.name = "sigmoid", .options = router_groups(sigmoid, 4, 2, 2)},
        {.name = "best", .options = router_groups(best, 5, 3, 1)}, /* groups by their best expert */
        {.name = "softmax", .options = router_options(12, 3, MOERT_SCORE_SOFTMAX_TOPK)}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        check_case(cases[i]);
}

TESTS(open_test_device, close_test_device)
