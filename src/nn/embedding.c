/* Token embedding: gathers rows of the table, and sums gradients per sequence or per tree node. */
#include <stdlib.h>

#include "args/nn.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

moert_status moert_embedding_forward(size_t tokens, size_t hidden, const moert_buffer *table,
                                     const moert_buffer *token, moert_buffer *x) {
    moert_device *device = moert_buffer_device(x);
    const moert_grid grid = {moert_ceil_div(tokens, moert_by_form(device, MOERT_EMBEDDING_TOKENS,
                                                                  MOERT_EMBEDDING_GPU_TOKENS)),
                             1, 1};
    moert_profile_work(device, "nn/embedding", 0.0, 2 * sizeof(float) * (double)(tokens * hidden));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/embedding", hidden), "embedding_forward",
                     grid, MOERT_ARG(table), MOERT_ARG(token), MOERT_ARG(x),
                     MOERT_ARGS(moert_embedding_args, .tokens = tokens, .hidden = hidden));
}

moert_status moert_embedding_backward(const moert_embedding_part *part) {
    const size_t hidden = part->hidden, rows = part->rows;
    moert_device *device = moert_buffer_device(part->partial);
    const size_t block = moert_by_form(device, rows, MOERT_EMBEDDING_GPU_ROWS);
    const moert_grid grid = {
        moert_by_form(device, moert_ceil_div(hidden, MOERT_EMBEDDING_COLUMNS), hidden > 0),
        part->sequences, rows > 0 ? moert_ceil_div(rows, block) : 0};
    moert_profile_work(device, "nn/embedding", 0.0,
                       sizeof(float) * (double)(part->sequences * (part->length + rows) * hidden));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/embedding", hidden), "embedding_backward",
                     grid, MOERT_ARG(part->token), MOERT_ARG(part->dx), MOERT_ARG(part->partial),
                     MOERT_ARGS(moert_embedding_args, .length = part->length, .hidden = hidden,
                                .first_row = part->first_row, .rows = rows, .share = block,
                                .first_leaf = part->first_sequence));
}

moert_status moert_embedding_links(moert_span span, size_t length, size_t rows, int32_t fixed,
                                   const int32_t *token, int32_t *link) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    const size_t count = moert_tree_nodes(span, nodes);
    int32_t *last; /* [rows] 1 + the index of the last token so far with this table row; 0: no such
                      token */
    int tokens;
    MOERT_TRY(moert_to_int(span.count * length, "tokens of a batch", &tokens));
    MOERT_TRY(moert_alloc(&last, rows, sizeof *last));
    for (size_t i = 0, t = 0; i < count; i++) {
        const size_t begin = t, leaves = nodes[i].first + nodes[i].width - span.first;
        for (const size_t end = moert_min(leaves, span.count) * length; t < end; t++) {
            link[2 * t] = link[2 * t + 1] = -1;
            if (token[t] < 0 || token[t] == fixed)
                continue;
            int32_t *before = &last[token[t]];
            const bool is_first = *before <= (int32_t)begin;
            if (is_first)
                link[2 * t] = (int32_t)i;
            else
                link[2 * (*before - 1) + 1] = (int32_t)t;
            *before = (int32_t)t + 1;
        }
    }
    free(last);
    return MOERT_OK;
}

moert_status moert_embedding_gradient(const moert_embedding_sum *sum) {
    const moert_tree_nodes_at *at = &sum->at;
    const size_t table = sum->rows * sum->hidden, tokens = at->span.count * sum->length;
    moert_device *device = moert_buffer_device(at->target);
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    const size_t columns =
        moert_by_form(device, MOERT_GRADIENT_COLUMNS, MOERT_GRADIENT_GPU_COLUMNS);
    const moert_grid grid = {tokens * moert_ceil_div(sum->hidden, columns), 1, 1};
    for (size_t i = 0; !at->accumulate && i < moert_tree_nodes(at->span, nodes); i++)
        MOERT_TRY(moert_buffer_clear(at->target, (i * at->stride + at->offset) * sizeof(float),
                                     table * sizeof(float)));
    moert_profile_work(device, "nn/embedding", 0.0,
                       2 * sizeof(float) * (double)(tokens * sum->hidden));
    return MOERT_RUN(device,
                     MOERT_PROGRAM(device, "nn/embedding", sum->hidden | at->stride | at->offset),
                     "embedding_gradient", grid, MOERT_ARG(sum->token), MOERT_ARG(sum->link),
                     MOERT_ARG(sum->dx), MOERT_ARG(at->target),
                     MOERT_ARGS(moert_embedding_args, .length = sum->length, .hidden = sum->hidden,
                                .first_leaf = at->span.first, .stride = at->stride,
                                .offset = at->offset, .accumulate = (int)at->accumulate));
}
