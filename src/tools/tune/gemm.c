/* A grouped GEMM of random data, for which tuning measures candidates of choices. */
#include "tools/tune/gemm.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "device/buffer.h"
#include "gemm/portable/gemm.h"

enum { CHUNK = 1 << 16 };

static bool is_prepacked(const moert_tune_gemm *p) {
    return p->key.operation == MOERT_TUNED_PREPACKED_FORWARD ||
           p->key.operation == MOERT_TUNED_PREPACKED_DGRAD;
}

/* Creates a buffer of `count` random values in [-1, 1). The same CHUNK values are repeated. */
static moert_status random_buffer(moert_device *device, moert_dtype type, size_t count,
                                  moert_buffer **buffer) {
    const size_t bytes = moert_dtype_bits(type) / 8;
    unsigned char *chunk;
    MOERT_TRY(moert_buffer_create(device, count * bytes, buffer));
    MOERT_TRY(moert_alloc(&chunk, CHUNK, bytes));
    for (size_t i = 0; i < CHUNK; i++) {
        const uint32_t bits =
            moert_dtype_encode(type, 2.0f * (float)moert_rng_uniform(1, 0, i) - 1.0f);
        if (type == MOERT_DTYPE_F32)
            ((uint32_t *)(void *)chunk)[i] = bits;
        else
            ((uint16_t *)(void *)chunk)[i] = (uint16_t)bits;
    }
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < count && status == MOERT_OK; i += CHUNK)
        status = moert_buffer_write(*buffer, i * bytes, chunk, moert_min(count - i, CHUNK) * bytes);
    free(chunk);
    return status;
}

static moert_status balanced_ends(moert_device *device, const moert_gemm_shape *shape,
                                  moert_buffer **buffer) {
    const size_t bytes = shape->experts * sizeof(uint32_t);
    uint32_t *ends;
    MOERT_TRY(moert_alloc(&ends, shape->experts, sizeof *ends));
    for (size_t e = 0; e < shape->experts; e++)
        ends[e] = (uint32_t)((e + 1) * shape->rows);
    moert_status status = moert_buffer_create(device, bytes, buffer);
    if (status == MOERT_OK)
        status = moert_buffer_write(*buffer, 0, ends, bytes);
    free(ends);
    return status;
}

static moert_status fill(moert_device *device, const moert_gemm_shape *shape, moert_tune_gemm *p) {
    const size_t rows = shape->experts * shape->rows;
    const moert_dtype f32 = MOERT_DTYPE_F32, type = p->key.type;
    moert_gemm *g = &p->gemm;
    MOERT_TRY(balanced_ends(device, shape, &p->ends));
    g->groups.ends = p->ends;
    MOERT_TRY(random_buffer(device, g->kind == MOERT_GEMM_DGRAD ? f32 : type, rows * shape->k,
                            &g->x.buffer));
    MOERT_TRY(random_buffer(device, g->kind == MOERT_GEMM_FORWARD ? f32 : type, rows * shape->n,
                            &g->y.buffer));
    return random_buffer(device, f32, shape->experts * shape->n * shape->k, &g->weight.buffer);
}

/* Prepacks the weight for the tile in `choices`, unless it is already prepacked for this tile. If
 * `choices` is NULL, prepacks the weight for the tile of the tuning rows. */
static moert_status prepare(void *what, const moert_choices *choices) {
    moert_tune_gemm *p = what;
    moert_device *device = moert_buffer_device(p->gemm.weight.buffer);
    const moert_panels_shape shape = {p->gemm.groups.count, p->gemm.n, p->gemm.k,
                                      moert_panels_use_of(&p->gemm), p->key.type};
    moert_tuning_key key = p->key;
    key.rows = 0;
    const moert_choices tile = choices != NULL ? *choices : moert_tuning_find(device, &key);
    if (!is_prepacked(p) ||
        (p->panels != NULL && tile.lines == p->tile.lines && tile.width == p->tile.width))
        return MOERT_OK;
    moert_panels_destroy(p->panels);
    p->panels = NULL;
    MOERT_TRY(moert_panels_create_with(device, &shape, choices, &p->panels));
    p->gemm.panels = p->panels;
    p->tile = tile;
    MOERT_TRY(moert_panels_fill(p->panels, p->gemm.weight.buffer));
    return moert_device_finish(device);
}

static moert_status run(void *what, const moert_choices *choices) {
    const moert_gemm_more more = {.choices = choices};
    moert_gemm gemm = ((const moert_tune_gemm *)what)->gemm;
    gemm.more = &more;
    return moert_gemm_run(&gemm);
}

moert_status moert_tune_gemm_create(moert_device *device, moert_tuned operation, moert_dtype type,
                                    const moert_gemm_shape *shape, moert_tune_gemm *p,
                                    bool *possible) {
    static const moert_gemm_kind kinds[] = {[MOERT_TUNED_FORWARD] = MOERT_GEMM_FORWARD,
                                            [MOERT_TUNED_DGRAD] = MOERT_GEMM_DGRAD,
                                            [MOERT_TUNED_WGRAD] = MOERT_GEMM_WGRAD,
                                            [MOERT_TUNED_PREPACKED_FORWARD] = MOERT_GEMM_FORWARD,
                                            [MOERT_TUNED_PREPACKED_DGRAD] = MOERT_GEMM_DGRAD};
    *p = (moert_tune_gemm){
        .key = {operation, type, shape->n, shape->k, shape->rows},
        .gemm = {.groups = {NULL, shape->experts, shape->experts * shape->rows},
                 .n = shape->n,
                 .k = shape->k},
    };
    moert_gemm_set(&p->gemm, kinds[operation], type);
    moert_status status = fill(device, shape, p);
    if (status == MOERT_OK)
        status = prepare(p, NULL);
    p->result = moert_gemm_output(&p->gemm)->buffer;
    if (status != MOERT_OK)
        moert_tune_gemm_destroy(p);
    *possible = !is_prepacked(p) || p->panels != NULL;
    return status;
}

void moert_tune_gemm_destroy(moert_tune_gemm *p) {
    MOERT_DESTROY(p->ends, p->gemm.x.buffer, p->gemm.y.buffer, p->gemm.weight.buffer);
    moert_panels_destroy(p->panels);
    *p = (moert_tune_gemm){.key = p->key};
}

moert_trial moert_tune_gemm_trial(moert_tune_gemm *p) {
    return (moert_trial){moert_buffer_device(p->gemm.weight.buffer), p, prepare, run,
                         moert_prefetches(p->panels)};
}

static moert_status result_of(moert_tune_gemm *p, const moert_choices *choices, void *memory) {
    MOERT_TRY(prepare(p, choices));
    MOERT_TRY(run(p, choices));
    return moert_buffer_read(p->result, 0, memory, moert_buffer_bytes(p->result));
}

moert_status moert_tune_gemm_compare(moert_tune_gemm *p, const moert_choices *a,
                                     const moert_choices *b) {
    const size_t bytes = moert_buffer_bytes(p->result);
    unsigned char *results;
    moert_status status;
    MOERT_TRY(moert_alloc(&results, bytes, 2));
    MOERT_TRY_OR(done, result_of(p, a, results));
    MOERT_TRY_OR(done, result_of(p, b, results + bytes));
    if (memcmp(results, results + bytes, bytes) != 0)
        status = MOERT_FAIL(ERROR_NUMERIC, "%s gives different bits with different tuning choices",
                            moert_tuned_name(p->key.operation));
done:
    free(results);
    return status;
}
