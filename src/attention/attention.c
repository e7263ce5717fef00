/* Causal attention: checks the arguments and chooses an implementation. */
#include "attention/internal.h"
#include "base/memory.h"
#include "device/profile/profile.h"

enum { MAX_HEAD_SIZE = 512 };

static moert_status check(const moert_attention *attention) {
    const size_t heads = attention->heads, kv_heads = attention->kv_heads,
                 head_size = attention->head_size;
    int narrow;
    if (heads == 0 || kv_heads == 0 || heads % kv_heads != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu query heads cannot share %zu key and value heads",
                          heads, kv_heads);
    if (head_size == 0 || head_size > MAX_HEAD_SIZE)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention heads have 1 to %d elements, not %zu",
                          MAX_HEAD_SIZE, head_size);
    if (attention->type != MOERT_DTYPE_F32 && attention->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention works in f32 or bf16");
    if (attention->type == MOERT_DTYPE_BF16 && attention->scratch == NULL)
        return MOERT_FAIL(ERROR_USAGE, "attention in bf16 needs scratch");
    MOERT_TRY(moert_to_int(attention->length, "length of a sequence", &narrow));
    MOERT_TRY(moert_to_int(heads * head_size, "width of all query heads", &narrow));
    MOERT_TRY(moert_to_int(heads, "number of query heads", &narrow));
    return moert_to_int(kv_heads, "number of key and value heads", &narrow);
}

/* Reports work to the profile: `products` matrix products over the pairs of a query and an earlier
 * key, and the bytes of each tensor once. `wide` tensors have the size of q, `narrow` tensors that
 * of k; lse is one more. */
static void report_work(const moert_attention *attention, size_t products, size_t wide,
                        size_t narrow) {
    const double length = (double)attention->length, size = (double)attention->head_size;
    const double heads = (double)(attention->sequences * attention->heads);
    const double kv_heads = (double)(attention->sequences * attention->kv_heads);
    moert_profile_work(
        moert_buffer_device(attention->q), "attention/attention",
        (double)products * heads * size * length * (length + 1.0),
        sizeof(float) * length *
            (heads * ((double)wide * size + 1.0) + kv_heads * (double)narrow * size));
}

static bool takes_nvidia(const moert_attention *attention) {
    return attention->sequences * attention->length > 0 && moert_attention_nvidia_takes(attention);
}

moert_status moert_attention_forward(const moert_attention *attention) {
    MOERT_TRY(check(attention));
    report_work(attention, 2, 2, 2);
    return takes_nvidia(attention) ? moert_attention_nvidia_forward(attention)
                                   : moert_attention_portable_forward(attention);
}

moert_status moert_attention_backward(const moert_attention *attention) {
    MOERT_TRY(check(attention));
    report_work(attention, 7, 4, 4);
    return takes_nvidia(attention) ? moert_attention_nvidia_backward(attention)
                                   : moert_attention_portable_backward(attention);
}
