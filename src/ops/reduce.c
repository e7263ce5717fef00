/* Sums in a fixed order: the local part of the tree over sequences, and sums of squares. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

enum { COLUMNS = 1024, GPU_COLUMNS = 512, BLOCK = 4096 }; /* of a team, as in kernels/reduce.cl */

moert_status moert_tree_reduce(const moert_tree_nodes_at *at, size_t n,
                               const moert_buffer *partial) {
    const moert_span span = at->span;
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    int total;
    if (span.count == 0 || n == 0)
        return MOERT_OK;
    MOERT_TRY(moert_to_int(span.total, "sequences of a reduction", &total));
    moert_device *device = moert_buffer_device(partial);
    const size_t sizes = n | at->stride | at->offset;
    const moert_grid grid = {moert_ceil_div(n, moert_share(device, COLUMNS, GPU_COLUMNS)), 1, 1};
    moert_profile_work(device, "reduce", 0.0,
                       sizeof(float) * (double)((span.count + moert_tree_nodes(span, nodes)) * n));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "reduce", sizes), "tree_reduce", grid,
                     MOERT_ARG(partial), MOERT_ARG((unsigned)span.first),
                     MOERT_ARG((unsigned)span.count), MOERT_ARG((unsigned)total), MOERT_ARG(n),
                     MOERT_ARG(at->target), MOERT_ARG(at->stride), MOERT_ARG(at->offset),
                     MOERT_ARG((int)at->accumulate));
}

/* ---- sums of squares ---- */

/* A span as kernels/reduce.cl reads it, three ulongs: where it lies, and its first block. */
typedef struct span_row {
    uint64_t begin, length, block;
} span_row;

/* Spans of one buffer, one after the other, which a launch sums. */
typedef struct stretch {
    const moert_buffer *buffer;
    size_t first, end;  /* spans */
    size_t block;       /* the first one */
    size_t floats, odd; /* in all; offsets and lengths or'ed */
} stretch;

struct moert_squares {
    moert_device *device;
    size_t count, blocks, stretches, number_bytes; /* sums are double, or float without fp64 */
    stretch *stretch;                              /* [stretches] */
    moert_buffer *table; /* [count + 1] rows, the last one past all blocks */
    moert_buffer *block_sums, *sums;
    void *numbers; /* sums on the host */
};

/* Fills the stretches and the table. */
static void lay_out(moert_squares *squares, const moert_square_span *span, span_row *table) {
    stretch *at = NULL;
    for (size_t i = 0; i < squares->count; i++) {
        if (at == NULL || at->buffer != span[i].buffer) {
            at = &squares->stretch[squares->stretches++];
            *at = (stretch){.buffer = span[i].buffer, .first = i, .block = squares->blocks};
        }
        at->end = i + 1;
        at->floats += span[i].length;
        at->odd |= span[i].offset | span[i].length;
        table[i] = (span_row){span[i].offset, span[i].length, squares->blocks};
        squares->blocks += moert_ceil_div(span[i].length, BLOCK);
    }
    table[squares->count].block = squares->blocks;
}

static moert_status create_buffers(moert_squares *squares, const span_row *table) {
    const size_t bytes = squares->number_bytes, rows = squares->count + 1;
    MOERT_TRY(moert_buffer_create(squares->device, rows * sizeof *table, &squares->table));
    MOERT_TRY(moert_buffer_create(squares->device, squares->blocks * bytes, &squares->block_sums));
    MOERT_TRY(moert_buffer_create(squares->device, squares->count * bytes, &squares->sums));
    return moert_buffer_write(squares->table, 0, table, rows * sizeof *table);
}

moert_status moert_squares_create(moert_device *device, const moert_square_span *span, size_t count,
                                  moert_squares **squares) {
    const bool wide = moert_device_describe(device)->has_fp64;
    moert_squares *made;
    span_row *table = NULL;
    moert_status status;
    int narrow;
    MOERT_TRY(moert_to_int(count, "tensors of a sum of squares", &narrow));
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    made->count = count;
    made->number_bytes = wide ? sizeof(double) : sizeof(float);
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->stretch, count));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&table, count + 1));
    MOERT_TRY_OR(fail, moert_alloc(&made->numbers, count, made->number_bytes));
    lay_out(made, span, table);
    MOERT_TRY_OR(fail, create_buffers(made, table));
    free(table);
    *squares = made;
    return MOERT_OK;
fail:
    free(table);
    moert_squares_destroy(made);
    return status;
}

void moert_squares_destroy(moert_squares *squares) {
    if (squares == NULL)
        return;
    moert_buffer_destroy(squares->sums);
    moert_buffer_destroy(squares->block_sums);
    moert_buffer_destroy(squares->table);
    free(squares->numbers);
    free(squares->stretch);
    free(squares);
}

static moert_status sum_blocks(const moert_squares *squares, size_t index) {
    const stretch *at = &squares->stretch[index];
    const size_t end = index + 1 < squares->stretches ? at[1].block : squares->blocks;
    moert_profile_work(squares->device, "reduce", 0.0, sizeof(float) * (double)at->floats);
    return MOERT_RUN(squares->device, MOERT_PROGRAM(squares->device, "reduce", at->odd),
                     "sum_squares", ((moert_grid){end - at->block, 1, 1}), MOERT_ARG(at->buffer),
                     MOERT_ARG(squares->table), MOERT_ARG((unsigned)at->first),
                     MOERT_ARG((unsigned)at->end), MOERT_ARG(squares->block_sums));
}

moert_status moert_squares_sum(moert_squares *squares, double *sum) {
    for (size_t i = 0; i < squares->stretches; i++)
        MOERT_TRY(sum_blocks(squares, i));
    MOERT_TRY(MOERT_RUN(squares->device, "reduce", "join_blocks",
                        ((moert_grid){squares->count, 1, 1}), MOERT_ARG(squares->table),
                        MOERT_ARG(squares->block_sums), MOERT_ARG(squares->sums)));
    MOERT_TRY(moert_buffer_read(squares->sums, 0, squares->numbers,
                                squares->count * squares->number_bytes));
    for (size_t i = 0; i < squares->count; i++)
        sum[i] = squares->number_bytes == sizeof(double)
                     ? ((const double *)squares->numbers)[i]
                     : (double)((const float *)squares->numbers)[i];
    return MOERT_OK;
}
