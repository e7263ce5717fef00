/* Sums in a fixed order: the local part of the tree over sequences, and sums of squares. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

enum { COLUMNS = 1024, GPU_COLUMNS = 512, BLOCK = 4096 }; /* of a team, as in kernels/reduce.cl */

/* plan = the nodes' rows, then the steps; to be freed. */
static moert_status make_plan(moert_span span, uint32_t **plan, size_t *node_count,
                              size_t *step_count) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    moert_tree_step *steps;
    int checked;
    MOERT_TRY(moert_to_int(span.count, "sequences of a reduction", &checked));
    *node_count = moert_tree_nodes(span, nodes);
    MOERT_TRY(MOERT_NEW_ARRAY(&steps, span.count));
    *step_count = moert_tree_steps(span, steps);
    moert_status status = MOERT_NEW_ARRAY(plan, *node_count + 2 * *step_count);
    if (status == MOERT_OK) {
        uint32_t *at = *plan;
        for (size_t i = 0; i < *node_count; i++)
            *at++ = (uint32_t)(nodes[i].first - span.first);
        for (size_t i = 0; i < *step_count; i++) {
            *at++ = steps[i].left;
            *at++ = steps[i].right;
        }
    }
    free(steps);
    return status;
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

moert_status moert_tree_reduce(const moert_tree_reduction *reduction) {
    if (reduction->span.count == 0 || reduction->n == 0)
        return MOERT_OK;
    moert_device *device = moert_buffer_device(reduction->partial);
    const moert_grid grid = {
        moert_ceil_div(reduction->n, moert_share(device, COLUMNS, GPU_COLUMNS)), 1, 1};
    const char *program = MOERT_PROGRAM(
        device, "reduce", reduction->n | reduction->target_stride | reduction->target_offset);
    size_t node_count = 0, step_count = 0;
    uint32_t *plan;
    moert_buffer *uploaded;
    moert_status status;
    MOERT_TRY(make_plan(reduction->span, &plan, &node_count, &step_count));
    moert_profile_work(device, "reduce", 0.0,
                       sizeof(float) *
                           (double)((reduction->span.count + node_count) * reduction->n));
    MOERT_TRY_OR(free_plan,
                 upload(device, plan, (node_count + 2 * step_count) * sizeof *plan, &uploaded));
    MOERT_TRY_OR(destroy_uploaded,
                 MOERT_RUN(device, program, "tree_reduce", grid, MOERT_ARG(reduction->partial),
                           MOERT_ARG(uploaded), MOERT_ARG((unsigned)node_count),
                           MOERT_ARG((unsigned)step_count), MOERT_ARG(reduction->n),
                           MOERT_ARG(reduction->target), MOERT_ARG(reduction->target_stride),
                           MOERT_ARG(reduction->target_offset),
                           MOERT_ARG((int)reduction->accumulate)));
destroy_uploaded:
    moert_buffer_destroy(uploaded);
free_plan:
    free(plan);
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
    moert_buffer *uploaded, *result;
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
