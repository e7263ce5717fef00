/* Maps buffers as host memory (see mapping.h). */
#include "device/mapping.h"

#include <string.h>

moert_status moert_unmap_all(moert_mapping *maps, moert_status status) {
    for (; maps->count > 0; maps->count--)
        status = moert_first(status, moert_buffer_unmap(maps->map[maps->count - 1].buffer,
                                                        maps->map[maps->count - 1].memory));
    return status;
}

static moert_status map_one(moert_mapping *maps, const moert_buffer *buffer, void *out) {
    void *memory = NULL;
    size_t i = 0;
    while (i < maps->count && maps->map[i].buffer != buffer)
        i++;
    if (i < maps->count) {
        memory = maps->map[i].memory;
    } else if (buffer != NULL) {
        if (maps->count == MOERT_MOST_MAPS)
            return MOERT_FAIL(ERROR_INTERNAL, "more than %d buffers are mapped at the same time",
                              MOERT_MOST_MAPS);
        MOERT_TRY(moert_buffer_map(buffer, &memory));
        maps->map[maps->count].buffer = buffer;
        maps->map[maps->count++].memory = memory;
    }
    memcpy(out, &memory, sizeof memory);
    return MOERT_OK;
}

moert_status moert_map_all(moert_mapping *maps, const moert_mapped *parts, size_t count) {
    moert_status status = MOERT_OK;
    maps->count = 0;
    for (size_t i = 0; i < count && status == MOERT_OK; i++)
        status = map_one(maps, parts[i].buffer, parts[i].out);
    return status == MOERT_OK ? status : moert_unmap_all(maps, status);
}

moert_status moert_check_ends(const moert_groups *groups, const uint32_t *ends) {
    for (size_t g = 0, start = 0; g < groups->count; start = ends[g++])
        if (ends[g] < start || ends[g] > groups->rows)
            return MOERT_FAIL(ERROR_USAGE, "group %zu of %zu ends at row %u, not in [%zu, %zu]", g,
                              groups->count, ends[g], start, groups->rows);
    return MOERT_OK;
}
