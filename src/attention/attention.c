/* Causal attention: checks the arguments and chooses an implementation. */
#include <stdio.h>

#include "args/attention.h"
#include "attention/internal.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/launch.h"
#include "device/profile/profile.h"

enum { MAX_HEAD_SIZE = 512, SPEC_BYTES = 48 };

/* The attention with its value_size filled in. */
static moert_attention with_sizes(const moert_attention *attention) {
    moert_attention a = *attention;
    a.value_size = a.value_size > 0 ? a.value_size : a.head_size;
    return a;
}

moert_dtype moert_attention_operands(const moert_device *device, const moert_attention *attention) {
    const moert_attention a = with_sizes(attention);
    return device != NULL && moert_attention_nvidia_supports(device, &a) == NULL ? MOERT_DTYPE_BF16
                                                                                 : MOERT_DTYPE_F32;
}

static moert_status check_size(size_t size) {
    if (size == 0 || size > MAX_HEAD_SIZE)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention heads have 1 to %d elements, not %zu",
                          MAX_HEAD_SIZE, size);
    return MOERT_OK;
}

static moert_status check(const moert_attention *attention) {
    const size_t heads = attention->heads, kv_heads = attention->kv_heads,
                 head_size = attention->head_size, value_size = attention->value_size;
    int narrow;
    if (heads == 0 || kv_heads == 0 || heads % kv_heads != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu query heads cannot share %zu key and value heads",
                          heads, kv_heads);
    MOERT_TRY(check_size(head_size));
    MOERT_TRY(check_size(value_size));
    if (attention->type != MOERT_DTYPE_F32 && attention->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention works in f32 or bf16");
    if (attention->type == MOERT_DTYPE_BF16 && attention->scratch == NULL)
        return MOERT_FAIL(ERROR_USAGE, "attention in bf16 needs the buffer scratch, which is NULL");
    const moert_dtype operands =
        moert_attention_operands(moert_buffer_device(attention->q), attention);
    if (attention->operands != operands)
        return MOERT_FAIL(
            ERROR_USAGE,
            "on this device, attention with these options takes operands in %s, not in %s",
            moert_dtype_name(operands), moert_dtype_name(attention->operands));
    if (attention->dsinks != NULL && attention->sinks == NULL)
        return MOERT_FAIL(ERROR_USAGE, "dsinks is given, but sinks is NULL");
    if (attention->documents != NULL && moert_documents_continues(attention->documents) &&
        (operands != MOERT_DTYPE_F32 || attention->dq != NULL))
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention to cached keys has no backward, and takes "
                                             "operands in f32");
    if (attention->documents != NULL &&
        moert_documents_tokens(attention->documents) != attention->sequences * attention->length)
        return MOERT_FAIL(
            ERROR_USAGE, "the documents have %zu tokens, but the batch has %zu tokens",
            moert_documents_tokens(attention->documents), attention->sequences * attention->length);
    MOERT_TRY(moert_to_int(attention->length, "length of a sequence", &narrow));
    MOERT_TRY(moert_to_int(heads * head_size, "width of all query heads", &narrow));
    MOERT_TRY(moert_to_int(heads * value_size, "width of all heads of the result", &narrow));
    MOERT_TRY(moert_to_int(heads, "number of query heads", &narrow));
    return moert_to_int(kv_heads, "number of key and value heads", &narrow);
}

/* Checks the attention, and sets *complete to the attention with its defaults filled in. */
static moert_status complete(const moert_attention *attention, moert_attention *complete) {
    const size_t longest =
        moert_max(attention->length,
                  attention->documents != NULL ? moert_documents_longest(attention->documents) : 0);
    *complete = with_sizes(attention);
    if (attention->window == 0 || attention->window > longest)
        complete->window = longest;
    return check(complete);
}

/* Whether the tensor cores compute a call. If the tensor cores do not compute a call, although the
 * caller allows bf16, logs the reason. */
static bool takes_nvidia(const moert_attention *a) {
    const char *taken = moert_attention_nvidia_supports(moert_buffer_device(a->q), a);
    if (taken != NULL && a->type == MOERT_DTYPE_BF16)
        MOERT_LOG(DEBUG, "attention of %zu heads of %zu runs in float32: tensor cores take %s",
                  a->heads, a->head_size, taken);
    return a->sequences * a->length > 0 && taken == NULL;
}

/* Reports FLOPs and bytes of a call to the profile. FLOPs are those of `key_products` matrix
 * products with keys and `value_products` with values, for all pairs of a query and a key that it
 * sees. Bytes are those of q, k, v, out and lse, and in the backward also those of their
 * gradients. */
static void report_work(const moert_attention *a, size_t key_products, size_t value_products,
                        bool backward, bool tensor_cores) {
    const double pairs = a->documents != NULL
                             ? moert_documents_pairs(a->documents, a->window)
                             : (double)a->sequences * moert_attention_pairs(a->length, a->window);
    const double heads = (double)a->heads, kv_heads = (double)a->kv_heads,
                 both = (double)(a->head_size + a->value_size);
    const double operands = heads * (double)a->head_size + kv_heads * both,
                 gradients = (heads + kv_heads) * both;
    (tensor_cores ? moert_profile_bf16_work : moert_profile_work)(
        moert_buffer_device(a->q), "attention/attention",
        2.0 * heads * pairs *
            (double)(key_products * a->head_size + value_products * a->value_size),
        (double)(a->sequences * a->length) *
            ((double)moert_dtype_bits(a->operands) / 8.0 * operands +
             sizeof(float) *
                 (heads * (double)a->value_size + heads + (backward ? gradients : 0.0))));
}

size_t moert_attention_scratch_bytes(const moert_device *device, const moert_attention *attention) {
    const moert_attention a = with_sizes(attention);
    return moert_attention_nvidia_supports(device, &a) == NULL
               ? moert_attention_nvidia_scratch_bytes(&a)
               : 0;
}

static moert_status sinks_backward(const moert_attention *a) {
    moert_device *device = moert_buffer_device(a->q);
    char spec[SPEC_BYTES];
    snprintf(spec, sizeof spec, "%s -DROUNDED=%d",
             MOERT_PROGRAM(device, "attention/sinks", a->value_size),
             a->operands == MOERT_DTYPE_BF16);
    return MOERT_RUN(device, spec, "sink_gradient", ((moert_grid){a->heads, a->sequences, 1}),
                     MOERT_ARG(a->sinks), MOERT_ARG(a->out), MOERT_ARG(a->lse), MOERT_ARG(a->dout),
                     MOERT_ARG(a->dsinks),
                     MOERT_ARGS(moert_sink_args, .length = a->length, .heads = (int)a->heads,
                                .value_size = (int)a->value_size));
}

moert_status moert_attention_forward(const moert_attention *attention) {
    moert_attention a;
    MOERT_TRY(complete(attention, &a));
    const bool nvidia = takes_nvidia(&a);
    report_work(&a, 1, 1, false, nvidia);
    return nvidia ? moert_attention_nvidia_forward(&a) : moert_attention_portable_forward(&a);
}

moert_status moert_attention_backward(const moert_attention *attention) {
    moert_attention a;
    MOERT_TRY(complete(attention, &a));
    const bool nvidia = takes_nvidia(&a);
    report_work(&a, 4, 3, true, nvidia);
    MOERT_TRY(nvidia ? moert_attention_nvidia_backward(&a) : moert_attention_portable_backward(&a));
    return a.dsinks != NULL ? sinks_backward(&a) : MOERT_OK;
}
