/* Runs the router on the device for tests. */
#include "support/layer/router_run.h"

#include "support/test.h"

moert_router_options router_options(size_t experts, size_t topk, moert_score score) {
    moert_router_options options = MOERT_ROUTER_OPTIONS_INIT;
    options.experts = experts;
    options.topk = topk;
    options.score = score;
    return options;
}

moert_router_options router_groups(moert_router_options options, size_t groups, size_t kept) {
    options.groups = groups;
    options.kept_groups = kept;
    return options;
}

static void backward(const router_input *input, const moert_buffer *logits,
                     const moert_routing *routing, router_run *run) {
    const size_t tokens = input->tokens, experts = input->options.experts,
                 topk = input->options.topk;
    moert_buffer *dweight = upload(input->dweight, tokens * topk * 4);
    const size_t rows = input->ends != NULL ? input->sequences : 1;
    moert_buffer *aux = input->aux != NULL ? upload(input->aux, rows * experts * 4) : NULL;
    moert_buffer *ends = input->ends != NULL ? upload(input->ends, rows * 4) : NULL;
    moert_buffer *dlogits = unset_floats(tokens * experts);
    if (input->index != NULL)
        ASSERT_OK(moert_buffer_write(routing->index, 0, input->index, tokens * topk * 4));
    ASSERT_OK(moert_router_backward(test_device, &input->options,
                                    &(moert_router_gradient){.tokens = tokens,
                                                             .logits = logits,
                                                             .routing = routing,
                                                             .dweight = dweight,
                                                             .aux_gradient = aux,
                                                             .z_factor = input->z_factor,
                                                             .dlogits = dlogits,
                                                             .sequence_ends = ends,
                                                             .sequences = rows}));
    run->dlogits = download(dlogits, tokens * experts * 4);
}

float *router_mass(const moert_router_options *options, size_t tokens, const float *scores,
                   const uint32_t *ends, size_t sequences) {
    moert_buffer *mass = unset_floats(sequences * options->experts);
    ASSERT_OK(moert_router_mass(options, tokens, upload_floats(scores, tokens * options->experts),
                                upload(ends, sequences * 4), sequences, mass));
    return download_floats(mass, sequences * options->experts);
}

float *router_entropy(const moert_router_options *options, size_t tokens, const float *scores) {
    moert_buffer *entropy = unset_floats(tokens);
    ASSERT_OK(moert_router_entropy(options, tokens,
                                   upload_floats(scores, tokens * options->experts), entropy));
    return download_floats(entropy, tokens);
}

uint32_t *router_counts(const moert_router_options *options, size_t tokens, const float *scores,
                        const uint32_t *ends, size_t sequences) {
    moert_buffer *counts = unset_floats(sequences * options->experts);
    ASSERT_OK(moert_router_counts(options, tokens, upload_floats(scores, tokens * options->experts),
                                  upload(ends, sequences * 4), sequences, counts));
    return download(counts, sequences * options->experts * 4);
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
    if (input->dweight != NULL)
        backward(input, logits, &routing, &run);
    run.scores = download(routing.scores, tokens * experts * 4);
    run.index = download(routing.index, tokens * topk * 4);
    run.weight = download(routing.weight, tokens * topk * 4);
    run.lse = download(routing.lse, tokens * 4);
    return run;
}
