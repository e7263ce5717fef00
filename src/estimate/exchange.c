/* Adds up the memory that a rank allocates for the exchange. */
#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"
#include "estimate/parts.h"
#include "exchange/peers.h"

/* Whether ranks read and write the engine's windows in each other's memory. */
static bool is_shared(const moert_memory_setting *setting) {
    return setting->engine == MOERT_EXCHANGE_WINDOW || setting->engine == MOERT_EXCHANGE_NODE;
}

/* Whether untouched rows of the engine's windows cost no memory. */
static bool reserves_worst_case(const moert_memory_setting *setting) {
    return is_shared(setting) &&
           (setting->device == NULL || moert_device_describe(setting->device)->is_cpu);
}

/* Adds a window of `width` floats per row. */
static void add_window(const moert_memory_shape *s, moert_row_peak peak, size_t width,
                       const char *name, moert_memory *memory) {
    const moert_memory_setting *setting = s->setting;
    const size_t floats = moert_window_stride_of(width) * sizeof(float),
                 with_word = floats + sizeof(uint32_t), /* moert_row_bytes */
        row_bytes = is_shared(setting) ? with_word : floats;
    const bool worst = reserves_worst_case(setting);
    const size_t rows = moert_window_room(moert_max(peak.largest, 1), s->capacity_rows,
                                          setting->largest_bytes / with_word, worst);
    memory->reserved += rows * row_bytes;
    MOERT_MEMORY_ADD(memory, windows, name, peak.rows * row_bytes);
    memory->total += (worst ? peak.rows : rows) * row_bytes;
}

/* Adds two windows for each pass (layer/pass.c), and three that the mesh owns. */
static void add_windows(const moert_memory_shape *s, moert_memory *memory) {
    const size_t width = s->choices.forth.width, count = moert_memory_kept_layers(s, s->moe_layers);
    for (size_t i = 0; i < count; i++) {
        const moert_row_peak peak = moert_memory_pass_peak(s, i);
        add_window(s, peak, width, "rows that layers receive", memory);
        add_window(s, peak, 1, "routing weights of rows", memory);
    }
    add_window(s, s->peak, width, "gradients that layers receive", memory);
    add_window(s, s->peak, 1, "gradients of routing weights", memory);
    add_window(s, s->peak, s->choices.back.width, "results of the experts", memory);
}

/* Bytes of the windows for sums and gathers between devices (exchange/peers.h), if the devices wait
 * for each other. All ranks share one set of windows. Replicas of the same experts share another
 * set, unless the replicas are exact. */
static size_t peers_bytes(const moert_memory_setting *setting) {
    const unsigned sync = moert_config_get()->sync;
    const bool waits = setting->device != NULL && moert_device_describe(setting->device)->is_gpu
                           ? sync != MOERT_SYNC_HOST
                           : sync == MOERT_SYNC_DEVICE;
    const size_t groups = 1 + (!setting->exact && setting->ranks > setting->ep);
    return waits && setting->device != NULL ? groups * moert_peers_bytes(setting->device) : 0;
}

void moert_memory_add_exchange(const moert_memory_shape *s, moert_memory *memory) {
    add_windows(s, memory);
    if (s->setting->engine == MOERT_EXCHANGE_WINDOW)
        MOERT_MEMORY_ADD(memory, staging, "sums between devices", peers_bytes(s->setting));
    const moert_hop *forth = &s->choices.forth, *back = &s->choices.back;
    const size_t slots = s->layer.tokens * s->options.router.topk;
    const moert_packed_sizes sizes = {slots, s->peak.rows, forth->width, back->width};
    MOERT_MEMORY_ADD(memory, staging, "packed rows",
                     moert_exchange_packed_bytes(s->setting->engine, &sizes));
}
