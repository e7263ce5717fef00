/* The frequencies of rotary schemes. */
#include "base/rope.h"

#include <math.h>

#include "base/elementary.h"
#include "base/error.h"

#define TWO_PI 6.283185307179586

static bool is_positive(double x) {
    return x > 0.0 && isfinite(x);
}

moert_status moert_rope_scheme_check(const moert_rope_scheme *scheme) {
    const bool scaled = scheme->type != MOERT_ROPE_DEFAULT,
               by_length = scaled && scheme->type != MOERT_ROPE_LINEAR;
    const double least_theta = scheme->type == MOERT_ROPE_YARN ? 1.0 : 0.0;
    if (scheme->width == 0 || scheme->width % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "rotary positions need an even width, not %zu",
                          scheme->width);
    if (!(scheme->theta > least_theta && isfinite(scheme->theta)))
        return MOERT_FAIL(ERROR_USAGE, "rotary positions need a theta above %g, not %g",
                          least_theta, scheme->theta);
    if (scaled && !is_positive(scheme->factor))
        return MOERT_FAIL(ERROR_USAGE, "scaled rotary positions need a positive factor, not %g",
                          scheme->factor);
    if (by_length && scheme->original == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "scaled rotary positions need the original context length of the model");
    if (scheme->type == MOERT_ROPE_YARN && !(scheme->beta_fast >= 0.0 && scheme->beta_slow >= 0.0))
        return MOERT_FAIL(ERROR_USAGE, "YaRN needs positive betas, not %g and %g",
                          scheme->beta_fast, scheme->beta_slow);
    if (scheme->type == MOERT_ROPE_LLAMA3 &&
        !(is_positive(scheme->low_factor) && scheme->high_factor > scheme->low_factor))
        return MOERT_FAIL(
            ERROR_USAGE, "llama3 rotary positions need 0 < low factor < high factor, not %g and %g",
            scheme->low_factor, scheme->high_factor);
    return MOERT_OK;
}

double moert_rope_mscale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * moert_log(factor) + 1.0;
}

double moert_rope_attention_factor(const moert_rope_scheme *s) {
    if (s->type != MOERT_ROPE_YARN)
        return 1.0;
    if (s->attention_factor != 0.0)
        return s->attention_factor;
    if (s->mscale != 0.0 && s->mscale_all_dim != 0.0)
        return moert_rope_mscale(s->factor, s->mscale) /
               moert_rope_mscale(s->factor, s->mscale_all_dim);
    return moert_rope_mscale(s->factor, 1.0);
}

/* The index, with a fraction, of the pair that makes `rotations` full turns over the original
 * length. */
static double pair_of(const moert_rope_scheme *s, double rotations) {
    return (double)s->width * moert_log((double)s->original / (rotations * TWO_PI)) /
           (2.0 * moert_log(s->theta));
}

/* The frequency of pair i, given power = theta^(2i / width). Pairs with many turns get 1 / power,
 * pairs with few turns 1 / (factor * power). The frequencies of all other pairs are
 * interpolated. */
static float yarn(const moert_rope_scheme *s, size_t i, float power) {
    double low = pair_of(s, s->beta_fast != 0.0 ? s->beta_fast : 32.0);
    double high = pair_of(s, s->beta_slow != 0.0 ? s->beta_slow : 1.0);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)s->width - 1.0);
    if (low == high)
        high += 0.001;
    const float ramp = ((float)i - (float)low) / (float)(high - low);
    const float full = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
    return 1.0f / ((float)s->factor * power) * (1.0f - full) + 1.0f / power * full;
}

/* Divides low frequencies by the factor, keeps high frequencies, and interpolates between the two
 * forms for all other frequencies. */
static float llama3(const moert_rope_scheme *s, float frequency) {
    const float original = (float)s->original, factor = (float)s->factor,
                wavelength = (float)TWO_PI / frequency;
    if (wavelength > (float)((double)s->original / s->low_factor))
        return frequency / factor;
    if (wavelength < (float)((double)s->original / s->high_factor))
        return frequency;
    const float smooth =
        (original / wavelength - (float)s->low_factor) / (float)(s->high_factor - s->low_factor);
    return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

void moert_rope_frequencies(const moert_rope_scheme *s, float *frequency) {
    for (size_t i = 0; i < s->width / 2; i++) {
        const float exponent = (float)(2 * i) / (float)s->width;
        const float power = (float)moert_pow(s->theta, exponent), plain = 1.0f / power;
        switch (s->type) {
        case MOERT_ROPE_DEFAULT:
            frequency[i] = plain;
            break;
        case MOERT_ROPE_LINEAR:
            frequency[i] = plain / (float)s->factor;
            break;
        case MOERT_ROPE_YARN:
            frequency[i] = yarn(s, i, power);
            break;
        case MOERT_ROPE_LLAMA3:
            frequency[i] = llama3(s, plain);
            break;
        }
    }
}
