/* In test programs the linker replaces moert_program_source by this function, which refuses to
 * build programs that kernels/programs.txt does not list. */
#include "base/config.h"
#include "device/source.h"
#include "support/programs.h"

moert_status __real_moert_program_source(const char *spec, char **source);
moert_status __wrap_moert_program_source(const char *spec, char **source);

moert_status __wrap_moert_program_source(const char *spec, char **source) {
    if (moert_config_get()->kernel_dir[0] == '\0' && programs_have_family(spec) &&
        !programs_take(spec))
        return MOERT_FAIL(ERROR_INTERNAL, "kernels/programs.txt does not take the program '%s'",
                          spec);
    return __real_moert_program_source(spec, source);
}
