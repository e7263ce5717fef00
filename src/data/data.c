/* The sequences that a step draws from sources or replays from an array. */
#include "data/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"

moert_status moert_data_from_source(moert_source *source, const moert_split *split,
                                    moert_data **data) {
    const moert_status status = MOERT_NEW(data);
    if (status != MOERT_OK) {
        moert_source_close(source);
        return status;
    }
    (*data)->source = source;
    (*data)->end = -1;
    (*data)->tokens = source->tokens;
    (*data)->split = *split;
    memcpy((*data)->identity, source->identity, sizeof source->identity);
    return MOERT_OK;
}

/* Sets the identity of a blend: a checksum of the parts' identities and weights. */
static moert_status identify_blend(moert_data *data, const uint64_t *weights) {
    char hex[MOERT_CHECKSUM_DIGITS + 1];
    moert_text_stream all;
    MOERT_TRY(moert_text_open("the identity of a blend", &all));
    for (size_t i = 0; i < data->count; i++)
        fprintf(all.file, "%llu %s\n", (unsigned long long)weights[i], data->parts[i]->identity);
    MOERT_TRY(moert_text_close(&all));
    snprintf(data->identity, sizeof data->identity, "blend of %zu tokens from %zu sources, XXH3 %s",
             data->tokens, data->count,
             moert_checksum_text(moert_checksum_of(all.text, all.bytes), hex));
    free(all.text);
    return MOERT_OK;
}

static moert_status make_blend(moert_data *const *parts, const uint64_t *weights, size_t count,
                               moert_data *data) {
    MOERT_TRY(MOERT_NEW_ARRAY(&data->parts, count));
    MOERT_TRY(moert_blend_create(weights, count, &data->blend));
    for (size_t i = 0; i < count; i++)
        data->tokens += parts[i]->tokens;
    memcpy(data->parts, parts, count * sizeof *parts);
    data->count = count;
    data->split = parts[0]->split;
    return identify_blend(data, weights);
}

moert_status moert_data_from_blend(moert_data *const *parts, const uint64_t *weights, size_t count,
                                   moert_data **data) {
    moert_data *made = NULL;
    moert_status status = MOERT_NEW(&made);
    if (status == MOERT_OK)
        status = make_blend(parts, weights, count, made);
    if (status == MOERT_OK) {
        *data = made;
        return MOERT_OK;
    }
    const bool owned = made != NULL && made->count > 0;
    for (size_t i = 0; i < count && !owned; i++)
        moert_data_destroy(parts[i]);
    moert_data_destroy(made);
    return status;
}

moert_status moert_data_from_array(const moert_replay *replay, moert_data **data) {
    const size_t steps = replay->steps, batch = replay->batch, row = replay->row;
    if (steps == 0 || batch == 0 || row < 2)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: tokens[%zu,%zu,%zu] hold no sequence; expected [steps,batch,length "
                          "+ 1]",
                          replay->name, steps, batch, row);
    moert_data *made;
    moert_checksum sums[2];
    const size_t tokens = steps * batch * row, targets = steps * batch * (row - 1);
    MOERT_TRY(MOERT_NEW(&made));
    made->replay = *replay;
    made->end = -1;
    made->tokens = tokens;
    sums[0] = moert_checksum_of(replay->tokens, tokens * sizeof *replay->tokens);
    if (replay->targets != NULL)
        sums[1] = moert_checksum_of(replay->targets, targets * sizeof *replay->targets);
    made->sum = replay->targets != NULL ? moert_checksum_of(sums, sizeof sums) : sums[0];
    moert_identity_write("replayed data", tokens, &made->sum, 1, made->identity);
    *data = made;
    return MOERT_OK;
}

void moert_data_end_documents(moert_data *data, int32_t end, bool in_streams) {
    const bool is_stream = data->source != NULL && data->source->kind == MOERT_SOURCE_RAW;
    for (size_t i = 0; i < data->count; i++)
        moert_data_end_documents(data->parts[i], end, in_streams);
    data->end = is_stream || !in_streams ? end : -1;
}

void moert_data_destroy(moert_data *data) {
    if (data == NULL)
        return;
    moert_epochs_destroy(data->epochs);
    moert_source_close(data->source);
    for (size_t i = 0; i < data->count; i++)
        moert_data_destroy(data->parts[i]);
    moert_blend_destroy(data->blend);
    MOERT_FREE(data->parts, data);
}

/* Whether a sequence that starts at any position is divided at the ends of the source's
 * documents. */
static bool knows_documents(const moert_data *data) {
    return data->source != NULL && data->source->kind == MOERT_SOURCE_INDEXED;
}

static moert_data_info describe_blend(const moert_data *data) {
    moert_data_info all = {.identity = data->identity,
                           .tokens = data->tokens,
                           .parts = data->count,
                           .end = -1,
                           .end_made = -1,
                           .split = data->split};
    for (size_t i = 0; i < data->count; i++) {
        const moert_data_info part = moert_data_describe(data->parts[i]);
        all.files += part.files;
        all.rows += part.rows;
        all.documents |= part.documents;
        all.text |= part.text;
        all.vocabulary_made = moert_max(all.vocabulary_made, part.vocabulary_made);
        all.end_made = part.end_made >= 0 ? part.end_made : all.end_made;
        all.divided |= part.divided;
        all.end = part.end >= 0 ? part.end : all.end;
    }
    return all;
}

moert_data_info moert_data_describe(const moert_data *data) {
    const moert_source *source = data->source;
    if (data->blend != NULL)
        return describe_blend(data);
    return (moert_data_info){.identity = data->identity,
                             .files = source != NULL ? source->corpus.count : 0,
                             .tokens = data->tokens,
                             .steps = data->replay.steps,
                             .batch = data->replay.batch,
                             .rows = data->epochs != NULL ? moert_epochs_rows(data->epochs) : 0,
                             .documents = knows_documents(data),
                             .divided =
                                 knows_documents(data) || data->epochs != NULL || data->end >= 0,
                             .end = data->end,
                             .text = source != NULL && source->kind == MOERT_SOURCE_TEXT,
                             .vocabulary_made = source != NULL ? source->vocabulary_made : 0,
                             .end_made = source != NULL ? source->end_made : -1,
                             .name = source != NULL ? source->name : NULL,
                             .split = data->split,
                             .length = data->replay.row > 0 ? data->replay.row - 1 : 0};
}

const moert_data *moert_data_part(const moert_data *data, size_t part) {
    return data->parts[part];
}

uint64_t moert_data_part_count(const moert_data *data, size_t part, uint64_t sequences) {
    return moert_blend_count(data->blend, part, sequences);
}

moert_status moert_data_check_length(const moert_data *data, size_t length) {
    moert_stretches all;
    for (size_t i = 0; i < data->count; i++)
        if (moert_data_check_length(data->parts[i], length) != MOERT_OK)
            return MOERT_FAIL(ERROR_MISMATCH, "%s: %s", moert_data_describe(data->parts[i]).name,
                              moert_last_error());
    if (data->blend != NULL)
        return MOERT_OK;
    if (data->source == NULL)
        return length + 1 == data->replay.row
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_MISMATCH, "%s holds sequences of %zu tokens, not %zu",
                                data->replay.name, data->replay.row - 1, length);
    return moert_split_divide(&data->split, data->tokens, length, &all);
}

moert_status moert_data_order_epochs(moert_data *data, uint64_t seed, size_t length) {
    moert_range ranges[MOERT_EPOCH_RANGES];
    moert_stretches all;
    for (size_t i = 0; i < data->count; i++)
        MOERT_TRY(moert_data_order_epochs(data->parts[i], seed + i, length));
    if (data->blend != NULL)
        return MOERT_OK;
    if (data->source == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s holds fixed batches, which are replayed in order; it has no epochs",
                          data->replay.name);
    MOERT_TRY(moert_split_divide(&data->split, data->tokens, length, &all));
    for (size_t i = 0; i <= all.count; i++)
        ranges[i] = moert_split_training(&all, i, data->tokens);
    const moert_epochs_options options = {data->source, seed, length};
    return moert_epochs_create(&options, ranges, all.count + 1, &data->epochs);
}

/* input[i] and target[i] = tokens position + i and position + i + 1. */
static moert_status read_sequence(const moert_data *data, size_t position, size_t length,
                                  int32_t *input, int32_t *target) {
    MOERT_TRY(moert_source_read(data->source, position, length, input));
    memcpy(target, input + 1, (length - 1) * sizeof *target);
    MOERT_TRY(moert_source_read(data->source, position + length, 1, target + length - 1));
    return data->source->masked ? moert_source_mask_targets(data->source, position, length, target)
                                : MOERT_OK;
}

/* Copies a sequence of an array. */
static moert_status replay(const moert_replay *from, moert_draw draw, int32_t *input,
                           int32_t *target) {
    const size_t length = from->row - 1, at = draw.step * from->batch + draw.index;
    if (draw.step >= from->steps)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s: the file holds %zu batches; there is none for step "
                          "%llu",
                          from->name, from->steps, (unsigned long long)draw.step);
    if (draw.index >= from->batch)
        return MOERT_FAIL(ERROR_USAGE, "%s: a batch holds %zu sequences; there is no sequence %zu",
                          from->name, from->batch, draw.index);
    memcpy(input, from->tokens + at * from->row, length * sizeof *input);
    memcpy(target, from->tokens + at * from->row + 1, length * sizeof *target);
    for (size_t i = 0; from->targets != NULL && i < length; i++) {
        const int32_t given = from->targets[at * length + i];
        target[i] = given < 0 ? -1 : given;
    }
    return MOERT_OK;
}

/* Cuts a sequence at the ends of the source's documents: the last token of a document has no
 * target, and positions count from the document's first token in the sequence. */
static void cut_at_documents(const moert_source *source, size_t position, size_t length,
                             int32_t *target, int32_t *positions) {
    size_t document = moert_source_document(source, position), begin = position;
    for (size_t i = 0; i < length; i++) {
        const size_t at = position + i;
        while (document + 1 < source->documents && moert_source_start(source, document + 1) <= at)
            begin = moert_source_start(source, ++document);
        const size_t end =
            moert_source_start(source, document) + moert_source_length(source, document);
        positions[i] = (int32_t)(at - moert_max(begin, position));
        if (at + 1 >= end)
            target[i] = -1;
    }
}

/* positions[i] = i: the sequence is one document. */
static void count_positions(size_t length, int32_t *positions) {
    for (size_t i = 0; positions != NULL && i < length; i++)
        positions[i] = (int32_t)i;
}

/* Also ends a document after every token `end` of a sequence, which may already hold several
 * documents. */
static void divide(int32_t end, size_t length, const int32_t *input, int32_t *target,
                   int32_t *positions) {
    for (size_t i = 0; end >= 0 && i < length; i++) {
        const bool begins =
            positions[i] == 0 || input[i - 1] == end || (input[i] < 0 && input[i - 1] >= 0);
        positions[i] = begins ? 0 : positions[i - 1] + 1;
        if (input[i] == end)
            target[i] = -1;
    }
}

/* Reads a sequence of a source from `position` on. */
static moert_status read_at(const moert_data *data, size_t position, size_t length, int32_t *input,
                            int32_t *target, int32_t *positions) {
    count_positions(length, positions);
    MOERT_TRY(read_sequence(data, position, length, input, target));
    if (knows_documents(data) || data->epochs != NULL)
        cut_at_documents(data->source, position, length, target, positions);
    return MOERT_OK;
}

/* Reads a sequence at a random position of a source's training data. */
static moert_status read_random(const moert_data *data, moert_draw draw, size_t length,
                                int32_t *input, int32_t *target, int32_t *positions) {
    moert_stretches all;
    MOERT_TRY(moert_split_divide(&data->split, data->tokens, length, &all));
    const size_t any = moert_split_starts(&all, MOERT_TRAINING, length);
    const double random =
        moert_rng_uniform(draw.seed, moert_rng_stream("data") + draw.step, draw.index);
    const size_t start = moert_min((size_t)(random * (double)any), any - 1);
    return read_at(data, moert_split_start(&all, MOERT_TRAINING, length, start), length, input,
                   target, positions);
}

moert_status moert_data_sequence(const moert_data *data, moert_draw draw, size_t length,
                                 int32_t *input, int32_t *target, int32_t *positions) {
    const uint64_t number = draw.before + draw.index;
    MOERT_TRY(moert_data_check_length(data, length));
    if (positions == NULL && moert_data_describe(data).divided)
        return MOERT_FAIL(
            ERROR_USAGE,
            "sequences of several documents need a buffer for positions, but positions is NULL");
    if (data->blend != NULL) {
        const moert_blend_turn turn = moert_blend_at(data->blend, number);
        draw = (moert_draw){draw.seed + turn.source, turn.number, 0, turn.number};
        return moert_data_sequence(data->parts[turn.source], draw, length, input, target,
                                   positions);
    }
    if (data->epochs != NULL) {
        MOERT_TRY(moert_epochs_read(data->epochs, number, input, target, positions));
    } else if (data->source != NULL) {
        MOERT_TRY(read_random(data, draw, length, input, target, positions));
    } else {
        count_positions(length, positions);
        MOERT_TRY(replay(&data->replay, draw, input, target));
    }
    divide(data->end, length, input, target, positions);
    return MOERT_OK;
}

bool moert_data_has(const moert_data *data, moert_use use) {
    return data->split.part[use] > 0.0;
}

moert_status moert_data_kept_sequence(const moert_data *data, moert_kept_draw draw, size_t length,
                                      int32_t *input, int32_t *target, int32_t *positions) {
    moert_stretches all;
    if (data->source == NULL || !moert_data_has(data, draw.use))
        return MOERT_FAIL(ERROR_USAGE, "no data are %s",
                          draw.use == MOERT_TEST ? "kept for a test" : "held out");
    if (draw.index >= draw.count)
        return MOERT_FAIL(ERROR_USAGE, "there is no held-out sequence %zu; there are %zu",
                          draw.index, draw.count);
    MOERT_TRY(moert_split_divide(&data->split, data->tokens, length, &all));
    const size_t any = moert_split_starts(&all, draw.use, length);
    const size_t start = draw.count > 1 ? draw.index * ((any - 1) / (draw.count - 1)) : 0,
                 position = moert_split_start(&all, draw.use, length, start);
    MOERT_TRY(read_at(data, position, length, input, target, positions));
    divide(data->end, length, input, target, positions);
    return MOERT_OK;
}

/* Negative targets are legal, since they are masked. Negative tokens are an error. */
static moert_status check_array(const moert_replay *from, const char *what, const int32_t *values,
                                size_t count, size_t vocabulary) {
    for (size_t at = 0; at < count; at++)
        if (values[at] >= 0 ? (size_t)values[at] >= vocabulary : values == from->tokens)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "%s, position %zu: %s %d is not below the vocabulary of %zu",
                              from->name, at, what, (int)values[at], vocabulary);
    return MOERT_OK;
}

moert_status moert_data_check_vocabulary(moert_data *data, size_t vocabulary) {
    for (size_t i = 0; i < data->count; i++)
        MOERT_TRY(moert_data_check_vocabulary(data->parts[i], vocabulary));
    if (data->blend != NULL)
        return MOERT_OK;
    if (data->source != NULL)
        return moert_source_limit(data->source, vocabulary);
    const moert_replay *from = &data->replay;
    MOERT_TRY(check_array(from, "token", from->tokens, data->tokens, vocabulary));
    return from->targets == NULL
               ? MOERT_OK
               : check_array(from, "target", from->targets,
                             from->steps * from->batch * (from->row - 1), vocabulary);
}
