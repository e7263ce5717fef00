/* Sums in a fixed order: the local part of the tree over sequences, and sums of squares. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

enum { COLUMNS = 1024, GPU_COLUMNS = 512, BLOCK = 4096 }; /* of a team, as in kernels/reduce.cl */

moert_status moert_tree_reduce(const moert_tree_reduction *reduction) {
    const moert_span span = reduction->span;
    const size_t n = reduction->n;
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    int total;
    if (span.count == 0 || n == 0)
        return MOERT_OK;
    MOERT_TRY(moert_to_int(span.total, "sequences of a reduction", &total));
    moert_device *device = moert_buffer_device(reduction->partial);
    const size_t sizes = n | reduction->target_stride | reduction->target_offset;
    const moert_grid grid = {moert_ceil_div(n, moert_share(device, COLUMNS, GPU_COLUMNS)), 1, 1};
    moert_profile_work(device, "reduce", 0.0,
                       sizeof(float) * (double)((span.count + moert_tree_nodes(span, nodes)) * n));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "reduce", sizes), "tree_reduce", grid,
                     MOERT_ARG(reduction->partial), MOERT_ARG((unsigned)span.first),
                     MOERT_ARG((unsigned)span.count), MOERT_ARG((unsigned)total), MOERT_ARG(n),
                     MOERT_ARG(reduction->target), MOERT_ARG(reduction->target_stride),
                     MOERT_ARG(reduction->target_offset), MOERT_ARG((int)reduction->accumulate));
}

/* A new device buffer with a copy of host memory. */
static moert_status upload(moert_device *device, const void *source, size_t bytes,
                           moert_buffer **buffer) {
    moert_buffer *made;
    MOERT_TRY(moert_buffer_create(device, bytes, &made));
    moert_status status = moert_buffer_write(made, 0, source, bytes);
    if (status != MOERT_OK)
        moert_buffer_destroy(made);
    else
        *buffer = made;
    return status;
}

/* Where a tensor lies and which of the numbered blocks is its first; read as three ulongs. */
typedef struct tensor_row {
    uint64_t begin, length, block;
} tensor_row;

/* Lists the tensors that are not empty; returns the number of blocks. */
static size_t list_tensors(size_t count, const size_t *offset, const size_t *length,
                           tensor_row *table, size_t *rows) {
    size_t blocks = 0;
    *rows = 0;
    for (size_t i = 0; i < count; i++) {
        if (length[i] == 0)
            continue;
        table[(*rows)++] = (tensor_row){offset[i], length[i], blocks};
        blocks += moert_ceil_div(length[i], BLOCK);
    }
    return blocks;
}

/* The sums of the blocks, as the device has them: double, or float without fp64. */
static moert_status block_sums(const moert_buffer *buffer, const tensor_row *table, size_t rows,
                               size_t blocks, void *sums, size_t bytes) {
    moert_device *device = moert_buffer_device(buffer);
    moert_buffer *uploaded = NULL, *result = NULL;
    moert_status status;
    moert_grid grid = {blocks, 1, 1};
    size_t floats = 0, sizes = 0;
    for (size_t i = 0; i < rows; i++) {
        floats += table[i].length;
        sizes |= table[i].begin | table[i].length;
    }
    moert_profile_work(device, "reduce", 0.0, sizeof(float) * (double)floats);
    MOERT_TRY(upload(device, table, rows * sizeof *table, &uploaded));
    MOERT_TRY_OR(destroy_uploaded, moert_buffer_create(device, bytes, &result));
    MOERT_TRY_OR(destroy_result,
                 MOERT_RUN(device, MOERT_PROGRAM(device, "reduce", sizes), "sum_squares", grid,
                           MOERT_ARG(buffer), MOERT_ARG(uploaded), MOERT_ARG((unsigned)rows),
                           MOERT_ARG(result)));
    MOERT_TRY_OR(destroy_result, moert_buffer_read(result, 0, sums, bytes));
destroy_result:
    moert_buffer_destroy(result);
destroy_uploaded:
    moert_buffer_destroy(uploaded);
    return status;
}

moert_status moert_sum_squares(const moert_buffer *buffer, size_t count, const size_t *offset,
                               const size_t *length, double *sum) {
    bool wide = moert_device_describe(moert_buffer_device(buffer))->has_fp64;
    tensor_row *table;
    void *sums = NULL; /* double, or float without fp64 */
    size_t rows, blocks, at = 0;
    int checked;
    MOERT_TRY(moert_to_int(count, "tensors of a sum of squares", &checked));
    MOERT_TRY(MOERT_NEW_ARRAY(&table, count));
    blocks = list_tensors(count, offset, length, table, &rows);
    moert_status status = moert_alloc(&sums, blocks, sizeof(double));
    if (status == MOERT_OK && blocks > 0)
        status = block_sums(buffer, table, rows, blocks, sums,
                            blocks * (wide ? sizeof(double) : sizeof(float)));
    for (size_t i = 0; status == MOERT_OK && i < count; i++) {
        sum[i] = 0.0;
        for (size_t end = at + moert_ceil_div(length[i], BLOCK); at < end; at++)
            sum[i] += wide ? ((const double *)sums)[at] : (double)((const float *)sums)[at];
    }
    free(sums);
    free(table);
    return status;
}
