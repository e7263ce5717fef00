/* The table of optimizers, and their kernel. */
#include "nn/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "args/nn.h"
#include "base/dtype.h"
#include "base/elementary.h"
#include "base/memory.h"
#include "base/rng.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"

static void adamw(const moert_update *u, moert_update_args *args) {
    const double t = (double)u->step;
    args->keep = (float)(1.0 - u->rate * u->decay);
    args->beta1 = (float)u->beta1;
    args->rest1 = (float)(1.0 - u->beta1);
    args->beta2 = (float)u->beta2;
    args->rest2 = (float)(1.0 - u->beta2);
    args->step = (float)(u->rate / (1.0 - moert_pow(u->beta1, t)));
    args->root = (float)sqrt(1.0 - moert_pow(u->beta2, t));
    args->epsilon = (float)u->epsilon;
}

static void sgd(const moert_update *u, moert_update_args *args) {
    args->beta1 = (float)u->momentum;
    args->rest1 = (float)u->decay;
    args->step = (float)u->rate;
}

const moert_optimizer_row moert_optimizers[MOERT_OPTIMIZERS] = {
    {"adamw", 2, {{"first_moment.", false}, {"second_moment.", true}}, adamw},
    {"sgd", 1, {{"momentum.", false}}, sgd},
};

/* Bytes that an element's update reads and writes. */
static size_t moved_bytes(const moert_update *u, moert_dtype gradient, moert_dtype moments) {
    return 2 * sizeof(float) + moert_dtype_bits(gradient) / 8 +
           2 * moert_optimizers[u->optimizer].moments * (moert_dtype_bits(moments) / 8) +
           (u->rounded != NULL || u->fp8 != NULL ? sizeof(uint16_t) : 0);
}

static moert_update_args args_of(const moert_update *u, size_t n, const moert_elements *gradient,
                                 const moert_elements *state) {
    const bool bf16 = state->type == MOERT_DTYPE_BF16;
    const size_t part = bf16 ? u->part : n, first = bf16 ? u->first : 0;
    const moert_random random = moert_rng_block(u->step, 0, 0);
    moert_update_args args = {.at = u->at,
                              .gradient_at = gradient->at,
                              .state_at = state->at,
                              .n = n,
                              .part = part,
                              .first = first,
                              .first_part = first / moert_max(part, 1),
                              .keys_at = u->keys_at,
                              .scale = (float)u->scale,
                              .random_low = random.word[0],
                              .random_high = random.word[1]};
    moert_optimizers[u->optimizer].coefficients(u, &args);
    return args;
}

/* Adds the options that all programs of optimizers have. */
static void add_options(const moert_update *u, moert_dtype gradient, moert_dtype moments,
                        char spec[MOERT_SPEC_BYTES]) {
    const size_t used = strlen(spec);
    snprintf(spec + used, MOERT_SPEC_BYTES - used, " -DBF16_MOMENTS=%d -DBF16_GRADIENT=%d%s",
             moments == MOERT_DTYPE_BF16, gradient == MOERT_DTYPE_BF16,
             u->optimizer == MOERT_OPTIMIZER_SGD ? " -DSGD" : "");
}

/* Updates weights of which it also writes FP8 operands. */
static moert_status update_tiles(const moert_update *u, const moert_update_args *args,
                                 moert_buffer *parameter, const moert_elements *gradient,
                                 const moert_elements *moments) {
    enum { TILE = MOERT_FP8_BLOCK };
    const moert_fp8_operands *to = u->fp8;
    const moert_optimizer_row *optimizer = &moert_optimizers[u->optimizer];
    const size_t columns = to->columns, rows = to->groups.rows;
    const moert_update_fp8_args all = {
        .update = *args, .height = rows / to->groups.count, .columns = (int)columns};
    char spec[MOERT_SPEC_BYTES];
    if (!to->tiles || rows * columns != args->n || args->part % (TILE * columns) != 0 ||
        args->n % args->part != 0 || columns % TILE != 0 || (args->at | args->first) != 0 ||
        (args->gradient_at | args->state_at) % 4 != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s cannot write %zu x %zu weights, in parts of %zu, as FP8 operands",
                          optimizer->name, rows, columns, (size_t)args->part);
    moert_fp8_program("nn/optimizer_fp8", to, spec);
    add_options(u, gradient->type, moments->type, spec);
    return MOERT_RUN(moert_buffer_device(parameter), spec, optimizer->name,
                     ((moert_grid){columns / TILE, rows / TILE, 1}), MOERT_ARG(parameter),
                     MOERT_ARG(gradient->buffer), MOERT_ARG(moments[0].buffer),
                     MOERT_ARG(optimizer->moments > 1 ? moments[1].buffer : NULL),
                     MOERT_ARG(u->keys), MOERT_ARG(to->along.q), MOERT_ARG(to->along.scale),
                     MOERT_ARG(to->down.q), MOERT_ARG(to->down.scale), MOERT_STRUCT(all));
}

moert_status moert_update_weights(const moert_update *u, size_t n, moert_buffer *parameter,
                                  const moert_elements *gradient, const moert_elements *moments) {
    const moert_optimizer_row *optimizer = &moert_optimizers[u->optimizer];
    if (u->step == 0)
        return MOERT_FAIL(ERROR_USAGE, "%s step 0: steps count from 1", optimizer->name);
    moert_device *device = moert_buffer_device(parameter);
    const moert_update_args args = args_of(u, n, gradient, &moments[0]);
    moert_profile_work(device, "nn/optimizer", 0.0,
                       (double)(n * moved_bytes(u, gradient->type, moments->type)));
    if (u->fp8 != NULL)
        return update_tiles(u, &args, parameter, gradient, moments);
    const size_t block = moert_by_form(device, MOERT_UPDATE_BLOCK, MOERT_UPDATE_GPU_BLOCK);
    const size_t parts = n > 0 ? (args.first + n - 1) / args.part + 1 - args.first_part : 0;
    char spec[MOERT_SPEC_BYTES];
    snprintf(spec, sizeof spec, "%s -DROUNDED=%d",
             MOERT_PROGRAM(device, "nn/optimizer",
                           args.part | args.first | args.at | args.gradient_at | args.state_at),
             u->rounded != NULL);
    add_options(u, gradient->type, moments->type, spec);
    return MOERT_RUN(
        device, spec, optimizer->name, ((moert_grid){moert_ceil_div(args.part, block), parts, 1}),
        MOERT_ARG(parameter), MOERT_ARG(gradient->buffer), MOERT_ARG(moments[0].buffer),
        MOERT_ARG(optimizer->moments > 1 ? moments[1].buffer : NULL), MOERT_ARG(u->rounded),
        MOERT_ARG(u->keys), MOERT_STRUCT(args));
}
