// run: check=1 all=1san
/* A forward GEMM with a fused GLU has the bits of a GEMM followed by a GLU, for every backend,
 * dtype and tile. */
#include "base/memory.h"
#include "support/gemm/gemm.h"

/* Widths of the GLU around the 16 columns of a tile, several blocks of K, empty groups, rows past
 * the last end. */
static const problem problems[] = {
    {.n = 2, .k = 1, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 32, .k = 16, .rows = 0, .groups = 2, .ends = {0, 0}},
    {.n = 32, .k = 33, .rows = 24, .groups = 3, .ends = {8, 16, 24}},
    {.n = 30, .k = 40, .rows = 23, .groups = 4, .ends = {0, 7, 7, 20}, .bias = true, .pad_x = 3},
    {.n = 34, .k = 31, .rows = 19, .groups = 3, .ends = {3, 3, 18}, .bias = true},
    {.n = 18, .k = 64, .rows = 40, .groups = 3, .ends = {3, 20, 39}, .shared = true, .bias = true},
    {.n = 70, .k = 1100, .rows = 18, .groups = 2, .ends = {1, 18}, .bias = true},
    {.n = 96, .k = 2100, .rows = 17, .groups = 2, .ends = {8, 17}},
    {.n = 46, .k = 2100, .rows = 9, .groups = 1, .ends = {9}, .bias = true},
    {.n = 40, .k = 33, .rows = 1200, .groups = 3, .ends = {1, 1100, 1199}},
    {.n = 300, .k = 17, .rows = 11, .groups = 1, .ends = {11}, .shared = true},
};
enum { PROBLEMS = MOERT_COUNT(problems) };

/* A tile of even width applies the GLU; one of odd width leaves it to a separate pass. */
static const moert_choices fusing = {4, 1024, 512, 8, 2, 16}, separate = {4, 1024, 512, 6, 1, 4096};

/* Calls `check` for every problem with one GLU, and every way with a forced tile. */
static void each_run(const moert_choices *tile, void (*check)(const problem *p, way by)) {
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = 0; w < gemm_way_count; w++) {
            problem p = problems[i];
            way by = gemm_ways[w];
            p.gate = &gates[i % GATES];
            by.choices = tile;
            check(&p, by);
        }
}

/* Compares one fused call with two calls: the same h, and the same v unless it is dropped. */
static void check_fused(const problem *p, way by) {
    by.separate = true;
    const ops_bytes want = run_new(p, FORWARD, &by);
    by.separate = false;
    check_run(p, FORWARD, &by, &want);
    by.drop_v = true;
    ops_bytes got = run_new(p, FORWARD, &by);
    memcpy(results_of(&got).data, results_of(&want).data, want.bytes[MOERT_OP_BUFFER_c]);
    ops_assert_same(titled("n %zu, k %zu, %s, v dropped", p->n, p->k, by.name), &got, &want, true);
}

/* Even problems use the first two GLUs, odd problems the last two. */
static void check_both_glus(const problem *p, way by) {
    problem other = *p;
    other.gate = &gates[(p->gate - gates) ^ 1];
    check_fused(p, by);
    check_fused(&other, by);
}

TEST(test_a_fused_call_has_the_bits_of_two_calls) {
    each_run(NULL, check_both_glus); /* the tile that this CPU uses by default */
    each_run(&fusing, check_both_glus);
    each_run(&separate, check_both_glus);
}

/* A v of more than 16 MiB is written past the caches, unless its rows are not aligned. */
TEST(test_a_fused_call_with_a_large_v_has_the_bits_of_two_calls) {
    problem large = {.k = 1, .rows = 2100, .groups = 2, .ends = {1001, 2100}};
    for (large.n = 2048; large.n <= 2064; large.n += 16) {
        large.gate = &gates[0];
        check_fused(&large, gemm_ways[PORTABLE_F32]);
        large.gate = &gates[2];
        check_fused(&large, gemm_ways[PREPACKED_BF16]);
    }
}

static void check_rounded_h(const problem *p, way by) {
    if (by.type == MOERT_DTYPE_F32)
        return; /* the backend refuses this case */
    ops_bytes want = run_new(p, FORWARD, &by);
    round_data(&want, MOERT_OP_BUFFER_d, MOERT_DTYPE_BF16);
    by.h = MOERT_DTYPE_BF16;
    check_run(p, FORWARD, &by, &want);
}

TEST(test_h_in_bf16_is_the_rounded_float32_h) {
    each_run(&fusing, check_rounded_h);
}

/* The backends' exp differ, so only v is compared. */
static void check_v(const problem *p, way by) {
    const way reference = reference_of(by);
    const ops_bytes got = run_new(p, FORWARD, &by), want = run_new(p, FORWARD, &reference);
    assert_same_bits(by.name, results_of(&got).data, results_of(&want).data,
                     results_of(&want).count);
}

TEST(test_v_of_the_portable_backend_has_the_bits_of_the_reference) {
    each_run(&fusing, check_v);
}

static void check_parts_of(const problem *p, way by) {
    if (!p->shared)
        check_parts(p, FORWARD, &by);
}

TEST(test_parts_of_the_groups_give_the_bits_of_the_whole) {
    each_run(&fusing, check_parts_of);
    each_run(&separate, check_parts_of);
}

static void check_dropped_v(const problem *p, way by) {
    if (by.type != MOERT_DTYPE_F32 || is_reference(&by) || p->k > 64)
        return;
    by.drop_v = true;
    const ops_bytes got = run_new(p, FORWARD, &by), before = make_data(p, FORWARD, &by, OPS_NORMAL);
    assert_same_bits(by.name, results_of(&got).data, results_of(&before).data,
                     results_of(&before).count);
}

TEST(test_a_dropped_v_is_not_written_after_a_short_chain) {
    if (moert_device_describe(test_device)->gpu_form)
        SKIP("in GPU form the GLU is a separate launch");
    each_run(&fusing, check_dropped_v);
}

static uint64_t hash;

static void add_to_hash(const problem *p, way by) {
    if (is_reference(&by))
        return;
    const ops_bytes a = run_new(p, FORWARD, &by);
    hash = hash_data(&a, hash);
}

/* Returns a hash of all results of the portable backend. */
static uint64_t digest(void) {
    each_run(&fusing, add_to_hash);
    return hash;
}

TEST(test_one_two_and_three_threads_give_the_same_bits) {
    check_threads();
}

TEST(test_what_does_not_fit_together_is_refused) {
    const problem p = {.n = 4, .k = 4, .rows = 4, .groups = 1, .ends = {4}};
    const ops_bytes a = make_data(&p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    const moert_gemm_kind forward = MOERT_GEMM_FORWARD;
    const moert_status usage = MOERT_ERROR_USAGE;
    moert_gemm gemm = upload_gemm(&p, &a);
    gemm.gated = true;
    gemm.glu = (moert_glu){.form = MOERT_GLU_SWIGLU, .h = unset_floats(8)};
    for (size_t b = 0; b < BACKENDS; b++) {
        set_variable("MOERT_BACKEND", backends[b]);
        ASSERT_OK(moert_gemm_run(&gemm));
        REFUSED(forward, usage, "", wrong.n = 3);
        REFUSED(forward, usage, "", wrong.ldy = 5);
        REFUSED(forward, usage, "", wrong.accumulate = true);
        REFUSED(forward, usage, "", wrong.glu.h = test_buffer(7 * sizeof(float)));
        REFUSED(forward, usage, "", wrong.glu.form.limit = 0.0f);
        REFUSED(forward, usage, "", wrong.k = 0);
        ASSERT_FAILS(run_as(MOERT_GEMM_DGRAD, &gemm), usage, "");
        REFUSED(forward, MOERT_ERROR_UNSUPPORTED, "needs bf16 operands",
                wrong.glu.type = MOERT_DTYPE_BF16);
    }
    moert_prepacked_shape shape = {1, 4, 4, MOERT_PREPACKED_FORWARD, MOERT_DTYPE_F32};
    moert_prepacked *prepacked = NULL;
    ASSERT_OK(moert_prepacked_create(test_device, &shape, &prepacked));
    if (prepacked != NULL) {
        gemm.prepacked = prepacked;
        ASSERT_FAILS(run_as(forward, &gemm), usage, "cannot serve forward with a GLU");
        gemm.glu.form.interleaved = true;
        ASSERT_OK(moert_prepacked_fill(prepacked, gemm.weight));
        ASSERT_OK(moert_gemm_run(&gemm));
    }
    moert_prepacked_destroy(prepacked);
    shape.n = 3;
    shape.use = MOERT_PREPACKED_GATED;
    ASSERT_FAILS(moert_prepacked_create(test_device, &shape, &prepacked), MOERT_ERROR_USAGE,
                 "needs an even n");
}

int main(int count, char **arguments) {
    return run_with_digest(__FILE__, count, arguments, digest);
}
