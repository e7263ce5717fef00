/* Orders the sequences of a blend by their deadlines. */
#include "data/blend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MOST_PERIOD = 1 << 20, MILLION = 1000000 };

typedef struct entry {
    uint32_t source, number;
} entry;

struct moert_blend {
    size_t count, period;
    uint64_t *weight; /* [count]; the sum of the weights is the period */
    entry *entry;     /* [period] */
};

moert_status moert_blend_weight(double value, const char *text, uint64_t *weight) {
    const double millionths = value * MILLION;
    if (!(millionths >= 1.0 && value <= MILLION) || fabs(millionths - rint(millionths)) > 1e-3)
        return MOERT_FAIL(ERROR_USAGE,
                          "weight '%.64s': expected a number above 0, up to a million, with at "
                          "most 6 digits behind the point, such as 0.7",
                          text);
    *weight = (uint64_t)rint(millionths);
    return MOERT_OK;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Divides the weights by their common divisor. Returns their sum. */
static uint64_t reduce(uint64_t *weights, size_t count) {
    uint64_t divisor = 0, sum = 0;
    for (size_t i = 0; i < count; i++)
        divisor = common_divisor(weights[i], divisor);
    for (size_t i = 0; i < count; i++)
        sum += weights[i] /= divisor;
    return sum;
}

/*
 * A source of weight w has w sequences in a period of P positions. Sequence j of the source may
 * stand at position floor(j P / w) at the earliest, and must stand before position ceil((j + 1) P /
 * w), its deadline. With these bounds, the number of the source's sequences among the first n
 * positions differs from n w / P by less than 1. Each position gets, of the sequences that may
 * stand there, the one with the earliest deadline. This order meets all deadlines, since the
 * sequences exactly fill the period (Baruah et al., "Proportionate progress", 1996).
 */
static void fill_period(moert_blend *b, uint32_t *used) {
    for (size_t place = 0; place < b->period; place++) {
        size_t best = b->count, earliest = SIZE_MAX;
        for (size_t i = 0; i < b->count; i++) {
            const uint64_t w = b->weight[i], deadline = ((used[i] + 1) * b->period + w - 1) / w;
            if (used[i] < w && used[i] * b->period < (place + 1) * w && deadline < earliest) {
                best = i;
                earliest = deadline;
            }
        }
        b->entry[place] = (entry){(uint32_t)best, used[best]++};
    }
}

static moert_status create(const uint64_t *weights, moert_blend *b) {
    uint32_t *used;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->weight, b->count));
    memcpy(b->weight, weights, b->count * sizeof *weights);
    b->period = reduce(b->weight, b->count);
    if (b->period > MOST_PERIOD)
        return MOERT_FAIL(ERROR_USAGE,
                          "the weights of the sources need %zu sequences for their exact "
                          "proportions, above the limit %d; give rounder weights",
                          b->period, MOST_PERIOD);
    MOERT_TRY(MOERT_NEW_ARRAY(&b->entry, b->period));
    MOERT_TRY(MOERT_NEW_ARRAY(&used, b->count));
    fill_period(b, used);
    free(used);
    return MOERT_OK;
}

moert_status moert_blend_create(const uint64_t *weights, size_t count, moert_blend **blend) {
    moert_blend *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->count = count;
    const moert_status status = create(weights, made);
    if (status == MOERT_OK)
        *blend = made;
    else
        moert_blend_destroy(made);
    return status;
}

void moert_blend_destroy(moert_blend *blend) {
    if (blend == NULL)
        return;
    MOERT_FREE(blend->weight, blend->entry, blend);
}

moert_blend_turn moert_blend_at(const moert_blend *blend, uint64_t sequence) {
    const entry at = blend->entry[sequence % blend->period];
    return (moert_blend_turn){at.source,
                              sequence / blend->period * blend->weight[at.source] + at.number};
}

uint64_t moert_blend_count(const moert_blend *blend, size_t source, uint64_t sequences) {
    const uint64_t whole = sequences / blend->period * blend->weight[source];
    for (size_t place = sequences % blend->period; place-- > 0;)
        if (blend->entry[place].source == source)
            return whole + blend->entry[place].number + 1;
    return whole;
}
