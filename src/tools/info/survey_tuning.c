/* Adds the tuning rows and the choices of tiles to moert-info's report. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/text.h"
#include "device/device.h"
#include "gemm/portable/gemm.h"
#include "tools/info/survey.h"

static json_t *tuning_row(const moert_device *device, const moert_tuning_key *key) {
    moert_tuning_report report;
    char choices[128], from[256] = "";
    size_t used = 0;
    const moert_choices found =
        moert_with_tile(moert_tuning_find(device, key), moert_dot_of(device, key->type));
    moert_choices_print(&found, choices, sizeof choices);
    for (size_t i = 0; moert_tuning_survey(device, key, i, &report) && used < sizeof from; i++)
        used += (size_t)snprintf(from + used, sizeof from - used, "%s%s", i > 0 ? ", " : "",
                                 report.place);
    return json_pack("{ss ss ss ss}", "operation", moert_tuned_name(key->operation), "type",
                     moert_dtype_name(key->type), "choices", choices, "from", from);
}

moert_status moert_survey_tuning(const moert_device *device, json_t *survey) {
    static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16};
    char *path = moert_tuning_file();
    json_t *rows = json_array();
    bool failed = false;
    /* GPU kernels choose tiles by the shape, not by tuning rows */
    if (!moert_device_describe(device)->gpu_form)
        for (moert_tuned o = 0; o < MOERT_TUNED_OPERATIONS; o++)
            for (size_t t = 0; t < 2; t++) {
                const moert_tuning_key key = {o, types[t], 0, 0, 0};
                failed |= json_array_append_new(rows, tuning_row(device, &key)) != 0;
            }
    char *file = NULL;
    failed |= path != NULL && moert_text_encode(path, &file) != MOERT_OK;
    json_t *measured = json_pack("{ss sI}", "file", file != NULL ? file : "", "rows",
                                 (json_int_t)moert_tuning_remembered());
    MOERT_FREE(file, path);
    failed |= json_object_set_new(survey, "tuning", rows) != 0;
    failed |= json_object_set_new(survey, "measured", measured) != 0;
    return failed ? MOERT_FAIL(ERROR_MEMORY, "no room for the report") : MOERT_OK;
}
