/*
 * Observers: parts of a training outside of the training loop, such as profiles, checks and moves
 * of experts. The loop calls all observers at its events, and does not depend on them. A new
 * observer needs a file and a row in MOERT_OBSERVER_TABLE.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* X(NAME): the events of a run, in order. A step consists of several batches. */
#define MOERT_EVENT_TABLE(X)                                                                       \
    X(START)    /* all checks are done, and the run directory exists */                            \
    X(STEP)     /* a step begins */                                                                \
    X(BATCH)    /* micro-batch t->micro_batch begins */                                            \
    X(GIVE_UP)  /* the forward failed on all ranks: the step has no gradients */                   \
    X(LOSS)     /* the loss of the micro-batch is computed: t->result */                           \
    X(BACKWARD) /* the gradients of the micro-batch are computed */                                \
    X(STOP)     /* a signal drops the step between two of its micro-batches */                     \
    X(UPDATE)   /* the optimizer will update the weights, with t->coefficients */                  \
    X(UPDATED)  /* the optimizer has updated the weights */                                        \
    X(DONE)     /* the device has completed the step */                                            \
    X(ROW)      /* add numbers to t->row; the step took t->step_s */                               \
    X(BETWEEN)  /* another step follows */                                                         \
    X(END)      /* the run has ended without an error */

typedef enum moert_event {
#define MOERT_EVENT_NAME(NAME) MOERT_EVENT_##NAME,
    MOERT_EVENT_TABLE(MOERT_EVENT_NAME)
#undef MOERT_EVENT_NAME
        MOERT_EVENTS
} moert_event;

typedef struct moert_trainer moert_trainer;

/* The functions are collective, and all ranks return the same status. */
typedef struct moert_observer {
    bool (*wanted)(const moert_trainer *t);
    size_t bytes; /* bytes of the observer's state `self`, which is all zeros before `open` */
    /* `open` must not write files (START may write files); NULL: no function */
    moert_status (*open)(void *self, moert_trainer *t);
    /* `close` is called also after `open` has failed, and must not free `self`; NULL: no
     * function */
    void (*close)(void *self);
    moert_status (*on[MOERT_EVENTS])(void *self, moert_trainer *t); /* NULL: nothing */
} moert_observer;

/* X(NAME): the observers of a training, moert_observer_NAME, in the order in which the loop calls
 * them. */
#define MOERT_OBSERVER_TABLE(X)                                                                    \
    X(collapse)                                                                                    \
    X(profile)                                                                                     \
    X(rebalance)                                                                                   \
    X(monitor)                                                                                     \
    X(check)                                                                                       \
    X(bias)                                                                                        \
    X(run_file)

enum {
#define MOERT_OBSERVER_NUMBER(NAME) MOERT_OBSERVER_##NAME,
    MOERT_OBSERVER_TABLE(MOERT_OBSERVER_NUMBER)
#undef MOERT_OBSERVER_NUMBER
        MOERT_OBSERVERS
};

/* open: opens the observers that the options need. close: closes all observers. */
moert_status moert_observers_open(moert_trainer *t);
void moert_observers_close(moert_trainer *t);
/* Calls all open observers for an event, in the order of the table. */
moert_status moert_observers_tell(moert_trainer *t, moert_event event);
