/*
 * Where a device's time goes: every kernel and copy belongs to an operation, by the family of its
 * program or, for products and copies, by the phase (base/phase.h) that asked for it.
 *
 * Off until moert_profile_enable, and then one branch a launch. While it counts, an event goes with
 * each command; they are read when there are many, and at the end. The in-order queue lets no two
 * commands overlap, so times add up, and what is left of the wall time is the host's.
 */
#pragma once

#include "base/phase.h"
#include "device/device.h"

/* X(NAME, what a table shows, 1 for operations that are products of matrices) */
#define MOERT_OPERATION_TABLE(X)                                                                   \
    X(EXPERTS_FPROP, "experts fprop", 1)                                                           \
    X(EXPERTS_DGRAD, "experts dgrad", 1)                                                           \
    X(EXPERTS_WGRAD, "experts wgrad", 1)                                                           \
    X(SHARED_EXPERT, "shared expert", 1)                                                           \
    X(PROJECTIONS, "attention projections", 1)                                                     \
    X(HEAD, "head", 1)                                                                             \
    X(ROUTER_GEMM, "router projection", 1)                                                         \
    X(ATTENTION, "attention core", 0)                                                              \
    X(GLU, "GLU", 0)                                                                               \
    X(QUANTIZE, "quantize", 0)                                                                     \
    X(NORM, "norms", 0)                                                                            \
    X(ROUTER, "router", 0)                                                                         \
    X(DISPATCH, "dispatch", 0)                                                                     \
    X(COMBINE, "combine", 0)                                                                       \
    X(EMBEDDING, "embedding", 0)                                                                   \
    X(LOSS, "loss", 0)                                                                             \
    X(ELEMENTWISE, "adds, rotations, biases", 0)                                                   \
    X(SUMS, "gradient sums, norm", 0)                                                              \
    X(OPTIMIZER, "optimizer", 0)                                                                   \
    X(COPIES, "other copies", 0)                                                                   \
    X(OTHER, "other kernels", 0)                                                                   \
    X(EXCHANGE_WAIT, "exchange: messages", 0) /* in MPI, for rows and their plan */                \
    X(WAIT, "other messages", 0)              /* ... and for all else */

typedef enum moert_operation {
#define MOERT_OPERATION_ENUM(name, text, gemm) MOERT_OPERATION_##name,
    MOERT_OPERATION_TABLE(MOERT_OPERATION_ENUM)
#undef MOERT_OPERATION_ENUM
        MOERT_OPERATIONS
} moert_operation;

const char *moert_operation_text(moert_operation operation);
bool moert_operation_is_gemm(moert_operation operation);

/* That of a kernel of program "family -Doption ..." in a phase; OTHER for what is not known. Copies
 * are of the family MOERT_FAMILY_COPY. */
#define MOERT_FAMILY_COPY "lib/copy"
moert_operation moert_operation_of(const char *program, moert_phase phase);

typedef struct moert_profile_row {
    uint64_t calls, ns; /* commands on the device and their time, or waits */
    double flops, bytes;
} moert_profile_row;

typedef struct moert_profile {
    uint64_t wall_ns;
    uint64_t message_ns; /* while rows were under way to ranks or back, whatever else was done */
    moert_profile_row row[MOERT_OPERATIONS];
} moert_profile;

/*
 * Makes the device's commands countable; to be called while no recording is alive. Again: nothing.
 * Errors: ERROR_UNSUPPORTED (a queue of the caller's without profiling), ERROR_DEVICE,
 * ERROR_MEMORY.
 */
moert_status moert_profile_enable(moert_device *device);

/* What is enqueued in between counts, and waits of the calling thread; spans add up. Both block
 * until enqueued work is done. Errors: ERROR_USAGE (not enabled; begin twice, end without begin),
 * ERROR_DEVICE. */
moert_status moert_profile_begin(moert_device *device);
moert_status moert_profile_end(moert_device *device);

/* The sums so far; NULL if not enabled. */
const moert_profile *moert_profile_get(const moert_device *device);

/* When a command ran on the device, the thread waited in MPI (..._WAIT), or rows were under way
 * (DISPATCH, COMBINE): in ns of moert_clock_ns(), of devices to within some microseconds. */
typedef struct moert_profile_span {
    enum { MOERT_SPAN_DEVICE, MOERT_SPAN_WAIT, MOERT_SPAN_MESSAGE } kind;
    moert_operation operation;
    moert_phase phase;
    uint64_t start_ns, end_ns;
} moert_profile_span;
typedef void moert_profile_observer(void *context, const moert_profile_span *span);

/* `observer` is told of all that counts from the next begin on, some time later, each kind in the
 * order of the ends; NULL ends it. Needs moert_profile_enable. */
void moert_profile_observe(moert_device *device, moert_profile_observer *observer, void *context);

/* Tells when rows were under way; dispatches and combines may overlap. Not counting: nothing. */
void moert_profile_message(moert_device *device, moert_operation operation, uint64_t start_ns,
                           uint64_t end_ns);

/* Tells what the work of a program takes at least: operations on floats, and bytes when every
 * operand is moved once. Not counting: nothing. */
void moert_profile_work(moert_device *device, const char *program, double flops, double bytes);

/*
 * What the device can do at best, by kernels/lib/roof.cl: multiply-adds in registers (each counts
 * 2) and a copy of memory larger than caches (read and written bytes count). Takes about half a
 * second; blocks. Errors: ERROR_DEVICE, ERROR_MEMORY.
 */
typedef struct moert_roof {
    double gflops, gbps;
} moert_roof;
moert_status moert_roof_measure(moert_device *device, moert_roof *roof);
