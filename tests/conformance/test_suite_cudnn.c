// run: check=1
/*
 * The cuDNN frontend's grouped GEMMs in 16 bits, whose results cuDNN's own suite does not check.
 * Also the exact test of CUTLASS's MoE example: elements -1, 0 and 1, and many empty groups.
 */
#include "base/memory.h"
#include "support/gemm/suite_gemm.h"
#include "support/op/run.h"
#include "support/suite.h"

static const moert_dtype types[] = {MOERT_DTYPE_BF16, MOERT_DTYPE_F16, MOERT_DTYPE_F32};
enum { KINDS = 3, TYPES = 3 };

/* Checks that both backends give the same bits, and that samples agree with the oracle. */
static void check(const char *what, const suite_gemm *p, bool parts, size_t samples,
                  double tolerance) {
    const char *title = titled("%s: %s", what, ops_title(&p->options));
    void *result = suite_gemm_run("portable", p);
    suite_gemm_check_backends(title, p, result, SIZE_MAX);
    suite_gemm_check(title, p, result, samples, tolerance, tolerance);
    if (parts)
        suite_gemm_check_parts(title, p, result);
}

/* moe_grouped_matmul: 36 experts, 2000 tokens; first[] is each expert's first token. */
TEST(test_thirty_six_experts_of_one_to_many_tokens) {
    enum { E = 36, T = 2000, N = 248, K = 520 };
    static const uint32_t first[E] = {0,    1,    2,    3,    4,    5,    6,    7,    8,
                                      9,    10,   11,   12,   13,   14,   15,   16,   17,
                                      18,   127,  255,  383,  483,  515,  643,  718,  924,
                                      1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800, 1900};
    uint32_t ends[E];
    for (size_t e = 0; e < E; e++)
        ends[e] = e + 1 < E ? first[e + 1] : T;
    for (size_t i = 0; i < KINDS * TYPES; i++) {
        if (suite_skips(i >= KINDS))
            break;
        suite_gemm p = suite_gemm_of((moert_op_kind)(i % KINDS), types[i / KINDS], E, T, N, K);
        p.ends = ends;
        check("moe_grouped_matmul", &p, true, 4096, 1e-5);
    }
}

/* All sums are small integers, so nothing is rounded and results equal float64. */
TEST(test_signs_multiply_exactly_in_groups_of_any_size) {
    static const struct {
        size_t groups, rows, block, n, k;
        bool slow;
    } cases[] = {{8, 512, 32, 256, 128, false},
                 {16, 256, 16, 136, 200, false},
                 {32, 1024, 32, 128, 160, false},
                 {64, 8192, 64, 512, 384, true}};
    size_t empty = 0;
    for (size_t i = 0; i < MOERT_COUNT(cases); i++)
        for (size_t c = 0; c < KINDS * TYPES && !suite_skips(cases[i].slow); c++) {
            uint32_t ends[64];
            suite_gemm p = suite_gemm_of((moert_op_kind)(c % KINDS), types[c / KINDS],
                                         cases[i].groups, cases[i].rows, cases[i].n, cases[i].k);
            suite_dirichlet(i, cases[i].rows, cases[i].block, cases[i].groups, ends);
            for (size_t g = 1; g < cases[i].groups; g++)
                empty += ends[g] == ends[g - 1];
            p.ends = ends;
            p.signs = true;
            ops_result(&p.options)->type = MOERT_DTYPE_F32;
            check("signs", &p, false, 4096, 0.0);
        }
    assert_true(empty > KINDS * TYPES);
}

/* The sizes of the groups change from call to call ("dynamic M"): one op and its buffers are
 * reused, and only their content, with `ends`, changes. */
TEST(test_one_op_serves_every_size_of_the_groups) {
    enum { G = 4, N = 40, K = 48, MOST = G * 832 };
    static const uint32_t sizes[] = {64, 320, 576, 832, 0, 64};
    for (size_t b = 0; b < 2; b++) {
        moert_op_options o =
            suite_gemm_of(MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_F32, G, MOST, N, K).options;
        moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
        o.backend = b ? "reference" : "portable";
        moert_op *op = ops_open(&o);
        buffers.x = unset_floats(MOST * K);
        buffers.weight = unset_floats(G * N * K);
        buffers.y = unset_floats(MOST * N);
        buffers.ends = unset_floats(G);
        for (size_t i = 0; i < MOERT_COUNT(sizes); i++) {
            const uint32_t m = sizes[i], ends[G] = {m, 2 * m, 3 * m, 4 * m};
            ops_data data = ops_make(&o, ends, true);
            for (moert_op_buffer k = 0; k <= MOERT_OP_BUFFER_y; k++)
                if (data.shape.needs[k].needed)
                    ASSERT_OK(moert_buffer_write(*moert_op_buffer_at(&buffers, k), 0, data.at[k],
                                                 data.count[k] * sizeof(float)));
            ASSERT_OK(moert_op_execute(op, &buffers));
            float *y = download(buffers.y, MOST * N * sizeof *y);
            ops_expect_gemm(&data);
            assert_same_bits(o.backend, y, data.at[MOERT_OP_BUFFER_y], MOST * N);
        }
    }
}

TESTS(open_test_device, close_test_device)
