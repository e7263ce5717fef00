/* Computes the checksums of the pieces of a file or tensor. */
#include "io/pieces.h"

#include <string.h>

#include "base/memory.h"

bool moert_piece_is_summed(const moert_checksum *sum) {
    static const moert_checksum none;
    return memcmp(sum, &none, sizeof none) != 0;
}

void moert_pieces_sum(moert_checksum *sums, size_t total, size_t first, size_t bytes,
                      const void *data) {
    const char *source = data;
    for (size_t i = moert_ceil_div(first, MOERT_PIECE_BYTES); i * MOERT_PIECE_BYTES < total; i++) {
        const size_t begin = i * MOERT_PIECE_BYTES;
        const size_t end = moert_min(begin + MOERT_PIECE_BYTES, total);
        if (end > first + bytes)
            return;
        if (!moert_piece_is_summed(&sums[i]))
            sums[i] = moert_checksum_of(source + (begin - first), end - begin);
    }
}
