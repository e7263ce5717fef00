/* Draws the rows of tokens and their experts. */
#include "bench/common/tokens.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

uint32_t bench_word(uint64_t seed, uint64_t token, size_t column) {
    uint64_t x = token * 0x9E3779B97F4A7C15u ^ (column + 1) * 0xC2B2AE3D27D4EB4Fu ^ seed << 32;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 32) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

float bench_number(uint64_t seed, uint64_t token, size_t column) {
    return (float)(bench_word(seed, token, column) >> 8) / 16777216.0f - 0.5f;
}

/* Reads `:NUMBER`, which must be above 0 and at most `most`. An empty text leaves *number
 * unchanged. */
static bool read_number(const char *text, double most, double *number) {
    char *end;
    if (*text == '\0')
        return true;
    if (*text != ':' || text[1] == '\0')
        return false;
    *number = strtod(text + 1, &end);
    return *end == '\0' && *number > 0.0 && *number <= most;
}

moert_status bench_skew_read(const char *text, bench_skew *skew) {
    static const struct {
        const char *name;
        double usual, most, unit;
    } kinds[] = {[BENCH_BALANCED] = {"balanced", 0.0, 0.0, 1.0},
                 [BENCH_ZIPF] = {"zipf", 1.0, 10.0, 1.0},
                 [BENCH_HOT] = {"hot", 30.0, 100.0, 0.01},
                 [BENCH_ONE] = {"one", 0.0, 0.0, 1.0}};
    for (size_t i = 0; i < MOERT_COUNT(kinds); i++) {
        const size_t length = strlen(kinds[i].name);
        double number = kinds[i].usual;
        if (strncmp(text, kinds[i].name, length) != 0 ||
            !read_number(text + length, kinds[i].most, &number))
            continue;
        *skew = (bench_skew){(bench_skew_kind)i, number * kinds[i].unit};
        return MOERT_OK;
    }
    return MOERT_FAIL(ERROR_USAGE, "--skew %s: expected " BENCH_SKEW_FORMS, text);
}

/* Draws a token's experts. Each expert gets a random key; the experts with the K largest keys are a
 * sample without replacement. An expert of weight w has the key u^(1/w) (Efraimidis and
 * Spirakis). */
static void draw(bench_skew skew, uint64_t seed, uint64_t token, size_t topk, size_t experts,
                 double *keys) {
    for (size_t e = 0; e < experts; e++) {
        const double u = moert_rng_uniform(seed, 1, token * experts + e);
        keys[e] = skew.kind == BENCH_ZIPF ? pow(u, pow((double)(e + 1), skew.amount)) : u;
    }
    if (skew.kind == BENCH_HOT)
        keys[0] = moert_rng_uniform(seed, 2, token) < skew.amount * (double)topk ? 2.0 : -1.0;
}

static void choose(double *keys, size_t topk, size_t experts, int32_t *chosen) {
    for (size_t k = 0; k < topk; k++) {
        size_t best = 0;
        for (size_t e = 1; e < experts; e++)
            best = keys[e] > keys[best] ? e : best;
        chosen[k] = (int32_t)best;
        keys[best] = -2.0;
    }
}

moert_status bench_route(bench_skew skew, uint64_t seed, size_t tokens, size_t topk, size_t experts,
                         int32_t *index) {
    double *keys;
    MOERT_TRY(MOERT_NEW_ARRAY(&keys, experts));
    for (size_t t = 0; t < tokens; t++) {
        draw(skew, seed, t, topk, experts, keys);
        choose(keys, topk, experts, index + t * topk);
        for (size_t k = 0; skew.kind == BENCH_ONE && k < topk; k++)
            index[t * topk + k] = k == 0 ? 0 : -1;
    }
    free(keys);
    return MOERT_OK;
}
