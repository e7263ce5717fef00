#include "support/attention/attention.h"

const char *const attention_result_names[ATTENTION_RESULTS] = {"out", "lse", "dq",
                                                               "dk",  "dv",  "dsinks"};

static size_t value_size(const attention_shape *s) {
    return s->value_size > 0 ? s->value_size : s->head_size;
}

size_t attention_q_width(const attention_shape *shape) {
    return shape->heads * shape->head_size;
}
size_t attention_k_width(const attention_shape *shape) {
    return shape->kv_heads * shape->head_size;
}
size_t attention_v_width(const attention_shape *shape) {
    return shape->kv_heads * value_size(shape);
}
size_t attention_out_width(const attention_shape *shape) {
    return shape->heads * value_size(shape);
}

/* ---- float64 ---- */

attention_oracle attention_oracle_create(attention_shape shape) {
    const size_t tokens = shape.sequences * shape.length;
    return (attention_oracle){.shape = shape,
                              .q = random_doubles("q", tokens * attention_q_width(&shape)),
                              .k = random_doubles("k", tokens * attention_k_width(&shape)),
                              .v = random_doubles("v", tokens * attention_v_width(&shape)),
                              .sinks = shape.sinks ? random_doubles("sinks", shape.heads) : NULL,
                              .dout = random_doubles("dout", tokens * attention_out_width(&shape)),
                              .out =
                                  test_alloc(tokens * attention_out_width(&shape) * sizeof(double)),
                              .lse = test_alloc(tokens * shape.heads * sizeof(double))};
}

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

void attention_oracle_row(attention_oracle *o, size_t sequence, size_t i, size_t head) {
    const attention_shape *s = &o->shape;
    const size_t d = s->head_size, e = value_size(s), token = sequence * s->length + i;
    const size_t row = token * s->heads + head, kv_head = head * s->kv_heads / s->heads;
    const size_t first = s->window > 0 && i + 1 > s->window ? i + 1 - s->window : 0;
    double *score = malloc((i + 1) * sizeof *score), *out = o->out + row * e;
    double highest = o->sinks != NULL ? o->sinks[head] : -INFINITY, total = 0;
    assert_non_null(score);
    for (size_t j = first; j <= i; j++) {
        const size_t key = (sequence * s->length + j) * s->kv_heads + kv_head;
        score[j] = dot(o->q + row * d, o->k + key * d, d) / sqrt((double)d);
        highest = fmax(highest, score[j]);
    }
    for (size_t j = first; j <= i; j++)
        total += exp(score[j] - highest);
    if (o->sinks != NULL)
        total += exp(o->sinks[head] - highest);
    o->lse[row] = highest + log(total);
    memset(out, 0, e * sizeof *out);
    for (size_t j = first; j <= i; j++) {
        const double *v = o->v + ((sequence * s->length + j) * s->kv_heads + kv_head) * e;
        const double probability = exp(score[j] - o->lse[row]);
        for (size_t c = 0; c < e; c++)
            out[c] += probability * v[c];
    }
    free(score);
}

double attention_oracle_loss(void *oracle) {
    attention_oracle *o = oracle;
    const size_t width = attention_out_width(&o->shape), length = o->shape.length;
    const size_t first = o->counted * length * width;
    for (size_t i = 0; i < length; i++)
        for (size_t head = 0; head < o->shape.heads; head++)
            attention_oracle_row(o, o->counted, i, head);
    return dot(o->out + first, o->dout + first, length * width);
}

/* ---- the device ---- */

static moert_buffer *part(const double *x, size_t width, size_t first, size_t tokens,
                          moert_dtype type) {
    float *values = test_alloc(tokens * width * sizeof *values);
    for (size_t i = 0; i < tokens * width; i++)
        values[i] = (float)x[first * width + i];
    return upload_as(values, tokens * width, type);
}

attention_results attention_on_device(const attention_oracle *o, attention_run run) {
    const attention_shape *s = &o->shape;
    const size_t first = run.first * s->length, tokens = run.sequences * s->length;
    const size_t q = attention_q_width(s), k = attention_k_width(s), v = attention_v_width(s),
                 out = attention_out_width(s);
    attention_results got = {.count = {tokens * out, tokens * s->heads, tokens * q, tokens * k,
                                       tokens * v, s->sinks ? run.sequences * s->heads : 0}};
    moert_buffer *made[ATTENTION_RESULTS], *scratch = NULL;
    for (size_t r = 0; r < ATTENTION_RESULTS; r++)
        made[r] = unset_floats(got.count[r]);
    moert_documents *documents = NULL;
    if (run.positions != NULL) {
        ASSERT_OK(moert_documents_create(test_device, &documents));
        owned(documents, (void (*)(void *))moert_documents_destroy);
        ASSERT_OK(moert_documents_set(documents, run.sequences, s->length, run.positions));
    }
    moert_buffer *rounded = run.type != MOERT_DTYPE_F32 ? unset_bf16(tokens * out) : NULL;
    moert_attention attention = {.sequences = run.sequences,
                                 .length = s->length,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_size = s->head_size,
                                 .value_size = s->value_size,
                                 .window = s->window,
                                 .documents = documents,
                                 .scale = 1.0f / sqrtf((float)s->head_size),
                                 .sinks = s->sinks ? upload_doubles(o->sinks, s->heads) : NULL,
                                 .out = made[ATTENTION_OUT],
                                 .lse = made[ATTENTION_LSE],
                                 .dq = made[ATTENTION_DQ],
                                 .dk = made[ATTENTION_DK],
                                 .dv = made[ATTENTION_DV],
                                 .dsinks = s->sinks ? made[ATTENTION_DSINKS] : NULL,
                                 .bf16 = rounded,
                                 .type = run.type,
                                 .scratch = &scratch};
    attention.operands = moert_attention_operands(test_device, &attention);
    attention.q = part(o->q, q, first, tokens, attention.operands);
    attention.k = part(o->k, k, first, tokens, attention.operands);
    attention.v = part(o->v, v, first, tokens, attention.operands);
    attention.dout = part(o->dout, out, first, tokens, attention.operands);
    ASSERT_OK(moert_attention_forward(&attention));
    if (rounded != NULL)
        assert_bf16("bf16 out", rounded, download_floats(made[ATTENTION_OUT], tokens * out),
                    tokens * out);
    if (run.backward) {
        attention.bf16 = rounded != NULL ? unset_bf16(tokens * out) : NULL;
        ASSERT_OK(moert_attention_backward(&attention));
        if (rounded != NULL)
            assert_bf16("bf16 out of the backward", attention.bf16,
                        download_floats(made[ATTENTION_OUT], tokens * out), tokens * out);
    }
    for (size_t r = 0; r < ATTENTION_RESULTS; r++)
        got.value[r] = download_floats(made[r], got.count[r]);
    owned_buffer(scratch);
    return got;
}

void attention_same_results(const attention_results *got, const attention_results *want) {
    for (size_t r = 0; r < ATTENTION_RESULTS; r++) {
        assert_int_equal(got->count[r], want->count[r]);
        assert_same_bits(attention_result_names[r], got->value[r], want->value[r], want->count[r]);
    }
}
