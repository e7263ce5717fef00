/* The table of optimizers, and their kernel. */
#include "nn/optimizer.h"

#include <math.h>
#include <stdio.h>

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
           (u->rounded != NULL ? sizeof(uint16_t) : 0);
}

moert_status moert_update_weights(const moert_update *u, size_t n, moert_buffer *parameter,
                                  const moert_elements *gradient, const moert_elements *moments) {
    const moert_optimizer_row *optimizer = &moert_optimizers[u->optimizer];
    const moert_elements *state = &moments[0];
    if (u->step == 0)
        return MOERT_FAIL(ERROR_USAGE, "%s step 0: steps count from 1", optimizer->name);
    moert_device *device = moert_buffer_device(parameter);
    const size_t block = moert_by_form(device, MOERT_UPDATE_BLOCK, MOERT_UPDATE_GPU_BLOCK);
    const bool bf16 = state->type == MOERT_DTYPE_BF16;
    const size_t part = bf16 ? u->part : n, first = bf16 ? u->first : 0;
    const size_t first_part = first / moert_max(part, 1),
                 parts = n > 0 ? (first + n - 1) / part + 1 - first_part : 0;
    const moert_random random = moert_rng_block(u->step, 0, 0);
    moert_update_args args = {.at = u->at,
                              .gradient_at = gradient->at,
                              .state_at = state->at,
                              .n = n,
                              .part = part,
                              .first = first,
                              .first_part = first_part,
                              .keys_at = u->keys_at,
                              .scale = (float)u->scale,
                              .random_low = random.word[0],
                              .random_high = random.word[1]};
    optimizer->coefficients(u, &args);
    char program[96];
    snprintf(program, sizeof program, "%s -DROUNDED=%d -DBF16_MOMENTS=%d -DBF16_GRADIENT=%d%s",
             MOERT_PROGRAM(device, "nn/optimizer", part | first | u->at | gradient->at | state->at),
             u->rounded != NULL, bf16, gradient->type == MOERT_DTYPE_BF16,
             u->optimizer == MOERT_OPTIMIZER_SGD ? " -DSGD" : "");
    moert_profile_work(device, "nn/optimizer", 0.0,
                       (double)(n * moved_bytes(u, gradient->type, state->type)));
    return MOERT_RUN(
        device, program, optimizer->name, ((moert_grid){moert_ceil_div(part, block), parts, 1}),
        MOERT_ARG(parameter), MOERT_ARG(gradient->buffer), MOERT_ARG(state->buffer),
        MOERT_ARG(optimizer->moments > 1 ? moments[1].buffer : NULL), MOERT_ARG(u->rounded),
        MOERT_ARG(u->keys), moert_argument_struct(&args, sizeof args));
}
