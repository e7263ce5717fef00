/* NVIDIA's driver library, which encodes tensor maps (driver.h). */
#include "driver.h"

/* The parameters of each tensor map, as text. A tensor map contains the index of its text in this
 * array. */
static char **maps;
static uint32_t map_count;
static const char magic[] = "tensor map";

int cuInit(unsigned flags) {
    return (int)flags;
}

int cuDeviceGetByPCIBusId(int *device, const char *pci) {
    *device = 0;
    return strcmp(pci, "0000:01:00.0") != 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &maps;
    return device;
}

int cuCtxSetCurrent(void *context) {
    return context != &maps;
}

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill) {
    const buffer *b = find_place(address);
    size_t bytes;
    char *text;
    if (b == NULL)
        return 1;
    FILE *to = open_memstream(&text, &bytes);
    fprintf(to, "map{#%u[%zu]+%zu type %d sizes", number_of(b), b->bytes,
            (size_t)((char *)address - b->memory), type);
    for (uint32_t i = 0; i < rank; i++)
        fprintf(to, " %" PRIu64, sizes[i]);
    fprintf(to, " strides");
    for (uint32_t i = 0; i + 1 < rank; i++)
        fprintf(to, " %" PRIu64, strides[i]);
    fprintf(to, " box");
    for (uint32_t i = 0; i < rank; i++)
        fprintf(to, " %u/%u", box[i], steps[i]);
    fprintf(to, " %d %d %d %d}", interleave, swizzle, promotion, fill);
    fclose(to);
    maps = realloc(maps, (map_count + 1) * sizeof *maps);
    maps[map_count] = text;
    memset(map, 0, MAP_BYTES);
    memcpy(map, magic, sizeof magic);
    memcpy((char *)map + MAP_BYTES - sizeof map_count, &map_count, sizeof map_count);
    map_count++;
    return 0;
}

const char *map_text(const void *value, size_t bytes) {
    uint32_t index;
    if (bytes != MAP_BYTES || memcmp(value, magic, sizeof magic) != 0)
        return NULL;
    memcpy(&index, (const char *)value + MAP_BYTES - sizeof index, sizeof index);
    return maps[index];
}
