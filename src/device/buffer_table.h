/*
 * Tables of the buffers that one kind of object owns: their names, and their bytes as functions of
 * the object's sizes. The object reserves and frees its buffers by the table, and the estimate of
 * memory adds up the rows of the same table.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "moert/device.h"

#define MOERT_NO_BUFFER SIZE_MAX /* `bytes` of a row that needs no buffer for the given sizes */

typedef struct moert_buffer_row {
    const char *name;
    size_t at;    /* offset of the moert_buffer * in the owner */
    size_t bytes; /* or MOERT_NO_BUFFER */
} moert_buffer_row;

enum { MOERT_BUFFER_TABLE_ROWS = 24 /* at most */ };

/* Fills in the rows for some sizes and returns the number of rows. Without sizes (NULL) the rows
 * have names and offsets only. */
typedef size_t moert_buffer_table(const void *sizes, moert_buffer_row *rows);

/* Defines the table `id` from ROWS(X). Each row is X(member, name, bytes), where `bytes` is an
 * expression of the sizes `s`. */
#define MOERT_BUFFER_ROW(member, text, size)                                                       \
    {text, offsetof(owner, member), s != NULL ? (size) : MOERT_NO_BUFFER},
#define MOERT_BUFFER_TABLE(id, owner_type, sizes_type, ROWS)                                       \
    size_t id(const void *sizes, moert_buffer_row *rows) {                                         \
        typedef owner_type owner;                                                                  \
        const sizes_type *s = sizes;                                                               \
        const moert_buffer_row all[] = {ROWS(MOERT_BUFFER_ROW)};                                   \
        _Static_assert(sizeof all / sizeof *all <= MOERT_BUFFER_TABLE_ROWS, "more rows");          \
        memcpy(rows, all, sizeof all);                                                             \
        return sizeof all / sizeof *all;                                                           \
    }

/* Reserves the owner's buffers. With `grows`, a buffer that is too small gets room for up to an
 * eighth more bytes than it needs (moert_buffer_room). */
moert_status moert_buffer_table_reserve(moert_buffer_table *table, moert_device *device,
                                        const void *sizes, void *owner, bool grows);
void moert_buffer_table_free(moert_buffer_table *table, void *owner);

/* The sum of the rows' bytes. */
size_t moert_buffer_table_bytes(moert_buffer_table *table, const void *sizes);

/* The bytes to allocate for `bytes` bytes with room to grow, but not more than `largest`, the
 * device's largest buffer. largest = 0: without room to grow. */
size_t moert_buffer_room(size_t bytes, size_t largest);
