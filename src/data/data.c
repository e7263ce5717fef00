/* Token sources (text, raw tokens, replayed arrays), and the sequences that a step draws. */
#include "data/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

static moert_status make(moert_data_kind kind, double held_out, moert_data **data) {
    if (!(held_out >= 0.0 && held_out < 1.0))
        return MOERT_FAIL(ERROR_USAGE, "held-out fraction %g: expected 0 to below 1", held_out);
    MOERT_TRY(MOERT_NEW(data));
    (*data)->kind = kind;
    (*data)->held_out = held_out;
    return MOERT_OK;
}

/* Returns a new source if loading it succeeded, else destroys it. */
static moert_status finish(moert_data *made, moert_status status, moert_data **data) {
    if (status == MOERT_OK)
        status = moert_data_identify(made);
    if (status == MOERT_OK)
        *data = made;
    else
        moert_data_destroy(made);
    return status;
}

static moert_status load_text(moert_data *data, const char *const *paths, size_t count) {
    size_t content = 0;
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(moert_corpus_add(&data->corpus, paths[i]));
    MOERT_TRY(MOERT_NEW_ARRAY(&data->starts, data->corpus.count));
    for (size_t i = 0; i < data->corpus.count; i++) {
        data->starts[i] = content + i; /* i separators precede file i */
        content += data->corpus.files[i].bytes;
    }
    if (content == 0)
        return MOERT_FAIL(ERROR_FORMAT, "no text in %zu files of %s%s", data->corpus.count,
                          count > 0 ? paths[0] : "nothing", count > 1 ? " and others" : "");
    data->tokens = content + data->corpus.count - 1;
    return MOERT_OK;
}

moert_status moert_data_open_text(const char *const *paths, size_t count, double held_out,
                                  moert_data **data) {
    moert_data *made;
    MOERT_TRY(make(TEXT, held_out, &made));
    return finish(made, load_text(made, paths, count), data);
}

static moert_status load_raw(moert_data *data, const char *path, unsigned bits) {
    MOERT_TRY(moert_corpus_add(&data->corpus, path));
    if (data->corpus.count != 1 || strcmp(data->corpus.files[0].path, path) != 0)
        return MOERT_FAIL(ERROR_IO, "%s is a directory; a token file is one regular file", path);
    size_t bytes = data->corpus.files[0].bytes;
    data->width = bits / 8;
    if (bytes == 0 || bytes % data->width != 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: %zu bytes are no whole number of %u-bit tokens", path,
                          bytes, bits);
    data->tokens = bytes / data->width;
    return MOERT_OK;
}

moert_status moert_data_open_raw(const char *path, unsigned bits, double held_out,
                                 moert_data **data) {
    moert_data *made;
    if (bits != 16 && bits != 32)
        return MOERT_FAIL(ERROR_USAGE, "tokens of %u bits: expected 16 or 32", bits);
    MOERT_TRY(make(RAW, held_out, &made));
    return finish(made, load_raw(made, path, bits), data);
}

moert_status moert_data_from_array(const char *name, const int32_t *tokens, size_t steps,
                                   size_t batch, size_t row, moert_data **data) {
    if (steps == 0 || batch == 0 || row < 2)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: tokens[%zu,%zu,%zu] hold no sequence; expected [steps,batch,length "
                          "+ 1]",
                          name, steps, batch, row);
    moert_data *made;
    MOERT_TRY(make(ARRAY, 0.0, &made));
    made->name = name;
    made->array = tokens;
    made->steps = steps;
    made->batch = batch;
    made->row = row;
    made->tokens = steps * batch * row;
    return finish(made, MOERT_OK, data);
}

void moert_data_destroy(moert_data *data) {
    if (data == NULL)
        return;
    moert_corpus_clear(&data->corpus);
    MOERT_FREE(data->sums, data->starts, data);
}

moert_data_info moert_data_describe(const moert_data *data) {
    return (moert_data_info){.identity = data->identity,
                             .files = data->corpus.count,
                             .tokens = data->tokens,
                             .steps = data->steps,
                             .batch = data->batch,
                             .length = data->row > 0 ? data->row - 1 : 0};
}

/* The division of text and raw tokens into stretches. A remainder of less than `count` tokens is
 * not used. */
typedef struct stretches {
    size_t count, tokens, held; /* tokens of each stretch, of which the last `held` are held out */
} stretches;

/* Divides the tokens, and holds out the source's fraction of each stretch, or one sequence if that
 * is more. */
static stretches divide(const moert_data *data, size_t length) {
    enum { MOST = 16 };
    const double smaller = fmin(data->held_out, 1.0 - data->held_out) * (double)data->tokens;
    const double fitting = smaller / (2.0 * ((double)length + 1.0));
    const size_t count = moert_max((size_t)fmin(fitting, MOST), 1), tokens = data->tokens / count;
    if (data->held_out == 0.0)
        return (stretches){1, data->tokens, 0};
    const size_t held = (size_t)floor((double)tokens * data->held_out);
    return (stretches){count, tokens, moert_max(held, length + 1)};
}

moert_status moert_data_check_length(const moert_data *data, size_t length) {
    if (length == 0)
        return MOERT_FAIL(ERROR_USAGE, "a sequence needs at least one token");
    if (data->kind == ARRAY)
        return length + 1 == data->row
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_MISMATCH, "%s holds sequences of %zu tokens, not %zu",
                                data->name, data->row - 1, length);
    const stretches all = divide(data, length);
    if (all.tokens < length + 1 || all.tokens - (length + 1) < all.held)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%zu tokens of data are too few for sequences of %zu (%zu are held out, "
                          "and one more sequence needs %zu)",
                          data->tokens, length, all.held, length + 1);
    return MOERT_OK;
}

static uint32_t raw_token(const moert_data *data, size_t position) {
    const unsigned char *at = data->corpus.files[0].content + position * data->width;
    uint32_t token = at[0] | (uint32_t)at[1] << 8;
    return data->width == 2 ? token : token | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The last file that starts at or before `position`. */
static size_t file_at(const moert_data *data, size_t position) {
    size_t below = 0;
    for (size_t above = data->corpus.count; above - below > 1;) {
        size_t middle = below + (above - below) / 2;
        if (data->starts[middle] <= position)
            below = middle;
        else
            above = middle;
    }
    return below;
}

/* Reads `count` bytes from `position` on. A 0 byte separates the files: it is at the position after
 * a file's last byte. */
static void read_text(const moert_data *data, size_t position, size_t count, int32_t *tokens) {
    size_t file = file_at(data, position);
    for (size_t i = 0; i < count; i++, position++) {
        while (file + 1 < data->corpus.count && data->starts[file + 1] <= position)
            file++;
        size_t offset = position - data->starts[file];
        const moert_corpus_file *at = &data->corpus.files[file];
        tokens[i] = offset < at->bytes ? at->content[offset] : 0;
    }
}

static int32_t token_after(const moert_data *data, size_t position) {
    int32_t token;
    if (data->kind == RAW)
        return (int32_t)raw_token(data, position);
    if (data->kind == ARRAY)
        return data->array[position];
    read_text(data, position, 1, &token);
    return token;
}

/* input[i] and target[i] = tokens position + i and position + i + 1. */
static void read_sequence(const moert_data *data, size_t position, size_t length, int32_t *input,
                          int32_t *target) {
    if (data->kind == TEXT)
        read_text(data, position, length, input);
    else if (data->kind == ARRAY)
        memcpy(input, data->array + position, length * sizeof *input);
    else
        for (size_t i = 0; i < length; i++)
            input[i] = (int32_t)raw_token(data, position + i);
    memcpy(target, input + 1, (length - 1) * sizeof *target);
    target[length - 1] = token_after(data, position + length);
}

moert_status moert_data_sequence(const moert_data *data, moert_draw draw, size_t length,
                                 int32_t *input, int32_t *target) {
    size_t position;
    MOERT_TRY(moert_data_check_length(data, length));
    if (data->kind == ARRAY) {
        if (draw.step >= data->steps)
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: the file holds %zu batches; there is none for step "
                              "%llu",
                              data->name, data->steps, (unsigned long long)draw.step);
        if (draw.index >= data->batch)
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: a batch holds %zu sequences; there is no number "
                              "%zu",
                              data->name, data->batch, draw.index);
        position = (draw.step * data->batch + draw.index) * data->row;
    } else {
        const stretches all = divide(data, length);
        const size_t starts = all.tokens - all.held - length, any = all.count * starts;
        const double random =
            moert_rng_uniform(draw.seed, moert_rng_stream("data") + draw.step, draw.index);
        const size_t start = moert_min((size_t)(random * (double)any), any - 1);
        position = start / starts * all.tokens + start % starts;
    }
    read_sequence(data, position, length, input, target);
    return MOERT_OK;
}

bool moert_data_holds_out(const moert_data *data) {
    return data->held_out > 0.0;
}

moert_status moert_data_heldout_sequence(const moert_data *data, size_t index, size_t count,
                                         size_t length, int32_t *input, int32_t *target) {
    MOERT_TRY(moert_data_check_length(data, length));
    if (!moert_data_holds_out(data))
        return MOERT_FAIL(ERROR_USAGE, "no data is held out");
    if (index >= count)
        return MOERT_FAIL(ERROR_USAGE, "held-out sequence %zu of %zu", index, count);
    const stretches all = divide(data, length);
    const size_t starts = all.held - length, any = all.count * starts;
    const size_t start = count > 1 ? index * ((any - 1) / (count - 1)) : 0;
    const size_t part = (start / starts + 1) * all.tokens - all.held;
    read_sequence(data, part + start % starts, length, input, target);
    return MOERT_OK;
}

static moert_status check_text(const moert_data *data, size_t vocabulary) {
    for (size_t i = 0; i < data->corpus.count; i++) {
        const moert_corpus_file *file = &data->corpus.files[i];
        for (size_t at = 0; at < file->bytes; at++)
            if (file->content[at] >= vocabulary)
                return MOERT_FAIL(ERROR_MISMATCH,
                                  "%s, position %zu: token %u is not below the vocabulary of %zu",
                                  file->path, at, file->content[at], vocabulary);
    }
    return MOERT_OK;
}

moert_status moert_data_check_vocabulary(const moert_data *data, size_t vocabulary) {
    if (data->kind == TEXT)
        return vocabulary >= 256 ? MOERT_OK : check_text(data, vocabulary);
    const char *name = data->kind == RAW ? data->corpus.files[0].path : data->name;
    for (size_t at = 0; at < data->tokens; at++) {
        int64_t token = data->kind == RAW ? (int64_t)raw_token(data, at) : data->array[at];
        if (token < 0 || (uint64_t)token >= vocabulary)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "%s, position %zu: token %lld is not below the vocabulary of %zu",
                              name, at, (long long)token, vocabulary);
    }
    return MOERT_OK;
}
