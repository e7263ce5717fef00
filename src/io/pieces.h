/*
 * Checksums of the pieces of a file or tensor. Readers and writers compute the checksums while they
 * read or write the bytes, in any order.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/checksum.h"

/* Pieces begin at multiples of this size; the last piece may be shorter. */
enum { MOERT_PIECE_BYTES = 1 << 20 };

/* Whether the checksum has been computed. Zeros mean not computed. A real checksum is zero once in
 * 2^128 pieces; it is then computed again. */
bool moert_piece_is_summed(const moert_checksum *sum);

/* Computes the missing checksums in sums[] of the pieces that lie entirely within bytes [first,
 * first + bytes) of `total`. `data` points to these bytes. */
void moert_pieces_sum(moert_checksum *sums, size_t total, size_t first, size_t bytes,
                      const void *data);
