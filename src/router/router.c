/*
 * Checks the router's options and launches its kernels (kernels/router/router.cl has the formulas).
 * losses.c computes the losses on the host.
 */
#include <math.h>
#include <stdio.h>

#include "args/router.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "router/router.h"

enum { MOST_EXPERTS = 1024 };
/* The tokens of a row group on CPUs, as in kernels/router/balance.cl and padding.cl. */
enum { TOKENS_AT_ONCE = 256 };

/* A build of kernels/router/router.cl for up to MOST_EXPERTS experts. GPUs keep arrays of that
 * length in local memory, so they use builds for different numbers of experts. A row group computes
 * `block` tokens. */
typedef struct build {
    char program[80];
    size_t block;
    size_t columns; /* columns that a work-group of router_mass sums */
} build;

/* Chooses a build. `aligned` is ALIGNED of MOERT_PROGRAM(); only the backward sets it, since it
 * makes the forward slower. */
static build choose_build(const moert_device *device, size_t experts, bool aligned) {
    const bool gpu = moert_device_describe(device)->gpu_form;
    size_t most = gpu ? 128 : MOST_EXPERTS;
    while (most < experts)
        most *= 2;
    build with = {.block = gpu ? 1 : 16, .columns = gpu ? 128 : MOST_EXPERTS};
    snprintf(with.program, sizeof with.program, "router/router -DBLOCK=%zu -DMOST_EXPERTS=%zu%s",
             with.block, most, aligned ? " -DALIGNED" : "");
    return with;
}

/* Sizes and limits of a build of kernels/router/gpu.cl, which holds a token's experts in registers.
 * Only NVIDIA GPUs use it, since their row groups synchronize by one instruction. */
enum {
    HELD_EXPERTS = 256,
    HELD_SLOTS = 32,
    LEAST_SLOTS = 8,
    HELD_ROW_GROUPS = 1,
    SPEC_BYTES = 128
};

/* Writes the build's `spec` and its `grid`; false if no build supports these numbers of experts and
 * slots. */
static bool choose_held(const moert_device *device, const moert_router_options *options,
                        size_t tokens, char spec[SPEC_BYTES], moert_grid *grid) {
    const moert_device_info *info = moert_device_describe(device);
    const size_t items = HELD_SLOTS;
    size_t slots = LEAST_SLOTS;
    if (!info->gpu_form || info->nvidia == 0 || options->experts > HELD_EXPERTS ||
        options->topk > HELD_SLOTS)
        return false;
    while (slots < options->topk)
        slots *= 2;
    snprintf(spec, SPEC_BYTES, "router/gpu -DEXPERTS=%zu -DSLOTS=%zu -DSCORE=%d -DROW_GROUPS=%d%s",
             options->experts, slots, (int)options->score, HELD_ROW_GROUPS,
             MOERT_PROGRAM(device, "", options->experts));
    *grid = (moert_grid){moert_ceil_div(tokens, items / slots * HELD_ROW_GROUPS), 1, 1};
    return true;
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
                          "router: %zu groups cannot be judged by their %zu best experts; 1 to %zu "
                          "are legal (use groups = 1 for no grouping)",
                          groups, best, experts / groups);
    if (kept == 0 || kept > groups)
        return MOERT_FAIL(ERROR_USAGE, "router: cannot keep %zu of %zu groups; 1 to %zu are legal",
                          kept, groups, groups);
    if (options->topk > kept * (experts / groups))
        return MOERT_FAIL(ERROR_USAGE,
                          "router: %zu experts per token do not fit in %zu kept groups of %zu",
                          options->topk, kept, experts / groups);
    return MOERT_OK;
}

moert_status moert_router_check(const moert_router_options *options) {
    if (options->size != sizeof *options)
        return MOERT_FAIL(ERROR_USAGE,
                          "router: options of %zu bytes, expected %zu; start from "
                          "MOERT_ROUTER_OPTIONS_INIT",
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
    char held[SPEC_BYTES];
    const build with = choose_build(device, options->experts, false);
    const char *program = with.program, *kernel = "router_forward";
    const moert_router_args args = args_of(options, tokens);
    moert_grid grid = {moert_ceil_div(tokens, with.block), 1, 1};
    if (options->groups == 1 && choose_held(device, options, tokens, held, &grid)) {
        program = held;
        kernel = "router_choose";
    }
    return MOERT_RUN(device, program, kernel, grid, MOERT_ARG(logits), MOERT_ARG(bias),
                     MOERT_ARG(routing->scores), MOERT_ARG(routing->index),
                     MOERT_ARG(routing->weight), MOERT_ARG(routing->lse), MOERT_STRUCT(args));
}

/* The grid of a kernel that takes TOKENS_AT_ONCE tokens a row group on CPUs, one on GPUs. */
static moert_grid few_tokens_each(const moert_device *device, size_t tokens) {
    return (moert_grid){moert_ceil_div(tokens, moert_by_form(device, TOKENS_AT_ONCE, 1)), 1, 1};
}

moert_status moert_router_balance(moert_device *device, const moert_router_options *options,
                                  size_t tokens, moert_buffer *logits) {
    MOERT_TRY(moert_router_check(options));
    if (tokens == 0)
        return MOERT_OK;
    MOERT_TRY(check_buffer("logits", logits, tokens, options->experts));
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, "router/balance", "router_balance", few_tokens_each(device, tokens),
                     MOERT_ARG(logits), MOERT_STRUCT(args));
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
    return MOERT_RUN(device, "router/padding", "router_skip", few_tokens_each(device, tokens),
                     MOERT_ARG(token), MOERT_ARG(routing->scores), MOERT_ARG(routing->index),
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
    char held[SPEC_BYTES];
    const size_t sizes = moert_by_form(device, 1, options->experts | options->topk);
    const build with = choose_build(device, options->experts, sizes % 4 == 0);
    const char *program = with.program, *kernel = "router_backward";
    moert_router_args args = args_of(options, tokens);
    args.z_factor = gradient->z_factor;
    args.sequences = (unsigned)gradient->sequences;
    moert_grid grid = {moert_ceil_div(tokens, with.block), 1, 1};
    if (choose_held(device, options, tokens, held, &grid)) {
        program = held;
        kernel = "router_return";
    }
    return MOERT_RUN(device, program, kernel, grid, MOERT_ARG(gradient->logits),
                     MOERT_ARG(routing->scores), MOERT_ARG(routing->index),
                     MOERT_ARG(routing->weight), MOERT_ARG(routing->lse),
                     MOERT_ARG(gradient->dweight), MOERT_ARG(gradient->aux_gradient),
                     MOERT_ARG(by_sequence ? gradient->sequence_ends : NULL),
                     MOERT_ARG(gradient->dlogits), MOERT_STRUCT(args));
}

/* Checks the buffers of sums over sequences; `sums` is [S,E]. */
static moert_status check_sums(const moert_router_options *options, size_t tokens,
                               const moert_buffer *scores, const moert_buffer *sequence_ends,
                               size_t sequences, const char *name, const moert_buffer *sums) {
    MOERT_TRY(moert_router_check(options));
    MOERT_TRY(check_buffer("scores", scores, tokens, options->experts));
    MOERT_TRY(check_buffer("sequence_ends", sequence_ends, sequences, 1));
    return check_buffer(name, sums, sequences, options->experts);
}

moert_status moert_router_mass(const moert_router_options *options, size_t tokens,
                               const moert_buffer *scores, const moert_buffer *sequence_ends,
                               size_t sequences, moert_buffer *mass) {
    if (sequences == 0)
        return moert_router_check(options);
    MOERT_TRY(check_sums(options, tokens, scores, sequence_ends, sequences, "mass", mass));
    moert_device *device = moert_buffer_device(mass);
    tell_work(device, tokens, options->experts);
    const build with = choose_build(device, options->experts, false);
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, with.program, "router_mass",
                     ((moert_grid){sequences, moert_ceil_div(options->experts, with.columns), 1}),
                     MOERT_ARG(scores), MOERT_ARG(sequence_ends), MOERT_ARG(mass),
                     MOERT_STRUCT(args));
}

moert_status moert_router_counts(const moert_router_options *options, size_t tokens,
                                 const moert_buffer *scores, const moert_buffer *sequence_ends,
                                 size_t sequences, moert_buffer *counts) {
    if (sequences == 0)
        return moert_router_check(options);
    MOERT_TRY(check_sums(options, tokens, scores, sequence_ends, sequences, "counts", counts));
    moert_device *device = moert_buffer_device(counts);
    MOERT_TRY(moert_buffer_clear(counts, 0, sequences * options->experts * sizeof(uint32_t)));
    if (tokens == 0)
        return MOERT_OK;
    tell_work(device, tokens, options->experts + options->topk);
    const build with = choose_build(device, options->experts, false);
    moert_router_args args = args_of(options, tokens);
    args.sequences = (unsigned)sequences;
    return MOERT_RUN(device, with.program, "router_counts",
                     ((moert_grid){moert_ceil_div(tokens, with.block), 1, 1}), MOERT_ARG(scores),
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
    const build with = choose_build(device, options->experts, false);
    const moert_router_args args = args_of(options, tokens);
    return MOERT_RUN(device, with.program, "router_entropy",
                     ((moert_grid){moert_ceil_div(tokens, with.block), 1, 1}), MOERT_ARG(scores),
                     MOERT_ARG(entropy), MOERT_STRUCT(args));
}
