/* Reserves and frees buffers by a table. */
#include "device/buffer_table.h"

#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"

size_t moert_buffer_room(size_t bytes, size_t largest) {
    return moert_min(moert_with_room(bytes), moert_max(bytes, largest));
}

moert_status moert_buffer_table_reserve(moert_buffer_table *table, moert_device *device,
                                        const void *sizes, void *owner, bool grows) {
    moert_buffer_row row[MOERT_BUFFER_TABLE_ROWS];
    const size_t count = table(sizes, row), largest = moert_device_describe(device)->largest_bytes;
    for (size_t i = 0; i < count; i++) {
        moert_buffer **buffer = (moert_buffer **)(void *)((char *)owner + row[i].at);
        if (row[i].bytes == MOERT_NO_BUFFER ||
            (*buffer != NULL && moert_buffer_bytes(*buffer) >= row[i].bytes))
            continue;
        MOERT_TRY(moert_buffer_reserve(device, moert_buffer_room(row[i].bytes, grows ? largest : 0),
                                       buffer));
    }
    return MOERT_OK;
}

void moert_buffer_table_free(moert_buffer_table *table, void *owner) {
    moert_buffer_row row[MOERT_BUFFER_TABLE_ROWS];
    const size_t count = table(NULL, row);
    for (size_t i = 0; i < count; i++) {
        moert_buffer **buffer = (moert_buffer **)(void *)((char *)owner + row[i].at);
        moert_buffer_destroy(*buffer);
        *buffer = NULL;
    }
}

size_t moert_buffer_table_bytes(moert_buffer_table *table, const void *sizes) {
    moert_buffer_row row[MOERT_BUFFER_TABLE_ROWS];
    const size_t count = table(sizes, row);
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += row[i].bytes != MOERT_NO_BUFFER ? row[i].bytes : 0;
    return bytes;
}
