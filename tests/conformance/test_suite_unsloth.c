// run: check=1
/*
 * Unsloth's table of grouped GEMMs in a MoE block: forward, dX and dW. The first projection [2I,H]
 * reads tokens in their order or sorted by expert. The second projection [H,I] writes results in
 * either order.
 */
#include "base/memory.h"
#include "support/gemm/suite_gemm.h"
#include "support/op/cases.h"
#include "support/suite.h"

enum { KINDS = 3, MOST_EXPERTS = 128, SAMPLES = 512 };

/* Unsloth's tolerance, absolute and relative. */
static double tolerance_of(moert_dtype type) {
    return type == MOERT_DTYPE_BF16 ? 1e-3 : type == MOERT_DTYPE_F16 ? 1e-4 : 1e-5;
}

typedef struct model {
    size_t hidden, intermediate, experts, topk, tokens;
    bool discrete;
} model;

/* The slots sorted by expert, and the end of each expert's rows. */
typedef struct routing {
    size_t rows;
    uint32_t *gather, ends[MOST_EXPERTS];
} routing;

static routing route(const model *m) {
    routing r = {.rows = m->tokens * m->topk};
    int32_t *index = test_alloc(r.rows * sizeof *index);
    r.gather = test_alloc(r.rows * sizeof *r.gather);
    suite_route(m->experts, m->tokens, m->topk, m->experts, index);
    suite_sort(index, r.rows, m->experts, r.gather, r.ends);
    return r;
}

/* Checks one kind of GEMM (forward, dX or dW) of the first or second projection, with or without a
 * permutation of rows. */
static void check(const model *m, const routing *r, moert_op_kind kind, moert_dtype type,
                  bool second, bool permuted) {
    const size_t before = owned_count(), n = second ? m->hidden : 2 * m->intermediate;
    const size_t k = second ? m->intermediate : m->hidden;
    suite_gemm p = suite_gemm_of(kind, type, m->experts, r->rows, n, k);
    p.ends = r->ends;
    p.options.weight.discrete = m->discrete;
    p.options.topk = m->topk;
    if (permuted) {
        p.options.permute = second ? MOERT_OP_PERMUTE_Y : MOERT_OP_PERMUTE_X;
        p.gather = r->gather;
    }
    const char *title = titled("W%d: %s", second ? 2 : 1, ops_title(&p.options));
    void *result = suite_gemm_run("portable", &p);
    suite_gemm_check(title, &p, result, SAMPLES, tolerance_of(type), tolerance_of(type));
    suite_gemm_check_backends(title, &p, result, (size_t)8 << 20);
    release_since(before);
}

static void check_model(const model *m, moert_dtype type, size_t kinds_used) {
    routing r = route(m);
    for (size_t c = 0; c < kinds_used * 4; c++)
        check(m, &r, (moert_op_kind)(c / 4), type, c % 2 == 1, c / 2 % 2 == 1);
}

TEST(test_small_models_in_every_legal_permutation) {
    static const size_t sizes[] = {32, 128, 512}, experts[] = {4, 16}, topk[] = {1, 4},
                        tokens[] = {128, 1024};
    for (size_t i = 0; i < 3 * 2 * 2 * 2; i++) {
        const size_t size = sizes[i / 8];
        const model m = {size, size, experts[i % 2], topk[i / 2 % 2], tokens[i / 4 % 2], false};
        if (!suite_skips(size * m.tokens * m.topk > (size_t)1 << 20))
            check_model(&m, MOERT_DTYPE_BF16, KINDS);
    }
}

TEST(test_small_models_in_the_other_types) {
    static const moert_dtype types[] = {MOERT_DTYPE_F16, MOERT_DTYPE_F32};
    for (size_t i = 0; i < 8; i++) {
        const size_t size = i / 4 ? 128 : 32;
        const model m = {size, size, 16, i / 2 % 2 ? 4 : 1, 128, i % 2};
        check_model(&m, types[i % 2], KINDS);
    }
}

/* The first model has an eighth of Qwen3's widths. Unsloth, too, runs Llama 4's backward only at a
 * smaller size. */
TEST(test_qwen3_and_llama4) {
    static const struct {
        model m;
        size_t kinds;
        bool slow;
    } rows[] = {
        {{256, 96, 128, 8, 128, true}, 3, false},   {{2048, 768, 128, 8, 128, false}, 3, true},
        {{2048, 768, 128, 8, 1024, true}, 3, true}, {{5120, 8192, 16, 1, 128, true}, 1, true},
        {{5120, 8192, 16, 1, 1024, true}, 1, true}, {{1024, 1024, 16, 1, 1024, true}, 3, true},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        if (!suite_skips(rows[i].slow))
            check_model(&rows[i].m, MOERT_DTYPE_BF16, rows[i].kinds);
}

TESTS(open_test_device, close_test_device)
