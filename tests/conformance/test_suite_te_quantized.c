// run: check=1
/*
 * TransformerEngine's tables of quantized GEMMs: NVFP4, and grouped NVFP4 and MXFP8, in TN, NN and
 * NT, each operand in blocks along the reduction index. The error of every result against float64
 * is at most 5e-6 of the largest element of its row; TransformerEngine's tolerances are 8e-3 and
 * wider.
 */
#include "base/memory.h"
#include "support/op/exact.h"
#include "support/suite.h"

enum { KINDS = 3 };

typedef struct shape {
    size_t groups, rows, k, n;
    bool slow;
} shape;

static moert_op_options describe(size_t kind, moert_format format, const shape *s) {
    return ops_gemm((moert_op_kind)kind, ops_scaled_by_groups(format), s->groups, s->rows, s->n,
                    s->k);
}

static void check(const char *what, const moert_op_options *o, const uint32_t *ends) {
    const bool small = o->rows * o->n * o->k <= (size_t)16 << 20;
    for (size_t b = 0; b < (small ? 2u : 1u); b++) {
        ops_bytes data = ops_bytes_make(o, ends);
        data.spread = true;
        ops_exact_run(what, suite_backends[b], &data, OPS_NEAR);
    }
}

TEST(test_nvfp4_gemms) {
    static const shape shapes[] = {{1, 128, 128, 128, false},  {1, 256, 256, 256, true},
                                   {1, 112, 128, 96, false},   {1, 304, 640, 304, false},
                                   {1, 256, 64, 256, false},   {1, 128, 128, 112, false},
                                   {1, 1008, 3072, 992, true}, {1, 4096, 512, 3072, true}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (size_t k = 0; k < KINDS && !suite_skips(shapes[i].slow); k++) {
            const uint32_t end = (uint32_t)shapes[i].rows;
            moert_op_options o = describe(k, MOERT_FORMAT_NVFP4, &shapes[i]);
            check("nvfp4", &o, &end);
            *ops_result(&o) = (moert_operand){.type = MOERT_DTYPE_BF16};
            check("nvfp4 to bf16", &o, &end);
        }
}

/* Random splits, stacked or discrete weights. */
TEST(test_quantized_grouped_gemms_of_every_layout) {
    static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4};
    static const shape shapes[] = {{1, 128, 128, 512, false},  {8, 1024, 128, 512, false},
                                   {3, 768, 256, 384, false},  {3, 864, 288, 416, true},
                                   {16, 4096, 128, 512, true}, {2, 256, 2880, 2880, true},
                                   {3, 1536, 384, 640, true}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (size_t c = 0; c < (size_t)KINDS * 2 && !suite_skips(shapes[i].slow); c++) {
            uint32_t ends[OPS_MOST_GROUPS];
            moert_op_options o = describe(c % KINDS, formats[c / KINDS], &shapes[i]);
            suite_split(i, shapes[i].rows, shapes[i].groups, ends);
            o.weight.discrete = (i + c) % 2 == 1;
            check("grouped", &o, ends);
        }
}

/* Without rows, results stay unchanged, except that a weight gradient without accumulation is 0. */
TEST(test_ops_without_rows_write_nothing_or_zero_gradients) {
    static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4};
    static const uint32_t none[4] = {0};
    for (size_t c = 0; c < (size_t)KINDS * 2 * 2 * 2 * 2; c++) {
        const shape s = {4, c / 24 ? 256 : 0, 160, 144, false};
        moert_op_options o = describe(c % KINDS, formats[c / 3 % 2], &s);
        const bool wgrad = o.kind == MOERT_OP_GEMM_WGRAD;
        const moert_op_buffer result = ops_result_buffer(o.kind);
        o.weight.discrete = true;
        o.accumulate = c / 6 % 2;
        ops_bytes data = ops_bytes_filled(&o, none);
        memset(data.at[result], OPS_UNSET, data.bytes[result]);
        ops_bytes_execute(suite_backends[c / 12 % 2], &data);
        for (size_t i = 0; i < data.bytes[result]; i++)
            assert_int_equal(data.at[result][i], wgrad && !o.accumulate ? 0 : OPS_UNSET);
    }
}

TESTS(open_test_device, close_test_device)
