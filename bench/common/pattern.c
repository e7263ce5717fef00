/* Fills buffers. */
#include "bench/common/pattern.h"

#include "base/memory.h"
#include "base/rng.h"

moert_status bench_upload(moert_device *device, const void *data, size_t bytes,
                          moert_buffer **buffer) {
    MOERT_TRY(moert_buffer_create(device, bytes, buffer));
    return data != NULL ? moert_buffer_write(*buffer, 0, data, bytes)
                        : moert_buffer_clear(*buffer, 0, bytes);
}

moert_status bench_pattern_fill(moert_buffer *buffer, const void *pattern, size_t bytes,
                                size_t start) {
    const size_t elements = moert_buffer_bytes(buffer) / bytes;
    for (size_t at = 0; at < elements;) {
        const size_t from = (start + at) % BENCH_PATTERN;
        const size_t count = moert_min(BENCH_PATTERN - from, elements - at);
        MOERT_TRY(moert_buffer_write(buffer, at * bytes, (const char *)pattern + from * bytes,
                                     count * bytes));
        at += count;
    }
    return MOERT_OK;
}

size_t bench_pick(size_t seed, unsigned stream, size_t i, size_t count) {
    return i == 0 ? count - 1 : (size_t)(moert_rng_uniform(seed, stream, i) * (double)count);
}
