/* The router in float64, for tests. */
#include "support/layer/router_oracle.h"

#include "base/rng.h"
#include "support/test.h"

enum { MOST = 1024 };

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

/* A token's part of the loss. */
static double token_loss(const router_input *input, const int32_t *index, size_t t,
                         const double *logits) {
    const moert_router_options *options = &input->options;
    const size_t experts = options->experts, topk = options->topk;
    double weight[MOST], r[MOST], loss = 0.0;
    oracle_weights(options, logits, index, weight);
    for (size_t k = 0; k < topk; k++)
        loss += (double)input->dweight[t * topk + k] * weight[k];
    oracle_normalised_scores(options, logits, r);
    for (size_t e = 0; input->aux != NULL && e < experts; e++)
        loss += (double)input->aux[e] * r[e];
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

void oracle_check_gradient(const router_input *input, double tolerance) {
    const size_t experts = input->options.experts;
    const router_run run = router_do(input);
    for (size_t i = 0; i < input->tokens * experts; i++)
        assert_within((double)run.dlogits[i],
                      oracle_gradient(input, run.index + i / experts * input->options.topk,
                                      i / experts, i % experts),
                      tolerance);
}

void oracle_load(const router_input *input, const double *logits, const int32_t *index,
                 uint64_t *counts, double *mass) {
    const size_t experts = input->options.experts;
    double r[MOST];
    memset(counts, 0, experts * sizeof *counts);
    memset(mass, 0, experts * sizeof *mass);
    for (size_t i = 0; i < input->tokens * input->options.topk; i++)
        counts[index[i]]++;
    for (size_t t = 0; t < input->tokens; t++) {
        oracle_normalised_scores(&input->options, logits + t * experts, r);
        for (size_t e = 0; e < experts; e++)
            mass[e] += r[e];
    }
}

/* Takes the largest of the n values that are not yet taken; of equal values, the first. *margin
 * becomes at most the distance to the next largest value. */
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
        double any = INFINITY; /* the order within a group's best does not matter */
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

void oracle_logits(const moert_router_options *options, size_t tokens, const float *bias,
                   double deviation, uint64_t key, float *logits) {
    const size_t experts = options->experts;
    double row[MOST];
    int32_t index[MOST];
    for (size_t t = 0; t < tokens; t++)
        for (uint64_t attempt = 0;; attempt++) {
            for (size_t e = 0; e < experts; e++) {
                logits[t * experts + e] =
                    (float)(deviation * moert_rng_normal(key, t, attempt * MOST + e));
                row[e] = (double)logits[t * experts + e];
            }
            if (oracle_choose(options, row, bias, index) > 1e-5)
                break;
            if (attempt == 10000)
                abort(); /* no logits with this margin were found */
        }
}
