/* The names of activations (moert/glu.h). */
#include <string.h>

#include "args/activations.h"
#include "moert/glu.h"

#define NAME(name, value, slope) #name,
static const char *const names[] = {MOERT_ACTIVATION_TABLE(NAME)};

int moert_activation_find(const char *name) {
    for (int i = 0; i < MOERT_ACTIVATIONS; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

const char *moert_activation_name(int activation) {
    return activation >= 0 && activation < MOERT_ACTIVATIONS ? names[activation] : NULL;
}
