/* Checksums of 128 bits, in memory and as text. */
#include "base/checksum.h"

#include <string.h>

#include <xxhash.h>

/* XXH3 for AVX2 and AVX-512, or NULL if this build of the xxHash library lacks this function. */
XXH128_hash_t XXH3_128bits_dispatch(const void *data, size_t bytes) __attribute__((weak));

moert_checksum moert_checksum_of(const void *data, size_t bytes) {
    XXH128_canonical_t canonical;
    moert_checksum sum;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_dispatch != NULL
                                             ? XXH3_128bits_dispatch(data, bytes)
                                             : XXH3_128bits(data, bytes));
    memcpy(sum.byte, canonical.digest, sizeof sum.byte);
    return sum;
}

const char *moert_checksum_text(moert_checksum sum, char text[MOERT_CHECKSUM_DIGITS + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof sum.byte; i++) {
        text[2 * i] = digits[sum.byte[i] >> 4];
        text[2 * i + 1] = digits[sum.byte[i] & 15];
    }
    text[MOERT_CHECKSUM_DIGITS] = '\0';
    return text;
}
