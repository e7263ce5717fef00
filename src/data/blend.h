/*
 * The order of a blend: which source each sequence of a training comes from, and which of that
 * source's sequences it is. A pure function of the sequence's number, so that a resume needs no
 * state. Of the first n sequences, for any n, each source has its share by weight, to less than one
 * sequence.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct moert_blend moert_blend;

/* *weight = a number above 0, up to a million, with up to 6 digits behind the point, in millionths;
 * `text` is the number as it was given. Errors: ERROR_USAGE. */
moert_status moert_blend_weight(double value, const char *text, uint64_t *weight);

/* The order repeats after the sum of the weights, over their common divisor; that is the memory in
 * units of 8 bytes. Errors: ERROR_USAGE (a sum above 2^20), ERROR_MEMORY. */
moert_status moert_blend_create(const uint64_t *weights, size_t count, moert_blend **blend);
/* NULL is legal. */
void moert_blend_destroy(moert_blend *blend);

typedef struct moert_blend_turn {
    size_t source;
    uint64_t number; /* of the source's sequences */
} moert_blend_turn;
moert_blend_turn moert_blend_at(const moert_blend *blend, uint64_t sequence);

/* How many of the first `sequences` sequences come from `source`. */
uint64_t moert_blend_count(const moert_blend *blend, size_t source, uint64_t sequences);
