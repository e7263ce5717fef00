/*
 * Measures where a device's time goes. Every kernel and copy belongs to an operation. The family of
 * a kernel's program determines the operation; for GEMMs, exchanges and copies, the current phase
 * (base/phase.h) matters as well.
 *
 * Outside moert_profile_begin and _end, a launch costs one more branch. Between the two calls each
 * command has an event. The profile reads the events when its ring is full, and at the end. Without
 * an observer only one in-order queue is used, so no two commands overlap and their times add up.
 * moert_profile_end assigns the rest of the wall time to the operation HOST. So all rows add up to
 * the wall time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/phase.h"
#include "moert/device.h"

/*
 * X(NAME, text in tables, phases, starts...): in these phases, kernels belong to this operation if
 * their program's name begins with one of the starts. A start is a family, or a directory with its
 * slash. If several starts fit, the longest start decides; if several rows have this start, the
 * first row decides. The phase EMBEDDING_BACKWARD also runs the GEMMs of a tied output head.
 */
#define MOERT_OPERATION_TABLE(X)                                                                   \
    X(EXPERTS_FPROP, "experts fprop", IN(EXPERTS), "gemm/")                                        \
    X(EXPERTS_DGRAD, "experts dgrad", IN(EXPERTS_BACKWARD), "gemm/")                               \
    X(EXPERTS_WGRAD, "experts wgrad", IN(WGRAD), "gemm/")                                          \
    X(SHARED_EXPERT, "shared expert", IN(SHARED_EXPERT), "gemm/")                                  \
    X(PROJECTIONS, "attention projections", IN(ATTENTION) | IN(ATTENTION_BACKWARD), "gemm/")       \
    X(HEAD, "head", IN(LOGITS) | IN(LOGITS_BACKWARD) | IN(EMBEDDING_BACKWARD), "gemm/")            \
    X(ROUTER_GEMM, "router projection", IN(ROUTE) | IN(ROUTER_BACKWARD), "gemm/")                  \
    X(ATTENTION, "attention core", ANY, "attention/")                                              \
    X(GLU, "GLU", ANY, "gemm/glu")                                                                 \
    X(QUANTIZE, "quantize", ANY, "quant/")                                                         \
    X(NORM, "norms", ANY, "nn/norm")                                                               \
    X(ROUTER, "router", ANY, "router/")                                                            \
    X(DISPATCH, "dispatch", IN(PLAN) | IN(DISPATCH), "exchange/plan", "exchange/exchange", COPY)   \
    X(COMBINE, "combine", IN(COMBINE), "exchange/exchange", COPY)                                  \
    X(EMBEDDING, "embedding", ANY, "nn/embedding")                                                 \
    X(LOSS, "loss", ANY, "nn/loss")                                                                \
    X(ELEMENTWISE, "adds, rotations, biases", ANY, "nn/elementwise", "nn/columns", "nn/rope",      \
      "nn/bias")                                                                                   \
    X(SUMS, "gradient sums, norm", ANY, "nn/reduce", "nn/squares", "exchange/peers")               \
    X(OPTIMIZER, "optimizer", ANY, "nn/optimizer", "nn/optimizer_fp8")                             \
    X(COPIES, "other copies", ANY, COPY)                                                           \
    X(OTHER, "other kernels", ANY, NULL)                                                           \
    X(DATA, "training data", ANY, NULL) /* reading a batch, or waiting until it is read */         \
    X(EXCHANGE_WAIT, "exchange: messages", ANY, NULL) /* waits in MPI for rows and their plan */   \
    X(WAIT, "other messages", ANY, NULL)              /* all other waits in MPI */                 \
    X(HOST, "host", ANY, NULL) /* no kernel runs, and the thread does not wait */

typedef enum moert_operation {
#define MOERT_OPERATION_ENUM(name, ...) MOERT_OPERATION_##name,
    MOERT_OPERATION_TABLE(MOERT_OPERATION_ENUM)
#undef MOERT_OPERATION_ENUM
        MOERT_OPERATIONS
} moert_operation;

const char *moert_operation_text(moert_operation operation);
bool moert_operation_is_gemm(moert_operation operation);

/* The operation of a kernel of program "family -Doption ..." in a phase; OTHER if unknown. Copies
 * belong to the family MOERT_FAMILY_COPY (device/buffer.h). */
moert_operation moert_operation_of(const char *program, moert_phase phase);

/* Sums over commands or waits. All fields of moert_profile_row and moert_profile are doubles, as
 * moert_profile_add requires. */
typedef struct moert_profile_row {
    double calls, ns;                /* number and time of commands on the device, or of waits */
    double flops, bf16_flops, bytes; /* bf16_flops: the part of `flops` with bf16 operands */
} moert_profile_row;

typedef struct moert_profile {
    double wall_ns;
    double message_ns; /* time in which messages with rows were in flight, including overlap with
                          other work */
    moert_profile_row row[MOERT_OPERATIONS];
} moert_profile;

/* Adds every field of `from`, times `factor`. */
void moert_profile_add(moert_profile *to, const moert_profile *from, double factor);

/*
 * Prepares the device's queue for profiling. No recording may exist. A second call does nothing.
 * Errors: ERROR_UNSUPPORTED (the caller's queue has no profiling), ERROR_DEVICE, ERROR_MEMORY.
 */
moert_status moert_profile_enable(moert_device *device);

/* Between begin and end, the profile counts enqueued commands and waits of the calling thread.
 * Several such spans add up. Both calls block until enqueued work is done. Errors: ERROR_USAGE (not
 * enabled; begin twice, end without begin), ERROR_DEVICE. */
moert_status moert_profile_begin(moert_device *device);
moert_status moert_profile_end(moert_device *device);

/* The sums of all spans that have ended, and the sums of the last span; NULL if profiling is not
 * enabled. A wait that overlaps a kernel counts as the kernel: waits are shortened to fit into the
 * wall time. */
const moert_profile *moert_profile_get(const moert_device *device);
const moert_profile *moert_profile_last(const moert_device *device);

/* A span of time in which a command ran on the device, the thread waited in MPI (..._WAIT), or
 * messages with rows were in flight (DISPATCH, COMBINE). Times are those of moert_clock_ns(). The
 * times of devices are accurate to a few microseconds. */
typedef struct moert_profile_span {
    enum { MOERT_SPAN_DEVICE, MOERT_SPAN_WAIT, MOERT_SPAN_MESSAGE } kind;
    moert_operation operation;
    moert_phase phase;
    uint64_t start_ns, end_ns;
} moert_profile_span;
typedef void moert_profile_observer(void *context, const moert_profile_span *span);

/* From the next moert_profile_begin on, calls `observer` for each command, wait and message, some
 * time after its end. Spans of one kind come in the order of their ends. An observer of NULL ends
 * the calls. Needs moert_profile_enable. */
void moert_profile_observe(moert_device *device, moert_profile_observer *observer, void *context);

/* Reports when messages with rows were in flight; dispatches and combines may overlap. Does nothing
 * outside moert_profile_begin and _end. */
void moert_profile_message(moert_device *device, moert_operation operation, uint64_t start_ns,
                           uint64_t end_ns);

/* Reports time in which the host did an operation, and the device was idle. Does nothing outside
 * moert_profile_begin and _end. */
void moert_profile_host(moert_device *device, moert_operation operation, uint64_t ns);

/* Reports the least work of a launch: floating-point operations, and bytes if every operand moves
 * once. Does nothing outside moert_profile_begin and _end. */
void moert_profile_work(moert_device *device, const char *program, double flops, double bytes);
/* Like moert_profile_work, for bf16 operands. */
void moert_profile_bf16_work(moert_device *device, const char *program, double flops, double bytes);

/*
 * Measures the device's peak rates with kernels/lib/roof.cl: multiply-adds in registers (2 FLOPs
 * each), and a copy larger than the caches (read plus written bytes). Takes about half a second;
 * blocks. Sets all fields except bf16_gflops. Errors: ERROR_DEVICE, ERROR_MEMORY.
 */
typedef struct moert_roof {
    double gflops, gbps;
    double bf16_gflops; /* the rate that moert_gemm_peak measures; 0: not measured */
} moert_roof;
moert_status moert_roof_measure(moert_device *device, moert_roof *roof);
