/* safetensors files that all ranks write together; each rank writes some ranges of the tensors. */
#pragma once

#include "comm/comm.h"
#include "device/elements.h"
#include "io/safetensors.h"

typedef struct moert_shared_file {
    const char *path;
    const moert_tensor_spec *specs; /* [count] specs of the tensors, the same on all ranks */
    size_t count;
    const char *const *metadata; /* metadata of the file, as in moert_writer_open */
    moert_status (*put)(const void *context,
                        moert_tensor_writer *writer); /* writes this rank's ranges */
    const void *context;
} moert_shared_file;

/*
 * Rank 0 creates the file, then every rank writes its ranges. With `settle`, the file has a
 * temporary name until it is complete. `status` is this rank's status so far. If any rank has
 * already failed, nothing is written. Collective. Errors: `status`, those of moert_writer_* and
 * moert_durable_settle.
 */
moert_status moert_shared_file_write(moert_comm *world, const moert_shared_file *file, bool settle,
                                     moert_status status);

/* Writes elements [first, first + count) of a tensor of the file. */
moert_status moert_put_elements(moert_tensor_writer *writer, const char *name, size_t first,
                                size_t count, const moert_elements *elements);
