/* Opens the observers of a training, and calls them. */
#include "train/observer.h"

#include <stdlib.h>

#include "base/memory.h"
#include "train/internal.h"

#define DECLARE(NAME) extern const moert_observer moert_observer_##NAME;
MOERT_OBSERVER_TABLE(DECLARE)
#undef DECLARE

static const moert_observer *const observers[MOERT_OBSERVERS] = {
#define ADDRESS(NAME) &moert_observer_##NAME,
    MOERT_OBSERVER_TABLE(ADDRESS)
#undef ADDRESS
};

moert_status moert_observers_open(moert_trainer *t) {
    for (size_t i = 0; i < MOERT_OBSERVERS; i++) {
        const moert_observer *o = observers[i];
        if (!o->wanted(t))
            continue;
        MOERT_TRY(moert_comm_agree(t->world, moert_alloc(&t->observer[i], o->bytes, 1)));
        if (o->open != NULL)
            MOERT_TRY(o->open(t->observer[i], t));
    }
    return MOERT_OK;
}

void moert_observers_close(moert_trainer *t) {
    for (size_t i = MOERT_OBSERVERS; i-- > 0;) {
        if (t->observer[i] != NULL && observers[i]->close != NULL)
            observers[i]->close(t->observer[i]);
        free(t->observer[i]);
    }
}

moert_status moert_observers_tell(moert_trainer *t, moert_event event) {
    for (size_t i = 0; i < MOERT_OBSERVERS; i++)
        if (t->observer[i] != NULL && observers[i]->on[event] != NULL)
            MOERT_TRY(observers[i]->on[event](t->observer[i], t));
    return MOERT_OK;
}
