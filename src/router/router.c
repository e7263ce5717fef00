/*
 * Checks the router's options and launches its kernels (kernels/router/router.cl has the formulas).
 * losses.c computes the losses on the host.
 */
#include <math.h>
#include <stdio.h>

#include "args/forms.h"
#include "args/router.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "router/router.h"

enum {
    MOST_EXPERTS = MOERT_ROUTER_MOST_EXPERTS,
    MOST_NARROW = 256, /* up to this many experts, fewer than 32 work-items hold a token's scores in
                          registers */
    SPEC_BYTES = 96
};

/* The program of the router's kernels, and the tokens that a work-group processes. */
typedef struct program {
    char spec[SPEC_BYTES];
    size_t tokens;
} program;

/* Chooses kernels/router/router.cl for CPUs, kernels/router/gpu.cl for GPUs. On GPUs several items
 * of a row group share a token: at least one per slot, rounded up to a power of 2. */
static program choose_program(const moert_device *device, const moert_router_options *options) {
    const size_t least =
        options->experts > MOST_NARROW ? MOERT_GPU_ITEMS : MOERT_ROUTER_LEAST_SLOTS;
    size_t slots = least;
    if (!moert_device_describe(device)->gpu_form)
        return (program){"router/router", MOERT_ROUTER_TOKENS};
    while (slots < options->topk)
        slots *= 2;
    program chosen = {.tokens = MOERT_GPU_ITEMS / moert_min(slots, MOERT_GPU_ITEMS)};
    snprintf(chosen.spec, SPEC_BYTES,
             "router/gpu -DEXPERTS=%zu -DSLOTS=%zu -DSCORE=%d -DGROUPED=%d%s", options->experts,
             slots, (int)options->score, options->groups > 1,
             MOERT_PROGRAM(device, "", options->experts));
    return chosen;
}

/* The grid of a kernel whose row groups process `tokens` tokens each on CPUs, one token on GPUs. */
static moert_grid grid_of(const moert_device *device, size_t all, size_t tokens) {
    return (moert_grid){moert_ceil_div(all, moert_by_form(device, tokens, 1)), 1, 1};
}

_Static_assert(MOERT_SCORE_SOFTMAX == 0 && MOERT_SCORE_SOFTMAX_TOPK == 1 &&
                   MOERT_SCORE_SIGMOID == 2 && MOERT_SCORE_SQRT_SOFTPLUS == 3,
               "the kernels number the score kinds so");

static moert_status check_groups(const moert_router_options *options) {
    const size_t experts = options->experts, groups = options->groups, kept = options->kept_groups;
    const size_t best = options->group_best;
    if (groups == 0 || experts % groups != 0)
        return MOERT_FAIL(ERROR_USAGE, "router: %zu experts do not form %zu equal groups", experts,
                          groups);
    if (groups > 1 && (best == 0 || best > experts / groups))
        return MOERT_FAIL(ERROR_USAGE,
                          "router: %zu groups cannot be ranked by %zu best experts each; 1 to %zu "
                          "experts are legal (use groups = 1 for no grouping)",
                          groups, best, experts / groups);
    if (kept == 0 || kept > groups)
        return MOERT_FAIL(ERROR_USAGE, "router: cannot keep %zu of %zu groups; 1 to %zu are legal",
                          kept, groups, groups);
    if (options->topk > kept * (experts / groups))
        return MOERT_FAIL(
            ERROR_USAGE,
            "router: %zu experts per token do not fit in %zu kept groups of %zu experts",
            options->topk, kept, experts / groups);
    return MOERT_OK;
}

moert_status moert_router_check(const moert_router_options *options) {
    if (options->size != sizeof *options)
        return MOERT_FAIL(
            ERROR_USAGE,
            "router: options.size is %zu; expected %zu, as MOERT_ROUTER_OPTIONS_INIT sets it",
            options->size, sizeof *options);
    if (options->experts == 0)
        return MOERT_FAIL(ERROR_USAGE, "router: there must be at least one expert");
    if (options->experts > MOST_EXPERTS)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "router: %zu experts exceed the limit of %d",
                          options->experts, MOST_EXPERTS);
    if (options->topk == 0 || options->topk > options->experts)
        return MOERT_FAIL(ERROR_USAGE,
                          "router: %zu experts per token; 1 to %zu are legal with %zu experts",
                          options->topk, options->experts, options->experts);
    if ((unsigned)options->score > MOERT_SCORE_SQRT_SOFTPLUS)
        return MOERT_FAIL(ERROR_USAGE, "router: there is no score kind %d", (int)options->score);
    if (!isfinite(options->scale) || options->scale <= 0.0f)
        return MOERT_FAIL(ERROR_USAGE, "router: scale %g; it must be positive and finite",
                          (double)options->scale);
    return check_groups(options);
}

/* ERROR_USAGE unless `buffer` holds rows * columns elements of 4 bytes. */
static moert_status check_buffer(const char *name, const moert_buffer *buffer, size_t rows,
                                 size_t columns) {
    if (buffer == NULL)
        return MOERT_FAIL(ERROR_USAGE, "router: no buffer for %s", name);
    if (rows > SIZE_MAX / 4 / columns || moert_buffer_bytes(buffer) < rows * columns * 4)
        return MOERT_FAIL(ERROR_USAGE, "router: %s has %zu bytes, too few for [%zu, %zu]", name,
                          moert_buffer_bytes(buffer), rows, columns);
    return MOERT_OK;
}

static moert_status check_routing(const moert_router_options *options, size_t tokens,
                                  const moert_buffer *logits, const moert_routing *routing) {
    MOERT_TRY(check_buffer("logits", logits, tokens, options->experts));
    MOERT_TRY(check_buffer("scores", routing->scores, tokens, options->experts));
    MOERT_TRY(check_buffer("index", routing->index, tokens, options->topk));
    MOERT_TRY(check_buffer("weight", routing->weight, tokens, options->topk));
    return check_buffer("lse", routing->lse, tokens, 1);
}

/* The arguments that all kernels share. */
static moert_router_args args_of(const moert_router_options *options, size_t tokens) {
    const bool alone = options->score >= MOERT_SCORE_SIGMOID;
    /* whether the kernel divides a token's weights by their sum, before it scales them */
    const bool normalised = options->score == MOERT_SCORE_SOFTMAX_TOPK ||
                            (options->renormalise && (!alone || options->topk > 1));
    return (moert_router_args){.tokens = tokens,
                               .experts = (int)options->experts,
                               .topk = (int)options->topk,
                               .score = (int)options->score,
                               .normalised = normalised,
                               .scale = options->scale,
                               .groups = (int)options->groups,
                               .kept_groups = (int)options->kept_groups,
                               .group_best = (int)options->group_best};
}

/* Reports work to a profile: `floats` read or written per token. */
static void tell_work(moert_device *device, size_t tokens, size_t floats) {
    moert_profile_work(device, "router/router", 0.0, sizeof(float) * (double)(tokens * floats));
}

moert_status moert_router_forward(moert_device *device, const moert_router_options *options,
                                  size_t tokens, const moert_buffer *logits,
                                  const moert_buffer *bias, const moert_routing *routing) {
    MOERT_TRY(moert_router_check(options));
    if (tokens == 0)
        return MOERT_OK;
    MOERT_TRY(check_routing(options, tokens, logits, routing));
    if (bias != NULL)
        MOERT_TRY(check_buffer("bias", bias, 1, options->experts));
    tell_work(device, tokens, 2 * options->experts + 2 * options->topk);
    const program p = choose_program(device, options);
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, p.spec, "router_forward",
                     ((moert_grid){moert_ceil_div(tokens, p.tokens), 1, 1}), MOERT_ARG(logits),
                     MOERT_ARG(bias), MOERT_ARG(routing->scores), MOERT_ARG(routing->index),
                     MOERT_ARG(routing->weight), MOERT_ARG(routing->lse), MOERT_STRUCT(args));
}

moert_status moert_router_balance(moert_device *device, const moert_router_options *options,
                                  size_t tokens, moert_buffer *logits) {
    MOERT_TRY(moert_router_check(options));
    if (tokens == 0)
        return MOERT_OK;
    MOERT_TRY(check_buffer("logits", logits, tokens, options->experts));
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, "router/balance", "router_balance",
                     grid_of(device, tokens, MOERT_ROUTER_PADDING_TOKENS), MOERT_ARG(logits),
                     MOERT_STRUCT(args));
}

moert_status moert_router_skip(moert_device *device, const moert_router_options *options,
                               size_t tokens, const moert_buffer *token,
                               const moert_routing *routing) {
    MOERT_TRY(moert_router_check(options));
    if (tokens == 0)
        return MOERT_OK;
    MOERT_TRY(check_buffer("token", token, tokens, 1));
    MOERT_TRY(check_buffer("scores", routing->scores, tokens, options->experts));
    MOERT_TRY(check_buffer("index", routing->index, tokens, options->topk));
    MOERT_TRY(check_buffer("weight", routing->weight, tokens, options->topk));
    MOERT_TRY(check_buffer("lse", routing->lse, tokens, 1));
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, "router/padding", "router_skip",
                     grid_of(device, tokens, MOERT_ROUTER_PADDING_TOKENS), MOERT_ARG(token),
                     MOERT_ARG(routing->scores), MOERT_ARG(routing->index),
                     MOERT_ARG(routing->weight), MOERT_ARG(routing->lse), MOERT_STRUCT(args));
}

moert_status moert_router_backward(moert_device *device, const moert_router_options *options,
                                   const moert_router_gradient *gradient) {
    const moert_routing *routing = gradient->routing;
    const size_t tokens = gradient->tokens;
    const bool by_sequence = gradient->aux_gradient != NULL && gradient->sequence_ends != NULL;
    MOERT_TRY(moert_router_check(options));
    if (tokens == 0)
        return MOERT_OK;
    MOERT_TRY(check_routing(options, tokens, gradient->logits, routing));
    MOERT_TRY(check_buffer("dweight", gradient->dweight, tokens, options->topk));
    MOERT_TRY(check_buffer("dlogits", gradient->dlogits, tokens, options->experts));
    if (gradient->aux_gradient != NULL)
        MOERT_TRY(check_buffer("aux_gradient", gradient->aux_gradient,
                               by_sequence ? gradient->sequences : 1, options->experts));
    if (by_sequence)
        MOERT_TRY(check_buffer("sequence_ends", gradient->sequence_ends, gradient->sequences, 1));
    const bool reads_logits = gradient->z_factor != 0.0f && options->score >= MOERT_SCORE_SIGMOID;
    tell_work(device, tokens, (2 + reads_logits) * options->experts + 3 * options->topk + 1);
    const program p = choose_program(device, options);
    moert_router_args args = args_of(options, tokens);
    args.z_factor = gradient->z_factor;
    args.sequences = (unsigned)gradient->sequences;
    return MOERT_RUN(
        device, p.spec, "router_backward", ((moert_grid){moert_ceil_div(tokens, p.tokens), 1, 1}),
        MOERT_ARG(gradient->logits), MOERT_ARG(routing->scores), MOERT_ARG(routing->index),
        MOERT_ARG(routing->weight), MOERT_ARG(routing->lse), MOERT_ARG(gradient->dweight),
        MOERT_ARG(gradient->aux_gradient), MOERT_ARG(by_sequence ? gradient->sequence_ends : NULL),
        MOERT_ARG(gradient->dlogits), MOERT_STRUCT(args));
}

/* Checks the scores of tokens in sequences; `sequences` is at least 1. */
static moert_status check_sequences(const moert_router_options *options, size_t tokens,
                                    const moert_buffer *scores, const moert_buffer *sequence_ends,
                                    size_t sequences) {
    MOERT_TRY(moert_router_check(options));
    MOERT_TRY(check_buffer("scores", scores, tokens, options->experts));
    return check_buffer("sequence_ends", sequence_ends, sequences, 1);
}

moert_status moert_router_mass(const moert_router_options *options, size_t tokens,
                               const moert_buffer *scores, const moert_buffer *sequence_ends,
                               size_t sequences, moert_buffer *mass) {
    if (sequences == 0)
        return moert_router_check(options);
    MOERT_TRY(check_sequences(options, tokens, scores, sequence_ends, sequences));
    MOERT_TRY(check_buffer("mass", mass, sequences, options->experts));
    moert_device *device = moert_buffer_device(mass);
    tell_work(device, tokens, options->experts);
    const size_t strips =
        moert_by_form(device, 1, moert_ceil_div(options->experts, MOERT_SUM_LANES));
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, "router/sums", "router_mass", ((moert_grid){sequences, strips, 1}),
                     MOERT_ARG(scores), MOERT_ARG(sequence_ends), MOERT_ARG(mass),
                     MOERT_STRUCT(args));
}

moert_status moert_router_counts(const moert_router_options *options, size_t tokens,
                                 const moert_buffer *scores, const moert_buffer *sequence_ends,
                                 size_t sequences, moert_buffer *counts) {
    if (sequences == 0)
        return moert_router_check(options);
    MOERT_TRY(check_sequences(options, tokens, scores, sequence_ends, sequences));
    MOERT_TRY(check_buffer("counts", counts, sequences, options->experts));
    moert_device *device = moert_buffer_device(counts);
    MOERT_TRY(moert_buffer_clear(counts, 0, sequences * options->experts * sizeof(uint32_t)));
    if (tokens == 0)
        return MOERT_OK;
    tell_work(device, tokens, options->experts + options->topk);
    const program p = choose_program(device, options);
    moert_router_args args = args_of(options, tokens);
    args.sequences = (unsigned)sequences;
    return MOERT_RUN(device, p.spec, "router_counts",
                     ((moert_grid){moert_ceil_div(tokens, p.tokens), 1, 1}), MOERT_ARG(scores),
                     MOERT_ARG(sequence_ends), MOERT_ARG(counts), MOERT_STRUCT(args));
}

moert_status moert_router_entropy(const moert_router_options *options, size_t tokens,
                                  const moert_buffer *scores, moert_buffer *entropy) {
    MOERT_TRY(moert_router_check(options));
    if (tokens == 0)
        return MOERT_OK;
    MOERT_TRY(check_buffer("scores", scores, tokens, options->experts));
    MOERT_TRY(check_buffer("entropy", entropy, tokens, 1));
    moert_device *device = moert_buffer_device(entropy);
    tell_work(device, tokens, options->experts + 1);
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, "router/sums", "router_entropy",
                     grid_of(device, tokens, MOERT_ROUTER_TOKENS), MOERT_ARG(scores),
                     MOERT_ARG(entropy), MOERT_STRUCT(args));
}
