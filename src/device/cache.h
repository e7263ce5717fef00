/* The on-disk cache of compiled programs: one file per key, written under a temporary name, then
 * renamed. A lock lets one process of a host build an entry. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Path of a file in the directory of the kernel cache, which the caller frees; NULL without a
 * cache. */
char *moert_cache_file(const char *name);

typedef struct moert_cache_entry {
    char *path; /* NULL when caching is off */
    int lock;   /* file descriptor of the held lock, or -1 */
} moert_cache_entry;
/* Reads the entry of `key` into *data, which the caller frees. If the entry does not exist, locks
 * it and sets *data = NULL; the caller then builds the entry. Does not fail, only logs. */
void moert_cache_open(const char *key, moert_cache_entry *entry, unsigned char **data,
                      size_t *bytes);
/* Stores `data` (NULL stores nothing) and unlocks the entry. */
void moert_cache_close(moert_cache_entry *entry, const unsigned char *data, size_t bytes);
/* The longest time that moert_cache_open() waits for an entry that another process compiles. */
extern uint64_t moert_cache_patience_ns;
