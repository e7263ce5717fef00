/*
 * An event file of TensorBoard: scalars of each step, in protocol buffers
 * (tensorflow/core/util/event.proto, summary.proto) that are framed as TFRecords. Only one rank
 * writes the file.
 *
 * A resumed run writes a new file in the same directory. The new file begins with a session event
 * that names the resumed step. TensorBoard then drops the older files' values from that step on.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct moert_event_file moert_event_file;

typedef struct moert_scalar {
    const char *name;
    double value; /* stored in the file as a float32 */
} moert_scalar;

/* Creates DIRECTORY/events.out.tfevents.SECONDS.HOST.PID for a run that begins at step `start`.
 * Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_event_file_open(const char *directory, uint64_t start, moert_event_file **file);

/* Writes one event, and flushes it to the file. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_event_file_write(moert_event_file *file, uint64_t step,
                                    const moert_scalar *scalars, size_t count);

/* Removes the file from its directory. NULL is legal. */
void moert_event_file_remove(const moert_event_file *file);
/* NULL is legal. Errors: ERROR_IO. */
moert_status moert_event_file_close(moert_event_file *file);
