/* safetensors files that all ranks write together. */
#include "train/shared_file.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"

static moert_status write_ranges(moert_comm *world, const moert_shared_file *file, const char *path,
                                 moert_status status) {
    const bool first = moert_comm_rank(world) == 0;
    moert_tensor_writer *writer = NULL;
    if (status == MOERT_OK && first)
        status = moert_writer_open(path, file->specs, file->count, file->metadata, true, &writer);
    status = moert_comm_agree(world, status);
    if (status == MOERT_OK && !first)
        status = moert_writer_open(path, file->specs, file->count, file->metadata, false, &writer);
    if (status == MOERT_OK)
        status = file->put(file->context, writer);
    char *message = moert_error_keep();
    status = moert_error_first(message, status, moert_writer_close(writer));
    return moert_comm_agree(world, status);
}

moert_status moert_shared_file_write(moert_comm *world, const moert_shared_file *file, bool settle,
                                     moert_status status) {
    char *temporary = NULL;
    if (status == MOERT_OK && settle)
        status = moert_text_path(&temporary, "%s.tmp", file->path);
    status = write_ranges(world, file, settle ? temporary : file->path, status);
    if (temporary != NULL && moert_comm_rank(world) == 0)
        status = moert_durable_settle(temporary, file->path, status);
    free(temporary);
    return settle ? moert_comm_agree(world, status) : status;
}

moert_status moert_put_elements(moert_tensor_writer *writer, const char *name, size_t first,
                                size_t count, const moert_elements *elements) {
    enum { PIECE = MOERT_PIECE_BYTES / sizeof(float) };
    float *values;
    moert_status status = MOERT_OK;
    MOERT_TRY(MOERT_NEW_ARRAY(&values, moert_min(count, PIECE)));
    for (size_t done = 0, part; status == MOERT_OK && done < count; done += part) {
        /* the part ends where a piece of the tensor ends, or with the last element */
        part = moert_min(count - done, PIECE - (first + done) % PIECE);
        status = moert_elements_read(elements, done, part, values);
        if (status == MOERT_OK)
            status = moert_writer_put_floats(writer, name, first + done, part, values);
    }
    free(values);
    return status;
}
