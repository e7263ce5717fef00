/*
 * A context ties a rank to its communicator, its cores and its device.
 *
 * Creating a context binds the rank to cores (MOERT_BIND), opens the OpenCL device (MOERT_DEVICE)
 * and starts the watchdog (MOERT_TIMEOUT_S). A program can override these variables by options.
 * Destroying the last context of a process restores the affinity of the process's threads. Before
 * creating a context, the caller must initialize MPI with MPI_THREAD_FUNNELED, on the thread that
 * makes all further calls.
 */
#ifndef MOERT_CONTEXT_H
#define MOERT_CONTEXT_H

/* Leaves out MPI's old C++ interface, which would need another library. */
#ifdef __cplusplus
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#endif
#endif
#include <mpi.h>

#include <stdbool.h>

#include "moert/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_context moert_context;

/* Whether a context binds its process to cores. VARIABLE: the variable MOERT_BIND decides. */
typedef enum moert_binding {
    MOERT_BINDING_VARIABLE,
    MOERT_BINDING_OFF,
    MOERT_BINDING_ON
} moert_binding;

/*
 * Callbacks. `user` is log_user or watch_user of the options.
 *
 * moert_log_callback gets each log line of the process, without a newline, instead of stderr.
 * Levels: 0 error, 1 warn, 2 info, 3 debug, 4 trace; MOERT_LOG decides which lines are written.
 *
 * moert_watch_callback is called on the watchdog's thread before the watchdog ends this process.
 * `message` is the message that the watchdog would write. If the callback returns false, the
 * process ends at once with status 1. If the callback returns true, the watchdog stops, and the
 * program must end the process itself. All waits for other ranks, present and future ones, then
 * return ERROR_TIMEOUT with that message. The program should flush its files and exit by MPI_Abort
 * or _exit, since other MPI calls may block forever.
 */
typedef void moert_log_callback(void *user, int level, const char *line);
typedef bool moert_watch_callback(void *user, const char *message);

/* OpenCL objects of the caller: set all three or none. The objects must outlive the context. The
 * queue must be in-order. */
typedef struct moert_context_options {
    size_t size;           /* sizeof(moert_context_options) */
    void *cl_context;      /* cl_context */
    void *cl_device;       /* cl_device_id */
    void *cl_queue;        /* cl_command_queue */
    const char *engine;    /* exchange engine, a value of MOERT_EXCHANGE; NULL: the variable
                              MOERT_EXCHANGE decides */
    moert_binding binding; /* engine, binding and timeout_s must be the same on all ranks */
    int timeout_s;         /* time limit in seconds (MOERT_TIMEOUT_S); -1: that variable decides */
    moert_log_callback *log;
    void *log_user;
    moert_watch_callback *watch;
    void *watch_user;
    const MPI_Comm *placement; /* communicator of the processes that divide the cores and GPUs of
                                  their hosts. This communicator includes all processes of this
                                  context, and all processes of the communicator create contexts at
                                  the same time. NULL: all processes that the launcher started, if
                                  moert knows their number and the launcher has not bound them to
                                  cores; otherwise this context's processes */
} moert_context_options;

#define MOERT_CONTEXT_OPTIONS_INIT                                                                 \
    MOERT_INIT(moert_context_options, context_, MOERT_SET(context_, timeout_s, -1))

/*
 * Creates a context on a duplicate of `comm`. options may be NULL. Collective over `comm`,
 * blocking; all ranks return the same status. Errors: ERROR_USAGE (options, a MOERT_* variable, or
 * ranks that differ in a variable that moert-info marks `same`), ERROR_DEVICE (no device),
 * ERROR_COMM, ERROR_TOPOLOGY, ERROR_MEMORY.
 */
MOERT_API moert_status moert_context_create(MPI_Comm comm, const moert_context_options *options,
                                            moert_context **context);

/* Call moert_context_destroy before MPI_Finalize, after destroying all objects of the context.
 * Collective. A NULL context is legal. */
MOERT_API void moert_context_destroy(moert_context *context);

/*
 * Use these calls around long computations outside of moert. Between pause_watch(context, true) and
 * pause_watch(context, false) no rank ends the job because this rank is late; a rank that is gone
 * or stopped is still detected. set_timeout sets the time limit of this rank's waits in seconds; 0
 * means no limit. Not collective. Errors: ERROR_USAGE (a limit above 86400 s).
 */
MOERT_API moert_status moert_context_pause_watch(moert_context *context, bool paused);
MOERT_API moert_status moert_context_set_timeout(moert_context *context, unsigned seconds);

MOERT_API size_t moert_context_rank(const moert_context *context);
MOERT_API size_t moert_context_size(const moert_context *context);

/* The rank's device, for the caller's own buffers. The context owns it. */
MOERT_API moert_device *moert_context_device(const moert_context *context);

#ifdef __cplusplus
}
#endif
#endif
