/*
 * The order of a blend: the source of each training sequence, and the number of the sequence within
 * that source. The number of the training sequence alone determines both values, so a resume needs
 * no state. For any n, the number of sequences of a source among the first n training sequences
 * differs by less than 1 from n times the fraction of the source's weight in the sum of all
 * weights.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct moert_blend moert_blend;

/* *weight = `value` in millionths. The value must be above 0, at most a million, and have at most 6
 * decimal places. `text` is the value as the user gave it, for the message. Errors: ERROR_USAGE. */
moert_status moert_blend_weight(double value, const char *text, uint64_t *weight);

/* The order repeats after P sequences, where P is the sum of the weights over their greatest common
 * divisor. A blend takes 8 P bytes. Errors: ERROR_USAGE (P above 2^20), ERROR_MEMORY. */
moert_status moert_blend_create(const uint64_t *weights, size_t count, moert_blend **blend);
/* NULL is legal. */
void moert_blend_destroy(moert_blend *blend);

typedef struct moert_blend_turn {
    size_t source;
    uint64_t number; /* index among the source's sequences */
} moert_blend_turn;
moert_blend_turn moert_blend_at(const moert_blend *blend, uint64_t sequence);

/* How many of the first `sequences` sequences come from `source`. */
uint64_t moert_blend_count(const moert_blend *blend, size_t source, uint64_t sequences);
