/*
 * SipHash-2-4 with a 64-bit tag: the tag of a message can be computed only with the key.
 *
 * Source: Aumasson and Bernstein, SipHash: a fast short-input PRF (2012).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct moert_siphash_key {
    uint64_t words[2];
} moert_siphash_key;

uint64_t moert_siphash(const moert_siphash_key *key, const void *data, size_t bytes);
