/* Copies an options struct of a caller that was compiled with these or older headers; also returns
 * the version of the library. */
#include "base/options.h"

#include <stdalign.h>
#include <string.h>

#include "moert/version.h"

unsigned moert_version(void) {
    return MOERT_VERSION_NUMBER;
}

moert_status moert_options_take(void *taken, size_t bytes, const void *given, const char *type,
                                const char *initialiser) {
    size_t size;
    if (given == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s is NULL; initialize it with %s", type, initialiser);
    memcpy(&size, given, sizeof size);
    if (size <= sizeof size || size > bytes || size % alignof(size_t) != 0)
        return MOERT_FAIL(
            ERROR_USAGE,
            "%s.size is %zu; expected the size that %s sets: %zu, or less in an older header", type,
            size, initialiser, bytes);
    memcpy(taken, given, size);
    memcpy(taken, &bytes, sizeof bytes);
    return MOERT_OK;
}
