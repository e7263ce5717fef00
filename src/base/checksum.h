/* Checksums of 128 bits: XXH3. XXH3 detects accidental damage, not deliberate changes. Source:
 * https://github.com/Cyan4973/xxHash (XXH3_128bits). */
#pragma once

#include <stddef.h>

typedef struct moert_checksum {
    unsigned char byte[16]; /* most significant first */
} moert_checksum;

enum { MOERT_CHECKSUM_DIGITS = 2 * sizeof(moert_checksum) };

moert_checksum moert_checksum_of(const void *data, size_t bytes);

/* Writes the sum in hexadecimal digits to `text` and returns it. */
const char *moert_checksum_text(moert_checksum sum, char text[MOERT_CHECKSUM_DIGITS + 1]);
