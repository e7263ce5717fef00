/* Changes the PTX of a program to sm_90a: see ptx.h. */
#include "device/nvidia/ptx.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#define PREFIX "//@sm_90a "
#define TARGET ".target sm_90"
#define ARENA  "arena[1040]"

/* Returns the only occurrence of `what` in the text; NULL unless `what` occurs exactly once. */
static const char *find_only(const char *text, const char *what) {
    const char *at = strstr(text, what);
    return at != NULL && strstr(at + 1, what) == NULL ? at : NULL;
}

moert_status moert_ptx_transform(const char *text, size_t arena_bytes, char **transformed) {
    const char *target = find_only(text, TARGET), *arena = find_only(text, ARENA);
    if (target == NULL || (target[sizeof TARGET - 1] != ',' && target[sizeof TARGET - 1] != '\n'))
        return MOERT_FAIL(ERROR_DEVICE, "the driver's PTX is not for sm_90: %.60s",
                          target != NULL ? target : "it names no such target");
    if (arena == NULL)
        return MOERT_FAIL(ERROR_DEVICE, "the driver's PTX does not declare %s exactly once", ARENA);
    char size[32];
    snprintf(size, sizeof size, "arena[%zu]", arena_bytes);
    const struct {
        const char *at, *old, *new;
    } changes[] = {{target, TARGET, TARGET "a"}, {arena, ARENA, size}};
    char *to;
    MOERT_TRY(moert_alloc(transformed, strlen(text) + sizeof size + 1, 1));
    to = *transformed;
    while (*text != '\0') {
        const char *start = text;
        for (size_t i = 0; i < MOERT_COUNT(changes); i++)
            if (text == changes[i].at) {
                text += strlen(changes[i].old);
                to = stpcpy(to, changes[i].new);
            }
        if (strncmp(text, PREFIX, sizeof PREFIX - 1) == 0)
            text += sizeof PREFIX - 1;
        if (text == start)
            *to++ = *text++;
    }
    *to = '\0';
    return MOERT_OK;
}
