/* Slow rows, splits, routings and cheap values (suite.h). */
#include "support/suite.h"

#include "base/rng.h"
#include "support/test.h"

enum { MOST_EXPERTS = 1024 };

const char *const suite_backends[] = {"portable", "reference"};

bool suite_skips(bool slow) {
    const char *tier = getenv("TEST_TIER");
    return slow && (tier == NULL || strcmp(tier, "check") == 0);
}

float *suite_normal(uint64_t key, size_t n, double deviation) {
    float *x = test_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        const uint32_t a = suite_bits(key, 2 * i), b = suite_bits(key, 2 * i + 1);
        const double sum = (a & 0xFFFF) + (a >> 16) + (b & 0xFFFF) + (b >> 16);
        x[i] = (float)(deviation * (sum - 131070.0) / 37837.0);
    }
    return x;
}

void suite_assert_above(const char *title, double signal, double noise, double limit) {
    const double decibel = 10.0 * log10(signal / noise);
    print_message("# %s: %.2f dB\n", title, decibel);
    if (!(decibel >= limit))
        fail_msg("%s: %.2f dB, not %.2f", title, decibel, limit);
}

static int ascending(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void suite_split(uint64_t key, size_t rows, size_t groups, uint32_t *ends) {
    for (size_t g = 0; g + 1 < groups; g++)
        ends[g] = suite_bits(key, g) % (uint32_t)(rows + 1);
    ends[groups - 1] = (uint32_t)rows;
    qsort(ends, groups, sizeof *ends, ascending);
}

void suite_dirichlet(uint64_t key, size_t rows, size_t block, size_t groups, uint32_t *ends) {
    /* a gamma variate of shape 1/2 is half the square of a normal number */
    double sum = 0.0, fraction = 0.0;
    for (size_t g = 0; g < groups; g++)
        sum += pow(moert_rng_normal(key, 0, g), 2.0);
    for (size_t g = 0; g < groups; g++) {
        fraction += pow(moert_rng_normal(key, 0, g), 2.0) / sum;
        ends[g] = (uint32_t)(block * (size_t)(fraction * (double)rows / (double)block));
    }
    ends[groups - 1] = (uint32_t)rows;
}

void suite_route(uint64_t key, size_t tokens, size_t topk, size_t experts, int32_t *index) {
    for (size_t t = 0; t < tokens; t++) {
        bool taken[MOST_EXPERTS] = {false};
        uint64_t draw = 0;
        for (size_t k = 0; k < topk; k++) {
            uint32_t e;
            do
                e = suite_bits(key + t * 0x10001u, draw++) % (uint32_t)experts;
            while (taken[e]);
            taken[e] = true;
            index[t * topk + k] = (int32_t)e;
        }
    }
}

size_t suite_sort(const int32_t *index, size_t slots, size_t experts, uint32_t *gather,
                  uint32_t *ends) {
    uint32_t rows = 0;
    memset(ends, 0, experts * sizeof *ends);
    for (size_t s = 0; s < slots; s++)
        if (index[s] >= 0)
            ends[index[s]]++;
    for (size_t e = 0; e < experts; e++) {
        const uint32_t count = ends[e];
        /* the start of the expert's rows; below, each slot of the expert advances it by one row */
        ends[e] = rows;
        rows += count;
    }
    for (size_t s = 0; s < slots; s++)
        if (index[s] >= 0)
            gather[ends[index[s]]++] = (uint32_t)s;
    return rows;
}
