/* Reads ranges of steps from options. */
#include "train/step_ranges.h"

#include <ctype.h>
#include <stdlib.h>

#include "base/memory.h"

enum { DIGITS_MOST = 15 }; /* most digits of a step number */

bool moert_step_read(const char **at, uint64_t *step) {
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    *step = strtoull(*at, &end, 10);
    const bool fits = end - *at <= DIGITS_MOST;
    *at = end;
    return fits;
}

moert_status moert_step_ranges_read(const char *text, moert_step_ranges *ranges) {
    moert_step_ranges made = {0};
    const char *at = text;
    uint64_t before = 0;
    do {
        moert_step_range *range = &made.range[made.count];
        at += at != text; /* the comma */
        bool good = moert_step_read(&at, &range->first) && *at == ':';
        at += good;
        good = good && moert_step_read(&at, &range->end) && (*at == '\0' || *at == ',');
        if (!good || range->first < before || range->end <= range->first)
            return MOERT_FAIL(ERROR_USAGE,
                              "--skip-steps %s: expected A:B, the steps from A on and before B, or "
                              "several of these in ascending order with commas between them",
                              text);
        before = range->end;
        made.count++;
    } while (*at == ',' && made.count < MOERT_STEP_RANGES_MOST);
    if (*at != '\0')
        return MOERT_FAIL(ERROR_USAGE, "--skip-steps: more than %d ranges", MOERT_STEP_RANGES_MOST);
    *ranges = made;
    return MOERT_OK;
}

moert_status moert_step_range_read(const char *text, moert_step_range *range) {
    const char *at = text;
    uint64_t first, count = 1;
    bool good = moert_step_read(&at, &first);
    if (good && *at == ':') {
        at++;
        good = moert_step_read(&at, &count);
    }
    if (!good || *at != '\0' || count == 0)
        return MOERT_FAIL(ERROR_USAGE, "--replay %s: expected STEP or STEP:COUNT", text);
    *range = (moert_step_range){first, first + count};
    return MOERT_OK;
}

bool moert_step_ranges_have(const moert_step_ranges *ranges, uint64_t step) {
    for (size_t i = 0; i < ranges->count; i++)
        if (step >= ranges->range[i].first && step < ranges->range[i].end)
            return true;
    return false;
}

uint64_t moert_step_ranges_below(const moert_step_ranges *ranges, uint64_t step) {
    uint64_t sum = 0;
    for (size_t i = 0; i < ranges->count && ranges->range[i].first < step; i++)
        sum += moert_min(ranges->range[i].end, step) - ranges->range[i].first;
    return sum;
}
