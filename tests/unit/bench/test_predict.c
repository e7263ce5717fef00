// run: check=1 all=1san device=0
/* Predictions of bench_model. Predicted spreads are compared with counts and random draws, and
 * predicted times with sums made by hand for a machine with round numbers. */
#include "bench/predict/models.h"
#include "bench/predict/predict.h"
#include "exchange/exchange.h"
#include "support/files.h"

/* ---- spread ---- */

static const bench_skew skew_even = {BENCH_BALANCED, 0.0}, skew_one = {BENCH_ONE, 0.0},
                        skew_zipf = {BENCH_ZIPF, 1.0};

static bench_spread spread_of(bench_skew skew, size_t topk, size_t experts, size_t ep,
                              size_t nodes) {
    bench_spread spread;
    ASSERT_OK(
        bench_spread_of(&(bench_sharing){skew, 4096, topk, experts, ep, nodes, false, 0}, &spread));
    return spread;
}

TEST(test_distinct_ranks_and_nodes_are_counted_exactly) {
    /* each token chooses 2 of 4 experts on 4 ranks and 2 nodes: a token reaches 2 ranks; 2 of the 6
     * pairs of ranks share a node */
    const bench_spread a = spread_of(skew_even, 2, 4, 4, 2);
    assert_within(a.pairs_rank, 2.0, 1e-12);
    assert_within(a.pairs_node, 1.0 * 2.0 / 6.0 + 2.0 * 4.0 / 6.0, 1e-12);
    /* each token chooses 2 of 4 experts on 2 ranks: 2 of the 6 pairs of experts share a rank */
    assert_within(spread_of(skew_even, 2, 4, 2, 1).pairs_rank, 10.0 / 6.0, 1e-12);
    /* a token that chooses all experts reaches every rank and node; there is no imbalance */
    const bench_spread all = spread_of(skew_even, 8, 8, 4, 2);
    assert_within(all.pairs_rank, 4.0, 1e-12);
    assert_within(all.pairs_node, 2.0, 1e-12);
    assert_within(all.largest_rank, 1.0, 1e-12);
    assert_within(spread_of(skew_even, 2, 8, 1, 1).pairs_rank, 1.0, 1e-12);
    assert_within(spread_of(skew_one, 2, 8, 4, 4).pairs_node, 1.0, 1e-12);
    assert_within(spread_of(skew_one, 2, 8, 4, 4).largest_rank, 4.0, 1e-12);
}

/* Computes the mean spread over several seeds, with experts drawn as in bench_exchange. */
static void draw(bench_skew skew, size_t topk, size_t experts, size_t ep, bench_spread *seen) {
    enum { TOKENS = 4096, SEEDS = 5 };
    int32_t *index = test_alloc(TOKENS * topk * sizeof *index);
    *seen = (bench_spread){0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        double rows[64] = {0.0}, most = 0.0, all = 0.0;
        ASSERT_OK(bench_route(skew, seed, TOKENS, topk, experts, index));
        for (size_t t = 0; t < TOKENS; t++) {
            uint64_t ranks = 0;
            for (size_t s = t * topk; s < (t + 1) * topk; s++) {
                const size_t rank = (size_t)index[s] * ep / experts;
                ranks |= (uint64_t)1 << rank;
                rows[rank] += 1.0;
                all += 1.0;
            }
            seen->pairs_rank += (double)__builtin_popcountll(ranks) / (TOKENS * SEEDS);
        }
        for (size_t r = 0; r < ep; r++)
            most = fmax(most, rows[r]);
        seen->largest_rank += most * (double)ep / all / SEEDS;
    }
}

TEST(test_expected_spreads_are_those_of_draws) {
    static const struct {
        bench_skew skew;
        size_t topk, experts, ep;
        /* relative tolerances, because the prediction treats a token's experts as independent if
         * draws are skewed */
        double pairs, largest;
    } cases[] = {
        {{BENCH_BALANCED, 0.0}, 2, 8, 4, 0.01, 0.01},
        {{BENCH_BALANCED, 0.0}, 8, 64, 16, 0.01, 0.01},
        {{BENCH_BALANCED, 0.0}, 8, 128, 64, 0.01, 0.03},
        {{BENCH_HOT, 0.3}, 2, 16, 8, 0.05, 0.05},
        {{BENCH_ZIPF, 1.0}, 4, 64, 8, 0.06, 0.12},
        {{BENCH_ZIPF, 0.5}, 4, 64, 8, 0.06, 0.12},
        {{BENCH_HOT, 0.4}, 2, 64, 4, 0.08, 0.05},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const bench_spread want =
            spread_of(cases[i].skew, cases[i].topk, cases[i].experts, cases[i].ep, 1);
        bench_spread seen;
        draw(cases[i].skew, cases[i].topk, cases[i].experts, cases[i].ep, &seen);
        assert_within(seen.pairs_rank / want.pairs_rank, 1.0, cases[i].pairs);
        assert_within(seen.largest_rank / want.largest_rank, 1.0, cases[i].largest);
    }
}

TEST(test_balanced_experts_spread_evenly) {
    bench_sharing of = {skew_zipf, 4096, 2, 64, 4, 1, false, 0};
    bench_spread contiguous, balanced;
    ASSERT_OK(bench_spread_of(&of, &contiguous));
    of.balanced = true;
    ASSERT_OK(bench_spread_of(&of, &balanced));
    assert_true(contiguous.largest_rank > 2.5);
    assert_true(balanced.largest_rank >= 1.0 && balanced.largest_rank < 1.05);
    assert_within(balanced.largest_expert, contiguous.largest_expert, 1e-12);
    of.skew = skew_one; /* without clones an expert cannot be divided */
    ASSERT_OK(bench_spread_of(&of, &balanced));
    assert_within(balanced.largest_rank, 4.0, 1e-12);
    of.clones = 1;
    ASSERT_OK(bench_spread_of(&of, &balanced));
    assert_true(balanced.largest_rank >= 1.0 && balanced.largest_rank < 1.05);
    assert_within(balanced.clones, 0.75, 1e-12);
}

TEST(test_skews_are_read) {
    bench_skew skew;
    ASSERT_OK(bench_skew_read("zipf", &skew));
    assert_true(skew.kind == BENCH_ZIPF && skew.amount == 1.0);
    ASSERT_OK(bench_skew_read("zipf:0.5", &skew));
    assert_true(skew.kind == BENCH_ZIPF && skew.amount == 0.5);
    ASSERT_OK(bench_skew_read("hot:40", &skew));
    assert_true(skew.kind == BENCH_HOT);
    assert_within(skew.amount, 0.4, 1e-12);
    static const char *const bad[] = {"", "zip", "zipf:", "zipf:0", "hot:101", "hot:4x", "one:1"};
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        ASSERT_FAILS(bench_skew_read(bad[i], &skew), MOERT_ERROR_USAGE, "expected balanced|zipf");
}

TEST(test_the_expected_largest_of_n_normals_is_near_the_tables) {
    /* the expected values are from tables of order statistics */
    assert_within(bench_largest_normal(1), 0.0, 0.0);
    assert_within(bench_largest_normal(2), 0.5642, 0.05);
    assert_within(bench_largest_normal(10), 1.5388, 0.02);
    assert_within(bench_largest_normal(100), 2.5076, 0.02);
    assert_within(bench_largest_normal(1000), 3.2414, 0.03);
}

/* ---- a machine with round numbers ---- */

static const char round_machine[] =
    "{'name': 'round', 'source': 'made up', 'ranks_per_node': 2, 'launch_us': 1,"
    " 'copy_gbps': 1e9, 'host_gbps': 1e9, 'dglu_ns': 4, 'memory_gib': 1,"
    " 'f32_gflops': 1e9,"
    " 'window': {'us': 0, 'gbps': 10}, 'stage': {'us': 0, 'gbps': 5},"
    " 'inside': {'us': 0, 'gbps': 4}, 'between': {'us': 0, 'gbps': 1},"
    " 'gemm': [{'op': 'forward', 'type': 'f32', 'n': 1024, 'k': 512, 'rows': 64, 'gflops': 100},"
    "            {'op': 'glu', 'type': 'f32', 'n': 1024, 'k': 512, 'rows': 256, 'gflops': 50},"
    "            {'op': 'forward', 'type': 'f32', 'n': 1024, 'k': 512, 'rows': 256, 'gflops': "
    "200}]}";

static bench_machine machine; /* the machine of the running test */

static void read_machine(const char *path) {
    ASSERT_OK(bench_machine_read(path, &machine));
    owned(&machine, bench_machine_free);
}

static int open_machine(void **state) {
    (void)state;
    read_machine(write_json("round.json", round_machine));
    return 0;
}

#define ROUND_TEST(name) TEST_WITH(name, open_machine, NULL)

/* Makes a layer in which every token chooses all experts, so that nothing is random: T = 128, H = I
 * = 512, K = E = 4. */
static bench_work even_work(size_t ranks, bench_engine engine) {
    return (bench_work){.ranks = ranks,
                        .ep = ranks,
                        .tokens = 128,
                        .hidden = 512,
                        .intermediate = 512,
                        .experts = 4,
                        .topk = 4,
                        .type = "f32",
                        .row_bytes = 4.0,
                        .result_bytes = 4.0,
                        .engine = engine,
                        .chunks = 1,
                        .micro_batches = 1};
}

static bench_prediction predicted(const bench_work *work) {
    bench_prediction p;
    ASSERT_OK(bench_predict(&machine, work, &p));
    return p;
}

#define ROW_BYTES 2048.0

/* Predicted seconds of a forward GEMM with weights [1024,512]. */
static double gemm_seconds(double groups, double rows) {
    double seconds;
    ASSERT_OK(bench_machine_gemm(
        &machine, &(bench_predict_gemm){"forward", "f32", groups, rows, 1024, 512}, &seconds));
    return seconds;
}

ROUND_TEST(test_a_gemm_takes_its_rate_between_measured_rows) {
    double seconds;
    /* 128 rows per group are halfway between 64 and 256 on a logarithmic scale, so the rate is 150
     * GFLOP/s */
    assert_within(gemm_seconds(2, 256) / (2e-9 * 256 * 1024 * 512 / 150.0), 1.0, 1e-12);
    assert_within(gemm_seconds(1, 8) / (2e-9 * 8 * 1024 * 512 / 100.0), 1.0, 1e-12);
    machine.tile_rows = 128.0; /* tiles of 128 rows: 8 rows take as long as 128 */
    assert_within(gemm_seconds(1, 8) / (2e-9 * 128 * 1024 * 512 / 100.0), 1.0, 1e-12);
    /* at 1 GB/s the GEMM is memory-bound: it moves 2 MiB of weights and 48 KiB of rows */
    machine.copy_gbps = 1.0;
    assert_within(gemm_seconds(1, 8), 4e-9 * (1024 * 512 + 8 * 1536), 1e-15);
    ASSERT_FAILS(bench_machine_gemm(
                     &machine, &(bench_predict_gemm){"wgrad", "f32", 1, 8, 1024, 512}, &seconds),
                 MOERT_ERROR_USAGE, "'round' has no measured rate for a wgrad GEMM in f32");
}

ROUND_TEST(test_windows_of_one_node_by_hand) {
    /* 512 rows of 2 KiB in each direction at 10 GB/s; 12 launches of 1 us */
    const bench_work w = even_work(2, BENCH_WINDOW);
    const bench_prediction p = predicted(&w);
    assert_within(p.part[BENCH_INSIDE], 2.0 * 512 * ROW_BYTES / 10e9, 1e-12);
    assert_within(p.part[BENCH_BETWEEN], 0.0, 0.0);
    assert_within(p.part[BENCH_LATENCY], 12e-6, 1e-12);
    /* 2 experts with 256 rows each: the GEMM with the GLU runs at 50 GFLOP/s, the second GEMM at
     * 200 */
    assert_within(p.part[BENCH_GEMMS] / (2e-9 * 512 * 512 * (1024 / 50.0 + 512 / 200.0)), 1.0,
                  1e-9);
    assert_int_equal(p.bound, BENCH_GEMMS);
}

ROUND_TEST(test_staged_and_node_engines_by_hand) {
    /* 4 ranks on 2 nodes: half of a rank's 512 rows go to the other node */
    const bench_work staged = even_work(4, BENCH_STAGED), node = even_work(4, BENCH_NODE);
    const bench_prediction s = predicted(&staged), n = predicted(&node);
    const double rows = 512 * ROW_BYTES;
    assert_within(s.part[BENCH_BETWEEN], 2.0 * (rows / 5e9 + rows / 4.0 / 4e9 + rows / 2.0 / 1e9),
                  1e-12);
    assert_within(s.bytes_between, rows, 1e-6);
    /* between nodes, dispatch sends one row per token, and combine sends one row per slot */
    assert_within(n.bytes_between, 128 * ROW_BYTES + rows / 2.0, 1e-6);
    assert_within(n.part[BENCH_BETWEEN], n.bytes_between * (1.0 / 5e9 + 1.0 / 1e9), 1e-12);
    assert_within(n.part[BENCH_INSIDE], 2.0 * rows / 10e9, 1e-12);
    assert_true(n.seconds < s.seconds);
}

/* Sets the rate of all GEMMs to 100 GFLOP/s. */
static void set_rates(const char *type) {
    static const char *const ops[] = {"forward", "glu", "dgrad", "wgrad"};
    machine.gemms = 0;
    for (int i = 0; i < 4; i++) {
        bench_gemm_rate rate = {.n = 1024, .k = 512, .rows = 64, .gflops = 100};
        strcpy(rate.op, ops[i]);
        strcpy(rate.type, type);
        ASSERT_OK(bench_machine_add(&machine, &rate));
    }
}

/* Predicts forward and backward on devices that are linked directly. */
static bench_prediction linked_prediction(size_t ranks, const char *type, double result_bytes) {
    set_rates(type);
    machine.linked = true;
    machine.ranks_per_node = 4.0;
    machine.copy_gbps = 125.0; /* GB/s; kernels reach 80 % of this rate, 100 GB/s */
    bench_work w = even_work(ranks, BENCH_WINDOW);
    w.type = type;
    w.backward = true;
    w.result_bytes = result_bytes;
    return predicted(&w);
}

ROUND_TEST(test_linked_devices_by_hand) {
    const double rows = 512 * ROW_BYTES, tokens = 128 * ROW_BYTES;
    /* Two ranks, f32: half of the 512 rows stay on their rank. Of the other half, each token has
     * two rows, which are equal: one row crosses the link, and its receiver makes the second row
     * from it. All results of the remote experts cross the link; in backward, their transfer
     * overlaps the weight gradients. */
    const bench_prediction f = linked_prediction(2, "f32", 4.0);
    assert_within(f.part[BENCH_INSIDE], 2.0 * (tokens + rows / 2.0) / 10e9, 1e-12);
    assert_within(f.bytes_inside, tokens + rows / 2.0, 1e-6);
    assert_within(f.hidden, rows / 2.0 / 10e9, 1e-12);
    /* In bf16, the results are sent while the GEMM computes them, and the sum reads the results
     * from memory. */
    const bench_prediction b = linked_prediction(2, "bf16", 2.0);
    assert_within(b.part[BENCH_INSIDE], 2.0 * (tokens + rows / 4.0) / 10e9, 1e-12);
    assert_within(b.hidden, 2.0 * rows / 4.0 / 10e9, 1e-12);
    assert_within(b.part[BENCH_MEMORY] - f.part[BENCH_MEMORY], rows / 2.0 / 100e9, 1e-12);
    /* Four ranks with one expert each: the rows of a token go to different ranks. So three quarters
     * of the rows cross a link, and no receiver copies a row. */
    const bench_prediction four = linked_prediction(4, "f32", 4.0);
    assert_within(f.part[BENCH_MEMORY] - four.part[BENCH_MEMORY], 2.0 * 2.0 * tokens / 100e9,
                  1e-12);
    assert_within(four.part[BENCH_INSIDE], 2.0 * 2.0 * 0.75 * rows / 10e9, 1e-12);
    /* One rank alone copies rows within its memory, at 100 GB/s. */
    const bench_prediction one = linked_prediction(1, "f32", 4.0);
    assert_within(one.part[BENCH_INSIDE], 4.0 * 2.0 * rows / 100e9, 1e-12);
    assert_within(one.hidden, 0.0, 0.0);
}

ROUND_TEST(test_parts_add_up_to_the_whole) {
    for (size_t chunks = 1; chunks <= 4; chunks *= 2) {
        bench_work w = even_work(4, BENCH_NODE);
        w.chunks = chunks;
        const bench_prediction p = predicted(&w);
        double sum = -p.hidden;
        for (int i = 0; i < BENCH_PARTS; i++)
            sum += p.part[i];
        assert_within(p.seconds / sum, 1.0, 1e-12);
        assert_true(chunks > 1 ? p.hidden > 0.0 : fabs(p.hidden) < 1e-15);
        assert_true(p.seconds >= p.part[BENCH_GEMMS]);
        assert_true(p.seconds >= p.part[BENCH_BETWEEN]);
    }
}

ROUND_TEST(test_chunks_default_to_the_exchanges_and_hide_less_on_shared_cores) {
    bench_work w = even_work(4, BENCH_STAGED), whole = w;
    bench_machine shared = machine;
    bench_prediction p, q;
    whole.tokens = w.tokens = 4096;
    whole.experts = w.experts = 64;
    w.chunks = 0;
    p = predicted(&w);
    whole.chunks = MOERT_EXCHANGE_GOOD_CHUNKS;
    assert_within(p.hidden, predicted(&whole).hidden, 1e-15);
    whole.chunks = 1;
    assert_true(p.seconds < predicted(&whole).seconds);
    shared.shared_cores = 2.0;
    ASSERT_OK(bench_predict(&shared, &w, &q));
    assert_true(q.seconds > p.seconds);
    assert_true(q.hidden / q.seconds < p.hidden / p.seconds);
}

ROUND_TEST(test_more_of_anything_takes_no_less) {
    bench_work w = even_work(4, BENCH_NODE);
    /* each token chooses 4 of 16 experts, so that the placement of experts matters */
    w.experts = 16;
    const bench_prediction base = predicted(&w);
    bench_work tokens = w, hidden = w, topk = w, skewed = w, narrow = w, ranks = w;
    tokens.tokens *= 2;
    hidden.hidden *= 2;
    topk.topk += 1;
    skewed.skew = skew_zipf;
    narrow.row_bytes = 2.0;
    ranks.ranks = ranks.ep = 8;
    assert_true(predicted(&tokens).seconds > 1.5 * base.seconds);
    assert_true(predicted(&hidden).seconds > base.seconds);
    assert_true(predicted(&topk).seconds > base.seconds);
    assert_true(predicted(&skewed).seconds > base.seconds);
    assert_true(predicted(&narrow).seconds < base.seconds);
    assert_true(predicted(&ranks).part[BENCH_BETWEEN] > base.part[BENCH_BETWEEN]);
}

ROUND_TEST(test_shared_cores_slow_gemms_and_crowds_slow_the_network) {
    bench_work w = even_work(4, BENCH_STAGED);
    const bench_prediction own = predicted(&w);
    machine.shared_cores = 2.0; /* two ranks share a core */
    assert_within(predicted(&w).part[BENCH_GEMMS] / own.part[BENCH_GEMMS], 2.0, 1e-12);
    machine.shared_cores = 0.0;
    w = even_work(4, BENCH_STAGED);
    machine.ranks_per_node = 1.0; /* on four nodes, three quarters of the rows go to another node */
    machine.crowd = 0.5;
    machine.crowd_nodes = 4.0;
    assert_within(predicted(&w).part[BENCH_BETWEEN],
                  2.0 * 512 * ROW_BYTES * (0.2 + 0.75 / 0.5) / 1e9, 1e-12);
}

ROUND_TEST(test_gradients_of_replicas_are_summed) {
    set_rates("f32");
    bench_work w = even_work(2, BENCH_WINDOW);
    w.backward = true;
    const double alone = predicted(&w).part[BENCH_SUMS];
    /* two EP groups on two nodes: an expert has 12 H I bytes of gradients; half of these bytes
     * travel, twice, for each of 2 experts */
    w.ranks = 4;
    const bench_prediction p = predicted(&w);
    const double router = 2.0 * 0.75 * 4.0 * 512 * 4 / 1e9;
    assert_within(p.part[BENCH_SUMS], 12.0 * 512 * 512 * 2 / 1e9 + router, 1e-8);
    assert_true(p.part[BENCH_SUMS] > alone);
}

static void assert_unfit(const bench_work *work, const char *message) {
    bench_prediction p;
    ASSERT_FAILS(bench_predict(&machine, work, &p), MOERT_ERROR_USAGE, message);
}

ROUND_TEST(test_what_does_not_fit_is_refused) {
    bench_work w = even_work(4, BENCH_WINDOW);
    assert_unfit(&w, "works within one node, not across 2 nodes");
    w.engine = BENCH_NODE;
    w.ep = 3;
    assert_unfit(&w, "4 ranks cannot form groups of 3");
    w.ep = w.ranks = 8;
    assert_unfit(&w, "over 8 ranks");
    machine.linked = true;
    assert_unfit(&w, "works on CPU devices only");
}

/* ---- H200 ---- */

/* Makes a layer of a released model, in bf16, with 8192 tokens per rank. */
static bench_work model_work(size_t ranks, size_t model) {
    bench_work w = even_work(ranks, BENCH_WINDOW);
    bench_model_take(model, &w.hidden, &w.intermediate, &w.experts, &w.topk);
    w.tokens = 8192;
    w.type = "bf16";
    w.row_bytes = 2.0;
    return w;
}

/* bench/results/h200/train-2026-11-28.txt reports 95575 tokens/s for a Qwen3-MoE model with 4
 * layers on one H200, in batches of 4 x 2048 tokens. */
TEST(test_a_step_on_one_h200_is_near_the_measured_one) {
    read_machine("bench/machines/h200.json");
    static const bench_stack stack = {4, 32, 4, 128, 151936, 2048};
    bench_work w = model_work(1, 1);
    bench_step one, four;
    ASSERT_OK(bench_predict_step(&machine, &w, &stack, &one));
    w.micro_batches = 4;
    ASSERT_OK(bench_predict_step(&machine, &w, &stack, &four));
    assert_within(one.seconds / (8192.0 / 95575.0), 1.0, 0.2);
    assert_within(one.layers + one.dense + one.optimizer + one.sums, one.seconds, 1e-12);
    /* four micro-batches share one step of the optimizer */
    assert_within(four.layers, 4.0 * one.layers, 1e-9);
    assert_within(four.dense, 4.0 * one.dense, 1e-9);
    assert_within(four.optimizer, one.optimizer, 0.0);
}

/* Measured milliseconds of forward and of forward + backward, with 8192 tokens per rank, all in
 * bf16, from bench/results/h200-ranks-{4-2026-11-22,2-2026-11-23}.txt. No constant of the
 * prediction was fitted to these times. */
TEST(test_layers_on_h200s_are_near_the_measured_ones) {
    read_machine("bench/machines/h200.json");
    static const struct {
        size_t ranks, model;
        double forward, both;
    } cases[] = {
        {4, 1, 1.8618, 4.5571},   {4, 2, 2.0995, 5.4249},  {4, 3, 11.2785, 34.4230},
        {4, 4, 9.6490, 28.8141},  {2, 1, 1.5638, 4.4028},  {2, 2, 1.8353, 5.1854},
        {2, 3, 11.6655, 38.0895}, {2, 4, 9.5882, 28.5552},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        bench_work w = model_work(cases[i].ranks, cases[i].model);
        w.result_bytes = 2.0;
        const bench_prediction forward = predicted(&w);
        w.backward = true;
        const bench_prediction both = predicted(&w);
        assert_within(forward.seconds * 1e3 / cases[i].forward, 1.0, 0.2);
        assert_within((both.seconds - both.part[BENCH_SUMS]) * 1e3 / cases[i].both, 1.0, 0.2);
    }
}

/* ---- files ---- */

ROUND_TEST(test_a_machine_is_read_as_it_was_written) {
    bench_machine again;
    machine.pipelined = machine.linked = true;
    machine.crowd = 0.75;
    ASSERT_OK(bench_machine_write(&machine, in_directory("again.json")));
    ASSERT_OK(bench_machine_read(in_directory("again.json"), &again));
    assert_string_equal(again.name, "round");
    assert_int_equal(again.gemms, 3);
    assert_within(again.gemm[2].gflops, 200.0, 0.0);
    assert_within(again.between.gbps, 1.0, 0.0);
    assert_within(again.crowd, 0.75, 0.0);
    assert_true(again.pipelined && again.linked);
    bench_machine_free(&again);
}

static void assert_refused(const char *text, const char *message) {
    bench_machine bad;
    write_json("bad.json", text);
    ASSERT_FAILS(bench_machine_read(in_directory("bad.json"), &bad), MOERT_ERROR_FORMAT, message);
    bench_machine_free(&bad);
}

ROUND_TEST(test_malformed_machines_name_the_field) {
    bench_machine bad;
    ASSERT_FAILS(bench_machine_read(in_directory("none.json"), &bad), MOERT_ERROR_IO, "none.json");
    assert_refused("{", "line 1");
    assert_refused("{'name': 3}", "'name' must be a text");
    assert_refused("{'name': 'a', 'source': 'b'}", "'ranks_per_node' is missing");
    assert_refused("{'name': 'a', 'source': 'b', 'ranks_per_node': -1}",
                   "'ranks_per_node' must be positive");
}

TESTS(make_test_directory, remove_test_directory)
