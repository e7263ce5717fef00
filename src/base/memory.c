/* Checked host memory and checked narrowing. */
#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

moert_status moert_alloc(void *out, size_t count, size_t bytes) {
    void *memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%zu objects of %zu bytes do not fit in host memory", count,
                          bytes);
    memcpy(out, &memory, sizeof memory);
    return MOERT_OK; /* cppcheck-suppress memleak */
}

moert_status moert_grow(void *array, size_t *room, size_t count, size_t bytes) {
    void *old;
    if (count <= *room)
        return MOERT_OK;
    const size_t wanted = count + count / 2 + 16;
    memcpy(&old, array, sizeof old);
    char *larger = realloc(old, wanted * bytes);
    if (larger == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%zu objects of %zu bytes do not fit in host memory",
                          wanted, bytes);
    memset(larger + *room * bytes, 0, (wanted - *room) * bytes);
    memcpy(array, &larger, sizeof larger);
    *room = wanted;
    return MOERT_OK; /* cppcheck-suppress memleak */
}

void moert_free_all(void *const *pointers, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(pointers[i]);
}

moert_status moert_to_int(size_t value, const char *what, int *out) {
    if (value > INT_MAX)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s is %zu, above the limit %d of an MPI or OpenCL count", what, value,
                          INT_MAX);
    *out = (int)value;
    return MOERT_OK;
}

/* The bytes of the line "KEY N kB" of a file in /proc; 0 if the file has no such line. Warns of a
 * file that cannot be opened. */
static size_t read_kib(const char *path, const char *key) {
    char line[128];
    size_t kib = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        MOERT_WARN("%s: cannot be opened to read %.*s: %s", path, (int)strlen(key) - 1, key,
                   strerror(errno));
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%zu kB", &kib) == 1)
            break;
    fclose(file);
    return kib << 10;
}

size_t moert_memory_total(void) {
    return read_kib("/proc/meminfo", "MemTotal:");
}

size_t moert_memory_available(void) {
    return read_kib("/proc/meminfo", "MemAvailable:");
}

moert_resident moert_memory_resident(void) {
    return (moert_resident){read_kib("/proc/self/status", "VmRSS:"),
                            read_kib("/proc/self/status", "VmHWM:")};
}
