// run: np=1 sanitize=1
/* Causal attention against a float64 forward, and gradients against central differences of that
 * forward. */
#include "attention/attention.h"
#include "support/test.h"

typedef struct shape {
    size_t sequences, length, heads, kv_heads, head_size;
} shape;

static const shape cases[] = {{0, 17, 2, 1, 20}, {2, 0, 2, 1, 20},   {1, 1, 1, 1, 20},
                              {3, 17, 4, 2, 20}, {2, 33, 3, 3, 24},  {1, 70, 4, 1, 64},
                              {2, 37, 2, 2, 7},  {1, 50, 4, 2, 128}, {1, 70, 2, 1, 300}};
#define CASES MOERT_COUNT(cases)

static size_t q_count(shape s) {
    return s.sequences * s.length * s.heads * s.head_size;
}
static size_t kv_count(shape s) {
    return s.sequences * s.length * s.kv_heads * s.head_size;
}
static size_t lse_count(shape s) {
    return s.sequences * s.length * s.heads;
}

/* Inputs and float64 results; the loss is sum(dout * out) over sequence `counted`. */
typedef struct oracle {
    shape shape;
    double *q, *k, *v, *dout, *out, *lse;
    size_t counted;
} oracle;

/* Computes out and lse of row i of one head. `score` has room for i + 1 values. */
static void oracle_row(oracle *o, size_t sequence, size_t i, size_t head, double *score) {
    const shape s = o->shape;
    const size_t d = s.head_size, row = (sequence * s.length + i) * s.heads + head;
    const size_t kv_head = head * s.kv_heads / s.heads, kv_stride = s.kv_heads * d;
    const double *q = o->q + row * d, *k = o->k + sequence * s.length * kv_stride + kv_head * d;
    const double *v = o->v + (k - o->k);
    double highest = -INFINITY, total = 0;
    for (size_t j = 0; j <= i; j++) {
        score[j] = 0;
        for (size_t c = 0; c < d; c++)
            score[j] += q[c] * k[j * kv_stride + c];
        score[j] /= sqrt((double)d);
        highest = fmax(highest, score[j]);
    }
    for (size_t j = 0; j <= i; j++)
        total += exp(score[j] - highest);
    o->lse[row] = highest + log(total);
    memset(o->out + row * d, 0, d * sizeof(double));
    for (size_t j = 0; j <= i; j++) {
        const double probability = exp(score[j] - o->lse[row]);
        for (size_t c = 0; c < d; c++)
            o->out[row * d + c] += probability * v[j * kv_stride + c];
    }
}

static double oracle_loss(void *context) {
    oracle *o = context;
    const shape s = o->shape;
    double loss = 0, *score = test_alloc(s.length * sizeof *score);
    for (size_t i = 0; i < s.length; i++)
        for (size_t head = 0; head < s.heads; head++) {
            oracle_row(o, o->counted, i, head, score);
            const size_t at = ((o->counted * s.length + i) * s.heads + head) * s.head_size;
            for (size_t c = 0; c < s.head_size; c++)
                loss += o->out[at + c] * o->dout[at + c];
        }
    return loss;
}

static oracle oracle_create(shape s) {
    return (oracle){.shape = s,
                    .q = random_doubles("q", q_count(s)),
                    .k = random_doubles("k", kv_count(s)),
                    .v = random_doubles("v", kv_count(s)),
                    .dout = random_doubles("dout", q_count(s)),
                    .out = random_doubles("out", q_count(s)),
                    .lse = random_doubles("lse", lse_count(s))};
}

enum { OUT, LSE, DQ, DK, DV, RESULTS };
static const char *const result_names[] = {"out", "lse", "dq", "dk", "dv"};

typedef struct results {
    size_t count[RESULTS];
    float *value[RESULTS];
} results;

/* Runs forward, and backward if `backward`, on the oracle's sequences [first, first +
 * sequences). */
static results device_attention_of(moert_dtype type, const oracle *o, size_t first,
                                   size_t sequences, bool backward) {
    shape s = o->shape;
    s.sequences = first;
    const size_t q_first = q_count(s), kv_first = kv_count(s);
    s.sequences = sequences;
    results got = {.count = {q_count(s), lse_count(s), q_count(s), kv_count(s), kv_count(s)}};
    moert_buffer *made[RESULTS], *scratch = NULL;
    for (size_t r = 0; r < RESULTS; r++)
        made[r] = unset_floats(got.count[r]);
    moert_buffer *out_bf16 = type != MOERT_DTYPE_F32 ? unset_bf16(q_count(s)) : NULL, *again = NULL;
    moert_attention attention = {.sequences = sequences,
                                 .length = s.length,
                                 .heads = s.heads,
                                 .kv_heads = s.kv_heads,
                                 .head_size = s.head_size,
                                 .scale = 1.0f / sqrtf((float)s.head_size),
                                 .q = upload_doubles(o->q + q_first, q_count(s)),
                                 .k = upload_doubles(o->k + kv_first, kv_count(s)),
                                 .v = upload_doubles(o->v + kv_first, kv_count(s)),
                                 .out = made[OUT],
                                 .lse = made[LSE],
                                 .dout = upload_doubles(o->dout + q_first, q_count(s)),
                                 .dq = made[DQ],
                                 .dk = made[DK],
                                 .dv = made[DV],
                                 .bf16 = out_bf16,
                                 .type = type,
                                 .scratch = &scratch};
    ASSERT_OK(moert_attention_forward(&attention));
    if (out_bf16 != NULL && backward)
        attention.bf16 = again = unset_bf16(q_count(s));
    if (backward)
        ASSERT_OK(moert_attention_backward(&attention));
    for (size_t r = 0; r < RESULTS; r++)
        got.value[r] = download_floats(made[r], got.count[r]);
    if (out_bf16 != NULL)
        assert_bf16("bf16 out", out_bf16, got.value[OUT], got.count[OUT]);
    if (again != NULL)
        assert_bf16("bf16 out of the backward", again, got.value[OUT], got.count[OUT]);
    return got;
}

static results device_attention(const oracle *o, size_t first, size_t sequences, bool backward) {
    return device_attention_of(MOERT_DTYPE_F32, o, first, sequences, backward);
}

TEST(test_attention_forward_agrees_with_float64) {
    for (size_t i = 0; i < CASES; i++) {
        oracle o = oracle_create(cases[i]);
        results got = device_attention(&o, 0, cases[i].sequences, false);
        for (o.counted = 0; o.counted < cases[i].sequences; o.counted++)
            oracle_loss(&o);
        assert_near("out", got.value[OUT], o.out, got.count[OUT], 5e-6);
        assert_near("lse", got.value[LSE], o.lse, got.count[LSE], 1e-6);
    }
}

TEST(test_attention_backward_agrees_with_central_differences) {
    for (size_t i = 0; i < CASES; i++) {
        const shape s = cases[i];
        oracle o = oracle_create(s);
        results got = device_attention(&o, 0, s.sequences, true);
        for (o.counted = 0; o.counted < s.sequences && s.length > 0; o.counted++) {
            double *const values[] = {o.q, o.k, o.v};
            for (size_t in = 0; in < 3; in++) {
                const size_t n = got.count[DQ + in] / s.sequences, at = o.counted * n;
                assert_gradient(result_names[DQ + in], got.value[DQ + in] + at,
                                (differentiated){values[in] + at, n, n / 97 + 1, oracle_loss, &o});
            }
        }
    }
}

/* Compares attention in bf16 with the float32 results, which the tests above compare with
 * float64. */
TEST(test_attention_in_bf16_rounds_operands_on_hopper_and_nothing_elsewhere) {
    const shape shapes[] = {{2, 1, 1, 1, 64},    {1, 63, 2, 1, 64},  {2, 65, 4, 2, 128},
                            {1, 129, 4, 4, 128}, {3, 200, 8, 2, 64}, {1, 700, 3, 1, 128},
                            {1, 70, 2, 1, 96}};
    const bool hopper = has_hopper("attention in bf16 must be that in f32");
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++) {
        const shape s = shapes[i];
        oracle o = oracle_create(s);
        results want = device_attention(&o, 0, s.sequences, true);
        results got = device_attention_of(MOERT_DTYPE_BF16, &o, 0, s.sequences, true);
        for (size_t r = 0; r < RESULTS; r++) {
            const double *exact = to_doubles(want.value[r], want.count[r]);
            if (!hopper || s.head_size % 64 != 0)
                assert_same_bits(result_names[r], got.value[r], want.value[r], want.count[r]);
            else /* results are sums of many operands, each with a relative error of up to 2^-9 */
                assert_close(result_names[r], got.value[r], exact, want.count[r],
                             r < DQ ? 0.02 : 0.05, 0.02);
        }
    }
}

static void assert_same_bits_alone(moert_dtype type, shape s) {
    oracle o = oracle_create(s);
    results batch = device_attention_of(type, &o, 0, s.sequences, true);
    for (size_t i = 0; i < s.sequences; i++) {
        results alone = device_attention_of(type, &o, i, 1, true);
        for (size_t r = 0; r < RESULTS; r++)
            assert_same_bits(result_names[r], alone.value[r], batch.value[r] + i * alone.count[r],
                             alone.count[r]);
    }
}

TEST(test_attention_has_the_same_bits_alone_and_in_a_batch) {
    assert_same_bits_alone(MOERT_DTYPE_F32, (shape){3, 45, 4, 2, 20});
    assert_same_bits_alone(MOERT_DTYPE_F32, (shape){3, 70, 2, 1, 64});
    assert_same_bits_alone(MOERT_DTYPE_F32, (shape){3, 33, 2, 2, 128});
    assert_same_bits_alone(MOERT_DTYPE_BF16, (shape){3, 150, 4, 2, 64});
    assert_same_bits_alone(MOERT_DTYPE_BF16, (shape){3, 333, 4, 1, 128});
}

TEST(test_attention_takes_4096_tokens_and_large_scores) {
    const shape s = {1, 4096, 1, 1, 20};
    oracle o = oracle_create(s);
    double *score = test_alloc(s.length * sizeof *score);
    for (size_t i = 0; i < q_count(s); i++)
        o.q[i] *= 64;
    results got = device_attention(&o, 0, 1, true);
    for (size_t i = 0; i < s.length; i += 195) {
        oracle_row(&o, 0, i, 0, score);
        assert_near("out", got.value[OUT] + i * 20, o.out + i * 20, 20, 2e-4);
        assert_near("lse", got.value[LSE] + i, o.lse + i, 1, 1e-6);
    }
    for (size_t r = DQ; r < RESULTS; r++)
        for (size_t i = 0; i < got.count[r]; i++)
            assert_true(isfinite(got.value[r][i]));
}

TEST(test_attention_refuses_what_it_cannot_do) {
    moert_buffer *x = unset_floats(64);
    moert_attention a = {.sequences = 1, .length = 1, .heads = 3, .kv_heads = 2, .head_size = 4};
    a.q = a.k = a.v = a.dout = a.out = a.lse = a.dq = a.dk = a.dv = x;
    assert_int_equal(moert_attention_forward(&a), MOERT_ERROR_USAGE);
    assert_int_equal(moert_attention_backward(&a), MOERT_ERROR_USAGE);
    a.type = MOERT_DTYPE_BF16;
    a.kv_heads = 1;
    ASSERT_FAILS(moert_attention_forward(&a), MOERT_ERROR_USAGE, "scratch");
    a.type = MOERT_DTYPE_E4M3;
    ASSERT_FAILS(moert_attention_backward(&a), MOERT_ERROR_UNSUPPORTED, "f32 or bf16");
    a.type = MOERT_DTYPE_F32;
    a.kv_heads = 0;
    assert_int_equal(moert_attention_forward(&a), MOERT_ERROR_USAGE);
    a.kv_heads = 1;
    a.head_size = 513;
    assert_int_equal(moert_attention_forward(&a), MOERT_ERROR_UNSUPPORTED);
}

TESTS(open_test_device, close_test_device)
