#include "support/attention/attention.h"

const char *const attention_result_names[ATTENTION_RESULTS] = {"out", "lse", "dq",
                                                               "dk",  "dv",  "dsinks"};

static size_t value_size(const attention_shape *s) {
    return s->value_size > 0 ? s->value_size : s->head_size;
}

size_t attention_width(const attention_shape *s, size_t result) {
    const size_t q = s->heads * s->head_size, k = s->kv_heads * s->head_size,
                 v = s->kv_heads * value_size(s), out = s->heads * value_size(s);
    return ((const size_t[]){out, s->heads, q, k, v})[result];
}

/* ---- float64 ---- */

attention_oracle attention_oracle_create(attention_shape shape) {
    const size_t tokens = shape.sequences * shape.length, q = attention_width(&shape, ATTENTION_DQ),
                 k = attention_width(&shape, ATTENTION_DK),
                 v = attention_width(&shape, ATTENTION_DV),
                 out = attention_width(&shape, ATTENTION_OUT);
    return (attention_oracle){.shape = shape,
                              .q = random_doubles("q", tokens * q),
                              .k = random_doubles("k", tokens * k),
                              .v = random_doubles("v", tokens * v),
                              .sinks = shape.sinks ? random_doubles("sinks", shape.heads) : NULL,
                              .dout = random_doubles("dout", tokens * out),
                              .out = test_alloc(tokens * out * sizeof(double)),
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
    const size_t width = attention_width(&o->shape, ATTENTION_OUT), length = o->shape.length;
    const size_t first = o->counted * length * width;
    for (size_t i = 0; i < length; i++)
        for (size_t head = 0; head < o->shape.heads; head++)
            attention_oracle_row(o, o->counted, i, head);
    return dot(o->out + first, o->dout + first, length * width);
}

/* ---- the device ---- */

moert_documents *attention_documents(void) {
    moert_documents *documents = NULL;
    ASSERT_OK(moert_documents_create(test_device, &documents));
    return owned(documents, moert_documents_destroy);
}

moert_attention attention_of_one_token(void) {
    moert_buffer *x = unset_floats(64);
    moert_attention a = {.sequences = 1, .length = 1, .heads = 1, .kv_heads = 1, .head_size = 4};
    a.q = a.k = a.v = a.dout = a.out = a.lse = a.dq = a.dk = a.dv = x;
    return a;
}

attention_results attention_on_device(const attention_oracle *o, moert_dtype type,
                                      const int32_t *positions) {
    const attention_shape *s = &o->shape;
    const size_t tokens = s->sequences * s->length;
    attention_results got = {{0}, {NULL}};
    moert_buffer *made[ATTENTION_RESULTS], *scratch = NULL;
    for (size_t r = 0; r < ATTENTION_RESULTS; r++) {
        got.count[r] = r != ATTENTION_DSINKS ? tokens * attention_width(s, r)
                       : s->sinks            ? s->sequences * s->heads
                                             : 0;
        made[r] = unset_floats(got.count[r]);
    }
    moert_documents *documents = positions != NULL ? attention_documents() : NULL;
    if (documents != NULL)
        ASSERT_OK(moert_documents_set(documents, s->sequences, s->length, positions));
    const size_t outs = got.count[ATTENTION_OUT];
    moert_buffer *rounded = type != MOERT_DTYPE_F32 ? unset_bf16(outs) : NULL;
    moert_attention attention = {.sequences = s->sequences,
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
                                 .type = type,
                                 .scratch = &scratch};
    attention.operands = moert_attention_operands(test_device, &attention);
    attention.q = upload_as(to_floats(o->q, got.count[ATTENTION_DQ]), got.count[ATTENTION_DQ],
                            attention.operands);
    attention.k = upload_as(to_floats(o->k, got.count[ATTENTION_DK]), got.count[ATTENTION_DK],
                            attention.operands);
    attention.v = upload_as(to_floats(o->v, got.count[ATTENTION_DV]), got.count[ATTENTION_DV],
                            attention.operands);
    attention.dout = upload_as(to_floats(o->dout, got.count[ATTENTION_OUT]),
                               got.count[ATTENTION_OUT], attention.operands);
    ASSERT_OK(moert_attention_forward(&attention));
    if (rounded != NULL)
        assert_bf16("bf16 out", rounded, download_floats(made[ATTENTION_OUT], outs), outs);
    attention.bf16 = rounded != NULL ? unset_bf16(outs) : NULL;
    ASSERT_OK(moert_attention_backward(&attention));
    if (rounded != NULL)
        assert_bf16("bf16 out of the backward", attention.bf16,
                    download_floats(made[ATTENTION_OUT], outs), outs);
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
