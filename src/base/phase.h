/*
 * The step and the phase that this process is in, for the watchdog and the profile. Process-wide,
 * lock-free.
 */
#pragma once

#include <stdint.h>

/* X(NAME, the words that messages and traces show) */
#define MOERT_PHASE_TABLE(X)                                                                       \
    X(START, "start")                                                                              \
    X(DATA, "data")                                                                                \
    X(EMBEDDING, "embedding")                                                                      \
    X(ATTENTION, "attention")                                                                      \
    X(ROUTE, "route")                                                                              \
    X(PLAN, "plan")                                                                                \
    X(DISPATCH, "dispatch")                                                                        \
    X(EXPERTS, "experts")                                                                          \
    X(SHARED_EXPERT, "shared expert")                                                              \
    X(COMBINE, "combine")                                                                          \
    X(LOGITS, "logits")                                                                            \
    X(LOSS, "loss")                                                                                \
    X(LOGITS_BACKWARD, "logits backward")                                                          \
    X(EXPERTS_BACKWARD, "experts backward")                                                        \
    X(WGRAD, "wgrad")                                                                              \
    X(ROUTER_BACKWARD, "router backward")                                                          \
    X(ATTENTION_BACKWARD, "attention backward")                                                    \
    X(EMBEDDING_BACKWARD, "embedding backward")                                                    \
    X(REDUCE_GRADIENTS, "reduce gradients")                                                        \
    X(REDUCE_REPLICAS, "reduce replicas")                                                          \
    X(GRADIENT_NORM, "gradient norm")                                                              \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(VERIFY, "verify")                                                                            \
    X(MOVE, "moving experts")                                                                      \
    X(SAVE, "save")                                                                                \
    X(LOAD, "load")                                                                                \
    X(CLOCKS, "clocks")                                                                            \
    X(LINKS, "links")                                                                              \
    X(GEMM_RATE, "GEMM rate")                                                                      \
    X(COPY_RATES, "copy rates")

typedef enum moert_phase {
#define MOERT_PHASE_ENUM(name, text) MOERT_PHASE_##name,
    MOERT_PHASE_TABLE(MOERT_PHASE_ENUM)
#undef MOERT_PHASE_ENUM
        MOERT_PHASES
} moert_phase;

const char *moert_phase_name(moert_phase phase); /* "unknown" if `phase` is out of range */

void moert_phase_set_step(uint64_t step);
void moert_phase_set(moert_phase phase);

/* Tells the watchdog that a long phase makes progress. */
void moert_phase_tick(void);

/* Call these before and after a call that may take long and cannot call moert_phase_tick, such as a
 * call of a compiler. Between the two calls, CPU time that the process uses counts as progress, for
 * up to ten minutes: on a busy machine a compiler may take longer than the watchdog's time
 * limit. */
void moert_phase_busy_begin(void);
void moert_phase_busy_end(void);

/* From now on the watchdog ignores this thread's ticks (calls of moert_phase_tick), since it
 * watches only the thread that computes the steps. moert_phase_ticks_beside returns the number of
 * ignored ticks of all threads. */
void moert_phase_beside(void);
uint64_t moert_phase_ticks_beside(void);

/* Call these before and after a blocking collective call. Between the two calls the watchdog treats
 * this rank as waiting for other ranks, and does not report this rank as late. */
void moert_phase_wait_begin(void);
void moert_phase_wait_end(void);

/* From now on, calls `waited` with the duration of each wait of this thread, from
 * moert_phase_wait_begin to moert_phase_wait_end. If `waited` is NULL, waits are no longer
 * reported. */
typedef void moert_phase_listener(void *context, moert_phase phase, uint64_t ns);
void moert_phase_listen(moert_phase_listener *waited, void *context);

uint64_t moert_phase_step(void);
moert_phase moert_phase_get(void); /* START before the first moert_phase_set */
uint64_t moert_phase_ticks(void);  /* counts progress: every call of a moert_phase_ function named
                                      set, tick, begin or end adds 1, except ticks that the watchdog
                                      ignores */
int moert_phase_waiting(void);     /* the number of waits that have begun and not ended */
