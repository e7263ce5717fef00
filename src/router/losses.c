/*
 * Computes the load-balancing losses and the bias update on the host, in float64. The inputs are
 * sums over all ranks, so every rank computes the same bits.
 *
 * Sources: Fedus, Zoph, Shazeer: "Switch Transformers" (2021), equations 4 to 6, for the losses;
 * DeepSeek-AI: "DeepSeek-V3 Technical Report" (2024), equations 17 to 20, for the loss of a
 * sequence; Wang et al.: "Auxiliary-loss-free load balancing strategy for mixture-of-experts"
 * (2024) for the bias.
 */
#include "router/router.h"

double moert_router_aux_loss(moert_aux_form form, const moert_router_options *options,
                             const moert_router_load *load, double coefficient, float *gradient) {
    const size_t experts = options->experts;
    const double slots = form == MOERT_AUX_HUGGING_FACE ? 1.0 : (double)options->topk;
    /* if there are no tokens, loss and gradient are 0 */
    const double rows = load->rows;
    const double factor = rows > 0.0 ? (double)experts / (slots * rows * rows) : 0.0;
    double sum = 0.0;
    for (size_t e = 0; e < experts; e++) {
        sum += (double)load->counts[e] * load->mass[e];
        gradient[e] = (float)(coefficient * factor * (double)load->counts[e]);
    }
    return factor * sum;
}

void moert_router_update_bias(float *bias, const uint64_t *counts, size_t experts, float rate) {
    double mean = 0.0;
    for (size_t e = 0; e < experts; e++)
        mean += (double)counts[e];
    mean /= (double)experts;
    for (size_t e = 0; e < experts; e++) {
        const double spare = mean - (double)counts[e];
        bias[e] = (float)((double)bias[e] + (double)rate * ((spare > 0.0) - (spare < 0.0)));
    }
}
