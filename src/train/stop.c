/* The signal handler only sets a flag. The ranks compare their flags after each micro-batch. */
#include "train/stop.h"

static const int signals[MOERT_STOP_SIGNALS] = {SIGTERM, SIGUSR1};
static volatile sig_atomic_t caught;

static void on_signal(int number) {
    (void)number;
    caught = 1;
}

void moert_stop_catch(struct sigaction before[MOERT_STOP_SIGNALS]) {
    struct sigaction action = {.sa_handler = on_signal};
    action.sa_flags = (int)(SA_RESTART | SA_RESETHAND);
    caught = 0;
    for (int i = 0; i < MOERT_STOP_SIGNALS; i++)
        sigaction(signals[i], &action, &before[i]);
}

void moert_stop_restore(const struct sigaction before[MOERT_STOP_SIGNALS]) {
    for (int i = 0; i < MOERT_STOP_SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
}

moert_status moert_stop_asked(moert_comm *world, bool *any) {
    uint64_t none = caught == 0;
    MOERT_TRY(moert_comm_smallest(world, &none));
    *any = none == 0;
    return MOERT_OK;
}
