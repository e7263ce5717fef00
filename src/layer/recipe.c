/* The recipes of the precisions, and checks of other recipes. */
#include "moert/recipe.h"

#include <math.h>

#include "base/memory.h"
#include "quant/quantize.h"

enum {
    MXFP8 = MOERT_ROUND_TO(MOERT_FORMAT_MXFP8_E4M3),
    NVFP4 = MOERT_ROUND_TO(MOERT_FORMAT_NVFP4),
    FP8 = MOERT_ROUND_TO(MOERT_FORMAT_FP8_BLOCK),
    TILES = MOERT_ROUND_TILES,
    STOCHASTIC = MOERT_ROUND_STOCHASTIC,
    HADAMARD = MOERT_ROUND_HADAMARD
};

static const moert_recipe recipes[MOERT_PRECISION_RECIPE] = {
    /* x, weight, dy, wgrad_x, wgrad_dy */
    [MOERT_PRECISION_MXFP8] = {MXFP8, MXFP8, MXFP8, MXFP8, MXFP8},
    [MOERT_PRECISION_FP8] = {FP8, FP8 | TILES, FP8, FP8, FP8},
    [MOERT_PRECISION_NVFP4_PLAIN] = {NVFP4, NVFP4, NVFP4, NVFP4, NVFP4},
    [MOERT_PRECISION_NVFP4] = {NVFP4, NVFP4 | TILES, NVFP4 | STOCHASTIC, NVFP4 | HADAMARD,
                               NVFP4 | HADAMARD | STOCHASTIC, .bf16_last = 0.15,
                               .bf16_finish = 0.18},
};

const moert_recipe *moert_recipe_of(moert_precision precision) {
    return (size_t)precision < MOERT_COUNT(recipes) ? &recipes[precision] : NULL;
}

/* ---- checks ---- */

/* Checks one rounding, whose operand may have the flags `legal`. */
static moert_status check_rounding(const char *name, uint32_t rounding, uint32_t legal) {
    const uint32_t format = rounding & MOERT_ROUND_FORMAT, flags = rounding & ~MOERT_ROUND_FORMAT;
    if (format > MOERT_FORMATS || (flags & ~legal) != 0 || (format == 0 && flags != 0))
        return MOERT_FAIL(
            ERROR_USAGE,
            "%s of a recipe is 0x%x; expected 0 (bf16), or 1 to %d for a format, with "
            "flags of 0x%x",
            name, rounding, MOERT_FORMATS, legal);
    if ((flags & STOCHASTIC) != 0 && moert_format_element_bits((moert_format)(format - 1)) != 4)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s of a recipe rounds %s stochastically; only elements of 4 bits are",
                          name, moert_format_name((moert_format)(format - 1)));
    if ((flags & HADAMARD) != 0 && format != NVFP4)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s of a recipe rotates blocks of %s; only nvfp4 has "
                          "blocks of 16",
                          name, moert_format_name((moert_format)(format - 1)));
    return MOERT_OK;
}

moert_status moert_recipe_check(const moert_recipe *r) {
    const struct {
        const char *name;
        uint32_t rounding, legal;
    } roundings[] = {{"x", r->x, 0},
                     {"weight", r->weight, TILES},
                     {"dy", r->dy, STOCHASTIC},
                     {"wgrad_x", r->wgrad_x, HADAMARD},
                     {"wgrad_dy", r->wgrad_dy, HADAMARD | STOCHASTIC}};
    const struct {
        const char *name;
        double share;
    } shares[] = {{"bf16_first", r->bf16_first},
                  {"bf16_last", r->bf16_last},
                  {"bf16_finish", r->bf16_finish}};
    for (size_t i = 0; i < MOERT_COUNT(roundings); i++)
        MOERT_TRY(check_rounding(roundings[i].name, roundings[i].rounding, roundings[i].legal));
    if (((r->wgrad_x ^ r->wgrad_dy) & HADAMARD) != 0)
        return MOERT_FAIL(ERROR_USAGE, "a recipe rotates only one of wgrad_x and wgrad_dy; their "
                                       "product needs both rotated");
    for (size_t i = 0; i < MOERT_COUNT(shares); i++)
        if (!(shares[i].share >= 0.0 && shares[i].share <= 1.0))
            return MOERT_FAIL(ERROR_USAGE, "%s of a recipe is %g; expected a share from 0 to 1",
                              shares[i].name, shares[i].share);
    return MOERT_OK;
}

/* ---- layers in bf16 ---- */

/* A share of `layers`, rounded up, at most `most` unless it is 1. */
static size_t count_of(double share, size_t layers, size_t most) {
    const size_t count = (size_t)ceil(share * (double)layers);
    return share < 1.0 ? moert_min(count, most) : layers;
}

bool moert_recipe_keeps_bf16(const moert_recipe *recipe, size_t layer, size_t layers) {
    const size_t last = count_of(recipe->bf16_last, layers, layers - 1),
                 first = count_of(recipe->bf16_first, layers, layers - moert_min(last + 1, layers));
    return layer < first || layer + last >= layers;
}
