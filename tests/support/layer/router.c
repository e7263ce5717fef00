/* The router for tests: random inputs, runs on the device, and an oracle in float64. */
#include "support/layer/router.h"

#include "base/rng.h"
#include "support/test.h"

enum { MOST = 1024 };

moert_router_options router_options(size_t experts, size_t topk, moert_score score) {
    moert_router_options options = MOERT_ROUTER_OPTIONS_INIT;
    options.experts = experts;
    options.topk = topk;
    options.score = score;
    return options;
}

moert_router_options router_groups(moert_router_options options, size_t groups, size_t kept,
                                   size_t best) {
    options.groups = groups;
    options.kept_groups = kept;
    options.group_best = best;
    return options;
}

/* ---- on the device ---- */

router_sums router_sum(const moert_router_options *options, size_t tokens, const float *scores,
                       const uint32_t *ends, size_t sequences) {
    const size_t n = sequences * options->experts;
    moert_buffer *of = upload_floats(scores, tokens * options->experts),
                 *at = upload(ends, sequences * 4);
    moert_buffer *mass = unset_floats(n), *entropy = unset_floats(tokens),
                 *counts = unset_floats(n);
    ASSERT_OK(moert_router_mass(options, tokens, of, at, sequences, mass));
    ASSERT_OK(moert_router_entropy(options, tokens, of, entropy));
    ASSERT_OK(moert_router_counts(options, tokens, of, at, sequences, counts));
    return (router_sums){download_floats(mass, n), download_floats(entropy, tokens),
                         download(counts, n * 4)};
}

router_run router_do(const router_input *input) {
    const size_t tokens = input->tokens, experts = input->options.experts,
                 topk = input->options.topk;
    moert_buffer *logits = upload(input->logits, tokens * experts * 4);
    moert_buffer *bias = input->bias != NULL ? upload(input->bias, experts * 4) : NULL;
    moert_routing routing = {unset_floats(tokens * experts), unset_floats(tokens * topk),
                             unset_floats(tokens * topk), unset_floats(tokens)};
    router_run run = {0};
    ASSERT_OK(moert_router_forward(test_device, &input->options, tokens, logits, bias, &routing));
    if (input->dweight != NULL) {
        const size_t sequences = input->ends != NULL ? input->sequences : 1;
        moert_buffer *dlogits = unset_floats(tokens * experts);
        if (input->index != NULL)
            ASSERT_OK(moert_buffer_write(routing.index, 0, input->index, tokens * topk * 4));
        const moert_router_gradient gradient = {
            .tokens = tokens,
            .logits = logits,
            .routing = &routing,
            .dweight = upload(input->dweight, tokens * topk * 4),
            .aux_gradient = input->aux != NULL ? upload(input->aux, sequences * experts * 4) : NULL,
            .z_factor = input->z_factor,
            .dlogits = dlogits,
            .sequence_ends = input->ends != NULL ? upload(input->ends, sequences * 4) : NULL,
            .sequences = sequences};
        ASSERT_OK(moert_router_backward(test_device, &input->options, &gradient));
        run.dlogits = download(dlogits, tokens * experts * 4);
    }
    run.scores = download(routing.scores, tokens * experts * 4);
    run.index = download(routing.index, tokens * topk * 4);
    run.weight = download(routing.weight, tokens * topk * 4);
    run.lse = download(routing.lse, tokens * 4);
    return run;
}

/* ---- the oracle ---- */

double oracle_softmax(const double *logits, size_t experts, double *p) {
    double top = logits[0], sum = 0.0;
    for (size_t e = 1; e < experts; e++)
        top = fmax(top, logits[e]);
    for (size_t e = 0; e < experts; e++)
        sum += p[e] = exp(logits[e] - top);
    for (size_t e = 0; e < experts; e++)
        p[e] /= sum;
    return top + log(sum);
}

void oracle_row(const router_input *input, size_t t, double *logits) {
    for (size_t e = 0; e < input->options.experts; e++)
        logits[e] = (double)input->logits[t * input->options.experts + e];
}

static bool is_softmax(const moert_router_options *options) {
    return options->score == MOERT_SCORE_SOFTMAX || options->score == MOERT_SCORE_SOFTMAX_TOPK;
}

void oracle_scores(const moert_router_options *options, const double *logits, double *scores) {
    if (is_softmax(options))
        oracle_softmax(logits, options->experts, scores);
    else if (options->score == MOERT_SCORE_SIGMOID)
        for (size_t e = 0; e < options->experts; e++)
            scores[e] = 1.0 / (1.0 + exp(-logits[e]));
    else
        for (size_t e = 0; e < options->experts; e++)
            scores[e] = sqrt(fmax(logits[e], 0.0) + log1p(exp(-fabs(logits[e]))));
}

void oracle_normalised_scores(const moert_router_options *options, const double *logits,
                              double *r) {
    oracle_scores(options, logits, r);
    if (is_softmax(options))
        return;
    double sum = 1e-20;
    for (size_t e = 0; e < options->experts; e++)
        sum += r[e];
    for (size_t e = 0; e < options->experts; e++)
        r[e] /= sum;
}

void oracle_weights(const moert_router_options *options, const double *logits, const int32_t *index,
                    double *weight) {
    const size_t topk = options->topk;
    double scores[MOST], sum = 0.0;
    oracle_scores(options, logits, scores);
    for (size_t k = 0; k < topk; k++)
        weight[k] =
            options->score == MOERT_SCORE_SOFTMAX_TOPK ? logits[index[k]] : scores[index[k]];
    if (options->score == MOERT_SCORE_SOFTMAX_TOPK) {
        oracle_softmax(weight, topk, weight);
    } else if (options->renormalise && (topk > 1 || options->score == MOERT_SCORE_SOFTMAX)) {
        for (size_t k = 0; k < topk; k++)
            sum += weight[k];
        for (size_t k = 0; k < topk; k++)
            weight[k] /= sum + (is_softmax(options) ? 0.0 : 1e-20);
    }
    for (size_t k = 0; k < topk; k++)
        weight[k] *= (double)options->scale;
}

/* Returns a token's contribution to the loss. */
static double token_loss(const router_input *input, const int32_t *index, size_t t,
                         const double *logits) {
    const moert_router_options *options = &input->options;
    const size_t experts = options->experts, topk = options->topk;
    double weight[MOST], r[MOST], loss = 0.0;
    oracle_weights(options, logits, index, weight);
    for (size_t k = 0; k < topk; k++)
        loss += (double)input->dweight[t * topk + k] * weight[k];
    oracle_normalised_scores(options, logits, r);
    size_t sequence = 0;
    while (input->ends != NULL && t >= input->ends[sequence])
        sequence++;
    for (size_t e = 0; input->aux != NULL && e < experts; e++)
        loss += (double)input->aux[sequence * experts + e] * r[e];
    const double lse = oracle_softmax(logits, experts, r);
    return loss + 0.5 * (double)input->z_factor * lse * lse;
}

double oracle_gradient(const router_input *input, const int32_t *index, size_t t, size_t e) {
    const double step = 1e-5;
    double logits[MOST], loss[2];
    oracle_row(input, t, logits);
    for (int side = 0; side < 2; side++) {
        logits[e] = (double)input->logits[t * input->options.experts + e] + (side ? step : -step);
        loss[side] = token_loss(input, index, t, logits);
    }
    return (loss[1] - loss[0]) / (2.0 * step);
}

/* Returns the index of the largest of the n values that is not marked in taken[n] (the first of
 * equal values), and marks it. Lowers *margin to the distance from the next largest value, if that
 * is smaller. */
static size_t take(const double *value, char *taken, size_t n, double *margin) {
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (!taken[i] && (best == n || value[i] > value[best]))
            best = i;
    taken[best] = 1;
    for (size_t i = 0; i < n; i++)
        if (!taken[i])
            *margin = fmin(*margin, value[best] - value[i]);
    return best;
}

static void drop_groups(const moert_router_options *options, const double *selection, char *taken,
                        double *margin) {
    const size_t groups = options->groups, size = options->experts / groups;
    double sum[MOST];
    char kept[MOST] = {0};
    for (size_t g = 0; g < groups; g++) {
        /* the order of a group's best experts does not matter, so this margin is unused */
        double any = INFINITY;
        char summed[MOST] = {0};
        sum[g] = 0.0;
        for (size_t i = 0; i < options->group_best; i++)
            sum[g] += selection[g * size + take(selection + g * size, summed, size, &any)];
    }
    for (size_t i = 0; i < options->kept_groups; i++)
        take(sum, kept, groups, margin);
    for (size_t e = 0; e < options->experts; e++)
        taken[e] = !kept[e / size];
}

double oracle_choose(const moert_router_options *options, const double *logits, const float *bias,
                     int32_t *index) {
    double selection[MOST], margin = INFINITY;
    char taken[MOST] = {0};
    oracle_scores(options, logits, selection);
    for (size_t e = 0; e < options->experts; e++) {
        if (options->score == MOERT_SCORE_SOFTMAX_TOPK)
            selection[e] = logits[e];
        selection[e] += bias != NULL ? (double)bias[e] : 0.0;
    }
    if (options->groups > 1)
        drop_groups(options, selection, taken, &margin);
    for (size_t k = 0; k < options->topk; k++)
        index[k] = (int32_t)take(selection, taken, options->experts, &margin);
    return margin;
}

/* ---- random inputs and comparisons ---- */

/* Draws the logits of token t until every choice has a margin of 1e-5. */
static void draw_token(const router_input *input, size_t t, double deviation, float *logits) {
    const size_t experts = input->options.experts;
    double row[MOST];
    int32_t index[MOST];
    for (uint64_t attempt = 0; attempt < 10000; attempt++) {
        for (size_t e = 0; e < experts; e++) {
            const double x = moert_rng_normal(experts, t, attempt * MOST + e);
            logits[e] = (float)(deviation * x);
            row[e] = (double)logits[e];
        }
        if (oracle_choose(&input->options, row, input->bias, index) > 1e-5)
            return;
    }
    fail_msg("no logits with this margin were found");
}

static const float *draw(uint64_t stream, double deviation, size_t n) {
    float *values = test_alloc((n + 1) * sizeof *values);
    moert_rng_normals(11, stream, 0, deviation, values, n);
    return values;
}

router_input router_draw(moert_router_options options, size_t tokens, double deviation,
                         double bias) {
    const size_t experts = options.experts;
    float *logits = test_alloc((tokens * experts + 1) * sizeof *logits);
    router_input input = {.options = options,
                          .tokens = tokens,
                          .logits = logits,
                          .bias = bias > 0.0 ? draw(1, bias, experts) : NULL};
    for (size_t t = 0; t < tokens; t++)
        draw_token(&input, t, deviation, logits + t * experts);
    return input;
}

void router_draw_gradients(router_input *input) {
    const size_t rows = input->ends != NULL ? input->sequences : 1;
    input->dweight = draw(3, 1.0, input->tokens * input->options.topk);
    input->aux = draw(2, 1.0, rows * input->options.experts);
}

float *router_own_logits(router_input *input) {
    const size_t bytes = input->tokens * input->options.experts * sizeof(float);
    float *logits = memcpy(test_alloc(bytes), input->logits, bytes);
    input->logits = logits;
    return logits;
}

static void assert_value(const char *what, size_t token, size_t at, double got, double want,
                         double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("token %zu, %s %zu: %.9g, not %.9g", token, what, at, got, want);
}

void router_check_token(const router_input *input, const router_run *run, size_t t) {
    const moert_router_options *options = &input->options;
    const size_t experts = options->experts, topk = options->topk;
    double row[MOST], want[MOST];
    int32_t index[MOST];
    oracle_row(input, t, row);
    oracle_choose(options, row, input->bias, index);
    for (size_t k = 0; k < topk; k++)
        if (run->index[t * topk + k] != index[k])
            fail_msg("token %zu goes to expert %d, not %d", t, run->index[t * topk + k], index[k]);
    oracle_weights(options, row, index, want);
    for (size_t k = 0; k < topk; k++)
        assert_value("weight", t, k, (double)run->weight[t * topk + k], want[k],
                     1e-6 * (double)options->scale);
    assert_value("lse", t, 0, (double)run->lse[t], oracle_softmax(row, experts, want), 2e-6);
    oracle_scores(options, row, want);
    for (size_t e = 0; e < experts; e++)
        assert_value("score", t, e, (double)run->scores[t * experts + e], want[e], 1e-6);
}

void router_check_gradient(const router_input *input, double tolerance) {
    enum { MOST_DIFFERENCES = 64 * 64, TOKENS = 24, OTHERS = 16 };
    const size_t experts = input->options.experts, topk = input->options.topk;
    const bool all = input->tokens * experts <= MOST_DIFFERENCES;
    const router_run run = router_do(input);
    for (size_t i = 0; i < (all ? input->tokens : TOKENS); i++) {
        const size_t t = all ? i : i * input->tokens / TOKENS;
        const int32_t *index = run.index + t * topk;
        for (size_t k = 0; k < (all ? experts : topk + OTHERS); k++) {
            const size_t e = all ? k : k < topk ? (size_t)index[k] : (t + k) * 37 % experts;
            assert_value("dlogit", t, e, (double)run.dlogits[t * experts + e],
                         oracle_gradient(input, index, t, e), tolerance);
        }
    }
}
