/* The cache of keys and values, with which a forward continues sequences (moert_run_cache). */
#include "model/internal.h"

enum { PARTS = 2 }; /* keys, values */

moert_status moert_run_cache(moert_run *run, size_t room) {
    for (size_t i = 0; i < MOERT_ATTENTION_MOST; i++)
        if (run->model->attention.scratch[i].type != MOERT_DTYPE_F32)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "there is no cache of keys where tensor cores compute attention");
    run->room = moert_max(run->room, room);
    return MOERT_OK;
}

/* Rows of keys or of values: [sequences, room, row]. */
typedef struct token_rows {
    moert_buffer *buffer;
    size_t room, first; /* `first`: the first row of each sequence that a copy reads or writes */
} token_rows;

/* Copies `tokens` rows of each sequence. */
static moert_status copy_tokens(size_t sequences, size_t tokens, size_t row_bytes, token_rows from,
                                token_rows to) {
    for (size_t s = 0; s < sequences && tokens > 0; s++)
        MOERT_TRY(moert_buffer_copy(from.buffer, (s * from.room + from.first) * row_bytes,
                                    to.buffer, (s * to.room + to.first) * row_bytes,
                                    tokens * row_bytes));
    return MOERT_OK;
}

/* Makes room for run->room tokens of each sequence, and keeps the tokens that the batch
 * continues. */
static moert_status grow(moert_run *run, moert_run_layer *layer, const size_t row_bytes[PARTS]) {
    const size_t sequences = run->batch.sequences;
    for (size_t i = 0; i < PARTS; i++) {
        moert_buffer *larger;
        MOERT_TRY(moert_buffer_create(run->device, sequences * run->room * row_bytes[i], &larger));
        const token_rows old = {layer->cache[i], layer->cache_room, 0},
                         made = {larger, run->room, 0};
        layer->cache[i] = larger;
        const moert_status status =
            copy_tokens(sequences, run->given.past, row_bytes[i], old, made);
        moert_buffer_destroy(old.buffer);
        MOERT_TRY(status);
    }
    layer->cache_room = run->room;
    return MOERT_OK;
}

moert_status moert_model_cache_keys(moert_run *run, moert_run_layer *layer,
                                    moert_attention *attention) {
    const size_t sequences = run->batch.sequences,
                 value = attention->value_size > 0 ? attention->value_size : attention->head_size,
                 heads = attention->kv_heads * sizeof(float),
                 row_bytes[PARTS] = {heads * attention->head_size, heads * value};
    const moert_buffer **const rows[PARTS] = {&attention->k, &attention->v};
    if (run->room == 0 || sequences == 0)
        return MOERT_OK;
    if (layer->cache[1] == NULL || layer->cache_room < run->room ||
        moert_buffer_bytes(layer->cache[1]) < sequences * run->room * row_bytes[1])
        MOERT_TRY(grow(run, layer, row_bytes));
    for (size_t i = 0; i < PARTS; i++) {
        const token_rows own = {(moert_buffer *)*rows[i], run->length, 0},
                         cached = {layer->cache[i], run->room, run->given.past};
        MOERT_TRY(copy_tokens(sequences, run->length, row_bytes[i], own, cached));
        *rows[i] = layer->cache[i];
    }
    return MOERT_OK;
}
