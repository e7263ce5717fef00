/* A MoE layer in float64. */
#include "support/layer/layer_oracle.h"

#include "support/layer/router.h"
#include "support/quant/quantize_oracle.h"

enum { MOST_EXPERTS = 16, MOST_WIDTH = 256 };

bool oracle_layer_of_experts(moert_layer_tensor which) {
    return which == MOERT_LAYER_W1 || which == MOERT_LAYER_W2 || which == MOERT_LAYER_B1 ||
           which == MOERT_LAYER_B2;
}

/* The random values of stream `name` (random_doubles), multiplied by a power of two. */
static double *scaled(const char *name, size_t n, double scale) {
    double *values = random_doubles(name, n);
    for (size_t i = 0; i < n; i++)
        values[i] *= scale;
    return values;
}

/* Rounds a row to MXFP8 (E4M3). The scale of each block of 32 is the power of two with which the
 * block's largest element becomes at most 448. */
static void round_row(double *row, size_t n) {
    for (size_t first = 0; first < n; first += 32) {
        const size_t end = first + 32 < n ? first + 32 : n;
        double largest = 0.0;
        for (size_t i = first; i < end; i++)
            largest = fmax(largest, fabs(row[i]));
        if (largest == 0.0)
            continue;
        const double scale = exp2(ceil(log2(largest / 448.0)));
        for (size_t i = first; i < end; i++) {
            const unsigned code = oracle_code(MOERT_DTYPE_E4M3, row[i] / scale);
            row[i] = oracle_value(MOERT_DTYPE_E4M3, code) * scale;
        }
    }
}

/* The random rows of stream `name`, rounded as the layer's dispatch rounds them. */
static double *sent(const char *name, const moert_layer_options *options, size_t tokens) {
    const size_t n = tokens * options->hidden;
    double *rows = scaled(name, n, 1.0);
    for (size_t t = 0; t < tokens && options->dispatch == MOERT_DISPATCH_MXFP8; t++)
        round_row(rows + t * options->hidden, options->hidden);
    for (size_t i = 0; i < n && options->dispatch == MOERT_DISPATCH_BF16; i++)
        rows[i] = (double)round_to(MOERT_DTYPE_BF16, rows[i]);
    return rows;
}

static void route_logits(const oracle_layer *layer, const double *x, double *logits) {
    const size_t hidden = layer->options.hidden;
    const double *bias = layer->tensor[MOERT_LAYER_ROUTER_BIAS];
    for (size_t e = 0; e < layer->options.router.experts; e++) {
        logits[e] = bias != NULL ? bias[e] : 0.0;
        for (size_t h = 0; h < hidden; h++)
            logits[e] += x[h] * layer->tensor[MOERT_LAYER_ROUTER][e * hidden + h];
    }
}

static void choose(oracle_layer *layer) {
    const moert_layer_options *o = &layer->options;
    layer->index = test_alloc((layer->tokens * o->router.topk + 1) * sizeof *layer->index);
    layer->margin = INFINITY;
    for (size_t t = 0; t < layer->tokens; t++) {
        double logits[MOST_EXPERTS];
        route_logits(layer, layer->x + t * o->hidden, logits);
        double margin =
            oracle_choose(&o->router, logits, layer->correction, layer->index + t * o->router.topk);
        layer->margin = fmin(layer->margin, margin);
    }
}

moert_layer_options layer_form(size_t hidden, size_t intermediate) {
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT;
    options.hidden = hidden;
    options.intermediate = intermediate;
    options.router.experts = 5;
    options.router.topk = 2;
    return options;
}

moert_layer_options layer_full_form(void) {
    moert_layer_options options = layer_form(20, 12);
    options.shared_intermediate = 7;
    options.router.score = MOERT_SCORE_SIGMOID;
    options.router.scale = 1.5f;
    options.router_bias = options.correction_bias = options.expert_biases = true;
    options.shared_gate = true;
    options.glu = (moert_glu_form){true, 1.5f, 1.702f, 1.0f, 0};
    return options;
}

oracle_layer oracle_layer_create(const moert_layer_options *options, size_t tokens) {
    const size_t h = options->hidden, i = options->intermediate, s = options->shared_intermediate,
                 e = options->router.experts;
    const struct {
        const char *name;
        size_t elements;
        double scale;
    } rows[MOERT_LAYER_TENSORS] = {
        [MOERT_LAYER_ROUTER] = {"router", e * h, 0.25},
        [MOERT_LAYER_ROUTER_BIAS] = {"router bias", options->router_bias ? e : 0, 0.25},
        [MOERT_LAYER_SHARED_W1] = {"shared w1", 2 * s * h, 0.25},
        [MOERT_LAYER_SHARED_W2] = {"shared w2", h * s, 0.25},
        [MOERT_LAYER_W1] = {"w1", e * 2 * i * h, 0.25},
        [MOERT_LAYER_B1] = {"b1", options->expert_biases ? e * 2 * i : 0, 0.25},
        [MOERT_LAYER_W2] = {"w2", e * h * i, 0.25},
        [MOERT_LAYER_B2] = {"b2", options->expert_biases ? e * h : 0, 0.5},
        [MOERT_LAYER_SHARED_GATE] = {"shared gate", options->shared_gate ? h : 0, 0.25},
        [MOERT_LAYER_CORRECTION] = {"correction", options->correction_bias ? e : 0, 0.125},
    };
    assert_true(e <= MOST_EXPERTS && i <= MOST_WIDTH && s <= MOST_WIDTH);
    oracle_layer layer = {.options = *options, .tokens = tokens, .z_factor = 0.03125};
    layer.x = scaled("x", tokens * h, 1.0);
    layer.dy = scaled("dy", tokens * h, 1.0);
    layer.sent_x = sent("x", options, tokens);
    layer.sent_dy = sent("dy", options, tokens);
    layer.aux = scaled("aux", e, 0.5);
    for (size_t r = 0; r < MOERT_LAYER_TENSORS; r++) {
        layer.elements[r] = rows[r].elements;
        if (rows[r].elements > 0)
            layer.tensor[r] = scaled(rows[r].name, rows[r].elements, rows[r].scale);
    }
    if (options->correction_bias)
        layer.correction = to_floats(layer.tensor[MOERT_LAYER_CORRECTION], e);
    choose(&layer);
    return layer;
}

/* Returns start + the dot product of a[n] and b[n], summed in order. */
static double dot(double start, const double *a, const double *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        start += a[i] * b[i];
    return start;
}

/* y[H] += weight * (w2 glu(w1 x + b1) + b2) of expert e, or of the shared expert, which has no
 * biases. */
static void add_expert(const oracle_layer *layer, bool shared, size_t e, const double *x,
                       double weight, double *y) {
    const moert_layer_options *o = &layer->options;
    double *const *tensor = layer->tensor, v[2 * MOST_WIDTH], glu[MOST_WIDTH];
    const size_t hidden = o->hidden, width = shared ? o->shared_intermediate : o->intermediate;
    const double *w1 = tensor[shared ? MOERT_LAYER_SHARED_W1 : MOERT_LAYER_W1] +
                       e * 2 * width * hidden,
                 *w2 = tensor[shared ? MOERT_LAYER_SHARED_W2 : MOERT_LAYER_W2] + e * hidden * width,
                 *b1 = shared ? NULL : tensor[MOERT_LAYER_B1],
                 *b2 = shared ? NULL : tensor[MOERT_LAYER_B2], limit = (double)o->glu.limit;
    const bool interleaved = o->glu.interleaved && !shared;
    for (size_t r = 0; r < 2 * width; r++)
        v[r] = dot(b1 != NULL ? b1[e * 2 * width + r] : 0.0, w1 + r * hidden, x, hidden);
    for (size_t i = 0; i < width; i++) {
        const double gate = fmin(interleaved ? v[2 * i] : v[i], limit);
        const double up = interleaved ? v[2 * i + 1] : v[width + i];
        const double linear = fmax(-limit, fmin(up, limit)) + (double)o->glu.offset;
        glu[i] = linear * gate / (1.0 + exp(-(double)o->glu.alpha * gate));
    }
    for (size_t h = 0; h < hidden; h++)
        y[h] += weight * dot(b2 != NULL ? b2[e * hidden + h] : 0.0, w2 + h * width, glu, width);
}

double oracle_layer_loss(const oracle_layer *layer, double *y) {
    const moert_router_options *router = &layer->options.router;
    const size_t hidden = layer->options.hidden;
    const double *gate = layer->tensor[MOERT_LAYER_SHARED_GATE];
    double loss = 0.0, *row = test_alloc(2 * hidden * sizeof *row), *shared = row + hidden;
    for (size_t t = 0; t < layer->tokens; t++) {
        const double *x = layer->x + t * hidden;
        const int32_t *index = layer->index + t * router->topk;
        double logits[MOST_EXPERTS], p[MOST_EXPERTS], share[MOST_EXPERTS], weight[MOST_EXPERTS];
        route_logits(layer, x, logits);
        oracle_weights(router, logits, index, weight);
        oracle_normalised_scores(router, logits, share);
        const double lse = oracle_softmax(logits, router->experts, p);
        const double open = gate != NULL ? 1.0 / (1.0 + exp(-dot(0.0, gate, x, hidden))) : 1.0;
        memset(row, 0, 2 * hidden * sizeof *row);
        for (size_t k = 0; k < router->topk; k++)
            add_expert(layer, false, (size_t)index[k], layer->sent_x + t * hidden, weight[k], row);
        if (layer->options.shared_intermediate > 0)
            add_expert(layer, true, 0, x, open, shared);
        for (size_t h = 0; h < hidden; h++) {
            loss += row[h] * layer->sent_dy[t * hidden + h] + shared[h] * layer->dy[t * hidden + h];
            row[h] += shared[h];
        }
        for (size_t e = 0; e < router->experts; e++)
            loss += layer->aux[e] * share[e];
        loss += 0.5 * layer->z_factor * lse * lse;
        if (y != NULL)
            memcpy(y + t * hidden, row, hidden * sizeof *row);
    }
    return loss;
}

void oracle_layer_differentiate(const oracle_layer *layer, double *value, size_t n,
                                double *gradient) {
    const double step = 1e-5;
    for (size_t i = 0; i < n; i++) {
        const double kept = value[i];
        value[i] = kept + step;
        const double above = oracle_layer_loss(layer, NULL);
        value[i] = kept - step;
        gradient[i] = (above - oracle_layer_loss(layer, NULL)) / (2.0 * step);
        value[i] = kept;
    }
}
