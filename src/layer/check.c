/* Checks of what callers pass to a layer: options, batches, buffers. */
#include "layer/check.h"

#include <stdlib.h>

#include "base/memory.h"
#include "device/buffer.h"

/* ---- options ---- */

/* Whether a tensor of a * b * c floats is too large. */
static bool exceeds(size_t a, size_t b, size_t c) {
    const size_t most = PTRDIFF_MAX / sizeof(float) / 4; /* / 4: leaves room for the tensor's
                                                            gradient and padding */
    size_t n;
    return __builtin_mul_overflow(a, b, &n) || __builtin_mul_overflow(n, c, &n) || n > most;
}

moert_status moert_layer_check_sizes(const moert_layer_options *o, size_t ranks) {
    const size_t most = INT32_MAX,
                 local = moert_max(o->slots, moert_ceil_div(o->router.experts, ranks));
    const struct {
        const char *name;
        size_t value, most;
    } sizes[] = {{"hidden", o->hidden, most},
                 {"intermediate", o->intermediate, most / 2},
                 {"shared_intermediate", o->shared_intermediate, most / 2}};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++)
        if (sizes[i].value > sizes[i].most)
            return MOERT_FAIL(ERROR_USAGE, "%s of a layer is %zu; expected at most %zu",
                              sizes[i].name, sizes[i].value, sizes[i].most);
    if (o->slots > 0 && (o->slots < local || o->slots > o->router.experts))
        return MOERT_FAIL(
            ERROR_USAGE,
            "slots of a layer is %zu; %zu experts on %zu ranks need %zu to %zu slots per rank",
            o->slots, o->router.experts, ranks, local, o->router.experts);
    if (exceeds(o->router.experts, o->hidden, 1) || exceeds(2 * o->intermediate, o->hidden, local))
        return MOERT_FAIL(ERROR_USAGE,
                          "a layer of hidden size %zu and intermediate size %zu with %zu experts a "
                          "rank exceeds the address space",
                          o->hidden, o->intermediate, local);
    return MOERT_OK;
}

/* X(format, field): all fields of moert_layer_options; every rank must give the same values. */
#define OPTION_TABLE(X)                                                                            \
    X("%zu", hidden)                                                                               \
    X("%zu", intermediate)                                                                         \
    X("%zu", shared_intermediate)                                                                  \
    X("%zu", router.experts)                                                                       \
    X("%zu", router.topk)                                                                          \
    X("%d", router.score)                                                                          \
    X("%d", router.renormalise)                                                                    \
    X("%.9g", router.scale)                                                                        \
    X("%zu", router.groups)                                                                        \
    X("%zu", router.kept_groups)                                                                   \
    X("%zu", router.group_best)                                                                    \
    X("%d", glu.interleaved)                                                                       \
    X("%.9g", glu.limit)                                                                           \
    X("%.9g", glu.alpha)                                                                           \
    X("%.9g", glu.offset)                                                                          \
    X("%d", glu.activation)                                                                        \
    X("%d", router_bias)                                                                           \
    X("%d", correction_bias)                                                                       \
    X("%d", expert_biases)                                                                         \
    X("%d", deferred_wgrad)                                                                        \
    X("%d", precision)                                                                             \
    X("%d", dense)                                                                                 \
    X("%d", dispatch)                                                                              \
    X("%d", combine)                                                                               \
    X("%d", external_routing)                                                                      \
    X("%d", shared_gate)                                                                           \
    X("%zu", slots)                                                                                \
    X("%d", recompute_experts)                                                                     \
    X("%u", recipe.x)                                                                              \
    X("%u", recipe.weight)                                                                         \
    X("%u", recipe.dy)                                                                             \
    X("%u", recipe.wgrad_x)                                                                        \
    X("%u", recipe.wgrad_dy)                                                                       \
    X("%d", recipe.attention)                                                                      \
    X("%.9g", recipe.bf16_first)                                                                   \
    X("%.9g", recipe.bf16_last)                                                                    \
    X("%.9g", recipe.bf16_finish)

_Static_assert(sizeof(moert_layer_options) ==
                   offsetof(moert_layer_options, recipe.bf16_finish) + sizeof(double),
               "OPTION_TABLE lists all fields up to the last one, named here");

static void print_options(const void *options, FILE *file) {
    const moert_layer_options *o = options;
#define PRINT_OPTION(format, field) fprintf(file, #field "=" format "%c", o->field, 0);
    OPTION_TABLE(PRINT_OPTION)
#undef PRINT_OPTION
}

moert_status moert_layer_compare_options(const moert_mesh *mesh,
                                         const moert_layer_options *options) {
    return moert_comm_compare(mesh->world, print_options, options, MOERT_ERROR_USAGE,
                              "all ranks must create the layer with the same options");
}

/* ---- buffers ---- */

moert_status moert_layer_check_buffer(const moert_layer *layer, const char *name,
                                      const moert_buffer *buffer, size_t bytes) {
    if (buffer == NULL)
        return MOERT_FAIL(
            ERROR_USAGE, "%s of a layer is NULL; without tokens a buffer of 0 bytes will do", name);
    if (moert_buffer_device(buffer) != layer->mesh->device)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s of a layer is on another device than that of the layer's context",
                          name);
    if (moert_buffer_bytes(buffer) < bytes)
        return MOERT_FAIL(ERROR_USAGE, "%s of a layer holds %zu bytes; %zu are needed", name,
                          moert_buffer_bytes(buffer), bytes);
    return MOERT_OK;
}

moert_status moert_layer_check_bf16(const moert_layer *layer, const char *name,
                                    const moert_buffer *rows, const moert_batch *batch) {
    const size_t bytes = batch->tokens * layer->options.hidden * sizeof(uint16_t);
    return rows != NULL ? moert_layer_check_buffer(layer, name, rows, bytes) : MOERT_OK;
}

moert_status moert_layer_check_apart(const char *name, const moert_buffer *buffer,
                                     const char *other_name, const moert_buffer *other,
                                     const char *why) {
    return moert_buffers_overlap(buffer, other)
               ? MOERT_FAIL(ERROR_USAGE, "%s overlaps %s, %s", name, other_name, why)
               : MOERT_OK;
}

/* ---- batches ---- */

static moert_status check_ends(const moert_batch *batch) {
    uint32_t *ends, before = 0;
    moert_status status;
    MOERT_TRY(moert_alloc(&ends, batch->sequences, sizeof *ends));
    MOERT_TRY_OR(done, moert_buffer_read(batch->ends, 0, ends, batch->sequences * sizeof *ends));
    for (size_t s = 0; s < batch->sequences && status == MOERT_OK; before = ends[s], s++)
        if (ends[s] < before || ends[s] > batch->tokens)
            status = MOERT_FAIL(ERROR_USAGE,
                                "ends[%zu] of a batch is %u; expected %u to %zu, since ends ascend "
                                "up to the number of tokens",
                                s, ends[s], before, batch->tokens);
    if (status == MOERT_OK && before != batch->tokens)
        status = MOERT_FAIL(ERROR_USAGE,
                            "the last of a batch's ends is %u; expected the number of tokens, %zu",
                            before, batch->tokens);
done:
    free(ends);
    return status;
}

moert_status moert_layer_check_batch(const moert_layer *layer, const moert_batch *batch) {
    if (batch->tokens > INT32_MAX)
        return MOERT_FAIL(ERROR_USAGE, "a batch has %zu tokens, above the limit %d", batch->tokens,
                          INT32_MAX);
    if (batch->tokens > 0 && batch->sequences == 0)
        return MOERT_FAIL(ERROR_USAGE, "a batch has %zu tokens, but 0 sequences", batch->tokens);
    if (batch->first_sequence > batch->total_sequences ||
        batch->sequences > batch->total_sequences - batch->first_sequence)
        return MOERT_FAIL(ERROR_USAGE, "sequences [%zu, +%zu) of a batch exceed its total of %zu",
                          batch->first_sequence, batch->sequences, batch->total_sequences);
    const moert_layer_options *o = &layer->options;
    const bool moves_bf16 = o->external_routing && o->shared_intermediate == 0 &&
                            layer->choices.forth.encoding == MOERT_DISPATCH_BF16;
    if (batch->type != MOERT_DTYPE_F32 && !(batch->type == MOERT_DTYPE_BF16 && moves_bf16))
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "a batch has rows of type %d (moert_dtype); expected f32 (0), or bf16 (%d) in a layer "
            "with external_routing and bf16 dispatch but no shared expert",
            (int)batch->type, (int)MOERT_DTYPE_BF16);
    const size_t slots = batch->tokens * o->router.topk * sizeof(float);
    if (o->external_routing)
        MOERT_TRY(moert_layer_check_buffer(layer, "index", batch->index, slots));
    if (o->external_routing)
        MOERT_TRY(moert_layer_check_buffer(layer, "weight", batch->weight, slots));
    if (!o->external_routing && (batch->index != NULL || batch->weight != NULL))
        return MOERT_FAIL(ERROR_USAGE,
                          "a batch has index or weight, which need a layer with external_routing");
    if (batch->sequences == 0)
        return MOERT_OK;
    MOERT_TRY(
        moert_layer_check_buffer(layer, "ends", batch->ends, batch->sequences * sizeof(uint32_t)));
    return layer->trusts_batches ? MOERT_OK : check_ends(batch);
}
