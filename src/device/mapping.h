/* Buffers mapped together as host memory, and a check of groups, for the reference backends. */
#pragma once

#include "base/memory.h"
#include "moert/device.h"
#include "moert/quantize.h"

enum { MOERT_MOST_MAPS = 20 };

typedef struct moert_mapping {
    struct {
        const moert_buffer *buffer;
        void *memory;
    } map[MOERT_MOST_MAPS];
    size_t count;
} moert_mapping;

/* A buffer, and the address of the pointer that receives the buffer's mapped memory. If `buffer` is
 * NULL, the pointer becomes NULL. */
typedef struct moert_mapped {
    const moert_buffer *buffer;
    void *out;
} moert_mapped;

/* Maps buffers: MOERT_MAP(&maps, {x, &source}, {y, &target}). A buffer that is listed twice is
 * mapped once. If a map fails, all buffers are unmapped. */
moert_status moert_map_all(moert_mapping *maps, const moert_mapped *parts, size_t count);
#define MOERT_MAP(maps, ...)                                                                       \
    moert_map_all((maps), (const moert_mapped[]){__VA_ARGS__},                                     \
                  MOERT_COUNT(((const moert_mapped[]){__VA_ARGS__})))

/* Unmaps all buffers. Returns `status` or, if that is MOERT_OK, the first failure to unmap. */
moert_status moert_unmap_all(moert_mapping *maps, moert_status status);

/* ERROR_USAGE unless the ends of the groups ascend and do not exceed the rows. */
moert_status moert_check_ends(const moert_groups *groups, const uint32_t *ends);
