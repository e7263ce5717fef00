/*
 * A context ties a rank to its communicator, its cores and its device.
 *
 * Creating a context binds the rank to cores (MOERT_BIND), opens the OpenCL device (MOERT_DEVICE)
 * and starts the watchdog (MOERT_TIMEOUT_S). The caller must first initialize MPI with
 * MPI_THREAD_FUNNELED, on the thread that makes all further calls.
 */
#ifndef MOERT_CONTEXT_H
#define MOERT_CONTEXT_H

/* MPI's old C++ interface would need a library of its own. */
#ifdef __cplusplus
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#endif
#endif
#include <mpi.h>

#include "moert/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_context moert_context;

/* OpenCL objects of the caller: set all three or none. The objects must outlive the context. The
 * queue must be in-order. */
typedef struct moert_context_options {
    size_t size;      /* sizeof(moert_context_options) */
    void *cl_context; /* cl_context */
    void *cl_device;  /* cl_device_id */
    void *cl_queue;   /* cl_command_queue */
} moert_context_options;

#define MOERT_CONTEXT_OPTIONS_INIT MOERT_INIT(moert_context_options, context_, )

/*
 * Creates a context on a duplicate of `comm`. options may be NULL. Collective over `comm`,
 * blocking; all ranks return the same status. Errors: ERROR_USAGE (options, a MOERT_* variable, or
 * ranks that differ in a variable that moert-info marks `same`), ERROR_DEVICE (no device),
 * ERROR_COMM, ERROR_TOPOLOGY, ERROR_MEMORY.
 */
MOERT_API moert_status moert_context_create(MPI_Comm comm, const moert_context_options *options,
                                            moert_context **context);

/* Call this before MPI_Finalize, after destroying all objects of the context. Collective; NULL is
 * legal. */
MOERT_API void moert_context_destroy(moert_context *context);

MOERT_API size_t moert_context_rank(const moert_context *context);
MOERT_API size_t moert_context_size(const moert_context *context);

/* The rank's device, for the caller's own buffers. The context owns it. */
MOERT_API moert_device *moert_context_device(const moert_context *context);

#ifdef __cplusplus
}
#endif
#endif
