// run: check=1 all=1san
/* Grouped GEMM: exact results against float64 loops, guard values, and equal bits on every backend,
 * for every dtype, with prepacked and native weights. A forward GEMM with a fused GLU has the bits
 * of a GEMM followed by a GLU. */
#include "device/device.h"
#include "gemm/backend.h"
#include "support/gemm/gemm.h"

TEST(test_results_are_exact_and_stay_within_their_rows_and_empty_groups_get_zeros) {
    for (size_t i = 0; i < gemm_problem_count; i++)
        for (operation op = 0; op < OPERATIONS; op++)
            for (size_t w = 0; w < gemm_way_count; w++) {
                ops_bytes data = make_data(&gemm_problems[i], op, &gemm_ways[w], OPS_EXACT);
                check_gemm(&gemm_problems[i], op, &gemm_ways[w], &data, 0.0);
            }
}

TEST(test_portable_has_the_bits_of_the_reference) {
    ops_bytes want = {.bytes = {0}};
    for (size_t i = 0; i < gemm_problem_count; i++)
        for (operation op = 0; op < OPERATIONS; op++)
            for (const way *by = gemm_ways; by < gemm_ways + gemm_way_count; by++)
                if (is_reference(by))
                    want = run_new(&gemm_problems[i], op, by);
                else
                    check_run(&gemm_problems[i], op, by, &want);
}

TEST(test_a_row_has_the_same_bits_with_any_other_rows) {
    static const size_t ranges[][2] = {{0, 1},   {0, 5},   {0, 9},   {0, 13},   {3, 1},  {3, 5},
                                       {3, 9},   {3, 13},  {49, 1},  {49, 5},   {49, 9}, {49, 13},
                                       {117, 1}, {117, 5}, {117, 9}, {117, 13}, {299, 1}};
    const problem whole = {.n = 70,
                           .k = 1100,
                           .rows = 300,
                           .groups = 3,
                           .ends = {50, 50, 300},
                           .shared = true,
                           .bias = true};
    for (size_t w = 0; w < gemm_way_count; w++)
        if (!is_reference(&gemm_ways[w]))
            check_company(&whole, &gemm_ways[w], ranges, MOERT_COUNT(ranges));
}

TEST(test_wgrad_of_a_group_has_the_same_bits_wherever_its_rows_lie) {
    const problem whole = {
        .n = 40, .k = 70, .rows = 1500, .groups = 4, .ends = {13, 13, 1300, 1500}};
    const size_t ways[] = {PORTABLE_F32, PORTABLE_BF16};
    for (size_t w = 0; w < 2; w++) {
        const way *by = &gemm_ways[ways[w]];
        const ops_bytes start = make_data(&whole, WGRAD, by, OPS_WIDE),
                        all = run_new(&whole, WGRAD, by);
        for (size_t g = 0; g < whole.groups; g++) {
            const size_t first = ops_group_start(whole.ends, g), rows = whole.ends[g] - first;
            ops_bytes alone = run_alone(&whole, WGRAD, by, &start, first, rows);
            ops_assert_same_rows("weight", &(ops_pair){&alone, &all, 0, g, rows, 0});
        }
    }
}

static void check_rounded_wgrad(const problem *p, const way *by) {
    const size_t n = p->groups * p->n * p->k;
    const ops_bytes want = run_new(p, WGRAD, by), a = make_data(p, WGRAD, by, OPS_WIDE);
    set_variable("MOERT_BF16", by->bf16);
    moert_gemm gemm = upload_gemm(p, &a);
    const moert_gemm_more more = {.rounded = unset_bf16(n)};
    moert_gemm_set(&gemm, MOERT_GEMM_WGRAD, by->type);
    gemm.more = &more;
    ASSERT_OK(moert_gemm_run(&gemm));
    assert_bf16(by->name, more.rounded, results_of(&want).data, n);
    set_variable("MOERT_BF16", NULL);
}

TEST(test_a_rounded_wgrad_is_the_float32_one_rounded) {
    const problem whole_tiles = {
        .n = 128, .k = 128, .rows = 1400, .groups = 3, .ends = {40, 40, 1400}};
    for (size_t w = 0; w < gemm_way_count; w++) {
        check_rounded_wgrad(&whole_tiles, &gemm_ways[w]);
        for (size_t i = 0; i < gemm_problem_count; i++) {
            problem p = gemm_problems[i];
            p.accumulate = false;
            check_rounded_wgrad(&p, &gemm_ways[w]);
        }
    }
}

static void fill(ops_bytes *data, moert_op_buffer which, double value) {
    for (size_t i = 0; i < ops_bytes_count(data, which); i++)
        ops_bytes_put(data, which, i, value);
}

TEST(test_nothing_is_added_to_a_chain_after_its_last_product) {
    /* The old value is -0, and an odd number of products are 0 * -1 = -0. The sum stays -0 only if
     * nothing else is added. AMX tiles begin each step with +0, so the sum is +0 there. */
    const problem p = {.n = 17, .k = 17, .rows = 3, .groups = 1, .ends = {3}, .accumulate = true};
    for (size_t w = 0; w < gemm_way_count; w++) {
        set_variable("MOERT_BF16", gemm_ways[w].bf16);
        const bool tiled = moert_dot_of(test_device, gemm_ways[w].type) == MOERT_DOT_TILE;
        for (operation op = DGRAD; op <= WGRAD; op++) {
            ops_bytes data = make_data(&p, op, &gemm_ways[w], OPS_EXACT);
            const results result = results_of(&data);
            fill(&data, MOERT_OP_BUFFER_y, 0.0);
            fill(&data, MOERT_OP_BUFFER_x, -1.0);
            fill(&data, MOERT_OP_BUFFER_weight, -1.0);
            fill(&data, ops_result_buffer(data.shape.options.kind), -0.0);
            run_gemm(&p, op, &gemm_ways[w], &data);
            for (size_t i = 0; i < result.count; i++)
                assert_true(result.data[i] == 0.0f && !signbit(result.data[i]) == tiled);
        }
    }
}

TEST(test_parts_of_the_groups_give_the_bits_of_the_whole) {
    for (size_t i = 0; i < gemm_problem_count; i++)
        for (size_t w = 0; w < gemm_way_count && !gemm_problems[i].shared; w++)
            for (operation op = 0; op < OPERATIONS; op++)
                check_parts(&gemm_problems[i], op, &gemm_ways[w]);
}

/* ---- GLU ---- */

/* Forward GEMMs with a GLU: widths around the 16 columns of a tile, several blocks of K, empty
 * groups, rows past the last end. */
static const problem gated[] = {
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
/* A GEMM with tiles of even width applies the GLU; with tiles of odd width, a separate pass applies
 * it. */
static const moert_choices fusing = {4, 1024, 512, 8, 2, 16}, separate = {4, 1024, 512, 6, 1, 4096};

/* Calls `check` for every problem with one GLU, and every way with a forced tile. */
static void each_gated(const moert_choices *tile, void (*check)(const problem *p, way by)) {
    for (size_t i = 0; i < MOERT_COUNT(gated); i++)
        for (size_t w = 0; w < gemm_way_count; w++) {
            problem p = gated[i];
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
    each_gated(NULL, check_both_glus); /* the tile that this CPU uses by default */
    each_gated(&fusing, check_both_glus);
    each_gated(&separate, check_both_glus);
}

/* The kernel writes a v of more than 16 MiB with stores that bypass the caches, if the rows of v
 * are aligned. */
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
    each_gated(&fusing, check_rounded_h);
}

/* Compares only v, because the exp of the two backends differ. */
static void check_v(const problem *p, way by) {
    const way reference = reference_of(by);
    const ops_bytes got = run_new(p, FORWARD, &by), want = run_new(p, FORWARD, &reference);
    assert_same_bits(by.name, results_of(&got).data, results_of(&want).data,
                     results_of(&want).count);
}

TEST(test_v_of_the_portable_backend_has_the_bits_of_the_reference) {
    each_gated(&fusing, check_v);
}

static void check_parts_of(const problem *p, way by) {
    if (!p->shared)
        check_parts(p, FORWARD, &by);
}

TEST(test_parts_of_groups_with_a_glu_give_the_bits_of_the_whole) {
    each_gated(&fusing, check_parts_of);
    each_gated(&separate, check_parts_of);
}

static void check_dropped_v(const problem *p, way by) {
    if (by.type != MOERT_DTYPE_F32 || is_reference(&by) || p->k > 64)
        return;
    by.drop_v = true;
    const ops_bytes got = run_new(p, FORWARD, &by), before = make_data(p, FORWARD, &by, OPS_WIDE);
    assert_same_bits(by.name, results_of(&got).data, results_of(&before).data,
                     results_of(&before).count);
}

TEST(test_a_dropped_v_is_not_written_after_a_short_chain) {
    if (moert_device_describe(test_device)->gpu_form)
        SKIP("in GPU form the GLU is a separate launch");
    each_gated(&fusing, check_dropped_v);
}

/* ---- threads ---- */

static uint64_t hash;

static void add_to_hash(const problem *p, way by) {
    for (operation op = 0; op < (p->gate != NULL ? DGRAD : OPERATIONS) && !is_reference(&by);
         op++) {
        const ops_bytes data = run_new(p, op, &by);
        hash = hash_data(&data, hash);
    }
}

/* Returns a hash of all results of the portable backend. */
static uint64_t digest(void) {
    for (size_t i = 0; i < gemm_problem_count; i++)
        for (size_t w = 0; w < gemm_way_count; w++)
            add_to_hash(&gemm_problems[i], gemm_ways[w]);
    each_gated(&fusing, add_to_hash);
    return hash;
}

TEST(test_one_two_and_three_threads_give_the_same_bits) {
    check_threads();
}

/* ---- refusals ---- */

TEST(test_a_prepacked_weight_serves_only_its_shape) {
    const problem *p = &gemm_problems[5];
    const ops_bytes a = make_data(p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    moert_gemm gemm = upload_gemm(p, &a);
    const moert_panels_shape shape = {p->groups, p->n, p->k, MOERT_PANELS_FORWARD, MOERT_DTYPE_F32};
    moert_panels *panels = NULL;
    set_variable("MOERT_BACKEND", "reference");
    ASSERT_OK(moert_panels_create(test_device, &shape, &panels));
    assert_null(panels);
    ASSERT_OK(moert_panels_fill(panels, gemm.weight.buffer));
    assert_int_equal(moert_panels_bytes(panels), 0);
    set_variable("MOERT_BACKEND", "portable");
    ASSERT_OK(moert_panels_create(test_device, &shape, &panels));
    if (panels != NULL) {
        gemm.panels = panels;
        assert_in_range(moert_panels_bytes(panels), p->groups * p->n * p->k * 4, SIZE_MAX);
        moert_buffer *small = test_buffer(p->groups * p->n * p->k * 4 - 4);
        ASSERT_FAILS(moert_panels_fill(panels, small), MOERT_ERROR_USAGE, "too few");
        ASSERT_OK(moert_panels_fill(panels, gemm.weight.buffer));
        ASSERT_OK(run_as(MOERT_GEMM_FORWARD, &gemm));
        ASSERT_FAILS(run_as(MOERT_GEMM_DGRAD, &gemm), MOERT_ERROR_USAGE, "cannot serve dgrad");
        REFUSED(MOERT_GEMM_FORWARD, MOERT_ERROR_USAGE, "cannot serve forward", wrong.n--);
        REFUSED(MOERT_GEMM_FORWARD, MOERT_ERROR_USAGE, "cannot serve forward",
                wrong.x.type = MOERT_DTYPE_BF16);
    }
    moert_panels_destroy(panels);
}

static void take_part(moert_gemm *gemm, const size_t part[4]) {
    gemm->groups.first = part[0];
    gemm->groups.end = part[1];
    gemm->groups.first_row = part[2];
    gemm->groups.end_row = part[3];
}

TEST(test_a_wrong_description_is_refused_before_anything_is_written) {
    const moert_gemm_kind forward = MOERT_GEMM_FORWARD, wgrad = MOERT_GEMM_WGRAD;
    const moert_status usage = MOERT_ERROR_USAGE;
    const char *const whole = "needs a wgrad of all groups without accumulation";
    const size_t part[] = {1, 2, 4, 8};
    const size_t parts[][4] = {{1, 1, 4, 4}, {0, 3, 0, 8}, {0, 2, 5, 4}, {1, 2, 4, 9}};
    const problem p = {.n = 4, .k = 4, .rows = 8, .groups = 2, .ends = {4, 8}};
    const ops_bytes a = make_data(&p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    /* too small for 32 floats, but not for 32 values of 2 bytes */
    moert_buffer *small = test_buffer(31 * sizeof(float));
    moert_gemm gemm = upload_gemm(&p, &a);
    ASSERT_OK(run_as(forward, &gemm));
    REFUSED(forward, usage, "", wrong.y.buffer = small);
    REFUSED(forward, usage, "", wrong.x.stride = 3);
    REFUSED(forward, usage, "", wrong.weight.buffer = NULL);
    REFUSED(forward, usage, "", wrong.y.first = 1);
    REFUSED(forward, usage, "", wrong.k = 0);
    REFUSED(forward, MOERT_ERROR_UNSUPPORTED, "", wrong.x.type = MOERT_DTYPE_F16);
    for (size_t i = 0; i < MOERT_COUNT(parts); i++)
        REFUSED(forward, usage, "no part of 2 groups", take_part(&wrong, parts[i]));
    REFUSED(MOERT_GEMM_DGRAD, usage, "a weight for each group",
            (wrong.groups.shared = true, take_part(&wrong, part)));
    REFUSED(wgrad, MOERT_ERROR_UNSUPPORTED, "the other operand", wrong.x.type = MOERT_DTYPE_BF16);
    const moert_gemm_more more = {.rounded = unset_bf16(2 * 4 * 4)},
                          less = {.rounded = test_buffer(2 * 4 * 4 * 2 - 1)};
    gemm.more = &more;
    ASSERT_OK(run_as(wgrad, &gemm));
    REFUSED(wgrad, usage, whole, wrong.epilogue.addend = MOERT_ADDEND_FIRST);
    REFUSED(wgrad, usage, whole, take_part(&wrong, part));
    REFUSED(wgrad, usage, "rounded", wrong.more = &less);
    gemm.x.buffer = small;
    gemm.x.type = MOERT_DTYPE_BF16;
    ASSERT_OK(run_as(forward, &gemm));
    REFUSED(forward, usage, "", wrong.x.stride = 10);
}

TEST(test_a_wrong_glu_is_refused) {
    const problem p = {.n = 4, .k = 4, .rows = 4, .groups = 1, .ends = {4}};
    const ops_bytes a = make_data(&p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    const moert_gemm_kind forward = MOERT_GEMM_FORWARD;
    const moert_status usage = MOERT_ERROR_USAGE;
    moert_gemm gemm = upload_gemm(&p, &a);
    gemm.glu = (moert_glu){.gated = MOERT_GATED, .form = MOERT_GLU_SWIGLU, .h = unset_floats(8)};
    for (size_t b = 0; b < BACKENDS; b++) {
        set_variable("MOERT_BACKEND", backends[b]);
        ASSERT_OK(moert_gemm_run(&gemm));
        REFUSED(forward, usage, "", wrong.n = 3);
        REFUSED(forward, usage, "", wrong.y.stride = 5);
        REFUSED(forward, usage, "", wrong.epilogue.addend = MOERT_ADDEND_FIRST);
        REFUSED(forward, usage, "", wrong.glu.h = test_buffer(7 * sizeof(float)));
        REFUSED(forward, usage, "", wrong.glu.form.limit = 0.0f);
        REFUSED(forward, usage, "", wrong.k = 0);
        ASSERT_FAILS(run_as(MOERT_GEMM_DGRAD, &gemm), usage, "");
        REFUSED(forward, MOERT_ERROR_UNSUPPORTED, "only with bf16 operands",
                wrong.glu.type = MOERT_DTYPE_BF16);
    }
    moert_panels_shape shape = {1, 4, 4, MOERT_PANELS_FORWARD, MOERT_DTYPE_F32};
    moert_panels *panels = NULL;
    ASSERT_OK(moert_panels_create(test_device, &shape, &panels));
    if (panels != NULL) {
        gemm.panels = panels;
        ASSERT_FAILS(run_as(forward, &gemm), usage, "cannot serve forward with a GLU");
        gemm.glu.form.interleaved = true;
        ASSERT_OK(moert_panels_fill(panels, gemm.weight.buffer));
        ASSERT_OK(moert_gemm_run(&gemm));
    }
    moert_panels_destroy(panels);
    shape.n = 3;
    shape.use = MOERT_PANELS_GATED;
    ASSERT_FAILS(moert_panels_create(test_device, &shape, &panels), MOERT_ERROR_USAGE,
                 "needs an even n");
}

TEST(test_a_backend_named_for_another_device_is_an_error) {
    const problem p = {.n = 1, .k = 1, .rows = 1, .groups = 1, .ends = {1}};
    const ops_bytes a = make_data(&p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    const moert_panels_shape shape = {1, 1, 1, MOERT_PANELS_FORWARD, MOERT_DTYPE_F32};
    moert_panels *panels = NULL;
    const moert_gemm gemm = upload_gemm(&p, &a);
    set_variable("MOERT_BACKEND", "nvidia");
    if (has_tensor_cores("nvidia is an error")) {
        ASSERT_OK(run_as(MOERT_GEMM_FORWARD, &gemm)); /* float32 operands do not use tensor cores */
    } else {
        const char *const text = "MOERT_BACKEND is nvidia, which takes GPUs of compute";
        ASSERT_FAILS(run_as(MOERT_GEMM_FORWARD, &gemm), MOERT_ERROR_UNSUPPORTED, text);
        ASSERT_FAILS(run_as(MOERT_GEMM_WGRAD, &gemm), MOERT_ERROR_UNSUPPORTED, text);
        ASSERT_FAILS(moert_panels_create(test_device, &shape, &panels), MOERT_ERROR_UNSUPPORTED,
                     text);
        assert_null(panels);
    }
    set_variable("MOERT_BACKEND", NULL);
    ASSERT_OK(run_as(MOERT_GEMM_FORWARD, &gemm));
}

int main(int count, char **arguments) {
    return run_with_digest(__FILE__, count, arguments, digest);
}
