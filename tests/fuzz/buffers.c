/*
 * Buffers of an op, which wrap host memory with a guard behind each. While the op runs, the guards
 * are poisoned, so that AddressSanitizer reports accesses by host code. Afterwards, the guards'
 * bytes are compared, to find writes by kernels.
 */
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "fuzz/fuzz_op.h"
#include "op/op.h"

enum {
    GUARD_BYTES = 256,
    GUARD_VALUE = 0xA5,
    MOST_BYTES = 1 << 18, /* the largest buffer */
    MOST_GROUPS = 64,
    MOST_BUFFERS = MOERT_OP_BUFFERS + 2 * MOST_GROUPS + 8
};

static struct {
    moert_buffer *buffer;
    unsigned char *memory;
    size_t bytes;
} made[MOST_BUFFERS];
static size_t made_count;
static moert_buffer *weights[MOST_GROUPS], *weight_scales[MOST_GROUPS];

/* ---- memory ---- */

/* Wraps a buffer around `bytes` of new memory with a guard behind them; returns NULL if there are
 * too many buffers. */
static moert_buffer *add(moert_device *device, size_t bytes, unsigned char **memory) {
    moert_buffer *buffer;
    if (bytes > MOST_BYTES || made_count == MOST_BUFFERS)
        return NULL;
    *memory = aligned_alloc(128, (bytes + GUARD_BYTES + 127) / 128 * 128);
    if (*memory == NULL)
        fuzz_fail("no memory");
    memset(*memory + bytes, GUARD_VALUE, GUARD_BYTES);
    ASAN_POISON_MEMORY_REGION(*memory + bytes, GUARD_BYTES);
    const moert_status status = bytes > 0 ? moert_buffer_wrap(device, *memory, bytes, &buffer)
                                          : moert_buffer_create(device, 0, &buffer);
    if (status != MOERT_OK)
        fuzz_fail("cannot make a buffer of %zu bytes: %s", bytes, moert_last_error());
    made[made_count].buffer = buffer;
    made[made_count].memory = *memory;
    made[made_count++].bytes = bytes;
    return buffer;
}

uint64_t fuzz_buffers_hash(void) {
    uint64_t hash = 0;
    for (size_t i = 0; i < made_count; i++)
        hash = XXH3_64bits_withSeed(made[i].memory, made[i].bytes, hash);
    return hash;
}

void fuzz_buffers_release(void) {
    for (; made_count > 0; made_count--) {
        const unsigned char *memory = made[made_count - 1].memory;
        const size_t bytes = made[made_count - 1].bytes;
        ASAN_UNPOISON_MEMORY_REGION(memory + bytes, GUARD_BYTES);
        for (size_t i = 0; i < GUARD_BYTES; i++)
            if (memory[bytes + i] != GUARD_VALUE)
                fuzz_fail("byte %zu past the end of a buffer of %zu bytes was written", i, bytes);
        moert_buffer_destroy(made[made_count - 1].buffer);
        free(made[made_count - 1].memory);
    }
}

/* ---- content ---- */

static uint64_t state;

static uint32_t next(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)(state * 0x2545F4914F6CDD1Du >> 32);
}

/* Fills memory with small floats, random bits, or the same byte. */
static void fill(unsigned char *memory, size_t bytes, unsigned style) {
    static const uint8_t constant[] = {0x00, 0xff, 0x7f, 0x80, 0x38, 0x01};
    if (style % 3 == 0) {
        for (size_t i = 0; i + 4 <= bytes; i += 4) {
            const float value = (float)(int32_t)next() * 0x1p-31f;
            memcpy(memory + i, &value, 4);
        }
        memset(memory + bytes / 4 * 4, 0x3c, bytes % 4);
    } else if (style % 3 == 1) {
        for (size_t i = 0; i < bytes; i++)
            memory[i] = (unsigned char)(next() >> 24);
    } else {
        memset(memory, constant[style / 3 % sizeof constant], bytes);
    }
}

/* Splits the rows at random; for styles from 224 on, one end gets an arbitrary value. Returns true
 * if all ends are legal. */
static bool fill_ends(uint32_t *ends, const moert_op_options *o, unsigned style) {
    static const uint32_t wild[] = {0, 1, 31, 41, 1u << 31, UINT32_MAX};
    const size_t unit = o->row_multiple > 0 ? o->row_multiple : 1;
    uint32_t end = 0;
    bool legal = true;
    for (size_t g = 0; g < o->groups; g++) {
        const size_t left = (o->rows - end) / unit;
        if (style % 4 == 1)
            /* the last group gets all remaining rows */
            end = (uint32_t)(g + 1 == o->groups ? left * unit : 0);
        else if (left > 0 && style % 4 != 2) /* style 2 leaves all groups empty */
            end += (uint32_t)(next() % (left + 1) * unit);
        ends[g] = end;
    }
    if (style >= 224 && o->groups > 0)
        ends[next() % o->groups] = wild[next() % (MOERT_COUNT(wild))];
    for (size_t g = 0; g < o->groups; g++) {
        const uint32_t start = g > 0 ? ends[g - 1] : 0;
        legal = legal && ends[g] >= start && ends[g] <= o->rows && (ends[g] - start) % unit == 0;
    }
    return legal;
}

/* Fills gather with a reversal, with random slots (repeated, or just past the end), or with any
 * values. */
static void fill_gather(uint32_t *gather, size_t rows, unsigned style) {
    const uint32_t m = (uint32_t)rows;
    for (uint32_t r = 0; r < m; r++)
        gather[r] = style % 8 < 4    ? m - 1 - r
                    : style % 8 == 4 ? next() % m
                    : style % 8 < 7  ? next() % (m + 2)
                                     : next();
}

/* ---- the buffers that an op needs ---- */

static bool make_one(const fuzz_input *in, const moert_op_options *o, moert_device *device,
                     moert_op_buffer which, size_t bytes, fuzz_buffers *buffers) {
    unsigned char *memory;
    moert_buffer *buffer = add(device, bytes, &memory);
    if (buffer == NULL)
        return false;
    *moert_op_buffer_at(&buffers->of, which) = buffer;
    if (which == MOERT_OP_BUFFER_ends)
        buffers->sound = fill_ends((uint32_t *)(void *)memory, o, in->ends);
    else if (which == MOERT_OP_BUFFER_gather)
        fill_gather((uint32_t *)(void *)memory, o->rows, in->gather);
    else
        fill(memory, bytes, in->payload + (unsigned)which);
    return true;
}

static bool make_each(const fuzz_input *in, moert_device *device, size_t groups, size_t bytes,
                      moert_buffer **each) {
    unsigned char *memory;
    for (size_t g = 0; g < groups; g++) {
        each[g] = add(device, bytes, &memory);
        if (each[g] == NULL)
            return false;
        fill(memory, bytes, in->payload);
    }
    return true;
}

static bool make_needed(const fuzz_input *in, const moert_op_options *o, const moert_op *op,
                        moert_device *device, fuzz_buffers *buffers) {
    buffers->of = (moert_op_buffers)MOERT_OP_BUFFERS_INIT;
    buffers->sound = true;
    state = 0x9E3779B97F4A7C15u + in->payload + (in->ends << 8);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const size_t bytes = moert_op_buffer_bytes(op, moert_op_buffer_name(i));
        if (bytes > 0 && !make_one(in, o, device, i, bytes, buffers))
            return false;
    }
    const size_t weight_bytes = moert_op_buffer_bytes(op, "weights"),
                 scale_bytes = moert_op_buffer_bytes(op, "weight_scales");
    /* weight_bytes is also 0 if the options are of an older size without weight.discrete */
    if (weight_bytes == 0)
        return true;
    buffers->of.weights = weights;
    if (!make_each(in, device, o->groups, weight_bytes, weights))
        return false;
    if (scale_bytes == 0)
        return true;
    buffers->of.weight_scales = weight_scales;
    return make_each(in, device, o->groups, scale_bytes, weight_scales);
}

/* ---- edits ---- */

/* Replaces a buffer by NULL, by a smaller or larger buffer, by a buffer of another device, or by
 * the weight. `ends` never becomes the weight, since the host relies on `ends` while the op
 * computes. */
static void replace(moert_buffer **slot, unsigned change, moert_device *device, moert_device *other,
                    const moert_op_buffers *of) {
    unsigned char *memory;
    const size_t bytes = *slot != NULL ? moert_buffer_bytes(*slot) : 64;
    const size_t sizes[] = {bytes, bytes > 0 ? bytes - 1 : 0, bytes / 2, 0, bytes + 1, 2 * bytes};
    change %= MOERT_COUNT(sizes) + 2;
    if (change >= 2) {
        const size_t size = sizes[change - 2];
        *slot = add(change == 2 ? other : device, size, &memory);
        if (*slot != NULL)
            fill(memory, size, change);
    } else if (change == 0) {
        *slot = NULL;
    } else if (slot != &of->ends) {
        *slot = of->weight;
    }
}

static void edit(const fuzz_input *in, size_t i, size_t groups, moert_device *device,
                 moert_device *other, moert_op_buffers *of) {
    enum { EXPERT = 224, EXPERT_SCALE = 232, ARRAY = 240, SIZE = 248 };
    const unsigned what = in->buffers[i][0], change = in->buffers[i][1];
    if (what < EXPERT)
        replace(moert_op_buffer_at(of, what % MOERT_OP_BUFFERS), change, device, other, of);
    else if (what < ARRAY && groups > 0)
        replace(what < EXPERT_SCALE ? &weights[change / 8 % groups]
                                    : &weight_scales[change / 8 % groups],
                change, device, other, of);
    else if (what < SIZE && change % 2 != 0)
        of->weights = of->weights == NULL ? weights : NULL;
    else if (what < SIZE)
        of->weight_scales = of->weight_scales == NULL ? weight_scales : NULL;
    else
        of->size = change;
}

bool fuzz_buffers_make(const fuzz_input *in, const moert_op_options *options, const moert_op *op,
                       moert_device *device, moert_device *other, fuzz_buffers *buffers) {
    enum { MOST_WORK = 1 << 20 };
    const size_t edits = fuzz_edits(in->buffer_edits, MOERT_COUNT(in->buffers));
    const size_t rows = options->rows > 0 ? options->rows : 1;
    memset(weights, 0, sizeof weights);
    memset(weight_scales, 0, sizeof weight_scales);
    if (options->groups > MOST_GROUPS || rows > MOST_WORK || options->n > MOST_WORK / rows ||
        options->k > MOST_WORK / rows / options->n)
        return false;
    if (!make_needed(in, options, op, device, buffers))
        return false;
    for (size_t i = 0; i < edits; i++)
        edit(in, i, options->groups, device, other, &buffers->of);
    buffers->sound = buffers->sound && edits == 0;
    return true;
}
