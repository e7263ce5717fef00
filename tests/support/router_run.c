/* Runs the router on the device for tests. */
#include "support/router_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/config.h"

enum { GUARD_BYTES = 96, GUARD_VALUE = 0xa5 };

static moert_device *device;

moert_device *router_device(void) {
    return device;
}

int router_device_open(void **state) {
    (void)state;
    return moert_device_open(moert_config_get()->device, "", 0, &device) == MOERT_OK ? 0 : -1;
}

int router_device_close(void **state) {
    (void)state;
    moert_device_close(device);
    return 0;
}

moert_buffer *router_upload(const void *data, size_t bytes) {
    moert_buffer *buffer;
    assert_int_equal(moert_buffer_create(device, bytes, &buffer), MOERT_OK);
    assert_int_equal(moert_buffer_write(buffer, 0, data, bytes), MOERT_OK);
    return buffer;
}

moert_buffer *router_output(size_t bytes) {
    unsigned char *pattern = malloc(bytes + GUARD_BYTES);
    memset(pattern, GUARD_VALUE, bytes + GUARD_BYTES);
    moert_buffer *buffer = router_upload(pattern, bytes + GUARD_BYTES);
    free(pattern);
    return buffer;
}

void *router_download(moert_buffer *buffer, size_t bytes) {
    unsigned char *data = malloc(bytes + GUARD_BYTES);
    assert_int_equal(moert_buffer_read(buffer, 0, data, bytes + GUARD_BYTES), MOERT_OK);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(data[bytes + i], GUARD_VALUE);
    moert_buffer_destroy(buffer);
    return data;
}

static void backward(const router_input *input, const moert_buffer *logits,
                     const moert_routing *routing, router_run *run) {
    const size_t tokens = input->tokens, experts = input->options.experts,
                 topk = input->options.topk;
    moert_buffer *dweight = router_upload(input->dweight, tokens * topk * 4);
    moert_buffer *aux = input->aux != NULL ? router_upload(input->aux, experts * 4) : NULL;
    moert_buffer *dlogits = router_output(tokens * experts * 4);
    if (input->index != NULL)
        assert_int_equal(moert_buffer_write(routing->index, 0, input->index, tokens * topk * 4),
                         MOERT_OK);
    assert_int_equal(moert_router_backward(device, &input->options, tokens, logits, routing,
                                           dweight, aux, input->z_factor, dlogits),
                     MOERT_OK);
    run->dlogits = router_download(dlogits, tokens * experts * 4);
    moert_buffer_destroy(dweight);
    moert_buffer_destroy(aux);
}

router_run router_do(const router_input *input) {
    const size_t tokens = input->tokens, experts = input->options.experts,
                 topk = input->options.topk;
    moert_buffer *logits = router_upload(input->logits, tokens * experts * 4);
    moert_buffer *bias = input->bias != NULL ? router_upload(input->bias, experts * 4) : NULL;
    moert_routing routing = {router_output(tokens * experts * 4), router_output(tokens * topk * 4),
                             router_output(tokens * topk * 4), router_output(tokens * 4)};
    router_run run = {0};
    assert_int_equal(moert_router_forward(device, &input->options, tokens, logits, bias, &routing),
                     MOERT_OK);
    if (input->dweight != NULL)
        backward(input, logits, &routing, &run);
    run.scores = router_download(routing.scores, tokens * experts * 4);
    run.index = router_download(routing.index, tokens * topk * 4);
    run.weight = router_download(routing.weight, tokens * topk * 4);
    run.lse = router_download(routing.lse, tokens * 4);
    moert_buffer_destroy(logits);
    moert_buffer_destroy(bias);
    return run;
}

void router_run_free(router_run *run) {
    free(run->scores);
    free(run->index);
    free(run->weight);
    free(run->lse);
    free(run->dlogits);
    *run = (router_run){0};
}
