// run: check=1 all=1san device=0
/* Compares the FLOPs of a step with counts made by hand. */
#include "model/flops.h"
#include "support/files.h"

static double flops_of(const char *model, size_t length) {
    moert_model_config config;
    ASSERT_OK(moert_model_config_read(titled("tests/golden/%s", model), &config));
    const double flops = moert_model_flops(&config, length);
    moert_model_config_free(&config);
    return flops;
}

/* Each count is the number of multiply-adds in a forward of 40 tokens. A step has 6 times as many
 * FLOPs. */
TEST(test_mixtral_agrees_with_a_count_by_hand) {
    /* 2 layers, H = 64, 4 heads of 16, 2 heads of k and v, 8 experts of I = 96, K = 2, V = 256 */
    const double projections = 64 * 64 + 2 * (32 * 64) + 64 * 64; /* q; k, v; o */
    const double mlp = 64 * 8 + 2 * 3 * 64 * 96;                  /* router; two experts */
    /* 4 heads; per pair, q . k and p v take 16 multiply-adds each */
    const double pairs = 40 * 41 / 2.0, pair = 4 * (16 + 16);
    const double forward = 2 * (40 * (projections + mlp) + pairs * pair) + 40 * 64 * 256.0;
    assert_true(flops_of("model/mixtral-tiny", 40) == 6 * forward && 6 * forward == 29030400);
}

TEST(test_gpt_oss_agrees_with_a_count_by_hand) {
    /* 3 layers, of which 0 and 2 have a window of 12; H = 32, 4 heads of 8, 2 heads of k and v, 8
     * experts of I = 24, K = 2, V = 128. Biases and sinks are not counted. */
    const double projections = 32 * 32 + 2 * (16 * 32) + 32 * 32;
    const double mlp = 32 * 8 + 2 * 3 * 32 * 24;
    /* pairs of a query and a key that it sees: 820 without a window, 414 with it */
    const double full = 40 * 41 / 2.0, window = 12 * 13 / 2.0 + 28 * 12;
    const double pair = 4 * (8 + 8);
    const double forward =
        3 * 40 * (projections + mlp) + (full + 2 * window) * pair + 40 * 32 * 128.0;
    assert_true(flops_of("family/gpt-oss", 40) == 6 * forward && 6 * forward == 7329792);
    /* a window of the whole sequence changes nothing */
    assert_true(flops_of("family/gpt-oss", 12) ==
                6 * (3 * 12 * (projections + mlp) + 3 * 78 * pair + 12 * 32 * 128));
}

TEST(test_deepseek_agrees_with_a_count_by_hand) {
    /* 3 layers, the first is dense with I = 96; H = 32, 4 heads, q of rank 24, k and v of rank 16,
     * 8 + 8 elements of k and 12 of v a head; 8 experts of I = 24, K = 2, one shared; V = 128 */
    const double projections = 24 * 32 + 4 * 16 * 24 /* q_a, q_b */
                               + (16 + 8) * 32       /* kv_a, with the rotated part of k */
                               + 4 * (8 + 12) * 16   /* kv_b */
                               + 32 * 4 * 12;        /* o */
    const double dense = 3 * 32 * 96, mlp = 32 * 8 + (2 + 1) * 3 * 32 * 24;
    const double pairs = 40 * 41 / 2.0, pair = 4 * (16 + 12);
    const double forward =
        40 * (3 * projections + dense + 2 * mlp) + 3 * pairs * pair + 40 * 32 * 128.0;
    assert_true(flops_of("family/deepseek-v3-yarn", 40) == 6 * forward && 6 * forward == 12528000);
}

TESTS(NULL, NULL)
