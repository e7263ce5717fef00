/* The table of the backends of the quantizers. */
#include "quant/backend.h"

#include "base/config.h"

#define REFERENCE_ENTRY(entry, argument) .entry = moert_reference_##entry,
#define PORTABLE_ENTRY(entry, argument)  .entry = moert_portable_##entry,

const moert_quant_backend moert_quant_reference = {MOERT_QUANT_TABLE(REFERENCE_ENTRY)};
const moert_quant_backend moert_quant_portable = {MOERT_QUANT_TABLE(PORTABLE_ENTRY)};

const moert_quant_backend *moert_quant_backend_get(void) {
    return moert_config_get()->backend == MOERT_BACKEND_REFERENCE ? &moert_quant_reference
                                                                  : &moert_quant_portable;
}
