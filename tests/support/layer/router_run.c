/* Runs the router on the device for tests. */
#include "support/layer/router_run.h"

#include "support/test.h"

/* The content of a buffer that is no longer needed. */
static void *take(moert_buffer *buffer, size_t bytes) {
    void *content = download(buffer, bytes);
    return content;
}

static void backward(const router_input *input, const moert_buffer *logits,
                     const moert_routing *routing, router_run *run) {
    const size_t tokens = input->tokens, experts = input->options.experts,
                 topk = input->options.topk;
    moert_buffer *dweight = upload(input->dweight, tokens * topk * 4);
    moert_buffer *aux = input->aux != NULL ? upload(input->aux, experts * 4) : NULL;
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
                                                             .dlogits = dlogits}));
    run->dlogits = take(dlogits, tokens * experts * 4);
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
    run.scores = take(routing.scores, tokens * experts * 4);
    run.index = take(routing.index, tokens * topk * 4);
    run.weight = take(routing.weight, tokens * topk * 4);
    run.lse = take(routing.lse, tokens * 4);
    return run;
}
