// run: check=1 all=1gpu,1san
/* Multi-head latent attention against float64: values, and gradients by central differences. */

#include "model/sublayer.h"
#include "support/mpi.h"

enum { HIDDEN = 12, MOST_WIDTH = 64, MOST_TOKENS = 16 };

typedef struct mla {
    moert_model_config config;
    const moert_attention_shape *shape;
    size_t sequences, length;
    int32_t positions[MOST_TOKENS]; /* [T] positions of the tokens in their documents */
    /* values of each parameter; NULL: this form of attention lacks the parameter */
    double *parameter[MOERT_ATTENTION_MOST];
    double *x, *dy; /* [T,H] */
} mla;

static const char *name_of(const mla *m, size_t parameter) {
    return m->shape->parameter[parameter].suffix + strlen("self_attn.");
}

/* The values of a parameter, or NULL if the attention has no parameter of this name. */
static const double *find(const mla *m, const char *name) {
    for (size_t i = 0; i < m->shape->parameters; i++)
        if (strcmp(name_of(m, i), name) == 0)
            return m->parameter[i];
    return NULL;
}

/* y[n] = weight[n,k] x[k] + bias[n] */
static void project(const double *weight, const double *bias, const double *x, size_t n, size_t k,
                    double *y) {
    for (size_t i = 0; i < n; i++) {
        y[i] = bias != NULL ? bias[i] : 0.0;
        for (size_t j = 0; j < k; j++)
            y[i] += weight[i * k + j] * x[j];
    }
}

static void normalise(const double *weight, size_t n, double *x) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] *= weight[i] / sqrt(sum / (double)n + 1e-6);
}

static void rotate(const moert_model_config *c, size_t position, double *x) {
    const moert_rope_scheme scheme = moert_model_rope_scheme(c, 0);
    const size_t pairs = scheme.width / 2;
    const double factor = moert_rope_attention_factor(&scheme);
    float frequency[MOST_WIDTH];
    moert_rope_frequencies(&scheme, frequency);
    for (size_t i = 0; i < pairs; i++) {
        const size_t a = scheme.interleaved ? 2 * i : i, b = scheme.interleaved ? a + 1 : i + pairs;
        const double angle = (double)position * (double)frequency[i], first = x[a], second = x[b];
        x[a] = factor * (first * cos(angle) - second * sin(angle));
        x[b] = factor * (second * cos(angle) + first * sin(angle));
    }
}

/* One token's q[heads,key], k[heads,key] and v[heads,value]. */
typedef struct token {
    double q[MOST_WIDTH], k[MOST_WIDTH], v[MOST_WIDTH];
} token;

static void make_token(const mla *m, size_t t, token *out) {
    const moert_latent_sizes *s = &m->config.latent;
    const size_t heads = m->config.heads, key = s->nope + s->rope,
                 position = (size_t)m->positions[t];
    const double *x = m->x + t * HIDDEN;
    double latent[MOST_WIDTH], expanded[MOST_WIDTH];
    if (s->q_rank > 0) {
        project(find(m, "q_a_proj.weight"), find(m, "q_a_proj.bias"), x, s->q_rank, HIDDEN, latent);
        normalise(find(m, "q_a_layernorm.weight"), s->q_rank, latent);
        project(find(m, "q_b_proj.weight"), NULL, latent, heads * key, s->q_rank, out->q);
    } else {
        project(find(m, "q_proj.weight"), NULL, x, heads * key, HIDDEN, out->q);
    }
    project(find(m, "kv_a_proj_with_mqa.weight"), find(m, "kv_a_proj_with_mqa.bias"), x,
            s->kv_rank + s->rope, HIDDEN, latent);
    rotate(&m->config, position, latent + s->kv_rank);
    normalise(find(m, "kv_a_layernorm.weight"), s->kv_rank, latent);
    project(find(m, "kv_b_proj.weight"), NULL, latent, heads * (s->nope + s->value), s->kv_rank,
            expanded);
    for (size_t h = 0; h < heads; h++) {
        const double *head = expanded + h * (s->nope + s->value);
        rotate(&m->config, position, out->q + h * key + s->nope);
        memcpy(out->k + h * key, head, s->nope * sizeof *head);
        memcpy(out->k + h * key + s->nope, latent + s->kv_rank, s->rope * sizeof *head);
        memcpy(out->v + h * s->value, head + s->nope, s->value * sizeof *head);
    }
}

static double scale_of(const moert_model_config *c) {
    double mscale = 1.0;
    if (c->rope.type != MOERT_ROPE_DEFAULT && c->rope.mscale_all_dim != 0.0)
        mscale = 0.1 * c->rope.mscale_all_dim * log(c->rope.factor) + 1.0;
    return mscale * mscale / sqrt((double)(c->latent.nope + c->latent.rope));
}

/* out[value] = the attention of query t by head h to the tokens of its sequence. */
static void attend(const mla *m, const token *tokens, size_t t, size_t h, double *out) {
    const moert_latent_sizes *s = &m->config.latent;
    const size_t key = s->nope + s->rope, first = t - (size_t)m->positions[t];
    double weight[MOST_TOKENS], sum = 0.0;
    for (size_t j = first; j <= t; j++) {
        double score = 0.0;
        for (size_t i = 0; i < key; i++)
            score += tokens[t].q[h * key + i] * tokens[j].k[h * key + i];
        sum += weight[j] = exp(score * scale_of(&m->config));
    }
    for (size_t i = 0; i < s->value; i++) {
        out[i] = 0.0;
        for (size_t j = first; j <= t; j++)
            out[i] += weight[j] / sum * tokens[j].v[h * s->value + i];
    }
}

/* Computes y[T,H], unless NULL; returns sum(y * dy). */
static double oracle(const mla *m, double *y) {
    const size_t heads = m->config.heads, value = m->config.latent.value;
    token tokens[MOST_TOKENS];
    double loss = 0.0;
    for (size_t t = 0; t < m->sequences * m->length; t++)
        make_token(m, t, &tokens[t]);
    for (size_t t = 0; t < m->sequences * m->length; t++) {
        double attended[MOST_WIDTH], row[HIDDEN];
        for (size_t h = 0; h < heads; h++)
            attend(m, tokens, t, h, attended + h * value);
        project(find(m, "o_proj.weight"), find(m, "o_proj.bias"), attended, HIDDEN, heads * value,
                row);
        for (size_t i = 0; i < HIDDEN; i++)
            loss += row[i] * m->dy[t * HIDDEN + i];
        if (y != NULL)
            memcpy(y + t * HIDDEN, row, sizeof row);
    }
    return loss;
}

static double loss_of(void *context) {
    return oracle(context, NULL);
}

/* ---- the device ---- */

/* Writes random values to a buffer and returns them in float64. */
static double *fill(moert_buffer *buffer, size_t offset, size_t n, float around, float scale,
                    uint64_t stream) {
    float *values = random_floats(n, scale, stream);
    for (size_t i = 0; i < n; i++)
        values[i] += around;
    ASSERT_OK(moert_buffer_write(buffer, offset * sizeof *values, values, n * sizeof *values));
    return to_doubles(values, n);
}

static void fill_parameters(mla *m, moert_model *model) {
    const moert_block_tensor *tensor = model->layer[0].attention->tensor + MOERT_ATTENTION_FIRST;
    for (size_t p = 0; p < m->shape->parameters; p++) {
        const float around = strstr(name_of(m, p), "norm") != NULL ? 1.0f : 0.0f;
        if (m->shape->parameter[p].rows > 0)
            m->parameter[p] = fill(tensor[p].weight, 0, tensor[p].elements, around, 0.5f, 10 + p);
    }
    moert_model_weights_changed(model);
}

static void check_gradients(mla *m, const moert_model *model, const moert_buffer *dx) {
    const moert_block_tensor *tensor = model->layer[0].attention->tensor + MOERT_ATTENTION_FIRST;
    const size_t floats = m->sequences * m->length * HIDDEN;
    assert_gradient("dx", download_floats(dx, floats),
                    (differentiated){m->x, floats, 1, loss_of, m});
    for (size_t p = 0; p < m->shape->parameters; p++) {
        const size_t n = tensor[p].elements;
        if (m->parameter[p] != NULL)
            assert_gradient(name_of(m, p), read_floats(tensor[p].gradient, n),
                            (differentiated){m->parameter[p], n, 1, loss_of, m});
    }
}

/* ---- tests ---- */

typedef struct setting {
    moert_latent_sizes latent;
    moert_rope_scheme rope;
    bool bias;
    /* document: tokens of each document of a sequence; the last document may have fewer */
    size_t sequences, length, document;
} setting;

static void check(const setting *how) {
    const size_t sequences = how->sequences, length = how->length;
    mla m = {.config = golden_config("mixtral-tiny"), .sequences = sequences, .length = length};
    moert_model_config *c = &m.config;
    c->hidden = HIDDEN;
    c->layers = 1;
    c->heads = 3;
    c->latent = how->latent;
    c->rope = how->rope;
    c->rope.width = how->latent.rope;
    c->attention_bias = how->bias;
    c->rope.theta = 100.0;
    moert_model *model = open_model(test_mesh, c);
    m.shape = &model->attention;
    const size_t tokens = sequences * length, floats = tokens * HIDDEN;
    int32_t ids[MOST_TOKENS] = {0};
    ASSERT_OK(moert_model_initialize(model, 1));
    /* the forward sets the run's batch, rotary table and buffers */
    for (size_t t = 0; t < tokens; t++)
        m.positions[t] = (int32_t)(t % length % how->document);
    const moert_model_batch batch = {sequences, length, ids, ids,
                                     .positions = how->document < length ? m.positions : NULL};
    moert_run *run = run_of(model);
    ASSERT_OK(moert_run_forward(run, &batch));
    moert_run_layer *layer = &run->layer[0];
    fill_parameters(&m, model);
    m.x = fill(layer->activations->normed, 0, floats, 0.0f, 1.0f, 30);
    moert_buffer *y = unset_floats(floats), *dx = unset_floats(floats), *dy = unset_floats(floats);
    m.dy = fill(dy, 0, floats, 0.0f, 1.0f, 31);
    ASSERT_OK(moert_model_mla.forward(run, layer, y));
    double *want = test_alloc(floats * sizeof *want);
    oracle(&m, want);
    assert_near("y", download_floats(y, floats), want, floats, 1e-5);
    ASSERT_OK(moert_block_begin(layer->of->attention, &run->batch, false));
    ASSERT_OK(moert_model_mla.backward(run, layer, dy, dx));
    check_gradients(&m, model, dx);
}

TEST(test_latent_attention_agrees_with_float64) {
    const moert_latent_sizes direct = {0, 8, 6, 4, 5}, latent_q = {7, 5, 3, 2, 8};
    const moert_rope_scheme pairs = {.interleaved = true}, halves = {.interleaved = false};
    const moert_rope_scheme yarn = {.type = MOERT_ROPE_YARN,
                                    .interleaved = true,
                                    .factor = 4.0,
                                    .original = 8,
                                    .mscale = 0.7,
                                    .mscale_all_dim = 1.2,
                                    .beta_fast = 4.0,
                                    .beta_slow = 1.0,
                                    .truncate = true};
    const setting settings[] = {
        {direct, pairs, false, 2, 5, 5},    {direct, pairs, true, 2, 5, 5},
        {latent_q, halves, false, 2, 4, 4}, {latent_q, halves, true, 2, 4, 4},
        {latent_q, yarn, false, 1, 9, 9}, /* YaRN scales the positions and therefore the scores */
        {latent_q, yarn, false, 1, 9, 4}, /* documents of 4, 4 and 1 tokens */
        {direct, pairs, false, 1, 1, 1},    {{1, 1, 1, 2, 1}, pairs, false, 3, 1, 1},
    };
    for (size_t i = 0; i < MOERT_COUNT(settings); i++)
        check(&settings[i]);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
