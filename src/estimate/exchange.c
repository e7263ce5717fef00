/* The memory of a rank for the exchange. Sums are in floats. */
#include "base/config.h"
#include "base/memory.h"
#include "estimate/parts.h"
#include "exchange/peers.h"

/* Whether untouched rows of the engine's windows cost no memory. */
static bool reserves_worst_case(const moert_memory_setting *setting) {
    return (setting->engine == MOERT_EXCHANGE_WINDOW || setting->engine == MOERT_EXCHANGE_NODE) &&
           (setting->device == NULL || moert_device_describe(setting->device)->is_cpu);
}

/* Adds a window of so many floats per row. */
static void add_window(const moert_memory_setting *setting, const moert_memory_shape *s,
                       moert_row_peak peak, size_t width, moert_memory_exchange *sum) {
    const size_t stride = moert_round_up(width, MOERT_WINDOW_ROW_FLOATS);
    const size_t limit = setting->largest_bytes / (stride * sizeof(float));
    const size_t needed = moert_max(peak.largest, 1);
    const size_t rows = reserves_worst_case(setting)
                            ? moert_max(s->capacity_rows, needed)
                            : moert_with_room(needed); /* moert_window_reserve */
    sum->used += peak.rows * stride;
    sum->reserved += stride * moert_min(rows, limit);
}

/* Two windows per pass (layer/pass.c) and three of the mesh: windows of received rows, of results,
 * and of width 1. */
static void add_windows(const moert_memory_setting *setting, const moert_memory_shape *s,
                        moert_memory_exchange *sum) {
    const size_t wire = s->choices.forth.width, count = moert_memory_kept_layers(s, s->moe_layers);
    for (size_t i = 0; i <= count; i++) {
        const moert_row_peak peak = i < count ? moert_memory_pass_peak(s, i) : s->peak;
        add_window(setting, s, peak, wire, sum);
        add_window(setting, s, peak, 1, sum);
    }
    add_window(setting, s, s->peak, s->choices.back.width, sum);
}

/* The packed rows and slots that exchange/staged/engine.c keeps in host memory, for dispatch and
 * combine. */
static size_t count_staging(const moert_memory_shape *s) {
    const size_t slots = s->tokens * s->config->router.topk;
    const size_t forth = moert_round_up(s->choices.forth.width, MOERT_WINDOW_ROW_FLOATS);
    const size_t back = moert_round_up(s->choices.back.width, MOERT_WINDOW_ROW_FLOATS);
    return moert_with_room(slots * forth) + moert_with_room(slots * back) +
           2 * moert_with_room(slots * MOERT_WINDOW_ROW_FLOATS);
}

/* Messages that the node engine (exchange/node/node.h) sends and receives, of rows and of slots, if
 * every slot's result travels between hosts. */
static size_t count_messages(const moert_memory_shape *s) {
    const size_t slots = s->tokens * s->config->router.topk;
    const size_t widest = moert_max(s->choices.forth.width, s->choices.back.width);
    const size_t wide = moert_round_up(widest, MOERT_WINDOW_ROW_FLOATS);
    return moert_with_room(s->peak.rows * wide) + moert_with_room(slots) +
           moert_with_room(slots * (wide + MOERT_WINDOW_ROW_FLOATS));
}

/* The windows of sums and gathers between devices that wait for each other: of all ranks, and of
 * those with the same experts. */
static size_t count_peers(const moert_memory_setting *setting) {
    const unsigned sync = moert_config_get()->sync;
    const bool waits = setting->device != NULL && moert_device_describe(setting->device)->is_gpu
                           ? sync != MOERT_SYNC_HOST
                           : sync == MOERT_SYNC_DEVICE;
    const size_t groups = 1 + (!setting->exact && setting->ranks > setting->ep);
    return waits && setting->device != NULL
               ? groups * moert_peers_bytes(setting->device) / sizeof(float)
               : 0;
}

moert_memory_exchange moert_memory_exchange_of(const moert_memory_setting *setting,
                                               const moert_memory_shape *s) {
    moert_memory_exchange sum = {0};
    add_windows(setting, s, &sum);
    sum.taken = reserves_worst_case(setting) ? sum.used : sum.reserved;
    if (setting->engine == MOERT_EXCHANGE_WINDOW)
        sum.staging = count_peers(setting);
    else if (setting->engine == MOERT_EXCHANGE_STAGED)
        sum.staging = count_staging(s);
    else if (setting->engine == MOERT_EXCHANGE_NODE)
        sum.staging = count_messages(s);
    return sum;
}
