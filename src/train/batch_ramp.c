/* Computes the number of sequences of each step, which may grow during a run. */
#include "train/batch_ramp.h"

#include <stdio.h>

#include "base/memory.h"
#include "train/step_ranges.h"

moert_status moert_batch_ramp_read(const char *text, moert_batch_plan *plan) {
    uint64_t value[3] = {0};
    const char *at = text;
    bool good = true;
    for (size_t i = 0; i < MOERT_COUNT(value) && good; i++) {
        at += i > 0; /* the colon */
        good = moert_step_read(&at, &value[i]) && value[i] > 0 &&
               *at == (i + 1 < MOERT_COUNT(value) ? ':' : '\0');
    }
    if (!good)
        return MOERT_FAIL(ERROR_USAGE,
                          "--batch-ramp %s: expected START:INCREMENT:STEPS, three numbers above 0, "
                          "such as 32:16:1000",
                          text);
    plan->start = (size_t)value[0];
    plan->increment = (size_t)value[1];
    plan->steps = (size_t)value[2];
    return MOERT_OK;
}

moert_status moert_batch_ramp_check(const moert_batch_plan *plan, size_t micro_batches) {
    char text[MOERT_BATCH_RAMP_TEXT_BYTES];
    moert_batch_ramp_text(plan, text);
    if (plan->start > plan->largest)
        return MOERT_FAIL(ERROR_USAGE,
                          "--batch-ramp %s starts with %zu sequences; expected at most --batch, "
                          "which is %zu",
                          text, plan->start, plan->largest);
    if (plan->start % micro_batches != 0 || plan->increment % micro_batches != 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--batch-ramp %s: expected START and INCREMENT that are multiples of "
                          "--micro-batches, which is %zu",
                          text, micro_batches);
    return MOERT_OK;
}

void moert_batch_ramp_text(const moert_batch_plan *plan, char text[MOERT_BATCH_RAMP_TEXT_BYTES]) {
    text[0] = '\0';
    if (moert_batch_has_ramp(plan))
        snprintf(text, MOERT_BATCH_RAMP_TEXT_BYTES, "%zu:%zu:%zu", plan->start, plan->increment,
                 plan->steps);
}

/* How often the batch has grown before a step. */
static size_t count_growths(const moert_batch_plan *plan, uint64_t step) {
    const size_t most = moert_ceil_div(plan->largest - plan->start, plan->increment);
    return moert_min(step / plan->steps, most);
}

size_t moert_batch_at(const moert_batch_plan *plan, uint64_t step) {
    if (!moert_batch_has_ramp(plan))
        return plan->largest;
    const size_t growths = count_growths(plan, step);
    return moert_min(plan->start + growths * plan->increment, plan->largest);
}

/* Before growth k = 0, 1, ..., the batch has start + k * increment sequences for `steps` steps. */
uint64_t moert_batch_before(const moert_batch_plan *plan, uint64_t step) {
    if (!moert_batch_has_ramp(plan))
        return step * plan->largest;
    const uint64_t growths = count_growths(plan, step);
    const uint64_t sum = growths * plan->start + growths * (growths - 1) / 2 * plan->increment;
    return sum * plan->steps + (step - growths * plan->steps) * moert_batch_at(plan, step);
}
