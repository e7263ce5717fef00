/* safetensors files that all ranks write together, each its own pieces. */
#pragma once

#include "comm/comm.h"
#include "io/safetensors.h"
#include "moert/device.h"

typedef struct moert_shared_file {
    const char *path;
    const moert_tensor_spec *specs; /* [count], the same on all ranks */
    size_t count;
    const char *const *metadata; /* as in moert_writer_open */
    moert_status (*put)(const void *context, moert_tensor_writer *writer); /* this rank's pieces */
    const void *context;
} moert_shared_file;

/*
 * Rank 0 lays the file out, then every rank writes its pieces; `settle` leaves it under a temporary
 * name until it is whole. `status` is that of what this rank has prepared: nothing is written when
 * any rank failed. Collective. Errors: that one, those of moert_writer_* and moert_durable_settle.
 */
moert_status moert_shared_file_write(moert_comm *world, const moert_shared_file *file, bool settle,
                                     moert_status status);

/* Writes the floats [first, first + count) of a tensor of the file, which lie in `buffer` from float
 * `at` on. */
moert_status moert_put_floats(moert_tensor_writer *writer, const char *name, size_t first,
                              size_t count, const moert_buffer *buffer, size_t at);
