/*
 * Observers: parts of a training outside of its loop, such as profiles, checks and moves of
 * experts. The loop calls all observers at its events, and depends on none of them. A new observer
 * is a file and a row of the table below.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* X(NAME): the events of a run, in order. Several batches form a step. */
#define MOERT_EVENT_TABLE(X)                                                                       \
    X(START)    /* all checks are done, and the run directory exists */                            \
    X(STEP)     /* a step begins */                                                                \
    X(BATCH)    /* a micro-batch, number t->micro_batch, begins */                                 \
    X(GIVE_UP)  /* the forward has failed on all ranks alike: no gradients in this step */         \
    X(LOSS)     /* the micro-batch has its loss, t->result */                                      \
    X(BACKWARD) /* the micro-batch has its gradients */                                            \
    X(STOP)     /* a signal drops the step between two micro-batches */                            \
    X(UPDATE)   /* the optimizer is about to step, with t->coefficients */                         \
    X(UPDATED)  /* the optimizer has stepped */                                                    \
    X(DONE)     /* the device has done the step */                                                 \
    X(ROW)      /* t->row gets the step's numbers; the step took t->step_s */                      \
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
    size_t bytes; /* size of its state `self`, which is all zeros before `open` */
    moert_status (*open)(void *self, moert_trainer *t); /* must write no file (START may). NULL:
                                                           nothing */
    void (*close)(void *self); /* called also after `open` has failed; does not free `self`. NULL:
                                  nothing */
    moert_status (*on[MOERT_EVENTS])(void *self, moert_trainer *t); /* NULL: nothing */
} moert_observer;

/* X(NAME): a training's observers, moert_observer_NAME, in the order in which they are called. */
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

/* Opens the observers that are wanted; closes all. */
moert_status moert_observers_open(moert_trainer *t);
void moert_observers_close(moert_trainer *t);
/* Calls all open observers for an event, in the order of the table. */
moert_status moert_observers_tell(moert_trainer *t, moert_event event);
