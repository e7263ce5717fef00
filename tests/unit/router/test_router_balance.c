// run: check=1 all=1san
/* Logits that moert_router_balance() replaces: their values, and the rows that the experts get. */
#include "base/rng.h"
#include "support/layer/router_run.h"
#include "support/test.h"

/* Runs the kernel on a copy of logits[T,E]. */
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
    const moert_router_options options = router_options(EXPERTS, 3, MOERT_SCORE_SOFTMAX);
    float *const logits = random_floats(TOKENS * EXPERTS, 0.02f, 1);
    for (size_t e = 0; e < EXPERTS; e++) /* the same token twice, and equal logits in a third */
        logits[599 * EXPERTS + e] = logits[e], logits[300 * EXPERTS + e] = 0.5f;
    const float *got = balanced(&options, TOKENS, logits);
    for (size_t i = 0; i < TOKENS * EXPERTS; i++)
        assert_true(got[i] == hash(logits[i], i % EXPERTS) && got[i] >= -1.0f && got[i] < 1.0f);
    assert_memory_equal(got, got + 599 * EXPERTS, EXPERTS * sizeof *got);
}

TEST(test_non_finite_logits_stay) {
    const moert_router_options options = router_options(4, 1, MOERT_SCORE_SOFTMAX);
    const float logits[4] = {NAN, INFINITY, -INFINITY, 1.0f};
    const float *got = balanced(&options, 1, logits);
    assert_true(isnan(got[0]) && got[1] == INFINITY && got[2] == -INFINITY && got[3] != 1.0f);
}

TEST(test_all_experts_get_nearly_the_same_number_of_rows) {
    enum { TOKENS = 65536, EXPERTS = 16, TOPK = 2, MEAN = TOKENS * TOPK / EXPERTS };
    const moert_router_options options = router_options(EXPERTS, TOPK, MOERT_SCORE_SOFTMAX);
    float *const logits = random_floats(TOKENS * EXPERTS, 0.02f, 1);
    for (size_t t = 0; t < TOKENS; t++)
        logits[t * EXPERTS] += 3.0f; /* alone, every token would choose expert 0 */
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

TESTS(open_test_device, close_test_device)
