/* The parts of an estimate, the largest first. */
#include "estimate/parts.h"

#include <string.h>

void moert_memory_add(moert_memory *memory, const char *kind, size_t *sum, const char *name,
                      size_t bytes) {
    size_t i = 0;
    while (i < memory->parts &&
           (strcmp(memory->part[i].name, name) != 0 || strcmp(memory->part[i].kind, kind) != 0))
        i++;
    *sum += bytes;
    if (bytes == 0 || i == MOERT_MEMORY_PARTS)
        return;
    if (i == memory->parts)
        memory->part[memory->parts++] = (moert_memory_part){kind, name, 0};
    memory->part[i].bytes += bytes;
    for (; i > 0 && memory->part[i].bytes > memory->part[i - 1].bytes; i--) {
        const moert_memory_part part = memory->part[i];
        memory->part[i] = memory->part[i - 1];
        memory->part[i - 1] = part;
    }
}
