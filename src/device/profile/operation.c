/* Assigns kernels to operations, by their program and the phase. */
#include <string.h>

#include "device/buffer.h"
#include "device/profile/profile.h"

enum { STARTS = 5 };

static const struct {
    const char *text;
    uint64_t phases; /* a bit for each phase */
    const char *starts[STARTS];
} operations[] = {
#define ANY                                    UINT64_MAX
#define IN(name)                               (UINT64_C(1) << MOERT_PHASE_##name)
#define COPY                                   MOERT_FAMILY_COPY
#define OPERATION_ROW(name, text, phases, ...) {text, phases, {__VA_ARGS__}},
    MOERT_OPERATION_TABLE(OPERATION_ROW)
#undef OPERATION_ROW
};
_Static_assert(MOERT_PHASES <= 64, "a phase is a bit");

const char *moert_operation_text(moert_operation operation) {
    return operations[operation].text;
}

bool moert_operation_is_gemm(moert_operation operation) {
    const char *start = operations[operation].starts[0];
    return start != NULL && strcmp(start, "gemm/") == 0;
}

/* `start` is a family, or a directory with its slash. Returns the length of `start` if the program
 * has this family or is in this directory, else 0. */
static size_t match(const char *program, const char *start) {
    const size_t length = strlen(start);
    const bool fits = strncmp(program, start, length) == 0 &&
                      (start[length - 1] == '/' || program[length] == ' ' || program[length] == 0);
    return fits ? length : 0;
}

moert_operation moert_operation_of(const char *program, moert_phase phase) {
    moert_operation found = MOERT_OPERATION_OTHER;
    size_t longest = 0;
    for (size_t i = 0; i < MOERT_OPERATIONS; i++) {
        if ((operations[i].phases >> phase & 1) == 0)
            continue;
        for (const char *const *start = operations[i].starts; *start != NULL; start++) {
            const size_t length = match(program, *start);
            if (length > longest) {
                longest = length;
                found = (moert_operation)i;
            }
        }
    }
    return found;
}
