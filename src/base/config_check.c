/* Checks the MOERT_* variables of the environment. This file is separate from config.c, since
 * logging and error reports, which it uses, read the configuration. */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/text.h"

extern char **environ;

static void warn_unknown(const char *entry) {
    char name[128];
    const size_t length = strcspn(entry, "=");
    snprintf(name, sizeof name, "%.*s", (int)(length < 127 ? length : 127), entry);
    moert_variable variable, nearest;
    moert_config_variable(0, &nearest);
    for (size_t i = 0; moert_config_variable(i, &variable); i++) {
        if (strcmp(variable.name, name) == 0)
            return;
        if (moert_text_distance(name, variable.name) < moert_text_distance(name, nearest.name))
            nearest = variable;
    }
    MOERT_WARN("unknown variable %s; did you mean %s?", name, nearest.name);
}

/* AMX tiles give other bits than MOERT_BACKEND=portable promises. Only kernels in CPU form can use
 * AMX tiles. */
static moert_status check_tiles(void) {
    const moert_config *config = moert_config_get();
    const char *other = config->backend == MOERT_BACKEND_PORTABLE ? "MOERT_BACKEND=portable"
                        : config->form == MOERT_FORM_GPU          ? "MOERT_FORM=gpu"
                                                                  : NULL;
    if (config->bf16 != MOERT_BF16_TILES || other == NULL)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE, "MOERT_BF16=tiles cannot be used with %s; unset one of them",
                      other);
}

moert_status moert_config_check(void) {
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "MOERT_", 6) == 0 && moert_log_is_first())
            warn_unknown(*entry);
    moert_variable variable;
    for (size_t i = 0; moert_config_variable(i, &variable); i++)
        if (!moert_config_is_legal(&variable))
            return MOERT_FAIL(ERROR_USAGE, "%s=%s is not legal; expected %s", variable.name,
                              variable.value, variable.type[0] == 'B' ? "0 or 1" : variable.limits);
    return check_tiles();
}
