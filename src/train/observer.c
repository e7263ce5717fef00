/* The observers of a training. */
#include "train/observer.h"

#include "train/internal.h"

extern const moert_observer moert_observer_collapse, moert_observer_profile,
    moert_observer_rebalance, moert_observer_monitor, moert_observer_check, moert_observer_bias,
    moert_observer_run_file;

static const moert_observer *const observers[MOERT_OBSERVERS] = {
    &moert_observer_collapse, &moert_observer_profile, &moert_observer_rebalance,
    &moert_observer_monitor,  &moert_observer_check,   &moert_observer_bias,
    &moert_observer_run_file};

moert_status moert_observers_open(moert_trainer *t) {
    for (size_t i = 0; i < MOERT_OBSERVERS; i++)
        if (observers[i]->wanted(t))
            MOERT_TRY(observers[i]->open(t, &t->observer[i]));
    return MOERT_OK;
}

void moert_observers_close(moert_trainer *t) {
    for (size_t i = MOERT_OBSERVERS; i-- > 0;)
        if (t->observer[i] != NULL)
            observers[i]->close(t->observer[i]);
}

moert_status moert_observers_tell(moert_trainer *t, moert_event event) {
    for (size_t i = 0; i < MOERT_OBSERVERS; i++)
        if (t->observer[i] != NULL && observers[i]->on[event] != NULL)
            MOERT_TRY(observers[i]->on[event](t->observer[i], t));
    return MOERT_OK;
}
