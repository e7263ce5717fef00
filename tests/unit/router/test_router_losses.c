// run: check=1 all=1san
/* The router's losses and their inputs: the load-balancing loss and its gradient, masses and
 * entropies of special tokens, the update of the correction bias, balanced logits, and comparison
 * with functions of Megatron Core (tests/golden/README.md). */
#include "support/files.h"
#include "support/layer/router.h"

TEST(test_aux_loss_has_the_values_of_the_formulas) {
    const moert_router_options options = router_options(4, 2, MOERT_SCORE_SOFTMAX);
    const moert_router_load even = {(uint64_t[]){5, 5, 5, 5}, (double[]){2.5, 2.5, 2.5, 2.5}, 10};
    const moert_router_load skewed = {(uint64_t[]){10, 10, 0, 0}, (double[]){6, 3, 1, 0}, 10};
    /* With balanced routing, the loss is K in Hugging Face's form and 1 in Megatron's. With skewed
     * routing: 4 * (10/10 * 6/10 + 10/10 * 3/10) = 3.6, and 3.6 / K = 1.8. */
    const struct {
        moert_aux_form form;
        const moert_router_load *load;
        double coefficient, value, gradient; /* gradient: with respect to the first expert's mass */
    } cases[] = {{MOERT_AUX_HUGGING_FACE, &even, 1, 2.0, 4.0 * 5 / 100},
                 {MOERT_AUX_MEGATRON, &even, 1, 1.0, 4.0 * 5 / 200},
                 {MOERT_AUX_HUGGING_FACE, &skewed, 0.01, 3.6, 0.01 * 4 * 10 / 100},
                 {MOERT_AUX_MEGATRON, &skewed, 0.01, 1.8, 0.01 * 4 * 10 / 200}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        float gradient[4];
        assert_within(moert_router_aux_loss(cases[i].form, &options, cases[i].load,
                                            cases[i].coefficient, gradient),
                      cases[i].value, 1e-14);
        assert_within((double)gradient[0], cases[i].gradient, 1e-8);
        assert_within((double)gradient[1], cases[i].gradient, 1e-8);
        assert_true((gradient[3] == 0.0f) == (cases[i].load == &skewed));
        /* the loss is linear in each mass, so a difference is the gradient */
        for (size_t e = 0; e < 4; e++) {
            double mass[4];
            float ignored[4];
            memcpy(mass, cases[i].load->mass, sizeof mass);
            mass[e] += 1.0;
            const moert_router_load more = {cases[i].load->counts, mass, cases[i].load->rows};
            const double above = moert_router_aux_loss(cases[i].form, &options, &more, 1, ignored);
            assert_within((double)gradient[e], cases[i].coefficient * (above - cases[i].value),
                          1e-8);
        }
    }
    const moert_router_load none = {(uint64_t[4]){0}, (double[4]){0}, 0};
    float gradient[4] = {1, 1, 1, 1}, zeros[4] = {0};
    assert_true(moert_router_aux_loss(MOERT_AUX_MEGATRON, &options, &none, 1, gradient) == 0.0);
    assert_same_bits("gradient without rows", gradient, zeros, 4);
}

TEST(test_update_bias_helps_the_experts_below_the_mean) {
    float bias[4] = {0.5f, 0.0f, -0.25f, 0.0f};
    moert_router_update_bias(bias, (uint64_t[]){9, 1, 4, 2}, 4, 0.125f);
    const float expected[4] = {0.375f, 0.125f, -0.25f, 0.125f};
    assert_memory_equal(bias, expected, sizeof bias);
    moert_router_update_bias(bias, (uint64_t[]){0, 0, 0, 0}, 4, 0.125f);
    assert_memory_equal(bias, expected, sizeof bias);
}

/* ---- sequences ---- */

TEST(test_special_tokens_have_their_entropy_and_mass) {
    enum { T = 23, E = 19, EVEN = 3, UNEVEN = 5, BAD = 7, LAST = 17 };
    static const uint32_t ends[] = {5, LAST, T}, last = T - LAST;
    for (moert_score score = 0; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        router_input input = router_draw(router_options(E, 2, score), T, 1.0, 0.0);
        float *logits = router_own_logits(&input);
        double mass = 0.0;
        for (size_t e = 0; e < E; e++) {
            logits[EVEN * E + e] = 0.75f;
            logits[UNEVEN * E + e] = e == 11 ? 90.0f : -90.0f; /* one has all */
        }
        logits[BAD * E + 3] = NAN; /* a token with a NaN adds nothing to the sums */
        const router_run run = router_do(&input);
        const router_sums got = router_sum(&input.options, T, run.scores, ends, 3);
        for (size_t e = 0; e < E; e++)
            mass += (double)got.mass[E + e];
        assert_within(mass, LAST - 5 - 1, 1e-5);
        assert_within((double)got.entropy[EVEN], log(E), 2e-6);
        assert_true(fabsf(got.entropy[UNEVEN]) < 1e-12f && got.entropy[BAD] == 0.0f);
        /* the last sequence has the same bits in a batch without the other sequences */
        const router_sums alone = router_sum(&input.options, last, run.scores + LAST * E, &last, 1);
        assert_same_bits("mass alone", alone.mass, got.mass + 2 * E, E);
    }
}

/* ---- logits that moert_router_balance() replaces ---- */

/* Runs moert_router_balance() on a copy of logits[T,E]. */
static float *balanced(const moert_router_options *options, size_t tokens, const float *logits) {
    moert_buffer *buffer = upload_floats(logits, tokens * options->experts);
    ASSERT_OK(moert_router_balance(test_device, options, tokens, buffer));
    return download_floats(buffer, tokens * options->experts);
}

/* The formula of kernels/router/balance.cl. */
static float hash(float logit, uint32_t expert) {
    uint32_t h;
    memcpy(&h, &logit, sizeof h);
    h ^= expert * 0x9E3779B9u;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    return (float)((int32_t)(h >> 8) - 0x800000) * 0x1p-23f;
}

TEST(test_a_logit_becomes_the_hash_of_its_bits_and_expert_at_any_position) {
    enum { TOKENS = 600, EXPERTS = 37 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const moert_router_options options = router_options(EXPERTS, 3, MOERT_SCORE_SOFTMAX);
    float *const logits = random_floats(TOKENS * EXPERTS, 0.02f, 1);
    /* token 599 equals token 0, and token 300 has equal logits */
    for (size_t e = 0; e < EXPERTS; e++)
        logits[599 * EXPERTS + e] = logits[e], logits[300 * EXPERTS + e] = 0.5f;
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        logits[7 * EXPERTS + i] = bad[i];
    const float *got = balanced(&options, TOKENS, logits);
    for (size_t i = 0; i < TOKENS * EXPERTS; i++)
        if (isfinite(logits[i]))
            assert_true(got[i] == hash(logits[i], i % EXPERTS) && got[i] >= -1.0f && got[i] < 1.0f);
    assert_same_bits("logits that are not finite", got + 7 * EXPERTS, bad, MOERT_COUNT(bad));
    assert_memory_equal(got, got + 599 * EXPERTS, EXPERTS * sizeof *got);
}

TEST(test_all_experts_get_nearly_the_same_number_of_rows) {
    enum { TOKENS = 65536, EXPERTS = 16, TOPK = 2, MEAN = TOKENS * TOPK / EXPERTS };
    const moert_router_options options = router_options(EXPERTS, TOPK, MOERT_SCORE_SOFTMAX);
    float *const logits = random_floats(TOKENS * EXPERTS, 0.02f, 1);
    for (size_t t = 0; t < TOKENS; t++)
        logits[t * EXPERTS] += 3.0f; /* without balancing, every token would choose expert 0 */
    const float *got = balanced(&options, TOKENS, logits);
    const router_run run =
        router_do(&(router_input){.options = options, .tokens = TOKENS, .logits = got});
    size_t rows[EXPERTS] = {0};
    for (size_t i = 0; i < TOKENS * TOPK; i++)
        rows[run.index[i]]++;
    for (size_t e = 0; e < EXPERTS; e++)
        assert_within((double)rows[e], MEAN, 0.04 * MEAN);
}

TEST(test_a_buffer_that_is_too_small_is_refused) {
    const moert_router_options options = router_options(16, 4, MOERT_SCORE_SOFTMAX);
    ASSERT_FAILS(moert_router_balance(test_device, &options, 2, test_buffer(64)), MOERT_ERROR_USAGE,
                 "logits has 64 bytes, too few for [2, 16]");
    ASSERT_OK(moert_router_balance(test_device, &options, 0, NULL));
}

/* ---- Megatron Core: weights, losses of sequences with their gradients, the bias's update ---- */

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
        /* groups are scored by their best expert */
        {.name = "best", .options = router_groups(best, 5, 3, 1)},
        {.name = "softmax", .options = router_options(12, 3, MOERT_SCORE_SOFTMAX_TOPK)}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        check_case(cases[i]);
}

TESTS(open_test_device, close_test_device)
