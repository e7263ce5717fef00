/* Buffers as host memory, for the reference backends: mapped together; and checked groups. */
#pragma once

#include "device/device.h"
#include "moert/quantize.h"

enum { MOERT_MOST_MAPS = 20 };

typedef struct moert_mapping {
    struct {
        const moert_buffer *buffer;
        void *memory;
    } map[MOERT_MOST_MAPS];
    size_t count;
} moert_mapping;

/* Maps a buffer, once, and stores its memory in the pointer at `out`: NULL for no buffer. */
moert_status moert_map_one(moert_mapping *maps, const moert_buffer *buffer, void *out);

/* Unmaps all; a failure of its own counts when `status` holds none. */
moert_status moert_unmap_all(moert_mapping *maps, moert_status status);

/* ERROR_USAGE unless the ends ascend within the rows. */
moert_status moert_check_ends(const moert_groups *groups, const uint32_t *ends);
