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

/* Compares n values with a tensor of the case. */
static void check_golden(const golden *g, const char *name, const float *got, size_t n,
                         double tolerance) {
    assert_close(titled("%s.%s", g->name, name), got, to_doubles(read_golden(g, name), n), n,
                 tolerance, 0.0);
}

static void check_case(golden g) {
    const size_t experts = g.options.experts, topk = g.options.topk;
    float gradient[SEQUENCES * MOST_EXPERTS], dweight[TOKENS * MOST_EXPERTS],
        probs[TOKENS * MOST_EXPERTS] = {0}, updated[MOST_EXPERTS] = {0};
    uint64_t counts[MOST_EXPERTS] = {0};
    g.files = open_tensors("tests/golden/router/megatron.safetensors");
    const float *dprobs = read_golden(&g, "dprobs"), *bias = read_golden(&g, "bias");
    router_input input = {
        .options = g.options, .tokens = TOKENS, .logits = read_golden(&g, "logits"), .bias = bias};
    const router_run forward = router_do(&input);
    for (size_t i = 0; i < TOKENS * topk; i++) {
        const size_t e = (size_t)forward.index[i], at = i / topk * experts + e;
        probs[at] = forward.weight[i];
        dweight[i] = dprobs[at];
        counts[e]++;
    }
    check_golden(&g, "probs", probs, TOKENS * experts, 1e-6);
    assert_within(balance(&g, forward.scores, gradient), (double)*read_golden(&g, "aux"), 1e-7);

    input.dweight = dweight;
    input.aux = gradient;
    input.ends = ends;
    input.sequences = SEQUENCES;
    check_golden(&g, "dlogits", router_do(&input).dlogits, TOKENS * experts, 1e-6);

    if (bias != NULL)
        memcpy(updated, bias, experts * sizeof *bias);
    moert_router_update_bias(updated, counts, experts, RATE);
    check_golden(&g, "updated", updated, experts, 1e-7);
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
